-- SPDX-License-Identifier: Apache-2.0
-- Common questions about a trace, over the ev_* views that schema.c makes from cddp/events.def. Every view
-- has a column run; "WHERE run = 1" reads only the rows of that run. cddp itself never reads a view of a file.

CREATE VIEW runs AS
SELECT id AS run, title, CASE complete WHEN 1 THEN verdict ELSE 'incomplete' END AS verdict, reason, backend, world_size, steps,
    printf('%016x', seed) AS seed, printf('%016x', plan) AS plan, schedule,
    (SELECT count(*) FROM event e WHERE e.id > run.id << 40 AND e.id < (run.id + 1) << 40) AS events,
    (SELECT count(*) FROM finding f WHERE f.run = run.id) AS findings, version, compiler, machine, recorded_at
FROM run;

CREATE VIEW findings AS
SELECT f.run, f.position, f.invariant, f.step, f.micro, f.rank, f.peer, f.bucket, f.parameter, f.title, f.expected, f.actual,
    f.advice,
    (SELECT group_concat(x.rank, ' ') FROM finding_rank x WHERE x.run = f.run AND x.position = f.position) AS ranks,
    (SELECT group_concat(coalesce('rank ' || x.rank, 'world') || ':' || x.seq, ' ') FROM finding_event x
     WHERE x.run = f.run AND x.position = f.position) AS events
FROM finding f;

-- Every event, readable: "bucket=0 numel=12 dtype=f32".
CREATE VIEW timeline AS
SELECT r.id AS run, e.t, e.rank, e.seq, e.step, e.micro, k.name AS event,
    trim((SELECT group_concat(part, ' ') FROM (
        SELECT d.name || '=' || CASE d.type
            WHEN 'digest' THEN printf('%016x', v) WHEN 'f64' THEN CASE typeof(v) WHEN 'real' THEN printf('%.17g', v) ELSE 'nan' END
            ELSE coalesce((SELECT n.name FROM enumeration n WHERE n.type = d.type AND n.value = v), v) END AS part
        FROM (SELECT position, name, type, CASE position WHEN 0 THEN e.f0 WHEN 1 THEN e.f1 WHEN 2 THEN e.f2 WHEN 3 THEN e.f3
            WHEN 4 THEN e.f4 WHEN 5 THEN e.f5 WHEN 6 THEN e.f6 WHEN 7 THEN e.f7 WHEN 8 THEN e.f8 WHEN 9 THEN e.f9
            ELSE e.f10 END AS v FROM field WHERE kind = e.kind ORDER BY position) d))
        || coalesce(' "' || x.value || '"', '')) AS detail
FROM run r JOIN event e ON e.id > r.id << 40 AND e.id < (r.id + 1) << 40
JOIN kind k ON k.id = e.kind LEFT JOIN text x ON x.id = e.text;

-- The order in which each rank launched its buckets; agrees: as the lowest rank did.
CREATE VIEW bucket_order AS
WITH launches AS (
    SELECT run, step, micro, rank, group_concat(bucket, ' ') OVER w AS buckets, row_number() OVER w AS position,
        count(*) OVER (PARTITION BY run, step, micro, rank) AS total, max(generation) OVER w AS generation
    FROM ev_bucket_launch
    WINDOW w AS (PARTITION BY run, step, micro, rank ORDER BY seq)),
orders AS (SELECT run, step, micro, rank, generation, buckets FROM launches WHERE position = total)
SELECT run, step, micro, rank, generation, buckets,
    buckets = first_value(buckets) OVER (PARTITION BY run, step, micro ORDER BY rank) AS agrees
FROM orders;

-- The groups of a run by name, and their members.
CREATE VIEW groups AS
SELECT run, "group" AS group_id, max(text) AS name, max(members) AS size, group_concat(rank, ' ') AS ranks
FROM (SELECT DISTINCT run, "group", text, members, rank FROM ev_group ORDER BY run, "group", rank) GROUP BY run, "group";

-- What each rank asked for as the k-th operation of a group, and what came of it.
CREATE VIEW collectives_by_rank AS
SELECT p.run, p."group" AS group_id, p.group_name, p.sequence, p.rank, p.step, p.micro, p.op, p.reduce_op, p.root, p.dtype, p.numel, p.bucket,
    p.t AS posted_at, d.t AS done_at, d.status, p.digest AS input, d.digest AS output
FROM ev_collective_post p
LEFT JOIN ev_collective_done d ON d.run = p.run AND d.rank = p.rank AND d."group" = p."group" AND d.sequence = p.sequence;

-- At the end of a run: who waits, or gave up waiting, in which operation, and for whom. A row per member of the group that never
-- posted the operation; peer is NULL when all have. Then what the world itself reported.
CREATE VIEW waiting_for AS
WITH open AS (
    SELECT w.run, w.t, w.rank, w.step, w."group", w.sequence, d.status
    FROM ev_collective_wait w
    LEFT JOIN ev_collective_done d ON d.run = w.run AND d.rank = w.rank AND d."group" = w."group" AND d.sequence = w.sequence
    WHERE d.run IS NULL OR d.status IN ('timed out', 'backend failure', 'input/output error')),
