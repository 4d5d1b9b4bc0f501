#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mutants of the C sources: how many of them do the scenarios notice?"""
import argparse
import concurrent.futures
import hashlib
import pathlib
import shutil
import signal
import sys
import tempfile
import time

import lists
import table
import touched
from judge import Judge, trial
from mutants import OPERATORS, Parser
from program import Program, end_all
from store import AGAIN, Store
from tree import FOLDERS, LEFT_ALONE, ROOT, Absent, Build, Mistake, tree_digest


def say(text):
    print(text, file=sys.stderr, flush=True)


def folders_of(words):
    for word in words or ():
        if word.rstrip("/") not in FOLDERS:
            raise Mistake(f"'{word}' is not a folder that is mutated: they are {', '.join(FOLDERS)}")
    return tuple(word.rstrip("/") for word in words) if words else FOLDERS


def rank(seed, key):
    """Where a mutant stands in the draw of a seed: a new mutant elsewhere moves nobody."""
    return hashlib.sha256(f"{seed}\0{lists.line_of(key)}".encode()).hexdigest()


def collect(store, parser, files):
    found = {}
    for file in files:
        for mutant in store.mutants(parser, file):
            found[mutant.key] = mutant
    return found


def chosen(arguments, build, store, parser, lost=None):
    """The mutants that the options name, in the order of the draw. lost: takes those that the sources do not have any more."""
    folders = folders_of(arguments.folder)
    sources = build.sources(folders)
    if arguments.file:
        sources = [file for file in sources if arguments.file in file]
        if not sources:
            raise Mistake(f"no source of {', '.join(folders)} has '{arguments.file}' in its path")
    wanted = None
    if getattr(arguments, "known", False):
        wanted = lists.known()
        if not wanted:
            raise Mistake(f"{lists.KNOWN} is empty: run a sample first, then use the verb keep")
    elif getattr(arguments, "lived", False):
        wanted = {tuple(row[1:6]) for row in store.latest() if row[6] == "lived"}
    if wanted is not None:
        # Only their files are parsed.
        wanted = sorted((key for key in wanted if key[0] in sources), key=lambda key: rank(arguments.seed, key))
        if arguments.sample:
            wanted = wanted[:arguments.sample]
        found = collect(store, parser, sorted({key[0] for key in wanted}))
        if lost is not None:
            lost.extend(key for key in wanted if key not in found)
        mutants = [found[key] for key in wanted if key in found]
    else:
        mutants = sorted(collect(store, parser, sources).values(), key=lambda mutant: rank(arguments.seed, mutant.key))
    if arguments.operator:
        mutants = [mutant for mutant in mutants if mutant.operator == arguments.operator]
    if arguments.text:
        mutants = [mutant for mutant in mutants if arguments.text in mutant.text]
    if arguments.id:
        mutants = [mutant for mutant in mutants if mutant.id.startswith(arguments.id)]
        if not mutants:
            raise Mistake(f"no mutant's id begins with '{arguments.id}'; list shows them")
    return mutants[:arguments.sample] if arguments.sample else mutants


def verb_list(arguments, build, store):
    for mutant in chosen(arguments, build, store, Parser(build)):
        print(f"{mutant.id} {lists.line_of(mutant.key)}")
    return 0


def verb_show(arguments, build, store):
    if not arguments.id:
        raise Mistake("show needs --id, as list prints it")
    import difflib
    for mutant in chosen(arguments, build, store, Parser(build)):
        source = (ROOT / mutant.file).read_text(encoding="utf-8")
        print(f"{mutant.id} {lists.line_of(mutant.key)}")
        sys.stdout.writelines(difflib.unified_diff(source.splitlines(True), mutant.apply(source).splitlines(True),
                                                   f"a/{mutant.file}", f"b/{mutant.file}"))
    return 0


