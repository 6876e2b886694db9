from __future__ import annotations

import asyncio
import getpass
import re
import socket
from collections.abc import Iterator
from dataclasses import fields
from datetime import date, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from mainspring import Filter, Mainspring, Priority, Retry, Status
from mainspring.errors import ConfigurationError, DedupeConflict, IllegalMove, InvalidPayload, JobNotFound
from mainspring.services import whoami
from mainspring.stores.protocol import AuditFilter
from mainspring.testing import Kit, manual

app = Mainspring("memory://")


class Order(BaseModel):
    number: int


@app.task(queue="mail", retry=Retry.fixed(60, max_attempts=2))
async def write(text: str) -> str:
    if text == "bad":
        raise LookupError(text)
    return text


@app.task()
async def settle(order: Order) -> int:
    return order.number


@pytest.fixture
def kit() -> Iterator[Kit]:
    with manual(app) as kit:
        yield kit


async def dead_letter(kit: Kit, **options: Any) -> str:
    handle = await write.using(max_attempts=1, **options).enqueue("bad")
    await kit.drain()
    assert (await handle.get()).status is Status.DEAD_LETTER
    return handle.id


async def status_of(job_id: str) -> Status:
    return (await app.jobs.get(job_id)).status


# -- looking --------------------------------------------------------------------------------------


async def test_jobs_are_found_page_by_page_newest_first(kit: Kit) -> None:
    handles = await write.enqueue_many({"text": str(number)} for number in range(5))
    page = await app.jobs.find(limit=2)
    assert [job.payload["text"] for job in page.jobs] == ["4", "3"]
    page = await app.jobs.find(limit=3, cursor=page.cursor)
    assert [job.payload["text"] for job in page.jobs] == ["2", "1", "0"]
    assert page.cursor is None
    assert [job.id async for job in app.jobs.all()] == [handle.id for handle in reversed(handles)]
    assert await app.jobs.count() == 5


async def test_jobs_are_found_by_what_they_are_about(kit: Kit) -> None:
    await write.using(target=("guest", "ana")).enqueue("x")
    await settle.using(target=("guest", "ana")).enqueue(Order(number=1))
    await write.using(target=("room", "ana"), tags=["vip"]).enqueue("y")
    assert [job.task for job in await app.jobs.for_target("guest", "ana")] == ["settle", "write"]
    assert await app.jobs.count(Filter(tags=("vip",), payload={"text": "y"})) == 1
    assert await app.jobs.count(Filter(queues=("mail",))) == 2


@pytest.mark.parametrize("name", ["ids", "statuses", "queues", "tasks", "tags"])
def test_a_filter_takes_several_and_not_the_letters_of_one(name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"{name} of a Filter must be a tuple, not a string; write {name}=\('retrying',\)"
    ):
        Filter(**{name: "retrying"})  # type: ignore[arg-type]
    assert Filter(**{name: ["retrying"]}) == Filter(**{name: ("retrying",)})  # type: ignore[arg-type]


def test_a_filter_knows_the_statuses() -> None:
    with pytest.raises(ConfigurationError, match="'done' is not a status; use any of pending, running, retrying"):
        Filter(statuses=("done",))  # type: ignore[arg-type]


@pytest.mark.parametrize("moment", ["yesterday", 5, date(2026, 1, 19)])
def test_filters_take_datetimes_only(moment: Any) -> None:
    names = [field.name for field in fields(Filter) if field.name.endswith(("_after", "_before"))]
    assert len(names) == 8
    for kind, name in [*((Filter, name) for name in names), (AuditFilter, "since"), (AuditFilter, "until")]:
        message = rf"{name} of an? {kind.__name__} must be a datetime with a time zone, not {re.escape(repr(moment))}"
        with pytest.raises(ConfigurationError, match=message):
            kind(**{name: moment})


