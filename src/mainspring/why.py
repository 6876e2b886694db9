"""Explain why a job does not run: `await app.jobs.why(job_id)`. This reads only the store, not the job's code.

`Inquiry` is what was found in the store. `reasons_of`, a pure function, decides what it means. The decisive reason
comes first: the one that must go away before the others matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from mainspring.clock import to_datetime
from mainspring.features.delivery.feature import told_reason
from mainspring.features.durable.journal import calls_in, kind_of
from mainspring.humanize import show_both, show_length, show_relative
from mainspring.job import MAX_CRASHES, WAITING, Job, Move, Status, Step
from mainspring.queue_patterns import is_among
from mainspring.services import Services
from mainspring.stores.protocol import Halt, Stats, Store, WorkerInfo

AFTER_JOB, FOR_SIGNAL, FOR_BREAKER = "job:", "signal:", "breaker:"  # what `waits_for` begins with
SILENT_SHARE = 0.2  # of the lease; workers send heartbeats far more often than that
FOR_LIMITS = "limit:", "rate:", "fair:"


class Cause(StrEnum):
    FINISHED = "finished"
    RUNNING = "running"
    SILENT = "silent"  # it runs, but its worker sends no heartbeats
    LATER = "later"  # it is not due yet
    RETRY = "retry"  # it failed, and its next attempt is not due yet
    SLEEP = "sleep"  # it is a durable function that sleeps
    SIGNAL = "signal"  # it waits for a signal
    JOB = "job"  # it waits for the end of another job
    LIMIT = "limit"  # a limit, rate or fair share allows no more such jobs now
    BREAKER = "breaker"  # the circuit breaker of a service that it calls is open
    KEY = "key"  # it waits for another key to be woken
    HALTED = "halted"  # the whole system is halted
    PAUSED = "paused"  # its queue is paused
    NO_WORKER = "no worker"  # no live worker takes from its queue
    UNKNOWN_TASK = "unknown task"  # no live worker of its queue knows its task
    SUSPECT = "suspect"  # its worker died while it ran, so it must run alone
    STUCK = "stuck"  # slots of the workers of its queue are stuck
    TURN = "turn"  # it only waits for other jobs to run first


@dataclass(frozen=True, slots=True)
class Reason:
    cause: Cause
    text: str  # for people
    since: datetime | None = None
    until: datetime | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)  # the names and ids in the text, for programs


@dataclass(frozen=True, slots=True)
class Why:
    """The reasons why a job does not run. `str()` returns them, one per line."""

    job: Job
    at: datetime
    reasons: tuple[Reason, ...]  # the decisive one first; never empty

    def __str__(self) -> str:
        return "\n".join(reason.text for reason in self.reasons)


@dataclass(frozen=True, slots=True)
class Inquiry:
    job: Job
    now: datetime
    stats: Stats
    other: Job | None = None  # the job that it waits for
    suspended_at: datetime | None = None
    steps: tuple[Step, ...] = ()
    lease: float = 30.0  # seconds without a heartbeat after which a worker counts as dead


async def inquire(services: Services, job: Job, within: tuple[str, ...] = ()) -> Inquiry:
    """Gather what is known. A caller that may see only some queues learns nothing of the others' jobs and workers."""
    store, now, stats = services.store, services.now(), await services.stats(within)
    if within:
        stats.workers[:] = [worker for worker in stats.workers if is_among(job.queue, worker.queues)]
    if job.status not in {Status.SUSPENDED, Status.RUNNING}:
        return Inquiry(job, now, stats)
    other = next(iter(await store.get([other_of(job)], within=within)), None) if other_of(job) else None
    steps = tuple(calls_in(await store.steps(job.id)))
    return Inquiry(job, now, stats, other, await suspended_at(store, job, steps), steps, store.lease)


def other_of(job: Job) -> str:
    return (job.waits_for or "").removeprefix(AFTER_JOB) if (job.waits_for or "").startswith(AFTER_JOB) else ""


async def suspended_at(store: Store, job: Job, steps: Sequence[Step]) -> datetime | None:
    """Return when the job was last suspended. A job that was inserted as suspended has waited since its creation."""
    if job.status is not Status.SUSPENDED:
        return None
    if (
        steps
        and kind_of(steps[-1]) in {"sleep", "wait", "gather"}
        and not (job.waits_for or "").startswith((*FOR_LIMITS, FOR_BREAKER))
    ):
        return to_datetime(steps[-1].started_at)
    ends = [entry.at for entry in await store.timeline(job.id) if entry.what == Move.SUSPEND]
    return max(ends, default=job.started_at or job.created_at)


