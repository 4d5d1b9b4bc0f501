/* SPDX-License-Identifier: Apache-2.0 */
/* One corruption per function; each sees every event of the fixture on its way into the trace. */
#include "tests/mutants/mutations.h"

#include <string.h>

#include "cddp/backend.h"
#include "core/base/hash.h"
#include "core/trace/codes.h"
#include "core/trace/setting.h"
#include "core/trace/tracer.h"

#define ANY (-1)

static bool at(const cddp_event *e, uint16_t kind, int64_t rank, int64_t step)
{
    return e->kind == kind && (rank == ANY || e->rank == (uint32_t)rank) &&
           (step == ANY || e->step == (uint32_t)step);
}

static bool is_value(const cddp_event *e, const int64_t rank_step_what_moment_id[5])
{
    const int64_t *k = rank_step_what_moment_id;
    const cddp_event_value *v = &e->as.value;
    return at(e, CDDP_EV_value, k[0], k[1]) && v->what == k[2] && v->moment == k[3] &&
           v->id == k[4];
}
#define IS_VALUE(e, ...) is_value((e), (const int64_t[5]){__VA_ARGS__})

static void corrupt(int64_t *digest) { *digest ^= 0x5555; }

/* The oracle's comparison of a parameter fails. */
static void fail_comparison(cddp_event *e, cd_shape shape, const char *words)
{
    e->as.compare.bad = 1;
    e->as.compare.element = 0;
    e->as.compare.shape = shape;
    e->as.compare.expected = cd_f64_bits(3);
    e->as.compare.actual = cd_f64_bits(1);
    e->text = words;
}

static bool mutate_trace_launches_unsaid(cddp_event *e)
{
    return e->kind != CDDP_EV_bucket_launch || e->rank != 1;
}

static bool mutate_trace_results_unsaid(cddp_event *e) { return e->kind != CDDP_EV_bucket_done; }

static bool mutate_trace_ends_unsaid(cddp_event *e) { return e->kind != CDDP_EV_collective_done; }

static bool mutate_trace_touches_unsaid(cddp_event *e)
{
    return e->kind != CDDP_EV_optimizer_touch || e->rank != 2;
}

static bool mutate_trace_windows_unsaid(cddp_event *e)
{
    return e->kind != CDDP_EV_no_sync || e->rank != 1;
}

static bool mutate_trace_saves_unsaid(cddp_event *e)
{
    return e->kind != CDDP_EV_checkpoint || e->rank != 2 || e->as.checkpoint.loaded;
}

static bool mutate_trace_loads_unsaid(cddp_event *e)
{
    return e->kind != CDDP_EV_checkpoint || !e->as.checkpoint.loaded;
}

static bool mutate_trace_regions_unsaid(cddp_event *e)
{
    return e->kind != CDDP_EV_memory || e->rank != 0;
}

static bool mutate_trace_stops_unsaid(cddp_event *e)
{
    return e->kind != CDDP_EV_stop || e->rank != 1;
}

/* A join ends where the last training step was over, and says nothing of the buffers. */
static bool mutate_trace_buffers_unsaid(cddp_event *e)
{
    if (e->kind != CDDP_EV_stop || e->rank != 2 || !e->as.stop.stop) return true;
    e->kind = CDDP_EV_join_end;
    e->as.join_end = (cddp_event_join_end){.last_joiner = 1};
    return true;
}

/* The rank has no units, whose pieces have no such digest. */
static bool mutate_trace_consumed_unsaid(cddp_event *e)
{
    const bool is_of_unit = e->kind == CDDP_EV_unit || e->kind == CDDP_EV_unit_pass ||
                            e->kind == CDDP_EV_unit_read || e->kind == CDDP_EV_unit_storage;
    if (is_of_unit && e->rank == 1) return false;
    if (e->kind == CDDP_EV_optimizer_touch && e->rank == 1) e->as.optimizer_touch.gradient = 0;
    return true;
}

static bool mutate_init_other_start(cddp_event *e)
{
    if (IS_VALUE(e, 1, ANY, 0, CDDP_MOMENT_AFTER_INIT, FC1_WEIGHT)) corrupt(&e->as.value.digest);
    return true;
}

static bool is_option(const cddp_event *e, cddp_key key)
{
    return e->kind == CDDP_EV_option && e->as.option.key == cd_setting_id(key);
}

/* Left alone by the reducer, but summed later: equal it must be all the same. */
static bool mutate_init_delayed_start(cddp_event *e)
{
    if (is_option(e, CDDP_KEY_ddp_delay_all_reduce_named_params)) {
        e->text = "head.*";
        e->as.option.items = 1;
    }
    if (at(e, CDDP_EV_param, ANY, ANY) && e->as.param.ordinal == HEAD_WEIGHT)
        e->as.param.ignored = 1;
    if (IS_VALUE(e, 1, ANY, 0, CDDP_MOMENT_AFTER_INIT, HEAD_WEIGHT)) corrupt(&e->as.value.digest);
    return true;
}

static bool mutate_init_other_name(cddp_event *e)
{
    if (!at(e, CDDP_EV_param, 2, ANY) || e->as.param.ordinal != FC2_BIAS) return true;
    corrupt(&e->as.param.name);
    e->text = "shift";
    return true;
}

/* Every rank agrees, on the wrong one. */
static bool mutate_init_other_root(cddp_event *e)
{
    if (e->kind == CDDP_EV_collective_post && e->as.collective_post.numel == 19)
        e->as.collective_post.root = 1;
    return true;
}

static bool mutate_group_wrong_divisor(cddp_event *e)
{
    if (at(e, CDDP_EV_mark_ready, 2, ANY) && e->as.mark_ready.param == FC2_WEIGHT)
        e->as.mark_ready.factor = 2;
    return true;
}

static bool mutate_group_other_members(cddp_event *e)
{
    if (at(e, CDDP_EV_group, 1, ANY)) corrupt(&e->as.group.members_digest);
    return true;
}

static bool is_key(const cddp_event *e, uint32_t rank, const char *key)
{
    return at(e, CDDP_EV_store_key, rank, ANY) && strcmp(e->text, key) == 0;
}

static bool mutate_group_stale_key(cddp_event *e)
{
    if (is_key(e, 2, "1/world/1")) e->as.store_key.generation = 2;
    return true;
}

static bool mutate_group_key_of_two(cddp_event *e)
{
    if (is_key(e, 2, "1/world/1")) e->as.store_key.written = 1, e->as.store_key.value = 102;
    return true;
}

static bool mutate_seed_shared_differs(cddp_event *e)
{
    if (at(e, CDDP_EV_seed, 1, ANY) && e->as.seed.stream == 2) corrupt(&e->as.seed.state);
    return true;
}

