/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a composition.
**
**   text     = device ":" item { "," device ":" item }  |  item
**   item     = kind ":" [ settings ":" ] item  |  backend
**   settings belong to the kind and contain no colon
**
** The text is read from left to right, without backtracking. Settings end at the next colon, so a
** comma inside them never separates devices. Texts come from command lines and scenarios; a fuzzer
** feeds this file arbitrary text.
*/
#include "backends/compose/node.h"
#include "core/base/error.h"
#include "core/base/format.h"
#include "core/base/suggest.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SPEC_BYTES_MAX 200
#define DEPTH_MAX 8

const cd_kind *const cd_kinds[] = {&cd_kind_dispatch, &cd_kind_round_robin, &cd_kind_hier,
                                   &cd_kind_check,    &cd_kind_fault,       NULL};
static const char *const device_words[] = {"cpu", "cuda", "symbol", "shape"};
#define DEVICE_WORDS (sizeof device_words / sizeof device_words[0])

typedef struct reading {
    const cd_spec_reader *reader;
    const char *spec, *at;
    uint32_t depth;
} reading;

/* ---- words ---- */

static cddp_status refuse_at(const char *spec, const char *at, cddp_error *err, const char *words)
{
    return cd_fail(err, CDDP_E_CONFIG, "backend '%s', character %zu: %s", spec,
                   (size_t)(at - spec) + 1, words);
}

cddp_status cd_spec_refuse(const cd_node *node, const char *at, cddp_error *err, const char *format,
                           ...)
{
    char words[256];
    va_list arguments;
    va_start(arguments, format);
    cd_vformat(words, sizeof words, format, arguments);
    va_end(arguments);
    return refuse_at(node->spec, at, err, words);
}

bool cd_spec_word(const char *at, const char *stops, char word[CD_NODE_WORD_BYTES])
{
    size_t length = strcspn(at, stops);
    if (length >= CD_NODE_WORD_BYTES) return false;
    memcpy(word, at, length);
    word[length] = '\0';
    return true;
}

bool cd_spec_number(const char **at, uint64_t *number)
{
    const char *p = *at;
    uint64_t value = 0;
    if (*p < '0' || *p > '9') return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (value > (UINT64_MAX - digit) / 10) return false;
        value = value * 10 + digit;
    }
    *number = value;
    *at = p;
    return true;
}

static const cd_kind *kind_find(const char *word)
{
    for (size_t i = 1; cd_kinds[i] != NULL; i++)
        if (strcmp(cd_kinds[i]->word, word) == 0) return cd_kinds[i];
    return NULL;
}

static bool is_device(const char *word)
{
    for (size_t i = 0; i < DEVICE_WORDS; i++)
        if (strcmp(device_words[i], word) == 0) return true;
    return false;
}

static cddp_status refuse_word(const reading *r, const char *word, cddp_error *err)
{
    char words[200];
    cd_suggestion s;
    cd_suggest_begin(&s, word);
    for (size_t i = 1; cd_kinds[i] != NULL; i++) cd_suggest_offer(&s, cd_kinds[i]->word);
    for (size_t i = 0; i < DEVICE_WORDS; i++) cd_suggest_offer(&s, device_words[i]);
    if (s.best != NULL)
        snprintf(words, sizeof words,
                 "'%s' is neither a composition nor a device; did you mean '%s'?", word, s.best);
    else
        snprintf(words, sizeof words,
                 "'%s' is neither a composition (rr, hier, check, fault) nor a device (cpu, cuda, "
                 "symbol, shape)",
                 word);
    return refuse_at(r->spec, r->at, err, words);
}

/* ---- nodes ---- */

static cddp_status node_create(const reading *r, const cd_kind *kind, cd_node **node,
                               cddp_error *err)
{
    cd_node *n = cd_arena_push(r->reader->arena, sizeof *n);
    if (n == NULL) return cd_fail_memory(err, "backend '%s'", r->spec);
    n->kind = kind;
    n->composition = r->reader->composition;
    n->spec = r->spec;
    *node = n;
    return CDDP_OK;
}

/* Makes the node's table after those of its inner nodes. `begin` is the start of its text. */
static cddp_status node_finish(const reading *r, cd_node *n, const char *begin, cddp_error *err)
{
    if (r->reader->composition == NULL) return CDDP_OK;
    n->name = cd_arena_printf(r->reader->arena, "%.*s", (int)(r->at - begin), begin);
    if (n->name == NULL) return cd_fail_memory(err, "backend '%s'", r->spec);
    n->table = n->inner[0]->table; /* capabilities to begin with */
    n->table.size = sizeof n->table;
    n->table.name = n->name;
    n->table.self = n;
    n->table.open = n->kind->open;
    CD_TRY(n->kind->adopt(n, err));
    return CDDP_OK;
}

