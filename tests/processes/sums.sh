#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sums.sh PROGRAM BACKEND RANKS DTYPE…: in a half type the bound of a sum of many ranks hides a division by one rank
# too many. The judge adds up again what the processes gave, so it is found.
set -u
program=$1 backend=$2 ranks=$3
launcher=(mpirun.openmpi --oversubscribe)
[ "$backend" = mpi-mpich ] && launcher=(mpiexec.mpich)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
failed=0
run() { # EXIT WORDS BACKEND SCENARIO SETTING…
    local code=$1 words=$2 on=$3 scenario=$4 out
    shift 4
    out=$("$program" run --verbose --backend "$on" "scenarios/$scenario.toml" "$@" 2>&1)
    if [ $? -ne "$code" ] || ! grep -qF "$words" <<<"$out"; then
        echo "FAIL: $on $scenario $*: want exit $code and '$words'"
        head -12 <<<"$out"
        failed=1
    fi
}
of_bits="does not give what its members' inputs make"
for dtype in "${@:4}"; do
    run 0 "proven    values, updates, order, liveness" "$backend" models/mlp_two_ranks -n "$ranks" -s model.dtype=$dtype
    run 1 "allreduce sum in $dtype (#2) $of_bits" "fault:plant=share:$backend" models/mlp_two_ranks -n "$ranks" -s model.dtype=$dtype
done
# the averages of local SGD alone: what is before them is right
run 0 "proven    values" "$backend" hooks/local_sgd_in_bfloat
run 1 "(#5) $of_bits" "fault:from=4,plant=share:$backend" hooks/local_sgd_in_bfloat
# ranks that somebody else started share their operands, too
job() { # EXIT WORDS BACKEND
    local code out=$(mktemp)
    if [ "$backend" = gloo ]; then
        port=$((20000 + RANDOM % 10000))
        for i in 11 10 9 8 7 6 5 4 3 2 1 0; do
            RANK=$i WORLD_SIZE=12 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout -k 2 60 "$program" run --verbose --color never \
                --backend "$3" -n 12 scenarios/models/mlp_two_ranks.toml -s model.dtype=bf16 >"$out.$i" 2>&1 </dev/null &
        done
        wait $!
        code=$?
        wait
        cat "$out.0" >"$out"
    else
        timeout -k 2 60 "${launcher[@]}" -n 12 "$program" run --verbose --color never --backend "$3" -n 12 scenarios/models/mlp_two_ranks.toml \
            -s model.dtype=bf16 >"$out" 2>&1 </dev/null
        code=$?
    fi
    if [ $code -ne "$1" ] || ! grep -qF "$2" "$out"; then
        echo "FAIL: a job of $3: exit $code, want $1 and '$2'"
        head -12 "$out"
        failed=1
    fi
    rm -f "$out" "$out".*
}
job 0 "proven    values, updates, order, liveness" "$backend"
job 1 "$of_bits" "fault:plant=share:$backend"
# nobody says in which order a backend within a backend adds
if [ "$backend" = gloo ]; then
    run 0 "; sums in half types by their bounds alone" "hier:per=5:$backend" models/mlp_two_ranks -n 12 -s model.dtype=bf16
fi
[ $failed -eq 0 ] && echo "sums: right ones are verified, wrong ones found"
exit $failed
