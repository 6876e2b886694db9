"""The progress of a durable function for display: which steps are done, which runs or waits, which are to come."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mainspring.clock import to_datetime, to_millis
from mainspring.features.durable.journal import FAILED, kind_of
from mainspring.job import Job, Status, Step
from mainspring.stores.records import Kind
from mainspring.stores.records import kind_of as kind_of_record

if TYPE_CHECKING:
    from mainspring.stores.protocol import Store


ENDED_BADLY = frozenset({Status.RETRYING, Status.DEAD_LETTER})


class State(StrEnum):
    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"  # the function sleeps here, or waits for a signal or for children
    FAILED = "failed"  # it ended the last run; or the function caught its error and went on
    TO_COME = "to come"  # declared in @app.task(steps=…), and not begun
    SKIPPED = "skipped"  # declared, but the function took another path


@dataclass(frozen=True, slots=True)
class StepState:
    """One step, sleep, wait or child of a job."""

    name: str
    state: State
    kind: str = "step"  # step, sleep, wait, spawn, gather
    output: Any = None  # a step's result; the end of a sleep; a signal's payload; children's ids or results
    started_at: datetime | None = None
    finished_at: datetime | None = None


PREFIX, SUFFIX = "step ", " failed"


def reason_for(step: str) -> str:
    """Return the job's `reason` when this step's failure ended the run. It names the step, which is not recorded."""
    return f"{PREFIX}{step}{SUFFIX}"


def failed_step(job: Job) -> str | None:
    """Return the step whose failure ended the last run. A retry repeats it."""
    if job.status not in ENDED_BADLY or not (job.reason.startswith(PREFIX) and job.reason.endswith(SUFFIX)):
        return None
    return job.reason.removeprefix(PREFIX).removesuffix(SUFFIX)


def states_of(job: Job, steps: Sequence[Step], declared: Sequence[str], now: datetime) -> list[StepState]:
    """Return the state of each recorded, failed and declared step of a job."""
    recorded = [recorded_state(job, step, steps[-1], now) for step in steps]
    failed = failed_step(job)
    known = {*declared, *(step.name for step in steps)}
    failures = [] if failed is None or failed in known else [StepState(failed, State.FAILED)]
    return [*recorded, *failures, *declared_states(job, recorded, declared)]


def restartable(states: Sequence[StepState]) -> list[str]:
    """Return the names of the steps from which the job can start again: the recorded ones and the failed one."""
    return [step.name for step in states if step.started_at is not None or step.state is State.FAILED]


def recorded_state(job: Job, step: Step, last: Step, now: datetime) -> StepState:
    kind, value = kind_of(step), json.loads(step.output or "null")
    started_at, finished_at = to_datetime(step.started_at), to_datetime(step.finished_at)
    if kind == FAILED:
        return StepState(step.name, State.FAILED, "step", value["args"], started_at, finished_at)
    waits, output, ended = interpretation(kind, value, is_last=step is last, now=now, finished_at=finished_at)
    if waits and kind == "gather" and step is last and job.status in ENDED_BADLY:
        return StepState(step.name, State.FAILED, kind, output, started_at, ended)  # a child did not complete
    if waits and not job.finished:
        return StepState(step.name, State.WAITING, kind, output, started_at)
    return StepState(step.name, State.SKIPPED if waits else State.DONE, kind, output, started_at, ended)


def interpretation(
    kind: str, value: Any, *, is_last: bool, now: datetime, finished_at: datetime
) -> tuple[bool, Any, datetime]:
    """Return whether the function waits there, the output so far, and when it ended."""
    match kind:
        case "sleep":
            until = to_datetime(value)
            return is_last and value > to_millis(now), until.isoformat(), until
        case "wait":
            return "signal" not in value, (value.get("signal") or {}).get("payload"), finished_at
        case "spawn":
            return False, value["ids"][0], finished_at
        case "gather":
            results = [end.get("result", end.get("error")) for end in value.get("ends", [])]
            return "ends" not in value, results or value["ids"], finished_at
    return False, value, finished_at


def declared_states(job: Job, recorded: Sequence[StepState], declared: Sequence[str]) -> Iterator[StepState]:
    """Return the states of declared steps that are not recorded.

    The first of them after the last recorded one is the current step, unless the function waits elsewhere.
    """
    there = {state.name for state in recorded}
    places = [place for place, name in enumerate(declared) if name in there]
    reached = max(places, default=-1)
    at = state_at(job, recorded, declared)
    for place, name in enumerate(declared):
        if name in there:
            continue
        if place < reached or job.status is Status.COMPLETED:
            yield StepState(name, State.SKIPPED)
        else:
            yield StepState(name, at)
            at = State.TO_COME


def state_at(job: Job, recorded: Sequence[StepState], declared: Sequence[str]) -> State:
    failed = failed_step(job)
    if failed is not None and failed not in declared:  # the failed step is not declared, and comes before
        return State.TO_COME
    if any(state.state is State.WAITING for state in recorded):
        return State.TO_COME
    if job.status is Status.RUNNING:
        return State.RUNNING
    return State.FAILED if job.status in ENDED_BADLY else State.TO_COME


async def declared_by(store: Store, job: Job) -> list[str]:
    """Return the steps that the task declared when the job was enqueued.

    They are stored with the job, because a reader may not have the task's code.
    """
    for kind in dict.fromkeys((kind_of_record(job.status), Kind.LIVE, Kind.HISTORY, Kind.DEAD)):
        for record in await store.look_up(kind, [job.id]):
            steps: list[str] = json.loads(record["options"] or "{}").get("steps", [])
            return steps
    return []
