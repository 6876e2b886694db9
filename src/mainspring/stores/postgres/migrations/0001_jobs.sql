-- Mainspring on PostgreSQL, schema version 1.
--
-- Live jobs are in `jobs`, finished ones in `archive`, so a claim never reads history. Times are milliseconds since
-- 1970 UTC, by this server's clock. To look at jobs yourself, use the view `all_jobs`.

CREATE TABLE {schema}.jobs (
    id            uuid     NOT NULL PRIMARY KEY,
    task          text     NOT NULL,
    queue         text     NOT NULL,
    status        smallint NOT NULL DEFAULT 0,
    priority      smallint NOT NULL,
    run_at        bigint   NOT NULL,
    attempts      integer  NOT NULL DEFAULT 0,
    max_attempts  integer  NOT NULL,
    crashes       integer  NOT NULL DEFAULT 0,
    token         bigint   NOT NULL DEFAULT 0,
    worker        text,
    claim         bigint   NOT NULL DEFAULT 0,
    claimed_at    bigint   NOT NULL DEFAULT 0,
    deadline      bigint   NOT NULL DEFAULT 0,
    timeout       bigint   NOT NULL DEFAULT 0,
    created_at    bigint   NOT NULL,
    keep          bigint   NOT NULL,
    keep_dead     bigint   NOT NULL,
    cancel        boolean  NOT NULL DEFAULT false,
    aside         boolean  NOT NULL DEFAULT false,
    dedupe_key    text,
    target_type   text,
    target_id     text,
    tags          text[],
    options       text,
    reason        text     NOT NULL DEFAULT '',
    progress      double precision,
    note          text,
    error_type    text,
    error         text,
    error_code    text,
    fingerprint   text,
    version       text,
    payload       text     NOT NULL,
    waits_for     text COLLATE "C",
    changed_at    bigint   NOT NULL DEFAULT 0
) WITH (
    fillfactor = 70,                          -- room in the page for the claimed version of a row, next to the old one
    autovacuum_vacuum_scale_factor = 0.0,     -- most rows of a queue are dead: vacuum by their number, not by share
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.0,
    autovacuum_vacuum_insert_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2
);

COMMENT ON TABLE {schema}.jobs IS 'Live jobs: waiting, running or suspended. Finished ones are in archive.';
COMMENT ON COLUMN {schema}.jobs.id IS 'UUIDv7, made by the client, so ids are in the order of creation';
COMMENT ON COLUMN {schema}.jobs.status IS '0 pending, 1 retrying (an attempt failed), 2 suspended, 3 running';
COMMENT ON COLUMN {schema}.jobs.priority IS '0 urgent, 1 high, 2 normal, 3 low';
COMMENT ON COLUMN {schema}.jobs.run_at IS 'when the job is due (ms since 1970 UTC); a time on the last day of 9999 means: only when it is woken';
COMMENT ON COLUMN {schema}.jobs.attempts IS 'runs that succeeded or failed';
COMMENT ON COLUMN {schema}.jobs.crashes IS 'how many workers died while they held the job; above 0 the job is a suspect and runs alone';
COMMENT ON COLUMN {schema}.jobs.token IS 'the fence: it grows with each claim and never shrinks; every write about a run carries it';
COMMENT ON COLUMN {schema}.jobs.claim IS
    'which claim of its worker took the job; if the answer to a claim is lost, the worker hands those jobs back';
COMMENT ON COLUMN {schema}.jobs.deadline IS 'if the job runs longer than this, it is stalled (ms since 1970 UTC)';
COMMENT ON COLUMN {schema}.jobs.timeout IS 'in ms; 0 means none';
COMMENT ON COLUMN {schema}.jobs.keep IS 'for how many ms the job is kept once it is completed or cancelled';
COMMENT ON COLUMN {schema}.jobs.keep_dead IS 'for how many ms the job is kept as a dead letter';
COMMENT ON COLUMN {schema}.jobs.cancel IS 'whether the running job was asked to stop';
COMMENT ON COLUMN {schema}.jobs.error_code IS 'the code that the error or the lessee gave; NULL: none';
COMMENT ON COLUMN {schema}.jobs.fingerprint IS 'of its failure group; it stays when the job is retried';
COMMENT ON COLUMN {schema}.jobs.version IS 'of the code of the worker that runs it, or ran it last';
COMMENT ON COLUMN {schema}.jobs.options IS 'JSON for the worker: the job''s own retry policy and isolation';
COMMENT ON COLUMN {schema}.jobs.payload IS 'JSON: the task''s arguments';
COMMENT ON COLUMN {schema}.jobs.waits_for IS
    'the job is suspended until this key is woken, or until run_at; job:<id> is woken when that job has ended';

COMMENT ON COLUMN {schema}.jobs.changed_at IS 'the last change (ms since 1970 UTC) but its creation and claims, which have their own columns';

CREATE INDEX jobs_waiting ON {schema}.jobs (queue, priority, run_at, id) WHERE status < 3 AND crashes = 0 AND NOT aside;
CREATE INDEX jobs_suspect ON {schema}.jobs (queue, task, run_at, id) WHERE status < 3 AND crashes > 0;
CREATE INDEX jobs_aside ON {schema}.jobs (queue, task, priority, run_at, id) WHERE status < 3 AND crashes = 0 AND aside;
CREATE INDEX jobs_failure ON {schema}.jobs (fingerprint, id) WHERE fingerprint IS NOT NULL;
CREATE INDEX jobs_running ON {schema}.jobs (worker, deadline) WHERE status = 3;
CREATE INDEX jobs_to_wake ON {schema}.jobs (waits_for, priority, id) WHERE waits_for IS NOT NULL;
CREATE UNIQUE INDEX jobs_dedupe ON {schema}.jobs (dedupe_key, task) WHERE dedupe_key IS NOT NULL;
CREATE INDEX jobs_target ON {schema}.jobs (target_type, target_id, id) WHERE target_type IS NOT NULL;
CREATE INDEX jobs_attempts ON {schema}.jobs (attempts, id) WHERE attempts <> 0;
CREATE INDEX jobs_tags ON {schema}.jobs USING gin (tags) WHERE tags IS NOT NULL;
COMMENT ON INDEX {schema}.jobs_waiting IS 'a claim seeks each priority of a queue in this index and reads nothing else';
COMMENT ON INDEX {schema}.jobs_aside IS
    'jobs that a worker skipped because it does not know their task; nearly always empty';
COMMENT ON COLUMN {schema}.jobs.aside IS
    'a worker that does not know the task has skipped the job; workers that know the task find it in jobs_aside';

-- One partition per day on which jobs expire, so retention drops whole tables. Day 0 has jobs kept for less than a day,
-- which are deleted row by row. The last partition has jobs kept for ever. The others are created when first needed.
CREATE TABLE {schema}.archive (
    id            uuid     NOT NULL,
    task          text     NOT NULL,
    queue         text     NOT NULL,
    status        smallint NOT NULL,
    priority      smallint NOT NULL,
    run_at        bigint   NOT NULL,
    attempts      integer  NOT NULL,
    max_attempts  integer  NOT NULL,
    crashes       integer  NOT NULL,
    token         bigint   NOT NULL,
    worker        text,
    started_at    bigint   NOT NULL,
    finished_at   bigint   NOT NULL,
    expires_at    bigint   NOT NULL,
    drop_day      integer  NOT NULL,
    timeout       bigint   NOT NULL,
    created_at    bigint   NOT NULL,
    keep          bigint   NOT NULL,
    keep_dead     bigint   NOT NULL,
    dedupe_key    text,
    target_type   text,
    target_id     text,
    tags          text[],
    options       text,
    reason        text     NOT NULL,
    progress      double precision,
    note          text,
    error_type    text,
    error         text,
    error_code    text,
    fingerprint   text,
    version       text,
    payload       text     NOT NULL,
    result        text,
    PRIMARY KEY (id, drop_day)
) PARTITION BY RANGE (drop_day);

COMMENT ON TABLE {schema}.archive IS 'Finished jobs, in one partition per day on which they expire. Retention drops whole partitions.';
COMMENT ON COLUMN {schema}.archive.status IS '4 completed, 5 dead letter, 6 cancelled';
COMMENT ON COLUMN {schema}.archive.expires_at IS 'the job is kept at least until then (ms since 1970 UTC)';
COMMENT ON COLUMN {schema}.archive.drop_day IS 'the day (since 1970) on which its partition is dropped; 0 if the job is kept for less than a day';
COMMENT ON COLUMN {schema}.archive.result IS 'JSON: what the task returned';

