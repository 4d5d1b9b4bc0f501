/* SPDX-License-Identifier: Apache-2.0 */
/* One all-gather of digests where ranks agree; two broadcasts of texts where they do not. Every
** rank has the same digests, so all of them find the same pair of ranks. */
#include "core/fsdp/agree.h"

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "core/comm/control.h"

#include <string.h>

/* No more of a text travels: its length comes from another rank. */
#define TEXT_BYTES_MAX ((int64_t)64 << 20)
#define SIDE_BYTES 200

enum { CARD_DIGEST, CARD_LENGTH, CARD_FIELDS };

static cddp_status make(cd_control *control, const cd_fsdp_statement *mine, cddp_group *group,
                        cddp_dtype dtype, int64_t numel, cddp_error *err)
{
    const cd_control_spec spec = {.allocator = mine->allocator,
                                  .group = group,
                                  .device = mine->device,
                                  .dtype = dtype,
                                  .numel = numel};
    return CD_PASS(cd_control_init(control, &spec, err));
}

static cddp_status fetch(const cd_fsdp_statement *mine, const int64_t *cards, uint32_t rank,
                         cddp_group *group, cd_control *text, cddp_error *err)
{
    const int64_t sent = cards[rank * CARD_FIELDS + CARD_LENGTH];
    const int64_t length = sent < 0 ? 0 : sent < TEXT_BYTES_MAX ? sent : TEXT_BYTES_MAX;
    CD_TRY(make(text, mine, group, CDDP_U8, length + 1, err));
    if (cddp_group_rank(group) == rank)
        memcpy(text->host, mine->text, (size_t)length < mine->bytes ? (size_t)length : mine->bytes);
    CD_TRY(cd_control_broadcast(group, text, rank, err));
    ((char *)text->host)[length] = '\0';
    return CDDP_OK;
}

static char *next_line(char **rest)
{
    char *line = *rest, *end = strchr(line, '\n');
    *rest = end != NULL ? end + 1 : line + strlen(line);
    if (end != NULL) *end = '\0';
    return line;
}

static const char nothing[] = "nothing more";

/* Of two statements: the ranks that make them, of which one differs from most others. */
typedef struct parting {
    uint32_t odd, other;
} parting;

static parting find_parting(const int64_t *cards, uint32_t rank, uint32_t rank_count)
{
    uint32_t alike = 0;
    for (uint32_t r = 0; r < rank_count; r++)
        alike += cards[r * CARD_FIELDS + CARD_DIGEST] == cards[CARD_DIGEST];
    return alike * 2 > rank_count ? (parting){rank, 0} : (parting){0, rank};
}

/* "1 units" in what a rank says of itself reads "1 unit"; what is in quotes stays. What ranks
** exchange has one form, so that recorded runs stay comparable. */
static void use_singulars(char *line)
{
    bool is_quoted = false;
    for (char *at = line; *at != '\0'; at++) {
        is_quoted ^= *at == '\'';
        if (is_quoted || strncmp(at, "1 ", 2) != 0 || (at > line && at[-1] != ' ')) continue;
        const size_t word = strspn(at + 2, "abcdefghijklmnopqrstuvwxyz");
        char *last = at + 2 + word - 1;
        if (word > 1 && *last == 's') memmove(last, last + 1, strlen(last));
    }
}

/* left and right: what p->odd and p->other say. */
static cddp_status report(const cd_fsdp_statement *mine, char *left, char *right, const parting *p,
                          cddp_error *err)
{
    char *a, *b;
    do {
        a = next_line(&left);
        b = next_line(&right);
    } while (strcmp(a, b) == 0 && (*left != '\0' || *right != '\0'));
    /* of options, only those that differ */
    if (strncmp(a, "options ", 8) == 0 && strncmp(b, "options ", 8) == 0) cd_text_pop_common(a, b);
    use_singulars(a);
    use_singulars(b);
    return cd_fail(err, CDDP_E_MISMATCH, "%s: rank %u has %.*s, rank %u has %.*s", mine->subject,
                   p->odd, SIDE_BYTES, a[0] != '\0' ? a : nothing, p->other, SIDE_BYTES,
                   b[0] != '\0' ? b : nothing);
}

static cddp_status explain(const cd_fsdp_statement *mine, const int64_t *cards, uint32_t rank,
                           cddp_group *group, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_control left = {0}, right = {0};
    const parting p = find_parting(cards, rank, cddp_group_size(group));
    CD_TRY_OUT(fetch(mine, cards, p.odd, group, &left, err));
    CD_TRY_OUT(fetch(mine, cards, p.other, group, &right, err));
    status = report(mine, left.host, right.host, &p, err);
out:
    cd_control_fini(&left);
    cd_control_fini(&right);
    return status;
}

cddp_status cd_fsdp_agree(cddp_group *group, const cd_fsdp_statement *mine, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_control one = {0}, all = {0};
    const uint32_t world = cddp_group_size(group);
    CD_TRY_OUT(make(&one, mine, group, CDDP_I64, CARD_FIELDS, err));
    CD_TRY_OUT(make(&all, mine, group, CDDP_I64, CARD_FIELDS * (int64_t)world, err));
    ((int64_t *)one.host)[CARD_DIGEST] = (int64_t)cd_hash64(mine->text, mine->bytes, 0);
    ((int64_t *)one.host)[CARD_LENGTH] = (int64_t)mine->bytes;
    CD_TRY_OUT(cd_control_allgather(group, &one, &all, err));
    const int64_t *cards = all.host;
    for (uint32_t r = 1; r < world && status == CDDP_OK; r++)
        if (cards[r * CARD_FIELDS + CARD_DIGEST] != cards[CARD_DIGEST])
            status = explain(mine, cards, r, group, err);
out:
    cd_control_fini(&one);
    cd_control_fini(&all);
    return status;
}
