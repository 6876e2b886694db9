"""Changes of jobs: by hand (cancel, retry, delete, edit), and by a wake-up of suspended ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mainspring.clock import Millis
from mainspring.errors import ConfigurationError
from mainspring.job import FINISHED, TRANSITIONS, Move, Status, statuses_that_allow
from mainspring.stores.audit import note_of_change
from mainspring.stores.documents import By, Note
from mainspring.stores.engine.ack import Conclusion, JobState, Place, expiry
from mainspring.stores.protocol import Action, Changed, Edit, Filter

ALLOWED: Mapping[Action, frozenset[Status]] = {
    Action.CANCEL: statuses_that_allow(Move.CANCEL),
    Action.RETRY: statuses_that_allow(Move.MANUAL_RETRY),
    Action.EDIT: statuses_that_allow(Move.EDIT),
    Action.DELETE: frozenset(Status) - {Status.RUNNING},
}

Key = tuple[str, str | None]  # a task and a dedupe key


@dataclass(slots=True)
class ChangeRequest:
    action: Action
    where: Filter
    by: By
    edit: Edit | None
    limit: int
    cursor: str | None
    dry_run: bool
    expect: str | None = None  # the revision of the jobs that may be changed; None: any


@dataclass(slots=True)
class ChangePlan:
    """What a change does to the jobs that it found. A dry run only makes the plan."""

    found: Sequence[JobState]
    ended: list[tuple[JobState, Conclusion]] = field(default_factory=list)  # cancelled
    updated: list[JobState] = field(default_factory=list)  # live jobs that get the columns
    restored: list[JobState] = field(default_factory=list)  # finished jobs that become live again, with the columns
    deleted: list[JobState] = field(default_factory=list)
    columns: Mapping[str, Any] = field(default_factory=dict)
    conflicts: dict[str, str] = field(default_factory=dict)  # job -> the live job that holds its dedupe key
    stale: list[str] = field(default_factory=list)  # jobs that have another revision than expected, and stay unchanged

    @property
    def requested(self) -> list[str]:
        """The running jobs that are asked to stop."""
        return [job.id for job in self.updated if job.status is Status.RUNNING]

    @property
    def changed(self) -> list[str]:
        """The jobs that are changed at once."""
        left_out = {*self.conflicts, *self.requested}
        return [job.id for job in self.found if job.id not in left_out]

    @property
    def woken(self) -> set[str]:
        """The queues that may have jobs due."""
        live = (job for job in (*self.updated, *self.restored) if job.status is not Status.RUNNING)
        return {self.columns.get("queue", job.queue) for job in live}

    def moves(self) -> Iterator[tuple[Place, Place | None]]:
        """Yield queue and status, before and after, of the jobs that do not end now. None: the job is deleted."""
        for job in (*self.updated, *self.restored):
            after = self.columns.get("queue", job.queue), self.columns.get("status", job.status)
            yield (job.queue, job.status), after
        for job in self.deleted:
            yield (job.queue, job.status), None

    def answer(self, cursor: str | None) -> Changed:
        return Changed(tuple(self.changed), tuple(self.requested), self.conflicts, tuple(self.stale), cursor)

    def columns_of(self, job: JobState) -> dict[str, Any]:
        """Return the new columns of a job. Its time is later than before, so that its revision is another."""
        return {**self.columns, "changed_at": max(self.columns["changed_at"], job.updated_at + 1)}

    def grouped(self, jobs: Iterable[JobState]) -> Iterator[tuple[list[str], dict[str, Any]]]:
        """Yield the ids of jobs that get the same columns, with these columns: usually all jobs at once."""
        groups: dict[Millis, tuple[list[str], dict[str, Any]]] = {}
        for job in jobs:
            columns = self.columns_of(job)
            groups.setdefault(columns["changed_at"], ([], columns))[0].append(job.id)
        yield from groups.values()


def plan(request: ChangeRequest, found: Sequence[JobState], holders: Mapping[Key, str], now: Millis) -> ChangePlan:
    """Decide what the request does to these jobs.

    `holders` has the live jobs that hold the dedupe keys of `wanted_keys`.
    """
    fresh = [job for job in found if is_expected(request, job)]
    planned = ChangePlan(fresh, stale=[job.id for job in found if not is_expected(request, job)])
    match request.action:
        case Action.CANCEL:
            _cancel(planned, request.by.reason, now)
        case Action.RETRY:
            _retry(planned, holders, now, request.edit or Edit())
        case Action.EDIT:
            planned.updated, planned.columns = list(fresh), edited(request.edit or Edit(), now)
        case Action.DELETE:
            planned.deleted = list(fresh)
    return planned


def is_expected(request: ChangeRequest, job: JobState) -> bool:
    return request.expect is None or request.expect == job.revision


def _cancel(planned: ChangePlan, reason: str, now: Millis) -> None:
    """Cancel waiting jobs at once. Ask running ones to stop: their workers end them."""
    planned.columns = {"cancel": True, "reason": reason, "changed_at": now}
    for job in planned.found:
        if job.status is Status.RUNNING:
            planned.updated.append(job)
        else:
            planned.ended.append((job, cancelled(job, reason, now)))


def _retry(planned: ChangePlan, holders: Mapping[Key, str], now: Millis, edit: Edit) -> None:
    """Make jobs due now, with a full budget. Leave out a job if another live job holds its dedupe key."""
    planned.columns = retried(now) | ({} if edit.priority is None else {"priority": int(edit.priority)})
    held = dict(holders)
    for job in planned.found:
        key = job.task, job.dedupe_key
        if job.status not in FINISHED:
            planned.updated.append(job)
        elif job.dedupe_key is not None and held.setdefault(key, job.id) != job.id:
            planned.conflicts[job.id] = held[key]
        else:
            planned.restored.append(job)


def wanted_keys(request: ChangeRequest, found: Sequence[JobState]) -> list[Key]:
    """Return the dedupe keys that these jobs need to become live again. Another live job may hold them."""
    if request.action is not Action.RETRY:
        return []
    needed = (job for job in found if job.dedupe_key is not None and job.status in FINISHED)
    return list(dict.fromkeys((job.task, job.dedupe_key) for job in needed))


def cancelled(job: JobState, reason: str, now: Millis) -> Conclusion:
    """Return what a waiting job becomes when it is cancelled."""
    status, now = TRANSITIONS[job.status][Move.CANCEL], max(now, job.updated_at)
    return Conclusion(
        status,
        job.run_at,
        job.attempts,
        job.crashes,
        reason,
        waits_for=None,
        failure=None,
        result=None,
        started_at=job.claimed_at,
        finished_at=now,
        expires_at=expiry(job, status, now),
        run=None,
    )


def retried(now: Millis) -> dict[str, Any]:
    """Return the columns of a job that runs again with a full budget. They reset its counters, progress and error."""
    return {
        "status": Status.PENDING,
        "run_at": now,
        "attempts": 0,
        "crashes": 0,
        "cancel": False,
        "reason": "",
        "progress": None,
        "note": None,
        "error_type": None,
        "error": None,
        "error_code": None,
        "changed_at": now,
    }


def edited(edit: Edit, now: Millis) -> dict[str, Any]:
    """Return the columns that an edit changes. A new time also clears the job's reason."""
    run_at = edit.run_at if edit.delay is None else now + edit.delay
    columns = {
        "payload": edit.payload,
        "priority": None if edit.priority is None else int(edit.priority),
        "queue": edit.queue,
        "run_at": run_at,
        "max_attempts": edit.max_attempts,
        "reason": None if run_at is None else "",
        "changed_at": now,
    }
    return {name: value for name, value in columns.items() if value is not None}


def compared(request: ChangeRequest) -> list[str]:
    """Return the columns that an edit writes and a `JobState` does not have. The feed compares them with the old ones.

    Only edits read them: acks make a `JobState` for every run that fails, and payloads are long.
    """
    edit = request.edit if request.action is Action.EDIT and request.edit is not None else Edit()
    return [name for name in ("payload", "priority") if getattr(edit, name) is not None]


def note_of(request: ChangeRequest) -> Note:
    """Return the entry of the audit log for all jobs that the request changes."""
    return note_of_change(request.action, request.by, request.where, request.edit)


# -- wake-ups --------------------------------------------------------------------------------------


def woken(now: Millis) -> dict[str, Any]:
    """Return the columns of a job that is woken now."""
    return {"status": TRANSITIONS[Status.SUSPENDED][Move.WAKE], "run_at": now, "waits_for": None, "changed_at": now}


def refuse_negative(keys: Mapping[str, int]) -> None:
    """Raise if a number is negative. Databases reject a negative LIMIT, or ignore it and would wake every job."""
    for key, number in keys.items():
        if number < 0:
            msg = f"wake: cannot wake {number} jobs for {key!r}; give 0 or more"
            raise ConfigurationError(msg)
