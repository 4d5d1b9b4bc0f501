# SPDX-License-Identifier: Apache-2.0
"""The tree under test: its folders, the build's compile commands, and digests of what a result depends on."""
import hashlib
import json
import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/mutation"
# Checks themselves: on a right backend a weaker battery says the same. Broken backends hold it (tests/plants).
LEFT_ALONE = ("core/comm/conformance.c",)
FOLDERS = ("core/ddp", "core/hooks", "core/comm", "core/train", "core/fsdp", "core/model", "sim", "backends/compose")


class Mistake(Exception):
    """What the caller can mend: printed as one sentence, exit code 2."""


class Absent(Mistake):
    """What this machine lacks: exit code 3."""


def folder_of(file):
    """The folder of FOLDERS that a source lies in."""
    return next(folder for folder in FOLDERS if file.startswith(folder + "/"))


def read_text(path):
    return pathlib.Path(path).read_text(encoding="utf-8")


class Build:
    """One build folder: how each source is compiled, and how programs are linked."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        path = self.folder / "compile_commands.json"
        if not path.is_file():
            raise Mistake(f"{path} does not exist: configure that build with -DCMAKE_EXPORT_COMPILE_COMMANDS=ON, "
                          "or name another one with --build")
        try:
            self.entries = {}
            for row in json.loads(read_text(path)):
                # A test may compile a source once more, its own way; the program's object lies beside the source.
                file = self.relative(row["file"])
                if file not in self.entries or self.output(row).startswith(file.split("/")[0] + "/"):
                    self.entries[file] = row
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Mistake(f"{path} is not a list of compile commands: {error}") from error
        if not self.sources():
            raise Mistake(f"{path} compiles no source of {', '.join(FOLDERS)} below {ROOT}: it is the build of another tree")

    @staticmethod
    def relative(file):
        path = pathlib.Path(file)
        return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else file

    def sources(self, folders=FOLDERS):
        return sorted(file for file in self.entries
                      if file.endswith(".c") and file not in LEFT_ALONE and any(file.startswith(folder + "/") for folder in folders))

    def command(self, file):
        """The compiler and its flags, without the source, the output, a launcher before it, and -Werror."""
        words = shlex.split(self.entries[file]["command"])
        while len(words) > 1 and pathlib.Path(words[0]).name in ("ccache", "sccache", "distcc"):
            del words[0]
        kept = []
        skip = False
        for word in words:
            if skip:
                skip = False
            elif word in ("-o", "-c", "-MF", "-MT"):
                skip = True
            elif word not in ("-Werror", "-MD"):
                kept.append(word)
        return kept

    def object_of(self, file):
        """The object that the build makes of a source, relative to the build folder."""
        return self.output(self.entries[file])

    @staticmethod
    def output(row):
        words = shlex.split(row["command"])
        return words[words.index("-o") + 1]


# The layout of the sources is that of clang-format: a definition begins in the first column, its brace stands alone.
HEADING = re.compile(r"^[A-Za-z_][^;{}=#]*\)\n\{", re.M)


def name_in(heading):
    """The word in front of the last parentheses of a definition: attributes, macros that stand for one too, come before it."""
    depth, at = 0, heading.rindex(")")
    while True:
        depth += (heading[at] == ")") - (heading[at] == "(")
        if depth == 0:
            return re.search(r"\w*$", heading[:at]).group()
        at -= 1


def functions_of(text):
    """The functions that a source defines, found by layout alone: quick, and without libclang."""
    return [name_in(found.group()) for found in HEADING.finditer(text)]


def scenarios():
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "scenarios").rglob("*.toml"))


def digest(*parts):
    value = hashlib.sha256()
    for part in parts:
        value.update(part.encode() if isinstance(part, str) else part)
        value.update(b"\0")
    return value.hexdigest()


def tree_digest(build):
    """Of all that decides what a mutant does: the sources and headers of the program, and the scenarios."""
    files = {ROOT / file for file in build.entries if not file.startswith(("tests/", "bench/", "/"))}
    for top in ("core", "sim", "backends", "include", "verify", "cli", "db", "record", "scenarios"):
        for suffix in (".h", ".def", ".toml", ".sql"):
            files.update((ROOT / top).rglob("*" + suffix))
    value = hashlib.sha256()
    for file in sorted(files):
        if file.is_file():
            value.update(file.relative_to(ROOT).as_posix().encode() + b"\0")
            value.update(hashlib.sha256(file.read_bytes()).digest())
    return value.hexdigest()[:16]
