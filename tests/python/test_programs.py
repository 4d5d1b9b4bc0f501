# SPDX-License-Identifier: Apache-2.0
"""What cddp-verify says of recorded programs: nothing against a right one, the cause of a wrong one."""
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is absent")

import harness  # noqa: E402
import programs  # noqa: E402


@pytest.mark.parametrize("name", sorted(programs.CLEAN))
def test_right_program_is_never_accused(name, tmp_path):
    codes = harness.run(programs.CLEAN[name], str(tmp_path), ranks=programs.RANKS.get(name, 2))
    assert not any(codes), harness.logs(str(tmp_path))
    code, report = harness.check(str(tmp_path))
    assert harness.findings(report) == [], report
    assert code == 0, report


def test_steps_of_several_optimizers_are_counted_once(tmp_path):
    harness.run(programs.CLEAN["two_optimizers_and_heads_that_alternate"], str(tmp_path))
    assert "2 ranks, 6 steps" in harness.check(str(tmp_path))[1]


@pytest.mark.parametrize("name", sorted(programs.WRONG))
def test_wrong_program_is_named(name, tmp_path):
    program, checks, words, options = programs.WRONG[name]
    harness.run(program, str(tmp_path), ranks=programs.RANKS.get(name, 2), **options)
    code, report = harness.check(str(tmp_path))
    found = harness.findings(report)
    assert code == 1 and found and found[0] in checks, report + harness.logs(str(tmp_path))
    assert words in report, report


@pytest.mark.parametrize("name", sorted(programs.UNJUDGED))
def test_what_cannot_be_judged_is_never_verified(name, tmp_path):
    program, words = programs.UNJUDGED[name]
    harness.run(program, str(tmp_path))
    code, report = harness.check(str(tmp_path))
    assert code == 4 and words in " ".join(report.split()), report + harness.logs(str(tmp_path))


@pytest.mark.parametrize("name", sorted(programs.SAID))
def test_what_all_ranks_do_alike_is_said(name, tmp_path):
    program, words = programs.SAID[name]
    harness.run(program, str(tmp_path))
    code, report = harness.check(str(tmp_path))
    assert code == 0 and words in " ".join(report.split()), report + harness.logs(str(tmp_path))


def test_a_shard_that_is_not_there_accuses_nobody(tmp_path):
    harness.run(programs.plain, str(tmp_path))
    (tmp_path / "rank.1").unlink()
    code, report = harness.check(str(tmp_path))
    assert code == 4 and "the recording of a rank" in report and harness.findings(report) == [], report


def test_why_the_recorder_failed_comes_first(tmp_path):
    def mistyped(state, bucket):
        raise AssertionError("never called")

    def program(rank):
        mistyped.cddp_law = "maen"
        ddp = programs.DDP(programs.mlp())
        ddp.register_comm_hook(None, programs.plain_hook(law="mean") if rank else mistyped)
    harness.run(program, str(tmp_path))
    code, report = harness.check(str(tmp_path))
    third = report.splitlines()[2]
    assert code == 4 and third.startswith("the recorder of rank 0 failed") and "bf16, fp16, lossy, mean, sum" in third, report


@pytest.mark.parametrize("name", ["clipped", "clipped_in_parts", "clipped_twice_in_double"])
def test_a_clip_is_judged(name, tmp_path):
    harness.run(programs.CLEAN[name], str(tmp_path))
    code, report = harness.check(str(tmp_path))
    words = " ".join(report.split())
    assert code == 0 and "took reduced gradients times the clip" in words and "nor what clipping" not in words, report


@pytest.mark.parametrize("factor, code, said", [
    (0.3, 0, "the program itself scaled all reduced gradients by "),
    (-1.0, 4, "not shown: what the program itself made of gradients between their reduction and the optimizer")])
@pytest.mark.parametrize("name", ["scaled_by_hand", "scaled_after_a_clip"])
def test_one_factor_for_all_gradients_is_said_and_a_negative_one_is_no_scale(name, factor, code, said, tmp_path):
    harness.run(getattr(programs, name), str(tmp_path), factor=factor)
    found, report = harness.check(str(tmp_path))
    assert found == code and said in " ".join(report.split()), report


def test_that_reduced_gradients_are_gone_is_said(tmp_path):
    harness.run(programs.cancels_the_last_layer, str(tmp_path))
    code, report = harness.check(str(tmp_path))
    assert code == 0 and "nor why 8 reduced gradients were gone" in " ".join(report.split()), report


