/* SPDX-License-Identifier: Apache-2.0 */
#include "core/comm/averages.h"

#include "core/comm/group.h"
#include "core/trace/tracer.h"

static void say(const cddp_group *group, const cddp_tensor *parameter)
{
    cddp_tracer *tracer = group->tracer;
    if (tracer == NULL || tracer->watch == NULL) return;
    tracer->watch->averaged(tracer, parameter, parameter != NULL ? group->group_size : 0);
}

void cd_averages_begin(const cddp_group *group) { say(group, NULL); }

void cd_averages_step(const cddp_group *group) { say(group, NULL); }

void cd_averages_note(const cddp_group *group, const cddp_tensor *parameter)
{
    say(group, parameter);
}
