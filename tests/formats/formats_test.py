# SPDX-License-Identifier: Apache-2.0
"""Every judging command in every format.

usage: formats_test.py CDDP-VERIFY SOURCE-FOLDER
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import tomllib
except ImportError:
    tomllib = None
try:
    import jsonschema
except ImportError:
    jsonschema = None

VERIFY, SOURCE = sys.argv[1:3]
FORMATS = ["text", "json", "junit", "sarif", "html"]
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
failures = 0
shown = 0


def check(what, is_right):
    global failures, shown
    shown += 1
    if not is_right:
        failures += 1
        print(f"FAILED  {what}")


# ---- a validator of what the schemas use ----

def is_type(value, name):
    if name in ("integer", "number"):
        return isinstance(value, int if name == "integer" else (int, float)) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def mistakes(value, schema, root, path="$"):
    """What is wrong with a value, as texts."""
    if "$ref" in schema:
        target = root
        for part in schema["$ref"].lstrip("#/").split("/"):
            target = target[part]
        yield from mistakes(value, target, root, path)
    names = schema.get("type")
    if names is not None and not any(is_type(value, name) for name in ([names] if isinstance(names, str) else names)):
        yield f"{path}: {value!r} is no {names}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{path}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if "minimum" in schema and value < schema["minimum"] or "maximum" in schema and value > schema["maximum"]:
        yield f"{path}: {value!r} is out of range"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: {value!r} is not like {schema['pattern']}"
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            yield from mistakes(item, schema["items"], root, f"{path}[{i}]")
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        needed = list(schema.get("required", []))
        for key, more in schema.get("dependentRequired", {}).items():
            needed += more if key in value else []
        for key in needed:
            if key not in value:
                yield f"{path}: {key} is missing"
        for key, item in value.items():
            if key in known:
                yield from mistakes(item, known[key], root, f"{path}.{key}")
            elif others is False:
                yield f"{path}: {key} is not known"
            elif isinstance(others, dict):
                yield from mistakes(item, others, root, f"{path}.{key}")


def load(name):
    with open(f"{SOURCE}/docs/formats/{name}.schema.json", encoding="utf-8") as file:
        schema = json.load(file)
    if jsonschema is not None:
        jsonschema.validators.validator_for(schema).check_schema(schema)
    return schema


def validate(what, document, schema):
    wrong = list(mistakes(document, schema, schema))
    check(f"{what}: {wrong[:3]}", not wrong)
    if jsonschema is not None:
        others = [e.message for e in jsonschema.validators.validator_for(schema)(schema).iter_errors(document)]
        check(f"{what}: jsonschema: {others[:3]}", not others)


# ---- scenarios ----

def with_value(path, value):
    """A small scenario that is right but for this."""
    scenario = {"schema": 1, "title": "t", "world": {"size": 2}, "model": {"name": "mlp"}, "train": {"steps": 1}}
    *tables, key = path.split(".")
    table = scenario
    for name in tables:
        table = table.setdefault(name, {})
    table[key] = value
    return scenario


MISTAKES = [("world.size", "two"), ("world.sise", 2), ("train.steps", -1), ("train.steps", 1.5), ("ddp.static_graph", "yes"), ("nosuch", {"k": 1}),
            ("optimizer", {"kind": "sgd"}), ("expect.verdict", "maybe"), ("wrapper", [{"name": "a", "modell": {}}]), ("fault", [{"kindd": "kill"}])]


def look_at_scenarios():
    """What an editor says: nothing of the catalogue, and something of each mistake."""
    if jsonschema is None or tomllib is None:
        return
    done = subprocess.run([VERIFY, "list", "schema"], stdout=subprocess.PIPE, check=True)
    schema = json.loads(done.stdout)
    validator = jsonschema.validators.validator_for(schema)(schema)
    paths = glob.glob(f"{SOURCE}/scenarios/**/*.toml", recursive=True)
    check("there are scenarios", len(paths) > 500)
    for path in paths:
        with open(path, "rb") as file:
            wrong = [e.message for e in validator.iter_errors(tomllib.load(file))]
        check(f"{path}: {wrong[:3]}", not wrong)
    check("a small scenario is right", validator.is_valid(with_value("world.size", 2)))
    for path, value in MISTAKES:
        check(f"{path} = {value} is a mistake", not validator.is_valid(with_value(path, value)))


# ---- the commands ----

def run(folder, words, output_format):
    """(exit code, what was written)"""
    done = subprocess.run([VERIFY, *words, "--format", output_format], cwd=SOURCE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                          env={**os.environ, "TMPDIR": folder, "NO_COLOR": "1"}, timeout=100)
    check(f"{words} {output_format}: {done.stderr.decode()[:300]}", done.returncode in (0, 1, 2, 4) and not (done.returncode == 2 and words[0] != "run"))
    return done.returncode, done.stdout.decode()


def look_at_junit(folder, what, text):
    check(f"{what}: a test suite", text.startswith("<?xml") and "<testsuite" in text)
    if shutil.which("xmllint") is None:
        return
    path = os.path.join(folder, "report.xml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    done = subprocess.run(["xmllint", "--noout", "--schema", f"{SOURCE}/tests/unit/verify/report/junit.xsd", path], stderr=subprocess.PIPE, check=False)
    check(f"{what}: {done.stderr.decode()[:300]}", done.returncode == 0)


def look_at_sarif(what, text, is_failing):
    sarif = json.loads(text)
    (one,) = sarif["runs"]
    rules = one["tool"]["driver"]["rules"]
    marks = [r["partialFingerprints"]["cddpCause/v1"] for r in one["results"]]
    check(f"{what}: rules have help", all(r["helpUri"].split(":")[0] in ("file", "https") for r in rules) and any("help" in r for r in rules))
    check(f"{what}: one result per cause", len(marks) == len(set(marks)))
    check(f"{what}: a result where it fails", bool([r for r in one["results"] if r["kind"] == "fail"]) == is_failing)
    check(f"{what}: rules by index", all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in one["results"]))
    for result in one["results"]:
        place = result["locations"][0].get("physicalLocation")
        keys = [x["name"] for x in result["locations"][0].get("logicalLocations", []) if x["kind"] == "key"]
        if place is None or not place["artifactLocation"]["uri"].endswith(".toml") or not keys:
            continue
        path = place["artifactLocation"]["uri"]
        with open(path if path.startswith("/") else f"{SOURCE}/{path}", encoding="utf-8") as file:
            line = file.read().split("\n")[place["region"]["startLine"] - 1]
        check(f"{what}: line {place['region']['startLine']} is of {keys[0]}: {line}", line.strip().startswith(tuple(keys[0].split(".", i)[-1] for i in range(3))))


def look_at(folder, words, schema, is_failing):
    codes = set()
    for output_format in FORMATS:
        what = f"{' '.join(words)[:60]} as {output_format}"
        code, text = run(folder, words, output_format)
        codes.add(code)
        if output_format == "text":
            check(what, len(text) > 20 and not text.startswith("{"))
        elif output_format == "json":
            validate(what, json.loads(text), schema)
            check(f"{what}: the exit code is in it", json.loads(text)["exit_code"] == code)
        elif output_format == "junit":
            look_at_junit(folder, what, text)
        elif output_format == "sarif":
            look_at_sarif(what, text, is_failing)
        else:
            check(what, text.startswith("<!doctype html>") and "http://" not in text.split("<script>")[0].replace("http://www.w3.org", ""))
    check(f"{words}: the same exit code in every format: {codes}", len(codes) == 1)


def look_at_difference(folder):
    """The option in which ranks differ is in every format, and in each message once."""
    path = os.path.join(folder, "differs.toml")
    with open(f"{SOURCE}/scenarios/bugs/registration_order_differs.toml", encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text[:text.index("[expect]")])
    words = "model.options is list=a:5;c:5;b:5 on rank 1, list=a:5;b:5;c:5 on ranks 0 and 2"
    report = json.loads(run(folder, ["run", path], "json")[1])
    check("differs as json", report["results"][0].get("differs") == words)
    message = re.search('message="([^"]*)"', run(folder, ["run", path], "junit")[1]).group(1)
    check(f"differs as junit: {message}", message.endswith("; " + words))
    (result,) = json.loads(run(folder, ["run", path], "sarif")[1])["runs"][0]["results"]
    check(f"differs as sarif: {result['message']}", result["message"]["text"].count(words) == 1 and result["properties"].get("differs") == words)
    same = json.loads(run(folder, ["run", "scenarios/bugs/hung_job.toml"], "json")[1])
    check("what does not differ is not said", "differs" not in same["results"][0])


def main():
    report, compare, watch = load("report"), load("compare"), load("watch")
    bug, hang = "scenarios/bugs/first_micro_step_synchronises.toml", "scenarios/bugs/hung_job.toml"
    with tempfile.TemporaryDirectory() as folder:
        store, one, many, broken, small = (os.path.join(folder, name) for name in ("runs.db", "one.db", "many.db", "broken.toml", "small.toml"))
        with open(broken, "w", encoding="utf-8") as file:
            file.write("schema = 1\ntitle = \"a mistake\"\n[ddp]\nfind_unused = true\nbucket_cap = 1\n")
        failing = os.path.join(folder, "failing.toml")
        with open(f"{SOURCE}/{bug}", encoding="utf-8") as file:
            text = file.read()
        with open(failing, "w", encoding="utf-8") as file:
            file.write(text[:text.index("[expect]")])
        for path in (hang, failing, failing):
            subprocess.run([VERIFY, "run", path, "--trace", store], cwd=SOURCE, stdout=subprocess.DEVNULL, check=False)
        for path, size in ((one, "1"), (many, "2")):
            subprocess.run([VERIFY, "run", "scenarios/models/mlp_two_ranks.toml", "--trace", path, "--level", "payload", "-n", size],
                           cwd=SOURCE, stdout=subprocess.DEVNULL, check=False)
        look_at(folder, ["run", "scenarios/bugs", "scenarios/errors", "scenarios/faults", "-k"], report, False)
        look_at(folder, ["run", failing, broken, "-k"], report, True)
        look_at_difference(folder)
        look_at(folder, ["check", store], report, True)
        look_at(folder, ["report", store], report, True)
        look_at(folder, ["replay", failing, "--schedule", "s1:"], report, True)
        look_at(folder, ["explore", failing, "--budget", "3"], report, True)
        look_at(folder, ["explore", "scenarios/gan_unused_params.toml", "--budget", "3"], report, False)
        look_at(folder, ["prove", failing, "--budget", "20s"], report, True)
        look_at(folder, ["prove", "scenarios/proofs/plain.toml", "--budget", "1"], report, False)
        look_at(folder, ["shrink", failing, "--budget", "20", "-o", small], report, True)
        look_at(folder, ["sweep", failing, "--vary", "train.steps=2,3", "--skip", "1"], report, True)
        look_at(folder, ["sweep", "scenarios/models/mlp_two_ranks.toml", "--vary", "ddp.bucket_cap_mb=1,25", "--vary", "world.size=2..4"], report, False)
        look_at(folder, ["diff", f"{store}:1", f"{store}:2"], report, True)
        look_at(folder, ["diff", f"{store}:2", f"{store}:3"], report, False)
        look_at(folder, ["replay", store, "--run", "1"], report, False)
        look_at(folder, ["hook-conformance", "fp16_compress"], report, False)
        look_at(folder, ["hook-conformance", "topk"], report, False)
        look_at(folder, ["backend-conformance", "sim", "-n", "2"], report, False)
        look_at(folder, ["compare", one, many], compare, False)
        _, page = run(folder, ["watch", store, "--once"], "json")
        validate("watch", json.loads(page), watch)
    look_at_scenarios()
    print(f"{shown} checks, {failures} failed" + ("" if jsonschema is not None else "; python3-jsonschema is not installed"))
    return failures != 0


sys.exit(main())
