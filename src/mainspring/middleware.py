"""Middleware: generator functions that wrap every run of a handler and every enqueue.

@app.around_run                                   what comes before `yield` happens before the handler is called,
async def session(call: RunCall) -> AsyncIterator[None]:        what comes after it when the handler has ended
    async with Session() as current:
        yield

@app.around_enqueue
def tenant(call: EnqueueCall) -> Iterator[None]:
    call.headers["tenant"] = current_tenant.get()     arrives in `ctx.headers` of the run
    yield
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from mainspring.context import Context
from mainspring.errors import ConfigurationError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunCall:
    """One call of a handler, as passed to `@app.around_run` middleware."""

    task: str
    contexts: tuple[Context, ...]  # one per job; only chunk handlers are called with several
    is_async: bool  # the handler is a coroutine function; then blocking work here would block the event loop

    @property
    def ctx(self) -> Context:
        """The job's context; for a chunk handler the context of the first job."""
        return self.contexts[0]

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the enqueue gave the job; for a chunk handler those of the first job."""
        return self.ctx.headers

    @property
    def trace(self) -> Mapping[str, str]:
        """The job's trace context; for a chunk handler that of the first job."""
        return self.ctx.trace


@dataclass(slots=True)
class EnqueueCall:
    """One enqueue, as passed to `@app.around_enqueue` middleware.

    The jobs get the headers and the trace context that are set before the `yield`.
    """

    task: str
    queue: str
    headers: dict[str, str]
    job_ids: list[str] = field(default_factory=list)  # known after the `yield`
    trace: dict[str, str] = field(default_factory=dict)  # if it stays empty, that of the job whose handler enqueues


AroundRun = Callable[[RunCall], Iterator[None]] | Callable[[RunCall], AsyncIterator[None]]
AroundEnqueue = Callable[[EnqueueCall], Iterator[None]]
AnyManager = AbstractContextManager[None] | AbstractAsyncContextManager[None]


class Middleware:
    """The middleware of one application, in the order of registration: the first is the outermost."""

    def __init__(self) -> None:
        self.runs: list[Callable[[RunCall], AnyManager]] = []
        self.enqueues: list[Callable[[EnqueueCall], AbstractContextManager[None]]] = []
        self.names: list[tuple[str, str]] = []  # module and name of each around_run, since child processes need them

    def add_run(self, function: AroundRun) -> None:
        if inspect.isasyncgenfunction(function):
            self.runs.append(asynccontextmanager(function))
        elif inspect.isgeneratorfunction(function):
            self.runs.append(contextmanager(function))
        else:
            raise ConfigurationError(misuse("around_run", function, "a `def` or `async def` function", "RunCall"))
        self.names.append((function.__module__, function.__qualname__))

    def add_enqueue(self, function: AroundEnqueue) -> None:
        if not inspect.isgeneratorfunction(function):
            kind = "a plain `def` function (code without an event loop enqueues too)"
            raise ConfigurationError(misuse("around_enqueue", function, kind, "EnqueueCall"))
        self.enqueues.append(contextmanager(function))

    # -- around runs ----------------------------------------------------------------------------

    async def around(self, call: RunCall, handler: Callable[[], Awaitable[Any]]) -> Any:
        """Call a coroutine function, with all middleware on the event loop."""
        async with AsyncExitStack() as stack:
            await enter(stack, [make(call) for make in self.runs])
            return await handler()

    async def around_thread(
        self, call: RunCall, run_in_thread: Callable[[Callable[[], Any]], Awaitable[Any]], handler: Callable[[], Any]
    ) -> Any:
        """Call a plain function and plain middleware in a thread; asynchronous middleware stays on the event loop."""
        managers = [make(call) for make in self.runs]
        async with AsyncExitStack() as stack:
            await enter(stack, [manager for manager in managers if isinstance(manager, AbstractAsyncContextManager)])
            plain = [manager for manager in managers if not isinstance(manager, AbstractAsyncContextManager)]
            return await run_in_thread(partial(within, plain, handler))

    def around_here(self, call: RunCall, handler: Callable[[], Any]) -> Any:
        """Call a plain function from code without an event loop; in this thread, if no middleware needs a loop."""
        if any(inspect.isasyncgenfunction(inspect.unwrap(make)) for make in self.runs):
            return asyncio.run(self.around_thread(call, asyncio.to_thread, handler))
        return within([make(call) for make in self.runs], handler)  # type: ignore[misc] # all of them are plain

    # -- around enqueues ------------------------------------------------------------------------

    @contextmanager
    def around_enqueue(self, call: EnqueueCall) -> Iterator[EnqueueCall]:
        done = False
        with ExitStack() as stack:
            for make in self.enqueues:
                stack.enter_context(make(call))
            yield call
            done = True
        if not done:
            msg = "middleware around an enqueue caught its error; raise it again, or do not catch it"
            raise RuntimeError(msg)


async def enter(stack: AsyncExitStack, managers: Iterable[AnyManager]) -> None:
    for manager in managers:
        if isinstance(manager, AbstractAsyncContextManager):
            await stack.enter_async_context(manager)
        else:
            stack.enter_context(manager)


def within(managers: Iterable[AbstractContextManager[None]], handler: Callable[[], T]) -> T | None:
    with ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        return handler()
    return None  # middleware caught the handler's error


def misuse(decorator: str, function: object, kind: str, takes: str) -> str:
    name = getattr(function, "__name__", repr(function))
    wrapped = " without @contextmanager" if inspect.isgeneratorfunction(inspect.unwrap(function)) else ""  # type: ignore[arg-type]
    return f"@app.{decorator} takes {kind} with one `yield`{wrapped}: def {name}(call: {takes}): …; yield; …"