missing AS (
    SELECT DISTINCT o.run, o.rank, o."group", o.sequence, g.rank AS peer
    FROM open o
    JOIN ev_group g ON g.run = o.run AND g."group" = o."group"
    LEFT JOIN ev_collective_post p ON p.run = g.run AND p.rank = g.rank AND p."group" = g."group" AND p.sequence = o.sequence
    WHERE p.run IS NULL)
SELECT o.run, o.t, o.rank, o.step, o."group" AS group_id, p.group_name, o.sequence, m.peer, p.op,
    coalesce(o.status, 'no result was ever seen') AS words
FROM open o
LEFT JOIN missing m ON m.run = o.run AND m.rank = o.rank AND m."group" = o."group" AND m.sequence = o.sequence
LEFT JOIN ev_collective_post p ON p.run = o.run AND p.rank = o.rank AND p."group" = o."group" AND p.sequence = o.sequence
UNION ALL
SELECT run, t, coalesce(rank, who), step, "group", group_name, sequence, nullif(peer, -1), op, text FROM ev_waiting_for;

-- Where ranks first part, per run: the first collective they describe differently, the first that one waits for and another never
-- posted, and the first value after a step that they hold differently.
CREATE VIEW first_divergence AS
WITH asked AS (
    SELECT run, "group", sequence, rank, step,
        op || ' ' || numel || ' ' || dtype || ' ' || reduce_op || ' root ' || root || ' bucket ' || bucket AS what
    FROM ev_collective_post),
compared AS (
    SELECT *, first_value(rank) OVER w AS rank_a, first_value(what) OVER w AS side_a FROM asked
    WINDOW w AS (PARTITION BY run, "group", sequence ORDER BY rank)),
held AS (
    SELECT run, step, micro, what, id, rank, digest, param, parameter,
        first_value(rank) OVER w AS rank_a, first_value(digest) OVER w AS side_a
    FROM ev_value WHERE moment = 'after step' AND what IN ('parameter', 'buffer', 'optimizer state')
    WINDOW w AS (PARTITION BY run, step, micro, what, id ORDER BY rank)),
parted AS (
    SELECT run, step, 'collective' AS kind, 'group ' || coalesce((SELECT name FROM groups n WHERE n.run = compared.run
        AND n.group_id = compared."group"), "group") || ' sequence ' || sequence AS place, rank_a, side_a,
        rank AS rank_b, what AS side_b, row_number() OVER (PARTITION BY run ORDER BY "group", sequence, rank) AS position
    FROM compared WHERE what <> side_a
    UNION ALL
    SELECT run, step, 'wait', 'group ' || coalesce(group_name, group_id) || ' sequence ' || sequence, rank, op || ': ' || words, peer, 'never posted',
        row_number() OVER (PARTITION BY run ORDER BY t, rank, peer)
    FROM waiting_for WHERE peer IS NOT NULL AND sequence >= 0
    UNION ALL
    SELECT run, step, 'value', coalesce(parameter, 'id ' || id), rank_a, side_a, rank, digest,
        row_number() OVER (PARTITION BY run ORDER BY step, micro,
            CASE what WHEN 'parameter' THEN 0 WHEN 'buffer' THEN 1 ELSE 2 END, id, rank)
    FROM held WHERE digest <> side_a)
SELECT run, step, kind, place, rank_a, side_a, rank_b, side_b FROM parted WHERE position = 1;

-- How much of each step's communication was hidden behind the backward pass of the same rank.
CREATE VIEW overlap AS
WITH step_times AS (
    SELECT l.run, l.rank, l.step, min(l.t) AS first_launch,
        (SELECT max(m.t) FROM ev_mark_ready m WHERE m.run = l.run AND m.rank = l.rank AND m.step = l.step) AS last_ready,
        (SELECT max(d.t) FROM ev_bucket_done d WHERE d.run = l.run AND d.rank = l.rank AND d.step = l.step) AS last_done
    FROM ev_bucket_launch l GROUP BY l.run, l.rank, l.step)
SELECT run, rank, step, last_done - first_launch AS communication_ns,
    max(0, min(last_ready, last_done) - first_launch) AS hidden_ns,
    last_done - first_launch - max(0, min(last_ready, last_done) - first_launch) AS exposed_ns
FROM step_times WHERE last_done IS NOT NULL;

-- The ranks that used a parameter since the last synchronisation, and the reduced map.
CREATE VIEW unused_map AS
SELECT l.run, l.step, l.micro, l.param, l.parameter, group_concat(CASE l.used WHEN 0 THEN NULL ELSE l.rank END, ' ') AS used_by,
    group_concat(CASE l.used WHEN 0 THEN l.rank END, ' ') AS unused_by,
    (SELECT max(g.used) FROM ev_used_global g WHERE g.run = l.run AND g.step = l.step AND g.micro = l.micro AND g.param = l.param)
        AS used_global
FROM ev_used_local l GROUP BY l.run, l.step, l.micro, l.param;
