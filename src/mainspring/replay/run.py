"""Running a finished or failed job here, with its payload and what it has recorded.

Steps that are recorded give what they gave; sleeps are over at once; waits get the signal that they got. Whatever is
not recorded is asked for before it is done, or ends the replay.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from mainspring.app import Mainspring
from mainspring.batch_task import BatchTask
from mainspring.batched import Item
from mainspring.context import UNSET, Context
from mainspring.durable.calls import RecordedCalls
from mainspring.durable.journal import Asked
from mainspring.durable.run import Branch, DurableRun
from mainspring.durable.states import restartable
from mainspring.durable.suspension import Wait
from mainspring.errors import ConfigurationError, IllegalMove, JobNotFound
from mainspring.events import Bus
from mainspring.job import FINISHED, Claim, Job, Move, NewJob, Outcome, Status, Step
from mainspring.middleware import RunCall
from mainspring.replay.read_only_store import ReadOnlyStore, RolledBack
from mainspring.replay.unrecorded import Unrecorded
from mainspring.stores.protocol import Completion, Store
from mainspring.stores.records import Record, kind_of
from mainspring.task import Task

REPLAYED = FINISHED | {Status.FAILED}
SIGNAL_KEY = "signal:"


@dataclass(slots=True)
class Replayed:
    """How it ended here. Neither result nor error: it was `stopped`, and that says why."""

    result: Any = None
    error: BaseException | None = None
    stopped: str = ""
    jobs: list[tuple[str, NewJob]] = field(default_factory=list)  # what would have become of which job
    steps: list[str] = field(default_factory=list)  # that were really run


class Listener:
    """Who watches: is told of what happens, and asked whether a step may be run."""

    def said(self, text: str) -> None:
        """Something was passed over."""

    def may_run(self, step: str) -> bool:
        del step
        return False

    def would(self, what: str, job: NewJob) -> None:
        """A job would have been enqueued, spawned, or enqueued to follow."""


class Replay:
    """One job, found and checked; `run` may be called from code without an event loop."""

    def __init__(self, app: Mainspring, claim: Claim, steps: Sequence[Step], listener: Listener) -> None:
        self._app = app
        self._store = app.store
        self._claim = claim
        self._steps = list(steps)
        self._listener = listener
        self._replayed = Replayed()
        self.task: Task[..., Any, Any] = app.find_task(claim.task)

    @classmethod
    async def find(cls, app: Mainspring, job_id: str, listener: Listener, *, from_step: str | None = None) -> Replay:
        job = await app.jobs.get(job_id)
        if job.status not in REPLAYED:
            msg = f"job {job_id} is {job.status}: it is a worker's to run; those that failed or finished are replayed"
            raise IllegalMove(msg)
        record = await record_of(app.store, job)
        steps = [Step(*fields) for fields in record["steps"]]
        return cls(
            app, claim_of(record), kept(steps, from_step, restartable(await app.jobs.steps(job_id)), job_id), listener
        )

    @property
    def recorded(self) -> list[str]:
        return [step.name for step in self._steps]

    # -- here -----------------------------------------------------------------------------------------

    def run(self) -> Replayed:
        """In this thread, so that a debugger finds what it looks for: coroutines on a loop of their own."""
        with self._looking_only():
            try:
                self._replayed.result = asyncio.run(self._call_async()) if self.task.is_async else self._call_here()
            except Unrecorded as end:
                self._replayed.stopped = str(end)
            except BaseException as error:  # noqa: BLE001 - the very thing that was looked for
                self._replayed.error = error
        return self._replayed

    @contextlib.contextmanager
    def _looking_only(self) -> Iterator[None]:
        """What the handler does with its application goes to a store that writes nothing, and nobody hears of it."""
        app = self._app
        store, bus = app.store, app.bus
        app.store = cast("Store", ReadOnlyStore(store, {self._claim.id: self._steps}, self._would))
        app.bus = Bus()
        try:
            yield
        finally:
            app.store, app.bus = store, bus

    async def _call_async(self) -> Any:
        context = self._context(self._make_run())
        call = RunCall(self.task.name, (context,), is_async=True)
        return self._ended(context, await self._app.middleware.around(call, self._prepared(context)))

    def _call_here(self) -> Any:
        run = self._app.run(self._made_run())
        context = self._context(run)
        call, handler = RunCall(self.task.name, (context,), is_async=False), self._prepared(context)
        value = self._app.middleware.around_here(call, partial(run.in_its_thread, handler))
        return self._ended(context, asyncio.run(value) if inspect.iscoroutine(value) else value)

    async def _made_run(self) -> LocalRun:
        return self._make_run()

    def _make_run(self) -> LocalRun:
        return LocalRun(self._app, self._claim, self._listener, self._replayed.steps, self.task.steps)

    def _context(self, run: LocalRun) -> Context:
        return Context(
            self._claim,
            key=self.task.idempotency_key(self._claim),
            worker="a local replay",
            report=lambda fraction, note: self._listener.said(f"progress: {fraction:.0%} {note}".rstrip()),
            transact=self._transact,
            durable=partial(RecordedCalls, run),
        )

    def _transact(self, connection: Any) -> Completion:
        """The end is undone, but what comes before locks rows, or all of a SQLite file: so it is asked for."""
        if not self._listener.may_run("ctx.transaction()"):
            msg = "it begins ctx.transaction(), which would lock rows until it is rolled back"
            raise Unrecorded(msg)
        never = Outcome(self._claim.id, 0, Move.DONE)
        return cast("Completion", RolledBack(self._store.completion(lambda: never, connection), self._listener.said))

    def _prepared(self, context: Context) -> Callable[[], Any]:
        payload, function = self.task.payload, self.task.function
        if isinstance(self.task, BatchTask):
            value = self.task.payload.load_one(self._claim.payload)
            self._item = Item(value, lambda: context) if self.task.payload.takes_items else None
            return partial(function, [self._item or value])
        args, kwargs = payload.load(self._claim.payload)
        if payload.context is not None:
            kwargs[payload.context] = context
        return partial(function, *args, **kwargs)

    def _ended(self, context: Context, value: Any) -> Any:
        """What its result would be, as it would be stored."""
        if isinstance(self.task, BatchTask):
            value = self._of_batch(value)
        if context.effects.result is not UNSET:
            value = context.effects.result
        for job in context.effects.follow_ups:
            self._would("follow up with", job)
        text = self.task.payload.dump_result(value)
        return None if text is None else json.loads(text)

    def _of_batch(self, value: Any) -> Any:
        if self._item is not None and self._item.settled:
            value = self._item.error or self._item.result
        elif isinstance(value, (list, tuple)):
            (value,) = value
        if isinstance(value, BaseException):
            raise value
        return value

    def _would(self, what: str, job: NewJob) -> None:
        self._replayed.jobs.append((what, job))
        self._listener.would(what, job)


class LocalRun(DurableRun):
    """What a durable function asks for, answered from the record."""

    def __init__(
        self, app: Mainspring, claim: Claim, listener: Listener, run: list[str], declared: Sequence[str]
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            app,
            claim,
            loop=loop,
            task=asyncio.current_task(),
            thread=None,
            in_thread=lambda call: loop.run_in_executor(None, call),
            progressed=lambda _fraction, _note: None,
            write_progress=nothing,
            stopped=lambda: False,
            declared=declared,
        )
        self._listener = listener
        self._really = run

    async def ask(self, name: str, kind: str, branch: Branch) -> Asked:
        asked = await super().ask(name, kind, branch)
        if asked.record is not None:
            self._listener.said(f"{kind} {name!r}: recorded")
        elif kind == "step":
            if not self._listener.may_run(name):
                msg = f"step {name!r} is not recorded"
                raise Unrecorded(msg)
            self._really.append(name)
        return asked

    async def suspend(self, wait: Wait) -> Any:
        """A sleep is over; a wait that has an end is over without its signal."""
        if wait.key is None:
            self._listener.said("sleeps: passed over")
        elif wait.key.startswith(SIGNAL_KEY) and wait.step and json.loads(wait.step.output or "{}").get("until"):
            signal = wait.key.removeprefix(SIGNAL_KEY)
            self._listener.said(f"waits for signal {signal!r}: as if it had not come in time")
        else:
            msg = f"it waits for {wait.key!r}, which has not happened"
            raise Unrecorded(msg)


async def nothing() -> None:
    pass


# -- what is recorded ---------------------------------------------------------------------------------------


async def record_of(store: Store, job: Job) -> Record:
    """All of the job, its options included, as it is handed over from store to store."""
    found = await store.look_up(kind_of(job.status), [job.id])
    if not found:
        msg = f"job {job.id} was there, and is gone"
        raise JobNotFound(msg)
    return found[0]


def claim_of(record: Record) -> Claim:
    """As its last run got it; the token is one that nobody has."""
    values = {
        name: record[name]
        for name in (
            "id", "task", "queue", "payload", "priority", "max_attempts", "crashes", "timeout", "run_at", "created_at",
            "dedupe_key", "options",
        )
    }  # fmt: skip
    target = (record["target_type"], record["target_id"]) if record["target_type"] is not None else None
    attempts = max(0, record["attempts"] - 1)
    token = record["token"] + 1
    return Claim(**values, attempts=attempts, token=token, target=target, tags=tuple(record["tags"]))


def kept(steps: list[Step], from_step: str | None, known: Sequence[str], job_id: str) -> list[Step]:
    """The recorded steps without `from_step` and those after it. The step that failed is not recorded."""
    if from_step is None:
        return steps
    if from_step not in known:
        listed = ", ".join(map(repr, known)) or "none"
        msg = f"job {job_id} has no step {from_step!r} behind it; it has: {listed}"
        raise ConfigurationError(msg)
    first = next((step.number for step in steps if step.name == from_step), len(steps) + 1)
    return [step for step in steps if step.number < first]
