"""Take out each protection of a store, and expect that a test of the suite fails: so the suite would notice."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mainspring.errors import StoreBusy, StoreError
from mainspring.job import Move, Status
from mainspring.stores.engine import ack as engine
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import MemoryStore, SqliteStore, acks, claims, insertion, maintenance, wakeups, writer
from mainspring.stores.sqlite.connection import WriteLock
from mainspring.stores.sqlite.liveness import Liveness
from mainspring.stores.sqlite.store import SqlStore
from mainspring.stores.sqlite.transaction import Transaction
from mainspring.stores.tables import RUNNING
from mainspring.stores.workers import Watch
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import claim, join, outcome, put, running
from tests.conformance.suite import StoreConformance
from tests.stores.sqlite import test_plans as plans
from tests.stores.sqlite import test_writer as requests
from tests.stores.sqlite.template import fresh_database

pytestmark = pytest.mark.slow

Patch = pytest.MonkeyPatch
RED = (AssertionError, ValueError, pytest.fail.Exception)
"""How a test fails: what it asserts or unpacks is not so, or it misses an error. A broken statement is no proof."""


class Suite(StoreConformance):
    """Not collected: its tests are called one by one."""


# -- taking protections out -----------------------------------------------------------------------


def without(module: Any, names: str, *conditions: str) -> Callable[[Patch], None]:
    """The statements without these conditions."""

    def take_out(patch: Patch) -> None:
        for name in names.split():
            statement: str = getattr(module, name)
            assert any(protection in statement for protection in conditions), f"{name} has changed; so must this test"
            for protection in conditions:
                statement = statement.replace(protection, "1" if "?" not in protection else "? IS NOT NULL")
            patch.setattr(module, name, statement)

    return take_out


def instead(target: Any, name: str, value: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(target, name, value)


def suspects_beside_others(patch: Patch) -> None:
    for name in ("HEADS_OF", "HEADS_OF_ALL", "PICK"):
        statement = getattr(claims, name).replace("INDEXED BY mainspring_jobs_waiting", "")
        statement = statement.replace("AND crashes = 0 AND aside = 0", "")
        patch.setattr(claims, name, statement)


def by_priority_alone(levels: Any, limit: int, *, now: int, patience: int, turn: int) -> list[Any]:
    due = sorted((level for level in levels if level.head <= now), key=lambda level: level.priority)
    return [(level, limit) for level in due]


def no_expiry(patch: Patch) -> None:
    every = "SELECT id, queue, status FROM mainspring_archive WHERE :now IS NOT NULL LIMIT :limit"
    patch.setattr(maintenance, "EXPIRED", every)
    patch.setattr(maintenance, "SOMETHING_EXPIRED", "SELECT :now IS NOT NULL")


def nobody(*_: Any) -> None:
    return None


@dataclass(frozen=True)
class Protection:
    name: str
    store: Callable[[ManualClock], Store]
    take_out: Callable[[Patch], None]
    tests: tuple[str | tuple[str, dict[str, Any]], ...]


def sqlite(clock: ManualClock) -> Store:
    return SqliteStore(fresh_database(), clock=clock)


def in_memory(clock: ManualClock) -> Store:
    """The same tables and statements, without a file."""
    return MemoryStore(clock=clock)


RECLAIMED = "test_after_release_and_reclaim_the_old_claim_writes_nothing", {"worker": "w2"}
SHIFTED = "test_an_ack_under_another_token_is_refused", {"shift": 1}
ZOMBIE = "test_a_zombie_writes_nothing_while_another_runs_its_job"
RETRIED = "test_after_a_manual_retry_and_reclaim_the_old_claim_writes_nothing"
SAVED = "test_a_zombie_saves_nothing"
ENDED = (
    ("test_the_end_of_a_job_wakes_the_jobs_that_wait_for_it", {"move": Move.DONE}),
    "test_many_ends_in_one_call_wake_their_waiting_jobs",
)
HALTED = "test_nothing_is_claimed_while_halted"
REFUSED = "test_a_halted_system_can_refuse_jobs"
PAUSED = "test_a_paused_queue_gives_out_nothing"
DEDUPED = (
    ("test_a_live_job_holds_its_dedupe_key", {"status": Status.RUNNING}),
    "test_a_dedupe_key_holds_within_one_call",
    "test_a_race_for_a_dedupe_key_has_one_winner",
)
CRASHED = "test_the_third_crash_makes_a_dead_letter", "test_a_job_that_kills_three_workers_is_a_dead_letter"
HEARD = "test_a_heartbeat_tells_of_claims_that_another_has"
STARVED = "test_no_low_priority_starves_behind_an_endless_stream"
ALONE = "test_a_suspect_is_not_claimed_beside_others"
CANCELLED = "test_a_requested_cancel_is_not_lost_when_the_run_does_not_finish", {"move": Move.RETRY}
DEAD = "test_the_jobs_of_a_dead_worker_are_taken_over"
KEPT = "test_a_finished_job_is_kept_for_its_time", {"status": Status.COMPLETED}
STALLED = "test_a_job_within_its_timeout_and_grace_is_left_alone"

PROTECTIONS = [
    Protection(
        "the fence of acks", in_memory, without(acks, "HELD", "token = job_token"), (RECLAIMED, SHIFTED, ZOMBIE)
    ),
    Protection("the fence of successes", in_memory, without(acks, "ARCHIVE_COMPLETED", "token = column3"), (RETRIED,)),
    Protection(
        "only what runs can end",
        in_memory,
        without(acks, "HELD", f"status = {RUNNING}"),
        ("test_a_lost_claim_does_not_affect_the_other_outcomes", "test_a_run_that_stalled_writes_nothing"),
    ),
    Protection("the fence of steps", in_memory, without(acks, "HELD", "token = job_token"), (SAVED,)),
    Protection("jobs' ends are told", in_memory, instead(wakeups, "ANY_WAITER_FOR_AN_END", "SELECT 0"), ENDED),
    Protection("the fence of progress", in_memory, without(acks, "REPORT", "token = ?"), (RECLAIMED, ZOMBIE)),
    Protection("the fence of heartbeats", in_memory, without(maintenance, "LOST", "token = held.value"), (HEARD,)),
    Protection("dedupe keys", in_memory, instead(insertion, "holders", lambda *_: {}), DEDUPED),
    Protection(
        "lasting dedupe keys",
        in_memory,
        instead(insertion, "HOLDERS", insertion.HOLDERS.replace("expires_at > ?", "? IS NULL")),
        ("test_a_dedupe_key_kept_forever_outlives_its_job",),
    ),
    Protection("halts of claims", in_memory, instead(Transaction, "halts", lambda _: []), (HALTED, PAUSED)),
    Protection("halts of new jobs", in_memory, instead(Transaction, "halts", lambda _: []), (REFUSED,)),
    Protection("the crash count", in_memory, instead(engine, "MAX_CRASHES", 10**6), CRASHED),
    Protection("suspects run alone", in_memory, suspects_beside_others, (ALONE,)),
    Protection("patience", in_memory, instead(claims, "shares", by_priority_alone), (STARVED,)),
    Protection("the lease", sqlite, instead(SqlStore, "_is_dead", lambda *_: False), (DEAD,)),
    Protection("heartbeats", sqlite, instead(Liveness, "beat", nobody), ("test_nothing_is_taken_from_living_workers",)),
    Protection("retention", in_memory, no_expiry, (KEPT,)),
    Protection("the deadline", in_memory, instead(Watch, "overdue", lambda _, runs: runs), (STALLED,)),
    Protection("cancels", in_memory, instead(engine, "FINISHED", frozenset(Status)), (CANCELLED,)),
]


@dataclass(frozen=True)
class Case:
    protection: Protection
    test: str
    given: dict[str, Any]

    async def run(self, store: Store, clock: ManualClock) -> None:
        method = getattr(Suite(), self.test)
        wants = method.__code__.co_varnames[: method.__code__.co_argcount]
        await method(store=store, **({"clock": clock} if "clock" in wants else {}), **self.given)


CASES = [
    pytest.param(
        Case(protection, *(test if isinstance(test, tuple) else (test, {}))),
        id=f"{protection.store.__name__}: {protection.name}",
    )
    for protection in PROTECTIONS
    for test in protection.tests
]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(case: Case, clock: ManualClock) -> AsyncIterator[Store]:
    store = case.protection.store(clock)
    await store.open()
    await join(store, "w1")
    await join(store, "w2")
    yield store
    await store.close()


@pytest.mark.parametrize("case", CASES)
async def test_the_suite_notices_that_a_protection_is_missing(
    case: Case, store: Store, clock: ManualClock, monkeypatch: Patch
) -> None:
    case.protection.take_out(monkeypatch)
    with pytest.raises(RED):
        await case.run(store, clock)


@pytest.mark.parametrize("case", CASES)
async def test_with_the_protection_the_same_test_passes(case: Case, store: Store, clock: ManualClock) -> None:
    await case.run(store, clock)


# -- protections that the suite cannot see --------------------------------------------------------


@pytest.fixture
async def ours() -> AsyncIterator[SqliteStore]:
    store = SqliteStore(fresh_database(), busy_timeout=0.05)
    await store.open()
    yield store
    await store.close()


async def test_the_unique_index_protects_dedupe_keys_from_other_writers(ours: SqliteStore) -> None:
    await put(ours, dedupe_key="k")
    with closing(sqlite3.connect(ours.file.path)) as connection:
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(mainspring_jobs)")][2:]
        statement = f"INSERT INTO mainspring_jobs SELECT NULL, 'another id', {', '.join(columns)} FROM mainspring_jobs"
        with pytest.raises(sqlite3.IntegrityError, match=r"mainspring_jobs\.task, mainspring_jobs\.dedupe_key"):
            connection.execute(statement)
        connection.execute("DROP INDEX mainspring_jobs_dedupe")
        connection.execute(statement)
        connection.rollback()


@pytest.mark.slow
async def test_the_gate_makes_writers_wait_in_line(ours: SqliteStore, monkeypatch: Patch) -> None:
    """Without it, a writer that waits for longer than SQLite's own timeout is refused."""
    await put_beside_a_long_transaction(ours)
    monkeypatch.setattr(WriteLock, "__enter__", nobody)
    monkeypatch.setattr(WriteLock, "__exit__", nobody)
    with pytest.raises(StoreBusy):
        await put_beside_a_long_transaction(ours, lasting=60)


