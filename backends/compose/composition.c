/* SPDX-License-Identifier: Apache-2.0 */
/* The composition object: a text that is read into a tree of nodes whose tables call each
** other. */
#include "cddp/composition.h"

#include "backends/compose/node.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/base/sized.h"

#include <string.h>

cddp_status cddp_composition_open(const cddp_composition_options *options,
                                  cddp_composition **composition, cddp_error *err)
{
    CD_TRY(CD_SIZED_CHECK(options, cddp_composition_options, spec, err));
    cddp_status status = CDDP_OK;
    if (options->spec == NULL || options->spec[0] == '\0' || options->find == NULL)
        return cd_fail(err, CDDP_E_ARG, "a composition needs a text and a way to find backends");
    cd_arena arena;
    cd_arena_init(&arena, options->allocator, 4096);
    cddp_composition *c = cd_arena_push(&arena, sizeof *c);
    if (c == NULL) return cd_fail_memory(err, "backend '%s'", options->spec);
    c->arena = arena;
    c->options = *options;
    c->spec = cd_arena_strdup(&c->arena, options->spec);
    c->node_name = cd_arena_strdup(&c->arena, options->node != NULL ? options->node : "");
    CD_TRY_OUT(cd_arena_check(&c->arena, err, "backend '%s'", options->spec));
    c->options.spec = c->spec;
    c->options.node = c->node_name;
    const cd_spec_reader reader = {.arena = &c->arena, .composition = c};
    CD_TRY_OUT(cd_spec_read(&reader, c->spec, &c->root, err));
    *composition = c;
    c = NULL;
out:
    cddp_composition_close(c);
    return status;
}

const cddp_backend *cddp_composition_backend(const cddp_composition *composition)
{
    return composition != NULL ? &composition->root->table : NULL;
}

void cddp_composition_close(cddp_composition *composition)
{
    if (composition != NULL) cd_arena_fini(&composition->arena);
}

bool cddp_composition_is_named(const char *spec)
{
    return spec != NULL && strpbrk(spec, ":,") != NULL;
}

cddp_status cddp_composition_each(const char *spec,
                                  cddp_status (*visit)(void *context, const char *name,
                                                       cddp_error *err),
                                  void *context, cddp_error *err)
{
    cd_arena arena;
    cd_node *root = NULL;
    cddp_status status = CDDP_OK;
    cd_arena_init(&arena, NULL, 4096);
    const cd_spec_reader reader = {.arena = &arena, .visit = visit, .context = context};
    CD_TRY_OUT(cd_spec_read(&reader, spec, &root, err));
out:
    cd_arena_fini(&arena);
    return status;
}

bool cddp_composition_kind(size_t index, const char **form, const char **summary)
{
    for (size_t i = 0; i <= index; i++)
        if (cd_kinds[i] == NULL) return false;
    *form = cd_kinds[index]->form;
    *summary = cd_kinds[index]->summary;
    return true;
}
