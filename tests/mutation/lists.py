# SPDX-License-Identifier: Apache-2.0
"""The two lists that are kept in the tree: known.txt, mutants that were noticed, and equivalent.txt, mutants that cannot be.

A mutant's line is "file | function | operator | ordinal | text". The lines below it, indented, are the argument in
equivalent.txt, and in known.txt the scenario that noticed it last.
"""
from tree import HERE, Mistake, read_text

KNOWN, EQUIVALENT = HERE / "known.txt", HERE / "equivalent.txt"


def line_of(key):
    return " | ".join(map(str, key))


def key_of(path, number, line):
    words = line.split(" | ", 4)
    if len(words) != 5 or not words[3].isdigit():
        raise Mistake(f"{path}:{number}: not \"file | function | operator | ordinal | text\"")
    return words[0], words[1], words[2], int(words[3]), words[4]


def entries(path, lacks):
    """What stands indented below each mutant, by key. lacks: what to say of a mutant with nothing below it."""
    found, key = {}, None

    def end(number):
        if key is not None and not found[key]:
            raise Mistake(f"{path}:{number}: {lacks}")

    lines = read_text(path).splitlines() if path.is_file() else []
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        if not line.startswith(" "):
            end(number)
            key = key_of(path, number, line)
            if key in found:
                raise Mistake(f"{path}:{number}: this mutant stands here twice")
            found[key] = ""
        elif key is None:
            raise Mistake(f"{path}:{number}: an indented line without a mutant above it")
        else:
            found[key] += (" " if found[key] else "") + line.strip()
    end(len(lines))
    return found


def known(path=KNOWN):
    """The scenario that noticed each mutant, by key."""
    return entries(path, "the mutant above has no scenario; write the one that noticed it, indented")


def equivalent(path=EQUIVALENT):
    """Why each mutant that cannot be noticed cannot, by key."""
    return entries(path, "the mutant above has no argument; write why it cannot be noticed, indented")


def write_known(noticed, path=KNOWN):
    head = ["# SPDX-License-Identifier: Apache-2.0",
            "# Mutants that scenarios noticed: one that lives now is a regression. Written by: /usr/bin/python3 tests/mutation keep"]
    rows = sorted(f"{line_of(key)}\n  {scenario}" for key, scenario in noticed.items())
    path.write_text("\n".join(head + rows) + "\n", encoding="utf-8")