async def test_wrong_arguments_of_counts_and_completions_are_named(kit: Kit) -> None:
    with pytest.raises(ConfigurationError, match="cap is 0; give a whole number from 1"):
        await kit.app.jobs.count(cap=0)
    for what in ("queue", "task", "tag", "error_type", "payload_key"):
        with pytest.raises(ConfigurationError, match="prefix is None; give the text"):
            await kit.app.jobs.complete(what, None)  # type: ignore[arg-type]


async def test_a_job_that_is_not_there_is_said_to_be_missing(kit: Kit) -> None:
    for work in (app.jobs.get("x"), app.jobs.cancel("x"), app.jobs.retry("x"), app.jobs.edit("x", payload={})):
        with pytest.raises(JobNotFound, match="there is no job x; it may have been removed by retention"):
            await work


async def test_the_life_of_a_job_can_be_read(kit: Kit) -> None:
    handle = await write.enqueue("bad")
    await kit.time.advance(minutes=1)
    kit.clock.advance(1)
    await app.jobs.retry(handle.id, reason="the server is back", actor="ana")
    await app.jobs.edit(handle.id, payload={"text": "good"}, actor="ana")
    kit.clock.advance(1)
    await kit.drain()
    attempts = await app.jobs.attempts(handle.id)
    assert [(attempt.number, attempt.move, attempt.failure and attempt.failure.message) for attempt in attempts] == [
        (1, "retry", "bad"), (2, "dead", "bad"), (3, "done", None),
    ]  # fmt: skip
    assert attempts[0].failure is not None
    assert "raise LookupError(text)" in attempts[0].failure.traceback
    timeline = await app.jobs.timeline(handle.id)
    assert [entry.what for entry in timeline] == [
        "created", "claimed", "retry", "claimed", "dead", "manual_retry", "edit", "claimed", "done",
    ]  # fmt: skip
    by_hand = timeline[5]
    assert (by_hand.actor, by_hand.detail, by_hand.at) == (
        "ana", "the server is back", kit.time.now() - timedelta(seconds=1),
    )  # fmt: skip
    assert "LookupError: bad" in timeline[2].detail


# -- changing one ---------------------------------------------------------------------------------


async def test_a_waiting_job_is_cancelled_at_once(kit: Kit) -> None:
    handle = await write.enqueue("x")
    assert await app.jobs.cancel(handle.id, reason="not needed")
    job = await handle.get()
    assert (job.status, job.reason) == (Status.CANCELLED, "not needed")
    with pytest.raises(IllegalMove, match="is cancelled: it cannot be changed by cancel"):
        await app.jobs.cancel(handle.id)
    assert await kit.drain() == []


async def test_a_job_can_be_looked_for_and_cancelled_without_an_error_if_it_is_not_there(kit: Kit) -> None:
    handle = await write.enqueue("hello")
    found = await app.jobs.get_or_none(handle.id)
    assert found == await handle.get()
    assert await app.jobs.try_cancel(handle.id, reason="changed my mind")
    assert await status_of(handle.id) is Status.CANCELLED
    assert not await app.jobs.try_cancel(handle.id)
    gone = "00000000-0000-7000-8000-000000000000"
    assert await app.jobs.get_or_none(gone) is None
    assert not await app.jobs.try_cancel(gone)
    assert [(entry.action, entry.reason) for entry in await app.audit()] == [("cancel", "changed my mind")]


async def test_a_running_job_is_asked_to_stop_and_its_worker_ends_it() -> None:
    own, running = Mainspring("memory://"), asyncio.Event()

    @own.task()
    async def wait() -> None:
        running.set()
        await asyncio.Event().wait()

    with manual(own) as kit:
        handle = await wait.enqueue()
        draining = asyncio.create_task(kit.drain())
        await running.wait()
        assert not await own.jobs.cancel(handle.id, reason="took too long")
        assert (await handle.get()).cancel_requested
        (ran,) = await draining
        assert (ran.status, ran.job.reason) == (Status.CANCELLED, "took too long")


