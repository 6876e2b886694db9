"""JSON judged by the schemas that Pydantic generates: the same verdict as Pydantic's own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address, IPv6Network
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from mainspring.errors import ConfigurationError
from mainspring.json_schema import MAX_PROBLEMS, SchemaCheck


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Node(BaseModel):
    name: str
    next: Node | None = None
    children: list[Node] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["dog", "puppy"]
    name: Annotated[str, Field(min_length=1, max_length=5, alias="called")]


class Row(TypedDict):
    id: int
    note: NotRequired[str]


Row.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]

TYPES: list[Any] = [
    int,
    float,
    str,
    bool,
    None,
    Any,
    int | str | None,
    Literal["a", 1, True] | None,
    Colour,
    Size,
    list[int],
    Annotated[list[int], Field(min_length=1, max_length=2)],
    set[int],
    tuple[int, str],
    tuple[int, ...],
    dict[str, int],
    Annotated[dict[str, int], Field(min_length=1, max_length=2)],
    Annotated[int, Field(gt=0, lt=5, multiple_of=2)],
    Annotated[float, Field(ge=0.5, le=1.5)],
    Annotated[str, Field(min_length=1, max_length=3)],
    Annotated[str, Field(pattern="^[a-c]+$")],
    datetime,
    date,
    time,
    timedelta,
    UUID,
    IPv4Address,
    IPv6Network,
    AnyUrl,
    Node,
    Cat | Dog,
    Annotated[Cat | Dog, Field(discriminator="kind")],
    list[Annotated[Cat | Dog, Field(discriminator="kind")] | None],
    Row,
    Mapping[str, Row | list[Row]],
]
LOOSE: list[Any] = [dict[int, str], dict[Annotated[str, Field(pattern="^x-")], int], Decimal]
"""Types whose schema allows more than Pydantic accepts: it says nothing of keys, or of the text of a number."""
TEXTS = st.sampled_from([
    "", "a", "abc", "abcd", "red", "x-1", "1", "2026-05-01", "2026-05-01T09:30:00Z", "2026-05-01T09:30", "09:30:00",
    "PT5M", "P1D", "1.5", "-0.5", "4bf92f35-77b3-4da6-a3ce-929d0e0e4736", "127.0.0.1", "::/64", "https://a.example/b",
    "cat", "dog", "2026-13-01", "25:00", "nan", "é",
])  # fmt: skip
NAMES = st.sampled_from(["kind", "name", "called", "lives", "next", "children", "id", "note", "x-1", "1", "other"])
SCALARS = st.none() | st.booleans() | st.integers(-3, 10) | st.sampled_from([0.5, 1.0, 1.5, 2.5, -1.0]) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
PETS = st.fixed_dictionaries({"kind": st.sampled_from(["cat", "dog", "puppy"])}, optional={
    "lives": st.integers(0, 10), "called": TEXTS, "name": TEXTS, "other": SCALARS,
})  # fmt: skip
ROWS = st.fixed_dictionaries({"id": st.integers(0, 3) | TEXTS}, optional={"note": SCALARS, "other": SCALARS})
NODES = st.recursive(
    st.fixed_dictionaries({"name": TEXTS | st.none()}),
    lambda inner: st.fixed_dictionaries(
        {"name": TEXTS}, optional={"next": inner | st.none(), "children": st.lists(inner, max_size=2) | SCALARS}
    ),
    max_leaves=5,
)
JSON = VALUES | PETS | ROWS | NODES | st.lists(PETS | st.none(), max_size=2) | st.dictionaries(NAMES, ROWS, max_size=2)


@pytest.mark.parametrize("examples", [15, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [*TYPES, *LOOSE], ids=str)
def test_the_verdict_is_that_of_pydantic(kind: Any, examples: int) -> None:
    """What fits the schema, Pydantic accepts. What Pydantic accepts strictly, fits as Pydantic writes it."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    check = SchemaCheck(adapter.json_schema())

    @given(JSON)
    @settings(max_examples=examples, deadline=None, database=None)
    def compare(value: Any) -> None:
        text = json.dumps(value)
        problems = check.problems(value)
        if not problems and kind not in LOOSE:
            adapter.validate_json(text)
        try:
            accepted = adapter.validate_json(text, strict=True)
        except ValidationError:
            return
        assert not check.problems(json.loads(adapter.dump_json(accepted, by_alias=True))), problems

    compare()


