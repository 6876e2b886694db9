"""Store jobs in a PostgreSQL database that programs on many machines share. Needs `mainspring[postgres]`."""

from mainspring.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
