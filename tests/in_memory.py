"""Change a store in memory directly, without its methods."""

from __future__ import annotations

from typing import Any

from mainspring.portal import run_at_once
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import MemoryStore


def execute(store: Store, statement: str, *parameters: Any) -> None:
    assert isinstance(store, MemoryStore)
    run_at_once(store._write(lambda transaction, _: [transaction.execute(statement, parameters)], [None]))