# -- what it means ----------------------------------------------------------------------------------------


def explain(inquiry: Inquiry) -> Why:
    return Why(inquiry.job, inquiry.now, tuple(reasons_of(inquiry)))


def reasons_of(inquiry: Inquiry) -> Iterator[Reason]:
    job = inquiry.job
    if job.finished:
        yield finished(inquiry)
    elif job.status is Status.RUNNING:
        yield from running(inquiry)
    else:
        own = list(of_its_own(inquiry))
        around = list(of_its_surroundings(inquiry))
        yield from own or around or [turn(inquiry), *some_stuck(inquiry)]
        yield from around if own else ()


def of_its_own(inquiry: Inquiry) -> Iterator[Reason]:
    """Yield what the job itself waits for."""
    if inquiry.job.run_at <= inquiry.now:  # a wait for a key is over, too, once the job is due
        return
    of_status = {Status.SUSPENDED: suspended, Status.RETRYING: retry, Status.PENDING: later}
    yield of_status[inquiry.job.status](inquiry)


def of_its_surroundings(inquiry: Inquiry) -> Iterator[Reason]:
    """Yield what would keep the job from running if it were due."""
    for halt in sorted(inquiry.stats.halts, key=lambda halt: halt.queue is not None):
        if halt.queue in {None, inquiry.job.queue}:
            yield halted(halt, inquiry.now)
    yield from unserved(inquiry)
    yield from all_stuck(inquiry)
    if inquiry.job.crashes:
        yield suspect(inquiry.job)


def finished(inquiry: Inquiry) -> Reason:
    job = inquiry.job
    when = show_both(job.finished_at, inquiry.now)
    how = {
        Status.COMPLETED: f"It is done: it completed {when}.",
        Status.CANCELLED: f"It was cancelled {when}{because(job.reason)}. It runs again if it is retried.",
        Status.DEAD_LETTER: f"It is a dead letter since {when}{because(job.reason)}, after {attempts_of(job)}"
        f"{last_error(job)}. It runs again if it is retried.",
    }
    return Reason(Cause.FINISHED, how[job.status], since=job.finished_at, detail={"status": job.status.value})


def running(inquiry: Inquiry) -> Iterator[Reason]:
    job, now = inquiry.job, inquiry.now
    worker = next((worker for worker in inquiry.stats.workers if worker.id == job.worker), None)
    text = f"It is running, on {place_of(worker, job)}, since {show_both(job.started_at, now)}"
    if job.progress is not None:
        text += f", and is {job.progress.fraction:.0%} through{f' ({job.progress.note})' if job.progress.note else ''}"
    text += f". It has done step {done!r}" if (done := last_step(inquiry)) else ""
    if job.cancel_requested:
        text += ". It was asked to stop"
    if worker is None or not worker.alive or silence_of(worker, now) > inquiry.lease * SILENT_SHARE:
        yield silent(inquiry, worker)
    yield Reason(Cause.RUNNING, f"{text}.", since=job.started_at, detail={"worker": job.worker})
    if worker is not None and worker.stuck and job.cancel_requested:
        yield stuck(f"Slots of its worker are stuck, perhaps in this job: {stuck_slots([worker])}.", [worker])


def silent(inquiry: Inquiry, worker: WorkerInfo | None) -> Reason:
    """Say when the job of a silent worker is taken over. Any live worker does that, whatever queues it serves."""
    now, seen_at = inquiry.now, None if worker is None else worker.seen_at
    until = None if seen_at is None else seen_at + timedelta(seconds=inquiry.lease)
    known = "is gone" if worker is None else "is silent" if worker.alive else "counts as dead"
    text = f"Its worker {known}" if seen_at is None else f"Its worker {known}, last seen {show_both(seen_at, now)}"
    if not any(other.alive and other.id != inquiry.job.worker for other in inquiry.stats.workers):
        text += ", and no other worker is alive to take the job over: start one"
    elif worker is not None and worker.alive and until is not None and until > now:
        text += f"; after {show_length(inquiry.lease)} of silence, {show_relative(until, now)}, the job is taken over"
    else:
        text += "; the job is taken over as soon as another worker looks"
    return Reason(Cause.SILENT, f"{text}.", seen_at, until, {"worker": inquiry.job.worker})


