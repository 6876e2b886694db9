"""Writes the numbers over time of a program that ends without closing its store.

At the exit of Python no thread can be started, so asyncio cannot look up names of hosts. The requests are therefore
sent without it, one after the other and once each. They take about `MAX_SECONDS`, plus the time to look up the name of
the host: the resolver of the system has time limits of its own.
"""

from __future__ import annotations

import atexit
import os
import time

from mainspring.log import get_log
from mainspring.stores.dynamodb import numbers
from mainspring.stores.dynamodb.table import Table

log = get_log("mainspring.dynamodb")

MAX_SECONDS = 3.0  # by which an exit is delayed, if the name of the host is found at once
open_tables: dict[int, Table] = {}


def expect_exit(table: Table) -> None:
    """Have the table's numbers written at the exit, unless `forget` is called before."""
    open_tables[id(table)] = table


def forget(table: Table) -> None:
    open_tables.pop(id(table), None)


@atexit.register
def write_all() -> None:
    ends = time.monotonic() + MAX_SECONDS
    for table in list(open_tables.values()):
        try:
            numbers.write_now(table, ends)
        except Exception as error:  # noqa: BLE001 - the exit must go on
            log.warning("numbers_lost", error=str(error) or type(error).__name__)


def drop_those_of_the_parent() -> None:
    """Leave it to the parent process to write what it has counted before the fork."""
    for table in open_tables.values():
        table.numbers.take()


os.register_at_fork(after_in_child=drop_those_of_the_parent)
