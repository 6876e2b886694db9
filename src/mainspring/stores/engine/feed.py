"""Which entries of the change feed a write brings. Stores write them together with the change itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from mainspring.clock import Millis
from mainspring.job import Move, NewJob, Outcome, Priority, Status, retry_reason
from mainspring.stores.documents import Write
from mainspring.stores.engine.ack import Conclusion, JobState, cause_of
from mainspring.stores.engine.change import ChangePlan, ChangeRequest
from mainspring.stores.engine.numbers import TIMED
from mainspring.stores.feed import IDS, LONGEST_TEXT, MAX_JOBS, ChangeKind, Data, Entry, JobRef, Tags
from mainspring.stores.numbers import times_of
from mainspring.stores.protocol import Action, Halt, WorkerInfo

ENDS: Mapping[Status, ChangeKind] = {
    Status.COMPLETED: ChangeKind.COMPLETED,
    Status.DEAD_LETTER: ChangeKind.DEAD_LETTERED,
    Status.CANCELLED: ChangeKind.CANCELLED,
    Status.RETRYING: ChangeKind.RETRYING,
    Status.SUSPENDED: ChangeKind.SUSPENDED,
}
COLLECTIONS = {
    "schedules": ChangeKind.SCHEDULE,
    "breakers": ChangeKind.BREAKER,
    "failures": ChangeKind.FAILURE_GROUP,
    "people": ChangeKind.PERSON,
    "occasions": ChangeKind.OCCASION,  # and a kind of occasion
}

T = TypeVar("T")
NO_TAGS: Tags = {}
Place = tuple[str, str]
"""A queue and a task: an entry lists jobs of one place."""

DocumentGroup = tuple[str, str, bool, str | None, str | None]
"""A collection, a group of it, whether its documents were deleted, and what else has become of them."""


def entries(
    kind: ChangeKind,
    jobs: Mapping[Place, Sequence[str | JobRef]],
    data: Data | None = None,
    lengths: Mapping[Place, Sequence[Millis]] | None = None,
) -> list[Entry]:
    """Return the entries for one kind of change of these jobs. `lengths` are their waits or durations."""
    found = [
        Entry(kind, queue, task, part, data)
        for (queue, task), refs in jobs.items()
        for part in in_parts(refs)
    ]  # fmt: skip
    return found if lengths is None else timed(found, lengths)


def timed(found: list[Entry], lengths: Mapping[Place, Sequence[Millis]]) -> list[Entry]:
    """Give the first entry of each place the times of all its jobs."""
    left = dict(lengths)
    for entry in found:
        own = left.pop((entry.queue or "", entry.task or ""), None)
        entry.times = times_of(own) if own else ()
    return found


def in_parts(refs: Sequence[T]) -> Iterable[Sequence[T]]:
    return (refs,) if len(refs) <= MAX_JOBS else cut(refs)


def cut(refs: Sequence[T]) -> Iterator[Sequence[T]]:
    rest = iter(refs)
    while part := list(islice(rest, MAX_JOBS)):
        yield part


def created(jobs: Iterable[NewJob]) -> list[Entry]:
    by_place: dict[Place, list[str | JobRef]] = {}
    for job in jobs:
        by_place.setdefault((job.queue, job.task), []).append(
            job.id if job.target is None else JobRef(job.id, *job.target)
        )
    return entries(ChangeKind.CREATED, by_place)


def ended(concluded: Iterable[tuple[JobState, Conclusion]], outcomes: Iterable[Outcome] | None = None) -> list[Entry]:
    """Return the entries for runs that ended and for waiting jobs that were cancelled (those have no outcomes)."""
    found: dict[ChangeKind, dict[Place, list[str | JobRef]]] = {}
    lengths: dict[ChangeKind, dict[Place, list[Millis]]] = {}
    ends = iter(outcomes) if outcomes is not None else None
    for job, conclusion in concluded:
        outcome = None if ends is None else next(ends)
        kind = kind_of_end(conclusion.status, None if outcome is None else outcome.move)
        places, place = found.setdefault(kind, {}), (job.queue, job.task)
        data = data_of_end(job, kind, conclusion)
        if kind is ChangeKind.RETRYING and data is not None and outcome is not None:
            data["cause"] = retry_reason(outcome)
        places.setdefault(place, []).append(ref(job, data))
        if kind in TIMED:
            lengths.setdefault(kind, {}).setdefault(place, []).append(duration_of(conclusion))
    return [entry for kind, places in found.items() for entry in entries(kind, places, lengths=lengths.get(kind))]


def starts_taken_back(ended: Iterable[tuple[JobState, Outcome]]) -> list[Entry]:
    """Return entries for the numbers only: the claims of jobs that were held back do not count as starts."""
    waits: dict[Place, list[Millis]] = {}
    for job, outcome in ended:
        if outcome.blocked:
            waits.setdefault((job.queue, job.task), []).append(job.claimed_at - job.run_at)
    return [
        Entry(ChangeKind.STARTED, queue, task, times=[-number for number in times_of(lengths)])
        for (queue, task), lengths in waits.items()
    ]


def duration_of(conclusion: Conclusion) -> Millis:
    """Return how long an attempt took."""
    if conclusion.finished_at is not None:
        return conclusion.finished_at - conclusion.started_at
    return 0 if conclusion.run is None else conclusion.run.finished_at - conclusion.run.started_at


def kind_of_end(status: Status, move: Move | None) -> ChangeKind:
    if status is Status.PENDING:
        return ChangeKind.SNOOZED if move is Move.SNOOZE else ChangeKind.RELEASED
    return ENDS[status]


def data_of_end(job: JobState, kind: ChangeKind, conclusion: Conclusion) -> dict[str, Any] | None:
    """Return what the feed tells about an end: what readers need at once, and cannot read from the job later."""
    if kind is ChangeKind.COMPLETED:
        return None
    worker = job.worker if job.status is Status.RUNNING else None  # a waiting job keeps the name of its last worker
    data: dict[str, Any] = {"worker": worker, "attempt": conclusion.attempts, "max_attempts": job.max_attempts}
    if conclusion.failure is not None:
        data |= {"error_type": conclusion.failure.type, "error": conclusion.failure.message[:LONGEST_TEXT]}
        data["fingerprint"] = conclusion.failure.fingerprint
        if conclusion.failure.code is not None:
            data["error_code"] = conclusion.failure.code
    if conclusion.reason:
        data["reason"] = conclusion.reason[:LONGEST_TEXT]
    if conclusion.finished_at is None:
        data["run_at"] = conclusion.run_at
    if conclusion.waits_for is not None:
        data["waits_for"] = conclusion.waits_for
    return data


def ref(job: JobState, data: Data | None = None) -> str | JobRef:
    return job.id if data is None and job.target_type is None else JobRef(job.id, job.target_type, job.target_id, data)


def stalled(taken: Iterable[tuple[JobState, Outcome]]) -> list[Entry]:
    """Return the entries for runs that are taken from their workers. How they end is recorded after that."""
    return [
        Entry(ChangeKind.STALLED, job.queue, job.task, [ref(job, data_of_takeover(job, outcome))])
        for job, outcome in taken
    ]


def data_of_takeover(job: JobState, outcome: Outcome) -> Data:
    timeout_at = job.claimed_at + job.timeout if job.timeout else None
    about = {"worker": job.worker, "cause": cause_of(outcome)}
    return {**about, "started_at": job.claimed_at, "timeout_at": timeout_at}


def by_hand(planned: ChangePlan, request: ChangeRequest, tags: Tags) -> list[Entry]:
    """Return the entries for changes by hand, except for jobs that are cancelled at once: those end.

    `tags` are those of jobs that are deleted: no reader can look them up later.
    """
    told: Data = {"actor": request.by.actor, "reason": request.by.reason[:LONGEST_TEXT]}
    match request.action:
        case Action.CANCEL:
            return of_jobs(ChangeKind.CANCEL_REQUESTED, planned.updated, told)
        case Action.RETRY:
            return of_jobs(ChangeKind.RETRIED, [*planned.updated, *planned.restored], told)
        case Action.EDIT:
            return edited(planned, told)
        case Action.DELETE:
            return of_jobs(ChangeKind.DELETED, planned.deleted, told, tags)


def edited(planned: ChangePlan, told: Data) -> list[Entry]:
    """Return the entries for edited jobs: one for each group of jobs in which the same fields have changed."""
    by_fields: dict[tuple[str, ...], list[JobState]] = {}
    for job in planned.updated:
        by_fields.setdefault(changed_fields(job, planned.columns), []).append(job)
    return [
        entry
        for fields, jobs in by_fields.items()
        for entry in of_jobs(ChangeKind.EDITED, jobs, {**told, **new_values(fields, planned.columns)})
    ]


def changed_fields(job: JobState, columns: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the fields to which an edit gives another value. A debounced enqueue writes all of them."""
    before = job.before or {}
    written = columns.keys() - {"reason", "changed_at"}  # the store sets these by itself
    return tuple(
        name for name in sorted(written) if columns[name] != (before[name] if name in before else getattr(job, name))
    )