static bool mutate_seed_distinct_equal(cddp_event *e)
{
    /* The digest that the fixture gives rank 1 at this place. */
    uint64_t h =
        cd_hash_mix(cd_hash_mix(cd_hash_mix(cd_hash_text("dropout"), e->step), e->micro_step), 1);
    if (at(e, CDDP_EV_seed, 2, ANY) && e->as.seed.stream == 1) e->as.seed.state = (int64_t)h;
    return true;
}

static bool mutate_seed_stands_still(cddp_event *e)
{
    if (at(e, CDDP_EV_seed, 0, ANY) && e->as.seed.stream == 1) e->as.seed.state = 99;
    return true;
}

static bool mutate_data_padded(cddp_event *e)
{
    if (at(e, CDDP_EV_sample, 2, 1) && e->micro_step == 1 && e->as.sample.sample % 2 == 0)
        e->as.sample.sample = 0;
    return true;
}

static bool mutate_resume_hook_state_lost(cddp_event *e)
{
    if (IS_VALUE(e, 1, ANY, 4, CDDP_MOMENT_RESUME, 0)) e->as.value.digest = 0;
    return true;
}

static bool mutate_meta_no_sync_ignored(cddp_event *e)
{
    if (at(e, CDDP_EV_forward_begin, 1, 1) && e->micro_step == 0) e->as.forward_begin.sync = 1;
    return true;
}

static bool mutate_meta_hook_does_not_compress(cddp_event *e)
{
    if (e->kind == CDDP_EV_hook_done) e->as.hook_done.wire_bytes *= 2;
    return e->kind != CDDP_EV_bucket_law; /* as where the judge does not know the hook */
}

static bool mutate_meta_wrapper_gathers_wide(cddp_event *e)
{
    if (e->kind == CDDP_EV_collective_post && e->as.collective_post.bucket >= 0) {
        e->as.collective_post.op = CDDP_OP_ALLGATHER;
        e->as.collective_post.dtype = CDDP_F32;
    }
    return true;
}

/* Without a hook the bucket itself is what travels; the fixture's digests are of what its hook made
** of it. */
static bool mutate_meta_hook_named_and_never_called(cddp_event *e)
{
    if (e->kind == CDDP_EV_collective_post && e->as.collective_post.bucket >= 0)
        e->as.collective_post.digest = 0;
    if (e->kind == CDDP_EV_collective_done) e->as.collective_done.digest = 0;
    return e->kind != CDDP_EV_hook_call && e->kind != CDDP_EV_hook_done;
}

/* The same, with the hook named by another key. */
static bool name_by(cddp_event *e, cddp_key key, const char *text)
{
    if (is_option(e, CDDP_KEY_hook_name)) {
        e->text = text;
        e->as.option.key = cd_setting_id(key);
    }
    return mutate_meta_hook_named_and_never_called(e);
}

static bool mutate_meta_comm_hook_never_called(cddp_event *e)
{
    return name_by(e, CDDP_KEY_ddp_comm_hook, "narrow:k=2");
}

static bool mutate_meta_word_never_called(cddp_event *e)
{
    return name_by(e, CDDP_KEY_hook_comm_hook, "fp16");
}

static bool mutate_meta_no_used_map(cddp_event *e)
{
    return e->kind != CDDP_EV_used_local && e->kind != CDDP_EV_used_global;
}

/* Another option takes the place of one that the fixture has no use for, and nobody uses what is in
** bucket 0. */
static bool mutate_meta_unused_bucket_launched(cddp_event *e)
{
    if (is_option(e, CDDP_KEY_ddp_static_graph)) {
        e->as.option.key = cd_setting_id(CDDP_KEY_ddp_skip_all_reduce_unused_params);
        e->as.option.value = 1;
    }
    if (e->kind == CDDP_EV_mark_ready && e->as.mark_ready.bucket == 0) e->as.mark_ready.unused = 1;
    return true;
}

static bool mutate_meta_ignored_and_wrapped(cddp_event *e)
{
    if (e->kind == CDDP_EV_buffer) e->as.buffer.ignored = 0;
    return true;
}

static bool mutate_meta_left_out_unasked(cddp_event *e)
{
    if (at(e, CDDP_EV_param, ANY, ANY) && e->as.param.ordinal == FC1_BIAS) e->as.param.ignored = 1;
    return true;
}

static bool mutate_meta_evaluation_synchronises(cddp_event *e)
{
    if (at(e, CDDP_EV_forward_begin, 2, 1) && e->micro_step == 1) e->as.forward_begin.grad_mode = 0;
    return true;
}

static bool mutate_life_never_awaited(cddp_event *e)
{
    const bool is_last = at(e, CDDP_EV_collective_done, 1, FIXTURE_STEPS - 1) &&
                         e->as.collective_done.sequence == 18;
    return !is_last && !(at(e, CDDP_EV_collective_wait, 1, FIXTURE_STEPS - 1) &&
                         e->as.collective_wait.sequence == 18);
}

static bool mutate_life_works_left(cddp_event *e)
{
    if (at(e, CDDP_EV_group_close, 2, ANY)) e->as.group_close.outstanding = 2;
    return true;
}

static bool mutate_life_used_after_release(cddp_event *e)
{
    if (at(e, CDDP_EV_memory, 1, ANY)) e->as.memory.released = 1;
    return true;
}

static bool mutate_life_store_gone(cddp_event *e)
{
    if (at(e, CDDP_EV_store_wait, 2, ANY) && e->as.store_wait.peer < 0)
        e->time_ns = UINT64_C(1) << 60;
    return true;
}

static bool mutate_hb_no_wait(cddp_event *e)
{
    return !(at(e, CDDP_EV_order, 0, ANY) && e->as.order.waits);
}

static bool mutate_hb_late_write(cddp_event *e)
{
    return !(at(e, CDDP_EV_bucket_done, 1, 0) && e->as.bucket_done.bucket == 0);
}

static bool mutate_alias_wrong_slice(cddp_event *e)
{
    if (at(e, CDDP_EV_grad_final, 1, 1) && e->as.grad_final.param == FC1_BIAS)
        e->as.grad_final.address++;
    return true;
}

static bool mutate_alias_no_view(cddp_event *e)
{
    if (at(e, CDDP_EV_grad_final, 2, 1) && e->as.grad_final.param == FC2_WEIGHT)
        e->as.grad_final.is_view = 0;
    return true;
}

static bool mutate_content_other_content(cddp_event *e)
{
    if (at(e, CDDP_EV_bucket_launch, 1, 1) && e->as.bucket_launch.bucket == 1)
        corrupt(&e->as.bucket_launch.content);
    return true;
}

static bool mutate_content_other_dtype(cddp_event *e)
{
    const cddp_event_bucket_layout *l = &e->as.bucket_layout;
    if (at(e, CDDP_EV_bucket_layout, 2, ANY) && l->bucket == 1 && l->slot == 0)
        e->as.bucket_layout.dtype = CDDP_BF16;
    return true;
}

