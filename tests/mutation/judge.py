# SPDX-License-Identifier: Apache-2.0
"""What becomes of one mutant: built, run under the scenarios that touch it, then under the others, then under unit tests."""
import fnmatch
import os
import pathlib
import re
import threading

from program import PATIENCE, agrees, first_unlike, names_finding, run, verified
from tree import ROOT, Mistake, folder_of, read_text

CHUNKS = (6, 24, 400)  # scenarios of a first, second and every later process: most mutants fall at once
BLAMES = (8, 24, 64)   # the same, to find one whose report names a finding; a crash takes the rest of its process with it
QUICK = ("-O1",)       # for a mutant that one scenario is known to notice
SANITIZED = ("-fsanitize=address",)  # what unit tests are built with once more: it sees memory that no test looks at
# Most objects lie in an arena. With this it leaves memory between them that the sanitizer knows to be nobody's.
GUARDED, GUARDS = "core/base/arena.c", ("-DCD_ARENA_GUARDS",)
# Its shadow needs more addresses than a limit on data leaves.
WATCHED = {"ASAN_OPTIONS": "hard_rss_limit_mb=4096:detect_leaks=1"}
# Tests of what stands above a folder and runs what no other test can: a device's layers, explored runs, a store, PyTorch's numbers.
ABOVE = {"core/ddp": ("tests/unit/verify/explore_*", "tests/unit/verify/worlds_*", "tests/golden/pytorch/golden_ddp_test"),
         "core/hooks": ("tests/conformance/*hook*", "tests/golden/pytorch/golden_powersgd_test"),
         "core/comm": ("tests/unit/sim/*monitored*",),
         "core/train": ("tests/unit/verify/explore_*",),
         "core/fsdp": ("tests/unit/backends/fsdp_gpu_dry*", "tests/golden/pytorch/golden_fsdp_test"),
         "core/model": ("tests/unit/backends/cuda_layers*", "tests/golden/pytorch/*_test"),
         "sim": ("tests/unit/backends/sim_*", "tests/unit/verify/explore_*", "tests/unit/verify/shrink_*", "tests/unit/verify/hang*")}


def trial(program, mutant, scenarios, scratch, shown=0):
    """What each scenario says of a mutant, as lines; shown: and so many lines of its report."""
    target, binary = scratch / "trial.o", scratch / "trial"
    failed = program.compile(mutant.file, mutant.apply(read_text(ROOT / mutant.file)), target)
    if failed:
        yield "does not compile"
        return
    if target.read_bytes() == program.clean_object(mutant.file):
        yield "same object code"
        return
    if program.relink(mutant.file, target, binary):
        yield "does not compile"
        return
    for scenario in scenarios:
        path = str(pathlib.Path(scenario).resolve())
        before = run([str(program.clean), "run", path])
        if before.code != 0:
            raise Mistake(f"the clean program does not verify {scenario}: {before.how}\n{before.output.strip()}")
        after = run([str(binary), "run", path], max(1, PATIENCE * before.seconds))
        if after.late or after.code != before.code or len(verified(after)) != len(verified(before)):
            lines = [line for line in after.output.splitlines() if line]
            yield f"{scenario}: noticed, {after.how}: {lines[0] if lines else ''}"
            yield from (f"  {line}" for line in lines[1:shown])
        else:
            yield f"{scenario}: as before"