def verb_try(arguments, build, store):
    """A scenario that is being written: does it notice a mutant? Without one: what the report says to which it is known. Nothing is stored."""
    if not arguments.id and not arguments.known:
        raise Mistake("try needs --id, as list prints it, or --known")
    noticed = lists.known() if not arguments.scenario else {}
    for scenario in arguments.scenario:
        if not pathlib.Path(scenario).is_file():
            raise Mistake(f"{scenario} is no file")
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="cddp-mutants-"))
    lived = 0
    try:
        program = Program(build, scratch)
        for mutant in chosen(arguments, build, store, Parser(build)):
            print(f"{mutant.id} {lists.line_of(mutant.key)}")
            scenarios = arguments.scenario or [str(ROOT / name) for key, name in noticed.items() if key == mutant.key]
            if not scenarios:
                raise Mistake("no scenario is given, and known.txt has none that notices it")
            for line in trial(program, mutant, scenarios, scratch, arguments.report):
                lived += line.endswith("as before")
                print(f"  {line}", flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 1 if lived else 0


def verb_run(arguments, build, store):
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="cddp-mutants-"))
    try:
        return judged(arguments, build, store, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def judged(arguments, build, store, scratch):
    program, mapped, tree = Program(build, scratch), touched.Map(), tree_digest(build)
    lost = []
    mutants = chosen(arguments, build, store, Parser(build), lost)
    # What is judged again was not drawn: it is no part of the numbers of a seed.
    seed = AGAIN if arguments.known or arguments.lived else arguments.seed
    if seed != AGAIN:
        store.draw(tree, seed, mutants)
    done, equal = store.done(tree), lists.equivalent()
    todo = [mutant for mutant in mutants if mutant.key not in done
            or arguments.units and done[mutant.key][0] == "lived" and done[mutant.key][3] == "not run" and mutant.key not in equal]
    say(f"seed {arguments.seed}: {len(mutants)} mutants, {len(mutants) - len(todo)} judged before in this state of the tree")
    if todo:
        judge = Judge(program, mapped, arguments.mapped or mapped.tree == tree, arguments.units, lists.known(),
                      arguments.blame)
        if arguments.mapped and mapped.tree != tree:
            say("the map is of another state of the tree, and only scenarios that it names are run: others may notice what lives")
        if not judge.exact:
            say("the map is of another state of the tree: scenarios that it does not name are run too (the verb map renews it)")
        until = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None
        work(arguments, judge, store, (tree, seed), todo, until, equal, done)
    return report(store.done(tree), mutants, equal, lists.known(), lost)


def work(arguments, judge, store, place, todo, until, equal, done):
    pool = concurrent.futures.ThreadPoolExecutor(arguments.jobs)
    running, waiting, ended = {}, iter(todo), 0
    try:
        while True:
            while len(running) < arguments.jobs and (
                    until is None or time.monotonic() < until or ended + len(running) < arguments.least):
                mutant = next(waiting, None)
                if mutant is None:
                    break
                before = done.get(mutant.key)
                running[pool.submit(judge.judge, mutant, before[4] if before else None)] = mutant
            if not running:
                break
            for future in concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED).done:
                mutant = running.pop(future)
                outcome, scenario, how, units, tried = future.result()
                store.keep(*place, mutant, outcome, scenario, how, units, tried)
                ended += 1
                if not arguments.quiet:
                    what = {"noticed": f"noticed by {scenario}, {how}", "same": "same object code", "unbuilt": "does not compile",
                            "lived": f"noticed by {units}" if units not in ("", "not run") else "lived"}[outcome]
                    if outcome == "lived" and mutant.key in equal:
                        what = "lived, argued to be equivalent"
                    say(f"[{ended}/{len(todo)}] {mutant.id} {lists.line_of(mutant.key)}: {what}")
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        end_all()
        raise
    pool.shutdown()


def report(done, mutants, equal, known, lost=()):
    """Prints the sum, what lived and what is lost; 1 when a mutant lived that was noticed before."""
    results = [(mutant, done[mutant.key]) for mutant in mutants if mutant.key in done]
    counts = table.count([(mutant.key, result[0], result[3]) for mutant, result in results], equal)
    print(table.sentence(counts, len(mutants)))
    if lost:
        print(f"{len(lost)} more cannot be judged, since the sources do not have them any more (keep takes them out of known.txt):")
        for key in lost:
            print(f"  {lists.line_of(key)}")
    worse = 0
    for mutant, result in results:
        if result[0] != "lived" or mutant.key in equal or result[3] not in ("", "not run"):
            continue
        if mutant.key in known:
            worse += 1
        print(f"{'LIVES, NOTICED BEFORE' if mutant.key in known else 'lived'}: {mutant.id} {lists.line_of(mutant.key)}")
    if worse:
        print(f"{worse} of them were noticed before: the catalogue or a check has become worse, or the mutant stands for something else now "
              "(then take its line out of known.txt)")
    return 1 if worse else 0