def silence_of(worker: WorkerInfo, now: datetime) -> float:
    """Return the seconds since the worker's last heartbeat."""
    return 0.0 if worker.seen_at is None else (now - worker.seen_at).total_seconds()


def place_of(worker: WorkerInfo | None, job: Job) -> str:
    return f"worker {job.worker}" if worker is None else f"worker {worker.id} (process {worker.pid} of {worker.host})"


def later(inquiry: Inquiry) -> Reason:
    job, when = inquiry.job, show_both(inquiry.job.run_at, inquiry.now)
    if reason := job.reason or told_reason(job):
        return Reason(Cause.LATER, f"It was put off until {when}{because(reason)}.", until=job.run_at)
    return Reason(Cause.LATER, f"It is scheduled for later: due {when}.", until=job.run_at)


def retry(inquiry: Inquiry) -> Reason:
    job = inquiry.job
    text = (
        f"It waits for its retry, due {show_both(job.run_at, inquiry.now)}: {attempts_of(job)} failed{last_error(job)}."
    )
    return Reason(Cause.RETRY, text, until=job.run_at, detail={"attempts": job.attempts, "of": job.max_attempts})


def suspended(inquiry: Inquiry) -> Reason:
    job, key = inquiry.job, inquiry.job.waits_for or ""
    since = inquiry.suspended_at
    for_ = f", since {show_both(since, inquiry.now)}" if since else ""
    after = f" It has done step {done!r}." if (done := last_step(inquiry)) else ""
    if not key:
        text = f"It sleeps until {show_both(job.run_at, inquiry.now)}{for_}.{after}"
        return Reason(Cause.SLEEP, text, since, job.run_at)
    if key.startswith(AFTER_JOB):
        return Reason(
            Cause.JOB,
            f"It waits for {described(inquiry.other, key)}{for_}.{after}",
            since,
            detail={"job": other_of(job)},
        )
    if key.startswith(FOR_LIMITS):
        text = f"It {blocked(key)}{for_}{because(job.reason)}.{after}"
        return Reason(Cause.LIMIT, text, since, detail={"limit": key})
    if key.startswith(FOR_BREAKER):
        name = key.removeprefix(FOR_BREAKER)
        text = f"It waits{for_}, until the circuit breaker {name!r} is closed, or lets it through to try.{after}"
        return Reason(Cause.BREAKER, text, since, detail={"breaker": name})
    if key.startswith(FOR_SIGNAL):
        name = key.removeprefix(FOR_SIGNAL)
        until = end_of_wait(inquiry, name)
        ends = f", until {show_both(until, inquiry.now)} at the latest" if until else ""
        return Reason(Cause.SIGNAL, f"It waits for signal {name!r}{for_}{ends}.{after}", since, until, {"signal": name})
    return Reason(Cause.KEY, f"It waits for {key!r}{for_}{because(job.reason)}.{after}", since, detail={"key": key})


def blocked(key: str) -> str:
    kind, _, name = key.partition(":")
    if kind == "fair":
        return f"waits for its turn in the line of {name!r}, so that others are not kept waiting"
    return f"is blocked by {kind} {name!r}"


def described(other: Job | None, key: str) -> str:
    if other is None:
        return f"the end of job {key.removeprefix(AFTER_JOB)}, which is gone"
    status = f"{other.status}, as {other.reason!r}" if other.reason else str(other.status)
    return f"the end of job {other.id} (task {other.task!r}, {status})"


def halted(halt: Halt, now: datetime) -> Reason:
    what = "The system is halted" if halt.queue is None else f"Its queue {halt.queue!r} is paused"
    until = f" until {show_both(halt.until, now)}" if halt.until else ""
    text = f"{what} by {halt.actor} since {show_both(halt.since, now)}{until}{because(halt.reason)}."
    cause = Cause.HALTED if halt.queue is None else Cause.PAUSED
    return Reason(cause, text, halt.since, halt.until, {"actor": halt.actor, "reason": halt.reason})


