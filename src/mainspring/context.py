"""What a handler can read and do about the job it runs. A handler gets it with an annotation: `ctx: Context`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, TypedDict, Unpack

from mainspring.clock import Millis, to_datetime
from mainspring.durable_calls import Durable, DurableCalls, NoCalls
from mainspring.errors import Cancel, UnsupportedCall
from mainspring.features.batches.rules import BatchProgress
from mainspring.features.breakers.call import DetachedPassage, Passage
from mainspring.features.durable.deadline import Deadline, current_deadline
from mainspring.features.durable.detached import Detached
from mainspring.features.durable.plan import Planned, StepPlan
from mainspring.job import Claim, NewJob, Outcome, check_prepared
from mainspring.names import showable
from mainspring.projects import in_project_of
from mainspring.stored_options import options_of
from mainspring.stores.engine.creation import refuse_unkeepable
from mainspring.stores.protocol import Completion
from mainspring.trace import in_trace_of, trace_of

UNSET: Any = object()


class JobTransaction:
    """The store's transaction. It records its commit: that completes the job, whatever the handler does next."""

    def __init__(self, completion: Completion, effects: Effects) -> None:
        self._completion = completion
        self._effects = effects

    def __enter__(self) -> Any:
        return self._completion.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._committing(error):
            self._completion.__exit__(kind, error, trace)

    async def __aenter__(self) -> Any:
        return await self._completion.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._committing(error):
            await self._completion.__aexit__(kind, error, trace)

    @contextmanager
    def _committing(self, error: BaseException | None) -> Iterator[None]:
        self._effects.committing = error is None
        try:
            yield
            if error is None:  # if a second transaction fails, that does not undo the first one's commit
                self._effects.committed = True
        finally:
            self._effects.committing = False