async def test_a_dead_letter_is_retried_with_a_full_budget(kit: Kit) -> None:
    job_id = await dead_letter(kit)
    await app.jobs.retry(job_id, reason="fixed")
    job = await app.jobs.get(job_id)
    assert (job.status, job.attempts, job.failure, job.run_at) == (Status.PENDING, 0, None, kit.time.now())
    assert [run.status for run in await kit.drain()] == [Status.DEAD_LETTER]
    completed = await write.enqueue("x")
    await kit.drain()
    with pytest.raises(IllegalMove, match="is completed"):
        await app.jobs.retry(completed.id)


async def test_a_job_is_not_retried_while_another_holds_its_key(kit: Kit) -> None:
    job_id = await dead_letter(kit, dedupe_key="a")
    holder = await write.using(dedupe_key="a", delay=60).enqueue("x")
    with pytest.raises(DedupeConflict, match=f"{holder.id} is live and holds its dedupe key"):
        await app.jobs.retry(job_id)
    assert await status_of(job_id) is Status.DEAD_LETTER


async def test_a_waiting_job_is_moved_in_time(kit: Kit) -> None:
    handle = await write.using(delay=3600).enqueue("x")
    later = kit.time.now() + timedelta(days=1)
    await app.jobs.reschedule(handle.id, run_at=later)
    assert (await handle.get()).run_at == later
    await app.jobs.reschedule(handle.id, delay=timedelta(minutes=1))
    assert (await handle.get()).run_at == kit.time.now() + timedelta(minutes=1)
    await app.jobs.reschedule(handle.id)
    assert len(await kit.drain()) == 1
    with pytest.raises(ConfigurationError, match="run_at or delay, not both"):
        await app.jobs.reschedule(handle.id, run_at=later, delay=5)
    with pytest.raises(ConfigurationError, match="delay is -5, which is negative"):
        await app.jobs.reschedule(handle.id, delay=-5)


async def test_a_waiting_job_is_edited(kit: Kit) -> None:
    handle = await write.using(delay=60).enqueue("x")
    await app.jobs.edit(handle.id, payload={"text": "y"}, priority="urgent", queue="sms", max_attempts=9)
    job = await handle.get()
    assert (job.payload, job.priority, job.queue, job.max_attempts) == ({"text": "y"}, Priority.URGENT, "sms", 9)
    await app.jobs.edit(handle.id, priority="low")
    job = await handle.get()
    assert (job.payload, job.priority, job.queue) == ({"text": "y"}, Priority.LOW, "sms")


async def test_a_finished_job_is_edited_after_a_retry_in_a_paused_queue(kit: Kit) -> None:
    job_id = await dead_letter(kit)
    with pytest.raises(IllegalMove, match=r"by edit; only waiting jobs .* pause its queue and retry it first"):
        await app.jobs.edit(job_id, payload={"text": "good"})
    await app.pause("mail")
    await app.jobs.retry(job_id)
    assert await kit.drain() == []
    await app.jobs.edit(job_id, payload={"text": "good"})
    await app.resume("mail")
    await kit.drain()
    assert await status_of(job_id) is Status.COMPLETED


async def test_an_edited_payload_is_checked_if_the_task_is_known_here(kit: Kit) -> None:
    handle = await settle.using(delay=60).enqueue(Order(number=1))
    with pytest.raises(InvalidPayload, match="number: Field required"):
        await app.jobs.edit(handle.id, payload={"nubmer": 2})
    await app.jobs.edit(handle.id, payload={"number": "2"})
    assert (await handle.get()).payload == {"number": 2}
    elsewhere = Mainspring("memory://")
    elsewhere.runtime.store = app.store
    await elsewhere.jobs.edit(handle.id, payload={"nubmer": 3})
    (ran,) = await kit.time.advance(minutes=1)
    assert ran.status is Status.DEAD_LETTER


async def test_a_job_is_deleted_unless_it_runs(kit: Kit) -> None:
    handle = await write.enqueue("x")
    await app.jobs.delete(handle.id)
    with pytest.raises(JobNotFound):
        await handle.get()


