"""Run a finished or retrying job in this process, with its payload and its recorded steps.

Recorded steps return their recorded output, sleeps end at once, and waits return the signal that they got. Before a
step that is not recorded runs, the listener is asked; if it refuses, the run stops.
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
from mainspring.chunk import ChunkTask, Item
from mainspring.context import UNSET, Context
from mainspring.debug.read_only_store import ReadOnlyStore, RolledBack
from mainspring.debug.unrecorded import Unrecorded
from mainspring.durable_calls import RecordedCalls
from mainspring.errors import ConfigurationError, IllegalMove, JobNotFound
from mainspring.events import Bus
from mainspring.features.durable.journal import Asked, calls_in
from mainspring.features.durable.plan import StepPlan
from mainspring.features.durable.run import Branch, DurableRun
from mainspring.features.durable.states import restartable
from mainspring.features.durable.suspension import Wait
from mainspring.job import FINISHED, Claim, Job, Move, NewJob, Outcome, Status, Step
from mainspring.middleware import RunCall
from mainspring.stored_options import options_of
from mainspring.stores.protocol import Completion, Store
from mainspring.stores.records import Record, kind_of
from mainspring.task import Task

DEBUGGABLE = FINISHED | {Status.RETRYING}
SIGNAL_KEY = "signal:"


@dataclass(slots=True)
class DebugResult:
    """How the run ended. If it did not run to its end, `stopped` says why."""

    result: Any = None
    error: BaseException | None = None
    stopped: str = ""
    jobs: list[tuple[str, NewJob]] = field(default_factory=list)  # each job and what would have been done with it
    steps: list[str] = field(default_factory=list)  # the steps that were really run


class Listener:
    """Gets reports of what happens in the run, and decides whether a step may run."""

    def said(self, text: str) -> None:
        """Report something that was answered from the record or skipped."""

    def may_run(self, step: str) -> bool:
        del step
        return False

    def would(self, what: str, job: NewJob) -> None:
        """Report a job that would have been enqueued, spawned, or enqueued as a follow-up."""


class DebugRun:
    """A run of one job in this process. The job was found and checked. Call `run` from code without an event loop."""

    def __init__(self, app: Mainspring, claim: Claim, steps: Sequence[Step], listener: Listener) -> None:
        self._app = app
        self._store = app.store
        self._claim = claim
        self._steps = list(steps)
        self._listener = listener
        self._result = DebugResult()
        self.task: Task[..., Any, Any] = app.runtime.find_task(claim.task)

    @classmethod
    async def find(cls, app: Mainspring, job_id: str, listener: Listener, *, from_step: str | None = None) -> DebugRun:
        job = await app.jobs.get(job_id)
        if job.status not in DEBUGGABLE:
            msg = f"job {job_id} is {job.status}: a worker will run it; only retrying and finished jobs can be debugged"
            raise IllegalMove(msg)
        record = await record_of(app.store, job)
        steps = [Step(*fields) for fields in record["steps"]]
        return cls(
            app,
            claim_of(record),
            steps_before(steps, from_step, restartable(await app.jobs.steps(job_id)), job_id),
            listener,
        )

    @property
    def recorded(self) -> list[str]:
        return [step.name for step in calls_in(self._steps)]

    @property
    def _plan(self) -> StepPlan:
        """The plan without its timeouts, as a debugger may stop in a step for as long as it likes."""
        own = options_of(self._claim.options)
        plan = StepPlan.from_options(own) if "plan" in own else self.task.plan
        return StepPlan(dict.fromkeys(plan), plan.complete)

    # -- here -----------------------------------------------------------------------------------------

    def run(self) -> DebugResult:
        """Run the handler in this thread, so that a debugger works; a coroutine runs on its own loop."""
        with self._read_only():
            try:
                self._result.result = asyncio.run(self._call_async()) if self.task.is_async else self._call_here()
            except Unrecorded as end:
                self._result.stopped = str(end)
            except BaseException as error:  # noqa: BLE001 - the run exists to show this error
                self._result.error = error
        return self._result

    @contextlib.contextmanager
    def _read_only(self) -> Iterator[None]:
        """Give the application a store that writes nothing and an event bus without subscribers."""
        runtime = self._app.runtime
        store, bus = runtime.store, runtime.bus
        runtime.store = cast("Store", ReadOnlyStore(store, {self._claim.id: self._steps}, self._would))
        runtime.bus = Bus()
        try:
            yield
        finally:
            runtime.store, runtime.bus = store, bus

    async def _call_async(self) -> Any:
        context = self._context(self._make_run())
        call = RunCall(self.task.name, (context,), is_async=True)
        return self._ended(context, await self._app.runtime.middleware.around(call, self._prepared(context)))

    def _call_here(self) -> Any:
        run = self._app.run(self._made_run())
        context = self._context(run)
        call, handler = RunCall(self.task.name, (context,), is_async=False), self._prepared(context)
        value = self._app.runtime.middleware.around_here(call, partial(run.in_its_thread, handler))
        return self._ended(context, asyncio.run(value) if inspect.iscoroutine(value) else value)

    async def _made_run(self) -> LocalRun:
        return self._make_run()

    def _make_run(self) -> LocalRun:
        return LocalRun(self._app, self._claim, self._listener, self._result.steps, self._plan)

    def _context(self, run: LocalRun) -> Context:
        return Context(
            self._claim,
            key=self.task.idempotency_key(self._claim),
            worker="mainspring jobs debug",
            report=lambda fraction, note: self._listener.said(f"progress: {fraction:.0%} {note}".rstrip()),
            transact=self._transact,
            durable=partial(RecordedCalls, run),
            plan=self._plan,
        )

    def _transact(self, connection: Any) -> Completion:
        """Return a transaction that is rolled back; ask first, because it locks rows, or a whole SQLite file."""
        if not self._listener.may_run("ctx.transaction()"):
            msg = "it begins ctx.transaction(), which would lock rows until it is rolled back"
            raise Unrecorded(msg)
        never = Outcome(self._claim.id, 0, Move.DONE)
        return cast("Completion", RolledBack(self._store.completion(lambda: never, connection), self._listener.said))

    def _prepared(self, context: Context) -> Callable[[], Any]:
        payload, function = self.task.payload, self.task.function
        if isinstance(self.task, ChunkTask):
            value = self.task.payload.load_one(self._claim.payload)
            self._item = Item(value, lambda: context) if self.task.payload.takes_items else None
            return partial(function, [self._item or value])
        args, kwargs = payload.load(self._claim.payload)
        if (wanted := self.task.signature.context) is not None:
            kwargs[wanted] = context
        return partial(function, *args, **kwargs)

    def _ended(self, context: Context, value: Any) -> Any:
        """Return the result as it would be stored."""
        if isinstance(self.task, ChunkTask):
            value = self._of_chunk(value)
        if context.effects.result is not UNSET:
            value = context.effects.result
        for job in context.effects.follow_ups:
            self._would("follow up with", job)
        text = self.task.payload.dump_result(value)
        return None if text is None else json.loads(text)

    def _of_chunk(self, value: Any) -> Any:
        if self._item is not None and self._item.settled:
            value = self._item.error or self._item.result
        elif isinstance(value, (list, tuple)):
            (value,) = value
        if isinstance(value, BaseException):
            raise value
        return value

    def _would(self, what: str, job: NewJob) -> None:
        self._result.jobs.append((what, job))
        self._listener.would(what, job)


class LocalRun(DurableRun):
    """A run that answers a durable function's calls from its record."""

    def __init__(self, app: Mainspring, claim: Claim, listener: Listener, run: list[str], plan: StepPlan) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            app.runtime.services,
            app.runtime.pipeline,
            claim,
            loop=loop,
            task=asyncio.current_task(),
            thread=None,
            in_thread=lambda call: loop.run_in_executor(None, call),
            progressed=lambda _fraction, _note: None,
            stopped=lambda: False,
            plan=plan,
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

    async def step(self, *given: Any) -> Any:
        return await super().step(*given[:4])  # without its timeout

    def step_sync(self, *given: Any) -> Any:
        return super().step_sync(*given[:4])

    async def suspend(self, wait: Wait) -> Any:
        """End a sleep at once, and end a wait that has a timeout as if its signal had not come in time."""
        if wait.key is None:
            self._listener.said("sleeps: passed over")
        elif wait.key.startswith(SIGNAL_KEY) and wait.step and json.loads(wait.step.output or "{}").get("until"):
            signal = wait.key.removeprefix(SIGNAL_KEY)
            self._listener.said(f"waits for signal {signal!r}: as if it had not come in time")
        else:
            msg = f"it waits for {wait.key!r}, which has not happened"
            raise Unrecorded(msg)


# -- what is recorded ---------------------------------------------------------------------------------------


async def record_of(store: Store, job: Job) -> Record:
    """Return the job's whole record with its options, in the form in which stores are copied."""
    found = await store.look_up(kind_of(job.status), [job.id])
    if not found:
        msg = f"job {job.id} was deleted just now"
        raise JobNotFound(msg)
    return found[0]


def claim_of(record: Record) -> Claim:
    """Return the claim that the job's last run had, with a token that no run ever had."""
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


def steps_before(steps: list[Step], from_step: str | None, known: Sequence[str], job_id: str) -> list[Step]:
    """Return the recorded steps before `from_step`, or all of them. The step that failed is not recorded."""
    if from_step is None:
        return steps
    if from_step not in known:
        listed = ", ".join(map(repr, known)) or "none"
        msg = f"job {job_id} has not done a step {from_step!r}; it has done: {listed}"
        raise ConfigurationError(msg)
    first = next((step.number for step in steps if step.name == from_step), len(steps) + 1)
    return [step for step in steps if step.number < first]
