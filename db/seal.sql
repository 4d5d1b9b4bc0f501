-- SPDX-License-Identifier: Apache-2.0
-- Since version 2: digests of rows, by which a reader sees that a file holds what was written. docs/formats/trace.md
-- says how they are made. first and last are the rows that one seal covers: numbers of events and texts within
-- their run, else 1 and the count. Run 0 has the tables of all runs, and the version.
CREATE TABLE seal (
    run INTEGER NOT NULL,
    name TEXT NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    digest INTEGER NOT NULL,
    PRIMARY KEY (run, name, first)
) STRICT, WITHOUT ROWID;
