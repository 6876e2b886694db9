CREATE TABLE petitions.petitions (
    id UUID PRIMARY KEY,
    title TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('received', 'referred', 'referral_expired', 'deliberating', 'decided', 'escalated')),
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
COMMENT ON TABLE petitions.petitions IS 'Petitions and where they stand';

CREATE TABLE petitions.referrals (
    id UUID PRIMARY KEY,
    petition_id UUID NOT NULL REFERENCES petitions.petitions,
    knight TEXT NOT NULL,
    deadline TIMESTAMPTZ NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'answered', 'expired'))
);
COMMENT ON TABLE petitions.referrals IS 'Petitions that were referred to a knight, who has until the deadline to answer (FR-4.5)';
CREATE INDEX referrals_petition ON petitions.referrals (petition_id);

CREATE TABLE petitions.cosigners (
    petition_id UUID NOT NULL REFERENCES petitions.petitions,
    name TEXT NOT NULL,
    PRIMARY KEY (petition_id, name)
);
COMMENT ON TABLE petitions.cosigners IS 'Who supports a petition; each name counts once';

CREATE TABLE petitions.job_executions (
    change_id TEXT PRIMARY KEY,
    job_id UUID NOT NULL,
    number INT NOT NULL,
    job_type TEXT NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('completed', 'failed', 'killed', 'interrupted', 'cancelled')),
    error_type TEXT,
    reason TEXT,
    ended_at TIMESTAMPTZ NOT NULL,
    UNIQUE (job_id, number)
);
COMMENT ON TABLE petitions.job_executions IS 'The audit: one row for each execution of a job, however it ended (CT-12). Rows are never changed or deleted.';
COMMENT ON COLUMN petitions.job_executions.change_id IS 'The change of the queue that ended the execution; a change that is delivered twice adds one row';
COMMENT ON COLUMN petitions.job_executions.number IS 'From 1 on: the executions of this job in their order';
COMMENT ON COLUMN petitions.job_executions.outcome IS 'failed: also by its timeout; killed: its process died; interrupted: its worker stopped before it ended';

CREATE TABLE petitions.job_effects (
    job_id UUID PRIMARY KEY,
    job_type TEXT NOT NULL,
    notices JSONB NOT NULL,
    applied_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE petitions.job_effects IS 'Jobs that took effect, written in the transaction of the effect. The key allows one effect for each job, even if two workers run it at the same time';
COMMENT ON COLUMN petitions.job_effects.notices IS 'What people are told about it: a repeated execution sends the same notices with the same keys';

CREATE TABLE petitions.worker_heartbeats (
    worker TEXT PRIMARY KEY,
    beats BIGINT NOT NULL DEFAULT 1,
    halted BOOLEAN NOT NULL,
    processed BIGINT NOT NULL,
    seen_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
COMMENT ON TABLE petitions.worker_heartbeats IS 'The heartbeat metric of the job workers (NFR-7.5); it continues during a halt';
