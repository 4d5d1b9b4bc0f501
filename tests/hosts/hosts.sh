#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# hosts.sh HOST_TOOL GLOO.so TRAIN_DDP CDDP_VERIFY [MPIRUN MPI_RANK]: Gloo, and Open MPI, between four hosts, which are network namespaces of this machine.
#
#     h0 ── h1 ── h2 ── h3      10.77.0.1 … 4, each on a bridge in a fifth namespace
#
# Nothing leaves these namespaces, and they go away at the end. What this machine does not permit is skipped, saying
# what it was. Every run is bounded; a rank that cannot go on says why, and every shard is merged.
set -u
tool=$1 gloo=$2 train=$3 verify=$4 mpirun=${5:-} mpi_rank=${6:-}
tag="cd$$"
work=$(mktemp -d)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
support=$here/../support
failed=0
relay=
declare -a ranks=()

cleanup() {
    for pid in "${ranks[@]}" $relay; do kill -9 "$pid" 2> /dev/null; done
    for i in 0 1 2 3; do ip netns del "$tag-h$i" 2> /dev/null; done
    ip netns del "$tag-sw" 2> /dev/null
    rm -rf "$work"
}
trap cleanup EXIT
skip() {
    echo "skipped: $1"
    exit 77
}
complain() {
    echo "FAILED $1"
    failed=1
}

command -v ip > /dev/null || skip "there is no ip (Debian package iproute2)"
reason=$(ip netns add "$tag-sw" 2>&1) || skip "ip netns add: $reason"
on() { local host=$1; shift; ip netns exec "$tag-$host" "$@"; }
make_hosts() {
    ip -n "$tag-sw" link add br0 type bridge && ip -n "$tag-sw" link set br0 up || return 1
    for i in 0 1 2 3; do
        ip netns add "$tag-h$i" && ip -n "$tag-h$i" link set lo up || return 1
        ip -n "$tag-sw" link add "p$i" type veth peer name eth0 netns "$tag-h$i" || return 1
        join_bridge "$i"
    done
}
join_bridge() {
    ip -n "$tag-sw" link set "p$1" master br0 && ip -n "$tag-sw" link set "p$1" up
    ip -n "$tag-h$1" addr add "10.77.0.$(($1 + 1))/24" dev eth0 && ip -n "$tag-h$1" link set eth0 up
}
reason=$(make_hosts 2>&1) || skip "four namespaces joined by veth and a bridge: $reason"

port=29500
start() { # ITERATIONS NUMEL TIMEOUT_MS
    port=$((port + 1))
    rm -f "$work"/*.db "$work"/*.out
    ranks=()
    for i in 0 1 2 3; do
        on "h$i" "$tool" rank "$gloo" "$i/4" "10.77.0.1:$port" "$work/$i.db" "$1" "$2" "$3" > "$work/$i.out" 2>&1 &
        ranks+=($!)
    done
    began=$(date +%s%N)
}
# Until every rank has made an all-reduce, so that what comes now comes in the middle of the work.
under_way() { # NAME
    for _ in $(seq 300); do
        [ "$(cat "$work"/[0-3].out | grep -c 'under way')" = 4 ] && sleep 0.3 && return
        sleep 0.1
    done
    complain "$1: ranks did not begin within 30 s: $(cat "$work"/*.out)"
}
# Waits for all ranks; more than SECONDS is a failure, and they are killed.
finish() { # SECONDS
    codes=
    for i in 0 1 2 3; do
        while kill -0 "${ranks[$i]}" 2> /dev/null && [ $((($(date +%s%N) - began) / 1000000000)) -lt "$1" ]; do sleep 0.1; done
        kill -9 "${ranks[$i]}" 2> /dev/null && complain "rank $i was still there after $1 s"
        wait "${ranks[$i]}" 2> /dev/null
        codes="$codes$?,"
    done
    took_ms=$((($(date +%s%N) - began) / 1000000))
    ranks=()
}
# Every all-reduce that a rank says it finished is in the merged store.
nothing_lost() {
    "$tool" merge "$work/all.db" "$work"/[0-3].db > "$work/merged" 2>&1 || complain "merge: $(cat "$work/merged")"
    for i in 0 1 2 3; do
        said=$(sed -n "s/^rank $i: \([0-9]*\) all-reduces.*/\1/p" "$work/$i.out")
        kept=$(sed -n "s/^merged rank $i: //p" "$work/merged")
        [ -z "$said" ] && [ "${kept:-0}" -gt 0 ] && continue # it was killed; what it flushed is there
        [ "${said:-none}" = "${kept:-nothing}" ] || complain "$1: rank $i finished ${said:-?} all-reduces, ${kept:-?} are stored"
    done
}
all_right() { # NAME
    [ "$codes" = "0,0,0,0," ] || complain "$1: exit codes $codes: $(cat "$work"/*.out)"
    nothing_lost "$1"
    echo "$1: four ranks agreed, $took_ms ms"
}
# Somebody names the host that is gone; nobody else ends well.
named() { # NAME RANK
    for i in 0 1 2 3; do
        [ "$i" = "$2" ] && continue
        grep -q "^rank $i: .*group 'world'" "$work/$i.out" || complain "$1: rank $i does not say what failed: $(cat "$work/$i.out")"
    done
    grep -qhE "lost rank $2|rank $2 did not take part|waiting for rank $2" "$work"/[0-3].out || complain "$1: nobody names rank $2: $(cat "$work"/*.out)"
    nothing_lost "$1"
    echo "$1: $(grep -hE "lost rank $2|rank $2 did not|waiting for rank $2" "$work"/[0-3].out | head -1) ($took_ms ms)"
}

