# SPDX-License-Identifier: Apache-2.0
"""python -m cddp_torch explore: many orders of posts and completions of one script, under PyTorch's own reducer.

Ranks are processes (steering.py). A decision is taken only when no rank can go on by itself: every thread waits
for its turn, or for a completion. So the same choices give the same run.

Orders are also held against each other: what a rank gives to an operation may not depend on which completion came
first. A difference counts only where both orders, run once more, give again what they gave. Else the program itself
differs from run to run, and its contents say nothing.

A choice string is `RANKS:choices`. Each choice is the place of the action among those that were possible, and is
written only where there were several; `0*17` stands for seventeen times 0. Behind its end every choice is 0:
posts first, then completions in order.
"""
from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Connection, Listener, wait
from typing import Any, Dict, List, Optional, Set, Tuple

import torch

from . import launch, steering

REPLAYS = 10
RANKS_MAX = 16
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine, -1)
_FUTEX_WAITS = (0, 9)  # FUTEX_WAIT, FUTEX_WAIT_BITSET
_AWAY_S = 0.02         # for operations that are not controlled to end by themselves
_LOOKS_MAX = 200       # in a row, with nothing else to do: the program asks for ever
_SLEEPER_S = 1.0       # a thread of the program's own may sleep; then nobody waits for it any longer


class Refused(Exception):
    pass


# ---- what a thread is doing ----

def _is_blocked(pid: int, tid: int) -> Optional[bool]:
    """Does it wait without a time limit for another thread? None: it has ended."""
    try:
        with open("/proc/%d/task/%d/syscall" % (pid, tid)) as file:
            words = file.read().split()
    except OSError:
        return None
    if len(words) < 5 or not words[0].lstrip("-").isdigit():
        return False
    return int(words[0]) == _FUTEX and int(words[2], 16) & 0x7f in _FUTEX_WAITS and int(words[4], 16) == 0


def _switches(pid: int, tid: int) -> Optional[Tuple[str, str, str]]:
    try:
        with open("/proc/%d/task/%d/status" % (pid, tid)) as file:
            text = file.read()
    except OSError:
        return None
    found = {line.split(":")[0]: line.split(":")[1].strip() for line in text.splitlines() if ":" in line}
    return found.get("State", "?")[0], found.get("voluntary_ctxt_switches", ""), found.get(
        "nonvoluntary_ctxt_switches", "")


# ---- the ranks as the scheduler sees them ----

class Post:
    """What one rank gave to the k-th operation of a group."""

    def __init__(self, rank: int, message: Tuple[Any, ...], where: str) -> None:
        _, self.group, self.op, self.detail, self.root, self.given, self.source = message
        self.rank, self.thread, self.number = rank, where, -1
        self.thread_index: Optional[int] = None  # the completion thread that has it
        self.is_done = False
        self.gives = True

    def digest(self) -> str:
        """Of what it is and gives. A rank that only receives gives nothing."""
        content = hashlib.blake2b(repr(self.kind()).encode(), digest_size=8)
        for _, _, data in self.given if self.gives else []:
            content.update(data)
        return content.hexdigest()

    def kind(self) -> Tuple[Any, ...]:
        sizes = tuple((dtype, _numel(shape)) for dtype, shape, _ in self.given)
        return self.op, self.detail, self.root, sizes

    def print(self) -> str:
        sizes = " and ".join("%d %s" % (_numel(shape), dtype) for dtype, shape, _ in self.given)
        text = self.op + ("(%s)" % self.detail.lower() if self.detail else "")
        return text + (" of " + sizes if sizes else "") + (" from rank %d" % self.root if self.root >= 0 else "")


def _numel(shape: Tuple[int, ...]) -> int:
    n = 1
    for size in shape:
        n *= size
    return n


class Thread:
    def __init__(self, rank: int, role: str, tid: int, line: Connection) -> None:
        self.rank, self.role, self.tid, self.line = rank, role, tid, line
        self.is_waiting = False  # for an answer from here
        self.post: Optional[Post] = None
        self.is_polling = self.is_completer = False
        self.looks = 0
        self.last: Optional[Post] = None  # the last operation that it posted
        self.runs: Optional[Post] = None  # whose callbacks it runs


