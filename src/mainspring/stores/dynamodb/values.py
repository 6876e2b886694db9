"""Python values as attribute values and back, and the expressions of a write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mainspring.stores.dynamodb.client import Item

Row = dict[str, Any]  # an item in Python's own types


def pack(values: Mapping[str, Any]) -> Item:
    """What is None is left out."""
    return {name: attribute(value) for name, value in values.items() if value is not None}


def attribute(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int | float):
        return {"N": repr(value)}
    if isinstance(value, Mapping):
        return {"M": pack(value)}
    return {"L": [attribute(one) for one in value]}


def unpack(item: Mapping[str, Mapping[str, Any]]) -> Row:
    return {name: plain(value) for name, value in item.items()}


def plain(value: Mapping[str, Any]) -> Any:
    ((kind, inner),) = value.items()
    match kind:
        case "N":
            return int(inner) if inner.lstrip("-").isdigit() else float(inner)
        case "M":
            return unpack(inner)
        case "L":
            return [plain(one) for one in inner]
    return inner


def size(item: Mapping[str, Mapping[str, Any]]) -> int:
    """In bytes, as the service counts them: names and values."""
    return sum(len(name.encode()) + value_size(value) for name, value in item.items())


def value_size(value: Mapping[str, Any]) -> int:
    ((kind, inner),) = value.items()
    match kind:
        case "S":
            return len(inner.encode())
        case "N":
            return (len(inner.strip("-0.").replace(".", "")) + 1) // 2 + 2
        case "M":
            return 3 + size(inner) + len(inner)
        case "L":
            return 3 + sum(value_size(one) + 1 for one in inner)
    return 1


# -- conditions and changes -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Condition:
    template: str
    name: str
    value: Any = None


def equals(name: str, value: Any) -> Condition:
    return Condition("{name} = {value}", name, value)


def exists(name: str) -> Condition:
    return Condition("attribute_exists({name})", name)


def absent(name: str) -> Condition:
    return Condition("attribute_not_exists({name})", name)


class Expressions:
    """Names and values as placeholders: half of our attributes are words that the service reserves."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: Item = {}

    def name(self, name: str) -> str:
        placeholder = f"#n{len(self.names)}"
        return self.names.setdefault(name, placeholder)

    def value(self, value: Any) -> str:
        placeholder = f":v{len(self.values)}"
        self.values[placeholder] = attribute(value)
        return placeholder

    def all_of(self, conditions: Iterable[Condition]) -> str:
        return " AND ".join(
            one.template.format(
                name=self.name(one.name), value="" if "{value}" not in one.template else self.value(one.value)
            )
            for one in conditions
        )

    def change(self, changes: Mapping[str, Any], add: Mapping[str, float]) -> str:
        """SET, and REMOVE what is None, and ADD."""
        sets = [f"{self.name(name)} = {self.value(value)}" for name, value in changes.items() if value is not None]
        removes = [self.name(name) for name, value in changes.items() if value is None]
        adds = [f"{self.name(name)} {self.value(number)}" for name, number in add.items()]
        parts = (("SET", sets), ("REMOVE", removes), ("ADD", adds))
        return " ".join(f"{word} {', '.join(terms)}" for word, terms in parts if terms)

    def given(self) -> dict[str, Any]:
        names = {placeholder: name for name, placeholder in self.names.items()}
        request: dict[str, Any] = {}
        if names:
            request["ExpressionAttributeNames"] = names
        if self.values:
            request["ExpressionAttributeValues"] = self.values
        return request


def put(values: Mapping[str, Any], only_if: Sequence[Condition] = ()) -> dict[str, Any]:
    return put_item(pack(values), only_if)


def put_item(item: Item, only_if: Sequence[Condition] = ()) -> dict[str, Any]:
    return {"Item": item, **conditional(Expressions(), only_if)}


def update(
    key: Item,
    changes: Mapping[str, Any],
    *,
    add: Mapping[str, float] | None = None,
    only_if: Sequence[Condition] = (),
) -> dict[str, Any]:
    expressions = Expressions()
    expression = expressions.change(changes, add or {})
    return {"Key": key, "UpdateExpression": expression, **conditional(expressions, only_if)}


def delete(key: Item, only_if: Sequence[Condition] = ()) -> dict[str, Any]:
    return {"Key": key, **conditional(Expressions(), only_if)}


def check(key: Item, only_if: Sequence[Condition]) -> dict[str, Any]:
    return {"Key": key, **conditional(Expressions(), only_if)}


def conditional(expressions: Expressions, only_if: Sequence[Condition]) -> dict[str, Any]:
    if not only_if:
        return expressions.given()
    condition = expressions.all_of(only_if)
    return {
        "ConditionExpression": condition,
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        **expressions.given(),
    }
