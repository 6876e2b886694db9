"""Convert Python values to DynamoDB's attribute values and back, and build the expressions of a write."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mainspring.stores.dynamodb.client import Item

Row = dict[str, Any]  # an item as Python values

PREFIXED = frozenset({"PK", "place", "target"})  # attributes with partition keys: of the table and of its indexes
KEY_MARK = ":k"  # how the placeholders of partition keys begin: in a shared table, these get a prefix
SMALLEST = 1e-130  # DynamoDB rejects numbers that are closer to zero; they are stored as 0


def pack(values: Mapping[str, Any]) -> Item:
    """Convert a row to an item. Values that are None are left out."""
    return {name: attribute(value) for name, value in values.items() if value is not None}


def attribute(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int | float):
        return {"N": repr(value) if abs(value) >= SMALLEST else "0"}
    if isinstance(value, bytes):
        return {"B": b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {"M": pack(value)}
    return {"L": [attribute(element) for element in value]}


def unpack(item: Mapping[str, Mapping[str, Any]]) -> Row:
    return {name: plain(value) for name, value in item.items()}


def plain(value: Mapping[str, Any]) -> Any:
    ((kind, inner),) = value.items()
    match kind:
        case "N":
            return int(inner) if inner.lstrip("-").isdigit() else float(inner)
        case "B":
            return b64decode(inner)
        case "M":
            return unpack(inner)
        case "L":
            return [plain(element) for element in inner]
    return inner


def size(item: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the size in bytes as the service counts it: names and values."""
    return sum(len(name.encode()) + value_size(value) for name, value in item.items())


def value_size(value: Mapping[str, Any]) -> int:
    ((kind, inner),) = value.items()
    match kind:
        case "S":
            return len(inner.encode())
        case "B":
            return len(inner) * 3 // 4
        case "N":
            return (len(inner.strip("-0.").replace(".", "")) + 1) // 2 + 2
        case "M":
            return 3 + size(inner) + len(inner)
        case "L":
            return 3 + sum(value_size(element) + 1 for element in inner)
    return 1


# -- conditions and changes -----------------------------------------------------------------------------


EQUALS = "{name} = {value}"


@dataclass(frozen=True, slots=True)
class Condition:
    template: str
    name: str
    value: Any = None
    in_batch: str = ""  # the same condition in PartiQL

    def is_about_key(self) -> bool:
        """Return whether the value is compared with a partition key."""
        return self.name in PREFIXED and self.template == EQUALS


def equals(name: str, value: Any) -> Condition:
    return Condition(EQUALS, name, value, '"{name}" = ?')


def exists(name: str) -> Condition:
    return Condition("attribute_exists({name})", name, in_batch='"{name}" IS NOT MISSING')


def higher(name: str, value: int) -> Condition:
    """Require that the stored value is lower, or that there is none."""
    return Condition("(attribute_not_exists({name}) OR {name} < {value})", name, value)


def has_size(name: str, value: int) -> Condition:
    """Require that a list has this many elements."""
    return Condition("size({name}) = {value}", name, value)


def absent(name: str) -> Condition:
    return Condition("attribute_not_exists({name})", name, in_batch='"{name}" IS MISSING')


@dataclass(frozen=True, slots=True)
class ItemUpdate:
    """An update that can be sent alone or in a batch request, in PartiQL: no other kind allows conditions."""

    key: Item
    changes: Mapping[str, Any]
    only_if: Sequence[Condition]
    add: Mapping[str, int] | None = None
    append: Mapping[str, Sequence[Any]] | None = None  # to lists; only together with `beside`
    beside: Sequence[tuple[str, Mapping[str, Any]]] = ()  # writes of the same transaction; then it is not batched

    def alone(self) -> dict[str, Any]:
        return update(self.key, self.changes, add=self.add, append=self.append, only_if=self.only_if)

    def in_batch(self, table: str) -> dict[str, Any]:
        """Return a PartiQL statement. Names are fixed; values are parameters."""
        sets = [(name, value) for name, value in self.changes.items() if value is not None]
        adds = list((self.add or {}).items())
        parts = [f'SET "{name}" = ?' for name, _ in sets]
        parts += [f'SET "{name}" = "{name}" + ?' for name, _ in adds]
        parts += [f'REMOVE "{name}"' for name, value in self.changes.items() if value is None]
        conditions = [f'"{name}" = ?' for name in self.key]
        conditions += [check.in_batch.format(name=check.name) for check in self.only_if]
        given = [value for _, value in sets + adds]
        compared = [check.value for check in self.only_if if "?" in check.in_batch]
        return {
            "Statement": f'UPDATE "{table}" {" ".join(parts)} WHERE {" AND ".join(conditions)} RETURNING ALL OLD *',
            "Parameters": [
                *map(attribute, given), *self.key.values(), *map(attribute, compared),
            ],
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }  # fmt: skip


def insert_in_batch(table: str, item: Item) -> dict[str, Any]:
    """Return a PartiQL insert. The service rejects it as a duplicate if the key exists."""
    names = ", ".join(f"'{name}': ?" for name in item)
    return {"Statement": f'INSERT INTO "{table}" VALUE {{{names}}}', "Parameters": list(item.values())}


class Expressions:
    """Replace names and values by placeholders: half of the attribute names are reserved words of the service."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: Item = {}

    def name(self, name: str) -> str:
        placeholder = f"#n{len(self.names)}"
        return self.names.setdefault(name, placeholder)

    def value(self, value: Any, *, is_key: bool = False) -> str:
        placeholder = f"{KEY_MARK if is_key else ':v'}{len(self.values)}"
        self.values[placeholder] = attribute(value)
        return placeholder

    def all_of(self, conditions: Iterable[Condition]) -> str:
        return " AND ".join(
            condition.template.format(
                name=self.name(condition.name),
                value=self._compared(condition) if "{value}" in condition.template else "",
            )
            for condition in conditions
        )

    def _compared(self, condition: Condition) -> str:
        return self.value(condition.value, is_key=condition.is_about_key())

    def change(self, changes: Mapping[str, Any], add: Mapping[str, float], append: Mapping[str, Sequence[Any]]) -> str:
        """Return an update expression: SET values, append to lists, REMOVE what is None, and ADD numbers."""
        sets = [
            f"{self.name(name)} = {self.value(value, is_key=name in PREFIXED)}"
            for name, value in changes.items()
            if value is not None
        ]
        for name, values in append.items():
            list_, none = self.name(name), self.value([])
            sets.append(f"{list_} = list_append(if_not_exists({list_}, {none}), {self.value(values)})")
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
    append: Mapping[str, Sequence[Any]] | None = None,
    only_if: Sequence[Condition] = (),
) -> dict[str, Any]:
    expressions = Expressions()
    expression = expressions.change(changes, add or {}, append or {})
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
