"""The document that says which job is the newest of a key."""

from __future__ import annotations

import json
from dataclasses import dataclass

from mainspring.clock import Millis
from mainspring.job import NewJob
from mainspring.stores.documents import ABSENT, Document, Key, Write

COLLECTION = "newest"
KEY_RETENTION: Millis = 30 * 86_400_000  # how long a document is kept after its job is due


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest job of a key, and when the first enqueue that it stands for came."""

    job_id: str
    first_at: Millis

    @classmethod
    def read(cls, document: Document) -> Newest:
        return cls(**json.loads(document.data))

    def to_json(self) -> str:
        return json.dumps({"job_id": self.job_id, "first_at": self.first_at})


def key_of(task: str, key: str) -> Key:
    return Key(COLLECTION, task, key)


def write_newest(place: Key, found: Document | None, job: NewJob, now: Millis) -> Write:
    """Make this job the newest, unless another process is quicker."""
    expected = ABSENT if found is None else found.version
    return Write(place, Newest(job.id, now).to_json(), expected=expected, expires_at=due(job, now) + KEY_RETENTION)


def due(job: NewJob, now: Millis) -> Millis:
    return now + job.delay if job.run_at is None else max(now, job.run_at)
