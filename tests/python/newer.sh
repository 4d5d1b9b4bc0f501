#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# newer.sh SOURCE VERIFY TRACE_LIBRARY LIBRARY BUILD: the same tests under PyTorch 2. CDDP_NEWER_PYTHON names a Python that has
# it, and pytest. Without that, root gets one from the next Debian: mmdebstrap (a download of some 300 MB) puts its packages
# into BUILD/newer-root once, and Python runs in there. Skips (77), saying why, where neither can be had.
set -eu
here=$1 verify=$2 trace=$3 library=$4 build=$5
root=$build/newer-root
skip() {
    echo "skipped: $*"
    exit 77
}

make_root() {
    [ -x "$root/usr/bin/python3" ] && return
    [ "$(id -u)" = 0 ] || skip "CDDP_NEWER_PYTHON names no Python with PyTorch 2, and only root can make one here"
    command -v mmdebstrap > /dev/null || skip "no mmdebstrap (Debian package mmdebstrap)"
    rm -rf --one-file-system "$root" "$root.part" # one that was stopped may have mounts
    mmdebstrap --quiet --variant=minbase --include=python3-torch,python3-pytest,python3-setuptools,libsqlite3-0,libxxhash0 trixie "$root.part" ||
        skip "the packages of Debian trixie cannot be had"
    mv "$root.part" "$root"
}

# A Python of that root, which sees this tree where it lies: mounts that end with it.
in_root() {
    cat > "$build/newer-python" << TEXT
#!/bin/sh
export PWD
exec unshare --mount sh -c '
    for place in /proc /sys /dev "$(cd "$here/../.." && pwd)" "$build"; do
        mkdir -p "$root\$place"
        mount --rbind "\$place" "$root\$place" || exit 77
    done
    exec chroot "$root" env -C "\$PWD" python3 "\$@"' sh "\$@"
TEXT
    chmod +x "$build/newer-python"
    python=$build/newer-python
}

python=${CDDP_NEWER_PYTHON:-}
if [ -z "$python" ]; then
    make_root
    in_root
fi
version=$("$python" -c 'import torch; print(torch.__version__)') || skip "$python has no torch"
case $version in 1.*) skip "$python has torch $version" ;; esac
echo "PyTorch $version"
# Every test file, each to its end: a failure of one says nothing about the next.
failed=
for test in "$here"/test_*.py; do
    subject=$(basename "$test" .py)
    echo "$subject"
    status=0
    CDDP_TEST_PYTHON=$python "$here/live.sh" "$test" "$verify" "$trace" "$library" || status=$?
    case $status in
    0) ;;
    77) failed="$failed $subject (skipped)" ;;
    *) failed="$failed $subject" ;;
    esac
done
[ -z "$failed" ] || {
    echo "PyTorch $version: not passed:$failed"
    exit 1
}
echo "PyTorch $version: every test file passed"
