"""What a chunk task's handler works with: the settings of its chunks, and the items of a chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from mainspring.clock import Length, duration
from mainspring.context import Context
from mainspring.errors import ConfigurationError

T = TypeVar("T")

MAX_CHUNK_SIZE = 10_000
LONGEST_WAIT = timedelta(seconds=20)  # well below a store's stall_grace, because the waiting jobs count as running


@dataclass(frozen=True, slots=True)
class Chunk:
    """Give the handler the payloads of up to `size` jobs at once: `@app.task(chunk=Chunk(size=100, wait=1.0))`."""

    size: int
    wait: Length = 1.0  # how long the first job waits for more; 0: run at once with the jobs that are there

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_CHUNK_SIZE:
            msg = f"a chunk has between 1 and {MAX_CHUNK_SIZE:,} jobs, not {self.size}"
            raise ConfigurationError(msg)
        if not 0 <= duration(self.wait) <= duration(LONGEST_WAIT):
            msg = (
                f"a chunk waits between 0 and {LONGEST_WAIT.total_seconds():g} seconds for more jobs, not {self.wait}:"
                " meanwhile no other worker can run the jobs that wait"
            )
            raise ConfigurationError(msg)

    @property
    def seconds(self) -> float:
        return duration(self.wait) / 1000


class Item(Generic[T]):
    """One job of a chunk, for a handler that asks for `items: list[Item[Doc]]`.

    If the handler calls neither `done` nor `fail` for an item, that job ends as the handler does.
    """

    __slots__ = ("_context", "_make_context", "error", "payload", "result", "settled")

    def __init__(self, payload: T, context: Callable[[], Context]) -> None:
        self.payload = payload
        self.settled = False  # True once the handler has called `done` or `fail`
        self.result: Any = None
        self.error: BaseException | None = None
        self._make_context = context
        self._context: Context | None = None

    def __repr__(self) -> str:
        return f"<Item {self.payload!r}>"

    @classmethod
    def detached(cls, payload: T, **fields: Any) -> Item[T]:
        """Make an item for calling a handler directly in unit tests; see `Context.detached`."""
        return cls(payload, partial(Context.detached, **fields))

    @property
    def ctx(self) -> Context:
        """The context of this job: its id, tags, follow-ups, whether it was cancelled."""
        if self._context is None:
            self._context = self._make_context()
        return self._context

    @property
    def job_id(self) -> str:
        return self.ctx.job_id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.ctx.attempt

    @property
    def cancelled(self) -> bool:
        """Whether this job should stop; see `Context.cancelled`."""
        return self.ctx.cancelled

    def done(self, result: Any = None) -> None:
        """Complete this job, whatever becomes of the others."""
        self.settled, self.result, self.error = True, result, None

    def fail(self, error: BaseException) -> None:
        """Fail this job with `error`; it is retried on its own. Discard, Snooze and Cancel have their usual meaning."""
        if not isinstance(error, BaseException):
            msg = f"an item fails with an exception, not with {error!r}"
            raise TypeError(msg)
        self.settled, self.result, self.error = True, None, error
