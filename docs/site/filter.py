# SPDX-License-Identifier: Apache-2.0
"""Makes Doxygen's comments of ours. usage: filter.py HEADER

A comment in front of a declaration describes it, one behind a member on its line describes the member, and the one below the
licence describes the file. What Doxygen would take for a command is made plain.
"""
import re
import sys


def plain(body):
    lines = [re.sub(r"^\s*\*\*? ?", "", line) if i else line for i, line in enumerate(body.split("\n"))]
    return re.sub(r"([\\@<>#$&])", r"\\\1", "\n".join(lines)).replace("%", "%%").strip()


def describe(match):
    before, body = match.group("before"), match.group("body")
    is_member = before.strip() != "" and not before.rstrip().endswith(("{", "("))
    return f"{before}/**{'<' if is_member else ''} {plain(body)} */"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    head = re.match(r"/\* SPDX[^\n]*\n/\*(.*?)\*/", text, re.S)
    if head is not None:
        sys.stdout.write(f"/** @file\n<pre>\n{plain(head.group(1))}\n</pre> */")
        text = text[head.end():]
    sys.stdout.write(re.sub(r"(?P<before>^[^\n]*?)/\*(?P<body>.*?)\*/", describe, text, flags=re.S | re.M))


main()
