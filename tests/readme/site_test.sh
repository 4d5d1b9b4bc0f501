#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The documents become pages without a warning and without a broken link, and a link that is broken is found.
#
# usage: site_test.sh SOURCE WORK
set -euo pipefail
source=$1 work=$2
fail() { echo "FAILED: $*" >&2; exit 1; }

python3 "$source/docs/site/site.py" "$source" "$work" || exit $?
for page in index.html cli.html explain.html formats/scenario.html api/index.html api/ddp_8h.html; do
    [ -s "$work/site/$page" ] || fail "there is no $page"
done
# Where SARIF's help links lead.
for place in i-init i-order i-live; do
    grep -q "id=\"$place\"" "$work/site/explain.html" || fail "explain.html has no $place"
done
for place in many-schedules all-schedules smaller-failures stored-runs one-process-against-many hooks backends; do
    grep -q "id=\"$place\"" "$work/site/cli.html" || fail "cli.html has no $place"
done
echo '<a href="nowhere.html">x</a><a href="cli.html#nowhere">y</a>' >>"$work/site/tour.html"
if python3 "$source/docs/site/site.py" --check "$work/site" >"$work/found"; then fail "broken links are not found"; fi
grep -q 'nowhere.html: there is no such file' "$work/found" && grep -q 'cli.html#nowhere: there is no such place' "$work/found" || fail "$(cat "$work/found")"
# A header that Doxygen complains about is an error; here it sees the comment as it stands.
mkdir -p "$work/bad/docs/site" "$work/bad/include/cddp"
cp "$source/docs/site/"* "$work/bad/docs/site/"
sed -i '/^FILTER_PATTERNS/d' "$work/bad/docs/site/Doxyfile"
printf '/** \\file */\n/** \\param nothing is there */\nvoid f(int x);\n' >"$work/bad/include/cddp/f.h"
echo '# x' >"$work/bad/docs/README.md"
if python3 "$source/docs/site/site.py" "$work/bad" "$work/worse" >"$work/found" 2>&1; then fail "a warning of Doxygen is none"; fi
grep -q "argument 'nothing'" "$work/found" || fail "$(cat "$work/found")"
echo "pages, links and the interface are in order"
