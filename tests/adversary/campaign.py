#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""campaign.py CDDP_VERIFY SCENARIOS [--seed N] [--jobs N] [--plugin BAD_HOOK] [PART...]: tries to break the verifier. README.md says how."""
import concurrent.futures
import glob
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 120  # of one command; the machine may be busy
failures = []


def complain(what, command, result=None):
    failures.append(what)
    print(f"FAILED: {what}\n  {' '.join(map(str, command))}", flush=True)
    if result is not None:
        print("  exit", result.returncode)
        for text in (result.stdout, result.stderr):
            print("   ", text[-600:].replace("\n", "\n    "), flush=True)


class Result:
    def __init__(self, returncode, stdout, stderr):
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr


def run(command, limits=None, cwd=None, env=None, stdin=subprocess.DEVNULL):
    """Runs it; None when it takes too long."""
    def prepare():
        for which, value in (limits or {}).items():
            resource.setrlimit(which, (value, value))
    process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, env=env,
                               preexec_fn=prepare if limits else None)
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        complain(f"it takes more than {PATIENCE_S} s", command)
        return None
    return Result(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def expect(command, codes, **how):
    """It ends by itself with one of these codes, and says something."""
    result = run(command, **how)
    if result is None:
        return None
    if result.returncode < 0:
        complain(f"it was ended by signal {-result.returncode}", command, result)
    elif result.returncode not in codes:
        complain(f"exit {result.returncode}, not one of {sorted(codes)}", command, result)
    elif not (result.stdout + result.stderr).strip():
        complain("it says nothing", command, result)
    return result


def in_parallel(jobs, commands, codes):
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda command: expect(command, codes(command) if callable(codes) else codes), commands))


VALUES = ["", " ", "0", "1", "-1", "-0", "2.5", "1e309", "nan", "inf", "18446744073709551615", "18446744073709551616",
          "99999999999999999999999", "true", "false", "none", "%s%n%d", "\\", '"', "'", "[", "[1,2]", '["a", ""]', "0-", "1,,2",
          "\u00e9\u00df", "a" * 5000, "../../etc/passwd", "=", "x=1,y=", "0x10", "\t"]


def part_set(c):
    keys = [line.split()[0] for line in subprocess.run([c.verify, "list", "keys"], capture_output=True, text=True).stdout.splitlines()
            if line and not line[0].isspace()]
    pairs = [(key, value) for key in keys for value in VALUES]
    c.random.shuffle(pairs)
    pairs = pairs[:4700]
    # a training of half a second at most: some settings ask for a million steps, which nobody forbids
    base = ["--set", "train.steps=2"]
    commands = [[c.verify, "run", c.small] + base + ["--set", f"{key}={value}"] for key, value in pairs
                if not (key in c.endless and value.isdigit() and len(value) > 3)]
    results = in_parallel(c.jobs, commands, {0, 1, 2, 3, 4})
    blamed = [r for r, command in zip(results, commands) if r is not None and r.returncode == 1
              and command[-1].split("=")[0] not in c.mistakes and command[-1].split("=")[0].split(".")[0] not in c.may_blame]
    for result, command in zip(results, commands):
        if result in blamed:
            complain("a setting is blamed on the training", command, result)
    return len(commands)


