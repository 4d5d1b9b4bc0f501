#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# advice.sh VERIFY: advice is printed where it is true, and not in a run beside it where it is not. Run from the root of
# the tree.
set -euo pipefail
verify=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAIL $*"; cat "$work/advice"; exit 1; }
# The advice of every finding, a line each.
run() {
    "$verify" run "$@" --format json >"$work/json" || true
    python3 -c 'import json, sys
for r in json.load(open(sys.argv[1]))["results"]:
    for f in r["findings"]: print(f["invariant"] + ": " + f["advice"])' "$work/json" >"$work/advice"
    [ -s "$work/advice" ] || fail "no finding in $1"
}
# advises INVARIANT WORDS, keeps_from INVARIANT WORDS: of the run before
advises() { grep -q "^$1: .*$2" "$work/advice" || fail "$1 does not advise: $2"; }
keeps_from() { ! grep -q "^$1: .*$2" "$work/advice" || fail "$1 advises, and it is not true: $2"; }

# A hook that adds before it divides, and a wire that is too wide to overflow.
run scenarios/bugs/half_precision_overflow.toml
advises I-RANGE "divide before the sum"
run scenarios/faults/nan_contributed.toml
advises I-RANGE "puts NaN or infinity into the bucket"
keeps_from I-RANGE "wider dtype"

# Which dtype a parameter has is not compared when ranks wrap it; its shape is.
run scenarios/errors/strides_differ.toml
advises I-INIT "ranks must build the same model"
keeps_from I-INIT "dtypes are not verified"

# A step on gradients that are on their way accumulates nothing.
run scenarios/bugs/step_before_the_reduction.toml
advises I-HB "before its memory is used again"
keeps_from I-HB "accumulate inside no_sync"

# No option differs: the lists of parameters do.
run scenarios/order/registration_order_with_other_shapes.toml
advises I-CONTENT "compare both between the ranks"
keeps_from I-CONTENT "differ between ranks"

# What a rank was not handed on, and what was to travel.
run scenarios/bugs/join_epochs_leave_momentum_behind.toml
advises I-PARAMEQ "keeps its old state"
keeps_from I-PARAMEQ "was to travel"

# The bucket brought it, and nothing was added behind it.
run scenarios/backend/early_return.toml
advises I-GRADEQ "each has what its bucket brought"
keeps_from I-GRADEQ "look for what added"

# All have posted it; whether all was right until then is not said.
run scenarios/faults/rank_dies_inside.toml
advises I-LIVE "all members had posted it"

# An input that changed on its way is no algorithm's doing alone.
run scenarios/bugs/delayed_trigger_comes_too_early.toml
advises I-DET "an input changed after its post"

# A loss scale that differs, with a rank that ran out of inputs and without one.
run scenarios/bugs/join_epochs_scale_losses_apart.toml
advises I-PARAMEQ "a rank that has no inputs updates no scaler"
run scenarios/bugs/loss_scale_differs.toml
keeps_from I-PARAMEQ "has no inputs"
echo "all advice is true"
