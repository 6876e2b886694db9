"""Lets features decide about claimed jobs before a lessee gets them, as the worker's own admission does."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from mainspring.clock import Millis
from mainspring.feature import Refusal
from mainspring.job import Claim, Move, Outcome
from mainspring.leases.ending import LeasedRun
from mainspring.runtime import Runtime
from mainspring.stores.protocol import Halt
from mainspring.worker.gate import log_failure
from mainspring.worker.run import SEALED, Stop, outcome, outcome_of_error, outcome_of_unreadable

INTERNAL_DELAY: Millis = 2_000  # leaves a job of Mainspring's own tasks to a worker

Ended = tuple[LeasedRun, Outcome]
"""A run that does not start, and what becomes of its job."""


async def admit(runtime: Runtime, claims: Sequence[Claim]) -> tuple[list[LeasedRun], list[Ended]]:
    """Return the runs that may start, and the others, each with its outcome."""
    runs = [LeasedRun(claim, runtime.task_named(claim.task)) for claim in claims]
    internal = [run for run in runs if run.claim.task in runtime.internal_tasks]
    ended = [(run, left_to_a_worker(run, runtime.store.clock.now())) for run in internal]
    unreadable = [run for run in runs if run.claim.payload.startswith(SEALED) and run not in internal]
    ended += [(run, outcome_of_unreadable(run, runtime.store.clock.now())) for run in unreadable]
    runs = [run for run in runs if run not in internal and run not in unreadable]
    concerned = _concerned(runtime, [run.claim for run in runs])
    guarded = [run for run in runs if run.claim.id in concerned]
    if guarded:
        refused = await _ask(runtime, guarded)
        ended += refused
        turned_away = {run.claim.id for run, _ in refused}
        runs = [run for run in runs if run.claim.id not in turned_away]
        passed = [run for run in guarded if run.claim.id not in turned_away]
        for run in passed:
            run.passed = True
        runtime.features.disown([run.claim for run in passed])
    return runs, ended


def _concerned(runtime: Runtime, claims: list[Claim]) -> Collection[str]:
    features = runtime.features
    has_options = any(claim.options is not None for claim in claims)
    return features.concern(claims) if claims and (has_options or features.choosing) else ()


async def _ask(runtime: Runtime, runs: list[LeasedRun]) -> list[Ended]:
    """Ask the features. If that fails, hand all these jobs back for others."""
    now = runtime.store.clock.now()
    try:
        refusals = await runtime.features.admit([run.claim for run in runs], now)
    except Exception as error:  # noqa: BLE001 - whatever failed, the jobs must not stay claimed
        log_failure(runs, error)
        return [(run, handed_back(run, Stop.CROWDED, now)) for run in runs]
    asked = ((run, refusals.get(run.claim.id)) for run in runs)
    return [(run, _turned_away(run, refusal)) for run, refusal in asked if refusal and not refusal.cancel_wait()]


def _turned_away(run: LeasedRun, refusal: Refusal) -> Outcome:
    run.recheck = refusal.recheck
    return refusal.outcome


def handed_back(run: LeasedRun, stop: Stop, now: Millis) -> Outcome:
    """Return the outcome of a run that does not start after all. It uses no attempt."""
    run.stop, run.called = stop, False
    released = outcome_of_error(run, asyncio.CancelledError(), now)
    assert released is not None  # noqa: S101 - only a lost claim has no outcome
    return released


def left_to_a_worker(run: LeasedRun, now: Millis) -> Outcome:
    reason = f"only a worker of Mainspring runs {run.claim.task!r}"
    return outcome(run, Move.RELEASE, now, delay=INTERNAL_DELAY, reason=reason)


def halted(runs: Sequence[LeasedRun], halts: Sequence[Halt], now: Millis) -> list[Ended]:
    """Return the runs that a halt stops, which was set while they were being admitted."""
    stopped = {halt.queue for halt in halts}
    stops = [run for run in runs if None in stopped or run.claim.queue in stopped]
    return [(run, handed_back(run, Stop.HALTED, now)) for run in stops]
