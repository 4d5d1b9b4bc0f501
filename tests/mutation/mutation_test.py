# SPDX-License-Identifier: Apache-2.0
"""Tests of the program itself: operators on a small source, keys, lists, the map's lines, the verdict on a mutant."""
import contextlib
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import judge
import lists
import mutants
import program
import table
import touched
import tree
from store import AGAIN, Store

SMALL = """\
typedef enum { RED_SUM, RED_MAX } red;
#include <stdbool.h>
#define CD_TRY(call) do { if ((call) != 0) return 1; } while (0)
#define CD_ASSERT(c) ((c) ? (void)0 : (void)1)
int combine(int a, int b);
static int touch(int n);
void nothing_audit(int n);
static int touch(int n)
{
    CD_ASSERT(n > 0);
    return n;
}
int walk(int a, int b, const char *name)
{
    int sum = 0;
    if (a < b && name) sum += combine(a, b);
    for (int i = 0; i < a; i++) sum = sum - 2;
    if (!name) return 0;
    CD_TRY(combine(a, b + 1));
    touch(
        sum);
    nothing_audit(sum);
    return sum;
}
red which(void)
{
    return RED_SUM;
}
bool early(int n)
{
    return n > 1 && n < 9;
}
void nothing_audit(int n)
{
    if (n > 3) touch(n);
}
"""
FILE = "core/ddp/small.c"


def of(text=SMALL):
    try:
        return mutants.Parser().of_text(FILE, text, ["-std=c11"])
    except tree.Absent as absent:
        raise unittest.SkipTest(str(absent)) from absent


