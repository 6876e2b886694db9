"""The documents of a batch: one with its state, and one for each group of its members."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mainspring.clock import Millis, to_datetime
from mainspring.features.batches.rules import BatchProgress, BatchState, BatchSummary, Tally
from mainspring.job import Job, NewJob, Status
from mainspring.stored_options import with_options
from mainspring.stores.documents import Document, Key, Write

BATCHES, MEMBERS = "batches", "batch_members"  # collections
COMING_IN: Millis = 3_600_000  # how long members that are not in the store may still be inserted


@dataclass(frozen=True, slots=True)
class Head:
    """The main document of a batch."""

    total: int
    at: Millis  # when the batch was enqueued
    is_in: bool = False  # all jobs have been inserted
    is_lost: bool = False  # jobs that have not been inserted never will be
    ended: Tally | None = None  # set once all jobs have finished
    queue: str = ""  # of the job that waits for all others

    @property
    def is_coming_in(self) -> bool:
        return not self.is_in and not self.is_lost

    @classmethod
    def read(cls, document: Document) -> Head:
        data = json.loads(document.data)
        ended = data.get("ended")
        tally = None if ended is None else Tally(**ended)
        return cls(data["total"], data["at"], data["is_in"], data["is_lost"], tally, data.get("queue", ""))

    def summary(self, batch: str, last: Job | None, now: Millis) -> BatchSummary:
        """Return the batch as a list shows it. `last` is the job that waits for all others, if it exists."""
        return BatchSummary(batch, self._state(last, now), self.total, to_datetime(self.at), self.ended)

    def _state(self, last: Job | None, now: Millis) -> BatchState:
        if self.ended is not None or (last is not None and last.status is Status.COMPLETED):
            return BatchState.FINISHED
        if last is None and not self.is_in and not self.is_lost and now - self.at <= COMING_IN:
            return BatchState.COMING_IN
        return BatchState.ABANDONED if last is None or last.finished else BatchState.RUNNING

    def write(self, batch: str, expires_at: Millis | None) -> Write:
        return Write(Key(BATCHES, "", batch), json.dumps(asdict(self)), expires_at=expires_at, recorded=True)


@dataclass(frozen=True, slots=True)
class MemberPage:
    """The ids of some members, and how they ended."""

    ids: tuple[str, ...]
    tally: Tally | None = None  # set once all of them have finished

    @classmethod
    def read(cls, document: Document) -> MemberPage:
        data = json.loads(document.data)
        return cls(tuple(data["ids"]), None if data["tally"] is None else Tally(**data["tally"]))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def write(self, batch: str, number: int, expires_at: Millis | None) -> Write:
        return Write(Key(MEMBERS, batch, f"{number:09}"), self.to_json(), expires_at=expires_at)


@dataclass(frozen=True, slots=True)
class Counted:
    """How the jobs of a page have ended so far, and what is still missing."""

    ids: tuple[str, ...]
    tally: Tally
    live: int = 0
    may_come: bool = False  # some have not been inserted yet


def from_data(data: Mapping[str, Any], progress: BatchProgress) -> NewJob:
    """Restore a follow-up job, and add to its options which batch it follows."""
    target = None if data["target"] is None else (data["target"][0], data["target"][1])
    job = NewJob(**{**data, "target": target, "tags": tuple(data["tags"])})
    return with_options(job, batch=progress.to_data())
