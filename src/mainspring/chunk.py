"""A chunk task: jobs are enqueued one by one, and one call of the handler runs many of them, as the items of a list."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack, cast, overload

from mainspring.context import Context, DetachedFields
from mainspring.errors import ConfigurationError
from mainspring.handle import JobHandle
from mainspring.job import NewJob
from mainspring.options import Chunk, EnqueueOptions
from mainspring.task import Task

if TYPE_CHECKING:
    from mainspring.payload import ChunkPayload

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")

NO_PROCESSES = (
    'task {!r} is a chunk task, but isolation="process" runs one job at a time: leave out one of them, or start a'
    " process in the handler"
)


class ChunkTask(Task[[T], R, C]):
    """A task made by `@app.task(chunk=Chunk(…))`. Call it with a list; enqueue it with one item."""

    def __init__(self, *args: Any, chunk: Chunk, **rest: Any) -> None:
        super().__init__(*args, **rest)
        if not isinstance(chunk, Chunk):
            msg = f"task {self.name!r}: chunk must be a Chunk, such as Chunk(size=100), not {chunk!r}"
            raise ConfigurationError(msg)
        if self.plan:
            msg = f"task {self.name!r}: a chunk task cannot be a durable function; leave out chunk or steps"
            raise ConfigurationError(msg)
        self.chunk = chunk
        self.is_plain = False

    def _check_signature(self) -> None:
        _ = self.payload  # it checks the function

    @functools.cached_property
    def payload(self) -> ChunkPayload:
        from mainspring.payload import ChunkPayload  # noqa: PLC0415 - as Task does: Pydantic takes a while to import

        return ChunkPayload(self.signature, Item)

    def __call__(self, items: Sequence[T] | Sequence[Item[T]]) -> C:  # type: ignore[override] # a list, not one of them
        given: list[Any] = list(items)
        if self.payload.takes_items:
            given = [item if isinstance(item, Item) else Item.detached(item, task=self.name) for item in given]
        return cast("C", self.function(given))

    async def enqueue_many(self, payloads: Iterable[T | NewJob]) -> list[JobHandle[R]]:  # type: ignore[override] # of any type
        return await self._enqueuer.enqueue_many(cast("Iterable[Any]", payloads))

    def enqueue_many_sync(self, payloads: Iterable[T | NewJob]) -> list[JobHandle[R]]:  # type: ignore[override]
        return self._enqueuer.enqueue_many_sync(cast("Iterable[Any]", payloads))

    def check(self, options: EnqueueOptions) -> None:
        if options.get("isolation") == "process":
            raise ConfigurationError(NO_PROCESSES.format(self.name))


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
    def detached(cls, payload: T, **fields: Unpack[DetachedFields]) -> Item[T]:
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


class ChunkDecorator(Protocol):
    """The type of `@app.task(chunk=…)`: a function that takes `list[Doc]` is enqueued with one `Doc`.

    Exceptions in the list that the function returns are not results. They are failures of single jobs.
    """

    @overload
    def __call__(self, function: Callable[[list[Item[T]]], Awaitable[None]]) -> ChunkTask[T, Any, Awaitable[None]]: ...
    @overload
    def __call__(
        self, function: Callable[[list[Item[T]]], Awaitable[Sequence[R | BaseException]]]
    ) -> ChunkTask[T, R, Awaitable[Sequence[R | BaseException]]]: ...
    @overload
    def __call__(self, function: Callable[[list[Item[T]]], None]) -> ChunkTask[T, Any, None]: ...
    @overload
    def __call__(
        self, function: Callable[[list[Item[T]]], Sequence[R | BaseException]]
    ) -> ChunkTask[T, R, Sequence[R | BaseException]]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], Awaitable[None]]) -> ChunkTask[T, None, Awaitable[None]]: ...
    @overload
    def __call__(
        self, function: Callable[[list[T]], Awaitable[Sequence[R | BaseException]]]
    ) -> ChunkTask[T, R, Awaitable[Sequence[R | BaseException]]]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], None]) -> ChunkTask[T, None, None]: ...
    @overload
    def __call__(
        self, function: Callable[[list[T]], Sequence[R | BaseException]]
    ) -> ChunkTask[T, R, Sequence[R | BaseException]]: ...
