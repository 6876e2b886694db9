"""What a handler may know and do about the job it runs. Ask for it by annotation: `ctx: Context`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any

from mainspring.clock import to_datetime
from mainspring.durable.calls import Durable, DurableCalls, NoCalls
from mainspring.durable.detached import Detached
from mainspring.errors import Cancel, UnsupportedCall
from mainspring.flow.batch_progress import BatchProgress
from mainspring.flow.passage import DetachedPassage, Passage
from mainspring.job import Claim, NewJob, check_prepared
from mainspring.names import showable
from mainspring.stores.protocol import Completion
from mainspring.stores.rules import refuse_unkeepable

UNSET: Any = object()


class JobTransaction:
    """The store's transaction. It remembers its commit: with that the job has ended, whatever the handler does next."""

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
            if error is None:  # a second one that fails does not undo the first
                self._effects.committed = True
                self._effects.enqueued = tuple(self._effects.follow_ups)
        finally:
            self._effects.committing = False


@dataclass(slots=True)
class Effects:
    """What the handler left to be committed with its outcome."""

    follow_ups: list[NewJob] = field(default_factory=list)
    result: Any = UNSET
    committing: bool = False  # ctx.transaction() is about to
    committed: bool = False
    enqueued: tuple[NewJob, ...] = ()  # the follow-ups that it took along


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Which time of which schedule a job is for."""

    schedule: str
    nominal: datetime  # the local time that its rule names: naive
    utc: datetime


making = threading.Lock()
NOT_HERE = "a durable function runs neither in batches nor in a process of its own; it may spawn children that do"


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
        self.effects = Effects()

    @classmethod
    def detached(
        cls, *, signals: Mapping[str, Any] | None = None, results: Mapping[str, Any] | None = None, **fields: Any
    ) -> Context:
        """For calling a handler directly, in unit tests: nothing it does reaches a store.

        Steps just run, sleeps are over at once, a wait gets what `signals` has under its key (or None), a child gives
        what `results` has under the name of its task; see docs/durable.md.
        """
        values = {
            "id": "00000000-0000-7000-8000-000000000000", "token": 0, "task": "", "queue": "default", "payload": "{}",
            "priority": 2, "attempts": 0, "max_attempts": 1, "crashes": 0, "timeout": 0, "run_at": 0, "created_at": 0,
        }  # fmt: skip
        return cls(Claim(**{**values, **fields}), durable=partial(Detached, signals or {}, results or {}))

    @property
    def job_id(self) -> str:
        return self._claim.id

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt: give it to the services you call, so that a repeat is recognised.

        The job's id; for a person's occasion `{person}:{kind}:{local date}`. Within a step, with the step's name.
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
        """The schedule's time that this job is for; None for jobs that no schedule has made."""
        given = json.loads(self._claim.options or "{}").get("occurrence")
        if given is None:
            return None
        nominal, utc = (datetime.fromisoformat(given[name]) for name in ("nominal", "utc"))
        return Scheduled(given["schedule"], nominal, utc)

    @property
    def batch(self) -> BatchProgress | None:
        """The batch that this job follows, and how its jobs ended; None for all others."""
        given = json.loads(self._claim.options or "{}").get("batch")
        return None if given is None else BatchProgress(**given)

    @property
    def attempt(self) -> int:
        """From 1."""
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
        """What the enqueue gave this job to carry, by `using(headers=…)` or middleware: a tenant, a trace."""
        given: dict[str, str] = json.loads(self._claim.options or "{}").get("headers", {})
        return given

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
        """Whether this run should stop: it was cancelled, overran its timeout, or its worker shuts down.

        Coroutines are cancelled and processes ended; a thread cannot be, so long ones look here now and then.
        """
        return self._stop.is_set()

    def raise_if_cancelled(self) -> None:
        if self._stop.is_set():
            raise Cancel(self._stop_reason)

    def wait_cancelled(self, seconds: float) -> bool:
        """Sleep in a thread, but wake at once when cancelled; says whether it was."""
        return self._stop.wait(seconds)

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far this run is (0 to 1). Only the last of many is written."""
        if not 0 <= fraction <= 1:
            msg = f"progress is a fraction between 0 and 1, not {fraction}"
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
        self.effects.follow_ups += jobs

    def set_result(self, value: Any) -> None:
        """The job's result, where it must be known before the handler returns (see `transaction`)."""
        self._refuse_within_step("ctx.set_result")
        self._refuse_after_commit("ctx.set_result(…)")
        self.effects.result = value

    def transaction(self, connection: Any = None) -> JobTransaction:
        """A transaction on the jobs' own database, at whose end this job is completed: with your rows, or not at all.

        Give the result with `set_result` inside the block: a value that the handler returns after it is not stored.

        async with ctx.transaction() as connection: ...    (plain `with` in a thread)
        async with ctx.transaction(session): ...           (on your own connection, SQLAlchemy session, …)
        """
        self._refuse_within_step("ctx.transaction")
        if self._transact is None:
            msg = "ctx.transaction() needs a worker and a store with transactions, and no process isolation"
            raise UnsupportedCall(msg)
        return JobTransaction(self._transact(connection), self.effects)

    def breaker(self, name: str) -> Passage | DetachedPassage:
        """Around calls of a service that may fail: while its circuit breaker is open, this run ends, to be run later.

        async with ctx.breaker("email-api"): ...    (plain `with` in a thread)
        """
        if self._passage is None:
            return DetachedPassage()
        return self._passage(name, lambda: self._stop_reason == "timeout")

    @property
    def _durable(self) -> Durable:
        """Made when first asked for: most handlers are not durable, and need not pay for it."""
        return self._made or self._make()

    def _make(self) -> Durable:
        with making:  # branches in threads may come at once
            if self._made is None:
                self._made = self._make_durable()
            return self._made

    def _refuse_within_step(self, what: str) -> None:
        if self._made is not None:
            self._made.refuse_within_step(what)

    def _refuse_after_commit(self, what: str) -> None:
        """What comes after the commit would be lost: the job has ended."""
        if self.effects.committed:
            msg = f"the job was completed at the end of ctx.transaction(); call {what} before that, inside the block"
            raise UnsupportedCall(msg)

    def stop(self, reason: str) -> None:
        """Called by the worker."""
        self._stop_reason = reason
        self._stop.set()