CREATE TABLE {schema}.archive_short PARTITION OF {schema}.archive FOR VALUES FROM (0) TO (1)
    WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000); -- all its rows are soon deleted
CREATE TABLE {schema}.archive_forever PARTITION OF {schema}.archive FOR VALUES FROM (1000000) TO (MAXVALUE);
CREATE INDEX archive_short_expiry ON {schema}.archive_short (expires_at);
CREATE INDEX archive_failed ON {schema}.archive (status, id) WHERE status > 4;
CREATE INDEX archive_dead ON {schema}.archive (queue, finished_at) WHERE status = 5;
-- For sorted lists. Jobs of less than 0.1 s and jobs with one attempt are not in their index, so that most jobs cost nothing.
CREATE INDEX archive_finished ON {schema}.archive (finished_at, id);
CREATE INDEX archive_duration ON {schema}.archive ((finished_at - started_at), id)
    WHERE started_at > 0 AND started_at <= finished_at - 100;
CREATE INDEX archive_attempts ON {schema}.archive (attempts, id) WHERE attempts <> 1;
CREATE INDEX archive_dedupe ON {schema}.archive (dedupe_key) WHERE dedupe_key IS NOT NULL;
CREATE INDEX archive_target ON {schema}.archive (target_type, target_id, id) WHERE target_type IS NOT NULL;
CREATE INDEX archive_failure ON {schema}.archive (fingerprint, id) WHERE fingerprint IS NOT NULL;
CREATE INDEX archive_failure_status ON {schema}.archive (fingerprint, status, id) INCLUDE (queue) WHERE fingerprint IS NOT NULL;
CREATE INDEX archive_tags ON {schema}.archive USING gin (tags) WHERE tags IS NOT NULL;

CREATE FUNCTION {schema}.drop_day(keep bigint, at bigint) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN keep < 86400000 THEN 0
                WHEN keep >= 4611686018427387904 OR (at + keep) / 86400000 + 1 >= 1000000 THEN 1000000
                ELSE (at + keep) / 86400000 + 1 END::integer
$$;
COMMENT ON FUNCTION {schema}.drop_day IS 'Returns the partition of archive for a job that finishes at that time.';

CREATE TABLE {schema}.attempts (
    job_id        uuid     NOT NULL,
    number        integer  NOT NULL,
    worker        text     NOT NULL,
    started_at    bigint   NOT NULL,
    finished_at   bigint   NOT NULL,
    move          text     NOT NULL,
    error_type    text,
    error         text,
    error_code    text,
    traceback     text,
    fingerprint   text,
    version       text,
    PRIMARY KEY (job_id, number)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000); -- retention deletes many at a time
COMMENT ON TABLE {schema}.attempts IS
    'All runs except the successful one, which is in the job''s row in archive.';

CREATE TABLE {schema}.steps (
    job_id        uuid     NOT NULL,
    name          text     NOT NULL,
    number        integer  NOT NULL,
    kind          text     NOT NULL,
    output        text,
    started_at    bigint   NOT NULL,
    finished_at   bigint   NOT NULL,
    PRIMARY KEY (job_id, name)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);
COMMENT ON TABLE {schema}.steps IS 'Recorded steps of durable functions. The next run does not repeat them.';
COMMENT ON COLUMN {schema}.steps.number IS 'the order in which the function called its steps';
COMMENT ON COLUMN {schema}.steps.output IS 'JSON';

CREATE TABLE {schema}.dedupe (
    task          text     NOT NULL,
    dedupe_key    text     NOT NULL,
    job_id        uuid     NOT NULL,
    expires_at    bigint   NOT NULL,
    PRIMARY KEY (task, dedupe_key)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);
CREATE INDEX dedupe_expiry ON {schema}.dedupe (expires_at);
COMMENT ON TABLE {schema}.dedupe IS 'Dedupe keys that outlive their job.';