start 20 65536 20000
finish 60
all_right "as it is"

# The training program as docs/howto/cluster.md starts it: the result is that of four processes on one host.
ranks=()
for i in 0 1 2 3; do
    on "h$i" env RANK="$i" WORLD_SIZE=4 MASTER_ADDR=10.77.0.1 MASTER_PORT=29400 CDDP_STORE_SECRET=four "$train" env "$gloo" > "$work/$i.train" 2>&1 &
    ranks+=($!)
done
began=$(date +%s%N)
finish 120
"$train" 4 "$gloo" > "$work/train" 2>&1
[ "$codes" = "0,0,0,0," ] && cmp -s "$work/0.train" "$work/train" ||
    complain "train_ddp on four hosts: exit codes $codes: $(cat "$work"/*.train); on one: $(cat "$work/train")"
echo "train_ddp on four hosts: $(tail -1 "$work/0.train")"

# cddp-verify, too, started once per host: one report, of a run whose content is that of one host.
verify_start() { # ARGUMENT…
    port=$((port + 1))
    ranks=()
    for i in 0 1 2 3; do
        on "h$i" env RANK="$i" WORLD_SIZE=4 MASTER_ADDR=10.77.0.1 MASTER_PORT=$port "$verify" run --backend gloo -n 4 --color never "$@" \
            > "$work/$i.verify" 2>&1 &
        ranks+=($!)
    done
    began=$(date +%s%N)
}
scenario=$support/../../scenarios/models/mlp_two_ranks.toml
verify_start --trace "$work/hosts.db" "$scenario"
finish 120
"$verify" run --backend gloo -n 4 --trace "$work/host.db" "$scenario" > "$work/verify" 2>&1
[ "$codes" = "0,0,0,0," ] && "$verify" diff "$work/hosts.db" "$work/host.db" > "$work/verify.diff" 2>&1 && [ ! -s "$work/3.verify" ] ||
    complain "cddp-verify on four hosts: exit codes $codes: $(cat "$work"/*.verify "$work/verify.diff"); on one: $(cat "$work/verify")"