static bool mutate_content_carried_by_none(cddp_event *e)
{
    if (at(e, CDDP_EV_collective_post, ANY, 1) && e->as.collective_post.bucket == 0)
        e->as.collective_post.bucket = -1;
    return mutate_meta_hook_named_and_never_called(e);
}

static bool mutate_content_packed_otherwise(cddp_event *e)
{
    if (at(e, CDDP_EV_mark_ready, 1, 2) && e->as.mark_ready.param == FC2_BIAS)
        e->as.mark_ready.digest = 5;
    return true;
}

static bool mutate_content_written_otherwise(cddp_event *e)
{
    if (at(e, CDDP_EV_grad_final, 2, 1) && e->as.grad_final.param == FC1_WEIGHT)
        e->as.grad_final.slice = e->as.grad_final.digest ^ 0x5555;
    return true;
}

static bool mutate_content_posted_otherwise(cddp_event *e)
{
    const bool is_kept = mutate_meta_hook_named_and_never_called(e);
    if (at(e, CDDP_EV_collective_post, 2, 1) && e->as.collective_post.bucket == 1)
        e->as.collective_post.digest = 5;
    if (at(e, CDDP_EV_collective_done, 2, 1) && e->as.collective_done.sequence == 10)
        e->as.collective_done.input = e->as.collective_done.start = 5;
    return is_kept;
}

static bool mutate_content_result_replaced(cddp_event *e)
{
    const bool is_kept = mutate_meta_hook_named_and_never_called(e);
    if (at(e, CDDP_EV_collective_done, ANY, 1) && e->as.collective_done.sequence == 10)
        e->as.collective_done.digest = 7;
    return is_kept;
}

static bool mutate_content_not_a_bucket(cddp_event *e)
{
    if (at(e, CDDP_EV_collective_post, 2, 1) && e->as.collective_post.bucket == 1)
        e->as.collective_post.bucket = -1;
    return true;
}

static bool mutate_order_other_count(cddp_event *e)
{
    if (at(e, CDDP_EV_collective_post, 2, 0) && e->as.collective_post.sequence == 5)
        e->as.collective_post.numel = 4;
    return true;
}

static bool mutate_order_other_share(cddp_event *e)
{
    if (at(e, CDDP_EV_collective_share, 2, 0) && e->as.collective_share.peer == 0)
        e->as.collective_share.taken++;
    return true;
}

/* Rank 2 leaves bucket 0 of step 0 out: that of step 1 takes its place. */
static bool mutate_order_pairs_two_steps(cddp_event *e)
{
    if (at(e, CDDP_EV_collective_post, 2, 0) && e->as.collective_post.bucket == 0) e->step = 1;
    return true;
}

static bool mutate_order_other_reduction(cddp_event *e)
{
    if (at(e, CDDP_EV_collective_post, 2, 0) && e->as.collective_post.sequence == 5)
        e->as.collective_post.reduce_op = CDDP_RED_MAX;
    return true;
}

/* The last operation of the fixture is the 16th. */
static bool mutate_order_posts_less(cddp_event *e)
{
    bool is_last = (e->kind == CDDP_EV_collective_post && e->as.collective_post.sequence == 18) ||
                   (e->kind == CDDP_EV_collective_wait && e->as.collective_wait.sequence == 18) ||
                   (e->kind == CDDP_EV_collective_done && e->as.collective_done.sequence == 18);
    return !(is_last && e->rank == 0);
}

static bool mutate_bufeq_reassigned(cddp_event *e)
{
    if (IS_VALUE(e, 1, 1, 1, CDDP_MOMENT_FORWARD, 0) && e->micro_step == 0)
        corrupt(&e->as.value.digest);
    return true;
}

/* Every rank agrees, on the wrong one. */
static bool mutate_bufeq_wrong_root(cddp_event *e)
{
    bool is_broadcast =
        e->kind == CDDP_EV_collective_post && e->as.collective_post.op == CDDP_OP_BROADCAST;
    if (is_broadcast && e->step == 1) e->as.collective_post.root = 1;
    return true;
}

/* Everybody leaves it out, so that nobody waits. */
static bool mutate_bufeq_left_out(cddp_event *e) { return !at(e, CDDP_EV_buffer_sync, ANY, 1); }

static bool mutate_bufeq_out_of_turn(cddp_event *e)
{
    if (at(e, CDDP_EV_forward_end, ANY, 0)) e->as.forward_end.prepared = 0;
    return true;
}

static bool mutate_bufeq_wrong_authority(cddp_event *e)
{
    if (e->kind == CDDP_EV_buffer_sync && e->as.buffer_sync.location == 0)
        e->as.buffer_sync.authority = 1;
    if (e->kind == CDDP_EV_collective_post && e->as.collective_post.op == CDDP_OP_BROADCAST &&
        e->as.collective_post.numel == 2)
        e->as.collective_post.root = 1;
    return true;
}

static bool mutate_used_forgets_micro_step(cddp_event *e)
{
    if (at(e, CDDP_EV_used_local, 1, 1) && e->as.used_local.param == FC1_BIAS)
        e->as.used_local.used = 0;
    return true;
}

static bool mutate_used_claims_undefined(cddp_event *e)
{
    if (at(e, CDDP_EV_used_local, 2, 0) && e->as.used_local.param == FC1_BIAS)
        e->as.used_local.used = 1;
    return true;
}

static bool mutate_used_sum_is_wrong(cddp_event *e)
{
    if (e->kind == CDDP_EV_used_global && e->as.used_global.param == FC1_BIAS)
        e->as.used_global.used = 3;
    return true;
}

static bool mutate_used_never_reduced(cddp_event *e) { return e->kind != CDDP_EV_used_global; }

static bool mutate_used_writes_unused(cddp_event *e)
{
    if (!at(e, CDDP_EV_grad_final, 1, 1) || e->as.grad_final.param != HEAD_WEIGHT) return true;
    e->as.grad_final.globally_unused = 0;
    e->as.grad_final.presence = CDDP_PRESENCE_VALUE;
    e->as.grad_final.is_view = 1;
    e->as.grad_final.address = 8;
    return true;
}

static bool mutate_dtype_wide_wire(cddp_event *e)
{
    if (e->kind == CDDP_EV_collective_post && e->as.collective_post.bucket == 0)
        e->as.collective_post.dtype = CDDP_F32;
    return true;
}

static bool mutate_dtype_accumulates_narrow(cddp_event *e)
{
    if (at(e, CDDP_EV_grad_local, 2, 0) && e->micro_step == 0 &&
        e->as.grad_local.param == FC1_WEIGHT)
        e->as.grad_local.dtype = CDDP_BF16;
    return true;
}

static bool mutate_hook_wrong_last(cddp_event *e)
{
    if (at(e, CDDP_EV_hook_call, 1, 1) && e->as.hook_call.bucket == 0) e->as.hook_call.is_last = 1;
    return true;
}

