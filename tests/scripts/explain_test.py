# SPDX-License-Identifier: Apache-2.0
"""`explain` knows every word that stands before a line of a report, every law of a battery and every phrase of how a rank ended.

usage: explain_test.py CDDP-VERIFY ROOT
"""
import os
import re
import subprocess
import sys
import tempfile

VERIFY, ROOT = os.path.abspath(sys.argv[1]), sys.argv[2]
WORD = re.compile(r"^ {2}([a-z][a-z ]*?[a-z])(?: {2,}|:)", re.M)
LAW = re.compile(r"^ {2}(?:passed|without|FAILED) +([a-z_]+) ", re.M)
ENDS = re.compile(r"^ {2}ranks +[-0-9, and]+ (still waiting|timed out|lost a peer|ended with an error)", re.M)
failures = 0


def run(*words):
    return subprocess.run([VERIFY, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env={**os.environ, "COLUMNS": "100"})


def explain(word):
    global failures
    done = run("explain", word)
    is_known = done.returncode == 0 and f"(in a report)" in done.stdout.split("\n")[0]
    if word in laws:
        is_known = done.returncode == 0 and "(law of hook-conformance)" in done.stdout
    if not is_known:
        failures += 1
        print(f"FAILED  explain {word}: {done.stdout.splitlines()[:1]}")


with tempfile.TemporaryDirectory() as folder:
    store, model, hang = f"{folder}/run.db", "scenarios/models/mlp_two_ranks.toml", "scenarios/bugs/hung_job.toml"
    run(hang, "--trace", store)
    said = "".join(run(*words).stdout for words in (
        ("scenarios/bugs", "--verbose"), ("scenarios/bugs",), ("scenarios/faults",), (model, "--set", "train.steps=0"),
        (model, "--set", "ddp.init_sync@1=false"), ("check", store), ("replay", store), ("watch", store, "--once"),
        ("explore", "scenarios/order/chosen_at_random.toml", "--budget", "10"), ("prove", "scenarios/proofs/views.toml"),
        ("shrink", "scenarios/bugs/registration_order_differs.toml", "-o", f"{folder}/small.toml"), ("hook-conformance", "noop"),
        ("backend-conformance", "self", "-n", "1")))
    laws = set(LAW.findall(said))
    words = set(WORD.findall(LAW.sub("", said))) | set(ENDS.findall(said)) | {"as expected", "passed", "without", "not run", "s1:0.2"}
    for word in sorted(words | laws):
        explain(word)
    if len(words) < 25 or len(laws) < 20:
        failures += 1
        print(f"FAILED  the reports have {len(words)} words and {len(laws)} laws: were they cut?")
    # Words in quotes or without are one name, and what is nearly one is suggested.
    for words_of_command, wanted in (((("still", "waiting")), "(in a report)"), (("exit", "code", "3"), "exit code 3"), (("unusd",), "did you mean 'unused'?"),
                                   (("fp16",), "did you mean 'fp16_compress'?"), (("bucket_cap_md",), "did you mean 'ddp.bucket_cap_mb'?"),
                                   (("digest",), "collective_post.digest"), (("sequence",), "collective_done.sequence"), (("killed",), "rank_end.end"),
                                   (("after", "backward"), "value.moment"), (("presence",), "value.presence")):
        if wanted not in run("explain", *words_of_command).stdout:
            failures += 1
            print(f"FAILED  explain {' '.join(words_of_command)} does not say {wanted}")
# Every option that a comm hook reads, by its name alone, and in the page of the hook.
options = 0
for source in sorted(os.listdir(f"{ROOT}/core/hooks")):
    if not source.endswith(".c"):
        continue
    with open(f"{ROOT}/core/hooks/{source}", encoding="utf-8") as file:
        for option in re.findall(r'^ +{"(\w+)", CD_OPTION_', file.read(), re.M):
            options += 1
            said = run("explain", option).stdout
            hook = re.search(rf"^  (\w+)[^:]*: {option}(?:=|  )", said, re.M)
            if "(option of comm hooks" not in said or hook is None or f"\n  {option}" not in run("explain", hook.group(1)).stdout:
                failures += 1
                print(f"FAILED  explain {option}: {said[:200]}")
if options < 20:
    failures += 1
    print(f"FAILED  the hooks have {options} options: were they found?")
sys.exit(1 if failures else 0)
