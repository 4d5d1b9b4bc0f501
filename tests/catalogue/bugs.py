#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/bugs.md: the defects of docs/zoo.md, what the verifier says of each, and what simpler checkers would.

    bugs.py VERIFY [TAG…]     runs the defects and compares the page with what comes out; 1 when they differ
    bugs.py VERIFY --write    writes the page

defects.toml beside this file says which run shows a defect. Each is run, replayed and shrunk, and its clean twin is run.
detail.json has what PyTorch's DETAIL mode said (detail.py).
"""
import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import sqlite3
import subprocess
import sys
import tempfile
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs/bugs.md"
RANKS_MAX, PARAMETERS_MAX = 3, 4  # a defect is shrunk to these, unless `needs` says why not

HEAD = """\
# Defects that the catalogue plants

    $ cddp-verify run scenarios/bugs/one_rank_skips_its_step.toml
    as expected: scenarios/bugs/one_rank_skips_its_step.toml: rank 2 leaves out an optimizer step
    …

Each defect of [zoo.md](zoo.md), which has its public thread, is planted and run. `tests/catalogue/bugs.py VERIFY --write` writes
this page from [defects.toml](../tests/catalogue/defects.toml), and a test compares it.

* **planted**: a scenario, or a mistake that is built into the runtime (`tests/mutants/code`), with the scenario that shows it.
* **found by**: the invariant of the first finding; where it is not one that the thread's story breaks by name, why it says as much. *Error*: the runtime itself refused it, in words.
* **blamed**: the ranks that the first finding names.
* **schedules**: how many were tried until one showed it. **events**: of that run; a thousand take about a millisecond.
* **shrunk**: ranks, parameters and steps of the smallest scenario that still fails for the same reason.
* **clean twin**: the same run without the defect, which is verified.
* **naive**: what a naive checker says, which looks whether the job ends, whether all ranks end with equal parameters, and whether the loss
  goes down. *Loss goes up*: the mean loss of the last step is not below that of the first, and it is in the clean twin. Most of these runs
  have few steps and other samples in each, so that the loss of the clean twin often goes up as well: then it says nothing.
* **DETAIL**: what PyTorch 1.13 says of the same defect over Gloo with `TORCH_DISTRIBUTED_DEBUG=DETAIL`, from `tests/catalogue/detail.py`. –: it
  was not tried, since the defect is inside a library, or in something that PyTorch does not have.

Every finding of this page was replayed from its printed schedule, with the same trace.

