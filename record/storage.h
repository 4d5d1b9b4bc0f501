/* SPDX-License-Identifier: Apache-2.0 */
/* Where parameters and their gradients lie, so that the recorder can look at them itself: does a
** step begin with what the last one left, and did zero_grad do what was said of it?
**
** Note [What is looked at]
** A parameter changes in its optimizer's step and in the library's own calls (the end of join). The
** program shows it behind each step. The recorder looks when a forward with gradients begins behind
** a step, when an optimizer steps, and when the wrapper or the recording ends. Equal digests are
** reported as a mark; so is a change. A change and its reverse between two looks is not seen, by
** design: weights that are exchanged for an evaluation come back. A forward may run on something
** else where the program says so. Where the first one did, the start is what the first optimizer
** finds.
** What no gradient changes is shown when the wrapper ends, for the ranks to be compared.
** Gradients are looked at from zero_grad on until the next backward, at every call in between.
** Zeros are reported as a mark. What is not zero proves nothing: a program may say it early, and
** clear late. When the backward begins, each gradient that no look found cleared is reported.
** Where backwards add up before one is reduced, the next forward must find the gradients that the
** last backward left: as the program showed them, or else as they lay there at its end. What a comm
** hook gets of a gradient must be what the program showed of it. What a step takes is held against
** what lies in the gradient's place, where no clip and no loss scale came between. Other numbers
** are reported as a mark.
**
** Lifetime   kept from the creation of a wrapper to its end, or as cddp_record_storage says.
** Ownership  borrows tensors and gradient slots in between.
*/
#pragma once
#include "record/recording.h"

/* Of the reduced parameter at that position, in the wrapper at hand. */
void cd_storage_keep(cd_recording *recording, size_t parameter, const cddp_tensor *tensor,
                     const cddp_grad *grad);
/* The wrapper at hand ends. */
void cd_storage_leave(cd_recording *recording);
/* The program says what a parameter is now, or that an optimizer takes it. */
void cd_storage_show(cd_recording *recording, size_t parameter, int64_t digest);
/* The next forward runs on that instead. The step must find what was there before. */
void cd_storage_exchange(cd_recording *recording, size_t parameter, int64_t digest);
/* It is shown behind that step for a second time: the program changed it once more, by right. */
bool cd_storage_is_shown_again(cd_recording *recording, size_t parameter);
void cd_storage_touch(cd_recording *recording, size_t parameter);
/* The library wrote parameters: what is there is right. */
void cd_storage_accept(cd_recording *recording);
void cd_storage_look_at_begin(cd_recording *recording);
void cd_storage_look_at_step(cd_recording *recording);
/* zero_grad was said; then at whatever comes before a backward. */
void cd_storage_expect_clear(cd_recording *recording);
void cd_storage_look_at_gradients(cd_recording *recording);
void cd_storage_begin_backward(cd_recording *recording); /* before its first gradient is shown */
void cd_storage_end_backward(cd_recording *recording);   /* it was reduced */
/* What the program says of a gradient behind a backward: digest. Then whether it stays so. */
void cd_storage_show_gradient(cd_recording *recording, size_t parameter,
                              const cddp_tensor *gradient, int64_t digest);
void cd_storage_keep_accumulated(cd_recording *recording); /* a backward ended, not reduced */
/* Before anything of the next backward: of a wrapper its forward, else what the program says. */
void cd_storage_look_at_accumulated(cd_recording *recording);
/* Whatever backwards left was reduced, or an optimizer takes it. */
void cd_storage_forget_accumulated(cd_recording *recording);
/* A comm hook gets this of a variable, which the program showed before. */
void cd_storage_look_at_given(cd_recording *recording, int64_t variable, const cddp_tensor *slice);
/* An optimizer takes this gradient, of that digest. */
void cd_storage_look_at_taken(cd_recording *recording, size_t parameter,
                              const cddp_tensor *gradient, int64_t digest);
