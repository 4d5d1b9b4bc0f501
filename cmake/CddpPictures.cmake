# SPDX-License-Identifier: Apache-2.0
# Draws docs/pictures/pipeline.svg, the picture of docs/tour.md and docs/architecture.md:
#
#   cmake -DROOT=<tree> -DOUTPUT=<file.svg> [-DCOMPARE=<committed file>] -P cmake/CddpPictures.cmake
#
# A box names a folder of the tree, and the number of checks is counted in their table, so the picture cannot name what is not there.
# With COMPARE the drawing must equal the committed file. Colours follow the reader's light or dark setting.
cmake_minimum_required(VERSION 3.21)

set(svg "")

macro(picture_add text)
  string(APPEND svg "${text}\n")
endmacro()

# A folder: a box with its path and one line of text below it.
function(picture_box style x y width folder text)
  if(NOT IS_DIRECTORY "${ROOT}/${folder}")
    message(FATAL_ERROR "the picture names the folder ${folder}, which is not in the tree")
  endif()
  math(EXPR middle "${x} + ${width} / 2")
  math(EXPR first "${y} + 23")
  math(EXPR second "${y} + 42")
  picture_add("<rect class='${style}' x='${x}' y='${y}' width='${width}' height='56' rx='6'/>")
  picture_add("<text class='name' x='${middle}' y='${first}'>${folder}</text>")
  picture_add("<text class='note' x='${middle}' y='${second}'>${text}</text>")
  set(svg "${svg}" PARENT_SCOPE)
endfunction()

# What travels between two rooms, on an arrow.
function(picture_arrow x y path label)
  picture_add("<path class='arrow' d='${path}'/>")
  picture_add("<text class='label' x='${x}' y='${y}'>${label}</text>")
  set(svg "${svg}" PARENT_SCOPE)
endfunction()

file(STRINGS "${ROOT}/core/check/checks.def" rows REGEX "^CD_CHECK\\(")
list(LENGTH rows checks)
if(checks EQUAL 0)
  message(FATAL_ERROR "no rows found in core/check/checks.def")
endif()

string(APPEND svg [[
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 470" font-family="sans-serif" role="img">
<title>From a scenario to a verdict</title>
<style>
.page { fill: #ffffff } .core { fill: #e3eefb; stroke: #2f6db3 } .edge { fill: #f3f3f3; stroke: #777777 }
.judge { fill: #e6f4e4; stroke: #3d8a38 } text { text-anchor: middle; fill: #1c1c1c }
.name { font-size: 15px; font-weight: bold } .note { font-size: 12px } .label { font-size: 12px; font-style: italic }
.band { font-size: 13px; text-anchor: start } .arrow { fill: none; stroke: #444444; stroke-width: 1.5; marker-end: url(#tip) }
.tip { fill: #444444 }
@media (prefers-color-scheme: dark) {
.page { fill: #16191d } .core { fill: #1d3350; stroke: #6aa5e8 } .edge { fill: #2a2d31; stroke: #9a9a9a }
.judge { fill: #1f3a1d; stroke: #76c46f } text { fill: #ececec } .arrow { stroke: #c8c8c8 } .tip { fill: #c8c8c8 }
}
</style>
<defs><marker id="tip" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto"><path class="tip" d="M0 0L9 4L0 8z"/></marker></defs>
<rect class="page" width="960" height="470"/>
]])

picture_add([[<text class="band" x="20" y="28">cli reads the arguments, puts the parts together and prints the report</text>]])
picture_box(edge 20 50 160 scenarios "what to verify, as data")
picture_box(core 270 50 160 core/plan "settings, validated")
picture_box(core 520 50 160 core/run "one run, start to end")
picture_box(edge 770 50 170 verify "explore, prove, shrink …")
picture_arrow(225 70 "M180 78H268" "TOML")
picture_arrow(475 70 "M430 78H518" "plan")
picture_arrow(725 70 "M768 78H682" "many runs")

picture_box(core 270 160 160 core/train "what each rank does")
picture_box(core 520 160 160 core/ddp "buckets and reducer")
picture_box(core 770 160 170 core/hooks "comm hooks")
picture_arrow(470 148 "M560 106C560 140 390 120 372 158" "starts ranks")
picture_arrow(475 180 "M430 188H518" "gradients")
picture_arrow(725 180 "M680 188H768" "bucket")

picture_box(core 520 270 160 core/comm "the choke point")
picture_box(edge 770 250 170 backends "self sim gloo mpi nccl")
picture_box(edge 770 330 170 sim "fibers, virtual time")
picture_arrow(640 248 "M600 216V268" "all-reduce")
picture_arrow(896 240 "M855 216C855 226 700 236 660 268" "collectives")
picture_arrow(725 280 "M680 290H768" "post, wait")
picture_arrow(892 322 "M855 306V328" "simulated")

picture_box(core 20 160 160 core/reference "expected training")
picture_box(core 20 270 160 core/oracle "bounds, comparison")
picture_arrow(250 148 "M290 106C250 130 130 120 110 158" "same plan")
picture_arrow(130 248 "M100 216V268" "values")

picture_box(judge 270 270 160 core/trace "typed events")
picture_box(judge 270 390 160 core/check "${checks} checks judge events")
picture_box(edge 20 390 160 db "stored traces")
picture_box(edge 520 390 160 verify/report "text JSON JUnit SARIF")
picture_arrow(380 248 "M350 216V268" "steps")
picture_arrow(475 290 "M520 298H432" "events")
picture_arrow(225 290 "M180 298H268" "compare")
picture_arrow(385 362 "M350 326V388" "trace")
picture_arrow(205 352 "M270 316C200 340 120 350 104 388" "kept")
picture_arrow(225 412 "M180 420H268" "again")
picture_arrow(475 412 "M430 420H518" "verdict")
picture_add("</svg>")

file(WRITE "${OUTPUT}" "${svg}")
if(COMPARE)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E compare_files "${OUTPUT}" "${COMPARE}" RESULT_VARIABLE differs)
  if(differs)
    message(FATAL_ERROR "${COMPARE} is not what the tree draws: build the target 'pictures' and commit it")
  endif()
  message(STATUS "the picture is as committed")
endif()
