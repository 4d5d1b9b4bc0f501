#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# overlap_bench where a link is the bound and not the processors: two ranks on two hosts, which are network namespaces of
# this machine, joined by one link that lets each send RATE Gbit/s and no more.
#
#     bench/overlap_on_a_link.sh RATE OVERLAP_BENCH [ARGUMENT…]
#     bench/overlap_on_a_link.sh RATE mpirun OVERLAP_BENCH --module MODULE.so [ARGUMENT…]      (Open MPI's)
#
# What goes through at once beyond the rate is 128 KiB, two of the largest packets. Exit: the bench's; 77 where
# namespaces are not permitted, saying what it was.
set -u
[ $# -ge 2 ] && [[ $1 =~ ^[0-9]*\.?[0-9]+$ ]] || { echo "usage: overlap_on_a_link.sh RATE [mpirun] OVERLAP_BENCH [ARGUMENT…]" >&2; exit 2; }
rate=$1
shift
hosts="cdlink$$-"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
trap 'ip netns del "${hosts}0" 2> /dev/null; ip netns del "${hosts}1" 2> /dev/null' EXIT
skip() {
    echo "skipped: $1"
    exit 77
}
join() {
    for i in 0 1; do ip netns add "$hosts$i" && ip -n "$hosts$i" link set lo up || return 1; done
    ip -n "${hosts}0" link add eth0 type veth peer name eth0 netns "${hosts}1" || return 1
    for i in 0 1; do
        ip -n "$hosts$i" addr add "10.77.0.$((i + 1))/24" dev eth0 && ip -n "$hosts$i" link set eth0 up || return 1
        ip netns exec "$hosts$i" tc qdisc add dev eth0 root tbf rate "${rate}gbit" burst 128kb latency 50ms || return 1
    done
}
command -v ip > /dev/null && command -v tc > /dev/null || skip "there is no ip or no tc (Debian package iproute2)"
reason=$(join 2>&1) || skip "two hosts joined by a link of $rate Gbit/s: $reason"

case $(basename "$1") in
mpirun*) "$here/../tests/hosts/openmpi.sh" "$hosts" 2 "$@" ;;
*) "$@" --hosts "$hosts" ;;
esac