echo "cddp-verify on four hosts: $(tail -1 "$work/0.verify")"
rm -f "$work"/*.db

# 1 MiB around a ring of four: host 1 sends 6/4 MiB per all-reduce, at 50 Mbit/s a quarter of a second less the burst.
if reason=$(on h1 tc qdisc add dev eth0 root tbf rate 50mbit burst 64kb latency 100ms 2>&1); then
    start 4 262144 20000
    finish 90
    all_right "host 1 at 50 Mbit/s"
    [ "$took_ms" -gt 800 ] || complain "host 1 was not slowed down: $took_ms ms for four times 0.25 s"
    on h1 tc qdisc del dev eth0 root
else
    echo "not limited: tc tbf: $reason"
fi

if command -v nft > /dev/null && reason=$(printf '%s\n' 'table inet t {' 'chain c {' 'type filter hook input priority 0' 'numgen random mod 100 < 3 drop' '}' '}' | on h2 nft -f - 2>&1); then
    start 20 16384 20000
    finish 60
    all_right "host 2 drops 3 of 100 packets (nft)"
    on h2 nft delete table inet t
else
    echo "nothing dropped by nft: ${reason:-it is not installed}"
fi

# The link to host 3 through a process that hands frames over 4 ms later and loses 1 of 100.
ip -n "$tag-sw" link del p3
"$tool" relay "$tag-h3" eth0 "$tag-sw" p3 4 1 7 > "$work/relay" 2>&1 &
relay=$!
for _ in $(seq 50); do grep -q ready "$work/relay" && break; sleep 0.1; done
if grep -q ready "$work/relay"; then
    join_bridge 3
    start 5 16384 20000
    finish 90
    all_right "host 3 is 8 ms away and loses 1 of 100 frames"
    # Six steps around the ring cross the link both ways; each all-reduce takes 4 ms for each crossing at the least.
    [ "$took_ms" -gt 120 ] || complain "host 3 was not far away: $took_ms ms"
    kill "$relay" && wait "$relay"
    tail -1 "$work/relay"
else
    echo "not delayed: $(cat "$work/relay")"
    kill -9 "$relay" 2> /dev/null
fi
relay=
ip -n "$tag-sw" link del p3 2> /dev/null
ip -n "$tag-sw" link add p3 type veth peer name eth0 netns "$tag-h3" && join_bridge 3

mpi_start() { # Open MPI in the background; $! is mpirun's
    export LSAN_OPTIONS="suppressions=$support/lsan.supp:print_suppressions=0" ASAN_OPTIONS="fast_unwind_on_malloc=0:${ASAN_OPTIONS:-}"
    began=$(date +%s%N)
    timeout -k 5 200 "$here/openmpi.sh" "$tag-h" 4 "$mpirun" -x LSAN_OPTIONS -x ASAN_OPTIONS "$mpi_rank" > "$work/mpi" 2>&1 &
    ranks=($!)
}
if [ -n "$mpi_rank" ] && reason=$(unshare --uts hostname host0 2>&1); then
    mpi_start
    wait "${ranks[0]}" || complain "Open MPI on four hosts: $(tail -20 "$work/mpi")"
    echo "Open MPI on four hosts: passed the battery, $((($(date +%s%N) - began) / 1000000)) ms"
    mpi_start
    for _ in $(seq 300); do
        [ "$(ip netns pids "$tag-h2" | xargs -r ps -o comm= -p 2> /dev/null | grep -c "$(basename "$mpi_rank" | cut -c1-15)")" -gt 0 ] && break
        sleep 0.1
    done
    kill -9 $(ip netns pids "$tag-h2")
    cut=$(date +%s%N)
    wait "${ranks[0]}" && complain "mpirun calls a job good whose host 2 died"
    after=$((($(date +%s%N) - cut) / 1000000))
    # MPI 4.1 cannot notify its ranks: the launcher sees the daemon go, ends the job and names the host.
    grep -qE "host2|10\.77\.0\.3" "$work/mpi" || complain "mpirun does not name the dead host: $(cat "$work/mpi")"
    [ "$after" -lt 10000 ] || complain "mpirun took $after ms to end a job whose host 2 died"
    echo "a dead host under mpirun: the launcher names it and ends the job, $after ms"
    ranks=()
else
    echo "no Open MPI here: ${reason:-this build has none}"
fi

start 1000000 262144 2000
under_way "a cut link"
ip -n "$tag-sw" link set p2 down # in the middle of an all-reduce: nothing else is being done
cut=$(date +%s%N)
finish 60
after=$((($(date +%s%N) - cut) / 1000000))
# The time-out, two seconds of grace, and one for starting processes and writing stores on a busy machine.
[ "$after" -lt 5000 ] || complain "a cut link: ranks took $after ms after the cut, with a time-out of 2000 ms"
case $codes in *0*) complain "a cut link: exit codes $codes" ;; esac
named "a cut link" 2
ip -n "$tag-sw" link set p2 up
for i in 0 1 2 3; do ip -n "$tag-h$i" neigh flush all; done # nobody remembers that host 2 was away
sleep 1

start 1000000 262144 2000
under_way "a dead host"
kill -9 $(ip netns pids "$tag-h1") # everything that lives there
ip netns del "$tag-h1" # and its addresses with it
cut=$(date +%s%N)
finish 60
after=$((($(date +%s%N) - cut) / 1000000))
[ "$after" -lt 5000 ] || complain "a dead host: ranks took $after ms, with a time-out of 2000 ms"
named "a dead host" 1
exit "$failed"
