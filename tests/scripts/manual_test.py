# SPDX-License-Identifier: Apache-2.0
"""The manual page of each command says what its --help says, option by option, and is as the build wrote it; groff finds nothing wrong.

usage: manual_test.py CDDP-VERIFY FOLDER-OF-PAGES
"""
import os
import re
import shutil
import subprocess
import sys

VERIFY, PAGES = sys.argv[1:3]
OPTION = re.compile(r"^ {2}(?:-(.), |    )--(\S+)(?: (.*?))?(?:  +|$)(.*)")
failures = 0


def check(what, is_right):
    global failures
    if not is_right:
        failures += 1
        print(f"FAILED  {what}")


def say(*words):
    done = subprocess.run([VERIFY, *words], stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "COLUMNS": "100"})
    return done.stdout


def words_of(text):
    """Words without what folding did to them."""
    return " ".join(text.split())


def options_of_help(text):
    """{name: (letter, argument, words)}"""
    found, name = {}, None
    for line in text.split("\noptions:\n")[1].split("\n"):
        option = OPTION.match(line)
        if option:
            letter, name, argument, help_words = option.groups()
            found[name] = (letter or "", argument or "", help_words)
        elif name and line.strip():
            letter, argument, help_words = found[name]
            found[name] = (letter, argument, help_words + " " + line.strip())
    return {name: (letter, argument, words_of(text)) for name, (letter, argument, text) in found.items()}


def plain(roff):
    return roff.replace("\\&", "").replace("\\-", "-").replace("\\e", "\\")


def options_of_page(page):
    found = {}
    for part in page.split(".SH OPTIONS\n")[1].split(".SH ")[0].split(".TP\n.B ")[1:]:
        head, text = part.split("\n", 1)
        letter, name, argument = re.match(r"^(?:-(.), )?--(\S+)(?: (.*))?$", plain(head)).groups()
        found[name] = (letter or "", argument or "", words_of(plain(text)))
    return found


def same_words(help_words, page_words):
    """A page ends each explanation with a full stop."""
    return page_words == (help_words if help_words.endswith(".") else help_words + ".")


def look_at(command):
    text, page = say("help", command), say("man", command)
    usage, rest = text.split("\n\n", 1)
    helped, written = options_of_help(text), options_of_page(page)
    check(f"{command}: options of --help and of the page: {set(helped) ^ set(written)}", set(helped) == set(written) and len(helped) >= 2)
    for name in set(helped) & set(written):
        check(f"{command} --{name}: {helped[name]} but {written[name]}", helped[name][:2] == written[name][:2] and same_words(helped[name][2], written[name][2]))
    operands = usage.split("[OPTION...]", 1)[1].strip() if "[OPTION...]" in usage else ""
    check(f"{command}: operands {operands}", operands in plain(page))
    summary, *description = rest.split("\noptions:\n")[0].split("\n\n", 1)
    check(f"{command}: the summary", f"- {words_of(summary)}" in words_of(plain(page)))
    check(f"{command}: the description", words_of(description[0]) in words_of(plain(page)) if description else ".SH DESCRIPTION" not in page)
    for code in range(5):
        check(f"{command}: exit code {code}", f".B {code}\n" in page)
    return page


def main():
    overview = say("help").split("\ncommands:\n")[1].split("\n\n")[0]
    commands = [line.split()[0] for line in overview.split("\n") if line.strip()]
    check(f"commands: {commands}", len(commands) > 15)
    pages = {f"cddp-verify-{command}.1": look_at(command) for command in commands}
    pages["cddp-verify.1"] = whole = say("man")
    for command in commands:
        check(f"the page of the program names {command}", f".B {command}" in whole.replace("\\-", "-") and f"cddp-verify-{command}" in plain(whole))
    for name, page in pages.items():
        path = os.path.join(PAGES, name)
        check(f"{name} is as the build wrote it", os.path.exists(path) and open(path, encoding="utf-8").read() == page)
        if shutil.which("groff"):
            done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z"], input=page, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, check=False)
            check(f"{name}: groff says {done.stderr[:300]}", done.returncode == 0 and not done.stderr)
    extra = [name for name in os.listdir(PAGES) if name.startswith("cddp-verify") and name.endswith(".1") and name not in pages]
    check(f"pages of no command: {extra}", not extra)
    if not shutil.which("groff"):
        print("groff is not installed: the pages were not typeset")
    print(f"{len(pages)} pages, {failures} failed")
    return failures != 0


sys.exit(main())
