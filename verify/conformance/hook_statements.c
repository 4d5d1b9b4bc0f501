/* SPDX-License-Identifier: Apache-2.0 */
/* What a hook states of itself during a trial (cddp_tracer_law): that |left - right| is within its
** bound, on one rank or summed over all of them, as I-HOOK judges it of a run.
**
** The n-th statement of every rank about a law and a bucket belongs together.
*/
#include "core/base/format.h"
#include "verify/conformance/hook_trial_parts.h"

#include "core/trace/tracer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of this name; CD_TRIAL_STATED_MAX when there are too many. */
static uint32_t find_law(cd_trial_result *r, const char *name)
{
    for (uint32_t i = 0; i < r->stated_count; i++)
        if (strncmp(r->stated[i].name, name, sizeof r->stated[i].name - 1) == 0) return i;
    if (r->stated_count < CD_TRIAL_STATED_MAX)
        snprintf(r->stated[r->stated_count].name, sizeof r->stated[0].name, "%s", name);
    return r->stated_count < CD_TRIAL_STATED_MAX ? r->stated_count++ : CD_TRIAL_STATED_MAX;
}

static void judge(cd_statements *s, uint32_t law, const cddp_event *e, const cd_joint_statement *j)
{
    cd_trial_result *r = s->result;
    char who[32] = "all ranks together";
    r->stated[law].count++;
    if (fabs(j->left - j->right) <= j->bound || r->breach[0] != '\0') return;
    if (j->count == 1 && !e->as.hook_law.over_ranks) snprintf(who, sizeof who, "rank %u", e->rank);
    cd_real_format(r->breach, sizeof r->breach,
                   "%s of %u, step %u, bucket %lld: %s: %.9g, not within %.3g of %.9g", who,
                   s->trial->ranks, e->step, (long long)e->as.hook_law.bucket, r->stated[law].name,
                   j->left, j->bound, j->right);
}

static void take(void *self, const cddp_event *e)
{
    cd_statements *s = self;
    if (e->kind != CDDP_EV_hook_law || e->rank >= s->trial->ranks) return;
    const cddp_event_hook_law *l = &e->as.hook_law;
    const double left = cd_f64_of(l->left), right = cd_f64_of(l->right),
                 bound = cd_f64_of(l->bound);
    uint32_t law = find_law(s->result, e->text != NULL ? e->text : "");
    if (law == CD_TRIAL_STATED_MAX) {
        snprintf(s->result->breach, sizeof s->result->breach,
                 "more than %d laws are stated: '%.100s' is not judged", CD_TRIAL_STATED_MAX,
                 e->text);
        return;
    }
    if (!l->over_ranks) {
        judge(s, law, e, &(cd_joint_statement){left, right, bound, 1});
        return;
    }
    uint32_t place =
        l->bucket >= 0 && l->bucket < CD_TRIAL_BUCKETS ? (uint32_t)l->bucket : CD_TRIAL_BUCKETS;
    cd_joint_statement *j =
        &s->joints[law][place][s->stated[e->rank][law][place]++ % CD_STATEMENTS_OPEN_MAX];
    *j = (cd_joint_statement){j->left + left, j->right + right, j->bound + bound, j->count + 1};
    if (j->count < s->trial->ranks) return;
    judge(s, law, e, j);
    *j = (cd_joint_statement){0};
}

void cd_statements_init(cd_statements *statements, const cd_trial *trial, cd_trial_result *result)
{
    memset(statements, 0, sizeof *statements);
    statements->sink =
        (cddp_trace_sink){sizeof statements->sink, CDDP_TRACE_ABI, statements, take, NULL};
    statements->trial = trial;
    statements->result = result;
}
