-- SPDX-License-Identifier: Apache-2.0
-- The tables of a trace store. docs/formats/trace.md explains them; views.sql and the generated ev_* views
-- show them by name. A store whose tables differ from this text in one character is refused, so a change is a new
-- CDDP_STORE_VERSION with a step in schema.c: version 1 is this text, version 2 adds seal.sql.

-- One row per run: its origin and its outcome. An interrupted run stays at complete = 0.
CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    complete INTEGER NOT NULL DEFAULT 0,
    exit_code INTEGER,
    verdict TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT '',
    title TEXT NOT NULL,
    source TEXT NOT NULL,
    scenario TEXT NOT NULL,
    options TEXT NOT NULL,
    schedule TEXT NOT NULL,
    backend TEXT NOT NULL,
    version TEXT NOT NULL,
    machine TEXT NOT NULL,
    compiler TEXT NOT NULL,
    recorded_at TEXT NOT NULL,
    seed INTEGER NOT NULL,
    plan INTEGER NOT NULL,
    world_size INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    level INTEGER NOT NULL,
    digest INTEGER,
    virtual_time INTEGER
) STRICT;

-- What the numbers in events mean, so that a store explains itself to a program of another version.
CREATE TABLE kind (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    doc TEXT NOT NULL
) STRICT;
CREATE TABLE field (
    kind INTEGER NOT NULL,
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    type TEXT NOT NULL,
    doc TEXT NOT NULL,
    PRIMARY KEY (kind, position)
) STRICT, WITHOUT ROWID;
CREATE TABLE enumeration (
    type TEXT NOT NULL,
    value INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (type, value)
) STRICT, WITHOUT ROWID;

-- id is run * 2^40 + n, n counting from 1 in the order of arrival, so one run is one range of rows.
-- rank is NULL for the world itself. f0 to f10 are the fields that `field` names; NULL beyond them.
CREATE TABLE event (
    id INTEGER PRIMARY KEY,
    t INTEGER NOT NULL,
    rank INTEGER,
    seq INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    step INTEGER NOT NULL,
    micro INTEGER NOT NULL,
    text INTEGER,
    f0 ANY, f1 ANY, f2 ANY, f3 ANY, f4 ANY, f5 ANY, f6 ANY, f7 ANY, f8 ANY, f9 ANY, f10 ANY
) STRICT;

-- Texts of events, kept once; id is run * 2^32 + n.
CREATE TABLE text (
    id INTEGER PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

-- Parameters by number, for the names in views.
CREATE TABLE parameter (
    run INTEGER NOT NULL,
    param INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    name TEXT NOT NULL,
    numel INTEGER NOT NULL,
    dtype INTEGER NOT NULL,
    PRIMARY KEY (run, param, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE finding (
    run INTEGER NOT NULL,
    position INTEGER NOT NULL,
    invariant TEXT NOT NULL,
    step INTEGER NOT NULL,
    micro INTEGER NOT NULL,
    rank INTEGER,
    peer INTEGER,
    bucket INTEGER,
    param INTEGER,
    parameter TEXT NOT NULL,
    title TEXT NOT NULL,
    expected TEXT NOT NULL,
    actual TEXT NOT NULL,
    advice TEXT NOT NULL,
    PRIMARY KEY (run, position)
) STRICT, WITHOUT ROWID;
CREATE TABLE finding_rank (
    run INTEGER NOT NULL,
    position INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    PRIMARY KEY (run, position, rank)
) STRICT, WITHOUT ROWID;
CREATE TABLE finding_event (
    run INTEGER NOT NULL,
    position INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    rank INTEGER,
    seq INTEGER NOT NULL,
    PRIMARY KEY (run, position, ordinal)
) STRICT, WITHOUT ROWID;
CREATE TABLE exercised (
    run INTEGER NOT NULL,
    position INTEGER NOT NULL,
    invariant TEXT NOT NULL,
    how TEXT NOT NULL,
    PRIMARY KEY (run, position)
) STRICT, WITHOUT ROWID;
CREATE TABLE metric (
    run INTEGER NOT NULL,
    name TEXT NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (run, name)
) STRICT, WITHOUT ROWID;