def hostile_stores(c, source):
    """Copies of a good store, each changed in one way."""
    columns = [("run", "title", v) for v in ("", None, "\x1b[2J", "a" * 100000)]
    columns += [("run", "scenario", v) for v in ("", "x", None, "schema = 1\n", "\x00", "[" * 10000)]
    columns += [("run", "options", v) for v in ("", "=", "hook.options=", "world.size=0", "ddp.bucket_cap_mb=", "\n\n", None)]
    columns += [("run", "schedule", v) for v in ("", "s1:", "s9:9", "s1:" + "0," * 9999, None)]
    columns += [("run", "backend", v) for v in ("", "nobody", "sim:sim", None)]
    columns += [("run", name, v) for name in ("world_size", "steps", "level", "seed", "exit_code", "complete", "plan", "digest")
                for v in (0, -1, 2**31, 2**62)]
    columns += [("run", "verdict", v) for v in ("", "verified", None, "x" * 5000)]
    columns += [("text", None, v) for v in ("", "\x1b]0;x\x07", "y" * 70000, b"\xff\xfe")]
    for number, (table, column, value) in enumerate(columns):
        path = os.path.join(c.work, f"changed{number}.db")
        shutil.copy(source, path)
        store = sqlite3.connect(path)
        store.executescript("DROP TABLE seal; PRAGMA user_version = 1")  # so that what was changed is read
        try:
            if table == "text":
                names = [row[1] for row in store.execute("PRAGMA table_info(text)")]
                store.execute(f"UPDATE text SET {names[-1]} = ?", (value,))
            else:
                store.execute(f"UPDATE {table} SET {column} = ?", (value,))
            store.commit()
        except sqlite3.Error:
            pass  # a constraint of the table: the store stays good
        store.close()
        yield path
    content = open(source, "rb").read()
    for number in range(30):
        path = os.path.join(c.work, f"noise{number}.db")
        noise = bytearray(content)
        if number % 3 == 0:
            del noise[c.random.randrange(len(noise)):]
        for _ in range(1 << (number % 8)):
            if noise:
                noise[c.random.randrange(len(noise))] = c.random.randrange(256)
        open(path, "wb").write(noise)
        yield path


def part_stores(c):
    good = os.path.join(c.work, "good.db")
    expect([c.verify, "run", "-k", c.small, c.failing, "--trace", good], {0, 1})
    count = 0
    commands, damaged = [], []
    for path in hostile_stores(c, good):
        count += 1
        if "noise" in os.path.basename(path):
            damaged.append([c.verify, "check", path])
        for words in (["report"], ["check"], ["replay"], ["diff", good + ":1"], ["watch", "--once"], ["shrink", "--budget", "3s", "-o", path + ".toml"]):
            commands.append([c.verify, words[0], path] + words[1:])
    in_parallel(c.jobs, commands, {0, 1, 2, 3, 4})
    # bytes that chance has changed never make another verdict
    said = run([c.verify, "check", good])
    for result, command in zip(in_parallel(c.jobs, damaged, {2, 3, said.returncode}), damaged):
        if result is not None and result.returncode == said.returncode and result.stdout.replace(command[-1], good) != said.stdout:
            complain("a damaged store is judged otherwise", command, result)
    return count


def children_of(pid):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = open(f"/proc/{entry}/stat").read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry))
    return found


def family_of(pid):
    family = [pid]
    for member in family:
        family += children_of(member)
    return family


