# SPDX-License-Identifier: Apache-2.0
# What check says of a recorded program. The script that reads this file has verify, the program to ask, and `record MISTAKE`, which
# records into $place/run.db.
place=$(mktemp -d) || exit 1
trap 'rm -rf "$place"' EXIT
failed=0

# mistake, exit code of check, words of the report, which may go over its lines
expect() {
    rm -f "$place"/run.db*
    record "$1" > "$place/out" 2>&1
    "$verify" check "$place/run.db" > "$place/report" 2>&1
    code=$?
    tr -s ' \n' ' ' < "$place/report" > "$place/line"
    if [ $code -ne "$2" ] || ! grep -q -- "$3" "$place/report" "$place/line"; then
        echo "$1: check ended with $code, wanted $2 and \"$3\":"
        cat "$place/out" "$place/report"
        failed=1
    else
        echo "$1: $(head -n 1 "$place/report")"
    fi
}
