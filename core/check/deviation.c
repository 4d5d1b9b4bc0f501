/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/deviation.h"

#include "core/check/writer.h"
#include "core/trace/setting.h"

#include <string.h>

/* Tables whose options belong to the job, and of the others what belongs to it. */
static bool is_common(cddp_key key)
{
    static const char *const tables[] = {"model.", "ddp.",      "mixed_precision.",
                                         "hook.",  "averager.", "amp.",
                                         "clip.",  "join.",     "shard.",
                                         "fsdp."};
    static const cddp_key keys[] = {CDDP_KEY_train_steps,           CDDP_KEY_train_micro_steps,
                                    CDDP_KEY_train_zero_grad,       CDDP_KEY_train_loss,
                                    CDDP_KEY_train_objective,       CDDP_KEY_train_lr_decay,
                                    CDDP_KEY_train_checkpoint_step, CDDP_KEY_train_resume,
                                    CDDP_KEY_data_dataset_size,     CDDP_KEY_data_padding,
                                    CDDP_KEY_data_shuffle};
    const char *path = cd_setting_path(key);
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (strncmp(path, tables[i], strlen(tables[i])) == 0) return true;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (keys[i] == key) return true;
    return false;
}

static bool find_item(const cd_facts *facts, cddp_key key, uint32_t rank, int64_t item,
                      cddp_fact_setting *found)
{
    return facts->port.setting(facts->port.self, rank, cd_setting_path(key), item, found);
}

static bool is_same_item(const cddp_fact_setting *a, const cddp_fact_setting *b)
{
    const char *x = a->text != NULL ? a->text : "", *y = b->text != NULL ? b->text : "";
    return a->value == b->value && memcmp(&a->real, &b->real, sizeof a->real) == 0 &&
           a->items == b->items && strcmp(x, y) == 0;
}

static bool is_same(const cd_facts *facts, cddp_key key, uint32_t a, uint32_t b)
{
    cddp_fact_setting x, y;
    for (int64_t item = 0;; item++) {
        const bool has_x = find_item(facts, key, a, item, &x);
        if (has_x != find_item(facts, key, b, item, &y)) return false;
        if (!has_x) return true;
        if (!is_same_item(&x, &y)) return false;
    }
}

static void print_item(cddp_key key, const cddp_fact_setting *s, char *text, size_t text_bytes)
{
    switch (cd_setting_type(key)) {
    case CDDP_KEY_FLAG:
        cd_say(text, text_bytes, "%s", s->value != 0 ? "true" : "false");
        break;
    case CDDP_KEY_INTEGER:
    case CDDP_KEY_UNSIGNED:
    case CDDP_KEY_UNSIGNEDS:
        cd_say(text, text_bytes, "%lld", (long long)s->value);
        break;
    case CDDP_KEY_NUMBER:
    case CDDP_KEY_NUMBERS:
        cd_say(text, text_bytes, "%.6g", s->real);
        break;
    default:
        cd_say(text, text_bytes, "%s", s->text != NULL ? s->text : "not given");
        break;
    }
}

/* "64", "fp16", "[1, 2]"; a list is cut after a few items */
static void print_value(const cd_facts *facts, cddp_key key, uint32_t rank, char *text,
                        size_t text_bytes)
{
    cddp_fact_setting s = {.items = 0};
    char item[40];
    (void)find_item(facts, key, rank, 0, &s);
    const cddp_key_type type = cd_setting_type(key);
    const bool is_list =
        type == CDDP_KEY_TEXTS || type == CDDP_KEY_NUMBERS || type == CDDP_KEY_UNSIGNEDS;
    if (!is_list) {
        print_item(key, &s, text, text_bytes);
        return;
    }
    size_t used = 0;
    const int64_t items = s.items;
    cd_say(text, text_bytes, "[");
    for (int64_t i = 0; i < items && i < 3; i++) {
        if (!find_item(facts, key, rank, i, &s)) break;
        print_item(key, &s, item, sizeof item);
        used = strlen(text);
        cd_say(text + used, text_bytes - used, "%s%s", i > 0 ? ", " : "", item);
    }
    used = strlen(text);
    cd_say(text + used, text_bytes - used, "%s]", items > 3 ? ", …" : "");
}

/* The ranks that have what the first has, and the others. */
typedef struct sides {
    cd_rank_set first, others;
} sides;

static bool split(const cd_facts *facts, cddp_key key, const cd_rank_set *ranks, cd_arena *memory,
                  sides *s)
{
    cddp_fact_setting setting;
    uint32_t witness = CD_NO_RANK;
    *s = (sides){{0}, {0}};
    for (uint32_t r = cd_rank_set_next(ranks, 0); r != CD_NO_RANK;
         r = cd_rank_set_next(ranks, r + 1)) {
        if (!find_item(facts, key, r, 0, &setting)) continue;
        if (witness == CD_NO_RANK) witness = r;
        cd_rank_set_add(is_same(facts, key, witness, r) ? &s->first : &s->others, memory, r);
    }
    return cd_rank_set_count(&s->others) > 0;
}

static void describe(const cd_facts *facts, cddp_key key, const sides *s, cd_deviation *d)
{
    const uint32_t first = cd_rank_set_count(&s->first), others = cd_rank_set_count(&s->others);
    const cd_rank_set *odd = first < others ? &s->first : &s->others,
                      *right = first < others ? &s->others : &s->first;
    const uint32_t odd_rank = cd_rank_set_next(odd, 0), right_rank = cd_rank_set_next(right, 0);
    char odd_value[48], right_value[48], who[48], rest[48];
    print_value(facts, key, odd_rank, odd_value, sizeof odd_value);
    print_value(facts, key, right_rank, right_value, sizeof right_value);
    cd_rank_set_print(odd, CD_NO_RANK, who, sizeof who);
    cd_rank_set_print(right, CD_NO_RANK, rest, sizeof rest);
    d->odd = *odd;
    d->has_majority = first != others;
    CD_SAY(d->words, "%s is %s on %s, %s on %s", cd_setting_path(key), odd_value, who, right_value,
           rest);
}

bool cd_deviation_find(const cd_facts *facts, cd_arena *memory, cd_deviation *found)
{
    cd_deviation d = {0};
    cd_rank_set ranks = {0};
    for (size_t i = 0; i < facts->settings.count; i++)
        cd_rank_set_add(&ranks, memory, (uint32_t)cd_table_key(&facts->settings, i)->part[0]);
    for (int k = 0; k < CDDP_KEY_COUNT; k++) {
        sides s;
        const cddp_key key = (cddp_key)k;
        if (!is_common(key) || !split(facts, key, &ranks, memory, &s)) continue;
        if (d.count++ == 0) describe(facts, key, &s, &d);
    }
    *found = d;
    return d.count > 0;
}