@pytest.mark.parametrize("name", ["accumulation", "accumulation_with_views", "flag_in_place_of_no_sync", "uneven_inputs_join"])
def test_without_the_c_library_nobody_is_accused(name, tmp_path, monkeypatch):
    monkeypatch.setenv("CDDP_TRACE_LIBRARY", "")
    codes = harness.run(programs.CLEAN[name], str(tmp_path))
    assert codes == [0, 0], harness.logs(str(tmp_path))
    code, report = harness.check(str(tmp_path))
    assert code == 4 and "inconclusive" in report, report
    assert "cddp_record" not in report, report


@pytest.mark.parametrize("name", ["reduces_early_on_rank_1", "reduces_early", "clips_before_the_reduction", "skips_a_step"])
def test_without_the_c_library_the_same_rank_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setenv("CDDP_TRACE_LIBRARY", "")
    program, checks, words, options = programs.WRONG[name]
    harness.run(program, str(tmp_path), **options)
    code, report = harness.check(str(tmp_path))
    found = harness.findings(report)
    assert code == 1 and found and found[0] in checks and words in report, report


def test_a_job_that_died_before_it_recorded_anything_is_inconclusive(tmp_path):
    for rank, line in ((0, "code 1"), (1, "signal 9")):
        (tmp_path / ("rank.%d.exit" % rank)).write_text("cddp exit note 1\nrank %d\n%s\n" % (rank, line))
    code, report = harness.check(str(tmp_path))
    assert code == 4 and "rank.0: exit code 1, rank.1: signal 9" in report and "init_process_group" in report, report


def test_that_hooks_of_tensors_change_gradients_is_said(tmp_path):
    harness.run(programs.clamps_each_gradient, str(tmp_path))
    code, report = harness.check(str(tmp_path))
    assert code == 0 and "nor what hooks of tensors made of the gradients of 6 parameters" in " ".join(report.split()), report


def test_that_frozen_parameters_move_alike_is_said(tmp_path):
    harness.run(programs.momentum_encoder, str(tmp_path))
    code, report = harness.check(str(tmp_path))
    assert code == 0 and "nor why 1 parameter without gradients changed, alike on all ranks" in " ".join(report.split()), report


def test_that_gradients_are_never_dropped_is_said(tmp_path):
    harness.run(programs.never_drops_gradients, str(tmp_path))
    code, report = harness.check(str(tmp_path))
    assert code == 0 and "no zero_grad was shown" in " ".join(report.split()), report


@pytest.mark.parametrize("level", ["order", "buckets", "payload"])
@pytest.mark.parametrize("name", ["several_buckets", "accumulation_with_views", "unused_search", "uneven_inputs_join"])
def test_no_level_accuses(name, level, tmp_path):
    codes = harness.run(programs.CLEAN[name], str(tmp_path), level=level)
    assert codes == [0, 0], harness.logs(str(tmp_path))
    code, report = harness.check(str(tmp_path))
    assert harness.findings(report) == [], report
    assert code == (0 if level == "payload" else 4), report


@pytest.mark.parametrize("name", sorted(programs.LIFTED))
def test_a_lifted_failure_fails_the_same_way(name, tmp_path):
    program, words = programs.LIFTED[name]
    harness.run(program, str(tmp_path), limit=9.0, grace=3.0)
    code, report = harness.lift_and_run(str(tmp_path))
    assert code == 1 and "rank 0 waits in" in report and "for rank 1, " + words in report.replace("\n           ", ""), report


@pytest.mark.parametrize("name, code, said", [
    ("windows_of_other_lengths_by_rank", 0, "verified"),
    ("windows_of_other_lengths_on_all_ranks", 0, "verified"),
    ("probes_before_each_step", 0, "verified"),
    ("messages_around_a_ring", 0, "verified"),
    ("joins_twice_with_two_reductions_in_a_step", 0, "verified"),
    ("undeclared_mean_hook", 0, "verified"),
    ("leaves_out_a_step_on_rank_1", 1, "whether to skip the step"),
    ("leaves_the_last_window_in_no_sync", 1, "I-ONCE")])
def test_what_a_program_does_in_its_own_way_is_lifted(name, code, said, tmp_path):
    harness.run(getattr(programs, name), str(tmp_path))
    found, report = harness.lift_and_run(str(tmp_path))
    assert found == code and said in report, report
