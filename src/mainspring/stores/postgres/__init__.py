"""Jobs in a PostgreSQL database: the same program on many machines. Needs `mainspring[postgres]`."""

from mainspring.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
