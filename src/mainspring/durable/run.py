"""One run of a durable function: what it asks for, written down with the claim's token before it goes on.

It is made when the handler first calls for it; the worker asks it in the end whether the function was suspended or its
claim lost. All of it happens on the worker's event loop; handlers in threads come over with `across`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from mainspring.clock import Millis
from mainspring.durable.failures import dump_failure, load_failure
from mainspring.durable.journal import FAILED, Asked, Journal, kind_of
from mainspring.durable.outputs import Output
from mainspring.durable.suspension import Suspended, Suspension, Wait
from mainspring.errors import ClaimLost, ConfigurationError, StoreError, StoreUnavailable
from mainspring.job import Claim, Inserted, NewJob, Save, Step

if TYPE_CHECKING:
    from mainspring.app import Mainspring

T = TypeVar("T")
InThread = Callable[[Callable[[], Any]], "asyncio.Future[Any]"]
Asker = int | asyncio.Task[Any] | None

WAITS = frozenset({"sleep", "wait"})  # of several branches they are joined; work is not begun beside them
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds between tries while the store is away

within: ContextVar[tuple[int, str] | None] = ContextVar("mainspring_step", default=None)
"""The run (its id) and the name of the step that runs here."""

from_thread: ContextVar[tuple[Asker] | None] = ContextVar("mainspring_from_thread", default=None)
"""Who asks, for what runs on the loop in place of a thread."""


class DurableRun:
    def __init__(
        self,
        app: Mainspring,
        claim: Claim,
        *,
        loop: asyncio.AbstractEventLoop,
        task: asyncio.Task[Any] | None,
        thread: int | None,
        in_thread: InThread,
        progressed: Callable[[float, str], None],
        write_progress: Callable[[], Awaitable[None]],
        stopped: Callable[[], bool],
        declared: Sequence[str] = (),
    ) -> None:
        self.app = app
        self.store = app.store
        self.claim = claim
        self.journal = Journal(claim.id)
        self.suspension: Suspension | None = None
        self.lost = False
        self.spawned: list[str] = []  # by this run
        self.consumed: dict[str, set[str]] = {}  # the signals, per key, that this job has seen
        self._in_thread = in_thread
        self._progressed = progressed
        self._write_progress = write_progress
        self._stopped = stopped
        self._declared = tuple(declared)
        self._reported = False
        self._loop = loop
        self._loading = asyncio.Lock()
        self._task = task  # that runs the handler
        self._thread = thread  # or in which it runs
        self._failures: dict[Asker, Step] = {}  # of steps; caught, if the same one asks for something again
        self._busy = 0  # steps that are being run
        self._quiet = asyncio.Event()
        self._lock = threading.Lock()
        self._unwritten: tuple[Step, ...] = ()  # failures that go with the next write

    # -- who asks -------------------------------------------------------------------------------------

    def in_its_thread(self, handler: Callable[[], T]) -> T:
        """Call the handler of a plain function in the thread that it has got."""
        self._thread = threading.get_ident()
        return handler()

    def asker(self) -> Asker:
        """The task or thread in which this is called; None: the handler itself."""
        if (sent := from_thread.get()) is not None:
            return sent[0]
        try:
            task = asyncio.current_task()
        except RuntimeError:
            ident = threading.get_ident()
            return None if ident == self._thread else ident
        return None if task is self._task else task

    def across(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """From a handler's thread."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(sent_by(self.asker(), work), self._loop).result()
        msg = "the methods that end in _sync are for plain functions, which run in threads; use await here"
        raise RuntimeError(msg)

    # -- asking and recording ----------------------------------------------------------------------------

    async def ask(self, name: str, kind: str, asker: Asker) -> Asked:
        if self.lost:
            raise ClaimLost
        self.refuse_within_step(f"{kind} {name!r}")
        await self._load()
        if (failure := self._failures.pop(asker, None)) is not None:  # it was caught, for here it goes on
            self._unwritten = (*self._unwritten, failure)
        asked = self.journal.ask(name, kind, self.store.clock.now(), main=asker is None)
        if asked.record is None and self.suspension is not None and kind not in WAITS:
            raise Suspended
        return asked

    def step_here(self) -> str | None:
        """The name of the step within which this is called."""
        place = within.get()
        return place[1] if place is not None and place[0] == id(self) else None

    def refuse_within_step(self, what: str) -> None:
        if (step := self.step_here()) is not None:
            msg = f"{what} within step {step!r}: a step is one piece of work, run once; do this before or after it"
            raise ConfigurationError(msg)

    async def _load(self) -> None:
        """Once per run; a job that is claimed for the first time has nothing behind it."""
        async with self._loading:
            if not self.journal.loaded:
                first = self.claim.token <= 1
                self.journal.load([] if first else await self.patiently(partial(self.store.steps, self.claim.id)))

    async def save(self, step: Step, jobs: Sequence[NewJob] = ()) -> list[Inserted]:
        """One commit, refused if the claim is not ours any more: then nothing this run has done counts."""
        failures, self._unwritten = self._unwritten, ()
        save = Save(self.claim.id, self.claim.token, (*failures, step), tuple(jobs), self.claim.ref)
        (answer,) = await self.patiently(lambda: self.store.save([save]))
        if answer is None:
            self.lost = True
            raise ClaimLost
        for one in save.steps:
            self.journal.wrote(one)
        return answer

    async def suspend(self, wait: Wait) -> NoReturn:
        """Leave the worker, once no step is being run any more: else it would be repeated."""
        if self.suspension is None:
            self.suspension = Suspension()
        self.suspension.waits.append(wait)
        self.suspension.failures = self._unwritten
        if self._reported:
            await self._tell_progress()
        while self._busy:
            self._quiet.clear()
            await self._quiet.wait()
        raise Suspended

    async def _tell_progress(self) -> None:
        """Before it leaves: of a job that does not run, nothing can be reported any more."""
        await asyncio.sleep(0)  # for the last report to come in
        with contextlib.suppress(StoreError):
            await self._write_progress()

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """While the store is away, what has been done waits for it: to fail would mean to do it again."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await call()
            except StoreUnavailable:
                if self._stopped():
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def now(self) -> Millis:
        """By the store's clock, of which ours may be a little behind: at `run_at` it had come to that."""
        return max(self.store.clock.now(), self.claim.run_at)

    # -- steps ----------------------------------------------------------------------------------------

    async def step(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Coroutine functions run here, plain ones in a thread: they may block."""
        asker = self.asker()
        asked = await self.ask(self.journal.called(name), "step", asker)
        output = Output(name, function)
        if asked.record is not None:
            return self._replay(asked.record, output)
        with self._running(asked, asker):
            stopped = None
            if inspect.iscoroutinefunction(inspect.unwrap(function)):
                value = await function(*args, **kwargs)
            else:
                value, stopped = await self._call_in_thread(partial(function, *args, **kwargs))
            if stopped is not None and not self._stopped():  # it has been given up, and stays so
                raise stopped
            text = output.dump(value)
            await self._done(asked, text)
        if stopped is not None:
            raise stopped
        return output.load(text)

    def step_sync(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """In the handler's own thread."""
        asker = self.asker()
        asked = self.across(lambda: self.ask(self.journal.called(name), "step", asker))
        output = Output(name, function)
        if asked.record is not None:
            return self._replay(asked.record, output)
        with self._running(asked, asker):
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = self.across(partial(wait_for_it, value))
            text = output.dump(value)
            self.across(lambda: self._done(asked, text))
        return output.load(text)

    def _replay(self, record: Step, output: Output) -> Any:
        if kind_of(record) == FAILED:
            raise load_failure(record.output or "{}")
        return output.load(record.output)

    @contextlib.contextmanager
    def _running(self, asked: Asked, asker: Asker) -> Iterator[None]:
        with self._lock:
            self._busy += 1
        token = within.set((id(self), asked.name))
        try:
            yield
        except ClaimLost:
            raise
        except Exception as error:
            self._note_failure(asked, asker, error)
            raise
        except asyncio.CancelledError:
            if not self._stopped():  # by the function itself, whose `asyncio.timeout` turns it into this
                self._note_failure(asked, asker, TimeoutError(f"step {asked.name!r} was cancelled by its function"))
            raise
        finally:
            within.reset(token)
            with self._lock:
                self._busy -= 1
            self._loop.call_soon_threadsafe(self._quiet.set)

    @property
    def failed_step(self) -> str | None:
        """The step that failed last, unless the function has gone on without it."""
        return next((step.name for step in reversed(self._failures.values())), None)

    def _note_failure(self, asked: Asked, asker: Asker, error: Exception) -> None:
        self._failures[asker] = asked.step(dump_failure(error), self.store.clock.now(), FAILED)

    async def _call_in_thread(self, call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """A thread cannot be stopped: who is cancelled meanwhile waits for it all the same."""
        stopped: BaseException | None = None
        future = self._in_thread(call)
        try:
            value = await asyncio.shield(future)
        except asyncio.CancelledError as error:
            if future.cancelled():
                raise
            stopped = error
            await asyncio.wait([future])
            value = future.result()
        if inspect.isawaitable(value):  # of a plain function that wraps an asynchronous one
            value = await value
        return value, stopped

    async def _done(self, asked: Asked, text: str) -> None:
        await self.save(asked.step(text, self.store.clock.now()))
        if asked.name in self._declared:
            done = [name for name in self._declared if name in self.journal.records]
            self._reported = True
            self._progressed(len(done) / len(self._declared), asked.name)


async def sent_by(asker: Asker, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    from_thread.set((asker,))  # in this task's own context
    return await work()


async def wait_for_it(value: Awaitable[T]) -> T:
    return await value
