# SPDX-License-Identifier: Apache-2.0
"""Building and running: one object from a changed source, the program linked with it, scenarios under limits."""
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import subprocess

from tree import ROOT, Absent, Mistake

MEMORY = 10 << 30  # of data in one process: a wrong size must not take the machine
PATIENCE = 20     # a mutant may take so many times what the clean program took for the same scenarios
IDLE = 10         # and the clock on the wall so many times that

RUNNING = set()


def background():
    os.nice(10)


class Program:
    """cddp-verify of one build, and how an object of it is made and linked."""

    def __init__(self, build, scratch):
        self.build = build
        self.scratch = pathlib.Path(scratch)
        self.clean = build.folder / "bin/cddp-verify"
        if not self.clean.is_file():
            raise Mistake(f"{self.clean} does not exist: build it first (cmake --build {build.folder} --target cddp-verify)")
        self.links = self.link_commands()
        self.link = self.links.get("bin/cddp-verify")
        if self.link is None:
            raise Mistake(f"ninja does not say how {self.clean} is linked: the build must be one of Ninja (-G Ninja)")
        self.clean_objects = {}

    def link_commands(self):
        """What each program of the build is linked by, as words, by its path in the build folder."""
        if shutil.which("ninja") is None:
            raise Absent("ninja is missing (Debian package ninja-build)")
        # Every rule that links a program ends in "-o PROGRAM libraries".
        done = subprocess.run(["ninja", "-C", str(self.build.folder), "-t", "commands", "all"],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Mistake(f"ninja cannot read {self.build.folder}: {done.stderr.strip() or done.stdout.strip()}")
        links = {}
        for line in done.stdout.splitlines():
            found = re.match(r": && (.*? -o (\S+) .*?) && :$", line)
            if found and " -shared " not in found.group(1):
                links[found.group(2)] = shlex.split(found.group(1))
        return links

    def compile(self, file, source, target, extra=()):
        """Makes an object as the build does, from text instead of the file; None, or what the compiler says."""
        command = self.build.command(file) + ["-w", "-iquote", str((ROOT / file).parent), *extra,
                                              "-x", "c", "-c", "-o", str(target), "-"]
        text = f'# 1 "{ROOT / file}"\n{source}'
        done = subprocess.run(command, input=text.encode(), cwd=self.build.folder, capture_output=True, check=False,
                              preexec_fn=background)
        return None if done.returncode == 0 else done.stderr.decode(errors="replace")

    def clean_object(self, file):
        """The bytes of the object of the unchanged source, made the same way as a mutant's."""
        if file not in self.clean_objects:
            target = self.scratch / f"clean-{os.getpid()}-{abs(hash(file))}.o"
            failed = self.compile(file, (ROOT / file).read_text(encoding="utf-8"), target)
            if failed:
                raise Mistake(f"{file} does not compile as the build says: {failed.strip().splitlines()[0]}")
            self.clean_objects[file] = target.read_bytes()
            target.unlink()
        return self.clean_objects[file]

    def relink(self, file, target, program, link=None, beside=()):
        """Links a program of the build with another object of one source. beside: other sources and their objects."""
        words = list(link or self.link)
        for source, made in ((file, target), *beside):
            original = self.build.object_of(source)
            if original in words:
                words[words.index(original)] = str(made)
            else:
                # Before the archives: the linker then takes nothing of the archive's own.
                words.insert(words.index("-o"), str(made))
        words[words.index("-o") + 1] = str(program)
        done = subprocess.run(words, cwd=self.build.folder, capture_output=True, text=True, check=False, preexec_fn=background)
        return None if done.returncode == 0 else done.stderr


class Outcome:
    """How a run ended: an exit code, a signal, or a limit; with what it printed and the processor time it took."""

    def __init__(self, code, output, seconds, late):
        self.code, self.output, self.seconds, self.late = code, output, seconds, late

    @property
    def how(self):
        if self.late:
            return "took too long"
        if self.code < 0:
            return f"died of {signal.Signals(-self.code).name}"
        return f"exit {self.code}"


def run(command, limit=None, cwd=ROOT, environment=None, memory=MEMORY):
    """Runs a command; limit: seconds of processor time. The clock on the wall is a last resort, for what only sleeps."""
    def confine():
        background()
        if memory is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if limit is not None:
            whole = max(1, int(limit + 0.999))
            resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 1))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          start_new_session=True, preexec_fn=confine, env=environment) as child:
        late = False
        RUNNING.add(child)
        try:
            output, _ = child.communicate(timeout=None if limit is None else IDLE * max(1, limit))
        except subprocess.TimeoutExpired:
            late = True
            end_group(child)
            output, _ = child.communicate()
        except BaseException:
            end_group(child)
            raise
        finally:
            RUNNING.discard(child)
    late = late or child.returncode in (-signal.SIGXCPU, -signal.SIGKILL) and limit is not None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Outcome(child.returncode, output.decode(errors="replace"), used, late)


def end_all():
    """Ends what other threads are running, so that an interruption need not wait for it."""
    for child in list(RUNNING):
        end_group(child)


def end_group(child):
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


SUMMARY = re.compile(r"^(\d+) of (\d+) verified", re.M)
VERIFIED = re.compile(r"^(?:verified|as expected): ([^:]+):", re.M)


def verified(outcome):
    """The scenarios that a run called verified, or as expected."""
    return VERIFIED.findall(outcome.output)


def agrees(outcome, scenarios):
    """True when a run of these scenarios ended as the clean program's: all verified, none skipped."""
    if outcome.code != 0 or outcome.late or verified(outcome) != list(scenarios):
        return False
    said = SUMMARY.search(outcome.output)
    return len(scenarios) == 1 or said is not None and said.group(1) == said.group(2) == str(len(scenarios))


def first_unlike(outcome, scenarios):
    """The scenario at which a run stopped: the first that it does not call verified."""
    seen = set(verified(outcome))
    return next((scenario for scenario in scenarios if scenario not in seen), scenarios[-1])


REPORT = re.compile(r"^(verified|as expected|findings|inconclusive|error|environment): ([^:\n]+):.*\n((?: .*\n?)*)", re.M)
FINDING = re.compile(r"^  I-[A-Z]+ ", re.M)
MISSED = re.compile(r"^  because .*(?:did not come|no rank ended)", re.M)


def names_finding(outcome):
    """The scenarios whose report begins with a finding of a check, in the order of the run.

    One that expects an error or another finding may only say that this did not come, and a crash says nothing.
    """
    return [scenario for verdict, scenario, text in REPORT.findall(outcome.output)
            if verdict == "findings" and FINDING.search(text) and not MISSED.search(text)]
