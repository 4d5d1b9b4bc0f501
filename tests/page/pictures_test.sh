#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The figures of docs/pictures that show runs are what the program draws today. CDDP_UPDATE_PICTURES=1 draws them anew.
#
# usage: pictures_test.sh CDDP-VERIFY SOURCE-FOLDER
set -euo pipefail
verify=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# picture NAME SCENARIO OPTIONS…
picture() {
    local name=$1 scenario=$2 kept=$source/docs/pictures/$1.svg
    shift 2
    (cd "$source" && "$verify" run "scenarios/$scenario.toml" --trace "$work/$name.db" "$@" >/dev/null) || true
    "$verify" report "$work/$name.db" --format svg -o "$work/$name.svg" || true
    if [ -n "${CDDP_UPDATE_PICTURES-}" ]; then
        cp "$work/$name.svg" "$kept"
    elif ! cmp -s "$work/$name.svg" "$kept"; then
        echo "docs/pictures/$name.svg is not what $scenario looks like today: CDDP_UPDATE_PICTURES=1 $0 $verify $source"
        failed=1
    fi
}

picture flagship gan_unused_params --set ddp.find_unused_parameters=false
picture hang bugs/hung_job
picture bucket bucket_rebuild
# A schedule that `explore --strategy exhaustive` finds.
picture continuations hooks/powersgd_in_callbacks --set schedule.ready=chosen --set train.forward_us=0 --set train.backward_us=0 \
    --set schedule.chooser=replay --set schedule.string=s1:F2C2D111C11B1C1
exit $failed