@dataclass(slots=True)
class Effects:
    """What the handler wants committed together with its outcome."""

    follow_ups: list[NewJob] = field(default_factory=list)
    result: Any = UNSET
    committing: bool = False  # ctx.transaction() is about to commit
    committed: bool = False
    outcome: Outcome | None = None  # what ctx.transaction() has written


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Which time of which schedule a job is for."""

    schedule: str
    nominal: datetime  # the local time in the schedule's rule, as a naive datetime
    utc: datetime


class DetachedFields(TypedDict, total=False):
    """What a detached context can say of its job."""

    id: str
    task: str
    queue: str
    attempts: int  # that ended before this one
    max_attempts: int
    run_at: Millis
    created_at: Millis
    dedupe_key: str | None
    target: tuple[str, str] | None
    tags: tuple[str, ...]
    options: str | None  # as JSON, see stored_options.py


making = threading.Lock()
NOT_HERE = "a durable function cannot run in chunks or in its own process; it may spawn children that do"


class Context(DurableCalls):
    """One run of one job."""

    def __init__(
        self,
        claim: Claim,
        *,
        key: str | None = None,
        worker: str = "",
        report: Callable[[float, str], None] = lambda _fraction, _note: None,
        transact: Callable[[Any], Completion] | None = None,
        durable: Callable[[], Durable] | None = None,
        passage: Callable[[str, Callable[[], bool]], Passage] | None = None,
        plan: StepPlan | None = None,
    ) -> None:
        self._claim = claim
        self._key = key or claim.id
        self.worker = worker
        self._report = report
        self._transact = transact
        self._make_durable = durable or partial(NoCalls, NOT_HERE)
        self._made: Durable | None = None
        self._passage = passage
        self._stop = threading.Event()
        self._stop_reason = ""
        self._to_tell: list[threading.Event] = []  # those that wait in a step with a timeout
        self._plan = plan
        self.effects = Effects()

    @classmethod
    def detached(
        cls,
        *,
        signals: Mapping[str, Any] | None = None,
        results: Mapping[str, Any] | None = None,
        steps: StepPlan | Planned | None = None,
        **fields: Unpack[DetachedFields],
    ) -> Context:
        """Make a context for calling a handler directly in unit tests. Nothing the handler does reaches a store.

        Steps run at once and sleeps end at once. A wait returns what `signals` has under its key, or None. A child
        returns what `results` has under the name of its task. `steps` is the job's plan. See docs/durable.md.
        """
        values: dict[str, Any] = {
            "id": "00000000-0000-7000-8000-000000000000", "token": 0, "task": "", "queue": "default", "payload": "{}",
            "priority": 2, "attempts": 0, "max_attempts": 1, "crashes": 0, "timeout": 0, "run_at": 0, "created_at": 0,
        }  # fmt: skip
        claim = Claim(**{**values, **fields})
        if steps is not None:
            own = {**options_of(claim.options), "plan": StepPlan.of(steps).to_data()}
            claim.options = json.dumps(own)
        plan = StepPlan.from_options(options_of(claim.options))
        return cls(claim, durable=partial(Detached, signals or {}, results or {}, plan), plan=plan)

    @property
    def job_id(self) -> str:
        return self._claim.id

    @property
    def idempotency_key(self) -> str:
        """The key for services you call, so that they recognise a repeat: it is the same for every attempt.

        It is the job's id, or `{person}:{kind}:{local date}` for a person's occasion. Within a step, the step's name is
        appended.
        """
        step = None if self._made is None else self._made.step_here()
        return self._key if step is None else f"{self._key}:{step}"

    @property
    def task(self) -> str:
        return self._claim.task

    @property
    def queue(self) -> str:
        return self._claim.queue

    @property
    def occurrence(self) -> Scheduled | None:
        """The schedule and the time that this job is for; None if no schedule made the job."""
        given = options_of(self._claim.options).get("occurrence")
        if given is None:
            return None
        nominal, utc = datetime.fromisoformat(given["nominal"]), datetime.fromisoformat(given["utc"])
        return Scheduled(given["schedule"], nominal, utc)

    @property
    def batch(self) -> BatchProgress | None:
        """The batch that this job follows, and how its jobs ended; None if the job follows no batch."""
        given = options_of(self._claim.options).get("batch")
        return None if given is None else BatchProgress(**given)

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._claim.attempt

    @property
    def max_attempts(self) -> int:
        return self._claim.max_attempts

    @property
    def last_attempt(self) -> bool:
        return self.attempt >= self.max_attempts

    @property
    def target(self) -> tuple[str, str] | None:
        return self._claim.target

    @property
    def tags(self) -> tuple[str, ...]:
        return self._claim.tags

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the enqueue gave this job, with `using(headers=…)` or middleware: a tenant, a trace."""
        return options_of(self._claim.options).get("headers", {})

    @property
    def plan(self) -> StepPlan:
        """The steps of this job: those that its enqueue asked for, or else those that its task declares."""
        return StepPlan.from_options(options_of(self._claim.options)) if self._plan is None else self._plan

    @property
    def trace(self) -> Mapping[str, str]:
        """The job's trace context, such as `traceparent`. Jobs that this handler enqueues get the same."""
        return trace_of(self._claim.options)

    @property
    def dedupe_key(self) -> str | None:
        return self._claim.dedupe_key

    @property
    def run_at(self) -> datetime:
        return to_datetime(self._claim.run_at)

    @property
    def created_at(self) -> datetime:
        return to_datetime(self._claim.created_at)

    @property
    def cancelled(self) -> bool:
        """Whether this run should stop: it was cancelled, it or its step overran its timeout, or its worker shuts down.

        The worker cancels coroutines and ends processes. It cannot stop a thread, so long handlers in threads should
        check this regularly.
        """
        return self._stop.is_set() or self._overdue is not None

    @property
    def _overdue(self) -> Deadline | None:
        """The deadline of the step that is executing in this thread, if it is over."""
        deadline = current_deadline.get()
        return deadline if deadline is not None and deadline.over else None

    def raise_if_cancelled(self) -> None:
        if self._stop.is_set():
            raise Cancel(self._stop_reason)
        if (overdue := self._overdue) is not None:
            raise overdue.error()

    def wait_cancelled(self, seconds: float) -> bool:
        """Sleep in a thread, but wake up at once when cancelled. Return whether the run was cancelled."""
        deadline = current_deadline.get()
        if deadline is None:
            return self._stop.wait(seconds)
        self._to_tell.append(deadline.told)
        try:
            return self._stop.is_set() or deadline.told.wait(seconds)
        finally:
            self._to_tell.remove(deadline.told)

    def progress(self, fraction: float, note: str = "") -> None:
        """Report how far this run is (0 to 1). Of many reports in a short time, only the last is written."""
        if not 0 <= fraction <= 1:
            msg = f"progress must be a fraction between 0 and 1, not {fraction}"
            raise ValueError(msg)
        self._report(float(fraction), showable(str(note)))

    def follow_up(self, *jobs: NewJob) -> None:
        """Enqueue jobs together with this one's success: both are committed, or neither.

        ctx.follow_up(send_invoice.prepare(order_id=7))
        """
        self._refuse_within_step("ctx.follow_up")
        self._refuse_after_commit("ctx.follow_up(…)")
        check_prepared("ctx.follow_up", jobs)
        refuse_unkeepable(jobs)
        self.effects.follow_ups += in_project_of(self._claim, in_trace_of(self._claim, jobs))

    def set_result(self, value: Any) -> None:
        """Set the job's result before the handler returns, as needed for `transaction`."""
        self._refuse_within_step("ctx.set_result")
        self._refuse_after_commit("ctx.set_result(…)")
        self.effects.result = value

    def transaction(self, connection: Any = None) -> JobTransaction:
        """Open a transaction on the jobs' database. Its commit writes your rows and completes this job, or neither.

        Set the result with `set_result` inside the block: a value that the handler returns after it is not stored.

        async with ctx.transaction() as connection: ...    (plain `with` in a thread)
        async with ctx.transaction(session): ...           (on your own connection, SQLAlchemy session, …)
        """
        self._refuse_within_step("ctx.transaction")
        if self._transact is None:
            msg = "ctx.transaction() needs a worker and a store with transactions, and no process isolation"
            raise UnsupportedCall(msg)
        return JobTransaction(self._transact(connection), self.effects)

    def breaker(self, name: str) -> Passage | DetachedPassage:
        """Wrap calls of a service that may fail. While its circuit breaker is open, this run ends and runs later.

        async with ctx.breaker("email-api"): ...    (plain `with` in a thread)
        """
        if self._passage is None:
            return DetachedPassage()
        return self._passage(name, lambda: self._stop_reason == "timeout")

    @property
    def _durable(self) -> Durable:
        """Make it at first use: most handlers are not durable and should not pay for it."""
        return self._made or self._make()

    def _make(self) -> Durable:
        with making:  # branches in several threads may get here at the same time
            if self._made is None:
                self._made = self._make_durable()
            return self._made

    def _refuse_within_step(self, what: str) -> None:
        if self._made is not None:
            self._made.refuse_within_step(what)

    def _refuse_after_commit(self, what: str) -> None:
        """Raise UnsupportedCall after the commit: the job has ended, so the call would have no effect."""
        if self.effects.committed:
            msg = f"the job was completed at the end of ctx.transaction(); call {what} before that, inside the block"
            raise UnsupportedCall(msg)

    def stop(self, reason: str) -> None:
        """Tell this run to stop. The worker calls this."""
        self._stop_reason = reason
        self._stop.set()
        for event in tuple(self._to_tell):
            event.set()