def is_alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def strike(c, index):
    """One signal, at one moment, to one process of a run."""
    draw = random.Random(c.seed * 1000 + index)
    backend = draw.choice(["sim", "sim", "gloo", "gloo", "mpi"])
    if backend not in c.backends:
        backend = "sim"
    number = draw.choice([signal.SIGINT, signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
    store = os.path.join(c.work, f"signal{index}.db")
    command = [c.verify, "run", "-k", "--backend", backend, "-j", str(draw.choice([1, 2])), "--trace", store,
               "--set", f"train.steps={draw.choice([20, 2000, 1000000])}", c.small, c.small]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    time.sleep(draw.choice([0, 0.005, 0.02, 0.05, 0.2, 0.7]))
    family = family_of(process.pid)
    target = draw.choice(family)
    try:
        os.kill(target, number)
    except ProcessLookupError:
        pass
    if target != process.pid:
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    try:
        out, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        complain(f"it runs on after {number.name} to {'itself' if target == process.pid else 'a child'}", command)
        return
    result = Result(process.returncode, out.decode(errors="replace"), "")
    mine = target == process.pid
    # a signal that comes before it is caught ends it as the system does; the second SIGTERM may, too
    allowed = {0, 3, 4, -signal.SIGTERM, -number} if mine else {0, 1, 3, 4, -signal.SIGTERM}
    if result.returncode not in allowed:
        complain(f"{number.name} to {'itself' if mine else 'a child'} of {backend}: exit {result.returncode} after {time.monotonic() - began:.1f} s", command, result)
    if not mine and result.returncode == 1 and not any(words in result.stdout for words in ("killed", "crashed", "exited", "died", "gone")):
        complain("a rank that was struck is blamed for something else", command, result)
    for _ in range(100):
        if not any(is_alive(pid) for pid in family):
            break
        time.sleep(0.1)
    else:
        complain(f"{number.name}: processes stay behind", command, result)
        for pid in family:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
    if os.path.exists(store):
        expect([c.verify, "report", store], {0, 1, 2, 3, 4})
        os.remove(store)


def part_signals(c):
    with concurrent.futures.ThreadPoolExecutor(3 * c.jobs) as pool:  # they wait more than they work
        list(pool.map(lambda index: strike(c, index), range(250)))
    # The next run removes what killed ones left.
    expect([c.verify, "run", "-k", "-j", "2", c.small, c.small, "--trace", os.path.join(c.work, "signal0.db")], {0})
    if "gloo" in c.backends:
        expect([c.verify, "run", "--backend", "gloo", c.small], {0})
    left = [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("cddp-rendezvous-")]
    if left and "gloo" in c.backends:
        complain(f"leftovers: {left}", [])
    return 250


def part_limits(c):
    store, found = os.path.join(c.work, "limits.db"), os.path.join(c.work, "limits_found.db")
    expect([c.verify, "run", c.small, "--trace", store], {0})
    expect([c.verify, "run", c.failing, "--trace", found], {0, 1})
    verbs = [["run", c.small], ["run", c.small, "--trace", "NEW"], ["run", "-k", "-j", "2", c.small, c.small], ["check", store], ["report", store],
             ["replay", store], ["shrink", found, "--budget", "5", "-o", "NEW"], ["explore", c.small, "--budget", "5"],
             ["explore", c.small, "-j", "2", "--budget", "5"], ["diff", store, store], ["watch", "--once", store],
             ["hook-conformance", "fp16_compress"], ["hook-conformance", "allreduce"], ["list", "keys"], ["explain", "I-LIVE"], ["doctor"]]
    if "gloo" in c.backends:
        verbs.append(["run", "--backend", "gloo", c.small])
    limits = [{resource.RLIMIT_AS: size << 20} for size in (24, 32, 48, 64, 96, 112, 120, 160, 280, 320, 400)]
    limits += [{resource.RLIMIT_NOFILE: count} for count in (3, 4, 5, 6, 8, 10, 14)]
    limits += [{resource.RLIMIT_FSIZE: size} for size in (0, 4096, 60000)]
    count = 0
    for limit in limits:
        for verb in verbs:
            new = os.path.join(c.work, f"limits_new{count}")
            command = [c.verify] + [new if word == "NEW" else word for word in verb]
            count += 1
            # files that may not be written are an error of the file: 2. Never a finding.
            codes = {0, 2, 3, 4} if resource.RLIMIT_FSIZE in limit else {0, 3}
            if verb[0] in ("check", "report") and verb[-1] == found:
                codes |= {1}
            if verb[0] in ("shrink", "explore", "hook-conformance"):
                codes |= {4}
            result = run(command, limits=limit)
            # the system's own loader may lack memory, before the program begins
            if result is not None and result.returncode == 127 and "error while loading" in result.stderr:
                continue
            if result is None:
                continue
            if result.returncode not in codes:
                complain(f"under {limit}: exit {result.returncode}, not one of {sorted(codes)}", command, result)
            elif not (result.stdout + result.stderr).strip():
                complain(f"under {limit}: it says nothing", command, result)
    return count


def part_streams(c):
    count = 0
    for backend in c.backends:
        for closed in ("<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"):
            for verb in (f"run -k --backend {backend} --trace S {c.small} {c.small}", f"run -k -j 2 --backend {backend} --trace S {c.small} {c.small}",
                         f"explore {c.small} --budget 5 --trace S", "list keys"):
                count += 1
                store = os.path.join(c.work, f"streams{count}.db")
                line = f"'{c.verify}' {verb.replace('--trace S', '--trace ' + store)} {closed}"
                result = run(["sh", "-c", line])
                if result is None:
                    continue
                wanted = {3} if ">&-" in closed.replace("2>&-", "") else {0}
                if result.returncode not in wanted:
                    complain(f"exit {result.returncode}, not one of {sorted(wanted)}", [line], result)
                if verb.startswith("run"):
                    expect([c.verify, "check", store, "--quiet"], {0})
    return count


def part_files(c):
    place = os.path.join(c.work, "files")
    os.makedirs(place + "/folder")
    os.makedirs(place + "/tmp")
    fifo = place + "/fifo"
    os.mkfifo(fifo)
    os.mkfifo(place + "/folder/fifo.toml")
    os.symlink("nowhere", place + "/dangling.toml")
    os.symlink("loop.toml", place + "/loop.toml")
    for command in (["run", fifo], ["check", fifo], ["report", fifo], ["replay", fifo], ["shrink", fifo], ["diff", fifo, fifo], ["explore", fifo],
                    ["explore", c.small, "--frontier", fifo], ["prove", fifo], ["watch", fifo, "--once"], ["run", c.small, "--trace", fifo],
                    ["run", c.small, "-o", fifo], ["run", place + "/folder"], ["run", place + "/dangling.toml"], ["run", place + "/loop.toml"],
                    ["run", "/dev/zero"], ["check", "/dev/zero"], ["run", "/dev/null"], ["report", "/dev/null"], ["run", c.small, "--plugin", fifo]):
        expect([c.verify] + command, {2, 3} if command[0] == "shrink" or "--plugin" in command else {2})
    shutil.copy(c.small, place + "/folder/good.toml")
    os.remove(place + "/folder/fifo.toml")
    expect([c.verify, "run", "-k", place + "/folder"], {0})
    os.symlink("nowhere", place + "/folder/dangling.toml")
    result = expect([c.verify, "run", "-k", place + "/folder"], {2})
    if result is not None and "dangling.toml" not in result.stdout:
        complain("a dangling scenario of a folder is skipped silently", [], result)
    for backend in c.backends:
        expect([c.verify, "run", "--backend", backend, c.small], {0}, cwd=place, env=dict(os.environ, TMPDIR="tmp"))
    return 24 + len(c.backends)


# Lines of a scenario by table, and what is said of them. "" is the head of the file.
MISTAKES = [
    ("world", 'size = "four"', "size"), ("world", "size = 0", "size"), ("world", "size = 99999999999", "size"),
    ("world", 'backend = "glo"', "'glo'"), ("world", "backnd = 1", "'backnd'"), ("world", 'seed = "x"', "'seed'"),
    ("model", 'name = "mlpp"', '"mlpp"'), ("model", 'device = "gpu"', "'gpu'"), ("model", "dtype = 7", "'dtype'"),
    ("model", 'options = "nosuch=1"', "nosuch"),
    ("train", "steps = -1", "steps"), ("train", 'lr = "fast"', "'lr'"), ("train", 'optimiser = "sgd"', "'optimiser'"),
    ("train", 'loss = "nosuch"', "'nosuch'"),
    ("ddp", 'comm_hook = "powersgdd"', "'powersgdd'"), ("ddp", "bucket_cap_mb = true", "bucket_cap_mb"),
    ("ddp", "static_graf = true", "'static_graf'"), ("ddp", 'ignored_params = ["nobody"]', "nobody"),
    ("clip", 'place = "nowhere"', "'nowhere'"), ("network", 'bus = "nosuch"', "nosuch"),
    ("schedule", 'ready = "never"', "'never'"), ("expect", 'verdict = "maybe"', "'maybe'"), ("expect", 'also = ["NO-SUCH"]', "'NO-SUCH'"),
    ("[fault]", 'kind = "kil"\nrank = 0', "kil"), ("[fault]", 'kind = "kill"\nrank = 9', "9"), ("[fault]", "rank = 0", "kind"),
    ("[when]", 'ranks = "a-b"\nsteps = 0', "a-b"), ("[when]", "ranks = 7\nsteps = 0", "7"), ("[rank]", "ranks = 8\nlr = 1", "8"),
    ("[group]", 'name = "g"\nmembers = [0, 0]', "twice"), ("[group]", 'name = "h"\nmembers = [0, 5]', "5"),
    ("[optimizer]", 'kind = "sgdd"', "sgdd"), ("[collective]", 'op = "reduceall"', "'reduceall'"),
    ("nosuch", "k = 1", "[nosuch]"),
]
GOOD = {"world": {"size": "2"}, "model": {"name": '"mlp"'}, "train": {"steps": "1"}}


def scenario_of(mistakes):
    """A scenario that is right but for these."""
    tables = {name: dict(keys) for name, keys in GOOD.items()}
    repeated = []
    for table, lines, _ in mistakes:
        if table.startswith("["):
            repeated.append(f"[{table}]\n{lines}\n")
            continue
        for line in lines.splitlines():
            key, value = line.split(" = ", 1)
            tables.setdefault(table, {})[key] = value
    text = 'schema = 1\ntitle = "t"\n'
    for name, keys in tables.items():
        text += f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())
    return text + "".join(repeated)


def part_mistakes(c):
    """Two mistakes of any kinds in one file are reported in one go."""
    def try_one(pair):
        path = os.path.join(c.work, "mistakes_" + "_".join(str(MISTAKES.index(m)) for m in pair) + ".toml")
        with open(path, "w") as file:
            file.write(scenario_of(pair))
        result = expect([c.verify, "run", path], {2})
        for table, lines, words in pair if result is not None else []:
            if words not in result.stdout + result.stderr:
                complain(f"nothing is said of [{table}] {lines!r}: {words}", [c.verify, "run", path], result)
    alone = [(m,) for m in MISTAKES]
    # what a mistake leaves open cannot be judged: ranks without a size of the world, options without a model
    is_open = lambda a, b: (a[0] == "world" and a[1].startswith("size") and b[2].isdigit()) or (a[2] == '"mlpp"' and b[2] == "nosuch")
    keys = lambda m: (m[0], m[1].split(" = ")[0])
    pairs = [(a, b) for i, a in enumerate(MISTAKES) for b in MISTAKES[i + 1:] if (keys(a) != keys(b) or a[0].startswith("[")) and not is_open(a, b)]
    with concurrent.futures.ThreadPoolExecutor(c.jobs) as pool:
        list(pool.map(try_one, alone + pairs))
    return len(alone) + len(pairs)


def part_lacks(c):
    """A key of a table that is left out, or whose text is empty, as it stands in some scenario."""
    scenarios = os.path.dirname(os.path.dirname(c.small))
    tried, commands = set(), []
    for path in sorted(glob.glob(scenarios + "/**/*.toml", recursive=True)):
        lines, table = open(path).read().splitlines(), ""
        for at, line in enumerate(lines):
            if line.startswith("["):
                table = line
            key, equals, value = line.partition(" = ")
            if not equals or not table or not key.isidentifier() or value.endswith("["):
                continue
            for form in ["left out"] + ["empty"] * value.startswith('"') + ["of empty ones"] * value.startswith("["):
                if (table, key, form) in tried:
                    continue
                tried.add((table, key, form))
                changed = {"left out": [], "empty": [f'{key} = ""'], "of empty ones": [f'{key} = [""]']}[form]
                copy = os.path.join(c.work, f"lacks_{len(commands)}.toml")
                with open(copy, "w") as file:
                    file.write("\n".join(lines[:at] + changed + lines[at + 1:]) + "\n")
                commands.append([c.verify, "run", copy, "--backend", "sim"])
    in_parallel(c.jobs, commands, {0, 1, 2, 3, 4})
    return len(commands)


def part_hooks(c):
    """A hook that never returns ends with the run's time limit, as a finding that names it."""
    if c.plugin is None:
        return 0
    count = 0
    for backend in c.backends:
        for mode in ("loop", "sleep"):
            for rank in (1, -1):
                count += 1
                command = [c.verify, "run", c.small, "--backend", backend, "--plugin", c.plugin, "--set", "hook.name=bad", "--set",
                           f"hook.options=mode={mode},rank={rank},at=1", "--set", "world.timeout_ms=4000"]
                began = time.monotonic()
                result = expect(command, {1})
                took = time.monotonic() - began
                if result is None:
                    continue
                words = result.stdout.replace("\n            ", " ")
                if "return from hook bad (bucket 0, step 1)" not in words:
                    complain("the hook that never returns is not named, with its step", command, result)
                who = "ranks 0 and 1 do not return" if rank < 0 else f"rank {rank} does not return"
                if who not in words:
                    complain("who never returns is not named", command, result)
                if took > 60:
                    complain(f"a limit of 4 s ends it after {took:.0f} s", command)
    return count


def part_checks(c):
    """A check of a plugin that crashes is named, and nothing is judged."""
    if c.plugin is None:
        return 0
    commands = [["run", c.small], ["run", "-j2", c.small, c.small], ["run", "--backend", "gloo", c.small], ["explore", "--budget", "3", c.small],
                ["prove", c.small]]
    for rest in commands:
        command = [c.verify] + rest + ["--plugin", c.plugin]
        result = expect(command, {2})
        words = "ended by signal 11" if "-j2" in rest else "check MINE crashed (SIGSEGV): there is no verdict"
        if result is not None and words not in " ".join((result.stdout + result.stderr).split()):
            complain("the check that crashes is not named", command, result)
    return len(commands)


HEAD = 'schema = 1\ntitle = "t"\n[world]\nsize = 2\n[model]\nname = "params"\noptions = "count=4,numel=1"\ndevice = "shape"\n[train]\nsteps = 1\n'


def part_sizes(c):
    """Each in 20,000 and in a tenth: time grows with the number, not with its square."""
    rows = {
        "groups": lambda n: HEAD + "".join(f'[[group]]\nname="g{i}"\nmembers=[0,1]\n' for i in range(n)),
        "groups_alike": lambda n: HEAD + '[[group]]\nname="g"\nmembers=[0,1]\n' * n,
        "members": lambda n: HEAD + f'[[group]]\nname="g"\nmembers={list(range(n))}\n',
        "members_alike": lambda n: HEAD + f'[[group]]\nname="g"\nmembers={[0] * n}\n',
        "keys": lambda n: HEAD + "".join(f"k{i} = 1\n" for i in range(n)),
        "tables": lambda n: HEAD + "".join(f"[t{i}]\nk = 1\n" for i in range(n)),
        "depth": lambda n: HEAD + "[a" + ".a" * n + "]\n",
        "brackets": lambda n: HEAD + "x = " + "[" * n + "]" * n + "\n",
        "faults": lambda n: HEAD + '[[fault]]\nkind="kill"\nrank=0\n' * n,
        "collectives": lambda n: HEAD + '[[collective]]\nop="reduceall"\n' * n,
        "wrappers": lambda n: HEAD + "".join(f'[[wrapper]]\nname="w{i}"\n' for i in range(n)),
        "marks": lambda n: HEAD + "[expect]\nmarks = [" + ",".join(f'"m{i}"' for i in range(n)) + "]\n",
        "optimizers": lambda n: HEAD + "[[optimizer]]\nlr=1\n" * n,
        "optimizers_in_backward": lambda n: HEAD + "[amp]\nenable=true\n" + "[[optimizer]]\nin_backward=true\n" * n,
        "rank_tables": lambda n: HEAD + "[[rank]]\nranks=0\nddp.static_graph=true\n" * n,
        "outputs": lambda n: HEAD + "".join(f'[[output]]\nname="o{i}"\n' for i in range(n)),
        "findings": lambda n: HEAD + '[expect]\nverdict="findings"\n' + '[[expect.finding]]\ncheck="I-REF"\n' * n,
        "conditions": lambda n: HEAD + "[[when]]\nranks=0\nsteps=0\n" * n,
    }
    for name, text in rows.items():
        seconds = []
        for n in (2000, 20000):
            path = os.path.join(c.work, f"{name}{n}.toml")
            open(path, "w").write(text(n))
            began = resource.getrusage(resource.RUSAGE_CHILDREN)
            expect([c.verify, "run", path], {0, 1, 2, 3, 4})
            ended = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(ended.ru_utime - began.ru_utime)
        if seconds[1] > 1 + 30 * seconds[0]:
            complain(f"20,000 {name} take {seconds[1]:.1f} s, 2,000 take {seconds[0]:.1f} s", [path])
    folders = {n: os.path.join(c.work, f"many{n}") for n in (2000, 20000)}
    for n, folder in folders.items():
        os.makedirs(folder)
        for i in range(n):
            open(f"{folder}/s{i}.toml", "w").write("x")
    ways = ("{}", "{}/*.toml", "-j 2 {}")
    for way in ways:
        seconds = []
        for folder in folders.values():
            began = resource.getrusage(resource.RUSAGE_CHILDREN)
            expect([c.verify, "run", "-k", "-q"] + way.format(folder).split(), {2})
            ended = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
        print(f"  20,000 files: {seconds[1]:.2f} s of processor time, 2,000: {seconds[0]:.2f} s ({way.format('FOLDER')})", flush=True)
        if seconds[1] > 1 + 30 * seconds[0]:
            complain(f"20,000 files take {seconds[1]:.1f} s, 2,000 take {seconds[0]:.1f} s", way.format(folders[20000]).split())
    return len(rows) + len(ways)


def part_steps(c):
    """The most memory that a run had, with few steps and with many; values compared, and order alone. Events that findings may
    show are kept up to a limit, which the smaller number of steps reaches."""
    longs = [(c.long, 4000, 16000)]
    if c.is_long:
        longs = [(c.long, 4000, 80000), (c.small, 2000, 20000)]
    for path, few, many in longs:
        most = []
        for steps in (few, many):
            code = "import resource, subprocess, sys; r = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); " \
                   "print(r.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
            result = run([sys.executable, "-c", code, c.verify, "run", path, "--set", f"train.steps={steps}"])
            if result is None:
                return 1
            exit_code, kilobytes = map(int, result.stdout.split())
            print(f"  {os.path.basename(path)}: {steps} steps, {kilobytes} KiB", flush=True)
            if exit_code != 0:
                complain(f"{steps} steps: exit {exit_code}", [path], result)
            most.append(kilobytes)
        if most[1] > most[0] * 1.1 + 2048:
            complain(f"memory grows with steps: {most[0]} KiB after {few}, {most[1]} KiB after {many}", [path])
    return len(longs)


class Campaign:
    # keys whose large values make a run that nobody waits for
    endless = {"train.steps", "train.micro_steps", "world.size", "world.batch", "model.options"}
    # tables that decide what is trained, or plant what is wrong: findings are right there
    may_blame = {"fault[]", "expect", "when[]", "rank[]", "schedule", "collective[]", "data"}
    # what a wrong program does: every rank says what is wrong
    mistakes = {"ddp.accumulate_in_hook"}


def main():
    words = sys.argv[1:]
    c = Campaign()
    c.seed, c.jobs = 1, max(2, os.cpu_count() or 2)
    c.plugin, c.is_long = None, "--long" in words
    if c.is_long:
        words.remove("--long")
    if "--plugin" in words:
        at = words.index("--plugin")
        c.plugin = os.path.abspath(words[at + 1])
        del words[at:at + 2]
    for name in ("seed", "jobs"):
        if "--" + name in words:
            at = words.index("--" + name)
            setattr(c, name, int(words[at + 1]))
            del words[at:at + 2]
    if len(words) < 2:
        sys.exit(__doc__)
    c.verify, scenarios = os.path.abspath(words[0]), os.path.abspath(words[1])
    c.small = os.path.join(scenarios, "models/mlp_two_ranks.toml")
    c.failing = os.path.join(scenarios, "bugs/hung_job.toml")
    c.random = random.Random(c.seed)
    c.work = tempfile.mkdtemp(prefix="cddp-adversary-")
    os.environ["TMPDIR"] = c.work + "/tmp"
    os.makedirs(os.environ["TMPDIR"])
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    c.long = os.path.join(c.work, "long.toml")
    open(c.long, "w").write(HEAD)
    listed = subprocess.run([c.verify, "doctor"], capture_output=True, text=True).stdout
    c.backends = ["sim"] + [name for name, line in (("gloo", "works  gloo"), ("mpi", "works  mpi")) if line in listed]
    parts = words[2:] or ["set", "stores", "signals", "limits", "streams", "files", "mistakes", "lacks", "sizes", "hooks", "checks", "steps"]
    try:
        for part in parts:
            began = time.monotonic()
            count = globals()["part_" + part](c)
            print(f"{part}: {count} tried in {time.monotonic() - began:.0f} s", flush=True)
    finally:
        shutil.rmtree(c.work, ignore_errors=True)
    print("adversary:", "all as it should be" if not failures else f"{len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
