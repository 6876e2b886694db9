"""A chunk task: jobs are enqueued one by one, and one call of the handler runs many of them."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, overload

from mainspring.chunk import Chunk, Item
from mainspring.errors import ConfigurationError
from mainspring.handle import JobHandle
from mainspring.job import NewJob
from mainspring.options import EnqueueOptions
from mainspring.task import Task

if TYPE_CHECKING:
    from mainspring.chunk_payload import ChunkPayload

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")


class ChunkTask(Task[[T], R, C]):
    """A task made by `@app.task(chunk=Chunk(…))`. Call it with a list; enqueue it with one item."""

    def __init__(self, *args: Any, chunk: Chunk, **rest: Any) -> None:
        super().__init__(*args, **rest)
        if not isinstance(chunk, Chunk):
            msg = f"task {self.name!r}: chunk must be a Chunk, such as Chunk(size=100), not {chunk!r}"
            raise ConfigurationError(msg)
        if self.steps:
            msg = f"task {self.name!r}: a chunk task cannot be a durable function; leave out chunk or steps"
            raise ConfigurationError(msg)
        self.chunk = chunk
        self.is_plain = False

    def _check_signature(self) -> None:
        _ = self.payload  # it checks the function

    @functools.cached_property
    def payload(self) -> ChunkPayload:
        from mainspring.chunk_payload import ChunkPayload  # noqa: PLC0415 - as Task does: Pydantic takes a while to import

        return ChunkPayload(self.signature)

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


NO_PROCESSES = (
    'task {!r} is a chunk task, but isolation="process" runs one job at a time: leave out one of them, or start a'
    " process in the handler"
)


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
