/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/operands.h"

#define RECENT_MAX 64

typedef struct recent {
    cd_posted posts[RECENT_MAX];
} recent;

void cd_operands_init(cd_operands *operands, const cddp_allocator *allocator)
{
    cd_table_init(&operands->recent, allocator, sizeof(recent));
}

void cd_operands_fini(cd_operands *operands) { cd_table_fini(&operands->recent); }

void cd_operands_post(cd_operands *operands, const cddp_event *post)
{
    const cddp_event_collective_post *c = &post->as.collective_post;
    recent *r = cd_table_add(&operands->recent, CD_KEY(c->group, post->rank));
    if (r == NULL || c->op == CDDP_OP_SEND || c->op == CDDP_OP_RECV) return;
    r->posts[(uint64_t)c->sequence % RECENT_MAX] =
        (cd_posted){c->digest, c->bucket, post->sequence, c->sequence + 1};
}

cd_operand_fate cd_operands_end(const cd_operands *operands, const cddp_event *done,
                                cd_posted *posted)
{
    const cddp_event_collective_done *d = &done->as.collective_done;
    const recent *r = cd_table_find(&operands->recent, CD_KEY(d->group, done->rank));
    *posted = (cd_posted){.bucket = -1};
    if (r == NULL) return CD_OPERAND_UNKNOWN;
    const cd_posted *p = &r->posts[(uint64_t)d->sequence % RECENT_MAX];
    if (p->sequence != d->sequence + 1) return CD_OPERAND_UNKNOWN;
    *posted = *p;
    if (d->status != CDDP_OK || p->digest == 0) return CD_OPERAND_UNKNOWN;
    if (d->start != 0 && d->start != p->digest) return CD_OPERAND_BEFORE_START;
    if (d->input != 0 && d->input != p->digest) return CD_OPERAND_WHILE_RUNNING;
    return d->start != 0 || d->input != 0 ? CD_OPERAND_KEPT : CD_OPERAND_UNKNOWN;
}
