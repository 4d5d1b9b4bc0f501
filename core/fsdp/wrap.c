/* SPDX-License-Identifier: Apache-2.0 */
/* Wrap policies: a decision over a tree of names, types and sizes.
**
** A policy goes down first: children are decided before their parent, which is then seen without
** the elements of the children that were wrapped (FSD-21). A shared parameter counts once per
** module, and again in every module that has it.
**
** Not here: which parameters a unit then has (layout.c). No model is seen: types are texts.
*/
#include "core/fsdp/wrap.h"

#include "core/base/sized.h"

#include <string.h>

#define MEMORY_BLOCK_BYTES ((size_t)4 << 10)

/* Never entered by a policy of sizes, and never wrapped by it. */
static const char *const forced_leaves[] = {"MultiheadAttention"};
static const char *const excluded[] = {"ModuleList", "ModuleDict"};

cddp_fsdp_wrap_policy cddp_fsdp_wrap_policy_default(void)
{
    return (cddp_fsdp_wrap_policy){.size = sizeof(cddp_fsdp_wrap_policy),
                                   .kind = CDDP_FSDP_WRAP_NONE,
                                   .min_num_params = 100000000};
}

/* ---- the tree ---- */

static cddp_status check_modules(const cddp_fsdp_module *modules, size_t count, size_t parameters,
                                 cddp_error *err)
{
    if (count == 0 || modules == NULL) return cd_fail(err, CDDP_E_ARG, "there are no modules");
    for (size_t m = 0; m < count; m++) {
        const cddp_fsdp_module *module = &modules[m];
        if (module->name == NULL) return cd_fail(err, CDDP_E_ARG, "module %zu has no name", m);
        if ((m == 0) != (module->parent < 0) || module->parent >= (int64_t)m)
            return cd_fail(err, CDDP_E_ARG,
                           "module %zu '%s' has parent %lld: the root comes first with parent -1, "
                           "and each parent before its children",
                           m, module->name, (long long)module->parent);
        for (size_t i = 0; i < module->parameter_count; i++)
            if (module->parameters == NULL || module->parameters[i] >= parameters)
                return cd_fail(err, CDDP_E_ARG, "module '%s' lists parameter %lld of %zu",
                               module->name,
                               module->parameters != NULL ? (long long)module->parameters[i] : -1,
                               parameters);
        for (size_t other = 0; other < m; other++)
            if (strcmp(modules[other].name, module->name) == 0)
                return cd_fail(err, CDDP_E_ARG, "two modules are named '%s': %zu and %zu",
                               module->name, other, m);
    }
    return CDDP_OK;
}

/* Backwards: most parameters are in the module of the one before. Returns count: none. */
static size_t find_module(const cddp_fsdp_module *modules, size_t count, const char *name,
                          size_t length)
{
    for (size_t m = count; m-- > 0;)
        if (strncmp(modules[m].name, name, length) == 0 && modules[m].name[length] == '\0')
            return m;
    return count;
}

/* The same among the module of the parameter before and those above it, where it nearly always
** is. Returns count: not there. */
static size_t find_above(const cddp_fsdp_module *modules, size_t count, int64_t from,
                         const char *name, size_t length)
{
    for (int64_t m = from; m >= 0; m = modules[m].parent)
        if (strlen(modules[m].name) == length && memcmp(modules[m].name, name, length) == 0)
            return (size_t)m;
    return count;
}

/* The module of every prefix that ends in front of a dot, in the order of first appearance: that is
** named_modules(), without the modules that have no parameters. */
static cddp_status make_modules(cd_fsdp_tree *tree, const cddp_fsdp_options *o, cd_arena *arena,
                                cddp_error *err)
{
    size_t most = 1;
    for (size_t i = 0; i < o->parameter_count; i++)
        for (const char *c = o->parameters[i].name; *c != '\0'; c++) most += *c == '.';
    cddp_fsdp_module *modules = cd_arena_array(arena, most, sizeof *modules);
    uint32_t *owner = cd_arena_array(arena, o->parameter_count + 1, sizeof *owner);
    uint32_t *lists = cd_arena_array(arena, o->parameter_count + 1, sizeof *lists);
    size_t *starts = cd_arena_array(arena, most, sizeof *starts);
    CD_TRY(cd_arena_check(arena, err, "the modules of %zu parameters", o->parameter_count));
    size_t count = 1;
    modules[0] = (cddp_fsdp_module){.name = "", .parent = -1};
    for (size_t i = 0; i < o->parameter_count; i++) {
        const char *name = o->parameters[i].name;
        size_t parent = 0;
        for (size_t at = 0; name[at] != '\0'; at++) {
            if (name[at] != '.') continue;
            const int64_t before = i > 0 ? (int64_t)owner[i - 1] : -1;
            size_t m = find_above(modules, count, before, name, at);
            if (m == count) m = find_module(modules, count, name, at);
            if (m == count) {
                char *copy = cd_arena_printf(arena, "%.*s", (int)at, name);
                CD_TRY(cd_arena_check(arena, err, "the module of '%s'", name));
                modules[count++] = (cddp_fsdp_module){.name = copy, .parent = (int64_t)parent};
            }
            parent = m;
        }
        owner[i] = (uint32_t)parent;
        modules[parent].parameter_count++;
    }
    size_t used = 0;
    for (size_t m = 0; m < count; m++) {
        starts[m] = used;
        modules[m].parameters = lists + used;
        used += modules[m].parameter_count;
    }
    for (size_t i = 0; i < o->parameter_count; i++) lists[starts[owner[i]]++] = (uint32_t)i;
    *tree = (cd_fsdp_tree){modules, count};
    return CDDP_OK;
}

