"""A process that serves a lessee: it claims one job for it, says so, and waits to be killed."""

from __future__ import annotations

import asyncio
import sys

from mainspring import Mainspring
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import SqliteStore


def store_of(kind: str, where: str, name: str) -> Store:
    if kind == "sqlite":
        return SqliteStore(where, lease=2)
    return PostgresStore(where, schema_name=name, lease=2)


async def main(kind: str, where: str, name: str) -> None:
    app = Mainspring(store_of(kind, where, name))
    (lease,) = (await app.leases.claim("far", wait=30)).leases
    waiting = asyncio.create_task(app.leases.claim("far", wait=60))  # it listens when it dies
    await asyncio.sleep(0.1)
    print(lease.id, lease.token, flush=True)
    await waiting


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
