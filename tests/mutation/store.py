# SPDX-License-Identifier: Apache-2.0
"""Results in SQLite: what became of each mutant in each state of the tree, and the mutants of each state of a source."""
import pathlib
import sqlite3

from mutants import Mutant
from tree import HERE, ROOT, Mistake, digest, read_text

AGAIN = "again"  # the seed of what was not drawn, but judged because it was known or lived

SCHEMA = """
create table if not exists judged(
  id integer primary key,  -- a later result has a larger one
  tree text not null,      -- digest of the sources and scenarios
  seed text not null,      -- of the draw; again: not drawn
  file text not null, function text not null, operator text not null, ordinal integer not null, text text not null,
  outcome text not null,   -- unbuilt, same, noticed, lived
  scenario text not null,  -- that noticed it, or empty
  how text not null,       -- exit N, died of a signal, took too long
  units text not null,     -- the unit test that noticed it; empty: none did; "not run"
  tried integer not null,  -- scenarios that were run
  unique(tree, file, function, operator, ordinal, text));
create table if not exists parsed(
  file text not null, state text not null, function text not null, operator text not null, ordinal integer not null,
  text text not null, start integer not null, stop integer not null, replacement text not null);
create index if not exists parsed_file on parsed(file, state);
create table if not exists parsed_state(file text primary key, state text not null);
"""


class Store:
    def __init__(self, path):
        self.path = pathlib.Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.db = sqlite3.connect(self.path)
            self.db.executescript(SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise Mistake(f"{self.path} is not a store of mutants: {error}") from error
        self.generator = digest(*(read_text(HERE / name) for name in ("mutants.py", "tree.py")))

    def mutants(self, parser, file):
        """The mutants of a source, parsed once for each of its states."""
        state = digest(self.generator, read_text(ROOT / file), " ".join(parser.build.command(file)))
        known = self.db.execute("select state from parsed_state where file = ?", (file,)).fetchone()
        if known is None or known[0] != state:
            rows = [(file, state, m.function, m.operator, m.ordinal, m.text, m.start, m.end, m.replacement)
                    for m in parser.mutants(file)]
            with self.db:
                self.db.execute("delete from parsed where file = ?", (file,))
                self.db.executemany("insert into parsed values (?,?,?,?,?,?,?,?,?)", rows)
                self.db.execute("insert or replace into parsed_state values (?, ?)", (file, state))
        return [Mutant(*row) for row in self.db.execute(
            "select file, function, operator, ordinal, text, start, stop, replacement from parsed where file = ? order by rowid", (file,))]

    def done(self, tree):
        """What became of mutants in this state of the tree, by key."""
        return {row[:5]: row[5:] for row in self.db.execute(
            "select file, function, operator, ordinal, text, outcome, scenario, how, units, tried from judged where tree = ?", (tree,))}

    def keep(self, tree, seed, mutant, outcome, scenario="", how="", units="not run", tried=0):
        with self.db:
            self.db.execute("insert or replace into judged values (null,?,?,?,?,?,?,?,?,?,?,?,?)",
                            (tree, seed, *mutant.key, outcome, scenario, how, units, tried))

    def draw(self, tree, seed, mutants):
        """What was judged again in this state of the tree and is drawn now, belongs to the seed that draws it."""
        with self.db:
            self.db.executemany(
                "update judged set seed = ? where seed = ? and tree = ? and file = ? and function = ? and operator = ? "
                "and ordinal = ? and text = ?", [(seed, AGAIN, tree, *mutant.key) for mutant in mutants])

    def drawn(self):
        """Mutants that a seed drew: seed, key, the first outcome, the last outcome and its units."""
        firsts = {row[1:6]: (row[0], row[6]) for row in self.db.execute(
            "select seed, file, function, operator, ordinal, text, outcome, min(id) from judged where seed != ? "
            "group by file, function, operator, ordinal, text", (AGAIN,))}
        return [(firsts[row[1:6]][0], *row[1:6], firsts[row[1:6]][1], row[6], row[9])
                for row in self.latest() if row[1:6] in firsts]

    def latest(self):
        """The last result of each mutant: seed, key, outcome, scenario, how, units."""
        return self.db.execute(
            "select seed, file, function, operator, ordinal, text, outcome, scenario, how, units, max(id) from judged "
            "group by file, function, operator, ordinal, text order by file, function, operator, ordinal, text").fetchall()