async def put_beside_a_long_transaction(store: SqliteStore, *, lasting: float = 0.3) -> None:
    """It lasts so long in seconds, or until the other writer is answered."""
    held = await running(store)
    other = SqliteStore(store.file.path, busy_timeout=0.05)
    async with store.completion(lambda: outcome(held, Move.DONE)):
        waiting = asyncio.create_task(put(other, queue="other"), context=Context())
        await asyncio.wait([waiting], timeout=lasting)
    try:
        await waiting
    finally:
        await other.close()


async def test_a_claim_without_its_index_fails_rather_than_to_read_everything(ours: SqliteStore) -> None:
    await put(ours)
    drop_index(ours.file.path)
    with pytest.raises(StoreError, match="no such index: mainspring_jobs_waiting"):
        await claim(ours)


@pytest.mark.slow
async def test_the_count_of_steps_notices_a_claim_that_reads_everything(monkeypatch: Patch) -> None:
    for name in ("HEADS_OF", "HEADS_OF_ALL", "PICK"):
        monkeypatch.setattr(claims, name, getattr(claims, name).replace("INDEXED BY mainspring_jobs_waiting", ""))
    few, many = fresh_database(), fresh_database()
    plans.fill(few, 100, 0)
    plans.fill(many, 2000, 0)
    for path in (few, many):
        drop_index(path)
    with_few, with_many = await plans.costs(few), await plans.costs(many)
    assert with_many["claim"] > 10 * with_few["claim"]
    assert with_many["ack"] < 2 * with_few["ack"]


def drop_index(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP INDEX mainspring_jobs_waiting")


async def test_each_request_of_a_failed_commit_gets_its_own_savepoint(ours: SqliteStore, monkeypatch: Patch) -> None:
    await requests.test_an_error_of_sqlite_fails_alone_and_in_our_words(ours)
    monkeypatch.setattr(writer, "concerns_all", lambda _: True)
    with pytest.raises(RED):
        await requests.test_an_error_of_sqlite_fails_alone_and_in_our_words(ours)


async def test_the_archive_keeps_a_finished_job_from_running_again(ours: SqliteStore, monkeypatch: Patch) -> None:
    await requests.test_a_finished_job_that_is_inserted_again_is_not_run_again(ours)
    without(insertion, "INSERT", "NOT EXISTS (SELECT 1 FROM mainspring_archive WHERE id = column1)")(monkeypatch)
    with pytest.raises(RED):
        await requests.test_a_finished_job_that_is_inserted_again_is_not_run_again(ours)
