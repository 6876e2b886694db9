-- The job queue in the columns of story 0.4. Mainspring keeps the jobs (its own migrations make and index its tables);
-- these views show them. Nothing is copied, so they cannot disagree with the queue. {queue} is Mainspring's schema.
CREATE SCHEMA IF NOT EXISTS petitions;

CREATE VIEW petitions.scheduled_jobs AS
SELECT id,
       task AS job_type,
       payload::jsonb AS payload,
       run_at AS scheduled_for,
       created_at,
       attempts + crashes AS attempts,
       started_at AS last_attempt_at,
       CASE status
           WHEN 'running' THEN 'processing'
           WHEN 'completed' THEN 'completed'
           WHEN 'dead_letter' THEN 'failed'
           ELSE 'pending'
       END AS status
FROM {queue}.all_jobs
WHERE task IN ('referral_timeout', 'deliberation_timeout', 'escalation_check') AND status <> 'cancelled';

COMMENT ON VIEW petitions.scheduled_jobs IS 'Deadlines: those that wait, run or have fired (HP-1). Cancelled ones are left out.';
COMMENT ON COLUMN petitions.scheduled_jobs.job_type IS 'referral_timeout, deliberation_timeout or escalation_check';
COMMENT ON COLUMN petitions.scheduled_jobs.payload IS 'Data of the job, such as petition_id';
COMMENT ON COLUMN petitions.scheduled_jobs.scheduled_for IS 'When the job is due; after a failure, its next attempt';
COMMENT ON COLUMN petitions.scheduled_jobs.attempts IS 'How often a worker has begun the job, also those that died with it';
COMMENT ON COLUMN petitions.scheduled_jobs.last_attempt_at IS 'When a worker last claimed the job; NULL: never';
COMMENT ON COLUMN petitions.scheduled_jobs.status IS 'pending, processing, completed, or failed (then it is in dead_letter_queue)';

CREATE VIEW petitions.dead_letter_queue AS
SELECT id,
       id AS original_job_id,
       task AS job_type,
       payload::jsonb AS payload,
       coalesce(nullif(error, ''), nullif(reason, ''), error_type, 'unknown') AS failure_reason,
       finished_at AS failed_at,
       attempts + crashes AS attempts
FROM {queue}.dead_letters;

COMMENT ON VIEW petitions.dead_letter_queue IS 'Jobs that failed for good, of all types (HC-6). An alert is sent for each.';
COMMENT ON COLUMN petitions.dead_letter_queue.original_job_id IS 'The same as id: a dead letter stays the job that it was, so it can be retried';
COMMENT ON COLUMN petitions.dead_letter_queue.failure_reason IS 'The error of the last attempt, or why the job was given up';
COMMENT ON COLUMN petitions.dead_letter_queue.attempts IS 'How often a worker has begun the job, also those that died with it';
