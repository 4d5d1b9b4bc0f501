# SPDX-License-Identifier: Apache-2.0
"""The map from functions to the scenarios that enter them: made by an instrumented program, kept in touched.map.

The file has one line for each scenario, in the order of how many functions it enters (cheap ones first), and one line for
each function with the numbers of its scenarios, as ranges. Functions with the scenarios of the line above say so by "=".
"""
import bisect
import concurrent.futures
import os
import re
import subprocess

from program import Program, agrees, run, verified
from tree import HERE, ROOT, Mistake, digest, functions_of, read_text, scenarios

FILE = HERE / "touched.map"
OLD = 10  # a map is too old when more than one in so many functions or scenarios is not in it, or is gone


def ranges(numbers):
    parts, numbers = [], sorted(numbers)
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "none"


def numbers_of(text):
    numbers = []
    if text != "none":
        for part in text.split(","):
            first, _, last = part.partition("-")
            numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


class Map:
    def __init__(self, path=FILE):
        self.scenarios, self.costs, self.functions, self.tree = [], [], {}, ""
        if not path.is_file():
            raise Mistake(f"{path} does not exist: make it with the verb map")
        last, file = None, None
        for number, line in enumerate(read_text(path).splitlines(), 1):
            words = line.split()
            try:
                if not words or words[0].startswith("#"):
                    continue
                if words[0] == "tree":
                    self.tree = words[1]
                elif words[0] == "scenario":
                    self.costs.append(int(words[1]))
                    self.scenarios.append(words[2])
                elif words[0] == "file":
                    file = words[1]
                else:
                    last = last if words[1] == "=" else numbers_of(words[1])
                    if last and last[-1] >= len(self.scenarios):
                        raise ValueError("a number without a scenario")
                    self.functions[file, words[0]] = last
            except (ValueError, IndexError) as error:
                raise Mistake(f"{path}:{number}: not a line of a map ({error}); make it again with the verb map") from error

    def touching(self, file, function):
        """The numbers of the scenarios that enter a function, cheap ones first; None when the map does not know it."""
        if function == "-":
            numbers = set()
            for (other, _), touching in self.functions.items():
                if other == file:
                    numbers.update(touching)
            return sorted(numbers)
        return self.functions.get((file, function))


def age(build_sources, mapped):
    """What the tree has that the map lacks, and the reverse: (what, known, missing, gone) for functions and scenarios."""
    here = {(file, name) for file in build_sources for name in functions_of(read_text(ROOT / file))}
    there = set(mapped.functions)
    files = scenarios()
    return [("functions", len(here), sorted(here - there), sorted(there - here)),
            ("scenarios", len(files), sorted(set(files) - set(mapped.scenarios) - skipped_by_text(files)),
             sorted(set(mapped.scenarios) - set(files)))]


def skipped_by_text(files):
    """Scenarios that need a plugin, whose names begin with plant_: the program alone cannot run them."""
    return {file for file in files if re.search(r'"plant_\w+"', read_text(ROOT / file))}


def make(program: Program, sources, tree, jobs, say):
    """Builds the instrumented program, runs each scenario with it, and writes the map."""
    folder = program.scratch / "touched"
    folder.mkdir(exist_ok=True)
    objects = {}
    say(f"building {len(sources)} instrumented objects")
    flags = ["-O1", "-finstrument-functions", "-falign-functions=16"]

    def one(file):
        target = folder / (digest(file)[:16] + ".o")
        failed = program.compile(file, read_text(ROOT / file), target, flags)
        if failed:
            raise Mistake(f"{file} does not compile instrumented: {failed.strip().splitlines()[0]}")
        return file, target

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        objects.update(pool.map(one, sources))
    binary = link(program, objects, folder)
    names = symbols(binary, folder / "link.map", objects)
    say("running each scenario")
    files = clean_scenarios(program)

    def touch(scenario):
        note = folder / (digest(scenario)[:16] + ".touched")
        outcome = run([str(binary), "run", scenario], environment={**os.environ, "CDDP_TOUCHED": str(note)})
        if not agrees(outcome, [scenario]):
            raise Mistake(f"the instrumented program does not verify {scenario}: {outcome.how}\n{outcome.output}")
        data = note.read_bytes()
        note.unlink()
        entries = int.from_bytes(data[:8], "little")
        places = (16 * found.start() for found in re.finditer(b"\x01", data[8:]))
        return entries, scenario, {names[place] for place in places if place in names}

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        rows = sorted(pool.map(touch, files), key=lambda row: (row[0], row[1]))
    write(rows, sources, tree)
    say(f"{FILE.relative_to(ROOT)}: {len(rows)} scenarios, {len(set().union(*(row[2] for row in rows)))} functions entered")


