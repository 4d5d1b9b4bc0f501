#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/run reads what the benches print: numbers, limits, and why there is none. The benches here are stubs.

    bench_test.py SOURCE
"""
import datetime
import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

SAID = {
    "fsdp_gloo_bench": "the runtime       12.100 ms a step   1.080 times by hand (1.070 to 1.090), limit 1.10: kept\n"
                       "by hand again     11.000 ms a step   1.001 times by hand (0.990 to 1.010)\n",
    "gloo_bench": "     2      1024      358.0      361.0      476.0    1.000 (0.990 to 1.020)    2.600 (2.550 to 2.800)    1.000 "
                  "(0.990 to 1.010)    1.000  1.100   kept\n"
                  "     2     16384      358.0      361.0      476.0    1.300 (1.100 to 1.920)    2.700 (2.600 to 2.800)    1.000 "
                  "(0.990 to 1.010)    1.000  1.100   open\n",
    "guard_bench": "resnet50: the guard costs +2.42 % of a step that computes (-1.10 to +3.00), 690.6 ms without it, 54 pairs on Gloo\n",
    "trace_cost_bench": "level digest      56.42 ms per step  (x 2.827)\norder costs -3.0% of a step; digest hashes 920 MB per step at 0.65 times one read of them (115.53 ms)\n",
    "store_bench": "store / 8-column ceiling           0.80\nbytes per event            60.7\n",
    "hook_bench": "  cast to bf16                 1.500 us   1.20 times a copy; the limit is 3\n  a copy                       1.250 us\n",
    "record_bench": "2 ranks, 512 tokens: 40.0 ms a step, 40.6 ms recorded, 1.015 times\n",
    "explore_bench": "random       3 ranks x  4 buckets:     20928 schedules,    20926 per second of CPU time, judged, device cpu, 1 outcome(s)\n",
    "fsdp_bench": "FULL_SHARD      1024 ranks  50 units  sends 1 GiB\n5.600 s, limit 10; 0.960 GiB, limit 8: kept\n",
}
EXPECTED = [
    "a step of the sharded runtime on Gloo · the same collectives by hand · 1.08 · at most 1.1 · kept",
    "an all-reduce on Gloo without the guard: 2 neighbours, worst with 16384 bytes · Gloo alone · 1.3 · at most 1.2 · open",
    "an all-reduce on Gloo with the guard: 2 neighbours, worst with 16384 bytes · Gloo alone · 2.7 · at most 2.5 · missed",
    "the guard, % of a step: resnet50 · no guard · 2.42 · at most 2 · open",
    "a trace at level order, % of a step without computing · no trace · -3 · at most 5 · kept",
    "a trace at level digest, a step without computing · no trace · 2.827 · at most 1.3 · missed",
    "hashing at level digest · one read of the gradients · 0.65 · at most 1.2 · kept",
    "events into the store · a plain INSERT of eight columns · 0.8 · at least 0.33 · kept",
    "comm hooks' casts and sums: cast to bf16 · a copy, a plain addition · 1.2 · at most 3 · kept",
    "a recorded step of a transformer, 512 tokens · the same step unrecorded · 1.015 · at most 1.03 · kept",
    "schedules explored in a second and judged · 60,000 · 20926 · at least 60000 · missed",
    "sharded training of 1,024 simulated ranks, in seconds · 10 s · 5.6 · at most 10 · kept",
    "matrix product of 512³ in f32 · OpenBLAS · – · – · not here: cddp-bench-tensor was not built",
]


def keeps_other_rows(source, folder):
    """--only with --write renews its rows; the others stay as the page has them, with their days."""
    loader = importlib.machinery.SourceFileLoader("bench_run", str(source / "bench/run"))
    sys.dont_write_bytecode = True  # not beside the sources
    run = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_run", loader))
    loader.exec_module(run)
    run.PAGE, run.FIGURE = folder / "page.md", folder / "figure.svg"
    before = [run.Row("events into the store", "a plain INSERT of eight columns", "", 0.5, ">=", 0.33, day="2026-01-02"),
              run.Row("sharded training of 1,024 simulated ranks, in seconds", "10 s", "", 50.0, "<=", 10),
              run.Row("matrix product of 512³ in f32", "OpenBLAS", "", None, ">=", 0.25, "not here: no peer", day="2026-01-02")]
    run.PAGE.write_text(run.page(before), encoding="utf-8")
    run.main([str(folder), "--only", "sharded training", "--write"])
    page = run.PAGE.read_text(encoding="utf-8")
    wanted = ["| events into the store | a plain INSERT of eight columns | 0.5 | at least 0.33 | kept | 2026-01-02 |",
              "| sharded training of 1,024 simulated ranks, in seconds | 10 s | 5.6 | at most 10 | kept |",
              "| matrix product of 512³ in f32 | OpenBLAS | – | – | not here: no peer | 2026-01-02 |"]
    return all(line in page for line in wanted) and page.count("\n| ") == len(wanted) + 1


def main():
    source = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        bench = pathlib.Path(folder) / "bench"
        bench.mkdir()
        for name, said in SAID.items():
            (bench / name).write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\n", encoding="utf-8")
            os.chmod(bench / name, 0o755)
        failed = 0
        for line in EXPECTED:
            done = subprocess.run([source / "bench/run", folder, "--only", line.split(" · ")[0].split(": ")[0]], capture_output=True, text=True, check=False)
            if done.stdout.strip() != f"{line} · {datetime.date.today().isoformat()}" or done.returncode != line.endswith("missed"):
                failed += 1
                print(f"expected {line}\nfound    {done.stdout.strip()}{done.stderr.strip()} (exit {done.returncode})")
        if not keeps_other_rows(source, pathlib.Path(folder)):
            failed += 1
            print("the page lost a row that was not measured, or has an old one")
    print(f"{len(EXPECTED)} rows, {failed} read wrongly")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