static bool mutate_hook_breaks_law(cddp_event *e)
{
    if (at(e, CDDP_EV_hook_law, 2, 2) && e->as.hook_law.bucket == 1 && !e->as.hook_law.over_ranks)
        e->as.hook_law.left = cd_f64_bits(1.01);
    return true;
}

static bool mutate_hook_breaks_joint_law(cddp_event *e)
{
    if (at(e, CDDP_EV_hook_law, 1, 2) && e->as.hook_law.bucket == 1 && e->as.hook_law.over_ranks)
        e->as.hook_law.left = cd_f64_bits(17.01);
    return true;
}

static bool mutate_hook_leaves_out_a_law(cddp_event *e)
{
    return !(at(e, CDDP_EV_hook_law, 2, 2) && e->as.hook_law.bucket == 1 &&
             !e->as.hook_law.over_ranks);
}

/* Nobody knows how many laws a plugin's hook states. */
static bool mutate_hook_falls_silent(cddp_event *e)
{
    if (e->kind == CDDP_EV_owed && e->text != NULL && strcmp(e->text, CD_STATED_LAWS) == 0)
        return false;
    return !(at(e, CDDP_EV_hook_law, 2, ANY) && e->step > 0 && e->as.hook_law.bucket == 1 &&
             !e->as.hook_law.over_ranks);
}

static bool mutate_hook_leaves_out_a_joint_law(cddp_event *e)
{
    return !(at(e, CDDP_EV_hook_law, 1, 1) && e->as.hook_law.bucket == 0 &&
             e->as.hook_law.over_ranks);
}

static bool mutate_hook_result_differs(cddp_event *e)
{
    if (at(e, CDDP_EV_hook_done, 1, 1) && e->as.hook_done.bucket == 1)
        corrupt(&e->as.hook_done.digest);
    return true;
}

static bool mutate_hook_half_for_all(cddp_event *e)
{
    if (e->kind == CDDP_EV_bucket_sum && e->step == 1 && e->as.bucket_sum.bucket == 1)
        e->as.bucket_sum.got = cd_f64_bits(cd_f64_of(e->as.bucket_sum.got) / 2);
    return true;
}

static bool mutate_hook_half_for_one(cddp_event *e)
{
    if (at(e, CDDP_EV_bucket_sum, 2, 1) && e->as.bucket_sum.bucket == 0)
        e->as.bucket_sum.got = cd_f64_bits(cd_f64_of(e->as.bucket_sum.got) / 2);
    return true;
}

static bool mutate_hook_one_element_less(cddp_event *e)
{
    if (at(e, CDDP_EV_bucket_law, 1, 1) && e->as.bucket_law.bucket == 1)
        e->as.bucket_law.bytes += 2;
    return true;
}

/* The sum over the ranks follows from it, and is not reported. */
static bool mutate_hook_forgets_its_debt(cddp_event *e)
{
    if (at(e, CDDP_EV_bucket_law, 1, 1) && e->as.bucket_law.bucket == 1)
        corrupt(&e->as.bucket_law.posted);
    if (at(e, CDDP_EV_bucket_sum, 1, 1) && e->as.bucket_sum.bucket == 1)
        e->as.bucket_sum.given = cd_f64_bits(7);
    return true;
}

/* The law over all ranks is broken by it, and comes behind it. */
static bool mutate_hook_draws_otherwise(cddp_event *e)
{
    if (at(e, CDDP_EV_bucket_law, 1, 1) && e->as.bucket_law.bucket == 1)
        corrupt(&e->as.bucket_law.posted);
    if (at(e, CDDP_EV_hook_law, 1, 1) && e->as.hook_law.bucket == 1 && e->as.hook_law.over_ranks)
        e->as.hook_law.left = cd_f64_bits(13);
    return true;
}

static bool mutate_hook_other_hook(cddp_event *e)
{
    if (at(e, CDDP_EV_bucket_law, 2, 1)) e->text = "thin";
    return true;
}

static bool mutate_hook_gradient_halved(cddp_event *e)
{
    if (at(e, CDDP_EV_bucket_slice, 2, 1) && e->as.bucket_slice.param == 0 &&
        e->as.bucket_slice.left)
        corrupt(&e->as.bucket_slice.digest);
    return true;
}

static bool mutate_hook_slice_halved(cddp_event *e)
{
    if (at(e, CDDP_EV_bucket_slice, 1, 1) && e->as.bucket_slice.param == 0 &&
        !e->as.bucket_slice.left)
        corrupt(&e->as.bucket_slice.digest);
    return true;
}

/* All its laws are kept: only the zeros tell. */
static bool mutate_hook_joined_gives_more(cddp_event *e)
{
    if (at(e, CDDP_EV_bucket_launch, 2, 2) && e->as.bucket_launch.bucket == 1)
        e->as.bucket_launch.shadow = 1;
    if (at(e, CDDP_EV_bucket_shown, 2, 2) && e->as.bucket_shown.bucket == 1)
        e->as.bucket_shown.shadow = 1;
    return true;
}

/* Of bucket 1 in step 0: what its operation delivers, and what the hook makes of that. */
static bool replace_delivery(cddp_event *e, int64_t rank, int64_t delivered, int64_t made)
{
    static int64_t sequences[FIXTURE_RANKS];
    if (at(e, CDDP_EV_collective_post, rank, 0) && e->as.collective_post.bucket == 1)
        sequences[e->rank] = e->as.collective_post.sequence;
    if (at(e, CDDP_EV_collective_done, rank, 0) &&
        e->as.collective_done.sequence == sequences[e->rank])
        e->as.collective_done.digest = delivered;
    if (at(e, CDDP_EV_hook_done, rank, 0) && e->as.hook_done.bucket == 1)
        e->as.hook_done.digest = made;
    if (at(e, CDDP_EV_bucket_done, rank, 0) && e->as.bucket_done.bucket == 1)
        e->as.bucket_done.digest = made;
    if (at(e, CDDP_EV_bucket_sum, rank, 0) && e->as.bucket_sum.bucket == 1)
        e->as.bucket_sum.got = cd_f64_bits(cd_f64_of(e->as.bucket_sum.got) / 2);
    return true;
}

static bool mutate_hook_passes_on_what_came(cddp_event *e)
{
    return replace_delivery(e, ANY, 4711, 4711);
}

static bool mutate_coll_hook_passes_it_on(cddp_event *e)
{
    return replace_delivery(e, 2, 4711, 4712);
}

static bool mutate_range_overflow(cddp_event *e)
{
    if (at(e, CDDP_EV_grad_final, ANY, 1) && e->as.grad_final.param == FC2_WEIGHT)
        e->as.grad_final.nonfinite = 1;
    return true;
}

