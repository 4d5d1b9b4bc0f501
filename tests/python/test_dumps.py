# SPDX-License-Identifier: Apache-2.0
"""Dumps of a flight recorder: written here in their format, imported and judged by cddp-verify."""
import json
import os
import pickle
import subprocess

import pytest

import harness


def entry(number, op, sizes, state="completed", group=("0", "default_pg"), line=10, at=None, **more):
    at = 1000 * number if at is None else at
    e = {"record_id": number, "pg_id": int(group[0]), "process_group": list(group), "collective_seq_id": number,
         "p2p_seq_id": 0, "op_id": number, "profiling_name": "nccl:" + op, "time_created_ns": at,
         "input_sizes": sizes, "input_dtypes": ["Float"] * len(sizes), "output_sizes": sizes,
         "output_dtypes": ["Float"] * len(sizes), "state": state, "time_discovered_started_ns": at + 10,
         "time_discovered_completed_ns": at + 500 if state == "completed" else None,
         "retired": state == "completed", "timeout_ms": 600000, "is_p2p": False,
         "frames": [{"name": "all_reduce", "filename": "/usr/lib/python3/torch/distributed/c10d.py", "line": 1},
                    {"name": "main", "filename": "train.py", "line": line}]}
    e.update(more)
    return e


def dump(entries, ranks, version="2.4"):
    known = [e for e in entries if isinstance(e, dict) and e["process_group"][0] == "0"]
    last, done = (max([e["collective_seq_id"] for e in known if e["state"] in states], default=0)
                  for states in (("scheduled", "started", "completed"), ("completed",)))
    return {"version": version, "entries": entries,
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}},
            "pg_status": {"0": {"last_enqueued_collective": last, "last_started_collective": last,
                                "last_completed_collective": done}}}


def write(folder, dumps, style="pickle4", name="nccl_trace_rank_%d"):
    for rank, contents in dumps.items():
        path = os.path.join(str(folder), name % rank)
        if style == "json":
            with open(path, "w") as file:
                json.dump(contents, file)
        else:
            with open(path, "wb") as file:
                pickle.dump(contents, file, protocol=int(style[-1]))