def clean_scenarios(program):
    """The scenarios that the clean program verifies by itself; those that need a plugin are not among them."""
    outcome = run([str(program.clean), "run", "--keep-going", "scenarios"])
    if outcome.code != 0:
        lines = [line for line in outcome.output.splitlines() if not line.startswith(("verified: ", "as expected: ", "skipped: "))]
        raise Mistake(f"the clean program does not verify the catalogue ({outcome.how}); nothing can be said of mutants:\n"
                      + "\n".join(lines[-20:]))
    return verified(outcome)


def link(program, objects, folder):
    hook, binary = folder / "touch.o", folder / "cddp-verify"
    compiler = program.build.command(next(iter(objects)))[0]
    done = subprocess.run([compiler, "-O1", "-c", str(HERE / "touch.c"), "-o", str(hook)], capture_output=True, text=True, check=False)
    words = list(program.link)
    for file, target in objects.items():
        original = program.build.object_of(file)
        if original in words:
            words[words.index(original)] = str(target)
    words[words.index("-o") + 1] = str(binary)
    words += [str(hook), f"-Wl,-Map,{folder / 'link.map'}"]
    if done.returncode == 0:
        done = subprocess.run(words, cwd=program.build.folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Mistake(f"the instrumented program cannot be linked: {done.stderr.strip()}")
    return binary


def symbols(binary, link_map, objects):
    """(file, function) by address relative to the program's start, of functions in the instrumented objects."""
    sections = []
    by_object = {str(target): file for file, target in objects.items()}
    for found in re.finditer(r"^ \.text\S*\s+0x([0-9a-f]+)\s+0x([0-9a-f]+) (\S+)$", read_text(link_map), re.M):
        if found.group(3) in by_object:
            sections.append((int(found.group(1), 16), int(found.group(2), 16), by_object[found.group(3)]))
    sections.sort()
    starts = [section[0] for section in sections]
    base, names = None, {}
    rows = [line.split() for line in subprocess.run(["nm", str(binary)], capture_output=True, text=True, check=True).stdout.splitlines()]
    base = next((int(row[0], 16) for row in rows if row[-1] == "__executable_start"), 0)
    for row in rows:
        if len(row) == 3 and row[1] in "tT":
            address = int(row[0], 16)
            at = bisect.bisect_right(starts, address) - 1
            if at >= 0 and address < sections[at][0] + sections[at][1] and "." not in row[2]:
                names[address - base] = (sections[at][2], row[2])
    return names


def write(rows, sources, tree):
    lines = ["# SPDX-License-Identifier: Apache-2.0",
             "# Which scenarios enter which function. Made by: /usr/bin/python3 tests/mutation map",
             f"tree {tree}"]
    lines += [f"scenario {entries} {scenario}" for entries, scenario, _ in rows]
    touched = {}
    for number, (_, _, names) in enumerate(rows):
        for name in names:
            touched.setdefault(name, []).append(number)
    last = None
    for file in sources:
        lines.append(f"file {file}")
        for function in functions_of(read_text(ROOT / file)):
            text = ranges(touched.get((file, function), []))
            lines.append(f"{function} {'=' if text == last else text}")
            last = text
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
