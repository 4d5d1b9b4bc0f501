# SPDX-License-Identifier: Apache-2.0
"""The queries of docs/howto/query.md run on a store: those of sqlite3 always, those of pandas and DuckDB where they are installed.
Datasette's metadata names views and columns that exist.

usage: query_test.py CDDP-VERIFY SOURCE-FOLDER
"""
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile

VERIFY, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
failures = 0


def check(what, is_right):
    global failures
    if not is_right:
        failures += 1
        print(f"FAILED  {what}")


def run_queries(text, store):
    count = 0
    for before, query in re.findall(r"([^\n]*)\n\n```sql\n(.*?)```", text, re.S):
        rows = store.execute(query).fetchall()
        check(f"rows of: {query}", rows or "(no row" in before)
        count += 1
    check(f"{count} queries", count == 8)


def installed(name):
    try:
        return __import__(name)
    except ImportError:
        print(f"{name} is not installed: its part was not run")
        return None


def run_others(text, folder):
    environment = {**os.environ, "PATH": os.path.dirname(VERIFY) + os.pathsep + os.environ["PATH"]}
    for script in re.findall(r"```sh\n(cddp-verify .*?)```", text, re.S):
        check(script, subprocess.run(["sh", "-ec", script], cwd=folder, env=environment, check=False).returncode == 0)
    if installed("pandas"):
        (script,) = re.findall(r"```python\n(.*?)```", text, re.S)
        done = subprocess.run([sys.executable, "-c", script], cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
        check("pandas", done.returncode == 0 and "allreduce" in done.stdout)
    duckdb = installed("duckdb")
    if duckdb:
        (query,) = re.findall(r"```duckdb\n(.*?)```", text, re.S)
        os.chdir(folder)
        check("DuckDB", duckdb.sql(query).fetchall())


def look_at_metadata(store):
    with open(f"{SOURCE}/docs/formats/datasette.json", encoding="utf-8") as file:
        (database,) = json.load(file)["databases"].values()
    for name, view in database["tables"].items():
        columns = {c[0] for c in store.execute(f'SELECT * FROM "{name}" LIMIT 0').description}
        check(f"columns of {name}: {set(view['columns']) - columns}", set(view["columns"]) <= columns)
    named = {row[0] for row in store.execute("SELECT name FROM sqlite_schema WHERE type = 'view' AND name NOT LIKE 'ev\\_%' ESCAPE '\\'")}
    check(f"every view is described: {named ^ set(database['tables'])}", named == set(database["tables"]))
    for query in database["queries"].values():
        store.execute(query["sql"], {"run": 1}).fetchall()


def look_at_words(store):
    """What chooses is a word in every view, and a group has its name."""
    stored = store.execute("SELECT k.name, f.name, f.type FROM kind k JOIN field f ON f.kind = k.id WHERE f.type IN (SELECT type FROM enumeration WHERE type <> 'key')").fetchall()
    base = {"run", "t", "rank", "seq", "step", "micro", "text", "parameter"}
    for kind, field, _ in stored:
        column = f"{kind}_{field}" if field in base else field
        numbers = store.execute(f'SELECT "{column}" FROM "ev_{kind}" WHERE typeof("{column}") = \'integer\' AND "{column}" >= 0 LIMIT 1').fetchall()
        check(f"ev_{kind}.{column} is a word: {numbers}", not numbers)
    check("groups have names", store.execute("SELECT count(*) FROM ev_collective_post WHERE group_name IS NULL").fetchone()[0] == 0)
    check("a hang names its group", store.execute("SELECT count(*) FROM waiting_for WHERE group_name = 'world'").fetchone()[0] > 0)


def main():
    with open(f"{SOURCE}/docs/howto/query.md", encoding="utf-8") as file:
        text = file.read()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.db")
        for scenario in ("gan_unused_params", "bugs/options_differ", "bugs/hung_job"):
            subprocess.run([VERIFY, "run", f"{SOURCE}/scenarios/{scenario}.toml", "--trace", path], stdout=subprocess.DEVNULL, check=False)
        store = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        run_queries(text, store)
        look_at_metadata(store)
        look_at_words(store)
        store.close()
        run_others(text, folder)
    return failures != 0


sys.exit(main())