"""
COLUMNS = ["defect", "thread", "planted", "found by", "where", "blamed", "schedules", "events", "shrunk", "clean twin", "naive", "DETAIL"]
OTHER_COLUMNS = ["tag", "scenario", "found by", "where", "blamed", "then"]


def cell(text):
    return str(text).replace("|", "\\|")


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(map(cell, row)) + " |" for row in rows]) + "\n"


def tags_of_scenarios():
    """Tags of the zoo by scenario."""
    found = {}
    for path in sorted((ROOT / "scenarios").rglob("*.toml")):
        tags = re.findall(r'"(ZOO-\d+)"', path.read_text(encoding="utf-8"))
        if tags:
            found[path.relative_to(ROOT).as_posix()] = tags
    return found


def place(finding):
    words = []
    if finding["step"] is not None:
        words.append(f"step {finding['step']}")
    if finding["bucket"] is not None:
        words.append(f"bucket {finding['bucket']}")
    if finding["parameter"]:
        words.append(f"`{finding['parameter']}`")
    return ", ".join(words) or "–"


def blamed(finding, world=0):
    ranks = finding["ranks"] or ([] if finding["rank"] is None else [finding["rank"]])
    if not ranks:
        return "no single rank"
    if len(ranks) == world > 1:
        return "all ranks"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


class Verifier:
    """The program under test, and the programs beside it with a mistake built in."""

    def __init__(self, verify):
        self.verify = pathlib.Path(verify).resolve()
        self.build = self.verify.parents[1]
        self.plugin = self.build / "tests/plants/cddp-plants.so"

    def program(self, patch=None):
        return str(self.build / "tests/mutants" / f"verify_{patch}" if patch else self.verify)

    def ask(self, program, command, scenario, *options):
        is_whole = program == str(self.verify)  # the others do not export what a plugin calls
        needs = any('"plant_' in (ROOT / s).read_text(encoding="utf-8") for s in [scenario, *options] if s.endswith(".toml") and (ROOT / s).is_file())
        plugin = ["--plugin", str(self.plugin)] if is_whole and needs else []
        done = subprocess.run([program, command, scenario, "--format", "json", *plugin, *options], cwd=ROOT, capture_output=True, text=True,
                              check=False)
        try:
            return json.loads(done.stdout)
        except ValueError:
            return {"results": [], "facts": {}, "text": "", "error": (done.stderr or done.stdout).strip()[:300]}

    def result(self, program, scenario, *options, command="run"):
        answer = self.ask(program, command, scenario, *options)
        if not answer["results"]:
            raise SystemExit(f"{program} {command} {scenario} {' '.join(options)}: no report: {answer.get('error')}")
        return answer["results"][0]


def without(text, name):
    """The scenario without its tables [[name]] and without what it expects."""
    blocks = re.split(r"(?m)^(?=\[)", text)
    kept = [b for b in blocks if not re.match(rf"\[\[?({name}|expect(\.finding)?)\]", b)]
    return "".join(kept)


def settings(text):
    return [word for key in text.split() for word in ("--set", key)] if text else []


FIRST = {'"fault:': "set world.backend=sim", "generations = false": "set rendezvous.generations=true"}
CLEAN = ["without when", "without rank", "without fault", "without collective", "set hook.name=allreduce", "set hook.name=",
         "set clip.place=after_reduction",
         "set train.loss=global_mean"]


class Case:
    def __init__(self, tag, row, verifier):
        self.tag, self.row, self.v = tag, row, verifier
        self.path = f"scenarios/{row['scenario']}.toml"
        self.program = verifier.program(row.get("patch"))
        self.options = settings(row.get("set", ""))
        self.problems = []

    def complain(self, words):
        self.problems.append(f"{self.tag} ({self.row.get('patch') or self.row['scenario']}): {words}")

    # what is found

    def run(self, folder):
        database = os.path.join(folder, "run.db")
        self.schedules = 1
        self.goes_up = False
        options = list(self.options)
        if "explore" in self.row:
            answer = self.v.ask(self.program, "explore", self.path, *options, "--budget", str(self.row["explore"]))
            self.schedules = answer["facts"].get("schedules", 0)
            replay = re.search(r"replay +cddp-verify replay \S+((?: --set \S+)*) --schedule (\S+)", answer["text"])
            if replay is None:
                self.complain(f"no schedule of {self.schedules} shows it")
                return
            self.options = options = replay[1].split()
            self.first = self.v.result(self.program, self.path, *options, "--schedule", replay[2], command="replay")
            self.naive = "–"  # by chance
        else:
            self.first = self.v.result(self.program, self.path, *options, "--trace", database)
            self.naive = self.ask_naive(database)
            self.goes_up = self.naive == "silent" and not self.goes_down(self.program, self.path, options, folder)
        self.finding = self.first["findings"][0] if self.first["findings"] else None
        if self.finding is None and not self.is_refused() and not self.is_other_bits():
            self.complain(f"nothing is found: {self.first['summary']}")
        if not self.row.get("patch") and not self.row.get("set") and "explore" not in self.row and not self.first["as_expected"]:
            self.complain(f"not as the scenario expects: {self.first['summary']}")
        found = self.finding["invariant"] if self.finding else "error"
        named = self.row.get("named", found)
        if found not in named.split() and not self.row.get("because"):
            self.complain(f"found by {found}, named are {named}: say why that is as good (because)")
        if self.finding and "blame" in self.row and self.blame() != self.row["blame"]:
            self.complain(f"blames {self.blame()}, and it is {self.row['blame']}")
        self.replay()
        self.shrink(folder)
        self.twin(folder)

    def is_refused(self):
        return "did not finish" in self.first["summary"] or "did not finish" in self.first["reason"] or self.first["reason"] == "a rank failed"

    def is_other_bits(self):
        return self.first["reason"] == "expect.same_with"

    def blame(self):
        return blamed(self.finding, self.first["world_size"]) if self.finding else "–"

    def replay(self):
        if self.is_other_bits():
            return
        again = self.v.result(self.program, self.path, *self.options, "--schedule", self.first["schedule"], command="replay")
        if (again["trace"], again["summary"]) != (self.first["trace"], self.first["summary"]):
            self.complain(f"replay says {again['summary']}, and the run said {self.first['summary']}")

    def shrink(self, folder):
        self.small = "–"
        if self.row.get("needs") == "whole":
            return
        small = os.path.join(folder, "small.toml")
        answer = self.v.ask(self.program, "shrink", self.path, *self.options, "--schedule", self.first["schedule"], "-o", small)
        size = re.match(r"(\d+) ranks? trains? (\d+) parameters? for (\d+) step", answer["facts"].get("story", ""))
        if size is None:
            self.complain(f"shrink: {answer.get('error') or answer['text'][:200]}")
            return
        ranks, parameters, steps = map(int, size.groups())
        self.small = f"{ranks} × {parameters} × {steps}"
        kept = answer["results"][0]["findings"] if answer["results"] else []
        if self.finding and (not kept or kept[0]["invariant"] != self.finding["invariant"]):
            self.complain(f"shrunk to another defect: {[f['invariant'] for f in kept]}")
        if (ranks > RANKS_MAX or parameters > PARAMETERS_MAX) and not self.row.get("needs"):
            self.complain(f"shrunk to {ranks} ranks and {parameters} parameters: say what the defect needs (needs)")
        if self.row.get("needs"):
            self.small += f" ({self.row['needs']})"

    # its clean twin

    def is_clean(self, how, folder):
        kind, _, what = how.partition(" ")
        path, options = self.path, settings(self.row.get("set", ""))
        text = (ROOT / self.path).read_text(encoding="utf-8")
        if kind == "scenario":
            path, options = f"scenarios/{what}.toml", []
        elif kind == "itself":
            options = []
        else:
            text = without(text, what if kind == "without" else "none")
            path = os.path.join(folder, "twin.toml")
            pathlib.Path(path).write_text(text, encoding="utf-8")
            options = settings(what) if kind == "set" else []
        answer = self.v.ask(self.v.program(), "run", path, *options)
        result = answer["results"][0] if answer["results"] else {"verdict": "", "findings": [1]}
        if result["verdict"] != "verified" or result["findings"]:
            return False
        if self.goes_up and self.goes_down(self.v.program(), path, options, folder):
            self.naive = "loss goes up"
        return True

    def candidates(self):
        text = (ROOT / self.path).read_text(encoding="utf-8")
        first = [how for mark, how in FIRST.items() if mark in text]
        return first + CLEAN

    def twin(self, folder):
        how = "itself" if self.row.get("patch") or self.row.get("set") or "explore" in self.row else self.row.get("clean")
        for candidate in [how] if how else self.candidates():
            if self.is_clean(candidate, folder):
                self.clean = "the scenario" if candidate == "itself" else self.say(candidate)
                return
        self.clean = "–"
        self.complain("no clean twin")

    @staticmethod
    def say(how):
        kind, _, what = how.partition(" ")
        if kind == "without":
            return f"without `[[{what}]]`"
        if kind == "set":
            return f"`--set {what}`"
        return f"[{what}](../scenarios/{what}.toml)"

    # what others say

    @staticmethod
    def ask_naive(database):
        """Does the job end, and do its ranks end with equal parameters?"""
        with sqlite3.connect(database) as store:
            ended = store.execute("SELECT count(*), sum(text IS NOT NULL AND text != '') FROM ev_rank_end").fetchone()
            begun = store.execute("SELECT count(*) FROM ev_rank_begin").fetchone()[0]
            split = store.execute("SELECT count(*) FROM (SELECT id FROM ev_value WHERE what = 'parameter' AND moment = 'end' GROUP BY id "
                                  "HAVING count(DISTINCT digest) > 1)").fetchone()[0]
        if ended[0] < begun:
            return "hangs"
        if ended[1]:
            return "fails"
        return "ranks differ" if split else "silent"

    def goes_down(self, program, path, options, folder):
        """Is the mean loss of the last step below that of the first?"""
        database = os.path.join(folder, "loss.db")
        pathlib.Path(database).unlink(missing_ok=True)
        self.v.ask(program, "run", path, *options, "--level", "payload", "--trace", database)
        with sqlite3.connect(database) as store:
            # A NaN is stored as a word: no loss is worse.
            means = [value for value, in store.execute("SELECT avg(CASE typeof(value) WHEN 'real' THEN value ELSE 9e999 END) FROM ev_loss_value "
                                                       "GROUP BY step ORDER BY step")]
        return len(means) > 1 and means[-1] < means[0]

    def cells(self, thread, detail):
        link = f"[{self.row['scenario']}](../{self.path})"
        planted = f"`{self.row['patch']}` in {link}" if self.row.get("patch") else link
        if self.row.get("set"):
            planted += f" `--set {self.row['set']}`"
        found = self.finding["invariant"] if self.finding else "other bits" if self.is_other_bits() else "error"
        if "because" in self.row:
            found += f": {self.row['because']}"
        where = place(self.finding) if self.finding else "–"
        return [self.tag, thread, planted, found, where, self.blame(), self.schedules, self.first["events"], self.small, self.clean, self.naive,
                detail.get(self.tag, "–")]


def threads():
    """Where each defect happened, by tag, from the pages that list them."""
    found = {}
    for page in ("docs/zoo.md",):
        for tag, thread in re.findall(r"(?m)^\| ((?:ZOO|F)-\d+) \|[^|]*\| ([^|]*) \|", (ROOT / page).read_text(encoding="utf-8")):
            found[tag] = thread.strip()
    return found


def run_cases(defects, verifier):
    cases = [Case(tag, row, verifier) for tag, row in defects.items() if "reason" not in row]

    def run(case):
        with tempfile.TemporaryDirectory() as folder:
            case.run(folder)
        return case

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(run, cases))


def other_rows(verifier, listed):
    """Further scenarios with the tags of the zoo in which something is found."""
    tagged = tags_of_scenarios()
    answer = verifier.ask(verifier.program(), "run", list(tagged)[0], "--keep-going", *list(tagged)[1:])
    for result in answer["results"]:
        name = result["source"]
        if not result["as_expected"]:
            continue
        findings = result["findings"]
        said = ["error", "–", "–", "–"]
        if findings:
            then = list(dict.fromkeys(f["invariant"] for f in findings if f["invariant"] != findings[0]["invariant"]))
            said = [findings[0]["invariant"], place(findings[0]), blamed(findings[0]), ", ".join(then) or "–"]
        for tag in tagged[name]:
            if (tag, name) not in listed:
                yield [tag, f"[{name.removeprefix('scenarios/')}](../{name})", *said]


def number(tag):
    kind, _, n = tag.partition("-")
    return kind != "ZOO", int(n)


def page(verifier, defects, cases):
    thread, detail = threads(), json.loads((HERE / "detail.json").read_text(encoding="utf-8"))["said"]
    for case in cases:
        if case.tag not in thread:
            case.complain("docs/zoo.md has no row with its thread")
    rows = {case.tag: case.cells(thread.get(case.tag, "–"), detail) for case in cases if hasattr(case, "clean")}
    zoo = [rows[t] for t in defects if t.startswith("ZOO") and t in rows]
    sharded = [rows[t] for t in defects if t.startswith("F-") and t in rows]
    absent = [[t, thread.get(t, "–"), row["reason"]] for t, row in defects.items() if "reason" in row]
    tried = [r for r in zoo if r[11] != "–"]
    text = HEAD
    text += f"Of {sum(t.startswith('ZOO') for t in defects)} defects {len(zoo)} are planted, and all of them are caught. "
    text += f"The naive checker notices {sum(r[10] not in ('silent', '–') for r in zoo)} of {len(zoo)}. "
    text += f"DETAIL was tried on {len(tried)} and notices {sum(not r[11].startswith('silent') and not r[11].startswith('hangs') for r in tried)}.\n\n"
    text += "## Data-parallel training\n\n" + table(COLUMNS, zoo)
    text += "\n## Not planted\n\n" + table(["defect", "thread", "why not"], [r for r in absent if r[0].startswith("ZOO")])
    text += "\n## Sharded training\n\nAs in [zoo.md](zoo.md#defects-of-sharded-training).\n\n" + table(COLUMNS, sharded)
    text += "\nNot planted:\n\n" + table(["defect", "thread", "why not"], [r for r in absent if r[0].startswith("F-")])
    listed = {(c.tag, c.path) for c in cases}
    text += "\n## More scenarios of the same defects\n\n" + table(OTHER_COLUMNS, sorted(other_rows(verifier, listed), key=lambda r: (number(r[0]), r[1])))
    return text


def same(one, other):
    """Whether two lines say the same. A tracer that says more is no reason to renew the page: events may differ by a tenth."""
    one, other, at = one.split(" | "), other.split(" | "), COLUMNS.index("events")
    if one != other and len(one) == len(other) == len(COLUMNS) and one[at].isdigit() and other[at].isdigit():
        if abs(int(one[at]) - int(other[at])) * 10 <= int(other[at]):
            one[at] = other[at]
    return one == other


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    verifier, wanted = Verifier(sys.argv[1]), [a for a in sys.argv[2:] if a != "--write"]
    defects = tomllib.loads((HERE / "defects.toml").read_text(encoding="utf-8"))
    cases = run_cases({t: r for t, r in defects.items() if not wanted or t in wanted}, verifier)
    if wanted:
        for case in cases:
            print(" | ".join(map(str, case.cells("", {}))) if hasattr(case, "clean") else case.tag)
        text = old = ""
    else:
        text = page(verifier, defects, cases)
        old = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    problems = [p for case in cases for p in case.problems]
    for problem in problems:
        print(problem)
    if "--write" in sys.argv and not wanted:
        PAGE.write_text(text, encoding="utf-8")
        old = text
    lines = list(itertools.zip_longest(old.splitlines(), text.splitlines(), fillvalue=""))
    differing = next(((one, other) for one, other in lines if not same(one, other)), None)
    if differing:
        print("docs/bugs.md has:\n  {}\nand the program says:\n  {}".format(*differing))
        print(f"{PAGE.relative_to(ROOT)} is old: python3 tests/catalogue/bugs.py {sys.argv[1]} --write")
    return 1 if differing or problems else 0


if __name__ == "__main__":
    sys.exit(main())
