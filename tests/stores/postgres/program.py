"""What tests run in processes of their own: `python -m tests.stores.postgres.program <what> <dsn> <schema>`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from mainspring.stores.postgres import PostgresStore
from tests.conformance.scenario import put


def insert(store: PostgresStore) -> None:
    async def main() -> None:
        print(await put(store))
        await store.close()

    asyncio.run(main())


def migrate(store: PostgresStore) -> None:
    """At the same moment as others."""

    async def main() -> None:
        print("ready", flush=True)
        sys.stdin.readline()
        print(await store.migrate())
        await store.close()

    asyncio.run(main())


PROGRAMS: dict[str, Callable[[PostgresStore], None]] = {program.__name__: program for program in (insert, migrate)}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](PostgresStore(sys.argv[2], schema_name=sys.argv[3]))