def new_values(fields: Sequence[str], columns: Mapping[str, Any]) -> Data:
    """Return the names of the changed fields, and the new values except the payload."""
    shown = {name: columns[name] for name in fields if name != "payload"}
    if "priority" in shown:
        shown["priority"] = Priority(shown["priority"]).name.lower()
    return {"fields": list(fields), **shown}


def of_jobs(kind: ChangeKind, jobs: Iterable[JobState], data: Data, tags: Tags = NO_TAGS) -> list[Entry]:
    by_place: dict[Place, list[str | JobRef]] = {}
    for job in jobs:
        own = {"tags": list(tags[job.id])} if job.id in tags else None
        by_place.setdefault((job.queue, job.task), []).append(ref(job, own))
    return entries(kind, by_place, data)


def progressed(job: JobRef, queue: str, task: str, fraction: float | None, note: str) -> Entry:
    return Entry(ChangeKind.PROGRESSED, queue, task, [job], {"fraction": fraction, "note": note[:LONGEST_TEXT]})


def halted(halt: Halt) -> Entry:
    until = None if halt.until is None else halt.until.isoformat()
    data = {"actor": halt.actor, "reason": halt.reason[:LONGEST_TEXT], "until": until, "accept": halt.accept}
    return Entry(ChangeKind.HALTED, halt.queue, data=data)


