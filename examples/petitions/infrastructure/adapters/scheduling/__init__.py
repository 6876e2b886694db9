from examples.petitions.infrastructure.adapters.scheduling.executions import ENDS, execution_of
from examples.petitions.infrastructure.adapters.scheduling.postgres_job_scheduler import PostgresJobScheduler

__all__ = ["ENDS", "PostgresJobScheduler", "execution_of"]
