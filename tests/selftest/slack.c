/* SPDX-License-Identifier: Apache-2.0 */
/* Measuring the slack, and comparing it with the file. */
#include "tests/selftest/slack.h"

#include "core/base/error.h"
#include "tests/selftest/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPONENT_MAX 56 /* f64 has 53 bits */

static const st_world_row wires[] = {
#define ST_WIRE(name, scenario, sets) {#name, scenario, sets, ST_RUN, "*"},
#include "tests/selftest/slack.def"
};
#define WIRES (sizeof wires / sizeof wires[0])

static const char *const bounds[] = {
#define ST_BOUND(place) place,
#include "tests/selftest/slack.def"
};
#define BOUNDS (sizeof bounds / sizeof bounds[0])

typedef struct slack {
    uint32_t noticed, changed; /* 0: the point is not there */
} slack;

/* *is_struck false: the training ended as the clean one. */
static cddp_status try_ratio(const st_world *w, size_t point, uint32_t exponent, bool *is_struck,
                             bool *is_noticed, cddp_error *err)
{
    cddp_verdict *verdict = NULL;
    st_finals finals;
    const st_injection injection = {.point = point,
                                    .op = ST_OP_RATIO,
                                    .rank = ST_ALL_RANKS,
                                    .step = ST_EVERY_STEP,
                                    .everything = true,
                                    .exponent = exponent,
                                    .tensors = w->parameter_count};
    st_injection_begin(&injection);
    CD_TRY(st_world_run(w, NULL, &finals, &verdict, err));
    *is_struck =
        st_injection_effect()->changed > 0 && memcmp(&finals, &w->finals, sizeof finals) != 0;
    *is_noticed = verdict->outcome == CDDP_OUTCOME_FINDINGS;
    cddp_verdict_destroy(verdict);
    return CDDP_OK;
}

static cddp_status measure(const st_world *w, const char *place, slack *found, cddp_error *err)
{
    const size_t point = st_point_find(place);
    bool all = true;
    *found = (slack){0};
    if (point == SIZE_MAX) return cd_fail(err, CDDP_E_ARG, "there is no point '%s'", place);
    if (w->reached[point] == 0) return CDDP_OK;
    for (uint32_t k = 1, calm = 0; k <= EXPONENT_MAX && calm < 3; k++) {
        bool is_struck = false, is_noticed = false;
        CD_TRY(try_ratio(w, point, k, &is_struck, &is_noticed, err));
        /* Rounding may hide one ratio and not the next. */
        calm = is_struck ? 0 : calm + 1;
        if (!is_struck) continue;
        found->changed = k;
        all = all && is_noticed;
        if (all) found->noticed = k;
    }
    return CDDP_OK;
}

static cddp_status measure_all(cd_text *text, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_registry *registry = NULL;
    st_world *world = calloc(1, sizeof *world);
    if (world == NULL) return cd_fail_memory(err, "a world");
    CD_TRY_OUT(cddp_registry_create(NULL, &registry, err));
    for (size_t i = 0; i < WIRES; i++) {
        CD_TRY_OUT(st_world_open(&wires[i], registry, world, err));
        for (size_t b = 0; b < BOUNDS; b++) {
            slack found;
            CD_TRY_OUT(measure(world, bounds[b], &found, err));
            if (found.changed == 0) continue;
            cd_text_printf(text, "%s %s %u of %u\n", wires[i].name, bounds[b], found.noticed,
                           found.changed);
        }
        st_world_close(world);
    }
out:
    if (status != CDDP_OK) st_world_close(world);
    cddp_registry_destroy(registry);
    free(world);
    return status;
}

/* ---- the file ---- */

static bool read_row(const char *line, char *name, char *place, slack *found)
{
    return sscanf(line, "%63s %63s %u of %u", name, place, &found->noticed, &found->changed) == 4;
}

/* The row of the same wire and point; false: none. */
static bool find_row(const char *rows, const char *name, const char *place, slack *found)
{
    for (const char *at = rows; *at != '\0'; at += strcspn(at, "\n") + 1) {
        char wire[64], point[64];
        if (read_row(at, wire, point, found) && strcmp(wire, name) == 0 &&
            strcmp(point, place) == 0)
            return true;
        if (strchr(at, '\n') == NULL) break;
    }
    return false;
}

static bool compare(const char *golden, const char *measured)
{
    bool good = true;
    for (const char *at = golden; strchr(at, '\n') != NULL; at = strchr(at, '\n') + 1) {
        char wire[64], point[64];
        slack before, now;
        if (!read_row(at, wire, point, &before)) continue;
        if (!find_row(measured, wire, point, &now)) {
            printf("FAIL %s %s: not measured any more\n", wire, point);
            good = false;
        } else if (now.noticed < before.noticed) {
            printf("FAIL %s %s: a bound became wider: ratios up to 1 - 2^-%u were noticed, now up "
                   "to 1 - 2^-%u\n",
                   wire, point, before.noticed, now.noticed);
            good = false;
        } else if (now.noticed > before.noticed) {
            printf("%s %s: %u, was %u; renew the file with --renew\n", wire, point, now.noticed,
                   before.noticed);
        }
    }
    return good;
}

static cddp_status read_file(const char *path, cd_text *text, cddp_error *err)
{
    char bytes[4096];
    FILE *file = fopen(path, "r");
    if (file == NULL) return cd_fail(err, CDDP_E_IO, "cannot read %s", path);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, file)) > 0;)
        cd_text_push_bytes(text, bytes, n);
    fclose(file);
    return CDDP_OK;
}

cddp_status st_slack_run(const char *path, bool renews, bool *good, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_text measured = {NULL}, golden = {NULL};
    CD_TRY_OUT(measure_all(&measured, err));
    fputs(cd_text_get(&measured), stdout);
    if (renews) {
        FILE *file = fopen(path, "w");
        *good = file != NULL && fputs(cd_text_get(&measured), file) != EOF;
        if (file != NULL) *good &= fclose(file) == 0;
    } else {
        CD_TRY_OUT(read_file(path, &golden, err));
        *good = compare(cd_text_get(&golden), cd_text_get(&measured));
    }
out:
    cd_text_fini(&measured);
    cd_text_fini(&golden);
    return status;
}

void st_slack_page(cd_text *text)
{
    cd_text rows = {NULL};
    if (read_file(ST_SLACK_FILE, &rows, NULL) == CDDP_OK && rows.length > 0) {
        cd_text_push(
            text,
            "## The smallest ratio that is noticed\n\n"
            "Everything at a place is multiplied by 1 - 2^-k, on all ranks in all steps. "
            "\"7 of 8\": each ratio up to k = 7 that\nchanges the training is noticed, and k = 8 "
            "changes it, too. From `" ST_SLACK_FILE "`, which the test\n`selftest_slack` "
            "compares.\n\n| wire | place | k |\n|---|---|---|\n");
        for (const char *at = cd_text_get(&rows); strchr(at, '\n') != NULL;
             at = strchr(at, '\n') + 1) {
            char wire[64], point[64];
            slack found;
            if (read_row(at, wire, point, &found))
                cd_text_printf(text, "| %s | %s | %u of %u |\n", wire, point, found.noticed,
                               found.changed);
        }
    }
    cd_text_fini(&rows);
}
