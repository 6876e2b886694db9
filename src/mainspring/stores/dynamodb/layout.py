"""Where Mainspring's items are in a table that it shares with other data.

The rest of the store knows one layout: the keys PK and SK, and the indexes `places` and `targets`. In a shared table,
every partition key of Mainspring, in the table and in its indexes, begins with a prefix, and the attributes that the
table itself knows (keys and expiry) have names that the other owner does not use. `Layout` translates each request and
each answer between the two, so no request can name an item of the other owner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mainspring.errors import ConfigurationError
from mainspring.stores.dynamodb.client import Item
from mainspring.stores.dynamodb.items import ATTRIBUTE_NAMES, PLACES, TARGETS
from mainspring.stores.dynamodb.values import KEY_MARK, PREFIXED, Condition, ItemUpdate

PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,63}[/#]")
OWN_EXPIRY = "mainspring_ttl"  # of a shared table without expiry: the other owner may use `ttl` for something else
SHARED_NAMES = {"place": "mainspring_place", "rank": "mainspring_rank", "target": "mainspring_target"}
SHARED_INDEXES = {PLACES: "mainspring_places", TARGETS: "mainspring_targets"}

Texts = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Layout:
    """The prefix of all keys, and the names of the attributes that the table itself knows."""

    prefix: str = ""
    partition: str = "PK"
    sort: str = "SK"
    expiry: str = "ttl"

    @property
    def names(self) -> dict[str, str]:
        """Return the table's name of each attribute that has another name in the rest of the store."""
        known = {"PK": self.partition, "SK": self.sort, "ttl": self.expiry}
        return known | (SHARED_NAMES if self.prefix else {})

    @property
    def indexes(self) -> Texts:
        return SHARED_INDEXES if self.prefix else {}

    def expiring_by(self, attribute: str) -> Layout:
        """Return the layout of a table whose items expire by this attribute."""
        refuse_taken("the table's items expire by the attribute", [attribute], "write prune=on into the URL")
        return replace(self, expiry=attribute)


OWN_TABLE = Layout()
"""The layout of a table that has nothing but Mainspring's items of one application."""


def shared(prefix: str, keys: str | None = None) -> Layout:
    """Return the layout of a shared table, from the settings of a URL."""
    if not PREFIX.fullmatch(prefix):
        msg = (
            f"prefix must be 1 to 63 letters, digits, or any of _ . : -, and then one / or #, not {prefix!r}; "
            "write for example prefix=mainspring/, and in a URL # as %23"
        )
        raise ConfigurationError(msg)
    if keys is None:
        return Layout(prefix, expiry=OWN_EXPIRY)
    names = keys.split(",")
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        msg = f"keys must name the table's partition key and sort key, such as keys=pk,sk, not {keys!r}"
        raise ConfigurationError(msg)
    refuse_taken("the table's keys are", names, "use a table with other keys")
    return Layout(prefix, names[0], names[1], OWN_EXPIRY)


def refuse_taken(what: str, names: list[str], instead: str) -> None:
    """Refuse a table whose own attributes have names that Mainspring's items use for something else."""
    taken = ATTRIBUTE_NAMES.intersection(names)
    if taken:
        msg = f"{what} {', '.join(names)}, but Mainspring's items use {', '.join(sorted(taken))} as well; {instead}"
        raise ConfigurationError(msg)


# -- translating ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Translation:
    """One direction: from the store's layout to the table's, or back."""

    names: Texts
    indexes: Texts
    key: Callable[[str], str]  # translates a partition key
    prefixed: frozenset[str]  # attributes with partition keys, as this direction's input names them

    def translate(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return {name: FIELDS[name](self, value) if name in FIELDS else value for name, value in message.items()}

    def messages(self, messages: list[Any]) -> list[Any]:
        return [self.translate(message) for message in messages]

    def items(self, items: list[Item]) -> list[Item]:
        return [self.item(item) for item in items]

    def by_table(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Translate what is read (a message) or written (a list of messages) in each table."""
        return {
            table: (self.messages if isinstance(part, list) else self.translate)(part) for table, part in parts.items()
        }

    def responses(self, found: Any) -> Any:
        """Translate the answers of single statements, or the items that were found in each table."""
        return (
            self.messages(found)
            if isinstance(found, list)
            else {name: self.items(part) for name, part in found.items()}
        )

    def attribute_names(self, names: Texts) -> dict[str, str]:
        return {placeholder: self.names.get(name, name) for placeholder, name in names.items()}

    def attribute_values(self, values: Item) -> Item:
        return {place: self._key(value) if place.startswith(KEY_MARK) else value for place, value in values.items()}

    def index(self, name: str) -> str:
        return self.indexes.get(name, name)

    def item(self, item: Item) -> Item:
        return {
            self.names.get(name, name): self._key(value) if name in self.prefixed else value
            for name, value in item.items()
        }

    def _key(self, value: Mapping[str, Any]) -> dict[str, Any]:
        return {"S": self.key(value["S"])}

    def update(self, change: ItemUpdate) -> ItemUpdate:
        """Return the same update in the table's layout, to be written as a statement."""
        changes = {
            self.names.get(name, name): self.key(value) if name in self.prefixed and value is not None else value
            for name, value in change.changes.items()
        }
        return ItemUpdate(self.item(change.key), changes, [self._condition(c) for c in change.only_if], change.add)

    def _condition(self, condition: Condition) -> Condition:
        value = condition.value
        if condition.is_about_key():
            value = self.key(value)
        return replace(condition, name=self.names.get(condition.name, condition.name), value=value)


FIELDS: Mapping[str, Callable[[Translation, Any], Any]] = {
    **dict.fromkeys(("Key", "Item", "Attributes", "ExclusiveStartKey", "LastEvaluatedKey"), Translation.item),
    **dict.fromkeys(("Keys", "Items"), Translation.items),
    **dict.fromkeys(("Put", "Update", "Delete", "ConditionCheck"), Translation.translate),
    **dict.fromkeys(("PutRequest", "DeleteRequest", "Error"), Translation.translate),
    **dict.fromkeys(("RequestItems", "UnprocessedKeys", "UnprocessedItems"), Translation.by_table),
    "TransactItems": Translation.messages,
    "Responses": Translation.responses,
    "ExpressionAttributeNames": Translation.attribute_names,
    "ExpressionAttributeValues": Translation.attribute_values,
    "IndexName": Translation.index,
}
"""The fields of requests and answers that have keys in them, and how each is translated."""


@dataclass(slots=True)
class Translator:
    """Translates between the store and a table with this layout."""

    layout: Layout
    outgoing: Translation = field(init=False)
    incoming: Translation = field(init=False)

    def __post_init__(self) -> None:
        names, indexes, prefix = self.layout.names, self.layout.indexes, self.layout.prefix
        back = {theirs: ours for ours, theirs in names.items()}
        self.outgoing = Translation(names, indexes, lambda key: prefix + key, PREFIXED)
        ours = frozenset(names[name] for name in PREFIXED)
        self.incoming = Translation(back, {}, lambda key: key.removeprefix(prefix), ours)
