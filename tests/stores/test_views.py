"""The views for people and reports, on the stores in SQL: every column of a job, and the examples of docs/sql.md."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from mainspring.clock import to_datetime
from mainspring.errors import Failure
from mainspring.job import UNTIL_WOKEN, Job, Move, Priority
from mainspring.stores import columns
from mainspring.stores.protocol import Action, Filter, Store
from mainspring.stores.sqlite import SqliteStore
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import BY, claim_one, end, join, put, running
from tests.postgres import RecycledStore, dsn
from tests.stores.sqlite.template import fresh_database

PAGE = (Path(__file__).parents[2] / "docs" / "sql.md").read_text("utf-8")
EXAMPLES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
HIDDEN = {"changed_at", "seq", "claim", "drop_day", "claimed_at", "deadline"}
"""Columns of the tables that the view leaves out: for the store alone, or shown as started_at and timeout_at."""


HISTORY = """
INSERT INTO {schema}.archive (id, task, queue, status, priority, run_at, attempts, max_attempts, crashes, token,
                              started_at, finished_at, expires_at, drop_day, timeout,
                              created_at, keep, keep_dead, reason, payload)
SELECT gen_random_uuid(), 'greet', 'default', 4, 2, n, 1, 3, 0, 1, n, n, n, 0, 0, n, 0, 0, '', '{{}}'
FROM generate_series(1, 20000) AS n
"""


class View:
    """A store, and SQL that reads it from outside."""

    def __init__(self, store: Store, path: Path | None = None) -> None:
        self.store = store
        self._path = path

    def ask(self, statement: str) -> list[dict[str, Any]]:
        if self._path is not None:
            with closing(sqlite3.connect(self._path)) as connection:
                return self._rows(connection.execute(statement.replace("mainspring.", "mainspring_")))
        with psycopg.connect(dsn()) as server:
            return self._rows(server.execute(statement.replace("mainspring.", f"{self.schema}.").encode()))

    def plan_with_history(self, question: str) -> str:
        """Return how the database would answer if there were 20,000 completed jobs. The jobs are not kept."""
        if self._path is not None:
            rows = self.ask(f"EXPLAIN QUERY PLAN {question}")
            return "\n".join(row["detail"] for row in rows)
        with psycopg.connect(dsn()) as server:
            server.execute(HISTORY.format(schema=self.schema).encode())
            server.execute(f"ANALYZE {self.schema}.archive_short".encode())
            question = question.replace("mainspring.", f"{self.schema}.")
            plan = self._rows(server.execute(f"EXPLAIN {question}".encode()))
            server.rollback()
        return "\n".join(row["QUERY PLAN"] for row in plan)

    def types(self, table: str) -> list[tuple[str, str]]:
        """Return the columns with their types, in order. Columns of SQLite's views have none."""
        where = f"information_schema.columns WHERE table_schema = '{self.schema}' AND table_name = '{table}'"
        if self._path is not None:
            return [(name, "") for name in self.ask(f"SELECT * FROM mainspring.{table} LIMIT 1")[0]]
        rows = self.ask(f"SELECT column_name, data_type FROM {where} ORDER BY ordinal_position")
        return [(row["column_name"], row["data_type"]) for row in rows]

    @property
    def schema(self) -> str:
        return str(getattr(self.store, "schema", ""))

    def _rows(self, cursor: Any) -> list[dict[str, Any]]:
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def names(self, table: str) -> set[str]:
        kind = f"pragma_table_info('mainspring_{table}')"
        where = f"information_schema.columns WHERE table_schema = '{self.schema}' AND table_name = '{table}'"
        if self._path is not None:
            return {row["name"] for row in self.ask(f"SELECT name FROM {kind}")}
        return {row["column_name"] for row in self.ask(f"SELECT column_name FROM {where}")}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def view(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[View]:
    path = fresh_database() if request.param == "sqlite" else None
    store: Store = RecycledStore(clock=clock) if path is None else SqliteStore(path, clock=clock)
    await store.open()
    await join(store, "w1")
    yield View(store, path)
    await store.close()


def moment(value: Any) -> datetime | None:
    """The time as a view of either store shows it."""
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return None if found is None else found.astimezone(UTC)


def value(found: Any) -> Any:
    return json.loads(found) if isinstance(found, str) else found


def seconds(found: Any) -> Any:
    return found.total_seconds() if isinstance(found, timedelta) else found


def same(row: dict[str, Any], job: Job) -> None:
    """Check that a row of the view shows what the store says of the job."""
    times = ("created_at", "started_at", "finished_at", "updated_at", "expires_at")
    assert [moment(row[name]) for name in times] == [getattr(job, name) for name in times]
    assert moment(row["run_at"]) == (None if job.run_at == to_datetime(UNTIL_WOKEN) else job.run_at)
    plain = (
        "task",
        "queue",
        "attempts",
        "max_attempts",
        "crashes",
        "token",
        "worker",
        "waits_for",
        "dedupe_key",
        "reason",
    )
    assert [row[name] for name in plain] == [getattr(job, name) for name in plain]
    assert (str(row["id"]), row["status"], row["priority"]) == (job.id, job.status.value, job.priority.name.lower())
    assert (value(row["payload"]), value(row["result"])) == (job.payload, job.result)
    assert (row["target_type"], row["target_id"]) == (job.target or (None, None))
    assert list(value(row["tags"])) == list(job.tags)
    assert (row["error_type"], row["error"]) == (
        (job.failure.type, job.failure.message) if job.failure else (None, None)
    )


async def fill(store: Store, clock: ManualClock) -> list[str]:
    """Jobs in every status, with every column."""
    given: dict[str, Any] = {
        "dedupe_key": "k", "target": ("user", "7"), "tags": ("a", "b"), "timeout": 60_000, "priority": Priority.HIGH,
        "payload": json.dumps({"user": "ana", "text": "x" * 5000}), "keep": 60_000,
    }  # fmt: skip
    done = await running(store, **given)
    clock.advance(2)
    await end(store, done, Move.DONE, result='{"n": 1}')
    dead = await running(store, payload='{"user": "ana"}')
    await end(store, dead, Move.RETRY, failure=Failure("OSError", "bad", "trace"))
    await end(store, await claim_one(store), Move.DEAD, failure=Failure("ValueError", "worse", "trace"))
    cancelled = await put(store)
    await store.change(Action.CANCEL, Filter(ids=(cancelled,)), BY)
    waiting = await running(store)
    await end(store, waiting, Move.SUSPEND, waits_for="bell", delay=UNTIL_WOKEN)
    busy = await running(store, timeout=30_000)
    pending = await put(store, delay=90_000, **{**given, "dedupe_key": "other"})
    return [done.id, dead.id, cancelled, waiting.id, busy.id, pending]


async def test_the_view_shows_every_job_as_the_store_does(view: View, clock: ManualClock) -> None:
    ids = await fill(view.store, clock)
    rows = {str(row["id"]): row for row in view.ask("SELECT * FROM mainspring.all_jobs")}
    assert rows.keys() == set(ids)
    for job in await view.store.get(ids):
        same(rows[job.id], job)
    busy, pending = rows[ids[4]], rows[ids[5]]
    assert moment(busy["timeout_at"]) == to_datetime(clock.now() + 30_000)
    assert pending["timeout_at"] is None
    assert (seconds(pending["timeout"]), seconds(pending["keep"])) == (60, 60)


async def test_the_dead_letters_are_those_of_all_jobs(view: View, clock: ManualClock) -> None:
    ids = await fill(view.store, clock)
    letters = view.ask("SELECT * FROM mainspring.dead_letters")
    assert [str(row["id"]) for row in letters] == [ids[1]]
    assert letters == view.ask("SELECT * FROM mainspring.all_jobs WHERE status = 'dead_letter'")
    assert list(letters[0]) == list(view.ask("SELECT * FROM mainspring.all_jobs LIMIT 1")[0])
    assert view.types("dead_letters") == view.types("all_jobs")


@pytest.mark.parametrize(
    "question",
    ["SELECT * FROM mainspring.dead_letters", "SELECT count(*), min(finished_at) FROM mainspring.dead_letters"],
)
async def test_dead_letters_are_found_by_an_index(view: View, question: str) -> None:
    plan = view.plan_with_history(question)
    assert re.search("archive_(failed|dead|short_(status_id|queue_finished_at)_idx)", plan), plan
    assert not re.search("Seq Scan on archive_short|SCAN mainspring_archive$", plan, re.MULTILINE), plan


async def test_no_column_is_forgotten(view: View) -> None:
    shown = view.names("all_jobs")
    assert shown >= set(columns.JOB) - {"changed_at"} | {"updated_at"}
    assert shown >= (view.names("jobs") | view.names("archive")) - HIDDEN
    assert view.names("all_attempts") >= view.names("attempts")
    assert view.names("all_steps") >= view.names("steps")
    assert view.names("audit_log") >= view.names("audit") - {"n"}
    assert all(f"`{name}`" in PAGE for name in shown)


async def test_the_runs_of_a_job_have_the_numbers_that_the_store_gives(view: View, clock: ManualClock) -> None:
    for job_id in await fill(view.store, clock):
        rows = [row for row in view.ask("SELECT * FROM mainspring.all_attempts") if str(row["job_id"]) == job_id]
        expected = await view.store.attempts(job_id)
        assert sorted(row["number"] for row in rows) == [run.number for run in expected]
        by_number = {row["number"]: row for row in rows}
        assert [(moment(by_number[run.number]["finished_at"]), by_number[run.number]["move"]) for run in expected] == [
            (run.finished_at, run.move.value) for run in expected
        ]


async def test_the_examples_of_the_page_find_something(view: View, clock: ManualClock) -> None:
    await fill(view.store, clock)
    assert len(EXAMPLES) > 4
    for example in EXAMPLES:
        assert view.ask(example), example
