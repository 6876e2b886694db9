from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field

from mainspring import Context
from mainspring.errors import CannotStoreResult, InvalidPayload
from mainspring.payload import Payload
from mainspring.signature import Signature


class Size(StrEnum):
    SMALL = "small"


class Line(BaseModel):
    item: str
    price: Decimal


class Order(BaseModel):
    """With all that makes a model's JSON differ from its fields."""

    model_config = ConfigDict(extra="forbid")
    number: int = Field(alias="orderNumber")
    lines: list[Line] = []

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> Decimal:
        return sum((line.price for line in self.lines), Decimal(0))


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date


@dataclass
class Point:
    x: int
    y: int


ORDER = Order(orderNumber=7, lines=[Line(item="tea", price=Decimal("2.50"))])
STORED_ORDER = '{"orderNumber":7,"lines":[{"item":"tea","price":"2.50"}]}'


def payload_of(function: Callable[..., Any]) -> Payload:
    return Payload(Signature("work", function, Context, {}))


def there_and_back(payload: Payload, *args: Any, **kwargs: Any) -> dict[str, Any]:
    positional, named = payload.load(payload.dump(args, kwargs))
    assert positional == ()
    return named


# -- arguments ------------------------------------------------------------------------------------


VALUES: dict[str, Any] = {
    "when": datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
    "day": date(2028, 2, 29),
    "length": timedelta(days=1, milliseconds=1),
    "price": Decimal("0.10"),
    "key": UUID(int=7),
    "size": Size.SMALL,
    "point": Point(1, 2),
    "order": ORDER,
    "names": {"a", "b"},
    "by_number": {1: ("x", None)},
    "raw": b"caf\xc3\xa9",
    "maybe": None,
}


def test_python_values_come_back_as_they_were() -> None:
    def work(
        *,
        when: datetime,
        day: date,
        length: timedelta,
        price: Decimal,
        key: UUID,
        size: Size,
        point: Point,
        order: Order,
        names: set[str],
        by_number: dict[int, tuple[str, None]],
        raw: bytes,
        maybe: int | None,
    ) -> None: ...

    assert there_and_back(payload_of(work), **VALUES) == VALUES


def test_arguments_are_bound_as_in_a_call_and_the_context_is_none_of_them() -> None:
    def first(ctx: Context, room: int, guest: str = "ana") -> None: ...
    def last(room: int, guest: str = "ana", *, ctx: Context) -> None: ...

    for function in (first, last):
        payload = payload_of(function)
        assert payload.dump((7,), {"guest": "bob"}) == payload.dump((7, "bob"), {}) == '{"room":7,"guest":"bob"}'
        with pytest.raises(InvalidPayload, match="ctx"):
            payload.dump((7,), {"ctx": None})


def test_a_default_is_that_of_the_code_that_runs_the_job() -> None:
    def work(room: int, guest: str = "ana") -> None: ...

    assert payload_of(work).dump((), {"room": 1}) == '{"room":1}'
    assert there_and_back(payload_of(work), room=1) == {"room": 1}


def test_any_further_names_can_be_taken() -> None:
    def work(room: int, **more: Any) -> None: ...

    payload = payload_of(work)
    assert there_and_back(payload, room=1, guest="ana", bed={"wide": True}) == {
        "room": 1, "guest": "ana", "bed": {"wide": True},
    }  # fmt: skip
    assert there_and_back(payload, 1, guest="ana") == {"room": 1, "guest": "ana"}


def test_arguments_without_a_type_may_be_any_json() -> None:
    def work(room, guest=None): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202

    assert there_and_back(payload_of(work), {"number": [1, 2]}) == {"room": {"number": [1, 2]}}


# -- models ---------------------------------------------------------------------------------------


def test_a_model_alone_is_the_payload_itself() -> None:
    def work(order: Order) -> None: ...
    def by_name(ctx: Context, *, order: Order) -> None: ...

    for function in (work, by_name):
        payload = payload_of(function)
        text = payload.dump((), {"order": ORDER})
        assert text == STORED_ORDER
        assert payload.load(text) == ((), {"order": ORDER})
        assert payload.dump((), {"order": {"orderNumber": 7}}) == '{"orderNumber":7,"lines":[]}'
    assert payload_of(work).dump((ORDER,), {}) == STORED_ORDER


def test_a_model_that_may_be_left_out_or_come_in_numbers_is_an_argument_like_any_other() -> None:
    def optional(order: Order = ORDER) -> None: ...
    def several(**orders: Order) -> None: ...

    assert there_and_back(payload_of(optional)) == {}
    assert there_and_back(payload_of(optional), ORDER) == {"order": ORDER}
    assert payload_of(several).dump((), {"a": ORDER}).startswith('{"a":{"orderNumber":7')


@pytest.mark.parametrize("order", [{"orderNumber": "x"}, {}, {"orderNumber": 1, "sum": 2}, None])
def test_a_bad_model_is_refused(order: Any) -> None:
    def work(order: Order) -> None: ...

    with pytest.raises(InvalidPayload):
        payload_of(work).dump((order,), {})


# -- what does not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "room: Field required"),
        ((), {"room": "seven"}, "room: Input should be a valid integer"),
        ((), {"room": 7, "price": float("nan")}, "price: Input should be a finite number"),
        ((), {"room": 7, "gest": "ana"}, "gest: Extra inputs are not permitted"),
        ((), {"room": 7, "beds": [1, "x"]}, r"beds\.1: Input should be a valid integer"),
        ((), {"room": 7, "raw": b"\xff"}, "invalid utf-8"),
        ((7, 1.0, [], b"", "more"), {}, "too many positional arguments"),
        ((7,), {"room": 7}, "multiple values for argument 'room'"),
    ],
)
def test_invalid_arguments_are_refused_with_the_reason(
    args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    def work(room: int, price: float = 0.0, beds: list[int] = [], raw: bytes = b"") -> None: ...  # noqa: B006

    with pytest.raises(InvalidPayload, match=f"task 'work'.*{said}"):
        payload_of(work).dump(args, kwargs)


def test_a_stored_payload_is_checked_again() -> None:
    def work(room: int) -> None: ...

    payload = payload_of(work)
    assert payload.check(' {"room": "7"} ') == '{"room":7}'
    for text in ('{"room": "seven"}', "{", "[]"):
        with pytest.raises(InvalidPayload, match="task 'work' does not take this payload"):
            payload.check(text)
        with pytest.raises(InvalidPayload, match="task 'work' does not take this payload"):
            payload.load(text)


# -- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, ORDER),
        (list[Order], [ORDER]),
        (Strict, Strict(day=date(2026, 1, 1))),
        (tuple[int, str], (1, "x")),
        (datetime, datetime(2026, 1, 1, tzinfo=UTC)),
        (dict[str, set[int]], {"a": {1}}),
        (Point | None, Point(1, 2)),
        (Any, {"x": [1]}),
        (None, None),
        (int, None),
    ],
)
def test_results_come_back_in_their_types(kind: Any, value: Any) -> None:
    def work() -> Any: ...

    work.__annotations__["return"] = kind
    payload = payload_of(work)
    text = payload.dump_result(value)
    assert payload.load_result(None if text is None else json.loads(text)) == value


def test_a_result_that_is_not_what_was_promised_or_not_json_cannot_be_stored() -> None:
    def number() -> int: ...  # type: ignore[empty-body]
    def anything() -> Any: ...

    for function, value in ((number, "seven"), (anything, object())):
        with pytest.raises(CannotStoreResult, match="the result of task 'work' does not fit"):
            payload_of(function).dump_result(value)
