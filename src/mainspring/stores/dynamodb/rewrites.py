"""Replaces stored texts of jobs by others that mean the same, such as those that are sealed with a new key."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.stores.dynamodb.client import ConditionFailed, Item
from mainspring.stores.dynamodb.items import LONG, history, key, short, text, text_of
from mainspring.stores.dynamodb.steps import MAX_NAME_BYTES
from mainspring.stores.dynamodb.table import Table, together
from mainspring.stores.dynamodb.values import equals, update
from mainspring.stores.protocol import Rewrite

AT_ONCE = 25


async def rewrite(table: Table, texts: Sequence[Rewrite]) -> int:
    number = 0
    for start in range(0, len(texts), AT_ONCE):
        number += sum(await together([replaced(table, one) for one in texts[start : start + AT_ONCE]]))
    return number


async def replaced(table: Table, given: Rewrite) -> bool:
    """Replace a text if it is still the same. The condition is about what was read, which may be compressed."""
    name, where = ("output" if given.step is not None else given.column), place_of(table, given)
    row = await table.get(where)
    if row is None or (text_of(name, row) if is_long(name) else row.get(name)) != given.old:
        return False
    stored = f"{name}_zlib" if f"{name}_zlib" in row else name
    changes = text(name, given.new) if is_long(name) else {name: given.new}
    try:
        await table.update(update(where, changes, only_if=[equals(stored, row[stored])]))
    except ConditionFailed:
        return False
    return True


def is_long(name: str) -> bool:
    return name in LONG or name == "output"


def place_of(table: Table, given: Rewrite) -> Item:
    if given.step is None:
        return table.job_key(given.job_id)
    return key(history(given.job_id), f"step#{short(given.step, MAX_NAME_BYTES)}")
