"""Observers: what watches the runs of jobs from outside of their handlers, to report them to another system.

Middleware sees what a handler returns or raises. An observer also sees what becomes of the job: whether it is retried,
suspended or a dead letter, and what happened to the jobs of a worker that died. Traces (otel.py) and Sentry (sentry/)
are observers.

| called                  | when                                                                          |
|-------------------------|-------------------------------------------------------------------------------|
| `before(execution)`     | a worker is about to call the handler of one job, or of the jobs of a chunk   |
| `around(execution)`     | likewise; its block ends when the outcomes are known, but not written yet     |
| `leased(claims)`        | another program has got the jobs, through a lease                             |
| `ended(end)`            | the store has the outcome of a run or of a lease, or has refused it           |
| `taken_over(job, …)`    | this worker has taken a job from a worker that died, or that was too slow     |

An application without observers pays nothing. An observer that fails is logged and affects nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from mainspring.job import Claim, Job, Outcome, Status
from mainspring.log import get_log
from mainspring.stored_options import options_of
from mainspring.stores.protocol import Takeover

T = TypeVar("T")

log = get_log("mainspring.observers")


@dataclass(frozen=True, slots=True)
class Result:
    """How the run of one job ended, before the store knows it."""

    claim: Claim
    outcome: Outcome | None  # None: the claim is lost, and nothing is written
    error: BaseException | None  # what the handler raised; after a timeout a TimeoutError


@dataclass(slots=True)
class Execution:
    """One call of a handler."""

    claims: tuple[Claim, ...]  # one; only chunk handlers are called with several
    worker: str
    started_at: int  # milliseconds since 1970, by the store's clock
    results: list[Result] = field(default_factory=list)  # one per claim, known when `around` ends

    @property
    def claim(self) -> Claim:
        return self.claims[0]

    @property
    def is_chunk(self) -> bool:
        return len(self.claims) > 1

    def carry(self, trace: Mapping[str, str]) -> None:
        """Let what the handler enqueues, and its child process, join this trace. The stored job keeps its own.

        The jobs of a chunk have different traces, which stay as they are.
        """
        if trace and not self.is_chunk:
            own = options_of(self.claim.options)
            self.claim.options = json.dumps({**own, "trace": {**own.get("trace", {}), **trace}})


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run or of a lease, as the store has it."""

    claim: Claim
    outcome: Outcome
    status: Status | None  # of the job now; None: the claim was lost, and nothing was written
    error: BaseException | None
    worker: str


class Observer:
    """What watches runs. By default it does nothing; an observer overrides what it needs.

    All methods are called on the event loop of the worker and must not block.
    """

    child: tuple[str, Mapping[str, Any]] | None = None
    """A module, and JSON data for it. Child processes (`isolation="process"`) call its `in_child(claim, data)`, a
    context manager, around the handler, and its `flush()` after it."""

    async def before(self, execution: Execution) -> bool:
        """Get ready, with I/O if need be. The handler waits for it. Return whether it may have taken a while."""
        del execution
        return False

    def around(self, execution: Execution) -> AbstractContextManager[None]:
        """Return a context manager around the call. The handler sees the context variables that it sets."""
        del execution
        return nullcontext()

    async def leased(self, claims: Sequence[Claim]) -> None:
        """Note that another program works on these jobs now."""

    def ended(self, end: RunEnd) -> None:
        """Note what became of a job."""

    def taken_over(self, job: Job, takeover: Takeover) -> None:
        """Note that a run ended with its worker, or lasted too long. `job` is as it is now."""


class Observers:
    """The observers of one application."""

    def __init__(self) -> None:
        self.all: list[Observer] = []

    def __bool__(self) -> bool:
        return bool(self.all)

    def find(self, kind: type[Observer]) -> Observer | None:
        return next((observer for observer in self.all if isinstance(observer, kind)), None)

    @property
    def children(self) -> list[tuple[str, Mapping[str, Any]]]:
        """What child processes must know of the observers."""
        return [observer.child for observer in self.all if observer.child is not None]

    async def before(self, execution: Execution) -> bool:
        """Return whether one of them may have taken a while."""
        waited = False
        for observer in self.all:
            waited = bool(await survived(observer.before, execution)) or waited
        return waited

    @contextmanager
    def around(self, execution: Execution) -> Iterator[None]:
        with ExitStack() as stack:
            for observer in self.all:
                stack.enter_context(guarded(partial(observer.around, execution)))
            yield

    async def leased(self, claims: Sequence[Claim]) -> None:
        for observer in self.all:
            await survived(observer.leased, claims)

    def ended(self, end: RunEnd) -> None:
        for observer in self.all:
            try:
                observer.ended(end)
            except Exception:  # noqa: BLE001 - it must not affect the work
                complain()

    def taken_over(self, job: Job, takeover: Takeover) -> None:
        for observer in self.all:
            try:
                observer.taken_over(job, takeover)
            except Exception:  # noqa: BLE001 - likewise
                complain()


async def survived(call: Callable[..., Awaitable[T]], *args: Any) -> T | None:
    try:
        return await call(*args)
    except Exception:  # noqa: BLE001 - an observer must not affect the work
        complain()
        return None


@contextmanager
def guarded(make: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Enter a context manager, and leave it as if the block had not failed. Its own errors are logged."""
    try:
        manager = make()
        manager.__enter__()
    except Exception:  # noqa: BLE001 - an observer must not affect the work
        complain()
        yield
        return
    try:
        yield
    finally:
        try:
            manager.__exit__(None, None, None)
        except Exception:  # noqa: BLE001
            complain()


def complain() -> None:
    log.error("observer_failed", exc_info=True)  # noqa: LOG014 - called in handlers
