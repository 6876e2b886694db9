-- Mainspring on SQLite, schema version 1.
--
-- Every name begins with `mainspring_`, because the application's own tables may be in the same file. Live jobs are in
-- `mainspring_jobs`, finished ones in `mainspring_archive`: so claims never read history. Times are milliseconds since
-- 1970 UTC. `status` is 0 pending, 1 retrying (an attempt failed), 2 suspended, 3 running, 4 completed, 5 dead letter,
-- 6 cancelled. To explore the file by hand, use the view `mainspring_all_jobs`.

CREATE TABLE mainspring_jobs (
    seq           INTEGER PRIMARY KEY,     -- breaks ties of run_at; used only in this file
    id            TEXT    NOT NULL UNIQUE, -- UUIDv7, made by the client
    task          TEXT    NOT NULL,
    queue         TEXT    NOT NULL,
    status        INTEGER NOT NULL DEFAULT 0,
    priority      INTEGER NOT NULL,        -- 0 urgent, 1 high, 2 normal, 3 low
    run_at        INTEGER NOT NULL,
    attempts      INTEGER NOT NULL DEFAULT 0,
    max_attempts  INTEGER NOT NULL,
    crashes       INTEGER NOT NULL DEFAULT 0, -- above 0: a suspect, claimed alone
    token         INTEGER NOT NULL DEFAULT 0, -- the fence: grows with each claim, never shrinks
    worker        TEXT,
    claimed_at    INTEGER NOT NULL DEFAULT 0,
    deadline      INTEGER NOT NULL DEFAULT 0, -- claimed_at + timeout + grace: a run that lasts longer is stalled
    timeout       INTEGER NOT NULL DEFAULT 0, -- 0: none
    created_at    INTEGER NOT NULL,
    keep          INTEGER NOT NULL,        -- how long it stays readable once completed or cancelled
    keep_dead     INTEGER NOT NULL,        -- the same for a dead letter
    cancel        INTEGER NOT NULL DEFAULT 0, -- 1: it is running and was asked to stop
    aside         INTEGER NOT NULL DEFAULT 0, -- 1: a worker that does not know the task has skipped the job
    dedupe_key    TEXT,
    target_type   TEXT,
    target_id     TEXT,
    tags          TEXT,                    -- JSON array
    options       TEXT,                    -- JSON, for the worker: the job's own retry policy and isolation
    changed_at    INTEGER NOT NULL DEFAULT 0, -- the last change but its creation and claims, which have their own columns
    waits_for     TEXT,                    -- while suspended: it waits until this key is woken, or until run_at
    reason        TEXT    NOT NULL DEFAULT '',
    progress      REAL,
    note          TEXT,
    error_type    TEXT,                    -- of the last failure
    error         TEXT,
    error_code    TEXT,
    fingerprint   TEXT,                    -- of its failure group; it stays when the job is retried
    version       TEXT,                    -- of the code of the worker that runs it, or ran it last
    payload       TEXT                     -- NULL: it is long, and stored in `mainspring_payloads`
) STRICT;

-- A claim seeks each priority of a queue in the first index. The other two indexes are nearly always empty. They are
-- ordered by task, so that a claim reads only jobs of tasks that its worker knows.
CREATE INDEX mainspring_jobs_waiting ON mainspring_jobs (queue, priority, run_at)
    WHERE status < 3 AND crashes = 0 AND aside = 0;
CREATE INDEX mainspring_jobs_suspect ON mainspring_jobs (queue, task, run_at) WHERE status < 3 AND crashes > 0;
CREATE INDEX mainspring_jobs_aside ON mainspring_jobs (queue, task, priority, run_at)
    WHERE status < 3 AND crashes = 0 AND aside = 1;
-- Jobs by the key that they wait for. A key that begins with 'job:' is woken when that job has ended.
CREATE INDEX mainspring_jobs_to_wake ON mainspring_jobs (waits_for, priority, id) WHERE status = 2 AND waits_for IS NOT NULL;
CREATE INDEX mainspring_jobs_running ON mainspring_jobs (worker, deadline) WHERE status = 3;
CREATE UNIQUE INDEX mainspring_jobs_dedupe ON mainspring_jobs (task, dedupe_key) WHERE dedupe_key IS NOT NULL;
CREATE INDEX mainspring_jobs_attempts ON mainspring_jobs (attempts, id) WHERE attempts <> 0;
CREATE INDEX mainspring_jobs_target ON mainspring_jobs (target_type, target_id) WHERE target_type IS NOT NULL;
CREATE INDEX mainspring_jobs_failure ON mainspring_jobs (fingerprint, id) WHERE fingerprint IS NOT NULL;

