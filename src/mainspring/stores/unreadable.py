"""Jobs that a worker has claimed but cannot decrypt. It reports them in the store, so that every process knows of them.

A report is a document for each worker, queue and key. It expires by itself. Such a job comes back every ten seconds, so
its worker reports it again. Reports of workers that have left do not count, see mainspring.health.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from mainspring.clock import Millis, to_datetime
from mainspring.encryption import PREFIX
from mainspring.job import Claim
from mainspring.stores.documents import Bundle, Document, Key, Listing, Write
from mainspring.stores.encrypted import keys_of
from mainspring.stores.protocol import Store

COLLECTION = "unreadable_jobs"
RETENTION: Millis = 60_000
REPORT_EVERY = 20.0  # seconds between two reports of the same
MAX_REPORTS = 1000  # that are read
SEALED_BY = re.compile(re.escape(PREFIX) + r"([A-Za-z0-9_-]{1,40})\.")


@dataclass(frozen=True, slots=True)
class UnreadableJobs:
    """Jobs of one queue that one worker cannot decrypt."""

    queue: str
    key: str  # the id of the key that they need
    worker: str
    has_key: bool  # True: the worker has a key of this id, so what is stored was changed
    job_id: str  # the newest that the worker has met
    at: datetime


class UnreadableReports:
    """Collects what workers of this process cannot decrypt, and writes it. Belongs to one event loop."""

    def __init__(self) -> None:
        self._unwritten: dict[Key, Write] = {}
        self._written_at: dict[Key, float] = {}

    def met(self, store: Store, worker: str, claims: Iterable[Claim]) -> bool:
        """Note claims whose payload is still sealed; return whether there is something to write."""
        now = store.clock.monotonic()
        self._written_at = {key: at for key, at in self._written_at.items() if now - at < REPORT_EVERY}
        for claim in claims:
            place = Key(COLLECTION, worker, f"{key_of(claim)}/{claim.queue}")
            if place not in self._written_at:
                self._unwritten[place] = report(store, place, claim)
        return bool(self._unwritten)

    async def write(self, store: Store) -> None:
        writes = list(self._unwritten.values())
        if not writes:
            return
        await store.write([Bundle((write,)) for write in writes])
        now = store.clock.monotonic()
        for write in writes:
            self._written_at[write.key] = now
            self._unwritten.pop(write.key, None)


def report(store: Store, place: Key, claim: Claim) -> Write:
    key, keys, now = key_of(claim), keys_of(store), store.clock.now()
    has_key = keys is not None and key in keys.ids
    data = {"queue": claim.queue, "key": key, "has_key": has_key, "job_id": claim.id, "at": now}
    return Write(place, json.dumps(data), expires_at=now + RETENTION)


def key_of(claim: Claim) -> str:
    """Return the id of the key that a sealed payload needs."""
    match = SEALED_BY.match(claim.payload)
    return "unknown" if match is None else match[1]


async def unreadable_jobs(store: Store) -> list[UnreadableJobs]:
    """Return what workers have reported in the last minute, also those that have left since."""
    return [read(document) for document in await store.browse(Listing(COLLECTION, limit=MAX_REPORTS))]


def read(document: Document) -> UnreadableJobs:
    data = json.loads(document.data)
    return UnreadableJobs(
        data["queue"], data["key"], document.key.group, data["has_key"], data["job_id"], to_datetime(data["at"])
    )