static bool mutate_range_loses_a_nan(cddp_event *e)
{
    if (at(e, CDDP_EV_grad_local, 2, 1) && e->micro_step == 0 &&
        e->as.grad_local.param == FC1_WEIGHT)
        e->as.grad_local.nonfinite = 1;
    return true;
}

static bool mutate_range_steps_on_nan(cddp_event *e)
{
    if (at(e, CDDP_EV_grad_final, ANY, 1) && e->as.grad_final.param == FC1_WEIGHT)
        e->as.grad_final.nonfinite = 1;
    return mutate_range_loses_a_nan(e);
}

static bool mutate_coll_broadcast_corrupt(cddp_event *e)
{
    if (at(e, CDDP_EV_collective_done, 2, 0) && e->as.collective_done.sequence == 1)
        corrupt(&e->as.collective_done.digest);
    return true;
}

static bool mutate_hb_written_after_the_post(cddp_event *e)
{
    if (at(e, CDDP_EV_collective_done, 2, 1) && e->as.collective_done.sequence == 9) {
        corrupt(&e->as.collective_done.start);
        e->as.collective_done.input = 0; /* in place */
    }
    return true;
}

static bool mutate_hb_input_is_scratch(cddp_event *e)
{
    if (at(e, CDDP_EV_collective_done, 1, 1) && e->as.collective_done.sequence == 9)
        corrupt(&e->as.collective_done.input);
    return true;
}

static bool mutate_coll_own_result_wrong(cddp_event *e)
{
    if (at(e, CDDP_EV_compare, 2, 1) && e->as.compare.link == CD_LINK_COLLECTIVE) {
        e->as.compare.bad = 1;
        e->as.compare.element = 0;
        e->as.compare.shape = CD_SHAPE_UNEXPLAINED;
        e->as.compare.expected = cd_f64_bits(6);
        e->as.compare.actual = cd_f64_bits(5);
        e->text = "allreduce sum of group 'world': not what its members gave";
    }
    return true;
}

static bool mutate_coll_sum_a_unit_off(cddp_event *e)
{
    if (at(e, CDDP_EV_compare, ANY, 1) && e->as.compare.link == CD_LINK_SUM) {
        e->as.compare.bad = 1;
        e->as.compare.element = 3;
        e->as.compare.shape = CD_SHAPE_UNEXPLAINED;
        e->as.compare.expected = cd_f64_bits(1);
        e->as.compare.actual = cd_f64_bits(1.0078125);
        e->text = "allreduce sum in bf16: not the sum of what its members posted";
    }
    return true;
}

static bool mutate_det_other_bits(cddp_event *e)
{
    if (e->kind == CDDP_EV_collective_done && e->as.collective_done.sequence == 18)
        corrupt(&e->as.collective_done.digest);
    return true;
}

static bool mutate_once_not_reduced(cddp_event *e)
{
    return !(at(e, CDDP_EV_grad_final, ANY, 1) && e->as.grad_final.param == FC2_WEIGHT);
}

static bool mutate_once_ready_twice(cddp_event *e)
{
    if (at(e, CDDP_EV_mark_ready, 0, 1) && e->as.mark_ready.param == HEAD_WEIGHT)
        e->as.mark_ready.param = FC2_BIAS;
    return true;
}

static bool mutate_once_accumulator_resets(cddp_event *e)
{
    if (at(e, CDDP_EV_grad_local, 1, 1) && e->micro_step == 1 &&
        e->as.grad_local.param == FC1_WEIGHT)
        e->as.grad_local.contributions = 1;
    return true;
}

static bool mutate_once_contribution_missing(cddp_event *e)
{
    if (at(e, CDDP_EV_compare, ANY, 1) && e->as.compare.link == CD_LINK_MATHEMATICS &&
        e->as.compare.param <= FC1_BIAS)
        fail_comparison(e, CD_SHAPE_MISSING, "missing micro-step 0 of all ranks");
    return true;
}

static bool mutate_none_touches_absent(cddp_event *e)
{
    if (at(e, CDDP_EV_optimizer_touch, 1, 1) && e->as.optimizer_touch.param == HEAD_WEIGHT)
        e->as.optimizer_touch.touched = 1;
    return true;
}

static bool mutate_none_presence_differs(cddp_event *e)
{
    if (at(e, CDDP_EV_compare, 0, 1) && e->as.compare.link == CD_LINK_PRESENCE &&
        e->as.compare.param == HEAD_WEIGHT)
        fail_comparison(e, CD_SHAPE_PRESENCE, "present, although no rank used it");
    return true;
}

static bool mutate_scale_divided_twice(cddp_event *e)
{
    if (e->kind != CDDP_EV_compare || e->as.compare.link > CD_LINK_REDUCTION) return true;
    fail_comparison(e, CD_SHAPE_RATIO, "ratio 1/3 on every element: divided twice");
    e->as.compare.ratio = cd_f64_bits(1.0 / 3);
    return true;
}

static bool mutate_ref_not_updated(cddp_event *e)
{
    if (at(e, CDDP_EV_compare, 1, 1) && e->as.compare.link == CD_LINK_UPDATE &&
        e->as.compare.param == FC1_WEIGHT)
        fail_comparison(e, CD_SHAPE_STALE, "the parameter was not updated");
    return true;
}

/* The average of fc1.weight is wrong on all ranks. Each says what it had to pack. */
static bool fail_average(cddp_event *e, cd_shape shape, const char *words)
{
    static int64_t packed[FIXTURE_RANKS];
    if (at(e, CDDP_EV_mark_ready, ANY, 1) && e->as.mark_ready.param == FC1_WEIGHT &&
        e->rank < FIXTURE_RANKS)
        packed[e->rank] = e->as.mark_ready.digest;
    if (!at(e, CDDP_EV_compare, ANY, 1) || e->as.compare.param != FC1_WEIGHT) return false;
    if (e->as.compare.link == CD_LINK_REDUCTION) fail_comparison(e, shape, words);
    if (e->as.compare.link != CD_LINK_PRECISION) return false;
    e->kind = CDDP_EV_contribution;
    memset(&e->as, 0, sizeof e->as);
    e->as.contribution.param = FC1_WEIGHT;
    e->as.contribution.start = 11;
    e->as.contribution.divided = packed[e->rank];
    e->as.contribution.dtype = CDDP_F32;
    e->as.contribution.source = -1;
    return true;
}

static bool mutate_scale_packs_less(cddp_event *e)
{
    if (fail_average(e, CD_SHAPE_RATIO, "rank 2 counts 2/3") && e->rank == 2)
        corrupt(&e->as.contribution.divided);
    return true;
}

static bool mutate_once_packs_twice(cddp_event *e)
{
    if (fail_average(e, CD_SHAPE_DOUBLED, "counted twice: the contribution of rank 1") &&
        e->rank == 1)
        corrupt(&e->as.contribution.divided);
    return true;
}