class Operators(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.found = {(m.function, m.operator, m.text) for m in of()}

    def has(self, *key):
        self.assertIn(key, self.found)

    def lacks(self, function=None, operator=None, part=""):
        self.assertFalse([key for key in self.found if (function is None or key[0] == function)
                          and (operator is None or key[1] == operator) and part in key[2]])

    def test_every_operator_is_applied(self):
        self.has("walk", "relation", "a < b -> <=")
        self.has("walk", "relation", "a < b -> >=")
        self.has("walk", "logic", "a < b && name -> ||")
        self.has("walk", "condition", "if (a < b && name) -> !(a < b && name)")
        self.has("walk", "not", "!name -> name")
        self.has("walk", "arithmetic", "sum - 2 -> +")
        self.has("walk", "arithmetic", "sum += combine(a, b) -> -=")
        self.has("walk", "arithmetic", "i++ -> --")
        self.has("walk", "statement", "sum = sum - 2; -> dropped")
        self.has("walk", "return", "{ -> return (int){0};")
        self.has("early", "return", "{ -> return true;")
        self.has("early", "result", "return n > 1 && n < 9 -> !")
        self.has("walk", "result", "return sum -> + 1")
        self.has("which", "enumerator", "return ⟨RED_SUM⟩; -> RED_MAX")

    def test_arguments_of_a_macro_are_mutated_and_its_body_is_not(self):
        self.has("walk", "arguments", "combine(a, b + 1) -> (b + 1, a)")
        self.has("walk", "arithmetic", "b + 1 -> -")
        self.has("walk", "statement", "CD_TRY(combine(a, b + 1)); -> dropped")
        self.lacks(part="(call)")

    def test_assertions_and_audits_are_left_alone(self):
        self.lacks("touch", "relation")
        self.lacks("nothing_audit")

    def test_the_comparison_of_a_negation_is_made_once(self):
        self.lacks("walk", "condition", "!name")

    def test_keys_are_unique_and_name_no_line(self):
        keys = [m.key for m in of()]
        self.assertEqual(len(keys), len(set(keys)))
        moved = {m.key for m in of("\n\n" + SMALL.replace("int combine", "int other(void);\nint combine"))}
        self.assertEqual(set(keys), moved)

    def test_equal_texts_differ_in_their_ordinal(self):
        twice = of("int f(int a)\n{\n    a = a + 1;\n    a = a + 1;\n    return a;\n}\n")
        self.assertEqual([1, 2], [m.ordinal for m in twice if m.operator == "arithmetic"])

    def test_a_mutant_keeps_the_number_of_lines(self):
        for m in of():
            self.assertEqual(SMALL.count("\n"), m.apply(SMALL).count("\n"), m.key)
            self.assertNotEqual(SMALL, m.apply(SMALL), m.key)

    def test_offsets_are_of_characters(self):
        text = "/* ünïcödé ✓ */\n" + SMALL
        changed = [m.apply(text) for m in of(text) if m.text == "a < b -> <="]
        self.assertIn("if (a <= b && name)", changed[0])

    def test_mutants_compile(self):
        with tempfile.TemporaryDirectory() as folder:
            for m in of():
                path = pathlib.Path(folder) / "m.c"
                path.write_text(m.apply(SMALL), encoding="utf-8")
                done = subprocess.run(["cc", "-std=c11", "-w", "-fsyntax-only", str(path)], capture_output=True, text=True, check=False)
                self.assertEqual(0, done.returncode, f"{m.key}\n{done.stderr}")

    def test_a_source_that_does_not_parse_is_refused_in_a_sentence(self):
        with self.assertRaisesRegex(tree.Mistake, "cannot parse core/ddp/small.c: .* in line 1"):
            of("int f(\n")


class Lists(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name) / "list.txt"

    def tearDown(self):
        self.folder.cleanup()

    def test_known_mutants_come_back(self):
        noticed = {("a.c", "f", "logic", 2, "a || b -> &&"): "scenarios/a.toml", ("a.c", "f", "constant", 1, "x | y ⟨1⟩ -> 0"): "scenarios/b.toml"}
        lists.write_known(noticed, self.path)
        self.assertEqual(noticed, lists.known(self.path))
        self.path.write_text("a.c | f | logic | 1 | a -> b\n", encoding="utf-8")
        with self.assertRaisesRegex(tree.Mistake, "no scenario"):
            lists.known(self.path)

    def test_an_argument_is_required(self):
        self.path.write_text("a.c | f | logic | 1 | a -> b\n  since x,\n  and y\n", encoding="utf-8")
        self.assertEqual({("a.c", "f", "logic", 1, "a -> b"): "since x, and y"}, lists.equivalent(self.path))
        for text, words in (("a.c | f | logic | 1 | a -> b\n", "no argument"), ("  since\n", "without a mutant"),
                            ("a.c | f | logic\n", ":1: not")):
            self.path.write_text(text, encoding="utf-8")
            with self.assertRaisesRegex(tree.Mistake, words):
                lists.equivalent(self.path)

    def test_the_lists_of_the_tree_can_be_read(self):
        self.assertFalse(set(lists.known()) & set(lists.equivalent()))


class Maps(unittest.TestCase):
    def test_ranges_come_back(self):
        for numbers in ([], [3], [0, 1, 2, 5, 7, 8]):
            self.assertEqual(numbers, touched.numbers_of(touched.ranges(numbers)))

    def test_attributes_are_no_functions(self):
        text = """\
/* Adds. */
TARGET("avx2")
static inline __attribute__((always_inline)) way add(const way *from,
                                                     way w)
{
    if (w(1)) {
    }
}
KERNELS(avx2, TARGET("avx2"))
static const int rows[] = {f(1)};
static int find(void)
{
}
"""
        self.assertEqual(["add", "find"], tree.functions_of(text))

    def test_the_map_of_the_tree_can_be_read(self):
        mapped = touched.Map()
        name, numbers = next((name, numbers) for name, numbers in mapped.functions.items() if numbers)
        self.assertEqual(numbers, mapped.touching(*name))
        self.assertIsNone(mapped.touching("core/ddp/none.c", "none"))

    def test_a_broken_line_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "map"
            path.write_text("scenario 1 a.toml\nfile a.c\nf 7\n", encoding="utf-8")
            with self.assertRaisesRegex(tree.Mistake, r"map:3: not a line of a map"):
                touched.Map(path)


def outcome(output, code=0, late=False):
    return program.Outcome(code, output, 0.1, late)


class Verdicts(unittest.TestCase):
    TWO = "verified: a.toml: one\nas expected: b.toml: two\n2 of 2 verified (1 as their scenarios expect)\n"

    def test_agrees_only_with_all_verified(self):
        both = ["a.toml", "b.toml"]
        self.assertTrue(program.agrees(outcome(self.TWO), both))
        self.assertFalse(program.agrees(outcome(self.TWO, code=-11), both))
        self.assertFalse(program.agrees(outcome(self.TWO, late=True), both))
        self.assertFalse(program.agrees(outcome("verified: a.toml: one\nskipped: b.toml\n1 of 2 verified, 1 skipped\n"), both))

    def test_names_where_a_run_stopped(self):
        self.assertEqual("b.toml", program.first_unlike(outcome("verified: a.toml: one\n", -6), ["a.toml", "b.toml"]))

    def test_a_report_names_a_finding(self):
        found = "findings: a.toml: one\n  because   1 finding\n  I-REF  rank 1: wrong\n"
        beside = "findings: b.toml: two\n  because   I-META was not expected to report\n  I-META  rank 0: wrong\n"
        missed = "findings: c.toml: three\n  because   the expected finding I-HB did not come\n  I-REF  rank 1: wrong\n"
        failed = "findings: d.toml: four\n  because   a rank failed\n  ranks     0 ended with an error: x\n"
        self.assertEqual(["a.toml", "b.toml"], program.names_finding(outcome("verified: e.toml: five\n" + found + missed + failed + beside)))

    def test_an_endless_loop_is_ended(self):
        ended = program.run([sys.executable, "-c", "while True: pass"], limit=1)
        self.assertTrue(ended.late)
        self.assertEqual("took too long", ended.how)

    def test_counts_add_up(self):
        key = ("core/ddp/a.c", "f", "logic", 1, "t")
        other = ("core/ddp/a.c", "f", "logic", 2, "t")
        counts = table.count([(key, "lived", "not run"), (other, "lived", ""), (other, "noticed", "not run"), (other, "same", ""),
                              (other, "unbuilt", ""), (other, "lived", "a_test")], {key: "since"})
        self.assertEqual(table.Count(drawn=6, built=5, equivalent=2, scenarios=1, units=1, lived=1), counts)


class Numbers(unittest.TestCase):
    """Draws outlive the store that they were judged in."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    @staticmethod
    def mutant(n):
        return mutants.Mutant("core/ddp/a.c", "f", "logic", n, "a || b -> &&", 0, 1, "x")

    def test_rows_come_back(self):
        rows = [table.Row("core/ddp", "23", 25, 25, 1, None, 13, None, 11, 1), table.Row("core/comm", "7", 3, 3, 0, 1, 2, 0, 1, None)]
        table.keep(rows, self.path / "numbers.txt")
        self.assertEqual(rows, table.kept(self.path / "numbers.txt"))
        self.assertEqual([], table.kept(self.path / "none.txt"))
        (self.path / "numbers.txt").write_text("core/ddp | 23 | many\n", encoding="utf-8")
        with self.assertRaisesRegex(tree.Mistake, r"numbers.txt:1: not \"folder \| seed"):
            table.kept(self.path / "numbers.txt")

    def test_a_new_draw_does_not_delete_an_old_one(self):
        old = [table.Row("core/ddp", "23", 25, 25, 1, None, 13, None, 11, 1), table.Row("core/ddp", "5", 9, 9, 0, 4, 5, 0, 4, 0)]
        new = [table.Row("core/ddp", "5", 9, 9, 0, 4, 8, 0, 1, 0), table.Row("core/ddp", "23", 2, 2, 0, 1, 1, 0, 1, 0)]
        self.assertEqual([new[0], old[0]], table.merged(old, new))
        self.assertIn("| `core/ddp` | 0 | 23 | 25 | 25 | 1 |  |  | 13 | 54 % | not run | 11 | 1 |", table.table(old, {}))

    def test_the_first_outcome_is_remembered_beside_the_last(self):
        store = Store(self.path / "m.db")
        store.keep("t1", "7", self.mutant(1), "lived")
        store.keep("t1", AGAIN, self.mutant(2), "noticed", "scenarios/a.toml")
        store.keep("t2", AGAIN, self.mutant(1), "noticed", "scenarios/a.toml")
        key = self.mutant(1).key
        self.assertEqual([("7", *key, "lived", "noticed", "not run")], store.drawn())
        store.draw("t1", "9", [self.mutant(2)])
        self.assertEqual({"7", "9"}, {row[0] for row in store.drawn()})
        rows = table.rows_of(store.drawn(), {}, touched.Map())
        self.assertEqual([("7", 0, 1), ("9", 1, 1)], [(row.seed, row.first, row.scenarios) for row in rows])


class Again(unittest.TestCase):
    """A mutant is judged by the scenario that noticed it last, and only then by all others."""

    CLEAN = "verified: scenarios/a.toml: x\n"

    def judged(self, printed, clean=CLEAN, noticed_by="scenarios/README.md"):
        mutant = mutants.Mutant("core/comm/group.c", "f", "logic", 1, "a || b -> &&", 0, 0, "")
        said = {"clean": clean.replace("scenarios/a.toml", noticed_by), "mutant": printed.replace("scenarios/a.toml", noticed_by)}
        self.calls = []

        def run(command, limit=None):
            self.calls.append(command)
            return program.Outcome(0 if "verified" in said[command[0]] else 1, said[command[0]], 0.01, False)

        class Stub:
            clean = "clean"

            def compile(self, *_):
                return None

            def relink(self, *_):
                return None

        with unittest.mock.patch.object(judge, "run", run):
            whole = judge.Judge(Stub(), touched.Map(), False, False, {mutant.key: noticed_by})
            return whole.again(mutant, "mutant.o", "mutant")

    def test_one_scenario_is_enough_to_notice(self):
        self.assertEqual(("noticed", "scenarios/README.md", "exit 1", "not run", 1), self.judged("I-REF: wrong\n"))
        self.assertEqual(2, len(self.calls))

    def test_all_others_are_asked_when_it_is_as_before(self):
        self.assertIsNone(self.judged(self.CLEAN))

    def test_a_scenario_that_the_clean_program_fails_says_nothing(self):
        self.assertIsNone(self.judged("I-REF: wrong\n", clean="I-REF: wrong\n"))

    def test_a_scenario_that_is_gone_says_nothing(self):
        self.assertIsNone(self.judged("I-REF: wrong\n", noticed_by="scenarios/gone.toml"))
        self.assertEqual([], self.calls)


class Blame(unittest.TestCase):
    """Of the scenarios that notice, the cheapest whose report names a finding is kept."""

    FINDING = "findings: scenarios/c.toml: x\n  because   1 finding\n  I-REF  rank 1: wrong\n"
    ERROR = "findings: scenarios/a.toml: x\n  because   a rank failed\n"
    FIRST = ("noticed", "scenarios/a.toml", "exit 1", "not run", 1)

    def best(self, first, later, blame=True):
        self.asked = []

        def run(command, limit=None):
            self.asked += command[3:]
            return outcome(later, 1)

        whole = judge.Judge(None, touched.Map(), False, False, {}, blame)
        whole.map.scenarios, whole.map.functions = ["scenarios/b.toml", "scenarios/c.toml"], {("core/comm/group.c", "f"): [0, 1]}
        whole.runnable, whole.seconds, whole.whole = {"scenarios/c.toml"}, 1.0, 1
        mutant = mutants.Mutant("core/comm/group.c", "f", "logic", 1, "a || b -> &&", 0, 0, "")
        with unittest.mock.patch.object(judge, "run", run):
            return whole.best(mutant, "mutant", outcome(first, 1), self.FIRST)

    def test_one_that_names_a_finding_is_looked_for(self):
        self.assertEqual(("noticed", "scenarios/c.toml", "exit 1", "not run", 2), self.best(self.ERROR, self.FINDING))
        self.assertEqual(["scenarios/c.toml"], self.asked)

    def test_the_first_one_is_enough_where_it_names_one(self):
        self.assertEqual(self.FIRST, self.best(self.FINDING, self.FINDING))
        self.assertEqual([], self.asked)

    def test_the_first_one_stays_where_none_does(self):
        self.assertEqual(self.FIRST, self.best(self.ERROR, self.ERROR))

    def test_of_a_process_that_died_the_scenario_that_ends_it_is_named(self):
        died = program.Outcome(-6, "", 0.01, False)
        said = {"a": program.Outcome(0, "verified: a: well\n", 0.01, False), "b": died}
        whole = judge.Judge(None, touched.Map(), False, False, {})
        whole.seconds, whole.whole = 1, 1
        with unittest.mock.patch.object(judge, "run", lambda command, limit=None: said[command[2]]):
            self.assertEqual(("b", died), whole.first_to_notice("mutant", ["a", "b"], died))
            self.assertEqual(("a", died), whole.first_to_notice("mutant", ["a"], died))
            found = program.Outcome(1, "verified: a: well\n", 0.01, False)
            self.assertEqual(("b", found), whole.first_to_notice("mutant", ["a", "b"], found))

    def test_none_is_looked_for_unless_it_is_wanted(self):
        self.assertEqual(self.FIRST, self.best(self.ERROR, self.FINDING, blame=False))


class Units(unittest.TestCase):
    """What scenarios do not notice is given to unit tests, as they are and then under the address sanitizer."""

    LINK = "tests/unit/core/comm/comm_group_test"

    def units(self, ends):
        """ends: exit codes of the clean test, the mutant's, the mutant's and the unchanged source's under the sanitizer."""
        mutant = mutants.Mutant("core/comm/group.c", "f", "logic", 1, "a || b -> &&", 0, 0, "")
        made, self.guarded = {}, []
        guarded = self.guarded

        class Stub:
            links = {self.LINK: ["cc", "tests/unit/core/comm/CMakeFiles/comm_group_test.dir/group_test.c.o", "-o", "t"]}
            build = unittest.mock.Mock(folder=tree.ROOT)
            scratch = pathlib.Path("/nowhere")

            def compile(self, file, source, target, extra=()):
                made[str(target)] = ("sanitized", pathlib.Path(target).name.startswith("sanitized-")) if extra else ("plain", False)

            def relink(self, file, target, binary, words, beside=()):
                made[str(binary)] = made.get(str(target), ("plain", False))
                guarded.append([source for source, _ in beside])

        def run(command, limit=None, environment=None, memory=program.MEMORY):
            kind, is_clean = made.get(command[0], ("clean", True))
            name = {"clean": "clean", "plain": "mutant", "sanitized": "unchanged" if is_clean else "watched"}[kind]
            self.assertEqual(name in ("watched", "unchanged"), memory is None)
            return program.Outcome(ends[name], "", 0.01, False)

        with unittest.mock.patch.object(judge, "run", run), unittest.mock.patch.object(pathlib.Path, "is_file", lambda _: True):
            whole = judge.Judge(Stub(), touched.Map(), False, True, {})
            whole.seconds = 1
            return whole.unit_tests(mutant, pathlib.Path("mutant.o"), pathlib.Path("mutant"))

    def test_a_program_is_a_test_of_the_folder_of_its_sources(self):
        whole = judge.Judge.__new__(judge.Judge)
        above, other = "tests/unit/backends/composition_test", "tests/unit/backends/rendezvous_test"
        whole.program = unittest.mock.Mock(links={
            above: ["cc", "tests/unit/backends/CMakeFiles/composition_test.dir/compose/composition_test.c.o", "-o", above],
            other: ["cc", "tests/unit/backends/CMakeFiles/rendezvous_test.dir/rendezvous/store_test.c.o", "-o", other]})
        self.assertEqual([above], whole.tests_of("backends/compose/check.c"))

    def test_tests_of_what_stands_above_a_folder_are_run_too(self):
        whole = judge.Judge.__new__(judge.Judge)
        own, above, other = "tests/unit/core/model/model_bits_test", "tests/unit/backends/cuda_layers_test", "tests/unit/backends/cuda_twin_test"
        whole.program = unittest.mock.Mock(links={
            above: ["cc", "tests/unit/backends/CMakeFiles/cuda_layers_test.dir/nccl/layers_test.c.o", "-o", above],
            other: ["cc", "tests/unit/backends/CMakeFiles/cuda_twin_test.dir/nccl/twin_test.c.o", "-o", other],
            own: ["cc", "tests/unit/core/model/CMakeFiles/model_bits_test.dir/bits_test.c.o", "-o", own]})
        self.assertEqual({own, above}, set(whole.tests_of("core/model/graph.c")))

    def test_a_test_that_fails_notices(self):
        self.assertEqual("comm_group_test", self.units({"clean": 0, "mutant": 1}))

    def test_a_sanitizer_notices_what_no_test_asserts(self):
        self.assertEqual("comm_group_test under the address sanitizer",
                         self.units({"clean": 0, "mutant": 0, "watched": 1, "unchanged": 0}))
        # the arena of the sanitized programs has guards, that of the others has none
        self.assertEqual([[], ["core/base/arena.c"], ["core/base/arena.c"]], self.guarded)

    def test_a_test_that_fails_under_it_anyhow_says_nothing(self):
        self.assertEqual("", self.units({"clean": 0, "mutant": 0, "watched": 1, "unchanged": 1}))
        self.assertEqual("", self.units({"clean": 0, "mutant": 0, "watched": 0}))

    def test_a_test_that_the_clean_source_fails_says_nothing(self):
        self.assertEqual("", self.units({"clean": 77, "mutant": 1, "watched": 1, "unchanged": 0}))


class Guards(unittest.TestCase):
    """Under the sanitizer an arena has memory behind each allocation that is nobody's."""

    PROGRAM = """
#include "core/base/arena.h"
#include <stdint.h>
int main(int argc, char **argv)
{
    (void)argv;
    cd_arena arena;
    cd_arena_init(&arena, NULL, 4096);
    uint64_t sum = 0;
    for (int round = 0; round < 3; round++) {
        const cd_arena_mark mark = cd_arena_get_mark(&arena);
        if (!cd_arena_reserve(&arena, 2 * CD_ARENA_BYTES(64))) return 1;
        uint64_t *whole = cd_arena_push(&arena, 64), *beside = cd_arena_push(&arena, 64);
        uint64_t *one = cd_arena_array(&arena, 1, sizeof *one), *two = cd_arena_array(&arena, 2, sizeof *two);
        char *text = cd_arena_strdup(&arena, "text");
        sum += whole[7] + beside[7] + one[0] + two[1] + (uint64_t)text[4];
        sum += argc == 2 ? one[1] : argc == 3 ? (uint64_t)text[5] : argc == 4 ? whole[8] : 0;
        if (round == 1) cd_arena_rewind(&arena, mark);
        if (argc == 5) sum += one[0]; /* given back in round 1 */
    }
    cd_arena_fini(&arena);
    return (int)sum;
}
"""
    SOURCES = ("arena", "alloc", "os_format", "error", "assert")

    def test_what_is_read_behind_an_end_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            source, binary = pathlib.Path(folder) / "reads.c", pathlib.Path(folder) / "reads"
            source.write_text(self.PROGRAM, encoding="utf-8")
            command = ["cc", "-std=c11", "-D_POSIX_C_SOURCE=200809L", *judge.SANITIZED, *judge.GUARDS, f"-I{tree.ROOT}", f"-I{tree.ROOT}/include",
                       str(source), *(f"{tree.ROOT}/core/base/{name}.c" for name in self.SOURCES), "-lm", "-o", str(binary)]
            try:
                made = subprocess.run(command, capture_output=True, text=True, check=False)
            except FileNotFoundError:
                self.skipTest("there is no cc")
            if made.returncode != 0 and "asan" in made.stderr:
                self.skipTest("cc has no address sanitizer")
            self.assertEqual("", made.stderr)
            for words in ([], ["behind"], ["behind", "text"], ["behind", "a", "block"], ["after", "it", "was", "given"]):
                ran = subprocess.run([str(binary), *words], capture_output=True, text=True, check=False)
                self.assertEqual(bool(words), "use-after-poison" in ran.stderr, words)


class Reports(unittest.TestCase):
    """The exit code of run."""

    @classmethod
    def setUpClass(cls):
        place = importlib.util.spec_from_file_location("mutation_main", pathlib.Path(__file__).with_name("__main__.py"))
        cls.main = importlib.util.module_from_spec(place)
        place.loader.exec_module(cls.main)

    def report(self, outcome, equal=(), known=()):
        mutant = mutants.Mutant("core/ddp/a.c", "f", "logic", 1, "a || b -> &&", 0, 1, "x")
        keys = {"mutant": mutant.key}
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = self.main.report({mutant.key: outcome}, [mutant], {keys[name]: "since" for name in equal}, {keys[name] for name in known})
        return code, out.getvalue()

    def test_one_that_was_noticed_before_and_lives_fails(self):
        code, text = self.report(("lived", "", "", "not run", 9), known=["mutant"])
        self.assertEqual(1, code)
        self.assertIn("LIVES, NOTICED BEFORE", text)

    def test_what_the_sources_do_not_have_any_more_is_named_and_counted(self):
        out = io.StringIO()
        gone = ("core/ddp/a.c", "g", "logic", 1, "c && d -> ||")
        with contextlib.redirect_stdout(out):
            self.assertEqual(0, self.main.report({}, [], {}, {}, [gone]))
        self.assertIn("1 more cannot be judged, since the sources do not have them any more", out.getvalue())
        self.assertIn("core/ddp/a.c | g | logic | 1 | c && d -> ||", out.getvalue())

    def test_others_that_live_are_reported(self):
        code, text = self.report(("lived", "", "", "", 9))
        self.assertEqual(0, code)
        self.assertIn("lived: ", text)

    def test_an_argument_counts_as_equivalent(self):
        code, text = self.report(("lived", "", "", "", 9), equal=["mutant"])
        self.assertEqual(0, code)
        self.assertIn("1 equivalent", text)
        self.assertNotIn("lived: ", text)

    def test_a_noticed_one_is_quiet(self):
        code, text = self.report(("noticed", "a.toml", "exit 1", "not run", 3), known=["mutant"])
        self.assertEqual(0, code)
        self.assertIn("1 noticed by scenarios (100 %)", text)

    def test_a_draw_does_not_depend_on_other_mutants(self):
        keys = [("core/ddp/a.c", "f", "logic", n, "t") for n in range(50)]
        drawn = sorted(keys, key=lambda key: self.main.rank("7", key))
        fewer = sorted(keys[::2], key=lambda key: self.main.rank("7", key))
        self.assertEqual(fewer, [key for key in drawn if key in fewer])
        self.assertNotEqual(drawn, sorted(keys, key=lambda key: self.main.rank("8", key)))


class Commands(unittest.TestCase):
    def call(self, *words):
        done = subprocess.run([sys.executable, os.path.dirname(os.path.abspath(__file__)), *words], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_bad_input_is_answered_in_words(self):
        with tempfile.TemporaryDirectory() as folder:
            code, text = self.call("--build", folder, "list")
            self.assertEqual(2, code)
            self.assertIn("compile_commands.json does not exist", text)
            (pathlib.Path(folder) / "compile_commands.json").write_text("{", encoding="utf-8")
            code, text = self.call("--build", folder, "list")
            self.assertEqual(2, code)
            self.assertIn("is not a list of compile commands", text)
            store = pathlib.Path(folder) / "store"
            store.write_text("no database, and longer than the head of one " * 40, encoding="utf-8")
            with self.assertRaisesRegex(tree.Mistake, "is not a store of mutants"):
                Store(store)
        self.assertEqual(2, self.call("run", "--sample", "0")[0])
        self.assertEqual(2, self.call("dance")[0])
        code, text = self.call("--help")
        self.assertEqual(0, code)
        for operator in mutants.OPERATORS:
            self.assertIn(operator, text)


if __name__ == "__main__":
    try:
        mutants.load_clang()
    except tree.Absent as absent:
        print(f"skipped: {absent}")
        sys.exit(77)
    unittest.main()
