"""Reads of pages and operators walk indexes: completions, capped counts, documents and numbers sort no table."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from mainspring.job import Status
from mainspring.stores.documents import Listing
from mainspring.stores.numbers import Grouping, NumbersQuery, Period, Span
from mainspring.stores.protocol import Completable, Filter
from mainspring.stores.sqlite import documents, numbers, sorting, suggestions
from tests.stores.sqlite.template import fresh_database
from tests.stores.test_list_plans import FILL_SQLITE, NUMBERS, THEIR_TAGS

pytestmark = pytest.mark.slow

JOBS = 3000
DAY = 86_400_000


@pytest.fixture(scope="module", params=[False, True], ids=["no statistics", "statistics"])
def database(request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(fresh_database())) as connection:
        for statement in FILL_SQLITE:
            connection.execute(statement.replace("SELECT", f"{NUMBERS} SELECT", 1), (JOBS,))
        connection.execute(THEIR_TAGS)
        if request.param:
            connection.execute("ANALYZE")
        yield connection


def plans(connection: sqlite3.Connection, read: Callable[[], object]) -> list[tuple[str, list[str]]]:
    """Return the statements of a read, with the steps of their plans."""
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    read()
    connection.set_trace_callback(None)
    return [(text, [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}")]) for text in statements]


@pytest.mark.parametrize("what", Completable)
@pytest.mark.parametrize("task", [None, "greet"])
def test_a_completion_reads_a_bounded_number_of_rows(
    database: sqlite3.Connection, what: Completable, task: str | None
) -> None:
    where = Filter(tasks=() if task is None else (task,))
    for statement, steps in plans(database, lambda: suggestions.complete(database, what, "v", 20, where)):
        assert [step for step in steps if re.search("B-TREE FOR .*ORDER BY", step)] == [], statement
        walks = [step for step in steps if step.startswith(("SCAN mainspring_jobs", "SCAN mainspring_archive"))]
        assert statement.count("LIMIT") >= len(walks), (statement, steps)


@pytest.mark.parametrize(
    "where",
    [Filter(), Filter(queues=("mail",)), Filter(statuses=(Status.DEAD_LETTER,)), Filter(tags=("vip",))],
    ids=["all", "a queue", "dead letters", "a tag"],
)
def test_a_capped_count_sorts_nothing_and_ends_at_its_cap(database: sqlite3.Connection, where: Filter) -> None:
    found = plans(database, lambda: sorting.count_up_to(database, where, 100))
    assert [step for _, steps in found for step in steps if "B-TREE" in step] == []
    kept = "SELECT queue, status, n FROM mainspring_counts"  # a few rows, kept with each write
    assert [statement for statement, _ in found if "LIMIT" not in statement and statement != kept] == []


@pytest.mark.parametrize("collection", ["failures", "bulk", "batches"])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_page_of_documents_walks_their_key(database: sqlite3.Connection, collection: str, *, backwards: bool) -> None:
    listing = Listing(collection, limit=50, backwards=backwards, after=("", "x"))
    for statement, steps in plans(database, lambda: documents.browse(database, listing, 0)):
        assert [step for step in steps if "SCAN" in step or "B-TREE" in step] == [], statement


@pytest.mark.parametrize("by", [None, "queue", "task"])
def test_numbers_are_read_by_their_key(database: sqlite3.Connection, by: Grouping | None) -> None:
    query = NumbersQuery((Span(Period.HOUR, 0, DAY),), by=by)
    for statement, steps in plans(database, lambda: numbers.read(database, query)):
        scans = [step for step in steps if step.startswith("SCAN mainspring_")]
        assert set(scans) <= {"SCAN mainspring_feed"}, statement  # which has one row