class Rank:
    def __init__(self, number: int, pid: int) -> None:
        self.number, self.pid = number, pid
        self.threads: Dict[int, Thread] = {}
        self.known: Set[int] = set()  # threads of PyTorch, there before the last group was made
        self.code: Optional[int] = None
        self.escapes = 0          # under way
        self.has_group = False
        self.expected = 0         # completion threads that are to say that they are there
        self.posts: Dict[int, List[Post]] = {}  # by group, in order
        self.quiet_since: Optional[float] = None


Action = Tuple[int, int, int, str]  # rank, group (-1: a post, -2: a look), number, role
Place = Tuple[int, int, int]        # rank, group, number


class Run:
    """One run of the script, from fork to end."""

    def __init__(self, command: List[str], ranks: int, limit_s: float, chooser: Any, place: str) -> None:
        self.command, self.limit_s, self.chooser, self.place = command, limit_s, chooser, place
        self.members: Dict[int, List[int]] = {}
        self.completers: Dict[Tuple[int, int, int], Thread] = {}
        self.choices: List[int] = []
        self.trail: List[Action] = []
        self.given: Dict[Place, Tuple[str, str]] = {}  # digest, and in words, in the order of posts
        self.completions = 0
        self.heard = 0.0  # when the last message came
        self.escaped_ops: Dict[str, int] = {}
        self.finding: Optional[str] = None
        self.details: List[str] = []
        address = os.path.join(place, "scheduler")
        if os.path.exists(address):
            os.unlink(address)
        self.listener = Listener(address, "AF_UNIX", backlog=64)
        self.lines: Dict[Connection, Optional[Thread]] = {}
        port = launch.free_port()
        sys.stdout.flush()
        sys.stderr.flush()
        self.ranks = [Rank(r, self._fork(r, ranks, port, address)) for r in range(ranks)]

    def _fork(self, rank: int, ranks: int, port: int, address: str) -> int:
        pid = os.fork()
        if pid > 0:
            return pid
        code = 0
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            log = os.open(os.path.join(self.place, "log.%d" % rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
            self.listener.close()
            os.environ.update(launch._environment(rank, ranks, port))
            steering.run(address, rank, self.command)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xff)

    # ---- messages ----

    def _receive(self, timeout: float) -> bool:
        socket = self.listener._listener._socket  # type: ignore[attr-defined]
        ready = wait([socket] + list(self.lines), timeout)
        for line in ready:
            if line is socket:
                self.lines[self.listener.accept()] = None
                continue
            assert isinstance(line, Connection)
            try:
                self._take(line, line.recv())
            except (EOFError, OSError):
                thread = self.lines.pop(line)
                line.close()
                if thread is not None:
                    self.ranks[thread.rank].threads.pop(thread.tid, None)
        if ready:
            self.heard = time.monotonic()
        return bool(ready)

    def _take(self, line: Connection, message: Tuple[Any, ...]) -> None:
        if message[0] == "hello":
            _, rank, role, tid = message
            thread = self.lines[line] = Thread(rank, role, tid, line)
            self.ranks[rank].threads[tid] = thread
            return
        found = self.lines[line]
        assert found is not None
        rank_state = self.ranks[found.rank]
        if message[0] == "post":
            found.post = Post(found.rank, message, found.role)
            found.is_waiting = True
        elif message[0] == "poll":
            found.is_polling = found.is_waiting = True
        elif message[0] == "idle":
            self.completers[(found.rank, message[1], message[2])] = found
            found.is_waiting, found.runs = True, None
            rank_state.expected -= 0 if found.is_completer else 1
            found.is_completer = True
        elif message[0] == "group":
            self.members[message[1]] = message[2]
            rank_state.known.update(message[3])
            rank_state.has_group = True
            rank_state.expected += steering.COMPLETION_THREADS
            line.send(None)
        elif message[0] == "escape":
            if message[1]:
                self.escaped_ops[message[1]] = self.escaped_ops.get(message[1], 0) + 1
            rank_state.escapes += 1
            line.send(None)
        elif message[0] == "returned":
            rank_state.escapes -= 1
            line.send(None)

    # ---- is anybody still on the way? ----

    def _sample(self, rank: Rank) -> Optional[List[Any]]:
        """How its threads stand, when all of them wait; None when one is on its way."""
        if rank.code is not None:
            return []
        if rank.escapes > 0:
            return []  # it waits for others, outside of all control
        if rank.expected > 0 or not rank.has_group:
            return None
        sample: List[Any] = []
        sleepers = False
        try:
            tids = [int(t) for t in os.listdir("/proc/%d/task" % rank.pid)]
        except OSError:
            return None
        for tid in tids:
            thread = rank.threads.get(tid)
            if thread is not None and thread.is_waiting:
                continue
            if thread is None and tid in rank.known and tid != rank.pid:
                continue
            blocked = _is_blocked(rank.pid, tid)
            if blocked is None:
                return None
            if not blocked:
                if thread is not None or tid == rank.pid:
                    rank.quiet_since = None
                    return None
                sleepers = True
            state = _switches(rank.pid, tid)
            if state is None or state[0] not in "SD":
                rank.quiet_since = None
                return None
            sample.append((tid,) + (state if blocked else ()))
        if sleepers:
            now = time.monotonic()
            rank.quiet_since = rank.quiet_since or now
            if now - rank.quiet_since < _SLEEPER_S:
                return None
        return sample

    def _is_settled(self) -> bool:
        if any(r.escapes > 0 for r in self.ranks) and time.monotonic() - self.heard < _AWAY_S:
            return False
        samples = []
        for rank in self.ranks:
            sample = self._sample(rank)
            if sample is None:
                return False
            samples.append(sample)
        time.sleep(0.0002)
        if self._receive(0):
            return False
        for rank, sample in zip(self.ranks, samples):
            if self._sample(rank) != sample:
                return False
        return not self._receive(0)

    def _reap(self) -> None:
        for rank in self.ranks:
            if rank.code is None:
                pid, status = os.waitpid(rank.pid, os.WNOHANG)
                if pid != 0:
                    while self._receive(0):
                        pass
                    rank.code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    # ---- decisions ----

    def _begin_operations(self) -> None:
        """Free completion threads take what has been posted, in order, as in Gloo."""
        for rank in self.ranks:
            for group, posts in rank.posts.items():
                taken = {p.thread_index for p in posts if p.thread_index is not None and not p.is_done}
                for index in range(steering.COMPLETION_THREADS):
                    thread = self.completers.get((rank.number, group, index))
                    if thread is None or not thread.is_waiting or index in taken:
                        continue
                    for post in posts:
                        if post.thread_index is None:
                            post.thread_index = index
                            break

    def _peers(self, post: Post) -> List[Post]:
        found = []
        for member in self.members[post.group]:
            posts = self.ranks[member].posts.get(post.group, [])
            if post.number < len(posts):
                found.append(posts[post.number])
        return found

    def _can_complete(self, post: Post) -> bool:
        if post.thread_index is None or post.is_done:
            return False
        me = self.members[post.group].index(post.rank)
        needed = self.members[post.group]
        if post.op == "broadcast":
            needed = [self.members[post.group][post.root]] if me != post.root else []
        elif post.op == "reduce" and me != post.root:
            needed = []
        there = {p.rank for p in self._peers(post) if p.thread_index is not None}
        return all(member in there for member in needed)

    def _enabled(self) -> List[Tuple[Action, Any]]:
        posts: List[Tuple[Action, Any]] = []
        polls: List[Tuple[Action, Any]] = []
        ends: List[Tuple[Action, Any]] = []
        for rank in self.ranks:
            if rank.code is not None:
                continue
            for thread in sorted(rank.threads.values(), key=lambda t: t.role):
                if thread.post is not None:
                    posts.append(((rank.number, -1, -1, thread.role), thread))
                elif thread.is_polling:
                    polls.append(((rank.number, -2, -1, thread.role), thread))
            for group, done in rank.posts.items():
                for post in done:
                    if self._can_complete(post):
                        ends.append(((rank.number, group, post.number, ""), post))
        posts.sort(key=lambda entry: entry[0])
        ends.sort(key=lambda entry: (entry[0][1], entry[0][2], entry[0][0]))
        polls.sort(key=lambda entry: (entry[1].looks, entry[0]))  # in turn
        return posts + ends + polls

    def _let_look(self, thread: Thread) -> None:
        """It has asked whether an operation is complete, and gets its answer now."""
        thread.is_polling = thread.is_waiting = False
        thread.looks += 1
        thread.line.send(None)

    def _let_post(self, thread: Thread) -> None:
        post = thread.post
        assert post is not None
        thread.post, thread.is_waiting, thread.last = None, False, post
        posts = self.ranks[post.rank].posts.setdefault(post.group, [])
        post.number = len(posts)
        posts.append(post)
        post.gives = post.op != "broadcast" or self.members[post.group][post.root] == post.rank
        self.given[post.rank, post.group, post.number] = post.digest(), post.print() + _at(post)
        thread.line.send(post.number)
        others = [p for p in self._peers(post) if p.kind() != post.kind()]
        if others:
            other = others[0]
            self.finding = "rank %d and rank %d disagree on operation #%d of group %d" % (
                min(post.rank, other.rank), max(post.rank, other.rank), post.number, post.group)
            self.details = ["rank %d: %s%s" % (p.rank, p.print(), _at(p)) for p in sorted(
                (post, other), key=lambda p: p.rank)]

    def _let_complete(self, post: Post) -> None:
        thread = self.completers[(post.rank, post.group, post.thread_index or 0)]
        post.is_done = True
        results = self._results(post)
        thread.is_waiting, thread.runs = False, post
        self.completions += 1
        thread.line.send((post.number, results))
        if all(p.is_done for p in self._peers(post)) and len(self._peers(post)) == len(self.members[post.group]):
            for p in self._peers(post):
                p.given = [(dtype, shape, b"") for dtype, shape, _ in p.given]

    def _results(self, post: Post) -> List[Any]:
        by_rank = {p.rank: p for p in self._peers(post)}
        members = self.members[post.group]
        if post.op == "barrier" or (post.op == "reduce" and members.index(post.rank) != post.root):
            return []
        if post.op == "broadcast":
            return list(by_rank[members[post.root]].given)
        if post.op == "allgather":
            return [given for member in members for given in by_rank[member].given]
        results = []
        for place in range(len(post.given)):
            total = steering.unpack(by_rank[members[0]].given[place])
            for member in members[1:]:
                other = steering.unpack(by_rank[member].given[place])
                if post.detail == "SUM":
                    total += other
                elif post.detail == "PRODUCT":
                    total *= other
                else:
                    total = torch.minimum(total, other) if post.detail == "MIN" else torch.maximum(total, other)
            results.append(steering.pack(total))
        return results

    # ---- from the first to the last decision ----

    def go(self) -> None:
        began, looks = time.monotonic(), 0
        try:
            while self.finding is None:
                self._receive(0.0005)
                self._reap()
                failed = [r for r in self.ranks if r.code is not None and r.code != 0]
                if failed:
                    self._tell_failure(failed[0])
                    break
                if all(r.code is not None for r in self.ranks):
                    break
                if time.monotonic() - began > self.limit_s:
                    self.finding = "the run did not end within %g s" % self.limit_s
                    self.details = self._tell_waits()
                    break
                if not self._is_settled():
                    continue
                self._begin_operations()
                enabled = self._enabled()
                only_looks = all(action[1] == -2 for action, _ in enabled)
                looks = looks + 1 if only_looks else 0
                if not enabled or looks > _LOOKS_MAX:
                    self._reap()
                    if self.escaped_ops or any(r.escapes > 0 for r in self.ranks) or all(
                            r.code is not None for r in self.ranks):
                        continue  # what is not controlled may still end
                    self.finding = "nothing can go on: every rank waits"
                    self.details = self._tell_waits()
                    break
                index = 0
                if len(enabled) > 1:
                    index = self.chooser(len(enabled))
                    self.choices.append(index)
                action, subject = enabled[index]
                self.trail.append(action)
                if isinstance(subject, Thread) and subject.is_polling:
                    self._let_look(subject)
                elif isinstance(subject, Thread):
                    self._let_post(subject)
                else:
                    self._let_complete(subject)
        finally:
            self._stop()

    def _tell_failure(self, rank: Rank) -> None:
        code = rank.code or 0
        self.finding = "rank %d ended with %s" % (rank.number, "signal %d" % -code if code < 0 else "code %d" % code)
        try:
            with open(os.path.join(self.place, "log.%d" % rank.number), errors="replace") as file:
                lines = [line.strip() for line in file if line.strip()]
        except OSError:
            lines = []
        self.details = lines[-1:]

    def _tell_waits(self) -> List[str]:
        lines = []
        for rank in self.ranks:
            if rank.code is not None:
                lines.append("rank %d has ended" % rank.number)
                continue
            for thread in sorted(rank.threads.values(), key=lambda t: t.role):
                if thread.is_waiting and not thread.is_polling:
                    continue
                if thread.runs is not None:
                    last = thread.last
                    lines.append("rank %d waits in a continuation of #%d%s" % (
                        rank.number, thread.runs.number, " for #%d, %s%s" % (
                            last.number, last.print(), _at(last)) if last is not None and not last.is_done else ""))
            open_posts = [p for posts in rank.posts.values() for p in posts if not p.is_done]
            if open_posts:
                first = open_posts[0]
                lines.append("rank %d: %d operation%s not completed, the first is #%d of group %d, %s%s" % (
                    rank.number, len(open_posts), "" if len(open_posts) == 1 else "s", first.number, first.group,
                    first.print(), _at(first)))
            elif not any(line.startswith("rank %d " % rank.number) for line in lines):
                lines.append("rank %d has no operation under way" % rank.number)
        return lines

    def _stop(self) -> None:
        for rank in self.ranks:
            if rank.code is None:
                try:
                    os.kill(rank.pid, signal.SIGKILL)
                except OSError:
                    pass
                os.waitpid(rank.pid, 0)
                rank.code = -int(signal.SIGKILL)
        for line in self.lines:
            line.close()
        self.listener.close()


def _at(post: Post) -> str:
    where = " in a continuation" if post.thread.startswith("completion") else ""
    return where + (" (%s)" % post.source if post.source else "")


# ---- choice strings ----

def print_choices(ranks: int, choices: List[int]) -> str:
    while choices and choices[-1] == 0:
        choices = choices[:-1]
    parts, at = [], 0
    while at < len(choices):
        end = at
        while end < len(choices) and choices[end] == choices[at]:
            end += 1
        parts.append("%d" % choices[at] if end - at == 1 else "%d*%d" % (choices[at], end - at))
        at = end
    return "%d:%s" % (ranks, ",".join(parts))


def read_choices(text: str) -> Tuple[int, List[int]]:
    try:
        ranks, _, rest = text.partition(":")
        choices: List[int] = []
        for part in rest.split(",") if rest else []:
            value, _, times = part.partition("*")
            count = int(times) if times else 1
            if int(value) < 0 or not 0 < count <= 10 ** 7:
                raise ValueError(part)
            choices += [int(value)] * count
        return int(ranks), choices
    except ValueError:
        raise Refused("%s is no choice string: RANKS:choice,choice*times,…" % text)


class _Replay:
    def __init__(self, choices: List[int]) -> None:
        self.choices, self.at, self.has_diverged = choices, 0, False

    def __call__(self, count: int) -> int:
        choice = self.choices[self.at] if self.at < len(self.choices) else 0
        self.at += 1
        if choice >= count:
            self.has_diverged = True
            return 0
        return choice


def _first_difference(one: Run, other: Run) -> Optional[Place]:
    """In the order of posts of the second run; what only the first one has comes last."""
    for place in list(other.given) + list(one.given):
        if one.given.get(place, ("", ""))[0] != other.given.get(place, ("", ""))[0]:
            return place
    return None


def _print_place(place: Place) -> str:
    return "rank %d gives to operation #%d of group %d" % (place[0], place[2], place[1])


class Exploration:
    def __init__(self, command: List[str], ranks: int, limit_s: float, seed: int) -> None:
        self.command, self.ranks, self.limit_s, self.seed = command, ranks, limit_s, seed
        self.place = tempfile.mkdtemp(prefix="cddp-explore-")
        self.first: Optional[Run] = None  # the order that comes first, which others are held against
        self.differs_by_itself: Optional[str] = None

    def _go(self, chooser: Any) -> Run:
        made = Run(self.command, self.ranks, self.limit_s, chooser, self.place)
        made.go()
        return made

    def run(self, chooser: Any) -> Run:
        """One order. Its finding may be a content that only this order has."""
        made = self._go(chooser)
        if made.finding is None and self.differs_by_itself is None:
            self._hold(made)
        return made

    def _hold(self, run: Run) -> None:
        if self.first is None:
            self.first = self._go(_Replay([])) if any(run.choices) else run
        place = _first_difference(self.first, run) if self.first.finding is None else None
        if place is None:
            return
        for known in (self.first, run):
            again = _first_difference(known, self._go(_Replay(known.choices)))
            if again is not None:
                self.differs_by_itself = _print_place(again)
                return
        run.finding = "what %s depends on the order of posts and completions" % _print_place(place)
        run.details = ["%s: %s" % (what, "%s, content %s" % (r.given[place][1], r.given[place][0])
                                   if place in r.given else "no such operation")
                       for what, r in (("in the order that comes first", self.first), ("in this one", run))]

    def random(self, number: int) -> Run:
        if number == 0:
            return self.run(_Replay([]))
        draw = random.Random("%d:%d" % (self.seed, number))
        return self.run(lambda count: draw.randrange(count))

    def close(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)


def _check_place() -> None:
    if _FUTEX < 0 or _switches(os.getpid(), os.getpid()) is None or _is_blocked(os.getpid(), os.getpid()) is None:
        raise Refused("explore needs Linux on x86_64 or aarch64, with /proc/PID/task/TID/syscall readable")


def _print_finding(found: Run) -> None:
    print("finding: %s" % found.finding)
    for line in found.details:
        print("  %s" % line)


def _replay(e: Exploration, found: Run, times: int) -> int:
    same = 0
    for _ in range(times):
        again = e.run(_Replay(found.choices))
        same += again.finding == found.finding and again.trail == found.trail
    return same


def explore(command: List[str], ranks: int, budget: int, limit_s: float, seed: int, replay: Optional[str]) -> int:
    try:
        _check_place()
    except Refused as failure:
        sys.stderr.write("explore: %s\n" % failure)
        return 3
    choices: List[int] = []
    try:
        if replay is not None:
            ranks, choices = read_choices(replay)
        if not 1 <= ranks <= RANKS_MAX:
            raise Refused("-n is 1 to %d" % RANKS_MAX)
        if command[0] != "-m" and not os.path.isfile(command[0]):
            raise Refused("%s: no such file" % command[0])
    except Refused as failure:
        sys.stderr.write("explore: %s\n" % failure)
        return 2
    torch.set_num_threads(1)
    e = Exploration(command, ranks, limit_s, seed)
    try:
        return _replay_one(e, choices) if replay is not None else _explore(e, budget)
    finally:
        e.close()


def _summary(name: str, runs: List[Run]) -> None:
    points, ends = sum(len(r.choices) for r in runs), sum(r.completions for r in runs)
    escaped: Dict[str, int] = {}
    for r in runs:
        for op, count in r.escaped_ops.items():
            escaped[op] = escaped.get(op, 0) + count
    print("%s: %d run%s, torch %s: %d choice points controlled, %d completions; %d escaped%s" % (
        name, len(runs), "" if len(runs) == 1 else "s", torch.__version__, points, ends, sum(escaped.values()),
        " (%s)" % ", ".join("%s %d" % entry for entry in sorted(escaped.items())) if escaped else ""))


def _name(command: List[str]) -> str:
    return " ".join(command[:2]) if command[0] == "-m" else os.path.basename(command[0])


def _replay_one(e: Exploration, choices: List[int]) -> int:
    chooser = _Replay(choices)
    run = e.run(chooser)
    _summary(_name(e.command), [run])
    if chooser.has_diverged:
        print("the choices do not fit this script: one of them was not possible")
        return 2
    if run.finding is None:
        print("the run ended well")
        return 0
    _print_finding(run)
    return 1


def _explore(e: Exploration, budget: int) -> int:
    runs: List[Run] = []
    for number in range(budget):
        runs.append(e.random(number))
        if runs[-1].finding is not None:
            break
        if not runs[-1].choices:
            break  # every other run would be the same
    found = runs[-1]
    _summary(_name(e.command), runs)
    if found.finding is not None:
        _print_finding(found)
        same = _replay(e, found, REPLAYS)
        print("replayed   %d of %d times alike" % (same, REPLAYS))
        print("reproduce  python -m cddp_torch explore --replay '%s' %s" % (
            print_choices(e.ranks, found.choices), " ".join(e.command)))
        return 1
    if not found.choices:
        print("nothing was controlled: the script posts no operation whose completion could be ordered")
        return 4
    print("every run ended well")
    if e.differs_by_itself is not None:
        print("contents were not compared: what %s differs between runs in the same order" % e.differs_by_itself)
    return 0