class Judge:
    def __init__(self, program, mapped, exact, units, known, blame=False):
        self.program, self.map, self.units = program, mapped, units
        self.blame = blame  # a scenario that names a finding is looked for, where the first that notices names none
        self.exact = exact  # the map is of this very tree: what does not touch a function cannot notice it
        self.known = known  # the scenario that noticed a mutant last, by key
        self.lock = threading.Lock()
        self.archives = {}
        self.sanitized = {}  # by file and test
        self.guarded = None  # the object of an arena with guards
        self.alone = {}  # how the clean program ends each of those
        self.runnable = None
        self.cost = {name: cost for name, cost in zip(mapped.scenarios, mapped.costs)}
        self.mean = max(1, sum(mapped.costs) // max(1, len(mapped.costs)))

    def measure(self):
        """Runs the catalogue on the clean program, when a mutant needs it for the first time."""
        with self.lock:
            if self.runnable is not None:
                return
            outcome = run([str(self.program.clean), "run", "--keep-going", "scenarios"])
            if outcome.code != 0:
                raise Mistake(f"the clean program does not verify the catalogue ({outcome.how}); nothing can be said of mutants")
            self.seconds = outcome.seconds
            self.runnable = set(verified(outcome))
            self.whole = sum(self.cost.get(name, self.mean) for name in self.runnable) or 1

    def again(self, mutant, target, binary):
        """How the scenario that noticed a mutant last notices it again; None when it does not.

        Little optimisation is enough: a difference from the clean program is one at any level. A scenario that the clean
        program does not verify any more says nothing.
        """
        scenario = self.known.get(mutant.key)
        if scenario is None or not (ROOT / scenario).is_file():
            return None
        with self.lock:
            if scenario not in self.alone:
                self.alone[scenario] = run([str(self.program.clean), "run", scenario])
            clean = self.alone[scenario]
        if not agrees(clean, [scenario]) or self.program.compile(mutant.file, mutant.apply(read_text(ROOT / mutant.file)), target, QUICK):
            return None
        if self.program.relink(mutant.file, target, binary):
            return None
        outcome = run([str(binary), "run", scenario], max(1, PATIENCE * clean.seconds))
        if agrees(outcome, [scenario]):
            return None
        return self.best(mutant, binary, outcome, ("noticed", scenario, outcome.how, "not run", 1))

    def touching(self, mutant):
        numbers = self.map.touching(mutant.file, mutant.function)
        names = [self.map.scenarios[number] for number in numbers or []]
        return [name for name in names if name in self.runnable]

    def best(self, mutant, binary, outcome, noticed):
        """How a mutant is noticed: by the cheapest scenario whose report names a finding, when that is wanted and there is one."""
        if not self.blame or names_finding(outcome):
            return noticed
        self.measure()
        names, at = self.touching(mutant), 0
        for size in BLAMES:
            chunk = names[at:at + size]
            at += len(chunk)
            looked = run([str(binary), "run", "--keep-going", *chunk], self.limit(chunk)) if chunk else None
            if looked is not None and names_finding(looked):
                return (*noticed[:1], names_finding(looked)[0], "exit 1", *noticed[3:4], noticed[4] + at)
        return noticed

    def first_to_notice(self, binary, chunk, outcome):
        """The scenario of a chunk that notices, and how it ends. What a process had printed is lost when it dies: then each is run alone."""
        for scenario in chunk if outcome.code < 0 and not outcome.late and len(chunk) > 1 else ():
            alone = run([str(binary), "run", scenario], self.limit([scenario]))
            if not agrees(alone, [scenario]):
                return scenario, alone
        return first_unlike(outcome, chunk), outcome

    def limit(self, scenarios):
        """Seconds of processor time: many times the clean program's share, and never less than a quarter of its whole run."""
        share = sum(self.cost.get(name, self.mean) for name in scenarios) / self.whole
        return max(PATIENCE * share, 0.25) * self.seconds

    def plan(self, mutant):
        """The scenarios of a mutant, those that touch its function first."""
        known = self.map.touching(mutant.file, mutant.function) is not None
        touching = self.touching(mutant)
        rest = sorted(self.runnable - set(touching), key=lambda name: (self.cost.get(name, self.mean), name))
        # A table's readers may lie in other files, so only a function's map is complete.
        return touching if self.exact and known and mutant.function != "-" else touching + rest

    def judge(self, mutant, lived=None):
        """(outcome, scenario, how, units, scenarios tried); lived: so many scenarios did not notice it before."""
        name = f"{mutant.id}-{threading.get_ident()}"
        target, binary = self.program.scratch / f"{name}.o", self.program.scratch / name
        try:
            noticed = self.again(mutant, target, binary) if lived is None else None
            if noticed:
                return noticed
            failed = self.program.compile(mutant.file, mutant.apply(read_text(ROOT / mutant.file)), target)
            if failed:
                return "unbuilt", "", "", "not run", 0
            self.measure()
            with self.lock:
                clean = self.program.clean_object(mutant.file)
            if target.read_bytes() == clean:
                return "same", "", "", "not run", 0
            failed = self.program.relink(mutant.file, target, binary)
            if failed:
                if "undefined reference" not in failed and "undefined symbol" not in failed:
                    raise Mistake(f"cddp-verify cannot be linked with another object of {mutant.file}:\n{failed.strip()[:2000]}")
                return "unbuilt", "", "", "not run", 0
            plan, tried = ([], lived) if lived is not None else (self.plan(mutant), 0)
            sizes = iter(CHUNKS)
            size = next(sizes)
            while tried < len(plan):
                chunk = plan[tried:tried + size]
                outcome = run([str(binary), "run", *chunk], self.limit(chunk))
                if not agrees(outcome, chunk):
                    scenario, outcome = self.first_to_notice(binary, chunk, outcome)
                    return self.best(mutant, binary, outcome, ("noticed", scenario, outcome.how, "not run", tried + len(chunk)))
                tried += len(chunk)
                size = next(sizes, size)
            return "lived", "", "", self.unit_tests(mutant, target, binary) if self.units else "not run", tried
        finally:
            for path in (target, binary):
                path.unlink(missing_ok=True)

    def unit_tests(self, mutant, target, binary):
        """The first unit test of the mutant's folder that fails with it, as it is or under the address sanitizer; else empty."""
        text = mutant.apply(read_text(ROOT / mutant.file))
        for link in self.tests_of(mutant.file):
            if self.program.relink(mutant.file, target, binary, self.program.links[link]):
                continue
            before = self.clean_test(link)
            if before.code == 0 and self.fails(run([str(binary)], self.test_limit(before))):
                return pathlib.Path(link).name
        if self.program.compile(mutant.file, text, target, SANITIZED):
            return ""
        for link in self.tests_of(mutant.file):
            if link.startswith("tests/oom/"):
                continue  # it counts what is live by itself
            words = self.program.links[link] + list(SANITIZED)
            if self.program.relink(mutant.file, target, binary, words, self.guards()) or self.clean_test(link).code != 0:
                continue
            if self.fails(self.watched(link, binary)) and self.is_clean_under_the_sanitizer(mutant.file, link, binary):
                return f"{pathlib.Path(link).name} under the address sanitizer"
        return ""

    def guards(self):
        """What a program under the sanitizer is linked with beside the mutant: sources and their objects."""
        with self.lock:
            if self.guarded is None:
                made = self.program.scratch / "guarded-arena.o"
                failed = self.program.compile(GUARDED, read_text(ROOT / GUARDED), made, SANITIZED + GUARDS)
                if failed:
                    raise Mistake(f"{GUARDED} does not compile with guards:\n{failed.strip()[:2000]}")
                self.guarded = made
            return ((GUARDED, self.guarded),)

    @staticmethod
    def fails(outcome):
        return outcome.code != 0 or outcome.late

    def test_limit(self, before):
        return max(PATIENCE * before.seconds, 0.25 * self.seconds)

    def clean_test(self, link):
        """How a unit test of the clean build ends. One that is skipped, or broken already, says nothing of mutants."""
        clean = self.program.build.folder / link
        if not clean.is_file():
            raise Mistake(f"{clean} does not exist: build the unit tests first, or leave --units out")
        with self.lock:
            if link not in self.archives:
                self.archives[link] = run([str(clean)])
            return self.archives[link]

    def watched(self, link, binary):
        return run([str(binary)], self.test_limit(self.clean_test(link)), environment={**os.environ, **WATCHED}, memory=None)

    def is_clean_under_the_sanitizer(self, file, link, binary):
        """Whether the test with the unchanged source, built the same way, has nothing to report."""
        if (file, link) not in self.sanitized:
            target = self.program.scratch / f"sanitized-{threading.get_ident()}.o"
            failed = self.program.compile(file, read_text(ROOT / file), target, SANITIZED) or \
                self.program.relink(file, target, binary, self.program.links[link] + list(SANITIZED), self.guards())
            self.sanitized[file, link] = not failed and not self.fails(self.watched(link, binary))
            target.unlink(missing_ok=True)
        return self.sanitized[file, link]

    def is_test_of(self, folder, link):
        """Whether a program is made of sources in the folder's unit tests; it may lie in a folder above them."""
        sources = (re.sub(r"CMakeFiles/[^/]+\.dir/", "", word) for word in self.program.links[link])
        return link.startswith("tests/unit/") and any(word.startswith(f"tests/unit/{folder}/") for word in sources)

    def tests_of(self, file):
        stem = pathlib.Path(file).stem
        links = [link for link in self.program.links if self.is_test_of(folder_of(file), link)]
        links += [link for link in self.program.links
                  if any(fnmatch.fnmatch(link, above) for above in ABOVE.get(folder_of(file), ()))]
        if file.startswith("core/"):
            links += [link for link in self.program.links if link.startswith("tests/oom/")]
        return sorted(links, key=lambda link: (stem not in pathlib.Path(link).name, link.startswith("tests/oom/"), link))