def unserved(inquiry: Inquiry) -> Iterator[Reason]:
    job = inquiry.job
    alive = [worker for worker in inquiry.stats.workers if worker.alive]
    serving = serving_workers(inquiry)
    if not alive:
        yield Reason(Cause.NO_WORKER, f"No worker is alive to take it from queue {job.queue!r}.")
    elif not serving:
        queues = sorted({queue for worker in alive for queue in worker.queues})
        text = f"No live worker takes from its queue {job.queue!r}; there are {len(alive)}, for {', '.join(queues)}."
        yield Reason(Cause.NO_WORKER, text, detail={"queue": job.queue, "served": queues})
    elif all(worker.tasks and job.task not in worker.tasks for worker in serving):
        text = (
            f"No live worker of its queue {job.queue!r} knows task {job.task!r}: is the code"
            " that defines it deployed, and imported by their application?"
        )
        yield Reason(Cause.UNKNOWN_TASK, text, detail={"task": job.task, "workers": [worker.id for worker in serving]})


def serving_workers(inquiry: Inquiry) -> list[WorkerInfo]:
    """Return the live workers that take from the job's queue."""
    alive = [worker for worker in inquiry.stats.workers if worker.alive]
    return [worker for worker in alive if is_among(inquiry.job.queue, worker.queues)]


def all_stuck(inquiry: Inquiry) -> Iterator[Reason]:
    serving = serving_workers(inquiry)
    if serving and all(worker.stuck >= worker.concurrency for worker in serving):
        text = (
            f"All slots of the workers of its queue {inquiry.job.queue!r} are stuck: {stuck_slots(serving)}. Their jobs"
            " were told to stop but do not end. Restart the workers; their log lines slot_stuck say where they hang."
        )
        yield stuck(text, serving)


def some_stuck(inquiry: Inquiry) -> Iterator[Reason]:
    """Yield the stuck slots, for a job that waits for its turn: it would run sooner if they were free."""
    if workers := [worker for worker in serving_workers(inquiry) if worker.stuck]:
        text = (
            f"Some slots are stuck and run nothing else: {stuck_slots(workers)}. Their jobs were told to stop but do"
            " not end; the log lines slot_stuck of the workers say where they hang."
        )
        yield stuck(text, workers)


def stuck(text: str, workers: Sequence[WorkerInfo]) -> Reason:
    return Reason(Cause.STUCK, text, detail={"stuck": {worker.id: worker.stuck for worker in workers}})


def stuck_slots(workers: Sequence[WorkerInfo]) -> str:
    return ", ".join(f"{worker.stuck} of {worker.concurrency} of worker {worker.id}" for worker in workers)


def suspect(job: Job) -> Reason:
    times = "once" if job.crashes == 1 else f"{job.crashes} times"
    text = (
        f"Its worker died {times} while it ran, so it runs alone, when a worker of its queue is idle; after"
        f" {MAX_CRASHES} times it becomes a dead letter."
    )
    return Reason(Cause.SUSPECT, text, detail={"crashes": job.crashes})


def turn(inquiry: Inquiry) -> Reason:
    job, stats = inquiry.job, inquiry.stats
    due, oldest = stats.due.get(job.queue, 0), stats.oldest_due.get(job.queue)
    text = f"Nothing is in its way: it has been due since {show_both(job.run_at, inquiry.now)} and waits for its turn"
    if due > 1 and oldest is not None:
        text += f", one of {due} in its queue; the oldest has been due since {show_both(oldest, inquiry.now)}"
    return Reason(Cause.TURN, f"{text}.", since=job.run_at, detail={"due": due, "priority": job.priority.name.lower()})


# -- what a durable function has recorded -----------------------------------------------------------------


def last_step(inquiry: Inquiry) -> str:
    return next((step.name for step in reversed(inquiry.steps) if kind_of(step) == "step"), "")


def end_of_wait(inquiry: Inquiry, key: str) -> datetime | None:
    """Return the end of the wait. The job's `run_at` may be earlier, because a waiting job re-checks by itself."""
    states = [json.loads(step.output or "{}") for step in inquiry.steps if kind_of(step) == "wait"]
    ends = [state.get("until") for state in states if state.get("key") == key and "signal" not in state]
    return None if not ends or ends[-1] is None else to_datetime(ends[-1])


# -- words ------------------------------------------------------------------------------------------------


def because(reason: str) -> str:
    return f": {reason}" if reason else ""


def attempts_of(job: Job) -> str:
    if job.status in WAITING:
        return f"attempt {job.attempts} of {job.max_attempts}"
    return "one attempt" if job.attempts == 1 else f"{job.attempts} attempts"


def last_error(job: Job) -> str:
    return "" if job.failure is None else f", last with {job.failure.type}: {job.failure.message}"
