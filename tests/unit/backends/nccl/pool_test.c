/* SPDX-License-Identifier: Apache-2.0 */
/* The caching pool: size classes, reuse, what happens when its source is empty. */
#include "backends/nccl/pool.h"
#include "core/base/alloc.h"
#include "tests/support/test.h"

typedef struct fake_source {
    uint64_t live, asked, left; /* left: how many more it has */
    size_t bytes[64];
    uint64_t marks[64]; /* memory that blocks point to */
} fake_source;

static bool source_take(void *context, size_t bytes, void **block)
{
    fake_source *s = context;
    s->asked++;
    if (s->left == 0) return false;
    for (size_t i = 0; i < 64; i++) {
        if (s->bytes[i] != 0) continue;
        s->bytes[i] = bytes;
        s->left--;
        s->live++;
        *block = &s->marks[i];
        return true;
    }
    return false;
}

static void source_give(void *context, void *block)
{
    fake_source *s = context;
    size_t i = (size_t)((uint64_t *)block - s->marks);
    assert_int_not_equal(s->bytes[i], 0);
    s->bytes[i] = 0;
    s->left++;
    s->live--;
}

static void pool_make(cd_pool *pool, fake_source *source)
{
    cd_pool_init(pool, &(cd_pool_source){source, source_take, source_give});
}

TEST(pool, a_class_holds_what_it_is_for_and_wastes_at_most_an_eighth)
{
    uint32_t before = 0;
    for (size_t bytes = 1; bytes < (size_t)1 << 40; bytes += bytes / 37 + 1) {
        uint32_t c = cd_pool_class(bytes);
        cd_test_row("%zu bytes: class %u of %zu", bytes, c, cd_pool_class_bytes(c));
        assert_true(cd_pool_class_bytes(c) >= bytes);
        assert_true(cd_pool_class_bytes(c) - bytes <= bytes / 8 + 511);
        assert_true(c == 0 || cd_pool_class_bytes(c - 1) < bytes);
        assert_true(c >= before && c < CD_POOL_CLASSES);
        assert_int_equal(cd_pool_class(cd_pool_class_bytes(c)), c);
        before = c;
    }
}

TEST(pool, what_was_given_back_is_handed_out_again_without_asking_the_source)
{
    fake_source source = {.left = 8};
    cd_pool pool;
    cddp_error err = CDDP_ERROR_INIT;
    void *a = NULL, *b = NULL, *c = NULL;
    pool_make(&pool, &source);
    assert_ok(cd_pool_take(&pool, 5000, &a, &err), &err);
    assert_ok(cd_pool_take(&pool, 5000, &b, &err), &err);
    assert_ptr_not_equal(a, b);
    cd_pool_give(&pool, 5000, a);
    assert_ok(cd_pool_take(&pool, 5100, &c, &err), &err); /* the same class */
    assert_ptr_equal(a, c);
    assert_int_equal(source.asked, 2);
    cd_pool_give(&pool, 5100, c);
    cd_pool_give(&pool, 5000, b);
    assert_int_equal(source.live, 2);
    cd_pool_fini(&pool);
    assert_int_equal(source.live, 0);
}

TEST(pool, an_empty_source_gets_everything_cached_back_before_a_request_fails)
{
    fake_source source = {.left = 1};
    cd_pool pool;
    cddp_error err = CDDP_ERROR_INIT;
    void *a = NULL, *b = NULL;
    pool_make(&pool, &source);
    assert_ok(cd_pool_take(&pool, 1 << 20, &a, &err), &err);
    cd_pool_give(&pool, 1 << 20, a);
    assert_ok(cd_pool_take(&pool, 100, &b, &err), &err); /* takes the place of the cached one */
    assert_int_equal(source.live, 1);
    assert_fails(cd_pool_take(&pool, 100, &a, &err), CDDP_E_NOMEM, &err, "512");
    assert_fails(cd_pool_take(&pool, SIZE_MAX / 2, &a, &err), CDDP_E_NOMEM, &err,
                 "more than any device has");
    cd_pool_give(&pool, 100, b);
    cd_pool_fini(&pool);
}

TEST_MAIN()