def problems(schema: Any, value: Any) -> list[str]:
    return SchemaCheck(schema).problems(value)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [1, 1.0, -5], [True, 1.5, "1", None]),
        ({"type": ["string", "null"]}, ["a", None], [1]),
        ({"enum": [1, "a", None, [1]]}, [1.0, "a", None, [1.0]], [True, "b", [True], 0]),
        ({"const": {"a": 1}}, [{"a": 1.0}], [{"a": True}, {}, {"a": 1, "b": 2}]),
        (True, [1], []),
        (False, [], [1, None]),
        ({"not": {"type": "string"}}, [1], ["a"]),
        ({"oneOf": [{"minimum": 1}, {"maximum": 5}]}, [0, 6], [3]),
        ({"allOf": [{"minimum": 1}, {"maximum": 5}]}, [3], [0, 6]),
        ({"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "null"}}, ["ab", None], ["a", 1]),
        ({"if": {"type": "string"}}, ["a", 1], []),
        ({"multipleOf": 0.1}, [0.3, 1, 1e6], [0.35]),
        ({"multipleOf": 3}, [6, 6.0], [7, 7.0]),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 2}, [1, "a"], [0, 2]),
        ({"uniqueItems": True}, [[1, True, "1"], "aa"], [[1, 1.0], [{"a": 1}, {"a": 1.0}]]),
        ({"uniqueItems": False}, [[1, 1]], []),
        ({"contains": {"const": 1}, "maxContains": 2}, [[1], [1, 1]], [[], [1, 1, 1]]),
        ({"contains": {"const": 1}, "minContains": 0}, [[], [1]], []),
        ({"prefixItems": [{"type": "string"}], "items": False}, [["a"], []], [["a", 1], [1]]),
        ({"propertyNames": {"maxLength": 1}}, [{"a": 1}, 5], [{"ab": 1}]),
        ({"dependentRequired": {"a": ["b"]}}, [{}, {"a": 1, "b": 2}], [{"a": 1}]),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, [{"b": 1}, {"a": 1, "b": 2}], [{"a": 1}]),
        ({"minProperties": 1, "maxProperties": 2}, [{"a": 1}, []], [{}, {"a": 1, "b": 2, "c": 3}]),
        (
            {"patternProperties": {"^x": {"type": "null"}}, "additionalProperties": False},
            [{"x1": None}],
            [{"x": 1}, {"y": None}],
        ),
        ({"additionalProperties": {"type": "null"}, "properties": {"a": {}}}, [{"a": 1, "b": None}], [{"b": 1}]),
        ({"format": "email"}, ["a@b", 5], ["a", "@b", "a@"]),
        ({"format": "date-time"}, ["2026-05-01T09:30:00+02:00"], ["tomorrow"]),
        ({"format": "unheard-of"}, ["anything"], []),
        ({"pattern": "b"}, ["abc", 5], ["ac"]),
        ({"pattern": "^(?!a)"}, ["b"], ["a"]),  # look-ahead, which only Python's own expressions know
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, [None], [1]),
        ({"anyOf": [{"$ref": "#/anyOf/1"}, {"type": "null"}]}, [None], [1]),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_each_keyword(schema: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert problems(schema, value) == []
    for value in bad:
        assert problems(schema, value), value


NODE = Node.model_json_schema()
NO_NODE = "must be an object, not 5; or must be null, not 5"
PET = TypeAdapter(list[Annotated[Cat | Dog, Field(discriminator="kind")]]).json_schema()


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        (NODE, {"name": "a", "children": [{"name": 5}]}, ["children.0.name: must be a string, not 5"]),
        (NODE, {"name": "a", "next": {"next": None}}, ["next.name: is missing"]),
        (NODE, {"name": "a", "next": 5}, [f"next: fits none of the forms that are allowed, 5: {NO_NODE}"]),
        (PET, [{"kind": "cow"}], ['0.kind: must be "cat", "dog" or "puppy", not "cow"']),
        (PET, [{}], ['0.kind: is missing; give "cat", "dog" or "puppy"']),
        (PET, [5], ["0: must be an object, not 5"]),
        (PET, [{"kind": "cat", "lives": 10}], ["0.lives: must be at most 9, not 10"]),
        (
            PET,
            [{"kind": "dog", "called": "", "x": 1}],
            [
                '0.x: is not allowed; there are "kind" and "called"',
                "0.called: must have at least 1 character, not 0",
            ],
        ),
        (TypeAdapter(Colour).json_schema(), "green", ['payload: must be "red" or "blue", not "green"']),
    ],
)  # fmt: skip
def test_a_problem_names_the_place_and_what_is_allowed(schema: Any, value: Any, said: list[str]) -> None:
    assert problems(schema, value) == said


def test_long_values_and_long_lists_of_problems_are_cut() -> None:
    found = problems({"items": {"type": "null"}}, ["x" * 500] * 100)
    assert len(found) == MAX_PROBLEMS
    assert all(len(problem) < 200 for problem in found)


def test_a_value_that_is_nested_too_deep_is_a_problem_and_no_crash() -> None:
    value: Any = {"name": "leaf"}
    for _ in range(3000):
        value = {"name": "a", "next": value}
    assert problems(Node.model_json_schema(), value) == [
        "payload: is nested too deep to be checked; give fewer levels of lists and objects"
    ]


def test_a_value_as_deep_as_a_payload_may_be_is_checked() -> None:
    value: Any = {"name": "leaf"}
    for _ in range(188):
        value = {"name": "a", "next": value}
    assert problems(Node.model_json_schema(), value) == []


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"properties": {"a": {"unevaluatedProperties": False}}}, "unevaluatedProperties, which is not supported"),
        ({"items": {"$ref": "#/$defs/B"}}, "'#/$defs/B', which it does not have"),
        ({"$ref": "https://example.com/schema"}, "which is not a part of it"),
        ({"pattern": "("}, "not a regular expression"),
    ],
)
def test_a_schema_that_cannot_be_judged_is_refused(schema: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        SchemaCheck(schema)


def test_a_property_may_be_named_like_a_keyword() -> None:
    schema = {"properties": {"unevaluatedItems": {"type": "null"}, "$ref": {"type": "string"}}, "type": "object"}
    assert problems(schema, {"unevaluatedItems": None, "$ref": "a"}) == []
