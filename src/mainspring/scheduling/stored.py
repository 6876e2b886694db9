"""A schedule as it is kept: what to run, when, and how far it has come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from mainspring.clock import to_millis
from mainspring.ids import new_id
from mainspring.job import NewJob
from mainspring.schedule import Occurrence, Schedule, tzdata_version
from mainspring.stores.documents import Document, Key, Write

COLLECTION = "schedules"
TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    id: str
    schedule: Schedule
    job: Mapping[str, Any]  # a NewJob's fields, without its id
    since: datetime  # when it was made or last changed; for an interval from the finish: the last finish
    owner: str | None = None  # the package whose code declares it; None: it was put by hand
    disabled: str = ""  # why it does not fire; empty: it does
    decided: Occurrence | None = None  # the newest one that was fired or dropped
    next: Occurrence | None = None
    last_job: str | None = None
    fires: int = 0  # so far
    tzdata: str = field(default_factory=tzdata_version)  # that `next` was found with
    version: str = ""  # of its document

    @property
    def task(self) -> str:
        return str(self.job["task"])

    @property
    def enabled(self) -> bool:
        return not self.disabled

    def describe(self) -> str:
        return self.schedule.describe()

    def derived(self) -> StoredSchedule:
        """With its next time found anew: that of the first occurrence which is not decided yet, even if it is past."""
        return replace(self, next=self._following(), tzdata=tzdata_version())

    def _following(self) -> Occurrence | None:
        if self.disabled:
            return None
        if self.decided is None or self.schedule.rule.from_finish:
            return self.schedule.next_after(self.since)
        first = self.schedule.following(self.decided)
        return None if first is None else self.schedule.next_after(first.utc - TICK)  # which knows of pauses

    # -- the job --------------------------------------------------------------------------------------

    def job_for(self, occurrence: Occurrence) -> NewJob:
        options = json.loads(self.job.get("options") or "{}")
        options["occurrence"] = {"schedule": self.id, **occurrence.to_data()}
        run_at = to_millis(self.schedule.run_at(occurrence, self.id))
        return self._job(run_at=run_at, delay=0, options=json.dumps(options))

    def job_now(self) -> NewJob:
        """Beside its times, by hand."""
        return self._job(run_at=None, delay=0)

    def prepared(self) -> NewJob:
        """The job as it was given, to be put again."""
        target = self.job.get("target")
        return replace(self._job(), target=tuple(target) if target else None)

    def _job(self, **changes: Any) -> NewJob:
        fields = {**self.job, **changes}
        fields["tags"] = tuple(fields.get("tags") or ())
        fields["target"] = tuple(fields.get("target") or ("schedule", self.id))
        return NewJob(id=new_id(), **fields)

    # -- as a document --------------------------------------------------------------------------------

    @property
    def key(self) -> Key:
        return Key(COLLECTION, "", self.id)

    def write(self, *, look_at: datetime | None = None) -> Write:
        """If nobody else has written it since it was read. It comes due at its next time, or to be looked at before."""
        moment = look_at or (None if self.next is None else self.next.utc)
        return Write(
            self.key,
            json.dumps(self.to_data()),
            expected=self.version,
            due_at=None if moment is None or self.disabled else to_millis(moment),
        )

    def to_data(self) -> dict[str, Any]:
        return {
            "schedule": self.schedule.to_data(),
            "job": dict(self.job),
            "since": self.since.isoformat(),
            "owner": self.owner,
            "disabled": self.disabled,
            "decided": None if self.decided is None else self.decided.to_data(),
            "next": None if self.next is None else self.next.to_data(),
            "last_job": self.last_job,
            "fires": self.fires,
            "tzdata": self.tzdata,
        }

    @classmethod
    def from_document(cls, document: Document) -> StoredSchedule:
        data = json.loads(document.data)
        occurrences = {
            name: None if data[name] is None else Occurrence.from_data(data[name]) for name in ("decided", "next")
        }
        return cls(
            **{
                **data,
                **occurrences,
                "id": document.key.id,
                "schedule": Schedule.from_data(data["schedule"]),
                "since": datetime.fromisoformat(data["since"]),
                "version": document.version,
            }
        )


def template_of(job: NewJob) -> dict[str, Any]:
    """What of a prepared job is the same each time."""
    fields = asdict(job)
    for name in ("id", "run_at", "delay"):
        del fields[name]
    return {**fields, "priority": int(job.priority), "tags": list(job.tags)}
