# SPDX-License-Identifier: Apache-2.0
"""What a zsh at a terminal completes. cddp-verify is in PATH.

usage: zsh_completions.py
"""
import os
import pty
import select
import subprocess
import sys
import tempfile
import time

WANTED = [("cddp-verify explain I-P", "I-PARAMEQ"), ("cddp-verify run --set model.name=trans", "transformer"), ("cddp-verify hook-conformance pow", "powersgd"),
          ("cddp-verify sweep --sk", "--skip"), ("cddp-verify list mo", "models"), ("cddp-verify run scenarios/gan", "gan_unused_params")]
PATIENCE_S = 60


def read_until(fd, mark):
    said, end = b"", time.monotonic() + PATIENCE_S
    while mark not in said and select.select([fd], [], [], max(0, end - time.monotonic()))[0]:
        try:
            said += os.read(fd, 65536)
        except OSError:
            break
    return said


def complete(folder, typed, wanted):
    """Types it, then a tab. What comes back has the rest of the word."""
    child, fd = pty.fork()
    if child == 0:
        os.environ["TERM"] = "dumb"
        os.execvp("zsh", ["zsh", "-f", "-i"])
    os.write(fd, f"fpath=({folder} $fpath); autoload -Uz compinit; compinit -D -u; print rea''dy\n".encode())
    read_until(fd, b"ready")
    os.write(fd, f"{typed}\t".encode())
    said = read_until(fd, wanted.encode())
    os.close(fd)
    os.waitpid(child, 0)
    return wanted.encode() in said


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "_cddp-verify"), "wb") as file:
            subprocess.run(["cddp-verify", "completion", "zsh"], stdout=file, check=True)
        for typed, wanted in WANTED:
            if not complete(folder, typed, wanted):
                print(f"FAILED: zsh does not complete \"{typed}\" to {wanted}")
                failed = 1
    return failed


sys.exit(main())
