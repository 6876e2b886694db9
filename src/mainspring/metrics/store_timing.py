"""How long the operations of a store take, and how many fail."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from mainspring.errors import StoreError
from mainspring.metrics.series import Counts, Timings
from mainspring.stores.protocol import Store

OPERATIONS = (
    "insert", "claim", "ack", "report", "save", "steps", "wake", "heartbeat", "reap", "prune", "get", "find", "count",
    "count_up_to", "dead_letters", "stats", "changes", "numbers", "change", "halts", "write", "documents", "browse",
    "due",
)  # fmt: skip
"""The methods of a store that are timed, each under its name. A call takes as many jobs as its caller has."""

SAME_AS = {"insert_now": "insert"}
"""Methods that only some stores have, and the operation as which they count."""


def time_operations(store: Store, timings: Timings, errors: Counts) -> None:
    """Time the operations of this store from now on.

    The methods of this one object are replaced, so that it stays what it is to all checks of its type, and the stores
    of other applications pay nothing.
    """
    for name in (*OPERATIONS, *SAME_AS):
        method = getattr(store, name, None)
        if method is not None:
            setattr(store, name, timed(method, (SAME_AS.get(name, name),), timings, errors))


def timed(method: Callable[..., Any], labels: tuple[str], timings: Timings, errors: Counts) -> Callable[..., Any]:
    now = time.perf_counter

    @wraps(method)
    async def call_async(*args: Any, **options: Any) -> Any:
        began = now()
        try:
            return await method(*args, **options)
        except StoreError:
            errors.add(labels)
            raise
        finally:
            timings.add(labels, now() - began)

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        began = now()
        try:
            return method(*args, **options)
        except StoreError:
            errors.add(labels)
            raise
        finally:
            timings.add(labels, now() - began)

    return call_async if inspect.iscoroutinefunction(method) else call