static cddp_status copy_modules(cd_fsdp_tree *tree, const cddp_fsdp_options *o, cd_arena *arena,
                                cddp_error *err)
{
    cddp_fsdp_module *modules = cd_arena_array(arena, o->module_count, sizeof *modules);
    CD_TRY(cd_arena_check(arena, err, "%zu modules", o->module_count));
    for (size_t m = 0; m < o->module_count; m++) {
        const cddp_fsdp_module *given = &o->modules[m];
        uint32_t *list = cd_arena_array(arena, given->parameter_count + 1, sizeof *list);
        modules[m] = *given;
        modules[m].name = cd_arena_strdup(arena, given->name);
        if (given->type != NULL) modules[m].type = cd_arena_strdup(arena, given->type);
        CD_TRY(cd_arena_check(arena, err, "module '%s'", given->name));
        if (given->parameter_count > 0)
            memcpy(list, given->parameters, given->parameter_count * sizeof *list);
        modules[m].parameters = list;
    }
    *tree = (cd_fsdp_tree){modules, o->module_count};
    return CDDP_OK;
}

cddp_status cd_fsdp_tree_init(cd_fsdp_tree *tree, const cddp_fsdp_options *o, cd_arena *arena,
                              cddp_error *err)
{
    if (o->modules == NULL) return CD_PASS(make_modules(tree, o, arena, err));
    CD_TRY(check_modules(o->modules, o->module_count, o->parameter_count, err));
    return CD_PASS(copy_modules(tree, o, arena, err));
}

/* ---- policies ---- */

typedef struct decision {
    cd_fsdp_tree tree;
    const int64_t *numels;
    const cddp_fsdp_wrap_policy *policy;
    uint32_t *seen; /* (parameter_count) the module that counted it last, + 1 */
    bool *is_unit;
} decision;

static bool is_among(const char *word, const char *const *words, size_t count)
{
    for (size_t i = 0; word != NULL && i < count; i++)
        if (words[i] != NULL && strcmp(word, words[i]) == 0) return true;
    return false;
}

#define IS_AMONG(word, list) is_among((word), (list), sizeof(list) / sizeof((list)[0]))

static bool is_below(const cd_fsdp_tree *tree, size_t module, size_t above)
{
    int64_t at = (int64_t)module;
    while (at > (int64_t)above) at = tree->modules[at].parent;
    return at == (int64_t)above;
}

/* Elements of module.parameters(): its own and those of all modules below it. */
static int64_t count_elements(const decision *d, size_t module)
{
    int64_t numel = 0;
    for (size_t m = module; m < d->tree.count; m++) {
        if (!is_below(&d->tree, m, module)) continue;
        const cddp_fsdp_module *own = &d->tree.modules[m];
        for (size_t i = 0; i < own->parameter_count; i++) {
            const uint32_t p = own->parameters[i];
            if (d->seen[p] == module + 1) continue;
            d->seen[p] = (uint32_t)module + 1;
            numel += d->numels[p];
        }
    }
    return numel;
}

static bool enters(const decision *d, const cddp_fsdp_module *module, int64_t numel)
{
    return d->policy->kind != CDDP_FSDP_WRAP_SIZE ||
           (numel >= d->policy->min_num_params && !IS_AMONG(module->type, forced_leaves));
}

static bool wraps(const decision *d, const cddp_fsdp_module *module, int64_t remainder)
{
    const cddp_fsdp_wrap_policy *p = d->policy;
    switch (p->kind) {
    case CDDP_FSDP_WRAP_ALWAYS:
        return true;
    case CDDP_FSDP_WRAP_SIZE:
        return remainder >= p->min_num_params && !IS_AMONG(module->type, excluded);
    case CDDP_FSDP_WRAP_TYPES:
        return is_among(module->type, p->words, p->word_count);
    case CDDP_FSDP_WRAP_NAMES:
        return is_among(module->name, p->words, p->word_count);
    case CDDP_FSDP_WRAP_NONE:
    case CDDP_FSDP_WRAP_COUNT:
        break;
    }
    return false;
}

