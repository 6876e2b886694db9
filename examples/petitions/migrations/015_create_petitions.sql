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
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id UUID NOT NULL,
    job_type TEXT NOT NULL,
    attempt INT NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('applied', 'repeated', 'failed')),
    reason TEXT,
    notices JSONB NOT NULL DEFAULT '[]',
    executed_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE petitions.job_executions IS 'The audit of every execution of a job (CT-12). Rows are never changed or deleted.';
COMMENT ON COLUMN petitions.job_executions.outcome IS 'applied: took effect, in the transaction of this row; repeated: had taken effect before; failed';
CREATE UNIQUE INDEX job_executions_applied ON petitions.job_executions (job_id) WHERE outcome = 'applied';
COMMENT ON INDEX petitions.job_executions_applied IS 'A job takes effect once, even if two workers run it at the same time';

CREATE TABLE petitions.worker_heartbeats (
    worker TEXT PRIMARY KEY,
    beats BIGINT NOT NULL DEFAULT 1,
    halted BOOLEAN NOT NULL,
    processed BIGINT NOT NULL,
    seen_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
COMMENT ON TABLE petitions.worker_heartbeats IS 'The heartbeat metric of the job workers (NFR-7.5); it continues during a halt';
