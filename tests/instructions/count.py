#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions of the hottest paths on fixed inputs, held against counts.txt: 2 % more fails.

    count.py --build build/release            compares; --path NAME: only this one
    count.py --build build/release --write    writes counts.txt

Exit codes: 0, 1 (a path takes more, or much less: then write the file), 77 (valgrind is missing, or the file is of
another compiler, C library, valgrind or processor).
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FILE = HERE / "counts.txt"
SLACK = 0.02
# Paths of the library alone, in instruction_paths; then whole runs of the program.
LIBRARY = ("step", "traced_step", "hash", "add", "cast", "multiply", "compare_sum", "add_exactly")
PROGRAM = {
    "run": ["run", "scenarios/bucket_rebuild.toml"],
    "run_order": ["run", "--level", "order", "scenarios/bucket_rebuild.toml"],
    "run_hook": ["run", "scenarios/powersgd.toml"],
    "run_sharded": ["run", "scenarios/fsdp/full_shard.toml"],
    "explore": ["explore", "--jobs", "1", "--budget", "4", "scenarios/gan_unused_params.toml"],
    "prove": ["prove", "--jobs", "1", "scenarios/proofs/find_unused.toml"],
    "check": ["check", "{store}"],
}


class Absent(Exception):
    """What this machine lacks: the test is skipped."""


def features():
    """Of the processor: kernels of this program and of the C library are chosen by them."""
    try:
        flags = re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    except OSError:
        flags = None
    words = set(flags.group(1).split()) if flags else set()
    return " ".join(name for name in ("avx2", "fma", "f16c", "bmi2", "erms", "fsrm") if name in words) or "unknown"


def about(build):
    if shutil.which("valgrind") is None:
        raise Absent("valgrind is missing (Debian package valgrind)")
    program = build / "tests/instructions/instruction_paths"
    first = subprocess.run([str(program), "--about"], capture_output=True, text=True, check=True).stdout.strip()
    version = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{first}, {version}, processor with {features()}"


def collected(command, options, codes):
    """Instructions of a command, as callgrind counts them."""
    done = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *options, *command],
                          cwd=ROOT, capture_output=True, text=True, check=False,
                          env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode not in codes or found is None or int(found.group(1)) == 0:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return int(found.group(1))


def measure(build, names, scratch):
    verify = str(build / "bin/cddp-verify")
    for name in names:
        if name in LIBRARY:
            yield name, collected([str(build / "tests/instructions/instruction_paths"), name],
                                  ["--collect-atstart=no", "--toggle-collect=path_run"], (0,))
            continue
        store = pathlib.Path(scratch) / "run.db"
        words = [word.replace("{store}", str(store)) for word in PROGRAM[name]]
        if "{store}" in PROGRAM[name] and not store.exists():
            subprocess.run([verify, "run", "--trace", str(store), "scenarios/bucket_rebuild.toml"], cwd=ROOT,
                           stdout=subprocess.DEVNULL, check=True)
        yield name, collected([verify, *words], [], (0, 4) if name == "run_order" else (0,))


def read():
    lines = [line for line in FILE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return lines[0], {name: int(count) for name, count in (line.split() for line in lines[1:])}


def write(described, counts):
    head = ["# SPDX-License-Identifier: Apache-2.0",
            "# Instructions of each path. Written by: /usr/bin/python3 tests/instructions/count.py --write", described]
    FILE.write_text("\n".join(head + [f"{name} {count}" for name, count in counts.items()]) + "\n", encoding="utf-8")


def compare(name, count, known):
    """A line, and whether it fails."""
    if name not in known:
        return f"{name}: {count}, not in counts.txt", True
    change = count / known[name] - 1
    line = f"{name}: {count}, {100 * change:+.2f} %"
    if change > SLACK:
        return f"{line}: more than {known[name]} by over 2 %", True
    if change < -SLACK:
        return f"{line}: less than {known[name]} by over 2 %: write the new number, so that it holds", True
    return line, False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release", metavar="DIR")
    parser.add_argument("--path", action="append", choices=[*LIBRARY, *PROGRAM], metavar="NAME", help="only this path")
    parser.add_argument("--write", action="store_true", help="write counts.txt")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    names = arguments.path or [*LIBRARY, *PROGRAM]
    try:
        described = about(build)
    except Absent as absent:
        print(f"skipped: {absent}")
        return 77
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.write:
            counts = {} if arguments.path is None else read()[1]
            counts.update(measure(build, names, scratch))
            write(described, counts)
            print(FILE.read_text(encoding="utf-8"), end="")
            return 0
        of, known = read()
        if of != described:
            print(f"skipped: counts.txt is of {of}; this is {described}")
            return 77
        failed = False
        for name, count in measure(build, names, scratch):
            line, is_bad = compare(name, count, known)
            failed = failed or is_bad
            print(line, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