CREATE TABLE mainspring_archive (
    id            TEXT    NOT NULL PRIMARY KEY,
    task          TEXT    NOT NULL,
    queue         TEXT    NOT NULL,
    status        INTEGER NOT NULL,
    priority      INTEGER NOT NULL,
    run_at        INTEGER NOT NULL,
    attempts      INTEGER NOT NULL,
    max_attempts  INTEGER NOT NULL,
    crashes       INTEGER NOT NULL,
    token         INTEGER NOT NULL,
    worker        TEXT,
    started_at    INTEGER NOT NULL,
    finished_at   INTEGER NOT NULL,
    expires_at    INTEGER NOT NULL,
    timeout       INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    keep          INTEGER NOT NULL,
    keep_dead     INTEGER NOT NULL,
    dedupe_key    TEXT,
    target_type   TEXT,
    target_id     TEXT,
    tags          TEXT,
    options       TEXT,
    reason        TEXT    NOT NULL,
    progress      REAL,
    note          TEXT,
    error_type    TEXT,
    error         TEXT,
    error_code    TEXT,
    fingerprint   TEXT,
    version       TEXT,
    payload       TEXT,
    result        TEXT                     -- JSON
) STRICT, WITHOUT ROWID;

-- By the end, and by the expiry. Most jobs are kept for the usual 7 days, so both orders are the same, and one index is
-- enough for them.
CREATE INDEX mainspring_archive_week ON mainspring_archive (finished_at, id) WHERE expires_at = finished_at + 604800000;
CREATE INDEX mainspring_archive_finished ON mainspring_archive (finished_at, id) WHERE expires_at <> finished_at + 604800000;
CREATE INDEX mainspring_archive_expiry ON mainspring_archive (expires_at) WHERE expires_at <> finished_at + 604800000;
CREATE INDEX mainspring_archive_failed ON mainspring_archive (status, id) WHERE status > 4;
CREATE INDEX mainspring_archive_dead ON mainspring_archive (queue, finished_at) WHERE status = 5;
-- For sorted lists. Jobs of less than 0.1 s and jobs with one attempt are not in their index, so that most jobs cost nothing.
CREATE INDEX mainspring_archive_duration ON mainspring_archive (finished_at - started_at, id)
    WHERE started_at > 0 AND started_at <= finished_at - 100;
CREATE INDEX mainspring_archive_attempts ON mainspring_archive (attempts, id) WHERE attempts <> 1;
CREATE INDEX mainspring_archive_dedupe ON mainspring_archive (dedupe_key) WHERE dedupe_key IS NOT NULL;
CREATE INDEX mainspring_archive_target ON mainspring_archive (target_type, target_id) WHERE target_type IS NOT NULL;
-- The jobs of a failure group: all of them in order, and its dead letters, which may be few among many that succeeded.
CREATE INDEX mainspring_archive_failure ON mainspring_archive (fingerprint, id) WHERE fingerprint IS NOT NULL;
CREATE INDEX mainspring_archive_failure_status ON mainspring_archive (fingerprint, status, id, queue) WHERE fingerprint IS NOT NULL;

-- Long payloads. They are stored apart, so that neither a claim nor the move into the archive copies them.
CREATE TABLE mainspring_payloads (
    job_id        TEXT    NOT NULL PRIMARY KEY,
    body          TEXT    NOT NULL
) STRICT;

CREATE TABLE mainspring_tags (
    tag           TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    PRIMARY KEY (tag, job_id)
) STRICT, WITHOUT ROWID;

-- All runs but the successful one, which is in the job's row in the archive.
CREATE TABLE mainspring_attempts (
    job_id        TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    worker        TEXT    NOT NULL,
    started_at    INTEGER NOT NULL,
    finished_at   INTEGER NOT NULL,
    move          TEXT    NOT NULL,
    error_type    TEXT,
    error         TEXT,
    error_code    TEXT,
    traceback     TEXT,
    fingerprint   TEXT,
    version       TEXT,                    -- of the worker's code
    PRIMARY KEY (job_id, number)
) STRICT, WITHOUT ROWID;

