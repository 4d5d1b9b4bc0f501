#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/bugs.md: the defects of docs/zoo.md that scenarios plant, and what the verifier says of each.

    bugs.py VERIFY            compares the page with what the program says now; 1 when they differ
    bugs.py VERIFY --write    writes the page
"""
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/bugs.md"
HEAD = """\
# Defects that the catalogue plants

    $ cddp-verify run scenarios/bugs/one_rank_skips_its_step.toml
    as expected: scenarios/bugs/one_rank_skips_its_step.toml: rank 2 leaves out an optimizer step
    …

Each row is a scenario with a defect of [zoo.md](zoo.md), which has the public thread. The table says which invariant finds it
first, where, and whom it blames. "Then" lists what is found besides. "Rank program": a rank ended with its own error.
Each is found in the first schedule. The page is written by `tests/catalogue/bugs.py VERIFY --write`, and a test compares it.
Scenarios whose defect is in a plugin are not here; neither are those that show that the runtime lacks a defect.

| tag | scenario | found by | where | blamed | then |
|---|---|---|---|---|---|
"""


def scenarios():
    """Tags of the zoo by scenario."""
    found = {}
    for path in sorted((ROOT / "scenarios").rglob("*.toml")):
        tags = re.findall(r'"(ZOO-\d+)"', path.read_text(encoding="utf-8"))
        if tags:
            found[path.relative_to(ROOT).as_posix()] = tags
    return found


def results(verify, files):
    done = subprocess.run([verify, "run", "--keep-going", "--format", "json", *files], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    try:
        return json.loads(done.stdout)["results"]
    except (ValueError, KeyError) as error:
        raise SystemExit(f"{verify}: no report of the scenarios ({error}): {done.stderr.strip()[:500]}") from error


def cell(text):
    return str(text).replace("|", "\\|")


def place(finding):
    words = []
    if finding["step"] is not None:
        words.append(f"step {finding['step']}")
    if finding["bucket"] is not None:
        words.append(f"bucket {finding['bucket']}")
    if finding["parameter"]:
        words.append(f"`{finding['parameter']}`")
    return ", ".join(words) or "–"


def blamed(finding):
    ranks = finding["ranks"] or ([] if finding["rank"] is None else [finding["rank"]])
    if not ranks:
        return "no single rank"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def rows(tagged, reported):
    for result in reported:
        if not result["as_expected"]:
            continue
        name = result["source"]
        link = f"[{name.removeprefix('scenarios/')}](../{name})"
        findings = result["findings"]
        if findings:
            first = findings[0]
            then = list(dict.fromkeys(f["invariant"] for f in findings if f["invariant"] != first["invariant"]))
            said = [first["invariant"], place(first), blamed(first), ", ".join(then) or "–"]
        else:
            said = ["rank program", "–", "–", "–"]
        for tag in tagged[name]:
            yield int(tag[4:]), [tag, link, *map(cell, said)]


def page(verify):
    tagged = scenarios()
    table = sorted(rows(tagged, results(verify, list(tagged))))
    lines = ["| " + " | ".join(row) + " |" for _, row in table]
    tags = len({row[0] for _, row in table})
    return HEAD + "\n".join(lines) + f"\n\n{len(table)} rows, {tags} tags.\n"


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    text = page(sys.argv[1])
    if sys.argv[2:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    old = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    for one, other in zip(old.splitlines(), text.splitlines()):
        if one != other:
            print(f"docs/bugs.md has:\n  {one}\nand the program says:\n  {other}")
            break
    if old != text:
        print(f"{PAGE.relative_to(ROOT)} is old: python3 tests/catalogue/bugs.py {sys.argv[1]} --write")
    return 0 if old == text else 1


if __name__ == "__main__":
    sys.exit(main())
