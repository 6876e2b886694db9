"""A batched task: enqueued one by one, handled many at a time."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Protocol, TypeVar, Union, cast, get_args, get_origin, overload

from mainspring.batched import Batch, Item
from mainspring.context import Context
from mainspring.errors import ConfigurationError, InvalidPayload
from mainspring.handle import JobHandle
from mainspring.job import NewJob
from mainspring.payload import Arguments, Payload
from mainspring.task import Options, Task

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")

ONE_LIST = "a batched task takes one argument, the list of its payloads: docs: list[Doc], or docs: list[Item[Doc]]"


class BatchPayload(Payload):
    """The payload of each job is one item of the list that the function takes."""

    def __init__(self, name: str, function: Callable[..., Any], names: Mapping[str, Any]) -> None:
        self.task = name
        self.context = None
        hints = self._hints(function, names)
        self._refuse_context(hints)
        item = self._item_of(function, hints)
        self.takes_items = get_origin(item) is Item
        self._adapt(get_args(item)[0] if self.takes_items else item, self._result_of(hints.get("return", Any)))

    def dump(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """`index.enqueue(doc)`; an object's fields may also come by their names."""
        if len(args) + bool(kwargs) != 1:
            msg = f"task {self.task!r} is batched and takes one payload per job, the next item of its list"
            raise InvalidPayload(msg)
        return self.dump_one(args[0] if args else kwargs)

    def dump_one(self, payload: Any) -> str:
        return self._checked(payload)

    def takes(self, name: str) -> bool:
        """An item's fields may have any name."""
        del name
        return True

    def load(self, text: str) -> Arguments:
        """For a batch of one."""
        return ([self.load_one(text)],), {}

    def _refuse_context(self, hints: Mapping[str, Any]) -> None:
        if Context in hints.values():
            msg = (
                f"task {self.task!r}: each job of a batch has a context of its own; ask for items: list[Item[…]] and"
                " use item.ctx"
            )
            raise ConfigurationError(msg)

    def _item_of(self, function: Callable[..., Any], hints: Mapping[str, Any]) -> Any:
        """What the list has in it."""
        takes = list(inspect.signature(function).parameters.values())
        hint = hints.get(takes[0].name) if len(takes) == 1 and takes[0].kind is not takes[0].VAR_KEYWORD else None
        if get_origin(hint) not in {list, Sequence, Iterable}:
            msg = f"task {self.task!r}: {ONE_LIST}"
            raise ConfigurationError(msg)
        return get_args(hint)[0]

    def _result_of(self, returned: Any) -> Any:
        """Of one job. None: of none; exceptions in the list are failures."""
        kinds = [kind for kind in members(returned) if kind is not NoneType]
        if kinds in ([], [Any]):
            return Any
        if len(kinds) > 1 or get_origin(kinds[0]) not in {list, Sequence}:
            msg = f"task {self.task!r} is batched: it returns nothing, or a list with the result of each job"
            raise ConfigurationError(msg)
        results = [kind for kind in members(get_args(kinds[0])[0]) if not is_exception(kind)]
        return Union[tuple(results)] if results else Any  # noqa: UP007 - as many as there are


def members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)


def is_exception(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


class BatchTask(Task[[T], R, C]):
    """Made by `@app.task(batch=Batch(…))`. Calling it calls the function, with a list; enqueuing takes one item."""

    payload: BatchPayload

    def __init__(self, *args: Any, batch: Batch, **rest: Any) -> None:
        super().__init__(*args, **rest)
        if not isinstance(batch, Batch):
            msg = f"task {self.name!r}: batch is Batch(size=100), not {batch!r}"
            raise ConfigurationError(msg)
        if self.steps:
            msg = f"task {self.name!r}: what handles many jobs at once is no durable function; leave batch or steps out"
            raise ConfigurationError(msg)
        self.batch = batch
        self.is_plain = False

    def _payload_of(self, function: Callable[..., Any], names: Mapping[str, Any]) -> BatchPayload:
        return BatchPayload(self.name, function, names)

    def __call__(self, items: Sequence[T] | Sequence[Item[T]]) -> C:  # type: ignore[override] # a list, not one of them
        given: list[Any] = list(items)
        if self.payload.takes_items:
            given = [one if isinstance(one, Item) else Item.detached(one, task=self.name) for one in given]
        return cast("C", self.function(given))

    async def enqueue_many(self, payloads: Iterable[T | NewJob]) -> list[JobHandle[R]]:  # type: ignore[override] # of any type
        return await self._enqueuer.enqueue_many(cast("Iterable[Any]", payloads))

    def enqueue_many_sync(self, payloads: Iterable[T | NewJob]) -> list[JobHandle[R]]:  # type: ignore[override]
        return self._enqueuer.enqueue_many_sync(cast("Iterable[Any]", payloads))

    def check(self, options: Options) -> None:
        if options.isolation == "process":
            raise ConfigurationError(NO_PROCESSES.format(self.name))


NO_PROCESSES = (
    'task {!r} is batched, and isolation="process" runs one job at a time: leave one of them out, or start a process'
    " in the handler"
)


class BatchDecorator(Protocol):
    """How `@app.task(batch=…)` types what it decorates: of a function of `list[Doc]`, one `Doc` is enqueued.

    Exceptions in the list that it returns are no results, but failures of single jobs.
    """

    @overload
    def __call__(self, function: Callable[[list[Item[T]]], Awaitable[None]]) -> BatchTask[T, Any, Awaitable[None]]: ...
    @overload
    def __call__(
        self, function: Callable[[list[Item[T]]], Awaitable[Sequence[R | BaseException]]]
    ) -> BatchTask[T, R, Awaitable[Sequence[R | BaseException]]]: ...
    @overload
    def __call__(self, function: Callable[[list[Item[T]]], None]) -> BatchTask[T, Any, None]: ...
    @overload
    def __call__(
        self, function: Callable[[list[Item[T]]], Sequence[R | BaseException]]
    ) -> BatchTask[T, R, Sequence[R | BaseException]]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], Awaitable[None]]) -> BatchTask[T, None, Awaitable[None]]: ...
    @overload
    def __call__(
        self, function: Callable[[list[T]], Awaitable[Sequence[R | BaseException]]]
    ) -> BatchTask[T, R, Awaitable[Sequence[R | BaseException]]]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], None]) -> BatchTask[T, None, None]: ...
    @overload
    def __call__(
        self, function: Callable[[list[T]], Sequence[R | BaseException]]
    ) -> BatchTask[T, R, Sequence[R | BaseException]]: ...
