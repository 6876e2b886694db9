"""What a failed run notes for its failure group, and a success that follows a failure.

A note is a document that is written in the commit of the outcome. A group is one row for all its failures, so workers
that fail in the same way at the same time would wait for each other if each of them changed it. Notes do not collide.
features/failures adds them up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

from mainspring.clock import Millis
from mainspring.ids import new_id
from mainspring.job import Status
from mainspring.stores.documents import Key, Write
from mainspring.stores.engine.ack import Conclusion, JobState

NOTES = "failure-notes"
LONGEST_SAMPLE = 500  # characters of a message that a note keeps
NOTE_RETENTION: Millis = 30 * 86_400_000  # of a note that no worker has added up
MAX_PAST_FAILURES = 100  # of a job's history that its success looks at
MAX_RECOVERED = 10  # groups that the success of a job tells: DynamoDB writes up to 100 items at once


@dataclass(slots=True)
class FailureNote:
    """What one write did to one failure group."""

    fingerprint: str
    at: Millis
    task: str
    job_id: str  # the last one
    error_type: str = ""
    message: str = ""
    place: str = ""
    count: int = 0  # runs that failed
    versions: tuple[str, ...] = ()  # of the code that failed
    recovered: bool = False  # a job that had failed in this way has succeeded

    def to_write(self) -> Write:
        """Return the note as a new document. Workers look for due documents often enough, so it wakes none."""
        expiry = self.at + NOTE_RETENTION
        data = json.dumps(asdict(self))
        return Write(Key(NOTES, "", new_id()), data, due_at=self.at, expires_at=expiry, announced=True)


def note_of(data: str) -> FailureNote:
    values = json.loads(data)
    return FailureNote(**values | {"versions": tuple(values["versions"])})


def notes(
    concluded: Iterable[tuple[JobState, Conclusion]], now: Millis, past: Mapping[str, Sequence[str]]
) -> list[Write]:
    """Return the notes of runs that end together: one for each failure group.

    `past` has the fingerprints of the last failures of the jobs in `recovered_often`, newest first. A success concerns
    all groups in which the job has failed, and the job itself knows only the last of them.
    """
    found: dict[str, FailureNote] = {}
    for job, end in concluded:
        if end.failure is not None:
            known = end.failure.fingerprint
            note = found.setdefault(known, FailureNote(known, now, job.task, job.id))
            add(note, job, end)
        elif end.status is Status.COMPLETED and job.fingerprint is not None:
            for known in islice(dict.fromkeys((job.fingerprint, *past.get(job.id, ()))), MAX_RECOVERED):
                found.setdefault(known, FailureNote(known, now, job.task, job.id)).recovered = True
    return [note.to_write() for note in found.values()]


def recovered_often(concluded: Iterable[tuple[JobState, Conclusion]]) -> list[str]:
    """Return the ids of the jobs that succeed and may have failed in several groups."""
    return [job.id for job, end in concluded if end.status is Status.COMPLETED and may_have_failed_twice(job)]


def may_have_failed_twice(job: JobState) -> bool:
    """Return whether a running job may have failed twice. Each run has a higher token than the one before it."""
    return job.fingerprint is not None and job.token > 2


def add(note: FailureNote, job: JobState, end: Conclusion) -> None:
    assert end.failure is not None  # noqa: S101 - the caller has checked it
    note.count += 1
    note.job_id = job.id
    note.error_type, note.place = end.failure.type, end.failure.place
    note.message = end.failure.message[:LONGEST_SAMPLE]
    if job.version and job.version not in note.versions:
        note.versions = (*note.versions, job.version)