def verb_map(arguments, build, _):
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="cddp-mutants-"))
    try:
        touched.make(Program(build, scratch), build.sources(), tree_digest(build), arguments.jobs, say)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


def verb_age(_, build, __):
    old = False
    for what, count, missing, gone in touched.age(build.sources(), touched.Map()):
        far = touched.OLD * (len(missing) + len(gone)) > count
        old = old or far
        print(f"{what}: {count} in the tree, {len(missing)} not in the map, {len(gone)} of the map are gone" + (": too old" if far else ""))
        for name in (missing + gone)[:10] if far else ():
            print("  " + (name if isinstance(name, str) else " ".join(name)))
    if old:
        print("renew the map: /usr/bin/python3 tests/mutation map")
    return 1 if old else 0


def verb_check(_, build, store):
    """Each entry of equivalent.txt must still be a mutant of the sources."""
    parser, wanted = Parser(build), lists.equivalent()
    files = {key[0] for key in wanted}
    for file in sorted(files - set(build.sources())):
        raise Mistake(f"{lists.EQUIVALENT} names {file}, which is no source of this build")
    found = collect(store, parser, sorted(files))
    lost = sorted(set(wanted) - set(found))
    known = lists.known()
    both = sorted(set(wanted) & set(known))
    for key in lost:
        print(f"not a mutant any more: {lists.line_of(key)}")
    for key in both:
        print(f"called equivalent, and was noticed: {lists.line_of(key)}")
    found = collect(store, parser, sorted({key[0] for key in known} & set(build.sources())))
    gone = sorted(set(known) - set(found))
    for key in gone:
        print(f"known, and not a mutant any more: {lists.line_of(key)}")
    print(f"{len(wanted)} arguments, {len(lost)} of them about nothing, {len(both)} of them refuted; "
          f"{len(known)} known mutants, {len(gone)} of them not in the sources any more")
    return 1 if lost or both else 0


def verb_keep(_, build, store):
    """Adds what scenarios noticed last to known.txt, and forgets what is no mutant any more or lived."""
    results = {tuple(row[1:6]): (row[6], row[7]) for row in store.latest()}
    before = lists.known()
    noticed = {key: scenario for key, scenario in before.items() if results.get(key, ("noticed",))[0] == "noticed"}
    noticed.update((key, scenario) for key, (outcome, scenario) in results.items() if outcome == "noticed")
    found = collect(store, Parser(build), sorted({key[0] for key in noticed} & set(build.sources())))
    # Which of these functions runs is a matter of the processor.
    noticed = {key: scenario for key, scenario in noticed.items() if key in found and not key[1].endswith(("_avx2", "_avx512"))}
    lists.write_known(noticed)
    for key in sorted(set(before) - set(noticed)):
        why = "it lived when it was judged last" if key in found and results.get(key, ("noticed",))[0] != "noticed" else \
            "it is not in the sources any more" if key not in found else "whether it runs is a matter of the processor"
        print(f"forgotten, since {why}: {lists.line_of(key)}")
    print(f"{lists.KNOWN.relative_to(ROOT)}: {len(noticed)} mutants, {len(set(noticed) - set(before))} of them new, "
          f"{len(set(before) - set(noticed))} forgotten")
    return 0


def verb_table(arguments, build, store):
    found = collect(store, Parser(build), build.sources())
    judged = [row for row in store.drawn() if row[1] not in LEFT_ALONE]
    rows = table.merged(table.kept(), table.rows_of(judged, lists.equivalent(), touched.Map()))
    text = table.table(rows, found)
    if arguments.write:
        table.keep(rows)
        table.put(text)
        print(f"{table.PAGE.relative_to(ROOT)} and {table.NUMBERS.relative_to(ROOT)} are written")
    else:
        print(text)
    return 0


