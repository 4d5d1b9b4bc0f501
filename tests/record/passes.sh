#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Records a program whose forwards run on other parameters than its steps leave, and looks at what check says.
#   passes.sh PROGRAM VERIFY MODULES
program=$1 verify=$2 CDDP_BACKEND_DIR=$3
export CDDP_BACKEND_DIR
. "${0%/*}/expect.sh"
record() { CDDP_RECORD=$place/run.db "$program" 4 "$1"; }

alike="nor forwards on other parameters than the steps left, 40 in all"
each="nor forwards on parameters that each rank has for itself, as the program says, 40 in all"
differs="why ranks run a forward on parameters that differ .*, first on rank"
expect plain 0 "anew; samples"
# In the forward, and between forward and backward: of all ranks alike, or not.
expect noise 0 "$alike"
expect noise_differs 4 "$differs 1, step 0, parameter 0; 20 in all"
expect noise_of_one 4 "$differs 2, step 0, parameter 0; 20 in all"
expect noise_behind_forward 4 "$differs 1, step 0, parameter 0; 20 in all"
# One element is seen in the steps that are looked at in whole, and where it is drawn.
expect noise_of_one_element 4 "$differs 1, step 0, parameter 0; [4-9] in all"
# In front of the first forward of a step.
expect swaps 4 "what changed a parameter outside of the steps"
expect swaps_said 0 "$alike"
expect swaps_differ_said 4 "$differs 1, step 0, parameter 0; 20 in all"
expect swaps_adapted 0 "$each"
# SAM: along the reduced gradients, with one radius; or along those of the rank, which it has to say.
expect sam 0 "$alike"
expect sam_said 0 "$alike"
expect sam_radius 4 "$differs 1, step 0, parameter 0; 20 in all"
expect sam_radius_said 4 "$differs 1, step 0, parameter 0; 20 in all"
expect sam_radius_of_one 1 "I-PARAMEQ rank 2 runs a forward on another w than the other ranks"
expect sam_local 4 "$differs 1, step 0, parameter 0; 20 in all"
expect sam_local_adapted 0 "$each"
# Without a wrapper forwards are not seen: what is back in its place before gradients are shown has to be said.
expect own_plain 0 "anew; samples"
expect own_sam 0 "$alike"
expect own_sam_radius 4 "$differs 1, step 0, parameter 0; 20 in all"
expect own_sam_hidden 4 "on which parameters a further backward of a step ran.*, first on rank 0, step 0"
expect own_sam_hidden_said 0 "$alike"
expect own_sam_hidden_differs_said 4 "$differs 1, step 0, parameter 0; 20 in all"
exit $failed
