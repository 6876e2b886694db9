"""What tests run in processes of their own: `python -m tests.stores.sqlite.program <what> <database>`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from mainspring.errors import MainspringError, StoreFull
from mainspring.stores.protocol import Filter
from mainspring.stores.sqlite import SqliteStore
from mainspring.stores.sqlite.connection import DatabaseFile
from tests.conformance.scenario import join, new_job


def insert(path: Path) -> None:
    """Read, then write; say what went wrong, and with which of them."""

    async def main() -> None:
        store = SqliteStore(path)
        for work in (store.count(Filter()), store.insert([new_job()]), join(store, "w1")):
            try:
                await work
            except MainspringError as error:
                print(f"{type(error).__name__}: {error}")
            else:
                print("fine")
        await store.close()

    asyncio.run(main())


def fill(path: Path) -> None:
    """Until the disk is full, of which a ballast takes a part; then without it."""

    async def main() -> None:
        store = SqliteStore(path)
        ballast = path.with_name("ballast")
        ballast.write_bytes(bytes(400_000))
        accepted = 0
        try:
            while True:
                await store.insert([new_job(payload=f'"{"x" * 20_000}"')])
                accepted += 1
        except StoreFull as error:
            print(error)
        print(await store.count(Filter()) - accepted)
        ballast.unlink()
        await store.insert([new_job()])
        print(await store.count(Filter()) - accepted)
        await store.close()

    asyncio.run(main())


def migrate(path: Path) -> None:
    """At the same moment as others."""
    file = DatabaseFile(path)
    print("ready", flush=True)
    sys.stdin.readline()
    file.prepare()


def join_and_fork(path: Path) -> None:
    """A worker with a child that it leaves behind; both wait to be killed."""

    async def main() -> None:
        await join(SqliteStore(path), "forked")

    asyncio.run(main())
    child = os.fork()
    if child:
        print(child, flush=True)
    signal.pause()


def reap(path: Path) -> None:
    """Look for dead workers all the time, with a short lease, and wait long for a lock."""

    async def main() -> None:
        store = SqliteStore(path, lease=0.1, busy_timeout=60.0)
        while True:
            await store.reap()
            await asyncio.sleep(0.01)

    asyncio.run(main())


def join_and_wait(path: Path) -> None:
    """A worker that waits long for a lock when it joins."""

    async def main() -> None:
        await join(SqliteStore(path, busy_timeout=60.0), "joining")

    asyncio.run(main())
    signal.pause()


PROGRAMS: dict[str, Callable[[Path], None]] = {
    program.__name__: program for program in (insert, fill, migrate, join_and_fork, reap, join_and_wait)
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](Path(sys.argv[2]))
