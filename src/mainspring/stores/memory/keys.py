"""Who holds which dedupe key."""

from __future__ import annotations

from itertools import islice

from mainspring.clock import Millis
from mainspring.job import FOREVER
from mainspring.stores.memory.row import DedupeKey, Row

NEVER: Millis = 2**62  # an expiry that does not come


class Keys:
    """Who holds which dedupe key: live jobs, and records kept beyond their jobs' lives."""

    def __init__(self) -> None:
        self.live: dict[DedupeKey, str] = {}
        self._kept: dict[DedupeKey, tuple[str, Millis]] = {}

    def holder(self, key: DedupeKey, now: Millis) -> str | None:
        if key in self.live:
            return self.live[key]
        job_id, until = self._kept.get(key, (None, 0))
        return job_id if until == FOREVER or until > now else None

    def take(self, row: Row) -> None:
        if row.key:
            self.live[row.key] = row.id

    def keep(self, row: Row, now: Millis) -> None:
        length = row.spec.dedupe_for
        if row.key and length is not None:
            self._kept[row.key] = (row.id, FOREVER if length == FOREVER else now + length)

    def kept(self, now: Millis) -> set[DedupeKey]:
        """Those whose record is not over."""
        return {key for key, (_, until) in self._kept.items() if until == FOREVER or until > now}

    def record(self, key: DedupeKey) -> tuple[str, Millis]:
        return self._kept[key]

    def put(self, key: DedupeKey, job_id: str, until: Millis) -> None:
        self._kept[key] = (job_id, until)

    def free(self, row: Row) -> None:
        if row.key and self.live.get(row.key) == row.id:
            del self.live[row.key]

    def forget(self, row: Row) -> None:
        """The job was deleted by hand: its key is free again, however long it was to be kept."""
        self.free(row)
        if row.key and self._kept.get(row.key, ("", 0))[0] == row.id:
            del self._kept[row.key]

    def prune(self, limit: int, now: Millis) -> int:
        expired = (key for key, (_, until) in self._kept.items() if until != FOREVER and until <= now)
        keys = list(islice(expired, limit))
        for key in keys:
            del self._kept[key]
        return len(keys)
