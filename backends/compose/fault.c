/* SPDX-License-Identifier: Apache-2.0 */
/* fault:settings:x. A transport that misbehaves in a repeatable way.
**
** settings, separated by commas:
**   seed=N       seed of the draws (default 0)
**   drop=P       an operation of this rank is lost, and every later one of the group: a broken
**                connection. Its waits end at the time-out
**   corrupt=P    one bit of this rank's result is flipped
**   delay=T      (ns, us, ms, s) operations are reported done up to T late, drawn evenly
**   late=P       chance of a delay, when delay is given (default 1)
**   die=R@K      rank R dies at its K-th operation in the group: a process is killed, a simulated
**                rank fails there for good and informs no other rank
**   plant=WORD   every operation is done wrongly, as plants.def describes
**   rank=R       only this rank is affected;  from=K  only from its K-th operation
**
** P is a decimal number from 0 to 1, kept as parts of a million. The draw for an operation depends
** only on the seed, the group's name, the rank and the number of the operation. It does not depend
** on time nor on earlier draws. The table still declares the inner backend's promises about bits:
** breaking them is the fault.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/compose/plant.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/prng.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>

#define MILLION UINT64_C(1000000)

typedef struct fault_group {
    cd_step_group base;
    cd_plant_group plants;
    bool lost; /* no message of this rank arrives any more */
    bool dead;
} fault_group;

static cd_prng draw_of(const cd_step_group *g, const cd_step_work *w, const char *label)
{
    uint64_t h = cd_hash_mix(g->node->fault.seed, cd_hash_text(g->name));
    cd_prng prng = cd_prng_seed(cd_hash_mix(h, g->rank->rank));
    return cd_prng_split_index(&prng, label, w->number);
}

static bool strikes(const cd_step_group *g, const cd_step_work *w, const char *label, uint64_t ppm)
{
    const cd_fault_plan *f = &g->node->fault;
    if (ppm == 0 || w->number < f->from || (f->rank >= 0 && f->rank != (int64_t)g->rank->rank))
        return false;
    cd_prng prng = draw_of(g, w, label);
    return cd_prng_chance(&prng, ppm, MILLION);
}

static cddp_status fail_dead(const cd_step_group *g, cddp_error *err)
{
    return cd_fail(err, CDDP_E_BACKEND,
                   "rank %" PRIu32 " died at its operation %" PRIu64 " (planted by fault:)",
                   g->rank->rank, g->node->fault.die_at);
}

/* It is not in flight any more, however it ended. */
static void count_out(cd_step_group *g, cd_step_work *w)
{
    fault_group *f = (fault_group *)(void *)g;
    cd_plant_work *p = w->extra;
    f->plants.under_way -= p->is_counted;
    p->is_counted = false;
}

static cddp_status fault_begin(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    fault_group *f = (fault_group *)(void *)g;
    const cd_fault_plan *plan = &g->node->fault;
    if (plan->die_rank == (int64_t)g->rank->rank && w->number >= plan->die_at) {
        if (g->node->composition->options.own_process) raise(SIGKILL);
        f->dead = true;
    }
    if (f->dead) return CD_PASS(fail_dead(g, err));
    f->lost = f->lost || strikes(g, w, "drop", plan->drop_ppm);
    w->lost = f->lost;
    if (w->lost) return CDDP_OK;
    if (strikes(g, w, "late", plan->delay_ns > 0 ? plan->late_ppm : 0)) {
        cd_prng prng = draw_of(g, w, "delay");
        w->due_ns = cd_step_now(g) + cd_prng_below(&prng, plan->delay_ns) + 1;
    }
    cddp_collective call = w->call;
    cddp_status status = CDDP_OK;
    CD_TRY_OUT(cd_plant_begin(g, w, &f->plants, &call, err));
    CD_TRY_OUT(cd_step_issue(g, w, 0, &call, true, err));
    return CDDP_OK;
out:
    count_out(g, w);
    return status;
}

static void fault_failed(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    (void)err;
    count_out(g, w);
}

