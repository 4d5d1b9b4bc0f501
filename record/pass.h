/* SPDX-License-Identifier: Apache-2.0 */
/* On which parameters do a forward and its backward run?
**
** Note [What a pass runs on]
** Ranks average gradients of one point, so their passes run on equal parameters. Between a step and
** the next one a program may exchange them, and put them back before the optimizer looks: it
** perturbs (SAM), quantises, drops or averages weights. Nothing of that is left at the step. So
** the recorder looks when a forward begins and ends, and at the first gradient of each backward.
** Without a wrapper it looks at the program's calls in front of a backward, and at the first
** gradient. Content that is another than at the last look is shown at CDDP_MOMENT_FORWARD, and
** verify/import/forwards.h compares the ranks.
** A look reads 64 elements of each parameter, at a place that is drawn anew with each update, and
** the whole where they differ: what exchanges weights changes most of them. For what changes few
** elements each parameter is looked at in whole in the first two updates, and in one of each eight.
** Each has its own, so that a change of few elements in many parameters is seen in every step. On a
** device each look would wait for it: there all parameters have the same updates. They are looked
** at in those alone, and in forwards that no step came before.
**
** What is not seen: a change and its reverse between two looks.
*/
#pragma once
#include "record/recording.h"

/* The whole of that parameter was looked at, where it lies. */
void cd_pass_keep(cd_recording *recording, size_t parameter, int64_t digest);
/* The parameter is that now, as the program says; or an optimizer changes it (0). */
void cd_pass_expect(cd_recording *recording, size_t parameter, int64_t digest);
/* is_known: all of them were looked at already in this moment, where a step came before. */
void cd_pass_look_at_forward(cd_recording *recording, bool is_known);
void cd_pass_look(cd_recording *recording);
/* Of a program without a wrapper, whose forward is about to begin. */
void cd_pass_announce(cd_recording *recording);
void cd_pass_begin_backward(cd_recording *recording); /* looks at its first gradient alone */
void cd_pass_end_backward(cd_recording *recording);