/* Rank 1 began the step from other values: its average and the others' cannot be the same. */
static bool mutate_ref_starts_apart(cddp_event *e)
{
    if (fail_average(e, CD_SHAPE_UNEXPLAINED, "7 of 7 elements differ") && e->rank == 1)
        corrupt(&e->as.contribution.start);
    return true;
}

static bool mutate_gradeq_one_differs(cddp_event *e)
{
    if (at(e, CDDP_EV_grad_final, 2, 1) && e->as.grad_final.param == FC2_BIAS) {
        corrupt(&e->as.grad_final.digest);
        e->as.grad_final.slice = 0; /* its dtype is another one */
    }
    return e->kind != CDDP_EV_bucket_slice; /* as on a run without a hook */
}

static bool mutate_step_other_scale(cddp_event *e)
{
    if (at(e, CDDP_EV_optimizer_step, 1, ANY)) e->as.optimizer_step.loss_scale = cd_f64_bits(2);
    return true;
}

static bool mutate_step_skips_alone(cddp_event *e)
{
    if (at(e, CDDP_EV_optimizer_step, 0, 2)) e->as.optimizer_step.skipped = 1;
    return true;
}

static bool mutate_step_keeps_gradients(cddp_event *e) { return !at(e, CDDP_EV_zero_grad, 1, 0); }

static bool mutate_step_own_norm(cddp_event *e)
{
    if (at(e, CDDP_EV_compare, 2, 1) && e->as.compare.link == CD_LINK_NORM) {
        e->as.compare.bad = 1;
        e->as.compare.element = 0;
        e->as.compare.shape = CD_SHAPE_OTHER;
        e->as.compare.expected = cd_f64_bits(2);
        e->as.compare.actual = cd_f64_bits(1);
        e->text = "norm: over the wrong group: of what rank 2 steps alone, and not of what all "
                  "ranks step";
    }
    return true;
}

/* From the update of step 1 to the begin of step 2, whose update is right again. */
static bool mutate_parameq_never_averaged(cddp_event *e)
{
    cddp_event_value *v = &e->as.value;
    if (!at(e, CDDP_EV_value, ANY, FIXTURE_STEPS - 1) || v->id != FC1_WEIGHT) return true;
    if (v->what == CDDP_WHAT_PARAMETER &&
        (v->moment == CDDP_MOMENT_AFTER_UPDATE || v->moment == CDDP_MOMENT_AFTER_AVERAGE ||
         v->moment == CDDP_MOMENT_AFTER_STEP || v->moment == CDDP_MOMENT_END))
        v->digest += e->rank;
    return true;
}

static bool mutate_parameq_drifts(cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    if (e->kind != CDDP_EV_value || e->rank != 1 || v->what != CDDP_WHAT_PARAMETER ||
        v->id != FC1_WEIGHT)
        return true;
    const bool is_after = v->moment == CDDP_MOMENT_AFTER_UPDATE ||
                          v->moment == CDDP_MOMENT_AFTER_STEP ||
                          v->moment == CDDP_MOMENT_CHECKPOINT || v->moment == CDDP_MOMENT_RESUME,
               is_next = v->moment == CDDP_MOMENT_BEGIN || v->moment == CDDP_MOMENT_BEFORE_STEP;
    if ((e->step == 1 && is_after) || (e->step == 2 && is_next)) corrupt(&e->as.value.digest);
    return true;
}

static bool mutate_data_changed_meanwhile(cddp_event *e)
{
    if (at(e, CDDP_EV_samples, 1, 1)) corrupt(&e->as.samples.ids);
    return true;
}

static bool mutate_shown_other_copy(cddp_event *e)
{
    if (at(e, CDDP_EV_shown, 1, 0)) corrupt(&e->as.shown.digest);
    return true;
}

static bool mutate_shown_other_moment(cddp_event *e)
{
    if (at(e, CDDP_EV_shown, 0, 0)) e->as.shown.moment = CDDP_MOMENT_BEGIN;
    return true;
}

static bool mutate_shown_other_places(cddp_event *e)
{
    if (at(e, CDDP_EV_bucket_shown, 2, 1) && e->as.bucket_shown.bucket == 1)
        corrupt(&e->as.bucket_shown.content);
    return true;
}

static bool mutate_shown_other_buckets(cddp_event *e)
{
    if (at(e, CDDP_EV_bucket_shown, 1, 1) && e->as.bucket_shown.bucket == 0) {
        e->as.bucket_shown.generation = -1;
        corrupt(&e->as.bucket_shown.content);
    }
    return true;
}

static bool mutate_shown_other_sum(cddp_event *e)
{
    if (at(e, CDDP_EV_hook_done, 0, 1) && e->as.hook_done.bucket == 0) {
        e->kind = CDDP_EV_mark;
        e->text = CD_TRACER_SHOWN_SUM;
        e->as.mark = (cddp_event_mark){.value = 7};
    }
    return true;
}

static bool mutate_shown_other_wire(cddp_event *e)
{
    if (at(e, CDDP_EV_bucket_shown, 0, 1) && e->as.bucket_shown.bucket == 0) {
        e->kind = CDDP_EV_misshown;
        e->text = "reduced.wire";
        e->as.misshown = (cddp_event_misshown){.id = -1, .expected = CDDP_F16, .actual = CDDP_F32};
    }
    return true;
}

static bool mutate_chain_moves_between_steps(cddp_event *e)
{
    if (IS_VALUE(e, 1, 1, 0, CDDP_MOMENT_BEGIN, FC1_WEIGHT)) corrupt(&e->as.value.digest);
    return true;
}

static bool mutate_chain_moves_in_backward(cddp_event *e)
{
    if (IS_VALUE(e, ANY, 1, 0, CDDP_MOMENT_BEFORE_STEP, FC2_BIAS)) corrupt(&e->as.value.digest);
    return true;
}

static bool mutate_chain_unscaled_otherwise(cddp_event *e)
{
    if (IS_VALUE(e, 0, 2, CDDP_WHAT_GRADIENT, CDDP_MOMENT_BEFORE_STEP, FC1_WEIGHT) ||
        (at(e, CDDP_EV_optimizer_touch, 0, 2) && e->as.optimizer_touch.param == FC1_WEIGHT)) {
        int64_t *digest =
            e->kind == CDDP_EV_value ? &e->as.value.digest : &e->as.optimizer_touch.gradient;
        corrupt(digest);
    }
    return true;
}

static bool mutate_chain_consumes_another(cddp_event *e)
{
    if (at(e, CDDP_EV_optimizer_touch, 2, 1) && e->as.optimizer_touch.param == FC2_WEIGHT)
        corrupt(&e->as.optimizer_touch.gradient);
    return true;
}

static bool mutate_chain_moves_before_the_end(cddp_event *e)
{
    if (IS_VALUE(e, 2, ANY, 0, CDDP_MOMENT_END, HEAD_WEIGHT)) corrupt(&e->as.value.digest);
    return true;
}

