# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by tests that press Ctrl-C: when a process would notice it. Before it catches SIGINT it just dies of it, or, started in the
# background by a shell without job control, does not see it at all.

# await_catch PROCESS PROGRAM: waits until the process runs the program and catches SIGINT; fails when it ends first, or does not within
# a minute. Where the system does not tell, it is given a second.
await_catch() {
    local mask program
    [ -r /proc/self/status ] || { sleep 1; return 0; }
    program=$(readlink -f "$2")
    for _ in $(seq 3000); do
        mask=
        [ "$(readlink "/proc/$1/exe")" = "$program" ] && mask=$(awk '/^SigCgt/ { print $2 }' "/proc/$1/status" 2>/dev/null)
        [ $((0x${mask:-0} & 2)) -ne 0 ] && return 0
        kill -0 "$1" 2>/dev/null || return 1
        sleep 0.02
    done
    return 1
}
