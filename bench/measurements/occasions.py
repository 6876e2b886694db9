"""How fast people come in, and how fast the messages of very many people go out who have their occasion at once."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from bench.celebrated import AT, write_people
from bench.workers import Workers

if TYPE_CHECKING:
    from bench.peer import Peer

SETTLE_SECONDS = 5.0  # for the worker to start and to become idle before the instant comes


async def import_people(peer: Peer, *, people: int) -> dict[str, float]:
    """From a CSV file into an empty store."""
    path = peer.place / "people.csv"
    write_people(path, people)
    begin = time.perf_counter()
    await peer.import_people(path)
    return {"rate": people / (time.perf_counter() - begin)}


async def burst(peer: Peer, *, people: int, timeout: float) -> dict[str, float]:
    """From the instant until the last job was made, and until the last one was run."""
    await import_people(peer, people=people)
    at = time.time() + SETTLE_SECONDS
    os.environ[AT] = str(at)
    async with Workers(peer) as workers:
        await workers.start(people, timeout)
        fired, ran = await peer.last_fired() - at, workers.last / 1e9 - at
    return {"rate": people / fired, "ran": people / ran, "last": ran}
