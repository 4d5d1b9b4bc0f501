# SPDX-License-Identifier: Apache-2.0
"""Reads traces for Perfetto back and compares them with the store that they were made of.

usage: perfetto_test.py CDDP-VERIFY SOURCE-FOLDER
"""
import json
import os
import sqlite3
import subprocess
import sys
import tempfile

VERIFY, SOURCE = sys.argv[1:3]
failures = 0


def check(what, is_right):
    global failures
    if not is_right:
        failures += 1
        print(f"FAILED  {what}")


def nests(slices):
    """Within a thread a slice ends before its neighbour begins, or lies inside it."""
    stack = []
    for begin, end in sorted(slices, key=lambda s: (s[0], -s[1])):
        while stack and stack[-1] <= begin:
            stack.pop()
        if stack and end > stack[-1]:
            return False
        stack.append(end)
    return True


def look(scenario, *options):
    with tempfile.TemporaryDirectory() as folder:
        store, trace = os.path.join(folder, "run.db"), os.path.join(folder, "run.json")
        subprocess.run([VERIFY, "run", f"{SOURCE}/scenarios/{scenario}.toml", "--trace", store, *options], stdout=subprocess.DEVNULL, check=False)
        subprocess.run([VERIFY, "report", store, "--format", "perfetto", "-o", trace], check=False)
        with open(trace, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        with sqlite3.connect(store) as db:
            posted = sorted(db.execute('SELECT "rank", "group", "sequence" FROM ev_collective_post').fetchall())
    slices = [e for e in events if e["ph"] == "X"]
    calls = {}
    for s in slices:
        if s["cat"] == "collectives":
            calls.setdefault((s["pid"], s["tid"], s["ts"]), s)
    drawn = sorted((s["pid"], int(s["args"]["group_id"]), s["args"]["sequence"]) for s in slices if s["cat"] == "collectives")
    check(f"{scenario}: every collective is one slice, {len(posted)} posted, {len(drawn)} drawn", drawn == posted)
    threads = {}
    for s in slices:
        # nanoseconds: three digits behind the point are exact as integers
        begin = round(s["ts"] * 1000)
        threads.setdefault((s["pid"], s["tid"]), []).append((begin, begin + round(s["dur"] * 1000)))
    for thread, its in threads.items():
        check(f"{scenario}: slices of thread {thread} nest", nests(its))
    flows = {}
    for e in events:
        if e["ph"] in "sf":
            flows.setdefault(e["id"], []).append(e)
    for number, ends in flows.items():
        its = [calls.get((e["pid"], e["tid"], e["ts"])) for e in ends]
        check(f"{scenario}: flow {number} joins two ranks in one call",
              len(its) == 2 and None not in its and its[0]["pid"] != its[1]["pid"]
              and all(its[0]["args"][key] == its[1]["args"][key] for key in ("group_id", "sequence")))
    check(f"{scenario}: flows: {len(flows)}", len(flows) > 0)
    counters = [e["args"]["bytes"] for e in events if e["ph"] == "C"]
    check(f"{scenario}: counters never go below zero", counters and min(counters) >= 0)
    print(f"{scenario}: {len(slices)} slices, {len(flows)} flows, {len(counters)} counts")


for name in ("gan_unused_params", "bugs/hung_job", "powersgd", "uneven_inputs_join", "divergent_gradient_order", "bugs/groups_in_opposite_order"):
    look(name)
sys.exit(1 if failures else 0)
