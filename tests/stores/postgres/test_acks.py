"""What a list of outcomes costs, and that it may be very long."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.errors import Failure
from mainspring.job import Move, Outcome, Status
from mainspring.stores.postgres import PostgresStore, arrays
from mainspring.stores.postgres.transaction import Transaction
from tests.conformance.scenario import claim, join, look, outcome, put_many

MOVES = (Move.RETRY, Move.SNOOZE, Move.RELEASE, Move.SUSPEND, Move.CRASH, Move.DEAD, Move.CANCEL)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that go to the server from now on."""
    sent: list[str] = []

    class Counting(Transaction):
        async def rows(self, template: str, **parameters: Any) -> list[tuple[Any, ...]]:
            sent.append(template)
            return await super().rows(template, **parameters)

        async def do(self, template: str, **parameters: Any) -> int:
            sent.append(template)
            return await super().do(template, **parameters)

    monkeypatch.setattr("mainspring.stores.postgres.store.Transaction", Counting)
    return sent


async def failures(store: PostgresStore, number: int) -> list[Outcome]:
    """So many of each move, of jobs that run."""
    await join(store, "w1")
    await put_many(store, number * len(MOVES), keep=0, keep_dead=0)  # no partition is to be made for them first
    held = await claim(store, number * len(MOVES))
    return [
        outcome(job, move, delay=60_000, failure=Failure("ValueError", f"of {job.id}", "Traceback …"))
        for job, move in zip(held, MOVES * number, strict=True)
    ]


async def test_many_jobs_take_as_many_statements_as_a_few(store: PostgresStore, statements: list[str]) -> None:
    sent = []
    for number in (1, 30):
        ends = await failures(store, number)
        statements.clear()
        assert None not in await store.ack(ends)
        sent.append(list(statements))
    assert sent[0] == sent[1] != []


async def test_outcomes_too_long_for_one_statement_go_in_several(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "MAX_STATEMENT_CHARS", 300)
    ends = await failures(store, 4)
    assert None not in await store.ack(ends)
    for failed in ends:
        job = await look(store, failed.job_id)
        assert job.status is not Status.RUNNING
        assert job.failure is not None
        assert job.failure.message == f"of {job.id}"


def test_parts_are_no_longer_than_allowed_unless_one_alone_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_STATEMENT_CHARS", 5)
    rows = [("ab", 1), ("abc", 2), ("a", 3), ("abcdefgh", None), (None, 5), ("ab", 6)]
    assert list(arrays.in_parts(rows)) == [rows[:2], rows[2:3], rows[3:4], rows[4:]]
    assert list(arrays.in_parts([])) == []
