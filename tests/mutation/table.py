# SPDX-License-Identifier: Apache-2.0
"""The table of docs/mutation.md: what became of the mutants of each folder and seed."""
import dataclasses

from tree import FOLDERS, ROOT, Mistake, folder_of, read_text

PAGE = ROOT / "docs/mutation.md"
BEGIN, END = "<!-- numbers: table --write -->\n", "<!-- end of numbers -->\n"


@dataclasses.dataclass
class Count:
    drawn: int = 0
    built: int = 0
    equivalent: int = 0
    scenarios: int = 0
    units: int = 0
    lived: int = 0


def count(rows, equal):
    """rows: (key, outcome, units)."""
    sums = Count()
    for key, outcome, units in rows:
        sums.drawn += 1
        sums.built += outcome != "unbuilt"
        if outcome == "noticed":
            sums.scenarios += 1
        elif outcome == "same" or outcome == "lived" and key in equal:
            sums.equivalent += 1
        elif outcome == "lived" and units not in ("", "not run"):
            sums.units += 1
        elif outcome == "lived":
            sums.lived += 1
    return sums


def share(part, whole):
    return f"{100 * part / whole:.0f} %" if whole else "–"


def sentence(sums, drawn):
    able = sums.built - sums.equivalent
    return (f"{sums.drawn} of {drawn} mutants judged: {sums.built} built, {sums.equivalent} equivalent; of the other {able} "
            f"{sums.scenarios} noticed by scenarios ({share(sums.scenarios, able)}), {sums.units} by unit tests alone, {sums.lived} lived")


def table(rows, found, equal, mapped):
    """rows: as the store has them; found: all mutants of the sources by key."""
    lines = ["| folder | mutants | seed | drawn | built | equivalent | noticed by scenarios | of those that can be | by unit tests alone | lived | of them in functions that no scenario enters |",
             "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for folder in FOLDERS:
        here = [row for row in rows if folder_of(row[1]) == folder]
        total = sum(1 for key in found if folder_of(key[0]) == folder)
        if not here:
            lines.append(f"| `{folder}` | {total} | – | 0 | | | | | | | |")
        for seed in sorted({row[0] for row in here}):
            sums = count([(tuple(row[1:6]), row[6], row[9]) for row in here if row[0] == seed], equal)
            able = sums.built - sums.equivalent
            apart = sum(1 for row in here if row[0] == seed and row[6] == "lived" and row[9] in ("", "not run")
                        and tuple(row[1:6]) not in equal and mapped.touching(row[1], row[2]) == [])
            ran = any(row[6] == "lived" and row[9] != "not run" for row in here if row[0] == seed)
            lines.append(f"| `{folder}` | {total} | {seed} | {sums.drawn} | {sums.built} | {sums.equivalent} | {sums.scenarios} | "
                         f"{share(sums.scenarios, able)} | {sums.units if ran else 'not run'} | {sums.lived} | {apart} |")
    return "\n".join(lines) + "\n"


def put(text):
    page = read_text(PAGE) if PAGE.is_file() else ""
    if BEGIN not in page or END not in page:
        raise Mistake(f"{PAGE} lacks the lines {BEGIN.strip()} and {END.strip()}, between which the numbers stand")
    head, rest = page.split(BEGIN, 1)
    PAGE.write_text(head + BEGIN + "\n" + text + "\n" + END + rest.split(END, 1)[1], encoding="utf-8")