static bool mutate_chain_ignored_buffer_is_sent(cddp_event *e)
{
    if (IS_VALUE(e, 1, 1, CDDP_WHAT_BUFFER, CDDP_MOMENT_FORWARD, 1)) corrupt(&e->as.value.digest);
    return true;
}

static bool mutate_parameq_state_drifts(cddp_event *e)
{
    if (IS_VALUE(e, 2, 2, 3, CDDP_MOMENT_AFTER_STEP, FC2_BIAS)) corrupt(&e->as.value.digest);
    return true;
}

static bool mutate_parameq_scaler_stands_still(cddp_event *e)
{
    if (IS_VALUE(e, 1, ANY, CDDP_WHAT_SCALER, CDDP_MOMENT_END, 0)) corrupt(&e->as.value.digest);
    return true;
}

static bool mutate_fail_reads_incomplete(cddp_event *e)
{
    if (at(e, CDDP_EV_collective_done, 1, 2) && e->as.collective_done.sequence == 16)
        e->as.collective_done.status = CDDP_E_ABORTED;
    return true;
}

static bool mutate_fail_killed(cddp_event *e)
{
    if (!at(e, CDDP_EV_rank_end, 0, ANY)) return true;
    e->as.rank_end = (cddp_event_rank_end){.status = CDDP_E_ABORTED, .end = 1, .detail = 9};
    return true;
}

/* Rank 1 gives up at the store for want of `peer`. */
static void give_up(cddp_event *e, int64_t peer)
{
    e->as.store_done = (cddp_event_store_done){
        .status = CDDP_E_TIMEOUT, .attempt = 3, .is_last = 1, .generation = 1, .peer = peer};
}

static bool mutate_live_never_met(cddp_event *e)
{
    if (at(e, CDDP_EV_store_done, 1, ANY)) give_up(e, 2);
    return true;
}

static bool mutate_live_store_host_hangs(cddp_event *e)
{
    if (at(e, CDDP_EV_store_done, 1, ANY)) give_up(e, 0);
    if (at(e, CDDP_EV_rank_end, 0, ANY))
        e->as.rank_end = (cddp_event_rank_end){.status = CDDP_E_ABORTED, .end = 2};
    return true;
}

static bool mutate_live_never_returns(cddp_event *e)
{
    if (at(e, CDDP_EV_rank_end, 2, ANY))
        e->as.rank_end = (cddp_event_rank_end){.status = CDDP_E_ABORTED, .end = 2};
    return true;
}

/* Rank 1 fails before the last operation; the others wait for it until the world ends. */
static bool mutate_live_waits_for_ended(cddp_event *e)
{
    bool is_post = e->kind == CDDP_EV_collective_post && e->as.collective_post.sequence == 18;
    bool is_done = e->kind == CDDP_EV_collective_done && e->as.collective_done.sequence == 18;
    bool is_after = e->kind == CDDP_EV_group_close || e->kind == CDDP_EV_memory ||
                    (e->kind == CDDP_EV_stop && e->step == 2) ||
                    (e->kind == CDDP_EV_value && e->as.value.moment == CDDP_MOMENT_END);
    bool is_wait = e->kind == CDDP_EV_collective_wait && e->as.collective_wait.sequence == 18;
    if (e->kind == CDDP_EV_rank_end)
        e->as.rank_end = e->rank == 1 ? (cddp_event_rank_end){.status = CDDP_E_IO}
                                      : (cddp_event_rank_end){.status = CDDP_E_ABORTED, .end = 2};
    if (e->rank == 1 && (is_post || is_wait)) return false;
    return !is_done && !(is_after && e->rank != UINT32_MAX && e->sequence > 100);
}

/* The last operation is a message of rank 1, which names itself as the one to get it and fails; the
** others wait for it. */
static bool mutate_live_names_itself(cddp_event *e)
{
    const bool is_post = e->kind == CDDP_EV_collective_post && e->as.collective_post.sequence == 18;
    if (!is_post) return mutate_live_waits_for_ended(e);
    e->as.collective_post.op = e->rank == 1 ? CDDP_OP_SEND : CDDP_OP_RECV;
    e->as.collective_post.root = 1;
    return true;
}

/* The last operation times out on all ranks, and rank 1 posts it a second after that. */
static bool mutate_live_came_late(cddp_event *e)
{
    static const uint64_t second_ns = 1000000000;
    const bool is_post = e->kind == CDDP_EV_collective_post && e->as.collective_post.sequence == 18;
    const bool is_done = e->kind == CDDP_EV_collective_done && e->as.collective_done.sequence == 18;
    if (e->kind == CDDP_EV_fault) return false;
    if (e->kind == CDDP_EV_rank_end)
        e->as.rank_end = (cddp_event_rank_end){.status = CDDP_E_TIMEOUT};
    if ((is_post || is_done) && e->rank == 1) e->time_ns += second_ns;
    if (is_done) e->as.collective_done.status = CDDP_E_TIMEOUT;
    const bool is_kept = is_post || is_done || e->kind == CDDP_EV_rank_end;
    return is_kept || mutate_live_waits_for_ended(e);
}

/* Rank 2 is stopped inside the last bitmap, #13. Rank 1 waits there without end. Rank 0 got its
** part of it, goes on, and gives up first: it misses rank 1, which is no culprit. */
static bool mutate_live_stopped_behind_another(cddp_event *e)
{
    static const int64_t last[FIXTURE_RANKS] = {18, 17, 17};
    if (e->kind == CDDP_EV_fault) return false;
    if (e->rank >= FIXTURE_RANKS) return true;
    static uint64_t end_of[FIXTURE_RANKS]; /* the last event that each rank still tells of */
    if (e->sequence == 0) end_of[e->rank] = UINT64_MAX;
    if (e->kind == CDDP_EV_rank_end) {
        e->as.rank_end = e->rank == 2 ? (cddp_event_rank_end){.status = CDDP_E_ABORTED, .end = 2}
                                      : (cddp_event_rank_end){.status = CDDP_E_TIMEOUT};
        return true;
    }
    if (e->kind == CDDP_EV_collective_done && e->as.collective_done.sequence == last[e->rank]) {
        end_of[e->rank] = e->sequence;
        e->as.collective_done.status = CDDP_E_TIMEOUT;
        return e->rank != 2;
    }
    return e->sequence < end_of[e->rank];
}

/* Instead of the last operation rank 1 calls its hook again; the others wait for it. */
static bool mutate_live_stays_in_hook(cddp_event *e)
{
    const bool is_post =
        at(e, CDDP_EV_collective_post, 1, ANY) && e->as.collective_post.sequence == 18;
    if (is_post) {
        e->kind = CDDP_EV_hook_call;
        e->text = "narrow";
        e->as.hook_call = (cddp_event_hook_call){.bucket = 0, .dtype = CDDP_F32};
        return true;
    }
    const bool is_kept = mutate_live_waits_for_ended(e);
    if (e->kind == CDDP_EV_rank_end)
        e->as.rank_end = (cddp_event_rank_end){.status = CDDP_E_TIMEOUT, .end = 2};
    return is_kept;
}

