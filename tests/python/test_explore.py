# SPDX-License-Identifier: Apache-2.0
"""Orders of completion, chosen for the real reducer."""
import os
import random
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is absent")

import harness  # noqa: E402
import jobs  # noqa: E402
from cddp_torch import __main__, schedules  # noqa: E402

JOBS = os.path.join(harness.HERE, "jobs.py")


def command(*arguments):
    """As a user runs it."""
    e = dict(os.environ, PYTHONPATH=os.path.join(harness.ROOT, "python"))
    done = subprocess.run([sys.executable, "-m", "cddp_torch", "explore"] + list(arguments), env=e,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=280)
    return done.returncode, done.stdout


@pytest.fixture
def explore(capsys):
    """In this process, which has imported torch."""
    def call(*job, budget=20, limit=120.0, replay=None):
        code = schedules.explore([JOBS] + list(job), 2, budget, limit, 1, replay)
        said = capsys.readouterr()
        return code, said.out + said.err
    return call


def choices(said):
    return re.search(r"--replay '([^']*)'", said).group(1)


def test_the_hang_of_powersgd_is_found_and_replays(explore):
    code, said = command("--budget", "20", JOBS, "specimen")
    assert code == 1, said
    assert re.search(r"[1-9]\d* choice points controlled, \d+ completions; 0 escaped", said), said
    assert "in a continuation of #" in said and "powerSGD_hook.py:" in said, said
    assert "10 of 10 times alike" in said, said
    code, again = explore("specimen", replay=choices(said))
    finding = [line for line in said.splitlines() if line.startswith(("finding", "  "))]
    assert code == 1 and [line for line in again.splitlines() if line.startswith(("finding", "  "))] == finding, again


def test_other_choices_cross_the_orders(explore):
    for seed in range(12):
        draw = random.Random(seed)
        code, said = explore("specimen", replay="2:" + ",".join(str(draw.randrange(2)) for _ in range(60)))
        assert code == 1, said
        if "disagree on operation #" in said:
            return
    pytest.fail("no order crossed: " + said)


@pytest.mark.parametrize("job", ["one_bucket", "several_buckets", "accumulation", "unused_search", "uneven_inputs_join",
                                 "second_group", "builtin_hook", "averaging_hook", "two_wrappers", "group_twice",
                                 "many_collectives", "polls", "polls_and_posts"])
def test_right_programs_are_not_accused(job, explore):
    code, said = explore(job, budget=3)
    assert code == 0 and "every run ended well" in said, said


def test_what_only_one_order_shows(explore):
    code, said = explore("only_late", budget=30)
    assert code == 1 and "completed out of order" in said and "10 of 10" in said, said


def test_numbers_that_depend_on_the_order(explore):
    code, said = explore("counts_completions", budget=30)
    assert code == 1 and re.search(r"what rank \d gives to operation #2 of group 0 depends on the order", said), said
    assert "in the order that comes first: allreduce(sum) of 1 float32 (" in said and "10 of 10" in said, said
    code, again = explore("counts_completions", replay=choices(said))
    assert code == 1 and "depends on the order of posts and completions" in again, again


def test_a_program_that_differs_by_itself_is_not_accused(explore):
    code, said = explore("tells_time", budget=3)
    assert code == 0 and "contents were not compared: what rank" in said, said


def test_asking_for_ever_is_a_hang(explore):
    code, said = explore("asks_for_ever", budget=1)
    assert code == 1 and "nothing can go on" in said and "10 of 10" in said, said


def test_a_run_without_end_is_a_finding(explore, monkeypatch):
    monkeypatch.setattr(schedules, "REPLAYS", 3)  # each of them takes the whole limit
    code, said = explore("never_ends", budget=2, limit=2.5)
    assert code == 1 and "did not end within 2.5 s" in said and "3 of 3" in said, said


def test_nothing_controlled_is_not_success(explore):
    code, said = explore("alone", budget=2)
    assert code == 4 and "nothing was controlled" in said, said


@pytest.mark.parametrize("arguments", [["--replay", "2:x", JOBS], ["--budget", "0", JOBS], [], ["-n", "99", JOBS],
                                       ["nowhere.py"], ["--limit", "nan", JOBS]])
def test_wrong_words_are_refused(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cddp_torch", "explore"] + arguments)
    assert __main__.main() == 2
    assert capsys.readouterr().err


def test_the_bits_are_those_of_gloo(tmp_path, explore, monkeypatch):
    monkeypatch.setenv("SUM", str(tmp_path / "plain"))
    assert harness.run(jobs.print_sum, str(tmp_path), level=None) == [0, 0]
    monkeypatch.setenv("SUM", str(tmp_path / "steered"))
    assert explore("print_sum", budget=1)[0] == 0
    assert (tmp_path / "plain").read_text() == (tmp_path / "steered").read_text()
