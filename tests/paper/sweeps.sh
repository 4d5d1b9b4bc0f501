#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sweeps that have the numbers of docs/paper.md, a CSV file each: sweeps.sh PROGRAM FIGURES SCENARIOS FOLDER [FIGURE...]
#
# PROGRAM is cddp-verify, FIGURES the program that draws. It also knows what the buckets of PyTorch's reducer in Python hold. Without a FIGURE all are made.
# Two of four steps are left out: buckets are rebuilt after the first, and the second is the first with them.
set -eu
program=$1 figures=$2 scenarios=$3 folder=$4
shift 4
wanted=${*:-overlap no_sync python_reducers gpus servers scaling ring hosts turns sharded}

# NAME SCENARIO OPTION...: rows that fail end it; one GPU has no collective to order, which is inconclusive
rows() {
    name=$1 scenario=$2 code=0
    shift 2
    "$program" sweep "$scenarios/$scenario.toml" --skip 2 --csv "$folder/$name.csv" "$@" >"$folder/$name.txt" 2>&1 || code=$?
    if [ $code -ne 0 ] && [ $code -ne 4 ]; then
        echo "sweeps.sh: $name ended with $code:" >&2
        cat "$folder/$name.txt" >&2
        exit 1
    fi
}

# caps of a first bucket of 1 MiB and others of so many, as DDP of that time made them
caps() {
    separator=''
    for cap in "$@"; do
        printf '%s[1,%s]' "$separator" "$cap"
        separator=,
    done
}

gloo="--set network.intra_link=loopback_tcp --set network.intra_latency_us=10 --set network.launch_us=48 --set network.overhead_us=0 --set train.pass_us_per_mb=83.3"
bert="--set model.name=bert --set model.options=layers=24,width=1024 --set train.forward_us=342000 --set train.backward_us=798000"

# NCCL or Gloo, with ResNet-50 or BERT-large: the options that differ
of_pair() {
    case $1 in *gloo) printf '%s ' "$gloo" ;; esac
    case $1 in bert*) printf '%s ' "$bert" ;; esac
}
gb_per_s() { case $1 in *gloo) echo 1.02 ;; *) echo 2.75 ;; esac; }
pairs="resnet_nccl bert_nccl resnet_gloo bert_gloo"

overlap() { rows overlap overlap_two_ranks --vary train.backward_us=743,1693 --vary "ddp.bucket_cap_mb_list=$(caps 1 5 25 50 100)"; }

no_sync() {
    for window in 1:9050 2:11100 4:12500 8:13100; do
        rows "no_sync_${window%:*}" no_sync_amortised --vary "train.micro_steps=${window%:*}" --set "train.backward_us=${window#*:}"
    done
}

# the one that waits for the end of the backward has one bucket
python_reducers() {
    rows ddp gloo_bucket_sweep --vary "ddp.bucket_cap_mb_list=$(caps $(seq 3 25))"
    rows python_async gloo_bucket_sweep --vary "ddp.bucket_cap_mb_list=$("$figures" --python-buckets)"
    rows python_sync gloo_bucket_sweep --vary ddp.bucket_cap_mb_list=1000000
}

# what DDP adds on one GPU, and how late the slowest of several is, are fitted: docs/paper.md
gpus() {
    for model in 50:30148:69248:32767 101:50350:115652:54724; do
        rest=${model#*:} slowest=${model##*:}
        forward=${rest%%:*} backward=${rest#*:}
        backward=${backward%:*}
        set -- --set "model.options=depth=${model%%:*}" --set "train.forward_us=$forward" --set "train.backward_us=$backward" --vary "ddp.bucket_cap_mb_list=$(caps 1 25)"
        rows "gpus_${model%%:*}_one" nvlink_and_infiniband "$@" --set "train.forward_us@0=$forward" --vary world.size=1
        rows "gpus_${model%%:*}" nvlink_and_infiniband "$@" --set "train.forward_us@0=$slowest" --vary world.size=2..16
    done
}

# shellcheck disable=SC2046  # options, word by word
servers() {
    for pair in $pairs; do
        rows "servers_$pair" four_servers_of_eight --set "network.gb_per_s=$(gb_per_s "$pair")" $(of_pair "$pair") --vary world.size=16,32 \
            --vary "ddp.bucket_cap_mb_list=0.000001,$(caps 1 5 10 25 50 100),1000000"
    done
}

# shellcheck disable=SC2046
scaling() {
    for pair in $pairs; do
        rows "scaling_$pair" four_servers_of_eight --set "network.gb_per_s=$(gb_per_s "$pair")" $(of_pair "$pair") --vary world.size=1..256 --set ddp.bucket_cap_mb_list=1,25
    done
}

ring() { rows ring ring_of_100_mib --vary world.size=16..1024; }

hosts() {
    rows hosts reduce_on_hosts --vary world.size=16..256
    rows hosts_ring reduce_on_hosts --vary world.size=16..256 --set network.algorithm=ring --set network.host_gb_per_s=0
}

# shellcheck disable=SC2046
turns() {
    for pair in $pairs; do
        rows "turns_$pair" groups_in_turn --set "network.connection_gb_per_s=$(gb_per_s "$pair")" $(of_pair "$pair") --set ddp.bucket_cap_mb_list=1,25 \
            --vary world.backend=rr:1:sim,rr:3:sim,rr:5:sim
    done
}

sharded() { rows sharded sharded_strategies --vary fsdp.sharding_strategy=FULL_SHARD,SHARD_GRAD_OP,NO_SHARD --vary world.size=2..16; }

for figure in $wanted; do $figure; done