/* Returns how many elements were wrapped in the module or below it. Recursion is as deep as the
** model. */
static int64_t decide(const decision *d, size_t module)
{
    const cddp_fsdp_module *own = &d->tree.modules[module];
    const int64_t numel = count_elements(d, module);
    int64_t wrapped = 0;
    if (!enters(d, own, numel)) return 0;
    for (size_t m = module + 1; m < d->tree.count; m++)
        if (d->tree.modules[m].parent == (int64_t)module) wrapped += decide(d, m);
    if (module == 0 || !wraps(d, own, numel - wrapped)) return wrapped;
    d->is_unit[module] = true;
    return numel;
}

static cddp_status check_policy(const cddp_fsdp_wrap_policy *p, const cd_fsdp_tree *tree,
                                cddp_error *err)
{
    if ((unsigned)p->kind >= CDDP_FSDP_WRAP_COUNT)
        return cd_fail(err, CDDP_E_ARG, "no such wrap policy: %d", (int)p->kind);
    const bool by_words = p->kind == CDDP_FSDP_WRAP_TYPES || p->kind == CDDP_FSDP_WRAP_NAMES;
    if (by_words && (p->words == NULL || p->word_count == 0))
        return cd_fail(err, CDDP_E_ARG, "a wrap policy by %s has none",
                       p->kind == CDDP_FSDP_WRAP_TYPES ? "types" : "names");
    if (p->kind == CDDP_FSDP_WRAP_SIZE && p->min_num_params < 1)
        return cd_fail(err, CDDP_E_ARG, "min_num_params is %lld; it is at least 1",
                       (long long)p->min_num_params);
    for (size_t w = 0; by_words && w < p->word_count; w++) {
        bool found = false;
        for (size_t m = 0; m < tree->count && !found; m++)
            found = is_among(p->kind == CDDP_FSDP_WRAP_TYPES ? tree->modules[m].type
                                                             : tree->modules[m].name,
                             &p->words[w], 1);
        if (!found)
            return cd_fail(err, CDDP_E_CONFIG, "the wrap policy names %s '%s', which no module has",
                           p->kind == CDDP_FSDP_WRAP_TYPES ? "type" : "module",
                           p->words[w] != NULL ? p->words[w] : "(none)");
    }
    return CDDP_OK;
}

cddp_status cd_fsdp_tree_wrap(const cd_fsdp_tree *tree, const cd_fsdp_sizes *sizes,
                              const cddp_fsdp_wrap_policy *policy, const cddp_allocator *allocator,
                              bool *is_unit, cddp_error *err)
{
    cddp_fsdp_wrap_policy own = cddp_fsdp_wrap_policy_default();
    cd_arena scratch;
    CD_TRY(CD_SIZED_CHECK(policy, cddp_fsdp_wrap_policy, word_count, err));
    cd_sized_copy(&own, sizeof own, policy);
    CD_TRY(check_policy(&own, tree, err));
    cd_arena_init(&scratch, allocator, MEMORY_BLOCK_BYTES);
    const decision d = {
        .tree = *tree,
        .numels = sizes->numels,
        .policy = &own,
        .seen = cd_arena_array(&scratch, sizes->parameter_count + 1, sizeof(uint32_t)),
        .is_unit = is_unit,
    };
    const cddp_status status =
        cd_arena_check(&scratch, err, "a wrap policy over %zu parameters", sizes->parameter_count);
    if (status == CDDP_OK) {
        for (size_t m = 0; m < tree->count; m++) is_unit[m] = m == 0;
        decide(&d, 0);
    }
    cd_arena_fini(&scratch);
    return status;
}

cddp_status cddp_fsdp_wrap(const cddp_fsdp_module *modules, size_t module_count,
                           const int64_t *numels, size_t parameter_count,
                           const cddp_fsdp_wrap_policy *policy, const cddp_allocator *allocator,
                           bool *is_unit, cddp_error *err)
{
    const cd_fsdp_sizes sizes = {numels, parameter_count};
    if (is_unit == NULL || (numels == NULL && parameter_count > 0))
        return cd_fail(err, CDDP_E_ARG, "cddp_fsdp_wrap: %s is NULL",
                       is_unit == NULL ? "is_unit" : "numels");
    CD_TRY(CD_SIZED_CHECK(policy, cddp_fsdp_wrap_policy, word_count, err));
    CD_TRY(check_modules(modules, module_count, parameter_count, err));
    return CD_PASS(cd_fsdp_tree_wrap(&(cd_fsdp_tree){modules, module_count}, &sizes, policy,
                                     allocator, is_unit, err));
}
