/* SPDX-License-Identifier: Apache-2.0 */
/* What a table must be like to be adopted: a hook from outside the tree, with one thing wrong at a
** time. */
#include "cddp/registry.h"
#include "tests/support/test.h"

#include <string.h>

static cddp_status run_nothing(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                               cddp_future *future, cddp_error *err)
{
    (void)self, (void)group, (void)err;
    future->result = bucket->buffer;
    return CDDP_OK;
}

static const cddp_hook good = {.size = sizeof good,
                               .abi = CDDP_HOOK_ABI,
                               .name = "mine",
                               .flags = CDDP_HOOK_LOSSY,
                               .run = run_nothing};

static cddp_status add(cddp_hook hook, cddp_error *err)
{
    const cddp_hook *const hooks[] = {&hook, NULL};
    const cddp_plugin plugin = {.size = sizeof plugin,
                                .abi = CDDP_PLUGIN_ABI,
                                .name = "mine",
                                .version = "1",
                                .hooks = hooks};
    cddp_registry *registry = NULL;
    assert_ok(cddp_registry_create(NULL, &registry, err), err);
    const cddp_status status = cddp_registry_add_plugin(registry, &plugin, err);
    assert_true(status != CDDP_OK || cddp_registry_find_hook(registry, "mine") != NULL);
    cddp_registry_destroy(registry);
    return status;
}

/* Version 1 stated laws without their size, of which nothing can be read. */
TEST(registry, a_hook_of_another_version_of_the_port_is_refused_by_name)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(add(good, &err), &err);
    cddp_hook hook = good;
    hook.abi = 1;
    assert_fails(add(hook, &err), CDDP_E_UNSUPPORTED, &err,
                 "hook 'mine' has ABI version 1; this program speaks version 2");
    hook.abi = CDDP_HOOK_ABI + 1;
    assert_fails(add(hook, &err), CDDP_E_UNSUPPORTED, &err, "hook 'mine' has ABI version 3");
}

TEST(registry, a_hook_table_that_ends_early_or_lacks_its_function_is_refused_by_name)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_hook hook = good;
    hook.size = 8;
    assert_fails(add(hook, &err), CDDP_E_UNSUPPORTED, &err, "hook 'mine' is a table of 8 bytes");
    hook = good;
    hook.run = NULL;
    assert_fails(add(hook, &err), CDDP_E_ARG, &err, "hook 'mine' lacks the required function run");
    hook = good;
    hook.name = "";
    assert_fails(add(hook, &err), CDDP_E_ARG, &err, "a hook without a name");
    hook = good;
    hook.name = "topk";
    assert_fails(add(hook, &err), CDDP_E_ARG, &err, "topk");
}

/* Its writer knew fewer slots: the others are as if they were not filled in. */
TEST(registry, a_hook_of_an_older_header_of_the_same_version_is_adopted)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_hook hook = good;
    hook.size = offsetof(cddp_hook, promise);
    assert_ok(add(hook, &err), &err);
}

TEST(registry, what_is_not_there_is_refused_in_words)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_registry *registry = NULL;
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    assert_fails(cddp_registry_add_backend(registry, NULL, &err), CDDP_E_ARG, &err,
                 "the backend is NULL");
    assert_fails(cddp_registry_add_hook(registry, NULL, &err), CDDP_E_ARG, &err,
                 "the hook is NULL");
    assert_fails(cddp_registry_add_check(registry, NULL, &err), CDDP_E_ARG, &err,
                 "the check is NULL");
    assert_fails(cddp_registry_add_plugin(registry, NULL, &err), CDDP_E_ARG, &err,
                 "the plugin is NULL");
    assert_fails(cddp_registry_add_hook(NULL, &good, &err), CDDP_E_ARG, &err,
                 "the registry is NULL");
    cddp_registry_destroy(registry);
}

TEST_MAIN()
