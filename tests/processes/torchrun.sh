#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# torchrun.sh PROGRAM TRAIN GLOO: the real torchrun of an installed PyTorch starts the ranks. Its agent keeps MASTER_PORT, or serves
# its own store, as its options say; what it starts become one run. Skipped (77) without PyTorch.
set -u
program=$(readlink -f "$1") train=$(readlink -f "$2") gloo=$(readlink -f "$3")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
good=scenarios/models/mlp_two_ranks.toml bad=scenarios/gan_unused_params.toml
failed=0 port=$((22000 + $$ % 7000))
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT CDDP_STORE_SECRET "${!SLURM_@}" "${!TORCHELASTIC_@}"
# PyTorch 1.13 with Python 3.11 takes its own default "redirect nothing" for None (an enumeration no longer lists its zero).
cat >"$work/torchrun.py" <<'PY'
import torch.distributed.elastic.multiprocessing as package
from torch.distributed.elastic.multiprocessing import api
from torch.distributed.run import main
whole = api.to_map
def to_map(given, count):
    return whole(api.Std.NONE if given is None else given, count)
api.to_map = package.to_map = to_map
main()
PY
/usr/bin/python3 -c 'import torch.distributed.run' 2>/dev/null || { echo "skipped: no PyTorch (Debian package python3-torch)"; exit 77; }

# expect NAME CODE "words in the output, once" "torchrun's options" COMMAND…
expect() {
    local name=$1 code=$2 words=$3 options=$4 got
    shift 4
    # shellcheck disable=SC2086
    timeout -k 5 150 /usr/bin/python3 "$work/torchrun.py" --nnodes=1 $options --no_python "$@" >"$work/out" 2>&1 </dev/null
    got=$?
    if [ $got -ne "$code" ] || [ "$(grep -c -- "$words" "$work/out")" -ne 1 ]; then
        printf 'FAIL %s: exit %d instead of %d, or not "%s" once:\n' "$name" $got "$code" "$words"
        head -40 "$work/out"
        failed=1
    fi
}
verify=("$program" run --color never --backend gloo)
expect "one machine" 0 "4 ranks, 3 steps on gloo" "--nproc_per_node=4 --master_addr=127.0.0.1 --master_port=$port" "${verify[@]}" -n 4 "$good"
expect "its own rendezvous" 0 "3 ranks, 3 steps on gloo" "--nproc_per_node=3 --rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:$((port + 2))" "${verify[@]}" -n 3 "$good"
# Any failure of a rank is 1 for torchrun.
expect "findings" 1 "I-ONCE  ranks" "--nproc_per_node=2 --master_addr=127.0.0.1 --master_port=$((port + 4))" "${verify[@]}" "$bad" --set ddp.find_unused_parameters=false
expect "a program of one's own" 0 "step 800" "--nproc_per_node=2 --master_addr=127.0.0.1 --master_port=$((port + 6))" \
    bash -c '"$0" env "$1" | { [ "$RANK" -eq 0 ] && cat || cat >/dev/null; }' "$train" "$gloo"
[ $failed -ne 0 ] || echo "torchrun: all as it should be"
exit $failed
