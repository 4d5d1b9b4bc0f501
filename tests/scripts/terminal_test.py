# SPDX-License-Identifier: Apache-2.0
"""What a terminal gets: one line of progress with count, rate and time left, cut at its edge; colours and pagers, and when there are none.

usage: terminal_test.py CDDP-VERIFY SOURCE-FOLDER
"""
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios

VERIFY, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
COUNT = re.compile(r"^\[\d+/\d+\]")
PACE = re.compile(r"[\d.]+/s, [\d.]+ (s|min|h) left")
failures = 0


def check(what, is_right):
    global failures
    if not is_right:
        failures += 1
        print(f"FAILED  {what}")


def on_terminal(words, columns=70, rows=20, **environment):
    """What a terminal of this size is sent."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    settings = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "PAGER", "LESS")}
    child = subprocess.Popen([VERIFY, *words], cwd=SOURCE, stdin=theirs, stdout=theirs, stderr=theirs, env={**settings, "TERM": "xterm", **environment})
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        said += part
    child.wait()
    os.close(ours)
    return said.decode(errors="replace")


def into_closed_pipe(words):
    """(exit code, standard error) where whoever reads has gone, as behind `| head`."""
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run([VERIFY, *words], cwd=SOURCE, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False, timeout=100)
    os.close(theirs)
    return done.returncode, done.stderr


def look_at_pipes(folder, failing):
    store, lasting = os.path.join(folder, "run.db"), os.path.join(folder, "failing.db")
    for path, scenario in ((store, "scenarios/models/transformer.toml"), (lasting, failing)):
        subprocess.run([VERIFY, "run", scenario, "--trace", path], cwd=SOURCE, stdout=subprocess.DEVNULL, check=False)
    quiet = [["export", store], ["export", store, "--format", "csv"], ["report", store], ["report", store, "--format", "html"], ["check", store, "--format", "json"],
             ["replay", store, "--step"], ["watch", store, "--once"], ["list", "keys"], ["list", "schema"], ["explain", "I-ORDER"], ["help"], ["help", "run"], ["man"],
             ["completion", "bash"], ["doctor"], ["version", "--verbose"], ["run", "scenarios/bugs", "-k", "--verbose"], ["explore", "scenarios/gan_unused_params.toml", "--budget", "3"],
             ["sweep", "scenarios/gan_unused_params.toml", "--vary", "train.steps=2,3"], ["backend-conformance", "self", "-n", "1", "--verbose"]]
    for words in quiet:
        code, said = into_closed_pipe(words)
        check(f"{words} into a closed pipe: {code} {said[:200]}", code == 0 and said == "")
    code, said = into_closed_pipe(["report", lasting])
    check(f"a failing run into a closed pipe: {code} {said[:200]}", code == 1 and said == "")
    swift = [words for words in quiet if words[0] not in ("run", "explore", "sweep", "backend-conformance")]
    for words in swift + [["run", "scenarios/gan_unused_params.toml"], ["report", lasting], ["diff", store, store], ["lift", store], ["compare", store, store], ["check", store]]:
        for where, why in (("> /dev/full", "No space left"), (">&-", "Bad file descriptor")):
            done = subprocess.run(["sh", "-c", f'"$@" {where}', "sh", VERIFY, *words], cwd=SOURCE, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
            check(f"{words} {where}: {done.returncode} {done.stderr[:200]}", done.returncode == 3 and why in done.stderr)


def lines_of_progress(said):
    return [part.split("\n")[0].rstrip("\r") for part in said.split("\r\x1b[K")[1:] if part.split("\n")[0].strip()]


def main():
    with tempfile.TemporaryDirectory() as folder:
        failing = os.path.join(folder, "failing.toml")
        with open(f"{SOURCE}/scenarios/bugs/options_differ.toml", encoding="utf-8") as file:
            text = file.read()
        with open(failing, "w", encoding="utf-8") as file:
            file.write(text[:text.index("[expect]")])
        long_ones = [["run", "scenarios/bugs", "-k"], ["explore", "scenarios/gan_unused_params.toml", "--budget", "2s"], ["prove", "scenarios/proofs/views.toml", "--budget", "3s"],
                     ["sweep", "scenarios/paper/overlap_two_ranks.toml", "--vary", "ddp.bucket_cap_mb=1,2,3,4,5,6"],
                     ["hook-conformance", "topk"], ["backend-conformance", "sim", "-n", "5"],
                     ["shrink", failing, "--budget", "2s", "-o", os.path.join(folder, "small.toml")]]
        for words in long_ones:
            lines = lines_of_progress(on_terminal(words))
            # a sweep of some cells may be over before it has a rate
            shown = COUNT if words[0] == "sweep" else PACE
            check(f"{words[0]}: {lines[:2]}", any(shown.search(line) for line in lines))
            check(f"{words[0]}: a line fits: {lines[:2]}", all(len(line) < 70 for line in lines if PACE.search(line)))
        look_at_pipes(folder, failing)
        said = on_terminal(long_ones[0], TERM="dumb")
        check("a dumb terminal gets no escape", "\x1b" not in said and "verified" in said)
        check("colours", "\x1b[" in on_terminal(["run", "scenarios/gan_unused_params.toml"]))
        check("NO_COLOR", "\x1b[" not in on_terminal(["run", "scenarios/gan_unused_params.toml"], NO_COLOR="1"))
        check("the width of the terminal", all(len(l.rstrip("\r")) <= 60 for l in on_terminal(["help", "run"], columns=60, PAGER="").split("\n")))
        check("COLUMNS", all(len(l) <= 60 for l in subprocess.run([VERIFY, "help"], stdout=subprocess.PIPE, text=True, check=False, env={**os.environ, "COLUMNS": "60"}).stdout.split("\n") if l.startswith("      " * 5)))
        check("a pager for what is long", "through it" in on_terminal(["help", "run"], PAGER="sed 's/.*/through it/'"))
        check("none for what is short", "through it" not in on_terminal(["help", "version"], rows=60, PAGER="sed 's/.*/through it/'"))
        check("none where PAGER is empty", "usage:" in on_terminal(["help", "run"], PAGER=""))
        check("a pager that is not there", "usage:" in on_terminal(["help", "run"], PAGER="/nonexistent/pager"))
    here = subprocess.run([VERIFY], cwd=f"{SOURCE}/scenarios/bugs", stdout=subprocess.PIPE, text=True, check=False).stdout
    check("what it would do here", re.search(r"\d+ scenarios lie here\. This runs and judges them.*\n  cddp-verify run", here))
    return failures != 0


sys.exit(main())
