# SPDX-License-Identifier: Apache-2.0
"""The table of docs/mutation.md: what became of the mutants of each folder and seed."""
import dataclasses

from tree import FOLDERS, HERE, ROOT, Mistake, folder_of, read_text

PAGE, NUMBERS = ROOT / "docs/mutation.md", HERE / "numbers.txt"
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


@dataclasses.dataclass
class Row:
    """The numbers of one draw. None: not known, or unit tests were not run."""
    folder: str
    seed: str
    drawn: int
    built: int
    equivalent: int
    first: int
    scenarios: int
    units: int
    lived: int
    apart: int

    @property
    def place(self):
        return FOLDERS.index(self.folder), len(self.seed), self.seed


def rows_of(judged, equal, mapped):
    """The draws in a store: judged has the seed, the key, the first outcome, the last one and its units."""
    rows = []
    for folder, seed in sorted({(folder_of(row[1]), row[0]) for row in judged}):
        here = [row for row in judged if folder_of(row[1]) == folder and row[0] == seed]
        sums = count([(tuple(row[1:6]), row[7], row[8]) for row in here], equal)
        lived = [row for row in here if row[7] == "lived" and tuple(row[1:6]) not in equal]
        apart = sum(1 for row in lived if row[8] in ("", "not run") and mapped.touching(row[1], row[2]) == [])
        ran = any(row[8] != "not run" for row in lived)
        rows.append(Row(folder, seed, sums.drawn, sums.built, sums.equivalent, sum(row[6] == "noticed" for row in here),
                        sums.scenarios, sums.units if ran else None, sums.lived, apart))
    return rows


def kept(path=NUMBERS):
    """The draws that the tree remembers: a store is gone with its build, and a seed is unread only once."""
    rows = []
    for number, line in enumerate(read_text(path).splitlines() if path.is_file() else (), 1):
        if not line or line.startswith("#"):
            continue
        words = line.split(" | ")
        if len(words) != len(dataclasses.fields(Row)) or words[0] not in FOLDERS or not all(w == "-" or w.isdigit() for w in words[2:]):
            raise Mistake(f"{path}:{number}: not \"{' | '.join(field.name for field in dataclasses.fields(Row))}\"")
        rows.append(Row(*words[:2], *(None if word == "-" else int(word) for word in words[2:])))
    return rows


def merged(old, new):
    """A draw that was judged again replaces what was kept of it, unless it is smaller: then it was only begun."""
    rows = {(row.folder, row.seed): row for row in old}
    for row in new:
        before = rows.get((row.folder, row.seed))
        if before is None or row.drawn >= before.drawn:
            rows[row.folder, row.seed] = row
    return sorted(rows.values(), key=lambda row: row.place)


def keep(rows, path=NUMBERS):
    names = [field.name for field in dataclasses.fields(Row)]
    head = ["# SPDX-License-Identifier: Apache-2.0",
            "# Draws of mutants that were judged, \"-\" where a number is not known. Written by: /usr/bin/python3 tests/mutation table --write",
            "# " + " | ".join(names)]
    lines = [" | ".join("-" if value is None else str(value) for value in dataclasses.astuple(row)) for row in rows]
    path.write_text("\n".join(head + lines) + "\n", encoding="utf-8")


def table(rows, found):
    """rows: those of the page; found: all mutants of the sources by key."""
    lines = ["| folder | mutants | seed | drawn | built | equivalent | noticed by scenarios at first sight | of those that can be | noticed now | of those that can be | by unit tests alone | lived | of them in functions that no scenario enters |",
             "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for folder in FOLDERS:
        here = [row for row in rows if row.folder == folder]
        total = sum(1 for key in found if folder_of(key[0]) == folder)
        if not here:
            lines.append(f"| `{folder}` | {total} | – | 0 | | | | | | | | | |")
        for row in here:
            able = row.built - row.equivalent
            first = ("", "") if row.first is None else (row.first, share(row.first, able))
            lines.append(f"| `{folder}` | {total} | {row.seed} | {row.drawn} | {row.built} | {row.equivalent} | {first[0]} | {first[1]} | "
                         f"{row.scenarios} | {share(row.scenarios, able)} | {'not run' if row.units is None else row.units} | {row.lived} | "
                         f"{'' if row.apart is None else row.apart} |")
    return "\n".join(lines) + "\n"


def put(text):
    page = read_text(PAGE) if PAGE.is_file() else ""
    if BEGIN not in page or END not in page:
        raise Mistake(f"{PAGE} lacks the lines {BEGIN.strip()} and {END.strip()}, between which the numbers stand")
    head, rest = page.split(BEGIN, 1)
    PAGE.write_text(head + BEGIN + "\n" + text + "\n" + END + rest.split(END, 1)[1], encoding="utf-8")
