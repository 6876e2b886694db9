from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from mainspring import Context, Mainspring
from mainspring.errors import ConfigurationError
from mainspring.signature import Signature, is_plain


class Size(StrEnum):
    SMALL = "small"


class Level(Enum):
    LOW = 1


class Order(BaseModel):
    number: int


@dataclass
class Point:
    x: int


class Handle: ...


def signature_of(function: Callable[..., Any]) -> Signature:
    return Signature("work", function, Context, {})


def test_the_context_is_the_argument_of_that_type_and_not_taken_from_the_job() -> None:
    def first(ctx: Context, room: int) -> None: ...
    def last(room: int, *, c: Context) -> None: ...
    def without(room: int, ctx: str = "") -> Context: ...  # type: ignore[empty-body]

    functions: list[Callable[..., Any]] = [first, last, without]
    found = [(signature.context, list(signature.taken)) for signature in map(signature_of, functions)]
    assert found == [("ctx", ["room"]), ("c", ["room"]), (None, ["room", "ctx"])]


def test_a_job_may_have_no_arguments_if_all_are_optional() -> None:
    def nothing() -> None: ...
    def context(ctx: Context) -> None: ...
    def optional(room: int = 1, **more: Any) -> None: ...
    def required(room: int) -> None: ...

    functions = (nothing, context, optional, required)
    assert [signature_of(function).allows_no_arguments() for function in functions] == [True, True, True, False]


PLAIN: list[Any] = [
    None, bool, int, float, str, bytes, Any, date, datetime, time, timedelta, Decimal, UUID, Size, Level,
    list, tuple, set, frozenset, dict, list[int], tuple[int, ...], tuple[str, None], set[UUID], dict[str, list[Any]],
    int | None, Literal["a", 1], Sequence[str], Mapping[str, Size | None],
]  # fmt: skip


@pytest.mark.parametrize("hint", PLAIN, ids=str)
def test_pydantic_takes_each_type_that_counts_as_plain(hint: Any) -> None:
    assert is_plain(hint)
    TypeAdapter(hint)


OTHERS: list[Any] = [Order, Point, Handle, list[Order], Handle | None, Annotated[int, Field(gt=0)], "Handle", Callable]


@pytest.mark.parametrize("hint", OTHERS, ids=str)
def test_other_types_are_left_to_pydantic(hint: Any) -> None:
    assert not is_plain(hint)


def positional(room: int, /) -> None: ...
def starred(*rooms: int) -> None: ...
def handle(room: Handle) -> None: ...
def returned() -> list[Handle]: ...  # type: ignore[empty-body]
def unknown(room: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (positional, "argument 'room' must be passable by name"),
        (starred, "argument 'rooms' must be passable by name"),
        (handle, "a type that cannot be JSON"),
        (returned, "a type that cannot be JSON"),
        (unknown, "name 'Nowhere' is not defined"),
    ],
)
def test_a_function_that_cannot_have_jobs_is_refused_where_it_is_declared(
    function: Callable[..., Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"task 'work': .*{said}"):
        Mainspring("memory://").task(name="work")(function)