-- A single row per counter would make each transaction of a queue wait for the one before. So every transaction adds a
-- row of its own, and the workers add the rows up now and then.
CREATE TABLE {schema}.counts (
    queue         text     NOT NULL,
    status        smallint NOT NULL,
    n             bigint   NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX counts_of ON {schema}.counts (queue, status);
COMMENT ON TABLE {schema}.counts IS 'The number of jobs per queue and status is the sum of its rows. Workers merge the rows from time to time.';

CREATE TABLE {schema}.halts (
    queue         text     NOT NULL PRIMARY KEY,
    actor         text     NOT NULL,
    reason        text     NOT NULL,
    since         bigint   NOT NULL,
    until         bigint,
    accept        boolean  NOT NULL,
    number        bigint   NOT NULL GENERATED BY DEFAULT AS IDENTITY
);
COMMENT ON TABLE {schema}.halts IS 'The halt of the whole system (its queue is empty) and paused queues.';
COMMENT ON COLUMN {schema}.halts.accept IS 'true: new jobs are stored for later; false: they are rejected';
COMMENT ON COLUMN {schema}.halts.number IS 'grows with each halt; workers confirm it';

CREATE TABLE {schema}.confirmations (
    worker        text     NOT NULL PRIMARY KEY,
    number        bigint   NOT NULL
);
COMMENT ON TABLE {schema}.confirmations IS 'Workers that no longer start jobs stopped by the halt with this number, or by an earlier one. Each halt empties it.';

-- Returns a payload as jsonb, or NULL if that is impossible: it contains NUL characters, or was written by hand and is
-- not JSON. One such row must not keep a filter from finding others.
CREATE FUNCTION {schema}.as_json(body text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    RETURN body::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END $$;

CREATE FUNCTION {schema}.takes_new(queues text[], at bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('{schema} halts', 0)); -- lock first: the query below then has a newer snapshot
    RETURN NOT EXISTS (
        SELECT 1 FROM {schema}.halts WHERE NOT accept AND (until IS NULL OR until > at) AND queue = ANY(queues));
END $$;
COMMENT ON FUNCTION {schema}.takes_new IS 'Returns whether new jobs of these queues are accepted. A halt waits until the transactions that asked have ended.';

CREATE FUNCTION {schema}.stands_still(queue_ text, at bigint) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT 1 FROM {schema}.halts WHERE queue IN ('', queue_) AND (until IS NULL OR until > at))
$$;
COMMENT ON FUNCTION {schema}.stands_still IS 'Returns whether the whole system is halted, or this queue is paused, at that time.';

CREATE TABLE {schema}.workers (
    id            text     NOT NULL PRIMARY KEY,
    info          jsonb    NOT NULL,
    queues        text[]   NOT NULL,
    beat          bigint   NOT NULL,
    seen_at       bigint   NOT NULL,
    idle          boolean  NOT NULL DEFAULT false,
    lock          bigint,
    lock_server   bigint
) WITH (fillfactor = 50);
COMMENT ON TABLE {schema}.workers IS 'The live workers. Each worker checks whether the others still increase beat, by its own clock.';
COMMENT ON COLUMN {schema}.workers.lock IS
    'an advisory lock that all sessions of the worker''s process hold; the server frees it when the process dies';
COMMENT ON COLUMN {schema}.workers.lock_server IS 'when the server that gave the lock was started (microseconds); after a restart the lock is not valid';
COMMENT ON COLUMN {schema}.workers.idle IS 'the worker sleeps until a job is due, and must be notified of new jobs';

CREATE TABLE {schema}.audit (
    operation     text COLLATE "C" NOT NULL,
    action        text COLLATE "C" NOT NULL,
    at            bigint   NOT NULL,
    actor         text     NOT NULL,
    reason        text     NOT NULL,
    detail        jsonb    NOT NULL,
    n             bigint   NOT NULL,
    PRIMARY KEY (operation, action)
);
CREATE INDEX audit_at ON {schema}.audit (at, operation, action);
CREATE INDEX audit_actor ON {schema}.audit (actor, at, operation, action);
CREATE INDEX audit_action ON {schema}.audit (action, at, operation);
COMMENT ON TABLE {schema}.audit IS 'The audit log of changes by hand: who changed what, when and why, and how many jobs.';

CREATE TABLE {schema}.audit_jobs (
    job_id        uuid     NOT NULL,
    operation     text COLLATE "C" NOT NULL,
    action        text COLLATE "C" NOT NULL,
    PRIMARY KEY (job_id, operation, action)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);
CREATE INDEX audit_jobs_of ON {schema}.audit_jobs (operation, job_id);
COMMENT ON TABLE {schema}.audit_jobs IS 'The jobs that an entry of the audit log changed.';

CREATE TABLE {schema}.documents (
    collection    text COLLATE "C" NOT NULL,
    grp           text COLLATE "C" NOT NULL,
    id            text COLLATE "C" NOT NULL,
    version       text     NOT NULL,
    due_at        bigint   NOT NULL,
    expires_at    bigint   NOT NULL,
    data          text     NOT NULL,
    PRIMARY KEY (collection, grp, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000); -- limits are written all the time
CREATE INDEX documents_due ON {schema}.documents (collection, due_at) WHERE due_at < 4611686018427387904;
CREATE INDEX documents_expiry ON {schema}.documents (expires_at) WHERE expires_at < 4611686018427387904;
COMMENT ON TABLE {schema}.documents IS 'Data besides jobs (schedules, people, …) as JSON.';
COMMENT ON COLUMN {schema}.documents.grp IS 'the group within the collection; may be empty';
COMMENT ON COLUMN {schema}.documents.version IS 'changes with each write; a writer names the version that it has read';
COMMENT ON COLUMN {schema}.documents.due_at IS 'when the document is due (ms since 1970 UTC); 2^62 means never';

CREATE TABLE {schema}.changes (
    number        bigint   NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    txid          xid8     NOT NULL DEFAULT pg_current_xact_id(),
    at            bigint   NOT NULL,
    kind          text     NOT NULL,
    queue         text,
    task          text,
    ids           uuid[],
    details       text,
    data          text,
    times         bigint[]
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000);
ALTER TABLE {schema}.changes ALTER ids SET STORAGE EXTERNAL; -- random numbers cannot be compressed
ALTER TABLE {schema}.changes SET (toast_tuple_target = 8160); -- the ids of an ack fit into the row: several rows of a second table cost more
CREATE INDEX changes_txid ON {schema}.changes (txid);
COMMENT ON TABLE {schema}.changes IS
    'The change feed. An entry lists jobs of one task and queue to which the same thing happened in one transaction.';
COMMENT ON COLUMN {schema}.changes.txid IS 'the transaction; readers compare it with snapshots, because numbers are not in the order of commits';
COMMENT ON COLUMN {schema}.changes.ids IS 'the jobs; NULL: the change is not about a job, or, if it is ''started'', it is not for readers and only counts';
COMMENT ON COLUMN {schema}.changes.details IS 'JSON: for each id an array of target_type, target_id and data, or null; NULL: there is no more to say';
COMMENT ON COLUMN {schema}.changes.data IS 'JSON: what is the same for all ids';
COMMENT ON COLUMN {schema}.changes.times IS
    'the sum of the jobs'' waits or durations in ms, and the number of jobs in each bucket, see numbers; trailing zeros are left out';

CREATE FUNCTION {schema}.database_id() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT right((SELECT system_identifier::text FROM pg_control_system()), 6)
           || (SELECT oid FROM pg_database WHERE datname = current_database())
$$;
COMMENT ON FUNCTION {schema}.database_id IS 'Identifies this database. A restored dump is another one: the numbers of its transactions are others.';

CREATE TABLE {schema}.feed (
    life          text     NOT NULL PRIMARY KEY,
    pruned_txid   bigint   NOT NULL DEFAULT 0,
    pruned_number bigint   NOT NULL DEFAULT 0,
    folded        text     NOT NULL DEFAULT pg_current_snapshot()::text,
    folded_in     text     NOT NULL DEFAULT {schema}.database_id(),
    numbers_pruned_at bigint NOT NULL DEFAULT 0,
    starts_until  bigint   NOT NULL DEFAULT 0
);
INSERT INTO {schema}.feed (life) VALUES (substr(md5(random()::text || clock_timestamp()), 1, 8));
COMMENT ON TABLE {schema}.feed IS 'Identifies the change feed: a cursor of another one is not valid here. pruned_txid and pruned_number are the highest ones among the entries that were deleted.';
COMMENT ON COLUMN {schema}.feed.folded IS 'the snapshot up to which the entries of the feed are included in numbers';
COMMENT ON COLUMN {schema}.feed.folded_in IS 'the database to which that snapshot belongs';
COMMENT ON COLUMN {schema}.feed.starts_until IS 'until then (ms since 1970 UTC), claims name the started jobs in changes, because a reader asks for it';

CREATE TABLE {schema}.numbers (
    period        smallint NOT NULL,
    task          text COLLATE "C" NOT NULL,
    queue         text COLLATE "C" NOT NULL,
    start         bigint   NOT NULL,
    measure       smallint NOT NULL,
    bucket        smallint NOT NULL,
    n             bigint   NOT NULL,
    PRIMARY KEY (period, task, queue, start, measure, bucket)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE {schema}.numbers IS
    'Numbers over time, made from the change feed: what happened to jobs per minute, hour and day. Newer entries of the feed are not included yet.';
COMMENT ON COLUMN {schema}.numbers.period IS '0 minute, 1 hour, 2 day';
COMMENT ON COLUMN {schema}.numbers.task IS 'empty: all tasks of the queue';
COMMENT ON COLUMN {schema}.numbers.queue IS 'empty: all queues';
COMMENT ON COLUMN {schema}.numbers.measure IS
    '0 enqueued, 1 started, 2 completed, 3 retried, 4 dead, 5 cancelled, 6 stalled, 7 sum of waits, 8 sum of durations (ms)';
COMMENT ON COLUMN {schema}.numbers.bucket IS 'of the wait (measure 1) or of the duration (measures 2 to 4)';

CREATE TABLE {schema}.readers (
    id            text     NOT NULL PRIMARY KEY,
    idle          boolean  NOT NULL DEFAULT false,
    seen_at       timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
COMMENT ON TABLE {schema}.readers IS 'Processes that read the change feed. Those that are idle are notified of new entries.';

-- Inserts one job, unless it is in the tables already or is refused. `new` is the number of inserted jobs. If `alone`, it
-- commits, and then notifies if a worker is idle. The order matters: a worker that becomes idle meanwhile sees the job.
-- For speed, it states again what engine.creation.created decides.
CREATE PROCEDURE {schema}.enqueue(
    id_ uuid, task_ text, queue_ text, priority_ smallint, run_at_ bigint, delay_ bigint, max_attempts_ integer,
    timeout_ bigint, keep_ bigint, keep_dead_ bigint, payload_ text, dedupe_key_ text, target_type_ text, target_id_ text,
    tags_ text, options_ text, waits_for_ text, at bigint, alone boolean, channel text, message text, INOUT new integer,
    INOUT heard boolean
) LANGUAGE plpgsql AS $$
DECLARE
    status_ smallint := CASE WHEN waits_for_ IS NULL THEN 0 ELSE 2 END;
BEGIN
    IF alone AND NOT {schema}.takes_new(ARRAY['', queue_], at) OR EXISTS (SELECT 1 FROM {schema}.archive WHERE id = id_) THEN
        RETURN;
    END IF;
    INSERT INTO {schema}.jobs (id, task, queue, priority, run_at, created_at, max_attempts, timeout, keep, keep_dead, payload,
                               dedupe_key, target_type, target_id, tags, options, status, waits_for)
    VALUES (id_, task_, queue_, priority_, coalesce(run_at_, at + delay_), at, max_attempts_, timeout_, keep_, keep_dead_,
            payload_, dedupe_key_, target_type_, target_id_, tags_::text[], options_, status_, waits_for_)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO {schema}.counts (queue, status, n) VALUES (queue_, status_, 1);
    INSERT INTO {schema}.changes (at, kind, queue, task, ids, details)
    VALUES (at, 'created', queue_, task_, ARRAY[id_],
            CASE WHEN target_type_ IS NOT NULL THEN json_build_array(json_build_array(target_type_, target_id_)) END);
    new := 1;
    heard := NOT alone AND EXISTS (SELECT 1 FROM {schema}.readers);
    IF alone THEN
        COMMIT;
        IF EXISTS (SELECT 1 FROM {schema}.workers WHERE idle AND queues && ARRAY['*', queue_]) THEN
            BEGIN
                PERFORM set_config('synchronous_commit', 'off', true), pg_notify(channel, message);
            EXCEPTION WHEN OTHERS THEN
                NULL; -- the job is inserted; a worker that is not notified finds it by polling
            END;
        END IF;
        IF EXISTS (SELECT 1 FROM {schema}.readers WHERE idle) THEN
            BEGIN
                PERFORM set_config('synchronous_commit', 'off', true), pg_notify(channel || '_changes', '');
            EXCEPTION WHEN OTHERS THEN
                NULL; -- a reader that is not notified looks again after a while
            END;
        END IF;
    END IF;
END $$;
COMMENT ON PROCEDURE {schema}.enqueue IS 'Inserts one job. If it is called alone, it commits and notifies workers at once.';

-- Views for people and reports: see docs/sql.md. tests/stores/test_views.py checks that no column is forgotten.
CREATE VIEW {schema}.all_jobs AS
SELECT id, task, queue, (ARRAY['pending', 'retrying', 'suspended', 'running'])[status + 1] AS status,
       (ARRAY['urgent', 'high', 'normal', 'low'])[priority + 1] AS priority,
       to_timestamp(created_at / 1000.0) AS created_at,
       to_timestamp(CASE WHEN run_at < 253402214400000 THEN run_at END / 1000.0) AS run_at,
       to_timestamp(nullif(claimed_at, 0) / 1000.0) AS started_at,
       to_timestamp(CASE WHEN status = 3 AND timeout > 0 THEN claimed_at + timeout END / 1000.0) AS timeout_at,
       NULL::timestamptz AS finished_at, to_timestamp(greatest(created_at, claimed_at, changed_at) / 1000.0) AS updated_at,
       NULL::timestamptz AS expires_at, attempts, max_attempts, crashes, token,
       worker, nullif(timeout, 0) * interval '1 millisecond' AS timeout, cancel, aside, waits_for, dedupe_key,
       target_type, target_id, coalesce(tags, '{}'::text[]) AS tags, options::json AS options, reason, progress,
       note, error_type, error, error_code, fingerprint, version, payload::json AS payload, NULL::json AS result,
       CASE WHEN keep < 4611686018427387904 THEN keep * interval '1 millisecond' END AS keep,
       CASE WHEN keep_dead < 4611686018427387904 THEN keep_dead * interval '1 millisecond' END AS keep_dead
FROM {schema}.jobs
UNION ALL
SELECT id, task, queue, (ARRAY['completed', 'dead_letter', 'cancelled'])[status - 3],
       (ARRAY['urgent', 'high', 'normal', 'low'])[priority + 1], to_timestamp(created_at / 1000.0),
       to_timestamp(CASE WHEN run_at < 253402214400000 THEN run_at END / 1000.0),
       to_timestamp(nullif(started_at, 0) / 1000.0), NULL::timestamptz, to_timestamp(finished_at / 1000.0),
       to_timestamp(finished_at / 1000.0), to_timestamp(CASE WHEN expires_at < 4611686018427387904 THEN expires_at END / 1000.0), attempts,
       max_attempts, crashes, token, worker, nullif(timeout, 0) * interval '1 millisecond', false, false,
       NULL::text, dedupe_key, target_type, target_id, coalesce(tags, '{}'::text[]), options::json, reason,
       progress, note, error_type, error, error_code, fingerprint, version, payload::json, result::json,
       CASE WHEN keep < 4611686018427387904 THEN keep * interval '1 millisecond' END,
       CASE WHEN keep_dead < 4611686018427387904 THEN keep_dead * interval '1 millisecond' END
FROM {schema}.archive;
COMMENT ON VIEW {schema}.all_jobs IS 'All jobs, live and finished, with readable names and times.';

-- A view of its own: all_jobs computes its status, so a condition on it would read the whole archive.
CREATE VIEW {schema}.dead_letters AS
SELECT id, task, queue, 'dead_letter'::text AS status, (ARRAY['urgent', 'high', 'normal', 'low'])[priority + 1] AS priority,
       to_timestamp(created_at / 1000.0) AS created_at,
       to_timestamp(CASE WHEN run_at < 253402214400000 THEN run_at END / 1000.0) AS run_at,
       to_timestamp(nullif(started_at, 0) / 1000.0) AS started_at, NULL::timestamptz AS timeout_at,
       to_timestamp(finished_at / 1000.0) AS finished_at, to_timestamp(finished_at / 1000.0) AS updated_at,
       to_timestamp(CASE WHEN expires_at < 4611686018427387904 THEN expires_at END / 1000.0) AS expires_at, attempts, max_attempts,
       crashes, token, worker, nullif(timeout, 0) * interval '1 millisecond' AS timeout, false AS cancel, false AS aside,
       NULL::text AS waits_for, dedupe_key, target_type, target_id, coalesce(tags, '{}'::text[]) AS tags,
       options::json AS options, reason, progress, note, error_type, error, error_code, fingerprint, version,
       payload::json AS payload, result::json AS result,
       CASE WHEN keep < 4611686018427387904 THEN keep * interval '1 millisecond' END AS keep,
       CASE WHEN keep_dead < 4611686018427387904 THEN keep_dead * interval '1 millisecond' END AS keep_dead
FROM {schema}.archive WHERE status = 5;
COMMENT ON VIEW {schema}.dead_letters IS 'The dead letters, with the columns of all_jobs. They are found by an index.';

CREATE VIEW {schema}.all_attempts AS
SELECT job_id, number, worker, to_timestamp(started_at / 1000.0) AS started_at,
       to_timestamp(finished_at / 1000.0) AS finished_at, (finished_at - started_at) * interval '1 millisecond' AS duration,
       move, error_type, error, error_code, traceback, fingerprint, version
FROM {schema}.attempts
UNION ALL
SELECT id, 1 + (SELECT coalesce(max(number), 0) FROM {schema}.attempts WHERE job_id = archive.id), worker,
       to_timestamp(started_at / 1000.0), to_timestamp(finished_at / 1000.0),
       (finished_at - started_at) * interval '1 millisecond', 'done', NULL, NULL, NULL, NULL, NULL, version
FROM {schema}.archive WHERE status = 4;
COMMENT ON VIEW {schema}.all_attempts IS 'Each run of a job, also the successful one.';

CREATE VIEW {schema}.all_steps AS
SELECT job_id, number, name, kind, output::json AS output, to_timestamp(started_at / 1000.0) AS started_at,
       to_timestamp(finished_at / 1000.0) AS finished_at, (finished_at - started_at) * interval '1 millisecond' AS duration
FROM {schema}.steps;
COMMENT ON VIEW {schema}.all_steps IS 'Recorded steps of durable functions, with readable times.';

CREATE VIEW {schema}.audit_log AS
SELECT to_timestamp(at / 1000.0) AS at, actor, action, reason, detail, n AS jobs, operation FROM {schema}.audit;
COMMENT ON VIEW {schema}.audit_log IS 'Changes by hand, with readable times. `jobs` is the number of jobs that were changed.';

CREATE VIEW {schema}.schedules AS
SELECT id AS name, to_timestamp(CASE WHEN due_at < 4611686018427387904 THEN due_at END / 1000.0) AS due_at,
       data::json AS data, version
FROM {schema}.documents WHERE collection = 'schedules';
COMMENT ON VIEW {schema}.schedules IS 'The schedules as JSON, and when each fires next.';

-- Shows when the first suspects and set-aside jobs of a queue are due, by task. STABLE: it sees what its caller sees.
CREATE FUNCTION {schema}.look_apart(queue_ text) RETURNS json LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
BEGIN
    RETURN (
        WITH RECURSIVE suspect AS (
            (SELECT task FROM {schema}.jobs WHERE queue = queue_ AND status < 3 AND crashes > 0 ORDER BY task LIMIT 1)
            UNION ALL
            SELECT (SELECT j.task FROM {schema}.jobs AS j
                    WHERE j.queue = queue_ AND j.status < 3 AND j.crashes > 0 AND j.task > suspect.task
                    ORDER BY j.task LIMIT 1)
            FROM suspect WHERE suspect.task IS NOT NULL
        ), strange AS (
            (SELECT task FROM {schema}.jobs WHERE queue = queue_ AND status < 3 AND crashes = 0 AND aside ORDER BY task LIMIT 1)
            UNION ALL
            SELECT (SELECT j.task FROM {schema}.jobs AS j
                    WHERE j.queue = queue_ AND j.status < 3 AND j.crashes = 0 AND j.aside AND j.task > strange.task
                    ORDER BY j.task LIMIT 1)
            FROM strange WHERE strange.task IS NOT NULL
        ), lines AS (
            SELECT strange.task, level.priority,
                   (SELECT j.run_at FROM {schema}.jobs AS j
                    WHERE j.queue = queue_ AND j.task = strange.task AND j.priority = level.priority
                      AND j.status < 3 AND j.crashes = 0 AND j.aside
                    ORDER BY j.run_at LIMIT 1) AS head
            FROM strange, (VALUES (0::smallint), (1::smallint), (2::smallint), (3::smallint)) AS level(priority)
            WHERE strange.task IS NOT NULL
        )
        SELECT json_build_object(
            'suspects', (SELECT coalesce(json_object_agg(suspect.task, (
                SELECT j.run_at FROM {schema}.jobs AS j
                WHERE j.queue = queue_ AND j.task = suspect.task AND j.status < 3 AND j.crashes > 0
                ORDER BY j.run_at LIMIT 1)), '{}') FROM suspect WHERE suspect.task IS NOT NULL),
            'aside', (SELECT coalesce(json_agg(json_build_array(task, priority, head)), '[]') FROM lines
                      WHERE head IS NOT NULL)));
END $$;
COMMENT ON FUNCTION {schema}.look_apart IS 'Returns when the first suspects and the first jobs that were set aside are due, by task.';

-- Shows where the first waiting jobs of the queues are (NULL: of all queues), per priority. Also shows suspects and
-- set-aside jobs by task, if there are any. `since` has four bounds per queue: the caller knows of no job before them.
-- One statement reads both kinds. Between two statements, a job that is being set aside could be missed in both places.
CREATE FUNCTION {schema}.look(queues text[], since bigint[]) RETURNS TABLE (
    queue_ text, apart json, urgent bigint, high bigint, normal bigint, low bigint
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
SET jit = off -- before PostgreSQL 18 disabled plans count as very expensive, and expensive plans are JIT-compiled
AS $$
BEGIN
    FOR i IN 1 .. coalesce(cardinality(queues), 2147483647) LOOP
        IF queues IS NULL THEN
            queue_ := least(
                (SELECT queue FROM {schema}.jobs WHERE status < 3 AND crashes = 0 AND NOT aside AND queue > coalesce(queue_, '')
                 ORDER BY queue LIMIT 1),
                (SELECT queue FROM {schema}.jobs WHERE status < 3 AND crashes > 0 AND queue > coalesce(queue_, '')
                 ORDER BY queue LIMIT 1),
                (SELECT queue FROM {schema}.jobs WHERE status < 3 AND crashes = 0 AND aside AND queue > coalesce(queue_, '')
                 ORDER BY queue LIMIT 1));
            EXIT WHEN queue_ IS NULL;
        ELSE
            queue_ := queues[i];
        END IF;
        SELECT
               (SELECT run_at FROM {schema}.jobs
                WHERE queue = queue_ AND priority = 0 AND run_at >= coalesce(since[4 * i - 3], -4611686018427387904)
                  AND status < 3 AND crashes = 0 AND NOT aside
                ORDER BY run_at LIMIT 1),
               (SELECT run_at FROM {schema}.jobs
                WHERE queue = queue_ AND priority = 1 AND run_at >= coalesce(since[4 * i - 2], -4611686018427387904)
                  AND status < 3 AND crashes = 0 AND NOT aside
                ORDER BY run_at LIMIT 1),
               (SELECT run_at FROM {schema}.jobs
                WHERE queue = queue_ AND priority = 2 AND run_at >= coalesce(since[4 * i - 1], -4611686018427387904)
                  AND status < 3 AND crashes = 0 AND NOT aside
                ORDER BY run_at LIMIT 1),
               (SELECT run_at FROM {schema}.jobs
                WHERE queue = queue_ AND priority = 3 AND run_at >= coalesce(since[4 * i], -4611686018427387904)
                  AND status < 3 AND crashes = 0 AND NOT aside
                ORDER BY run_at LIMIT 1),
               CASE WHEN (SELECT task FROM {schema}.jobs WHERE queue = queue_ AND status < 3 AND crashes > 0
                          ORDER BY task LIMIT 1) IS NOT NULL
                      OR (SELECT task FROM {schema}.jobs WHERE queue = queue_ AND status < 3 AND crashes = 0 AND aside
                          ORDER BY task LIMIT 1) IS NOT NULL
                    THEN {schema}.look_apart(queue_) END
        INTO urgent, high, normal, low, apart;
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION {schema}.look IS 'Returns when the first waiting jobs of queues are or were due.';

-- Claims due jobs of the given levels, in that order: at most `room` in all, and at most `rooms` for each want.
--
-- Without priorities it looks where jobs wait, and takes some if only one level has due jobs, so that there is nothing
-- to decide. Then `queues` and `since` are those of `look`, and the first row, which is not a job, shows what it saw and
-- what is halted.
--
-- The settings make it seek each level in jobs_waiting and never sort, whatever ANALYZE saw last. `since` is where the
-- caller saw the level's first job. So the claim does not pass over older dead rows that a long transaction keeps from
-- being vacuumed.
--
-- It takes no job of a task that is not given (NULL: any). A row without an id names each such task. For speed, it states
-- again what engine.claim.claimed decides.
--
-- While no reader of the change feed asks for starts, it records them without the jobs: only for the numbers over time.
--
-- All claims share the lock. A halt takes it exclusively, so nothing starts after it. Jobs are locked FOR NO KEY UPDATE:
-- a transaction that is about to wait for the job's end (wakeups.py) does not conflict, and the job is not skipped.
CREATE FUNCTION {schema}.take(
    worker_ text, version_ text, claim_ bigint, queues text[], priorities smallint[], since bigint[], most integer[], wants integer[],
    rooms integer[], room integer, tasks jsonb, at bigint, stall_grace bigint
) RETURNS TABLE (
    id_ text, token_ bigint, task_ text, queue_ text, payload_ text, priority_ smallint, attempts_ integer,
    max_attempts_ integer, crashes_ integer, timeout_ bigint, run_at_ bigint, created_at_ bigint, dedupe_key_ text,
    target_type_ text, target_id_ text, tags_ text[], options_ text, fingerprint_ text
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
SET jit = off -- before PostgreSQL 18 disabled plans count as very expensive, and expensive plans are JIT-compiled
AS $$
DECLARE
    heads json;
    halts json;
    due integer;
    mixed boolean;
    taken integer;
    starts boolean := EXISTS (SELECT 1 FROM {schema}.feed WHERE starts_until > at);
BEGIN
    IF priorities IS NULL THEN
        WITH seen AS MATERIALIZED (SELECT * FROM {schema}.look(queues, since)),
        levels AS (
            SELECT seen.queue_ AS queue, level.priority, level.head
            FROM seen, LATERAL (VALUES (0, urgent), (1, high), (2, normal), (3, low)) AS level(priority, head)
            WHERE level.head <= at
        )
        SELECT (SELECT json_agg(json_build_array(seen.queue_, apart, urgent, high, normal, low)) FROM seen),
               (SELECT count(*) FROM levels), ARRAY(SELECT queue FROM levels), ARRAY(SELECT priority FROM levels),
               ARRAY(SELECT head FROM levels),
               EXISTS (SELECT 1 FROM seen, json_array_elements(seen.apart -> 'aside') AS line
                       WHERE tasks IS NULL OR tasks ? (line ->> 0))
        INTO heads, due, queues, priorities, since, mixed;
        SELECT json_agg(json_build_array(queue, actor, reason, h.since, until, accept)) INTO halts
        FROM {schema}.halts AS h WHERE until IS NULL OR until > at;
        payload_ := json_build_object('at', at, 'heads', heads, 'halts', halts, 'tried', due = 1 AND room > 0 AND NOT mixed,
                                      'starts', starts);
        RETURN NEXT;
        IF due <> 1 OR room <= 0 OR mixed THEN
            RETURN;
        END IF;
        most := ARRAY[room]; wants := ARRAY[1]; rooms := ARRAY[room];
    END IF;
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('{schema} halts', 0));
    FOR i IN 1 .. cardinality(queues) LOOP
        CONTINUE WHEN least(room, rooms[wants[i]]) <= 0 OR {schema}.stands_still(queues[i], at);
        RETURN QUERY
            WITH picked AS MATERIALIZED (
                SELECT ctid AS place, status, task, tasks IS NULL OR tasks ? task AS known FROM {schema}.jobs
                WHERE queue = queues[i] AND priority = priorities[i] AND run_at BETWEEN since[i] AND at
                  AND status < 3 AND crashes = 0 AND NOT aside
                ORDER BY run_at, id LIMIT least(most[i], rooms[wants[i]], room) FOR NO KEY UPDATE SKIP LOCKED
            ), taken AS (
                UPDATE {schema}.jobs AS j
                SET status = 3, token = j.token + 1, worker = worker_, version = version_, claim = claim_, claimed_at = at,
                    progress = NULL, note = NULL, waits_for = NULL,
                    deadline = CASE WHEN j.timeout > 0 THEN at + j.timeout + stall_grace ELSE 4611686018427387904 END
                FROM picked WHERE j.ctid = picked.place AND picked.known
                RETURNING j.id, j.token, j.task, j.payload, j.attempts, j.max_attempts, j.crashes, j.timeout, j.run_at,
                          j.created_at, j.dedupe_key, j.target_type, j.target_id, j.tags, j.options, j.fingerprint,
                          picked.status AS was
            ), summed AS (
                SELECT was, task, array_agg(id) FILTER (WHERE starts) AS members, CASE WHEN starts AND bool_or(target_type IS NOT NULL)
                       THEN json_agg(json_build_array(target_type, target_id)) FILTER (WHERE starts) END AS details,
                       count(*) AS n, sum(greatest(at - run_at, 0))::bigint AS total, width_bucket(at - run_at, '{10,50,200,1000,5000,15000,60000,300000,900000,3600000,21600000}'::bigint[]) AS bucket
                FROM taken GROUP BY was, task, bucket
            ), counted AS (
                INSERT INTO {schema}.counts (queue, status, n)
                SELECT queues[i], change.status, change.n
                FROM (SELECT was, sum(n)::bigint AS n FROM summed GROUP BY was) AS left_,
                     LATERAL (VALUES (left_.was, -left_.n), (3, left_.n)) AS change(status, n)
            ), recorded AS (
                INSERT INTO {schema}.changes (at, kind, queue, task, ids, details, data, times)
                SELECT at, 'started', queues[i], task, members, details,
                       CASE WHEN starts THEN json_build_object('worker', worker_) END, ARRAY[total] || array_fill(0::bigint, ARRAY[bucket]) || n
                FROM summed
            )
            (SELECT id::text, token, task, queues[i], payload, priorities[i], attempts, max_attempts, crashes, timeout,
                    run_at, created_at, dedupe_key, target_type, target_id, tags, options, fingerprint
             FROM taken ORDER BY run_at, id)
            UNION ALL
            SELECT NULL, NULL, task, queues[i], NULL, priorities[i], NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                   NULL, NULL
            FROM picked WHERE NOT known GROUP BY task;
        GET DIAGNOSTICS taken = ROW_COUNT;
        room := room - taken;
        rooms[wants[i]] := rooms[wants[i]] - taken;
    END LOOP;
END $$;

-- Claims jobs of one queue that the caller has chosen and locked.
CREATE FUNCTION {schema}.take_locked(
    worker_ text, version_ text, claim_ bigint, ids uuid[], at bigint, stall_grace bigint
) RETURNS TABLE (
    id_ text, token_ bigint, task_ text, queue_ text, payload_ text, priority_ smallint, attempts_ integer,
    max_attempts_ integer, crashes_ integer, timeout_ bigint, run_at_ bigint, created_at_ bigint, dedupe_key_ text,
    target_type_ text, target_id_ text, tags_ text[], options_ text, fingerprint_ text
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
DECLARE
    starts boolean := EXISTS (SELECT 1 FROM {schema}.feed WHERE starts_until > at);
BEGIN
    RETURN QUERY
        WITH picked AS MATERIALIZED (
            SELECT ctid AS place, status FROM {schema}.jobs WHERE id = ANY(ids)
        ), taken AS (
            UPDATE {schema}.jobs AS j
            SET status = 3, token = j.token + 1, worker = worker_, version = version_, claim = claim_, claimed_at = at,
                progress = NULL, note = NULL, waits_for = NULL, aside = false,
                deadline = CASE WHEN j.timeout > 0 THEN at + j.timeout + stall_grace ELSE 4611686018427387904 END
            FROM picked WHERE j.ctid = picked.place
            RETURNING j.*, picked.status AS was
        ), summed AS (
            SELECT was, queue, task, array_agg(id) FILTER (WHERE starts) AS members, CASE WHEN starts AND bool_or(target_type IS NOT NULL)
                   THEN json_agg(json_build_array(target_type, target_id)) FILTER (WHERE starts) END AS details,
                   count(*) AS n, sum(greatest(at - run_at, 0))::bigint AS total, width_bucket(at - run_at, '{10,50,200,1000,5000,15000,60000,300000,900000,3600000,21600000}'::bigint[]) AS bucket
            FROM taken GROUP BY was, queue, task, bucket
        ), counted AS (
            INSERT INTO {schema}.counts (queue, status, n)
            SELECT left_.queue, change.status, change.n
            FROM (SELECT queue, was, sum(n)::bigint AS n FROM summed GROUP BY queue, was) AS left_,
                 LATERAL (VALUES (left_.was, -left_.n), (3, left_.n)) AS change(status, n)
        ), recorded AS (
            INSERT INTO {schema}.changes (at, kind, queue, task, ids, details, data, times)
            SELECT at, 'started', queue, task, members, details,
                   CASE WHEN starts THEN json_build_object('worker', worker_) END, ARRAY[total] || array_fill(0::bigint, ARRAY[bucket]) || n
            FROM summed
        )
        SELECT id::text, token, task, queue, payload, priority, attempts, max_attempts, crashes, timeout, run_at,
               created_at, dedupe_key, target_type, target_id, tags, options, fingerprint
        FROM taken ORDER BY run_at, id;
END $$;

CREATE FUNCTION {schema}.take_suspect(
    worker_ text, version_ text, claim_ bigint, queues text[], tasks text[], at bigint, stall_grace bigint
) RETURNS TABLE (
    id_ text, token_ bigint, task_ text, queue_ text, payload_ text, priority_ smallint, attempts_ integer,
    max_attempts_ integer, crashes_ integer, timeout_ bigint, run_at_ bigint, created_at_ bigint, dedupe_key_ text,
    target_type_ text, target_id_ text, tags_ text[], options_ text, fingerprint_ text
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('{schema} halts', 0));
    FOR i IN 1 .. cardinality(queues) LOOP
        CONTINUE WHEN {schema}.stands_still(queues[i], at);
        RETURN QUERY SELECT * FROM {schema}.take_locked(worker_, version_, claim_, ARRAY(
            SELECT id FROM {schema}.jobs
            WHERE queue = queues[i] AND task = tasks[i] AND run_at <= at AND status < 3 AND crashes > 0
            ORDER BY run_at, id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED), at, stall_grace);
        EXIT WHEN FOUND;
    END LOOP;
END $$;

-- The same as take, for levels of which some jobs were set aside: `lines` has the tasks of those jobs for each level. Both
-- kinds are taken in one order. It skips a level that begins with jobs of tasks not given: those are set aside first.
CREATE FUNCTION {schema}.take_mixed(
    worker_ text, version_ text, claim_ bigint, queues text[], priorities smallint[], lines jsonb, most integer[], wants integer[],
    rooms integer[], room integer, tasks jsonb, at bigint, stall_grace bigint
) RETURNS TABLE (
    id_ text, token_ bigint, task_ text, queue_ text, payload_ text, priority_ smallint, attempts_ integer,
    max_attempts_ integer, crashes_ integer, timeout_ bigint, run_at_ bigint, created_at_ bigint, dedupe_key_ text,
    target_type_ text, target_id_ text, tags_ text[], options_ text, fingerprint_ text
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
DECLARE
    ids uuid[];
    strange text[];
    limit_ integer;
    taken integer;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('{schema} halts', 0));
    FOR i IN 1 .. cardinality(queues) LOOP
        limit_ := least(most[i], rooms[wants[i]], room);
        CONTINUE WHEN limit_ <= 0 OR {schema}.stands_still(queues[i], at);
        WITH shared AS MATERIALIZED (
            SELECT j.id, j.run_at, j.task FROM {schema}.jobs AS j
            WHERE j.queue = queues[i] AND j.priority = priorities[i] AND j.run_at <= at
              AND j.status < 3 AND j.crashes = 0 AND NOT j.aside
            ORDER BY j.run_at, j.id LIMIT limit_ FOR NO KEY UPDATE SKIP LOCKED
        ), own AS MATERIALIZED (
            SELECT job.id, job.run_at
            FROM jsonb_array_elements_text(lines -> (i - 1)) AS line(task),
                 LATERAL (SELECT j.id, j.run_at FROM {schema}.jobs AS j
                          WHERE j.queue = queues[i] AND j.task = line.task AND j.priority = priorities[i] AND j.run_at <= at
                            AND j.status < 3 AND j.crashes = 0 AND j.aside
                          ORDER BY j.run_at, j.id LIMIT limit_ FOR NO KEY UPDATE SKIP LOCKED) AS job
        ), first AS (
            SELECT id, run_at FROM shared UNION ALL SELECT id, run_at FROM own ORDER BY run_at, id LIMIT limit_
        )
        SELECT ARRAY(SELECT id FROM first),
               ARRAY(SELECT DISTINCT task FROM shared WHERE NOT (tasks IS NULL OR tasks ? task))
        INTO ids, strange;
        IF strange <> '{}' THEN
            RETURN QUERY SELECT NULL::text, NULL::bigint, name, queues[i], NULL::text, priorities[i], NULL::integer,
                                NULL::integer, NULL::integer, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text, NULL::text,
                                NULL::text, NULL::text[], NULL::text, NULL::text
                         FROM unnest(strange) AS name;
            CONTINUE;
        END IF;
        RETURN QUERY SELECT * FROM {schema}.take_locked(worker_, version_, claim_, ids, at, stall_grace);
        GET DIAGNOSTICS taken = ROW_COUNT;
        room := room - taken;
        rooms[wants[i]] := rooms[wants[i]] - taken;
    END LOOP;
END $$;

-- Sets aside the jobs of tasks not given, among the first due jobs of each level, until it has moved `most` of them. Each
-- job is moved once, and later claims never read it. Only these jobs are locked, so other workers can claim the rest.
CREATE FUNCTION {schema}.put_aside(
    queues text[], priorities smallint[], tasks jsonb, look integer, most integer, at bigint
) RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
DECLARE
    places tid[];
    moved integer;
    total integer := 0;
BEGIN
    FOR i IN 1 .. cardinality(queues) LOOP
        LOOP
            places := ARRAY(
                SELECT first.place FROM (
                    SELECT ctid AS place, task FROM {schema}.jobs
                    WHERE queue = queues[i] AND priority = priorities[i] AND run_at <= at
                      AND status < 3 AND crashes = 0 AND NOT aside
                    ORDER BY run_at, id LIMIT look) AS first
                WHERE NOT tasks ? first.task);
            UPDATE {schema}.jobs SET aside = true WHERE ctid = ANY(ARRAY(
                SELECT ctid FROM {schema}.jobs
                WHERE ctid = ANY(places) AND status < 3 AND crashes = 0 AND NOT aside FOR NO KEY UPDATE SKIP LOCKED));
            GET DIAGNOSTICS moved = ROW_COUNT;
            total := total + moved;
            IF total >= most THEN
                RETURN total;
            END IF;
            EXIT WHEN moved = 0;
        END LOOP;
    END LOOP;
    RETURN total;
END $$;

COMMENT ON FUNCTION {schema}.take IS 'Claims due jobs for a worker, level by level. Without levels, it shows where jobs wait, and claims them if only one level has due jobs.';
COMMENT ON FUNCTION {schema}.take_locked IS 'Claims jobs that the caller has locked.';
COMMENT ON FUNCTION {schema}.take_mixed IS 'Claims due jobs and jobs that were set aside, in one order.';
COMMENT ON FUNCTION {schema}.put_aside IS 'Sets aside due jobs of tasks that a worker does not know, for workers that do.';
COMMENT ON FUNCTION {schema}.take_suspect IS 'Claims one suspect, a job whose worker has died before. It runs alone.';

-- Makes due up to the given number of jobs (NULL: all) that wait for each key: by priority, then the oldest.
-- It takes unlocked jobs first, so that concurrent calls do not wait for each other. If these are too few, it waits for
-- the locked ones: the transaction that holds them may leave them as they are, and there might be no other call.
-- It states again what engine.change.woken decides.
CREATE FUNCTION {schema}.wake(keys text[], numbers integer[], at bigint)
RETURNS TABLE (key_ text, queue_ text, woken_ bigint) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
DECLARE
    wanted bigint;
BEGIN
    FOR i IN 1 .. cardinality(keys) LOOP
        wanted := coalesce(numbers[i], 4611686018427387904);
        WHILE wanted > 0 LOOP
            FOR queue_, woken_ IN
                WITH picked AS MATERIALIZED (
                    SELECT ctid AS place FROM {schema}.jobs WHERE waits_for = keys[i]
                    ORDER BY waits_for, priority, id LIMIT wanted FOR NO KEY UPDATE SKIP LOCKED
                ), woken AS (
                    UPDATE {schema}.jobs AS j SET status = 0, run_at = at, waits_for = NULL, changed_at = at
                    FROM picked WHERE j.ctid = picked.place
                    RETURNING j.queue, j.task, j.id, j.target_type, j.target_id
                ), recorded AS (
                    INSERT INTO {schema}.changes (at, kind, queue, task, ids, details)
                    SELECT at, 'resumed', queue, task, array_agg(id), CASE WHEN bool_or(target_type IS NOT NULL)
                    THEN json_agg(json_build_array(target_type, target_id)) END FROM woken GROUP BY queue, task
                ), by_queue AS (
                    SELECT queue, count(*) AS n FROM woken GROUP BY queue
                ), counted AS (
                    INSERT INTO {schema}.counts (queue, status, n)
                    SELECT queue, change.status, change.n
                    FROM by_queue, LATERAL (VALUES (2, -by_queue.n), (0, by_queue.n)) AS change(status, n)
                )
                SELECT queue, n FROM by_queue
            LOOP
                key_ := keys[i];
                wanted := wanted - woken_;
                RETURN NEXT;
            END LOOP;
            EXIT WHEN wanted <= 0;
            PERFORM 1 FROM {schema}.jobs WHERE waits_for = keys[i]
            ORDER BY waits_for, priority, id LIMIT wanted FOR NO KEY UPDATE;
            EXIT WHEN NOT FOUND;
        END LOOP;
    END LOOP;
END $$;
COMMENT ON FUNCTION {schema}.wake IS 'Wakes up to the given number of jobs that wait for each key.';

-- Makes due the jobs that wait for the end of these jobs, and returns their queues. It runs in the transaction that ended
-- them, after that; see wakeups.py. If no job waits, it is one lookup in an index. That query asks for all keys at once
-- and in the index's order: a planner that believes the table is empty would otherwise read another index to its end.
CREATE FUNCTION {schema}.wake_for_ends(ids uuid[], at bigint) RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    keys text[];
BEGIN
    keys := ARRAY(
        SELECT DISTINCT waits_for FROM {schema}.jobs
        WHERE waits_for = ANY(ARRAY(SELECT 'job:' || id FROM unnest(ids) AS id))
        ORDER BY waits_for);
    IF cardinality(keys) = 0 THEN
        RETURN keys;
    END IF;
    RETURN ARRAY(SELECT queue_ FROM {schema}.wake(keys, NULL, at));
END $$;
COMMENT ON FUNCTION {schema}.wake_for_ends IS 'Wakes the jobs that wait for the end of these jobs.';

-- Moves the jobs of runs that simply succeeded to the archive. This is the fence: only a job that runs under exactly the
-- given token is touched. Every plan must find the jobs by their ids. So nested loops are off: a plan made while the table
-- was empty could make the table the outer side. And `status + 0` hides the index of running jobs, which a plan made while
-- nothing ran would use.
-- For speed, it states again what engine.ack.conclude decides for a plain success.
-- accepted: NULL if all were accepted, otherwise the id and token of those that were. woken: queues of jobs that waited
-- for these ends. An entry of the feed has jobs of one bucket of durations: to count all buckets for each job costs 1 µs.
-- heard: a process reads the change feed, and may have to be notified.
CREATE FUNCTION {schema}.complete(
    ids uuid[], tokens bigint[], began_at bigint[], results text[], at bigint, OUT accepted text[], OUT woken text[],
    OUT heard boolean
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    done uuid[];
BEGIN
    WITH ended AS (
        SELECT * FROM unnest(ids, tokens, began_at, results) AS ended(id, token, began, result)
    ), gone AS (
        DELETE FROM {schema}.jobs AS j USING ended
        WHERE j.id = ANY (ids) AND j.id = ended.id AND j.token = ended.token AND j.status + 0 = 3
        RETURNING j.id, j.queue, j.task, j.target_type, j.target_id, coalesce(ended.began, j.claimed_at) AS began,
                  j.priority, j.run_at, j.attempts, j.max_attempts, j.crashes, j.token, j.worker, j.timeout, j.created_at,
                  j.keep, j.keep_dead, j.dedupe_key, j.tags, j.options, j.progress, j.note, j.error_type, j.error,
                  j.error_code, j.fingerprint, j.version, j.payload, ended.result
    ), kept AS (
        INSERT INTO {schema}.archive
        SELECT id, task, queue, 4, priority, run_at, attempts + 1, max_attempts, crashes, token, worker,
               began, at, least(4611686018427387904, at + keep), {schema}.drop_day(keep, at), timeout, created_at, keep,
               keep_dead, dedupe_key, target_type, target_id, tags, options, '', progress, note,
               error_type, error, error_code, fingerprint, version, payload, result
        FROM gone
    ), summed AS (
        SELECT queue, task, array_agg(id) AS members, CASE WHEN bool_or(target_type IS NOT NULL)
               THEN json_agg(json_build_array(target_type, target_id)) END AS details,
               count(*) AS n, sum(greatest(at - began, 0))::bigint AS total, width_bucket(at - began, '{10,50,200,1000,5000,15000,60000,300000,900000,3600000,21600000}'::bigint[]) AS bucket
        FROM gone GROUP BY queue, task, bucket
    ), counted AS (
        INSERT INTO {schema}.counts (queue, status, n)
        SELECT queue, change.status, change.n FROM (SELECT queue, sum(n)::bigint AS n FROM summed GROUP BY queue) AS ended_,
             LATERAL (VALUES (3, -ended_.n), (4, ended_.n)) AS change(status, n)
    ), recorded AS (
        INSERT INTO {schema}.changes (at, kind, queue, task, ids, details, times)
        SELECT at, 'completed', queue, task, members, details, ARRAY[total] || array_fill(0::bigint, ARRAY[bucket]) || n FROM summed
    )
    SELECT CASE WHEN whole THEN ids ELSE ARRAY(SELECT id FROM gone) END,
           CASE WHEN NOT whole THEN ARRAY(SELECT id || ' ' || token FROM gone) END
    INTO done, accepted FROM (SELECT coalesce(sum(n), 0) = cardinality(ids) AS whole FROM summed) AS found;
    woken := {schema}.wake_for_ends(done, at);
    heard := EXISTS (SELECT 1 FROM {schema}.readers);
END $$;
COMMENT ON FUNCTION {schema}.complete IS 'Completes the jobs of runs that simply succeeded.';

-- All other ways to end a run. `held` is the fence: it locks the jobs, always in the order of their ids. The caller then
-- decides what happens to each job, and calls the functions below for the jobs that it holds. The plans are fixed in the
-- same way as in `complete`, for the same reasons.
CREATE FUNCTION {schema}.held(ids uuid[], tokens bigint[]) RETURNS SETOF {schema}.jobs LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    RETURN QUERY
        SELECT j.* FROM {schema}.jobs AS j JOIN unnest(ids, tokens) AS run(id, token) ON j.id = run.id AND j.token = run.token
        WHERE j.id = ANY (ids) AND j.status + 0 = 3 ORDER BY j.id FOR NO KEY UPDATE OF j;
END $$;
COMMENT ON FUNCTION {schema}.held IS 'Locks and returns the jobs that run under exactly these tokens.';

CREATE FUNCTION {schema}.reschedule(
    ids uuid[], statuses smallint[], times bigint[], attempts_ integer[], crashes_ integer[], keys text[], reasons text[],
    error_types text[], errors text[], codes text[], fingerprints text[], at bigint[]
) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    UPDATE {schema}.jobs AS j
    SET status = going.status, run_at = going.run_at, attempts = going.attempts, crashes = going.crashes,
        waits_for = going.key, reason = going.reason, error_type = coalesce(going.error_type, j.error_type),
        error = CASE WHEN going.error_type IS NULL THEN j.error ELSE going.error END,
        error_code = CASE WHEN going.error_type IS NULL THEN j.error_code ELSE going.error_code END,
        fingerprint = coalesce(going.fingerprint, j.fingerprint), changed_at = going.at
    FROM unnest(ids, statuses, times, attempts_, crashes_, keys, reasons, error_types, errors, codes,
                fingerprints, at)
        AS going(id, status, run_at, attempts, crashes, key, reason, error_type, error, error_code, fingerprint, at)
    WHERE j.id = ANY (ids) AND j.id = going.id;
END $$;
COMMENT ON FUNCTION {schema}.reschedule IS 'Ends runs of jobs that are not finished and wait for their next run.';

CREATE FUNCTION {schema}.finish(
    ids uuid[], statuses smallint[], attempts_ integer[], crashes_ integer[], began_at bigint[], ended_at bigint[],
    expiries bigint[], reasons text[], error_types text[], errors text[], codes text[],
    fingerprints text[], results text[]
) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    WITH ended AS (
        SELECT * FROM unnest(ids, statuses, attempts_, crashes_, began_at, ended_at, expiries, reasons, error_types, errors,
                             codes, fingerprints, results)
            AS ended(id, end_status, end_attempts, end_crashes, began, ended, expiry, end_reason, end_error_type, end_error,
                     end_error_code, end_fingerprint, result)
    ), gone AS (
        DELETE FROM {schema}.jobs AS j USING ended WHERE j.id = ANY (ids) AND j.id = ended.id
        RETURNING j.*, end_status, end_attempts, end_crashes, began, ended.ended, expiry, end_reason, end_error_type,
                  end_error, end_error_code, end_fingerprint, result
    )
    INSERT INTO {schema}.archive
    SELECT id, task, queue, end_status, priority, run_at, end_attempts, max_attempts, end_crashes, token, worker, began,
           ended, expiry, {schema}.drop_day(expiry - ended, ended), timeout, created_at, keep, keep_dead, dedupe_key,
           target_type, target_id, tags, options, end_reason, progress, note, coalesce(end_error_type, error_type),
           CASE WHEN end_error_type IS NULL THEN error ELSE end_error END,
           CASE WHEN end_error_type IS NULL THEN error_code ELSE end_error_code END, coalesce(end_fingerprint, fingerprint),
           version, payload, result
    FROM gone;
END $$;
COMMENT ON FUNCTION {schema}.finish IS 'Moves finished jobs to the archive.';

CREATE FUNCTION {schema}.record_attempts(
    ids uuid[], workers text[], began_at bigint[], ended_at bigint[], moves text[], error_types text[], errors text[],
    codes text[], tracebacks text[], fingerprints text[], versions text[]
) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    INSERT INTO {schema}.attempts (job_id, number, worker, started_at, finished_at, move, error_type, error,
                                   error_code, traceback, fingerprint, version)
    SELECT run.id, coalesce((SELECT max(number) FROM {schema}.attempts WHERE job_id = run.id), 0) + 1, run.worker, run.began,
           run.ended, run.move, run.error_type, run.error, run.error_code, run.traceback, run.fingerprint, run.version
    FROM unnest(ids, workers, began_at, ended_at, moves, error_types, errors, codes, tracebacks, fingerprints,
                versions)
        AS run(id, worker, began, ended, move, error_type, error, error_code, traceback, fingerprint, version);
END $$;
COMMENT ON FUNCTION {schema}.record_attempts IS 'Adds a run to the history of each of these jobs.';
