"""The progress of a durable function for display: which steps are done, which runs or waits, which are to come."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from mainspring.clock import to_datetime, to_millis
from mainspring.features.durable.journal import FAILED, calls_in, kind_of
from mainspring.features.durable.plan import StepPlan
from mainspring.features.durable.saved import saved_in
from mainspring.job import Job, Status, Step

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
    saved: Any = None  # what the function has saved of it, with `ctx.save_state`
    timeout: float | None = None  # seconds, from the job's plan


PREFIX, SUFFIX = "step ", " failed"


def reason_for(step: str) -> str:
    """Return the job's `reason` when this step's failure ended the run. It names the step, which is not recorded."""
    return f"{PREFIX}{step}{SUFFIX}"


def failed_step(job: Job) -> str | None:
    """Return the step whose failure ended the last run. A retry repeats it."""
    if job.status not in ENDED_BADLY or not (job.reason.startswith(PREFIX) and job.reason.endswith(SUFFIX)):
        return None
    return job.reason.removeprefix(PREFIX).removesuffix(SUFFIX)


def states_of(job: Job, records: Sequence[Step], now: datetime) -> list[StepState]:
    """Return the state of each recorded, failed and declared step of a job, and what is saved of it."""
    saved, plan = saved_in(records), StepPlan.from_options(job.options)
    states = states_of_calls(job, calls_in(records), list(plan), now)
    known = {state.name for state in states}
    states += [StepState(name, state_of_saved(job)) for name in saved if name not in known]
    return [replace(state, saved=saved.get(state.name), timeout=plan.timeout(state.name)) for state in states]


def state_of_saved(job: Job) -> State:
    """Return the state of a step of which only a saved state is known."""
    if job.status is Status.RUNNING:
        return State.RUNNING
    return State.DONE if job.status is Status.COMPLETED else State.TO_COME


def states_of_calls(job: Job, steps: Sequence[Step], declared: Sequence[str], now: datetime) -> list[StepState]:
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
