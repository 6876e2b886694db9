"""The stores agree: the same random histories give the same answers on each of them.

`MAINSPRING_HISTORIES=1000` runs that many histories on all stores, new ones each time.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from tests.conformance import differential
from tests.conformance.differential import STEPS, Comparison, Make, compare, histories
from tests.stores.sqlite.template import fresh_database

MANY = int(os.environ.get("MAINSPRING_HISTORIES", "0"))
LOCAL: dict[str, Make] = {
    "memory": lambda clock: MemoryStore(clock=clock),
    "SQLite": lambda clock: SqliteStore(fresh_database(), clock=clock),
}


def some(number: int) -> settings:
    return settings(
        max_examples=MANY or number,
        derandomize=not MANY,
        deadline=None,
        phases=list(Phase) if MANY else [Phase.generate],  # to shrink a history takes minutes
        suppress_health_check=list(HealthCheck),
        database=None,
    )


def test_the_steps_call_every_method_of_the_contract_but_those_that_may_differ() -> None:
    called = set(re.findall(r"\bstore\.(\w+)\(", inspect.getsource(differential)))
    methods = {name for name, _ in inspect.getmembers(Store, inspect.isfunction) if name[0] != "_"}
    assert methods - called == {"diagnose", "rewrite", "sizes", "watching"}
    assert vars(Comparison).keys() >= STEPS.keys()


@pytest.mark.slow
@some(12)
@given(histories(40))
def test_a_file_and_memory_agree(history: list[tuple[Any, ...]]) -> None:
    asyncio.run(compare(LOCAL, history))


@pytest.mark.slow
@some(7)
@given(histories(40))
def test_all_stores_agree_on_random_histories(history: list[tuple[Any, ...]]) -> None:
    from tests.dynamodb import FreshStore
    from tests.postgres import RecycledStore

    stores: dict[str, Make] = {
        "memory": LOCAL["memory"],
        "PostgreSQL": lambda clock: RecycledStore(clock=clock),
        "DynamoDB": lambda clock: FreshStore(clock=clock),
    }
    asyncio.run(compare(stores, history))
