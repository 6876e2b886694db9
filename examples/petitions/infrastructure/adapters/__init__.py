from examples.petitions.infrastructure.adapters.http.outside import HttpAlerts, HttpHaltChecker, HttpNotifications
from examples.petitions.infrastructure.adapters.persistence.dead_letters import PostgresDeadLetters
from examples.petitions.infrastructure.adapters.persistence.heartbeats import PostgresHeartbeats
from examples.petitions.infrastructure.adapters.persistence.migrations import migrate
from examples.petitions.infrastructure.adapters.persistence.postgres_work import PostgresDatabase, PostgresWork
from examples.petitions.infrastructure.adapters.scheduling import PostgresJobScheduler

__all__ = [
    "HttpAlerts", "HttpHaltChecker", "HttpNotifications", "PostgresDatabase", "PostgresDeadLetters",
    "PostgresHeartbeats", "PostgresJobScheduler", "PostgresWork", "migrate",
]  # fmt: skip
