from examples.petitions.infrastructure.adapters.http.outside import HttpAlerts, HttpHaltChecker, HttpNotifications
from examples.petitions.infrastructure.adapters.persistence.dead_letters import PostgresDeadLetters
from examples.petitions.infrastructure.adapters.persistence.execution_audit import PostgresExecutionAudit
from examples.petitions.infrastructure.adapters.persistence.heartbeats import PostgresHeartbeats
from examples.petitions.infrastructure.adapters.persistence.migrations import migrate
from examples.petitions.infrastructure.adapters.persistence.postgres_work import PostgresDatabase, PostgresWork
from examples.petitions.infrastructure.adapters.scheduling import ENDS, PostgresJobScheduler, execution_of

__all__ = [
    "ENDS", "HttpAlerts", "HttpHaltChecker", "HttpNotifications", "PostgresDatabase", "PostgresDeadLetters",
    "PostgresExecutionAudit", "PostgresHeartbeats", "PostgresJobScheduler", "PostgresWork", "execution_of", "migrate",
]  # fmt: skip