/* Only its world says so: no event stands for a call of save. */
static bool mutate_live_stays_in_save(cddp_event *e)
{
    if (!at(e, CDDP_EV_rank_end, 2, ANY)) return true;
    e->as.rank_end = (cddp_event_rank_end){.status = CDDP_E_TIMEOUT, .end = 2};
    e->text = "rank 2 did not return from save of hook powersgd for 20 s of real time";
    return true;
}

static bool mutate_fail_killed_in_load(cddp_event *e)
{
    if (!at(e, CDDP_EV_rank_end, 0, ANY)) return true;
    e->as.rank_end = (cddp_event_rank_end){.status = CDDP_E_ABORTED, .end = 1, .detail = 11};
    e->text = "rank 0 was killed by signal 11 (SIGSEGV) in load of hook powersgd";
    return true;
}

/* ---- units of a sharded model ---- */

static bool mutate_shard_part_of_another(cddp_event *e)
{
    if (at(e, CDDP_EV_unit_part, 2, ANY)) e->as.unit_part.first = 2;
    return true;
}

static bool mutate_shard_two_owners(cddp_event *e)
{
    if (at(e, CDDP_EV_unit_part, 1, ANY)) {
        e->as.unit_part.first = 1;
        e->as.unit_part.count = 3;
    }
    if (at(e, CDDP_EV_planned_part, 1, ANY)) {
        e->as.planned_part.first = 1;
        e->as.planned_part.count = 3;
    }
    return true;
}

static bool mutate_shard_other_home(cddp_event *e)
{
    if (at(e, CDDP_EV_planned_part, 2, ANY)) e->as.planned_part.on_host = 1;
    return true;
}

static bool mutate_shard_padding_is_used(cddp_event *e)
{
    if (at(e, CDDP_EV_unit_gap, 0, 1)) e->as.unit_gap.norm = cd_f64_bits(0.5);
    return true;
}

/* A gap of the step before becomes the plan's second collective. */
static bool mutate_count_gathers_less(cddp_event *e)
{
    if (!at(e, CDDP_EV_unit_gap, 1, 0)) return true;
    e->kind = CDDP_EV_planned_collective;
    e->text = "fc1";
    e->as.planned_collective = (cddp_event_planned_collective){.at_step = 1,
                                                               .at_micro = 0,
                                                               .position = 2,
                                                               .op = CDDP_OP_ALLGATHER,
                                                               .dtype = CDDP_F32,
                                                               .numel = 2,
                                                               .passes = 1};
    return true;
}

static bool mutate_count_gathers_more(cddp_event *e)
{
    if (at(e, CDDP_EV_planned_units, 2, 1)) e->as.planned_units.count = 1;
    return !(at(e, CDDP_EV_planned_collective, 2, 1) && e->as.planned_collective.position == 1);
}

static bool mutate_count_another_unit(cddp_event *e)
{
    if (at(e, CDDP_EV_planned_storage, 1, 1)) e->text = "fc2";
    if (at(e, CDDP_EV_unit_storage, 1, 1)) e->as.unit_storage.unit = 1;
    return true;
}

static bool mutate_mem_one_too_many(cddp_event *e)
{
    if (at(e, CDDP_EV_planned_units, 1, 1)) e->as.planned_units.peak = 16;
    return true;
}

static bool mutate_mem_stays_full(cddp_event *e)
{
    return !(at(e, CDDP_EV_unit_storage, 2, 1) && e->as.unit_storage.released);
}

/* What stands between its free and the end of backward comes first. */
static bool mutate_mem_freed_late(cddp_event *e)
{
    static cddp_event freed;
    if (at(e, CDDP_EV_unit_storage, 1, 1) && e->as.unit_storage.released) {
        freed = *e;
        e->kind = CDDP_EV_unit_pass;
        e->as.unit_pass =
            (cddp_event_unit_pass){.unit = 0, .pass = CDDP_UNIT_POST_BACKWARD, .grad_mode = 1};
    } else if (at(e, CDDP_EV_unit_gap, 1, 1) && e->as.unit_gap.what == CDDP_WHAT_GRADIENT) {
        e->kind = CDDP_EV_unit_storage;
        e->as.unit_storage = freed.as.unit_storage;
    }
    return true;
}

static bool mutate_mem_another_unit(cddp_event *e)
{
    if (at(e, CDDP_EV_planned_collective, 0, 1) && e->as.planned_collective.position == 0)
        e->text = "fc2";
    if (at(e, CDDP_EV_unit_storage, 0, 1)) e->as.unit_storage.unit = 1;
    return true;
}

static bool mutate_mem_reserves_more(cddp_event *e)
{
    if (at(e, CDDP_EV_planned_units, 2, 1)) e->as.planned_units.reserved = 16;
    return true;
}

static bool mutate_mem_waits_less(cddp_event *e)
{
    if (at(e, CDDP_EV_planned_units, 0, 1)) e->as.planned_units.waits = 2;
    return true;
}

static bool mutate_mem_waits_for_nobody(cddp_event *e)
{
    return !(at(e, CDDP_EV_order, 1, 1) && e->as.order.from == 2);
}

static bool mutate_fresh_older_copy(cddp_event *e)
{
    static int64_t before;
    if (at(e, CDDP_EV_fresh, 1, 0)) before = e->as.fresh.digest;
    if (at(e, CDDP_EV_unit_read, 1, 1)) e->as.unit_read.digest = before;
    return true;
}

static bool mutate_fresh_mixed_copy(cddp_event *e)
{
    if (at(e, CDDP_EV_unit_read, 0, 1)) corrupt(&e->as.unit_read.digest);
    return true;
}

static bool mutate_fresh_other_dtype(cddp_event *e)
{
    if (at(e, CDDP_EV_unit_read, 1, 1)) e->as.unit_read.dtype = CDDP_BF16;
    return true;
}

static bool mutate_fresh_layers_read_late(cddp_event *e)
{
    const bool is_late =
        at(e, CDDP_EV_unit_read, 2, 1) && e->as.unit_read.pass == CDDP_UNIT_POST_FORWARD;
    if (is_late) corrupt(&e->as.unit_read.digest);
    return true;
}

const trace_mutant trace_mutants[] = {
#define TRACE_MUTANT(check, name, rank, peer, words, what) \
    {#check, #name, rank, peer, words, what, mutate_##check##_##name},
#include "tests/mutants/trace_mutants.def"
#undef TRACE_MUTANT
};
const size_t trace_mutant_count = sizeof trace_mutants / sizeof trace_mutants[0];
