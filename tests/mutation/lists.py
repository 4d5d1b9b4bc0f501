# SPDX-License-Identifier: Apache-2.0
"""The two lists that are kept in the tree: known.txt, mutants that were noticed, and equivalent.txt, mutants that cannot be.

A mutant's line is "file | function | operator | ordinal | text". In equivalent.txt the lines below it, indented, are the argument.
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


def known(path=KNOWN):
    """Keys of mutants that were noticed before."""
    return set() if not path.is_file() else {
        key_of(path, number, line) for number, line in enumerate(read_text(path).splitlines(), 1)
        if line and not line.startswith("#")}


def equivalent(path=EQUIVALENT):
    """Why each mutant that cannot be noticed cannot, by key."""
    arguments, key = {}, None
    if not path.is_file():
        return arguments
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if not line.startswith(" "):
            if key is not None and not arguments[key]:
                raise Mistake(f"{path}:{number}: the mutant above has no argument; write why it cannot be noticed, indented")
            key = key_of(path, number, line)
            if key in arguments:
                raise Mistake(f"{path}:{number}: this mutant stands here twice")
            arguments[key] = ""
        elif key is None:
            raise Mistake(f"{path}:{number}: an argument without a mutant above it")
        else:
            arguments[key] += (" " if arguments[key] else "") + line.strip()
    if key is not None and not arguments[key]:
        raise Mistake(f"{path}: the last mutant has no argument")
    return arguments


def write_known(keys, path=KNOWN):
    head = ["# SPDX-License-Identifier: Apache-2.0",
            "# Mutants that scenarios noticed: one that lives now is a regression. Written by: /usr/bin/python3 tests/mutation keep"]
    path.write_text("\n".join(head + sorted(map(line_of, keys))) + "\n", encoding="utf-8")
