# SPDX-License-Identifier: Apache-2.0
"""The rows of events.def: kinds by name, and the digest of all of them that a shard begins with."""
from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Dict, List, Tuple

from . import hashing

_HERE = os.path.dirname(os.path.abspath(__file__))
# Beside the package in a wheel; in a checkout, where the C library reads it.
_PLACES = (os.path.join(_HERE, "events.def"), os.path.join(_HERE, "..", "..", "include", "cddp", "events.def"))
_PLAIN_TYPES = ("count", "index", "bytes", "flag", "ns", "digest", "f64", "status", "dtype", "op", "redop",
                "param", "bucket", "rank", "group", "key")
FIELDS = 11


@dataclass(frozen=True)
class Table:
    kinds: Dict[str, int]
    fields: Dict[str, List[Tuple[str, str]]]
    words: Dict[str, int]
    schema: int


def _read() -> str:
    for path in _PLACES:
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                return re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    raise FileNotFoundError("events.def is neither in the package nor in include/cddp")


def _parse(text: str) -> Table:
    enums: List[str] = []
    words: Dict[str, int] = {}
    kinds: Dict[str, int] = {}
    fields: Dict[str, List[Tuple[str, str]]] = {}
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    for name, body in re.findall(r"CDDP_EVENT_ENUM\((\w+),(.*?)\)\s*(?=CDDP_EVENT|$)", text, flags=re.S):
        enums.append(name)
        for position, word in enumerate(re.findall(r"CDDP_WORD\((\w+),", body)):
            words["CDDP_" + word] = position
    for match in re.finditer(r"CDDP_EVENT\((\w+),(.*?)(?=\nCDDP_EVENT|\Z)", text, flags=re.S):
        kinds[match.group(1)] = len(kinds)
        fields[match.group(1)] = re.findall(r"CDDP_FIELD\((\w+),\s*(\w+),", match.group(2))
    types = {name: i for i, name in enumerate(_PLAIN_TYPES + tuple(enums))}
    schema = FIELDS
    for name, row in fields.items():
        schema = hashing.mix(schema, hashing.text(name))
        for kind, field in row:
            schema = hashing.mix(schema, hashing.text(field))
            schema = hashing.mix(schema, types[kind])
    return Table(kinds, fields, words, schema)


TABLE = _parse(_read())
KIND = TABLE.kinds
WORD = TABLE.words
