"""Durable functions in the file: what the suite for every store cannot see."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mainspring.job import UNTIL_WOKEN, Inserted, Move, Save, Status, Step, end_of
from mainspring.stores.protocol import Severity
from mainspring.stores.records import Kind
from mainspring.stores.sqlite import SqliteStore
from tests.conformance.scenario import claim, claim_one, end, look, new_job, outcome, put, running, status_of
from tests.stores.sqlite.test_writer import consistent, together

ODD = ["nul \x00 inside", "quote ' and \"", "back\\slash", "new\nline", "%_*?", "🦊", ""]


async def suspended(store: SqliteStore, waits_for: str) -> str:
    held = await running(store)
    assert await end(store, held, Move.SUSPEND, waits_for=waits_for, delay=UNTIL_WOKEN) is Status.SUSPENDED
    return held.id


async def test_wakes_in_one_commit_share_the_waiting_jobs(store: SqliteStore) -> None:
    for _ in range(3):
        await suspended(store, "bell")
    answers = await together(store, *(store.wake({"bell": 2, "door": number}) for number in range(3)))
    assert answers == [{"bell": 2, "door": 0}, {"bell": 1, "door": 0}, {"bell": 0, "door": 0}]
    assert len(await claim(store)) == 3
    assert await consistent(store)


async def test_saves_of_one_commit_get_their_own_answers(store: SqliteStore) -> None:
    zombie, first, second = [await running(store) for _ in range(3)]
    await end(store, zombie, Move.DONE)
    children = [new_job(queue="children") for _ in range(3)]
    saves = [
        Save(first.id, first.token, (Step("a", 1, output="1"),), (children[0],)),
        Save(zombie.id, zombie.token, (Step("a", 1),), (new_job(queue="children"),)),
        Save(second.id, second.token, (Step("a", 1),), (children[1], children[2])),
        Save(first.id, first.token, (Step("a", 1, output="2"),)),
    ]
    answers = await together(store, *(store.save([save]) for save in saves))
    created = [Inserted(child.id, created=True) for child in children]
    assert answers == [[created[:1]], [None], [created[1:]], [[]]]
    assert await store.steps(first.id) == [Step("a", 1, output="2")]
    assert await store.steps(zombie.id) == []
    assert await consistent(store)


@pytest.mark.parametrize("odd", ODD)
async def test_odd_characters_of_keys_and_steps_come_back(store: SqliteStore, odd: str) -> None:
    held = await running(store)
    step = Step(odd, 1, odd, '"\\u0000"')
    assert await end(store, held, Move.SUSPEND, waits_for=odd, delay=UNTIL_WOKEN, steps=(step,)) is Status.SUSPENDED
    assert (await look(store, held.id)).waits_for == odd
    assert await store.steps(held.id) == [step]
    (record,) = (await store.dump(Kind.LIVE)).records
    assert (record["waits_for"], record["steps"]) == (odd, [[odd, 1, odd, '"\\u0000"', 0, 0]])
    assert await store.wake({odd: 1, "other": 1}) == {odd: 1, "other": 0}


async def test_a_transaction_of_the_handler_tells_of_the_end(store: SqliteStore) -> None:
    child = await running(store)
    parent = await suspended(store, end_of(child.id))
    with pytest.raises(RuntimeError, match="changed its mind"):
        async with store.completion(lambda: outcome(child, Move.DONE)):
            raise RuntimeError("changed its mind")
    assert await status_of(store, parent) is Status.SUSPENDED
    async with store.completion(lambda: outcome(child, Move.DONE, steps=(Step("last", 1),))):
        pass
    assert await status_of(store, parent) is Status.PENDING
    assert await store.steps(child.id) == [Step("last", 1)]
    assert await consistent(store)


async def test_a_job_on_the_callers_connection_may_begin_as_suspended(store: SqliteStore, path: Path) -> None:
    waiting, plain = new_job(waits_for="bell"), new_job()
    with closing(sqlite3.connect(path)) as connection, connection:
        await store.insert([waiting, plain], connection)
    assert (await claim_one(store)).id == plain.id
    assert await store.wake({"bell": 5}) == {"bell": 1}
    assert (await claim_one(store)).id == waiting.id
    assert await consistent(store)


async def test_a_suspended_job_that_comes_twice_is_counted_once(store: SqliteStore) -> None:
    job = new_job(waits_for="bell")
    for _ in range(2):
        assert all(inserted.created for inserted in await store.insert([job, job, new_job()]))
    assert await consistent(store)


async def test_outputs_of_steps_count_among_the_bytes_of_a_page(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.stores.sqlite.transfer.MAX_PAGE_BYTES", 10_000)
    large = Step("large", 1, output='"' + "x" * 20_000 + '"')
    for _ in range(3):
        await end(store, await running(store), Move.SUSPEND, delay=UNTIL_WOKEN, steps=(large,))
    page = await store.dump(Kind.LIVE)
    assert len(page.records) == 1
    assert len((await store.dump(Kind.LIVE, after=page.cursor)).records) == 1


async def test_diagnose_accepts_suspended_jobs_and_reports_steps_without_a_job(store: SqliteStore, path: Path) -> None:
    await suspended(store, "bell")
    await put(store, waits_for="bell")
    assert {finding.severity for finding in await store.diagnose()} == {Severity.OK}
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO mainspring_steps VALUES ('nobody', 'fetch', 1, 'step', NULL, 0, 0)")
    assert [finding.check for finding in await store.diagnose() if finding.severity is not Severity.OK] == ["steps"]
    await store.repair()
    assert {finding.severity for finding in await store.diagnose()} == {Severity.OK}