def number(text):
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def parse(words):
    operators = "\n".join(f"  {name:<11} {what}" for name, what in OPERATORS.items())
    parser = argparse.ArgumentParser(
        prog="/usr/bin/python3 tests/mutation", formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__ + "\n\nMutates the sources of " + ", ".join(FOLDERS) + " one place at a time, links cddp-verify with the\n"
        "mutated object, and runs scenarios: a mutant is noticed when a verdict or an exit differs from the clean program's.",
        epilog=f"operators:\n{operators}\n\nRESULTS go to SQLite; the same command after Ctrl-C goes on where it was.\n"
        "Exit codes: 0, or 1 (a mutant that was noticed before lives, the map is too old, an argument is about nothing),\n2 bad input, 3 this machine lacks libclang or ninja.")
    parser.add_argument("--build", default=str(ROOT / "build/release"), metavar="DIR", help="the build to mutate (build/release)")
    parser.add_argument("--store", metavar="FILE", help="where results are kept (mutation.db in the build)")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    selection = argparse.ArgumentParser(add_help=False)
    selection.add_argument("--folder", action="append", metavar="DIR", help="only this folder; may be repeated")
    selection.add_argument("--file", metavar="PART", help="only sources with this in their path")
    selection.add_argument("--operator", choices=sorted(OPERATORS), metavar="NAME", help="only this operator")
    selection.add_argument("--text", metavar="PART", help="only mutants with this in their text")
    selection.add_argument("--id", metavar="ID", help="only the mutants whose id begins so")
    selection.add_argument("--sample", type=number, metavar="N", help="only so many, drawn by the seed")
    selection.add_argument("--seed", default="1", help="of the draw (1); tree: a digest of the sources and scenarios")
    verbs.add_parser("list", parents=[selection], help="print mutants: id, file, function, operator, ordinal, text").set_defaults(call=verb_list)
    verbs.add_parser("show", parents=[selection], help="print a mutant as a patch").set_defaults(call=verb_show)
    run = verbs.add_parser("run", parents=[selection], help="judge mutants; 1 when one that was noticed before lives")
    run.add_argument("--minutes", type=float, metavar="N", help="begin no mutant after so many minutes")
    run.add_argument("--least", type=number, default=0, metavar="N", help="but judge so many, if there are as many")
    run.add_argument("--jobs", type=number, default=1, metavar="N", help="so many mutants at once (1)")
    run.add_argument("--units", action="store_true", help="run the unit tests of the folder on those that lived")
    run.add_argument("--known", action="store_true", help="draw from known.txt")
    run.add_argument("--lived", action="store_true", help="draw from those that lived when they were judged last")
    run.add_argument("--mapped", action="store_true", help="run only scenarios that the map names, though it is of another state of the tree")
    run.add_argument("--blame", action="store_true", help="where the first scenario that notices names no finding, look for one that does")
    run.add_argument("--quiet", action="store_true", help="no line for each mutant")
    run.set_defaults(call=verb_run)
    attempt = verbs.add_parser("try", parents=[selection], help="run scenarios on mutants, for one that is being written; 1 when it ends as before")
    attempt.add_argument("scenario", nargs="*", metavar="SCENARIO", help="none: the one that noticed it last, by known.txt")
    attempt.add_argument("--known", action="store_true", help="draw from known.txt")
    attempt.add_argument("--report", type=number, default=1, metavar="N", help="show so many lines of the report (1)")
    attempt.set_defaults(call=verb_try)
    renew = verbs.add_parser("map", help="find out which scenarios enter which function, and write touched.map")
    renew.add_argument("--jobs", type=number, default=2, metavar="N", help="so many at once (2)")
    renew.set_defaults(call=verb_map)
    verbs.add_parser("age", help="compare the map with the tree; 1 when it is too old").set_defaults(call=verb_age)
    verbs.add_parser("check", help="check that equivalent.txt argues about mutants that exist").set_defaults(call=verb_check)
    verbs.add_parser("keep", help="write what was noticed to known.txt").set_defaults(call=verb_keep)
    page = verbs.add_parser("table", help="the last results by folder and seed")
    page.add_argument("--write", action="store_true", help="write them to docs/mutation.md")
    page.set_defaults(call=verb_table)
    return parser.parse_args(words)


def main(words):
    arguments = parse(words)
    try:
        build = Build(arguments.build)
        store = Store(arguments.store or build.folder / "mutation.db")
        if getattr(arguments, "seed", None) == "tree":
            arguments.seed = tree_digest(build)
        return arguments.call(arguments, build, store)
    except Mistake as mistake:
        say(f"mutation: {mistake}")
        return 3 if isinstance(mistake, Absent) else 2
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