def imported(folder):
    store = os.path.join(str(folder), "..", "run.db")
    done = subprocess.run([harness.VERIFY, "import", str(folder), "-o", store], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True)
    if done.returncode != 0:
        return done.returncode, done.stdout
    judged = subprocess.run([harness.VERIFY, "check", store, "-v"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            universal_newlines=True)
    return judged.returncode, done.stdout + judged.stdout


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "fr_dumps"
    place.mkdir()
    return place


def crossed(ranks=4, culprit=2):
    return {r: dump([entry(1, "all_reduce", [[8]]), entry(2, "all_reduce", [[3, 4]]),
                     entry(3, "broadcast" if r == culprit else "all_reduce", [[16]], "scheduled", line=20 + r)], ranks)
            for r in range(ranks)}


@pytest.mark.parametrize("style", ["pickle2", "pickle4", "json"])
def test_the_odd_rank_is_blamed_whichever_is_read_first(style, folder):
    for culprit in (0, 2):
        write(folder, crossed(culprit=culprit), style)
        code, report = imported(folder)
        assert code == 1 and harness.findings(report)[0] == "I-ORDER", report
        assert "rank %d disagrees" % culprit in report or "rank %d " % culprit in report, report
        assert "broadcast" in report and "train.py:%d in main" % (20 + culprit) in report, report
        os.unlink(os.path.join(str(folder), "..", "run.db"))


def test_who_did_not_join_is_named(folder):
    dumps = {r: dump([entry(1, "all_reduce", [[8]])] + ([entry(2, "all_reduce", [[8]], "started")] if r != 1 else []), 3)
             for r in range(3)}
    write(folder, dumps)
    code, report = imported(folder)
    assert code == 1 and "rank 1" in report and harness.findings(report)[0] == "I-LIVE", report


def of_groups(lists):
    """Each rank with its own word on who is in group tp."""
    dumps = {}
    for rank, members in enumerate(lists):
        dumps[rank] = dump([entry(1, "all_reduce", [[8]]), entry(2, "all_reduce", [[4]], "started", group=("1", "tp"))], 3)
        dumps[rank]["pg_config"]["1"] = {"name": "1", "desc": "tp", "ranks": str(members)}
    return dumps


@pytest.mark.parametrize("style", ["pickle4", "json"])
def test_ranks_that_name_other_members_of_a_group_are_found(style, folder):
    write(folder, of_groups([[0, 1], [0, 1, 2], [0, 1, 2]]), style)
    code, report = imported(folder)
    assert code == 1 and harness.findings(report)[0] == "I-GROUP" and "members of group 'tp'" in report, report
    code, said = harness.verify("lift", os.path.join(str(folder), "..", "run.db"))
    assert code == 3 and "different members of group 'tp'" in " ".join(said.split()), said


def test_ranks_that_agree_on_a_group_are_not_accused_of_it(folder):
    dumps = of_groups([[0, 1, 2]] * 3)
    dumps[1]["pg_config"]["1"]["ranks"] = ""  # some versions leave it out
    del dumps[2]["pg_config"]["1"]
    write(folder, dumps)
    code, report = imported(folder)
    assert code == 1 and harness.findings(report) == ["I-LIVE"], report


def lifted(folder):
    """What a run of the lifted scenario says."""
    job = os.path.join(str(folder), "..", "job.toml")
    code, said = harness.verify("lift", os.path.join(str(folder), "..", "run.db"), "-o", job)
    assert code == 0, said
    with open(job, encoding="utf-8") as file:
        return file.read(), harness.verify("run", job)


def test_a_lifted_dump_crosses_as_the_job_did(folder):
    long = [entry(n, "all_reduce", [[n]]) for n in range(1, 300)]
    write(folder, {r: dump(long + [entry(300, "broadcast" if r == 2 else "all_reduce", [[16]], "scheduled")], 4) for r in range(4)})
    assert imported(folder)[0] == 1
    scenario, (code, report) = lifted(folder)
    assert scenario.count("[[collective]]") == 4, scenario  # the last on which all agree, and what follows, of two kinds of ranks
    assert code == 1 and harness.findings(report)[0] == "I-ORDER" and "rank 2 against ranks 0, 1 and 3" in report, report


def test_a_lifted_dump_hangs_as_the_job_did(folder):
    write(folder, {r: dump([entry(1, "all_reduce", [[8]])] + ([entry(2, "all_gather", [[8]], "started")] if r != 1 else []), 3)
                   for r in range(3)})
    assert imported(folder)[0] == 1
    _, (code, report) = lifted(folder)
    assert code == 1 and harness.findings(report) == ["I-LIVE"] and "for rank 1, which a planted fault stopped" in report, report


def test_a_lifted_dump_of_a_job_that_ended_is_right(folder):
    write(folder, {r: dump([entry(n, op, [[8]]) for n, op in ((1, "all_reduce"), (2, "reduce_scatter"), (3, "barrier"))], 2)
                   for r in range(2)})
    assert harness.findings(imported(folder)[1]) == []
    _, (code, report) = lifted(folder)
    assert code == 0, report


@pytest.mark.parametrize("last, done, words, others", [
    (4, 4, "I-LIVE rank 1 was interrupted after step 0 and never joined", "by its status collective 4 of group 'default_pg' was its last"),
    (5, 4, "I-LIVE all members hang inside", ""), ("5", "4", "I-LIVE all members hang inside", "")])
def test_a_dump_without_entries_says_how_far_its_rank_came(last, done, words, others, folder):
    dumps = {r: dump([entry(4, "all_reduce", [[8]]), entry(5, "all_reduce", [[8]], "started")], 2) for r in range(2)}
    del dumps[1]["entries"]
    dumps[1]["pg_status"]["0"] = {"last_enqueued_collective": last, "last_completed_collective": done}
    write(folder, dumps)
    code, report = imported(folder)
    report = " ".join(report.split())
    assert code == 1 and words in report and others in report, report


def test_a_missing_dump_is_said(folder):
    dumps = crossed(culprit=-1)
    del dumps[3]
    write(folder, dumps)
    code, report = imported(folder)
    assert "no dump from rank 3; it may be the one that failed" in report
    assert code == 1 and "rank 3" in report.split("I-LIVE")[1], report


def test_rings_that_begin_at_different_places_are_compared_from_where_all_are(folder):
    full = [entry(n, "all_reduce", [[n]]) for n in range(1, 9)]
    write(folder, {0: dump(full, 2), 1: dump(full[5:], 2)})
    code, report = imported(folder)
    assert harness.findings(report) == [], report


def test_messages_and_coalesced_members(folder):
    def of(rank):
        p2p = entry(1, "send 0->1" if rank == 0 else "recv 1<-0", [[4]], is_p2p=True, collective_seq_id=0, p2p_seq_id=1)
        members = [entry(2, "all_gather", [[4]], op_id=i) for i in (2, 3)]
        return dump([p2p] + members + [entry(3, "barrier", [[1]])], 2)
    write(folder, {r: of(r) for r in range(2)}, "json", "comm_lib_trace_host7_rank_%d.json")
    code, report = imported(folder)
    assert harness.findings(report) == [], report


class Harmful:
    def __reduce__(self):
        return (os.system, ("touch harmed",))


def test_a_pickle_that_would_execute_something_is_refused(folder):
    write(folder, {0: dump([Harmful()], 2)})
    code, report = imported(folder)
    assert code == 2 and "nothing of it is executed" in report and len(report.splitlines()) == 1, report
    assert not os.path.exists("harmed")


@pytest.mark.parametrize("version", ["1.5", "3.0", "", "x" * 300])
def test_another_version_is_refused(version, folder):
    write(folder, {0: dump([], 2, version)})
    code, report = imported(folder)
    assert code in (2, 3) and len(report.splitlines()) == 1, report


@pytest.mark.parametrize("ranks", ["[0, 99999999999]", "[[[", "__import__('os')", "[1"])
def test_hostile_ranks_harm_nobody(ranks, folder):
    bad = dump([entry(1, "all_reduce", [[8]])], 2)
    bad["pg_config"]["0"]["ranks"] = ranks
    write(folder, {0: bad})
    code, report = imported(folder)
    assert code in (0, 1, 2, 4), report


def test_every_cut_of_a_dump_is_refused_or_read(folder):
    for style in ("pickle4", "json"):
        write(folder, {0: dump([entry(1, "all_reduce", [[8]])], 1)}, style)
        path = os.path.join(str(folder), "nccl_trace_rank_0")
        with open(path, "rb") as file:
            whole = file.read()
        for count in range(1, len(whole), max(1, len(whole) // 40)):
            with open(path, "wb") as file:
                file.write(whole[:count])
            code, report = imported(folder)
            assert code == 2, report
        for at in range(0, len(whole), max(1, len(whole) // 60)):
            with open(path, "wb") as file:
                file.write(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1:])
            code, report = imported(folder)
            assert code in (0, 1, 2, 3, 4), report


def test_two_dumps_of_one_rank_and_no_dump_at_all(folder):
    assert imported(folder)[0] == 2
    write(folder, {0: dump([], 1)})
    write(folder, {0: dump([], 1)}, name="other_rank_%d")
    code, report = imported(folder)
    assert code == 2 and "another dump of rank 0" in report


# ---- logs ----

MISMATCH = "Detected mismatch between collectives on ranks. Rank %s, but Rank %s."


def side(rank, op, shape=None, number=None, dtype="Float"):
    fields = [] if number is None else ["SequenceNumber=%d" % number]
    fields.append("OpType=" + op)
    if shape is not None:
        fields += ["TensorShape=%s" % shape, "TensorDtypes=" + dtype,
                   "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu, memory_format=(nullopt))"]
    return "%d is running collective: CollectiveFingerPrint(%s)" % (rank, ", ".join(fields))


def log(folder, *lines, name="job.log"):
    (folder / name).write_text("step 12\n%s\n[rank1]: Traceback (most recent call last):\n" % "\n".join(lines))


def test_a_log_with_a_mismatch_shows_both_sides(folder):
    log(folder, "[rank1]: RuntimeError: " + MISMATCH % (side(1, "_ALLGATHER_BASE", [2, 8], 101), side(3, "REDUCE", [16], 101)))
    code, report = imported(folder)
    assert code == 1 and harness.findings(report)[0] == "I-ORDER", report
    assert "allgather(sum) of 16 f32" in report and "reduce(sum) of 16" in report, report
    assert "rank 0 " not in report and "rank 2 " not in report.split("because")[0], report


def test_of_itself_a_rank_knows_best(folder):
    """As PyTorch 1.13 prints it: what it says of the other side of a barrier is wrong."""
    log(folder, MISMATCH % (side(0, "BARRIER"), side(1, "GATHER", [])), name="rank0.log")
    log(folder, MISMATCH % (side(1, "ALLREDUCE", [2, 8]), side(0, "ALLREDUCE_COALESCED", [])), name="rank1.log")
    code, report = imported(folder)
    assert code == 1 and "barrier" in report and "allreduce(sum) of 16 f32" in report and "gather" not in report, report


def test_a_dump_says_more_than_a_log(folder):
    write(folder, {r: dump([entry(1, "all_reduce", [[8]])], 2) for r in range(2)})
    log(folder, MISMATCH % (side(0, "BARRIER"), side(1, "REDUCE", [4])))
    code, report = imported(folder)
    assert "2 dumps of 2 ranks" in report and harness.findings(report) == [], report


@pytest.mark.parametrize("text", ["", "Timed out waiting 1800000ms for recv operation to complete from [10.0.0.1]:3000",
                                  "Detected mismatch between collectives on ranks. Rank ",
                                  "Detected mismatch between collectives on ranks. Rank 99999999999 is running collective: X",
                                  "Detected mismatch between collectives on ranks. Rank 0 is running collective: "])
def test_a_log_that_does_not_suffice_is_refused(text, folder):
    log(folder, text)
    code, report = imported(folder)
    assert code == 2 and len(report.splitlines()) == 1, report