static cddp_status turn_bit(const cd_step_group *g, const cd_step_work *w, const cddp_tensor *t,
                            cddp_error *err)
{
    unsigned char element[16];
    size_t bytes = cddp_dtype_bytes(t->dtype);
    cd_prng prng = draw_of(g, w, "bit");
    int64_t index = (int64_t)cd_prng_below(&prng, (uint64_t)cddp_tensor_numel(t));
    uint64_t bit = cd_prng_below(&prng, bytes * 8);
    const cddp_tensor one = cddp_tensor_slice(t, index, 1);
    CD_TRY(t->device->read(&one, element, bytes, err));
    element[bit / 8] ^= (unsigned char)(1u << bit % 8);
    CD_TRY(t->device->write(&one, element, bytes, err));
    return CDDP_OK;
}

static cddp_status fault_finish(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    fault_group *f = (fault_group *)(void *)g;
    const cddp_tensor *t = &w->call.output;
    count_out(g, w);
    CD_TRY(cd_plant_finish(g, w, &f->plants, err));
    if (!cd_step_has_output(g, &w->call) || !strikes(g, w, "corrupt", g->node->fault.corrupt_ppm))
        return CDDP_OK;
    if (cddp_tensor_numel(t) == 0) return CDDP_OK;
    if ((t->device->flags & CDDP_DEVICE_VALUES) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "fault: device %s has no bits to corrupt",
                       t->device->name);
    CD_TRY(turn_bit(g, w, t, err));
    return CDDP_OK;
}

static void fault_fini(cd_step_group *g)
{
    fault_group *f = (fault_group *)(void *)g;
    cd_plant_room_fini(&f->plants.last);
    for (cd_step_work *w = g->made; w != NULL; w = w->next_made)
        cd_plant_room_fini(&((cd_plant_work *)w->extra)->before);
}

static const cd_step_ops ops = {.group_bytes = sizeof(fault_group),
                                .begin = fault_begin,
                                .finish = fault_finish,
                                .failed = fault_failed,
                                .given_up = count_out,
                                .fini = fault_fini};

static cddp_status fault_open(const cddp_backend *backend, cddp_rank *rank,
                              const cddp_group_spec *spec, void **group, cddp_error *err)
{
    cd_step_group *g = NULL;
    CD_TRY(cd_step_group_create(backend, rank, spec, &ops, &g, err));
    g->extra_bytes = sizeof(cd_plant_work);
    const cd_inner_spec inner = {.node = g->node->inner[0], .suffix = ""};
    cddp_status status = cd_step_group_open_inner(g, spec, &inner, err);
    if (status == CDDP_OK)
        *group = g;
    else
        cd_step_group_destroy(g);
    return status;
}

/* ---- settings ---- */

/* "0.01" → 10000; at most six digits after the point. */
static bool parse_chance(const char **at, uint64_t *ppm)
{
    uint64_t whole = 0, scale = MILLION, part = 0;
    if (!cd_spec_number(at, &whole) || whole > 1) return false;
    if (**at == '.')
        for (++*at; **at >= '0' && **at <= '9'; ++*at) {
            if (scale == 1) return false;
            scale /= 10;
            part += (uint64_t)(**at - '0') * scale;
        }
    *ppm = whole * MILLION + part;
    return *ppm <= MILLION;
}

static bool parse_duration(const char **at, uint64_t *ns)
{
    static const struct {
        const char *word;
        uint64_t ns;
    } units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}};
    uint64_t number = 0;
    if (!cd_spec_number(at, &number)) return false;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        size_t length = strlen(units[i].word);
        if (strncmp(*at, units[i].word, length) != 0) continue;
        *at += length;
        *ns = number * units[i].ns;
        return number <= 3600 * UINT64_C(1000000000) / units[i].ns; /* an hour at most */
    }
    return false;
}

static bool parse_rank(const char **at, int64_t *rank)
{
    uint64_t number = 0;
    if (!cd_spec_number(at, &number) || number > UINT32_MAX) return false;
    *rank = (int64_t)number;
    return true;
}