-- The finished steps of durable functions.
CREATE TABLE mainspring_steps (
    job_id        TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    number        INTEGER NOT NULL,        -- the order in which the function called its steps
    kind          TEXT    NOT NULL,
    output        TEXT,                    -- JSON
    started_at    INTEGER NOT NULL,
    finished_at   INTEGER NOT NULL,
    PRIMARY KEY (job_id, name)
) STRICT, WITHOUT ROWID;

-- Dedupe keys that outlive their job.
CREATE TABLE mainspring_dedupe (
    task          TEXT    NOT NULL,
    dedupe_key    TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    expires_at    INTEGER NOT NULL,
    PRIMARY KEY (task, dedupe_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX mainspring_dedupe_expiry ON mainspring_dedupe (expires_at);

-- The number of jobs per queue and status, updated by every write.
CREATE TABLE mainspring_counts (
    queue         TEXT    NOT NULL,
    status        INTEGER NOT NULL,
    n             INTEGER NOT NULL,
    PRIMARY KEY (queue, status)
) STRICT, WITHOUT ROWID;

-- The halt of the whole system (queue '') and paused queues.
CREATE TABLE mainspring_halts (
    queue         TEXT    NOT NULL PRIMARY KEY,
    actor         TEXT    NOT NULL,
    reason        TEXT    NOT NULL,
    since         INTEGER NOT NULL,
    until         INTEGER,
    accept        INTEGER NOT NULL,
    number        INTEGER NOT NULL DEFAULT 0 -- grows with each halt; workers confirm it
) STRICT, WITHOUT ROWID;

-- Workers that no longer start jobs stopped by the halt with this number, or by an earlier one. Each halt empties it.
CREATE TABLE mainspring_confirmations (
    worker        TEXT    NOT NULL PRIMARY KEY, -- '' is not a worker: its row has the number of the last halt
    number        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Workers whose coming is in the change feed, and whose end is not. Whether they are alive is seen from their files.
CREATE TABLE mainspring_workers (
    worker        TEXT    NOT NULL PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- The audit log: changes by hand, and the jobs that they changed.
CREATE TABLE mainspring_audit (
    operation     TEXT    NOT NULL,        -- all pages of an operation share one row
    action        TEXT    NOT NULL,
    at            INTEGER NOT NULL,
    actor         TEXT    NOT NULL,
    reason        TEXT    NOT NULL,
    detail        TEXT    NOT NULL,
    n             INTEGER NOT NULL,
    PRIMARY KEY (operation, action)
) STRICT, WITHOUT ROWID;

CREATE INDEX mainspring_audit_at ON mainspring_audit (at, operation, action);
CREATE INDEX mainspring_audit_actor ON mainspring_audit (actor, at, operation, action);
CREATE INDEX mainspring_audit_action ON mainspring_audit (action, at, operation);

CREATE TABLE mainspring_audit_jobs (
    job_id        TEXT    NOT NULL,
    operation     TEXT    NOT NULL,
    action        TEXT    NOT NULL,
    PRIMARY KEY (job_id, operation, action)
) STRICT, WITHOUT ROWID;

CREATE INDEX mainspring_audit_jobs_of ON mainspring_audit_jobs (operation, job_id);

-- Data besides jobs (schedules, people, …) as JSON.
CREATE TABLE mainspring_documents (
    collection    TEXT    NOT NULL,
    grp           TEXT    NOT NULL,        -- within the collection; may be empty
    id            TEXT    NOT NULL,
    version       TEXT    NOT NULL,        -- changes with each write
    due_at        INTEGER NOT NULL,        -- 2^62: never
    expires_at    INTEGER NOT NULL,
    data          TEXT    NOT NULL,
    PRIMARY KEY (collection, grp, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX mainspring_documents_due ON mainspring_documents (collection, due_at) WHERE due_at < 4611686018427387904;
CREATE INDEX mainspring_documents_expiry ON mainspring_documents (expires_at) WHERE expires_at < 4611686018427387904;

-- The change feed, see stores/feed.py. An entry lists jobs of one task and queue to which the same thing happened.
-- Retention deletes the oldest entries, but never the last one: so numbers grow without gaps and are never reused.
CREATE TABLE mainspring_changes (
    number        INTEGER PRIMARY KEY,
    at            INTEGER NOT NULL,
    kind          TEXT    NOT NULL,
    queue         TEXT,
    task          TEXT,
    jobs          TEXT,                    -- JSON: ids, or arrays of id, target_type, target_id and data. A start without
                                           -- jobs is only counted, and not for readers
    data          TEXT,                    -- JSON
    n             INTEGER NOT NULL DEFAULT 0, -- the number of jobs
    times         TEXT                     -- JSON: the sum of their waits or durations, and the number in each bucket
) STRICT;

-- Identifies the feed. A cursor of another one is not valid here.
CREATE TABLE mainspring_feed (
    life          TEXT    NOT NULL PRIMARY KEY,
    folded        INTEGER NOT NULL DEFAULT 0, -- the numbers include the entries up to this one
    numbers_pruned_at INTEGER NOT NULL DEFAULT 0,
    starts_until  INTEGER NOT NULL DEFAULT 0 -- until then, claims name the started jobs in the feed
) STRICT, WITHOUT ROWID;

INSERT INTO mainspring_feed (life) VALUES (lower(hex(randomblob(4))));

-- Numbers over time, see stores/numbers.py. They are made from the change feed; entries after `folded` are not included.
CREATE TABLE mainspring_numbers (
    period        INTEGER NOT NULL,        -- 0 minute, 1 hour, 2 day
    task          TEXT    NOT NULL,        -- '': all tasks of the queue
    queue         TEXT    NOT NULL,        -- '': all queues
    start         INTEGER NOT NULL,
    measure       INTEGER NOT NULL, -- 0 enqueued, 1 started, 2 completed, 3 retried, 4 dead, 5 cancelled, 6 stalled,
                                    -- 7 sum of waits in ms, 8 sum of durations in ms
    bucket        INTEGER NOT NULL,        -- of the wait (measure 1) or the duration (2 to 4)
    n             INTEGER NOT NULL,
    PRIMARY KEY (period, task, queue, start, measure, bucket)
) STRICT, WITHOUT ROWID;

-- Views for people and reports: see docs/sql.md. Times are ISO 8601 in UTC, durations are seconds, JSON is text.
-- tests/stores/test_views.py checks that no column is forgotten.
CREATE VIEW mainspring_all_jobs AS
SELECT id, task, queue,
       CASE status WHEN 0 THEN 'pending' WHEN 1 THEN 'retrying' WHEN 2 THEN 'suspended' ELSE 'running' END AS status,
       CASE priority WHEN 0 THEN 'urgent' WHEN 1 THEN 'high' WHEN 2 THEN 'normal' ELSE 'low' END AS priority,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', CASE WHEN run_at < 253402214400000 THEN run_at END / 1000.0, 'unixepoch') AS run_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', nullif(claimed_at, 0) / 1000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', CASE WHEN status = 3 AND timeout > 0 THEN claimed_at + timeout END / 1000.0, 'unixepoch') AS timeout_at,
       NULL AS finished_at, strftime('%Y-%m-%dT%H:%M:%fZ', max(created_at, claimed_at, changed_at) / 1000.0, 'unixepoch') AS updated_at,
       NULL AS expires_at, attempts, max_attempts, crashes, token, worker,
       nullif(timeout, 0) / 1000.0 AS timeout, cancel, aside, waits_for, dedupe_key, target_type, target_id,
       coalesce(tags, '[]') AS tags, options, reason, progress, note, error_type, error, error_code, fingerprint, version,
       coalesce(payload, (SELECT body FROM mainspring_payloads WHERE job_id = mainspring_jobs.id)) AS payload,
       NULL AS result, CASE WHEN keep < 4611686018427387904 THEN keep / 1000.0 END AS keep,
       CASE WHEN keep_dead < 4611686018427387904 THEN keep_dead / 1000.0 END AS keep_dead
FROM mainspring_jobs
UNION ALL
SELECT id, task, queue, CASE status WHEN 4 THEN 'completed' WHEN 5 THEN 'dead_letter' ELSE 'cancelled' END,
       CASE priority WHEN 0 THEN 'urgent' WHEN 1 THEN 'high' WHEN 2 THEN 'normal' ELSE 'low' END,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch'),
       strftime('%Y-%m-%dT%H:%M:%fZ', CASE WHEN run_at < 253402214400000 THEN run_at END / 1000.0, 'unixepoch'),
       strftime('%Y-%m-%dT%H:%M:%fZ', nullif(started_at, 0) / 1000.0, 'unixepoch'), NULL,
       strftime('%Y-%m-%dT%H:%M:%fZ', finished_at / 1000.0, 'unixepoch'),
       strftime('%Y-%m-%dT%H:%M:%fZ', finished_at / 1000.0, 'unixepoch'),
       strftime('%Y-%m-%dT%H:%M:%fZ', CASE WHEN expires_at < 4611686018427387904 THEN expires_at END / 1000.0, 'unixepoch'),
       attempts, max_attempts, crashes, token, worker, nullif(timeout, 0) / 1000.0, 0, 0, NULL, dedupe_key,
       target_type, target_id, coalesce(tags, '[]'), options, reason, progress, note, error_type, error, error_code, fingerprint, version,
       coalesce(payload, (SELECT body FROM mainspring_payloads WHERE job_id = mainspring_archive.id)), result,
       CASE WHEN keep < 4611686018427387904 THEN keep / 1000.0 END,
       CASE WHEN keep_dead < 4611686018427387904 THEN keep_dead / 1000.0 END
FROM mainspring_archive;

-- The dead letters, with the columns of all_jobs. That view computes its status, so a condition on it would read the whole
-- archive; this one is found by an index.
CREATE VIEW mainspring_dead_letters AS
SELECT id, task, queue, 'dead_letter' AS status,
       CASE priority WHEN 0 THEN 'urgent' WHEN 1 THEN 'high' WHEN 2 THEN 'normal' ELSE 'low' END AS priority,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', CASE WHEN run_at < 253402214400000 THEN run_at END / 1000.0, 'unixepoch') AS run_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', nullif(started_at, 0) / 1000.0, 'unixepoch') AS started_at, NULL AS timeout_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', finished_at / 1000.0, 'unixepoch') AS finished_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', finished_at / 1000.0, 'unixepoch') AS updated_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', CASE WHEN expires_at < 4611686018427387904 THEN expires_at END / 1000.0, 'unixepoch') AS expires_at,
       attempts, max_attempts, crashes, token, worker, nullif(timeout, 0) / 1000.0 AS timeout, 0 AS cancel, 0 AS aside,
       NULL AS waits_for, dedupe_key, target_type, target_id, coalesce(tags, '[]') AS tags, options, reason, progress, note,
       error_type, error, error_code, fingerprint, version,
       coalesce(payload, (SELECT body FROM mainspring_payloads WHERE job_id = mainspring_archive.id)) AS payload, result,
       CASE WHEN keep < 4611686018427387904 THEN keep / 1000.0 END AS keep,
       CASE WHEN keep_dead < 4611686018427387904 THEN keep_dead / 1000.0 END AS keep_dead
FROM mainspring_archive WHERE status = 5;

-- Each run of a job: those that failed, were released or suspended, and the successful one, which is in the archive.
CREATE VIEW mainspring_all_attempts AS
SELECT job_id, number, worker, strftime('%Y-%m-%dT%H:%M:%fZ', started_at / 1000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', finished_at / 1000.0, 'unixepoch') AS finished_at,
       (finished_at - started_at) / 1000.0 AS duration, move, error_type, error, error_code, traceback,
       fingerprint, version
FROM mainspring_attempts
UNION ALL
SELECT id, 1 + (SELECT coalesce(max(number), 0) FROM mainspring_attempts WHERE job_id = mainspring_archive.id), worker,
       strftime('%Y-%m-%dT%H:%M:%fZ', started_at / 1000.0, 'unixepoch'),
       strftime('%Y-%m-%dT%H:%M:%fZ', finished_at / 1000.0, 'unixepoch'),
       (finished_at - started_at) / 1000.0, 'done', NULL, NULL, NULL, NULL, NULL, version
FROM mainspring_archive WHERE status = 4;

CREATE VIEW mainspring_all_steps AS
SELECT job_id, number, name, kind, output, strftime('%Y-%m-%dT%H:%M:%fZ', started_at / 1000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', finished_at / 1000.0, 'unixepoch') AS finished_at,
       (finished_at - started_at) / 1000.0 AS duration
FROM mainspring_steps;

CREATE VIEW mainspring_audit_log AS
SELECT strftime('%Y-%m-%dT%H:%M:%fZ', at / 1000.0, 'unixepoch') AS at, actor, action, reason, detail, n AS jobs, operation
FROM mainspring_audit;

CREATE VIEW mainspring_schedules AS
SELECT id AS name, strftime('%Y-%m-%dT%H:%M:%fZ', CASE WHEN due_at < 4611686018427387904 THEN due_at END / 1000.0, 'unixepoch') AS due_at,
       data, version
FROM mainspring_documents WHERE collection = 'schedules';
