from examples.petitions.infrastructure.adapters.scheduling.postgres_job_scheduler import PostgresJobScheduler

__all__ = ["PostgresJobScheduler"]
