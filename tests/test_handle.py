from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import pytest
from pydantic import BaseModel

from mainspring import Discard, JobHandle, Mainspring, Status
from mainspring.errors import JobFailed, JobNotFound
from mainspring.testing import Kit, manual

app = Mainspring("sqlite:////nowhere/jobs.db")
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


class Order(BaseModel):
    number: int
    rush: bool = False


class Receipt(BaseModel):
    order: Order
    at: datetime


@app.task()
async def welcome(guest: str, nights: int = 1) -> str:
    return f"{guest} for {nights}"


@app.task()
def add(first: int, second: int) -> int:
    return first + second


@app.task()
async def settle(order: Order) -> Receipt:
    return Receipt(order=order, at=NEW_YEAR)


@pytest.fixture
def kit() -> Iterator[Kit]:
    with manual(app) as kit:
        yield kit


async def test_the_handle_knows_its_job(kit: Kit) -> None:
    handle = await welcome.using(dedupe_key="ana").enqueue(guest="ana")
    again = await welcome.using(dedupe_key="ana").enqueue(guest="ana")
    assert (handle.created, again.created, again.id) == (True, False, handle.id)
    assert (await again.get()).payload == {"guest": "ana"}
    await kit.drain()
    assert await again.result(timeout=timedelta(seconds=5)) == "ana for 1"
    assert handle.result_sync() == "ana for 1"


async def test_a_result_that_does_not_come_in_time_says_which() -> None:
    own = Mainspring("memory://")

    @own.task()
    async def wait() -> None: ...

    handle = await wait.enqueue()
    waited = f"job {handle.id} of task 'wait' has not finished within 0.01 s; is a worker running?"
    with pytest.raises(TimeoutError, match=re.escape(waited)):
        await handle.result(timeout=0.01)


async def test_a_job_is_found_again_by_its_id(kit: Kit) -> None:
    job_id = (await welcome.enqueue(guest="ana")).id
    await kit.drain()
    assert_type(welcome.handle(job_id), JobHandle[str])
    assert_type(app.job(job_id), JobHandle[Any])
    assert await welcome.handle(job_id).result() == "ana for 1"
    assert await app.job(job_id).result() == "ana for 1"
    assert not app.job(job_id).created


async def test_the_result_of_any_job_has_the_type_of_its_task_if_that_is_known_here(kit: Kit) -> None:
    handle = await settle.enqueue(order=Order(number=1))
    await kit.drain()
    assert await app.job(handle.id).result() == await handle.result() == Receipt(order=Order(number=1), at=NEW_YEAR)
    stranger = Mainspring(app.store)
    assert await stranger.job(handle.id).result() == {
        "order": {"number": 1, "rush": False},
        "at": "2026-01-01T00:00:00Z",
    }


async def test_a_handle_of_a_task_takes_no_job_of_another(kit: Kit) -> None:
    handle = await add.enqueue(1, 2)
    await kit.drain()
    with pytest.raises(JobNotFound, match=r"is of task 'add', not 'welcome'; use app.job\(…\) for jobs of any task"):
        await welcome.handle(handle.id).result()
    with pytest.raises(JobNotFound, match="there is no job nonsense"):
        await app.job("nonsense").result()


async def test_a_failed_job_tells_its_error(kit: Kit) -> None:
    own = Mainspring("memory://")

    @own.task(max_attempts=1)
    async def divide(number: int) -> float:
        return 1 / number

    async with manual(own) as other:
        handle = await divide.enqueue(number=0)
        await other.drain()
        with pytest.raises(JobFailed) as raised:
            await handle.result()
    assert raised.value.failure is not None
    assert (raised.value.failure.type, raised.value.failure.message) == ("ZeroDivisionError", "division by zero")
    assert "return 1 / number" in raised.value.failure.traceback
    assert (raised.value.job_id, raised.value.status) == (handle.id, Status.DEAD_LETTER)


async def test_awaiting_the_result_of_a_job_that_did_not_complete_says_what_became_of_it() -> None:
    own = Mainspring("memory://")

    @own.task()
    async def refuse() -> None:
        raise Discard("not today")

    @own.task()
    async def wait() -> None: ...

    with manual(own) as kit:
        refused, cancelled, deleted = await refuse.enqueue(), await wait.enqueue(), await wait.enqueue()
        await own.jobs.cancel(cancelled.id, reason="changed my mind")
        await own.jobs.delete(deleted.id)
        await kit.drain()
        with pytest.raises(JobFailed, match="of task 'refuse' ended as dead_letter: Discard: not today"):
            await refused.result()
        with pytest.raises(JobFailed, match="ended as cancelled: changed my mind"):
            await cancelled.result()
        with pytest.raises(JobNotFound):
            await deleted.result()