# -- changing many --------------------------------------------------------------------------------


async def test_a_change_by_filter_can_be_rehearsed(kit: Kit) -> None:
    await write.enqueue_many({"text": str(number)} for number in range(3))
    await settle.enqueue(Order(number=1))
    mail = Filter(queues=("mail",))
    rehearsal = await app.jobs.cancel_where(mail, dry_run=True)
    assert (rehearsal.count, await app.jobs.count(Filter(statuses=(Status.PENDING,)))) == (3, 4)
    assert await app.audit() == []
    progress: list[int] = []
    result = await app.jobs.cancel_where(mail, reason="closed", actor="ana", on_progress=progress.append)
    assert (result.count, result.changed, result.requested, progress[-1]) == (3, 3, 0, 3)
    assert [run.task for run in await kit.drain()] == ["settle"]
    assert (await app.jobs.delete_where(mail)).count == 3
    assert await app.jobs.count() == 1


async def test_dead_letters_are_retried_together_but_for_those_whose_key_is_taken(kit: Kit) -> None:
    free, taken = await dead_letter(kit), await dead_letter(kit, dedupe_key="a")
    holder = await write.using(dedupe_key="a", delay=60).enqueue("x")
    result = await app.jobs.retry_where(app.jobs.dead(Filter(tasks=("write",))))
    assert (result.count, result.conflicts) == (1, {taken: holder.id})
    assert await status_of(free) is Status.PENDING


async def test_old_dead_letters_are_purged(kit: Kit) -> None:
    old = await dead_letter(kit)
    await kit.time.advance(days=2)
    new = await dead_letter(kit)
    assert (await app.jobs.purge_dead(timedelta(days=1), dry_run=True)).count == 1
    assert (await app.jobs.purge_dead(86_400)).count == 1
    assert [job.id for job in kit.jobs()] == [new]
    assert old != new


async def test_an_age_beyond_the_calendar_is_refused(kit: Kit) -> None:
    with pytest.raises(ConfigurationError, match="longer than 1,000 years"):
        await app.jobs.purge_dead(timedelta.max)
    assert kit.jobs() == []


async def test_many_pages_are_one_operation(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.jobs.PAGE_SIZE", 2)
    await write.enqueue_many({"text": str(number)} for number in range(5))
    progress: list[int] = []
    await app.jobs.cancel_where(Filter(), actor="ana", reason="all of it", on_progress=progress.append)
    assert progress == [2, 4, 5]
    (entry,) = await app.audit()
    assert (entry.actor, entry.action, entry.reason, entry.count) == ("ana", "cancel", "all of it", 5)


# -- the audit log --------------------------------------------------------------------------------


async def test_each_change_is_in_the_audit_log_with_actor_and_reason(kit: Kit) -> None:
    handle = await write.using(delay=60).enqueue("x")
    await app.jobs.edit(handle.id, priority="low", reason="not so urgent")
    await app.jobs.reschedule(handle.id, delay=5, actor="bob")
    await app.jobs.cancel(handle.id, actor="ana")
    await app.jobs.retry(handle.id)
    await app.jobs.delete(handle.id)
    log = await app.audit()
    assert [entry.action for entry in log] == ["delete", "retry", "cancel", "edit", "edit"]
    assert [entry.actor for entry in log] == [whoami(), whoami(), "ana", "bob", whoami()]
    assert (log[-1].reason, log[-1].count, log[-1].at) == ("not so urgent", 1, kit.time.now())
    assert log[-1].detail == {"filter": {"ids": [handle.id]}, "edit": {"priority": "low"}}
    assert len(await app.audit(limit=2)) == 2


def test_an_account_without_a_name_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert whoami() == f"{getpass.getuser()}@{socket.gethostname()}"

    def fail() -> str:
        raise KeyError

    monkeypatch.setattr("getpass.getuser", fail)
    assert whoami() == f"unknown@{socket.gethostname()}"
