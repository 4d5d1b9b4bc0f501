# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by tests that call the program as a user does. Each sets `claim` to what it is about to show; the first claim that
# does not hold ends the script with its name and with what was seen. The script runs in its own folder, removed at the
# end; what a command printed is in out and err.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
claim="the test begins"

fail() { printf 'FAILED: %s\n' "$claim" "$@" >&2; cat out err >&2; exit 1; }
# expect EXIT COMMAND…
expect() {
    local wanted=$1
    shift
    "$@" > out 2> err
    local got=$?
    [ "$got" -eq "$wanted" ] || fail "exit $got, wanted $wanted: $*"
}
says() { grep -qF -- "$1" out || fail "standard output lacks: $1"; }
silent() { ! grep -qF -- "$1" out || fail "standard output has: $1"; }
complains() { grep -qF -- "$1" err || fail "standard error lacks: $1"; }
