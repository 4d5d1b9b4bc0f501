#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the packages of a build, installs them under a private root folder, uses them, and purges them.
# Nothing is downloaded, and the machine's own packages are not touched.
#
# usage: packages_test.sh BUILD SOURCE WORK
set -euo pipefail
build=$1 source=$2 work=$3
skip() { echo "skipped: $*"; exit 77; }
fail() { echo "FAILED: $*" >&2; exit 1; }

command -v dpkg-deb >/dev/null || skip "no dpkg-deb here"
rm -rf "$work"
mkdir -p "$work/root/var/lib/dpkg/info" "$work/root/var/lib/dpkg/updates"
touch "$work/root/var/lib/dpkg/status"
(cd "$work" && cpack --config "$build/CPackConfig.cmake" -B "$work/made" >"$work/cpack.log" 2>&1) || { tail -20 "$work/cpack.log"; fail "cpack"; }
debs=("$work"/made/*.deb)
[ ${#debs[@]} -eq 4 ] || fail "4 packages are expected: ${debs[*]}"
printf '%s\n' "${debs[@]##*/}"

if command -v lintian >/dev/null; then
    said=$(lintian --fail-on none "${debs[@]}" 2>&1 | grep -E '^[EW]:' || true)
    [ -z "$said" ] || fail "lintian: $said"
    echo "lintian: nothing to complain about"
else
    echo "lintian is not installed: packages were not linted"
fi

# Dependencies are the machine's own; scripts run without a chroot, where ldconfig does no harm.
in_root() { dpkg --root="$work/root" --force-depends --force-script-chrootless --force-not-root --log="$work/dpkg.log" "$@"; }
in_root -i "${debs[@]}" >"$work/dpkg.out" 2>&1 || { grep -qi 'permi\|chroot\|superuser' "$work/dpkg.out" && skip "dpkg may not install under a folder here"; cat "$work/dpkg.out"; fail "dpkg -i"; }
[ "$(in_root -l 2>/dev/null | grep -c '^ii')" -eq 4 ] || fail "4 packages should be installed"

usr=$work/root/usr
"$usr/bin/cddp-verify" version | grep -q "$("$build/bin/cddp-verify" version | head -1 | awk '{print $2}')" || fail "the version differs"
"$usr/bin/cddp-verify" run "$usr/share/cddp/scenarios/gan_unused_params.toml" >"$work/run.out" || { cat "$work/run.out"; fail "the flagship"; }
(cd "$work" && "$usr/bin/cddp-verify" list scenarios | grep -q gan_unused_params) || fail "the installed catalogue is not found"
zcat "$usr/share/man/man1/cddp-verify.1.gz" | grep -q '^\.TH' || fail "the manual page"
zcat "$usr/share/man/man1/cddp-verify-run.1.gz" | grep -q '^\.TH' || fail "the manual page of a command"
python3 - "$usr/share/doc" "$source/packaging/parts.txt" <<'PY' || fail "the bill of materials"
import json, os, sys
for package in ("libcddp0", "libcddp-dev", "cddp-verify"):
    with open(f"{sys.argv[1]}/{package}/cddp.spdx.json", encoding="utf-8") as file:
        bill = json.load(file)
    assert bill["spdxVersion"] == "SPDX-2.3" and bill["documentNamespace"]
    names = {p["name"]: p for p in bill["packages"]}
    listed = [r.split("|") for r in open(sys.argv[2], encoding="utf-8") if r[0].islower()]
    assert set(names) == {"cddp"} | {r[0] for r in listed}, names
    ids = {p["SPDXID"] for p in bill["packages"]} | {"SPDXRef-DOCUMENT"}
    assert all(r["spdxElementId"] in ids and r["relatedSpdxElement"] in ids for r in bill["relationships"])
    for name, licence, use, *_ in listed:
        assert names[name]["licenseDeclared"] == licence
        text = f"{sys.argv[1]}/{package}/licenses/{name}.txt"
        assert os.path.exists(text) == (use == "contained"), text
        assert use != "contained" or names[name]["versionInfo"] != "NOASSERTION", name
PY
bash -n "$usr/share/bash-completion/completions/cddp-verify" || fail "the completion"
cat >"$work/program.c" <<'C'
#include <cddp/cddp.h>
#include <stdio.h>
int main(void) { return puts(cddp_version()) < 0; }
C
export PKG_CONFIG_PATH=$usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$work/root
# shellcheck disable=SC2046
if command -v pkg-config >/dev/null; then
    cc "$work/program.c" -o "$work/program" $(pkg-config --cflags --libs cddp) || fail "a program against the packages"
    LD_LIBRARY_PATH=$usr/lib "$work/program" >/dev/null || fail "the program"
fi
echo "installed, used"

in_root --purge libcddp0 libcddp-dev cddp-verify cddp-doc >"$work/dpkg.out" 2>&1 || { cat "$work/dpkg.out"; fail "dpkg --purge"; }
left=$(find "$usr" -type f 2>/dev/null || true)
[ -z "$left" ] || fail "left behind: $left"
echo "purged: nothing is left"

# The archive is the same files, for machines without dpkg.
tar xzf "$work"/made/*.tar.gz -C "$work"
archived=("$work"/cddp-*/bin/cddp-verify)
"${archived[0]}" version >/dev/null || fail "the archive"

# An installation is removed by the build that made it.
DESTDIR=$work/dest cmake --install "$build" --prefix /opt/cddp >/dev/null
DESTDIR=$work/dest cmake -DMANIFEST="$build/install_manifest.txt" -P "$source/cmake/uninstall.cmake" >/dev/null 2>&1
left=$(find "$work/dest" -type f)
[ -z "$left" ] || fail "uninstall left: $left"
echo "uninstall: nothing is left"
