"""Twenty processes that want the same job, and then call the same key: run by test_races.py as a program of its own.

Each child writes a line per round: the round's number and how many jobs it got; in the last, how many it woke.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from mainspring.stores.dynamodb import DynamoStore
from mainspring.stores.protocol import Want, WorkerInfo


async def race(table: str, endpoint: str, rounds: int, starts: float) -> None:
    store = DynamoStore(table, region="eu-central-1", endpoint=endpoint)
    worker = f"w{os.getpid()}"
    await store.join(WorkerInfo(worker, "here", os.getpid(), ("*",)), lambda _: None)
    await asyncio.sleep(max(0.0, starts - time.time()))
    for number in range(rounds):
        claims = await store.claim(worker, [Want(f"race-{number}", 5)])
        os.write(1, f"{number} {len(claims.jobs)}\n".encode())  # one write, so that lines stay whole
    woken = await store.wake({"race": 1})
    os.write(1, f"{rounds} {woken['race']}\n".encode())
    await store.close()  # without leaving, which would give back what was won


def main(table: str, endpoint: str, racers: str, rounds: str) -> None:
    starts = time.time() + 3.0
    children = []
    for _ in range(int(racers)):
        child = os.fork()
        if child == 0:
            asyncio.run(race(table, endpoint, int(rounds), starts))
            os._exit(0)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


if __name__ == "__main__":
    main(*sys.argv[1:])