def halt_ended(actor: str | None, queue: str | None) -> Entry:
    """Return the entry for a halt that ended. Without an actor, its time was over."""
    return Entry(ChangeKind.HALT_ENDED, queue, data={"actor": actor})


def joined(worker: WorkerInfo) -> Entry:
    data = {"worker": worker.id, "host": worker.host, "pid": worker.pid, "queues": list(worker.queues)}
    return Entry(ChangeKind.WORKER_JOINED, data=data)


def left(worker: str) -> Entry:
    return Entry(ChangeKind.WORKER_LEFT, data={"worker": worker})


def died(worker: str) -> Entry:
    return Entry(ChangeKind.WORKER_DIED, data={"worker": worker})


def documents(writes: Iterable[Write]) -> list[Entry]:
    """Return an entry for each group of documents to which the same has happened. An import writes very many."""
    ids: dict[DocumentGroup, list[str]] = {}
    for write in writes:
        if write.recorded:
            key, is_deleted = write.key, write.data is None or write.became == "deleted"
            group = (key.collection, key.group, is_deleted, write.became, write.actor)
            if group in ids:
                ids[group].append(key.id)
            else:
                ids[group] = [key.id]
    return [entry_of(group, part) for group in ids for part in in_parts(ids[group])]


def entry_of(group: DocumentGroup, ids: Sequence[str]) -> Entry:
    collection, name, is_deleted, became, actor = group
    data: dict[str, Any] = {"collection": collection, "group": name, IDS: ids, "deleted": is_deleted}
    if became is not None:
        data["became"] = became
    if actor is not None:
        data["actor"] = actor
    kind = COLLECTIONS.get(collection) or COLLECTIONS.get(collection.partition(".")[0], ChangeKind.DOCUMENT)
    return Entry(kind, data=data)