static bool parse_death(const char **at, cd_fault_plan *f)
{
    if (!parse_rank(at, &f->die_rank) || **at != '@') return false;
    ++*at;
    return cd_spec_number(at, &f->die_at);
}

static bool parse_plant(const char **at, int *plant)
{
    char word[CD_NODE_WORD_BYTES];
    if (!cd_spec_word(*at, ",:", word)) return false;
    for (int i = CD_PLANT_NONE + 1; i < CD_PLANT_COUNT; i++) {
        if (strcmp(word, cd_plant_word((cd_plant)i)) != 0) continue;
        *plant = i;
        *at += strlen(word);
        return true;
    }
    return false;
}

static bool parse_value(cd_fault_plan *f, const char *key, const char **at, const char **wanted)
{
    static const char chance[] = "a number from 0 to 1 with at most six digits after the point",
                      number[] = "a whole number";
    *wanted = chance;
    if (strcmp(key, "drop") == 0) return parse_chance(at, &f->drop_ppm);
    if (strcmp(key, "corrupt") == 0) return parse_chance(at, &f->corrupt_ppm);
    if (strcmp(key, "late") == 0) return parse_chance(at, &f->late_ppm);
    *wanted = "one of "
#define CD_PLANT(name, word, is_shared, summary) #word " "
#include "backends/compose/plants.def"
#undef CD_PLANT
              "(docs/backends.md says what they do)";
    if (strcmp(key, "plant") == 0) return parse_plant(at, &f->plant);
    *wanted = "a time with its unit, at most an hour, as in 5ms";
    if (strcmp(key, "delay") == 0) return parse_duration(at, &f->delay_ns);
    *wanted = "a rank and an operation, as in 2@5";
    if (strcmp(key, "die") == 0) return parse_death(at, f);
    *wanted = number;
    if (strcmp(key, "seed") == 0) return cd_spec_number(at, &f->seed);
    if (strcmp(key, "from") == 0) return cd_spec_number(at, &f->from);
    if (strcmp(key, "rank") == 0) return parse_rank(at, &f->rank);
    *wanted = NULL;
    return false;
}

static cddp_status fault_parse(cd_node *node, const char **at, cddp_error *err)
{
    cd_fault_plan *f = &node->fault;
    char key[CD_NODE_WORD_BYTES];
    const char *begin_all = *at;
    *f = (cd_fault_plan){.rank = -1, .die_rank = -1, .late_ppm = MILLION};
    for (;;) {
        const char *begin = *at, *wanted = NULL;
        if (!cd_spec_word(begin, "=:,", key) || begin[strlen(key)] != '=')
            return cd_spec_refuse(
                node, begin, err,
                "fault: needs settings and a colon, as in fault:seed=7,drop=0.01:gloo");
        *at += strlen(key) + 1;
        const char *value = *at;
        bool read = parse_value(f, key, at, &wanted);
        if (wanted == NULL)
            return cd_spec_refuse(node, begin, err,
                                  "fault: knows seed, drop, corrupt, delay, late, plant, die, rank "
                                  "and from, not '%s'",
                                  key);
        if (!read || (**at != ',' && **at != ':'))
            return cd_spec_refuse(node, value, err, "%s= needs %s", key, wanted);
        if (*(*at)++ == ':') break;
    }
    if (f->rank >= 0 && cd_plant_is_shared((cd_plant)f->plant))
        return cd_spec_refuse(node, begin_all, err,
                              "plant=%s is a mistake of all ranks: drop rank=",
                              cd_plant_word((cd_plant)f->plant));
    return CDDP_OK;
}

static cddp_status fault_adopt(cd_node *node, cddp_error *err)
{
    (void)err;
    cd_step_fill_table(&node->table);
    return CDDP_OK;
}

const cd_kind cd_kind_fault = {.word = "fault",
                               .form = "fault:seed=N,drop=P:x",
                               .summary = "loses, delays, corrupts or dies as drawn from the seed "
                                          "(docs/backends.md has the settings)",
                               .parse = fault_parse,
                               .adopt = fault_adopt,
                               .open = fault_open};