static cddp_status read_leaf(reading *r, cd_node **node, cddp_error *err)
{
    char word[CD_NODE_WORD_BYTES];
    cddp_error reason = CDDP_ERROR_INIT;
    const cddp_backend *backend = NULL;
    const cd_spec_reader *reader = r->reader;
    if (!cd_spec_word(r->at, ":,", word) || word[0] == '\0')
        return refuse_at(r->spec, r->at, err, "the name of a backend is missing here");
    cddp_status status =
        reader->visit != NULL ? reader->visit(reader->context, word, &reason) : CDDP_OK;
    if (status == CDDP_OK && reader->composition != NULL)
        status = reader->composition->options.find(reader->composition->options.context, word,
                                                   &backend, &reason);
    if (status != CDDP_OK)
        return cd_fail(err, status, "backend '%s', character %zu: %.300s", r->spec,
                       (size_t)(r->at - r->spec) + 1, reason.message);
    cd_node *n = NULL;
    CD_TRY(node_create(r, NULL, &n, err));
    if (backend != NULL) n->table = *backend;
    r->at += strlen(word);
    *node = n;
    return CDDP_OK;
}

static cddp_status read_item(reading *r, cd_node **node, cddp_error *err);

static cddp_status read_kind(reading *r, const cd_kind *kind, cd_node **node, cddp_error *err)
{
    const char *begin = r->at;
    cd_node *n = NULL;
    CD_TRY(node_create(r, kind, &n, err));
    r->at += strlen(kind->word) + 1;
    if (kind->parse != NULL) CD_TRY(kind->parse(n, &r->at, err));
    CD_TRY(read_item(r, &n->inner[0], err));
    n->inner_count = 1;
    CD_TRY(node_finish(r, n, begin, err));
    *node = n;
    return CDDP_OK;
}

static cddp_status read_item(reading *r, cd_node **node, cddp_error *err)
{
    char word[CD_NODE_WORD_BYTES];
    if (!cd_spec_word(r->at, ":,", word))
        return refuse_at(r->spec, r->at, err, "this word is too long");
    if (r->at[strlen(word)] != ':') {
        CD_TRY(read_leaf(r, node, err));
        return CDDP_OK;
    }
    const cd_kind *kind = kind_find(word);
    if (kind == NULL && is_device(word))
        return refuse_at(r->spec, r->at, err, "devices are allowed only at the beginning");
    if (kind == NULL) return CD_PASS(refuse_word(r, word, err));
    if (++r->depth > DEPTH_MAX)
        return refuse_at(r->spec, r->at, err, "compositions nest at most 8 deep");
    CD_TRY(read_kind(r, kind, node, err));
    r->depth--;
    return CDDP_OK;
}

static cddp_status read_device(reading *r, cd_node *n, cddp_error *err)
{
    char *word = n->devices[n->inner_count];
    if (n->inner_count == CD_NODE_INNER_MAX)
        return refuse_at(r->spec, r->at, err, "more devices than there are");
    if (!cd_spec_word(r->at, ":,", word) || r->at[strlen(word)] != ':')
        return refuse_at(r->spec, r->at, err,
                         "a device and a colon are missing here, as in cpu:gloo,cuda:nccl");
    if (!is_device(word)) return CD_PASS(refuse_word(r, word, err));
    for (uint32_t i = 0; i < n->inner_count; i++)
        if (strcmp(n->devices[i], word) == 0)
            return refuse_at(r->spec, r->at, err, "this device has a backend already");
    r->at += strlen(word) + 1;
    CD_TRY(read_item(r, &n->inner[n->inner_count], err));
    n->inner_count++;
    return CDDP_OK;
}

static cddp_status read_dispatch(reading *r, cd_node **node, cddp_error *err)
{
    const char *begin = r->at;
    cd_node *n = NULL;
    CD_TRY(node_create(r, &cd_kind_dispatch, &n, err));
    CD_TRY(read_device(r, n, err));
    while (*r->at == ',') {
        r->at++;
        CD_TRY(read_device(r, n, err));
    }
    CD_TRY(node_finish(r, n, begin, err));
    *node = n;
    return CDDP_OK;
}

cddp_status cd_spec_read(const cd_spec_reader *reader, const char *spec, cd_node **root,
                         cddp_error *err)
{
    reading r = {.reader = reader, .spec = spec, .at = spec};
    char word[CD_NODE_WORD_BYTES];
    cd_node *n = NULL;
    if (strlen(spec) > SPEC_BYTES_MAX)
        return cd_fail(err, CDDP_E_CONFIG, "the name of a backend has at most %d characters",
                       SPEC_BYTES_MAX);
    bool by_device = cd_spec_word(spec, ":,", word) && is_device(word);
    CD_TRY(by_device ? read_dispatch(&r, &n, err) : read_item(&r, &n, err));
    if (*r.at != '\0')
        return refuse_at(spec, r.at, err,
                         *r.at == ','
                             ? "a comma separates devices (cpu:gloo,cuda:nccl), but the text does "
                               "not begin with a device"
                             : "the text must end here: nothing may follow the name of a backend");
    *root = n;
    return CDDP_OK;
}
