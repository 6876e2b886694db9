"""The change feed: every change is recorded once, in order, and readers resume wherever they stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from mainspring.clock import to_datetime
from mainspring.errors import Failure, InvalidCursor, SystemHalted
from mainspring.job import UNTIL_WOKEN, Claim, Move, Progress, ProgressReport, Status, end_of
from mainspring.stores import feed
from mainspring.stores.documents import ABSENT, Became, Bundle, By, Key, Write
from mainspring.stores.feed import EVERY_CHANGE, Change, ChangeFilter, ChangeKind, Cursor
from mainspring.stores.numbers import Measure, NumbersQuery, Period, Span
from mainspring.stores.protocol import Action, Edit, Filter, Store, WorkerInfo
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    BY,
    PATIENCE,
    StoreScenario,
    a_halt,
    by_hand,
    by_silence,
    claim,
    claim_one,
    end,
    ignore,
    job_in,
    join,
    look,
    new_job,
    outcome,
    put,
    put_many,
    running,
)
from tests.conformance.takeover import OVERDUE, TIMEOUT, after
from tests.conformance.wakeups import FETCH, save, suspended

BOOM = Failure("ValueError", "boom")
TARGET = ("order", "7")
END_KINDS = {
    Move.DONE: ChangeKind.COMPLETED, Move.DEAD: ChangeKind.DEAD_LETTERED, Move.CANCEL: ChangeKind.CANCELLED,
}  # fmt: skip
Kinds = list[ChangeKind]


class Reader:
    """Reads the feed page by page, as another process would. It asks for starts, unless it is told not to."""

    def __init__(self, store: Store, cursor: str, page: int = 500, *, starts: bool = True) -> None:
        self.store = store
        self.cursor = cursor
        self.page = page
        self.starts = starts

    async def read(self, where: ChangeFilter = EVERY_CHANGE) -> list[Change]:
        """Return the changes since the last call."""
        found: list[Change] = []
        while True:
            page = await self.store.changes(self.cursor, limit=self.page, starts=self.starts)
            assert not page.reset
            assert len(page.entries) <= self.page
            found += page.changes(where, Cursor.parse(self.cursor))
            self.cursor = str(page.cursor)
            if not page.more and not page.entries:
                return found

    async def read_until(self, end: str) -> list[Change]:
        """Return the changes up to another reader's place, which is this one's afterwards."""
        found: list[Change] = []
        while True:
            page = await self.store.changes(self.cursor, limit=self.page, until=end)
            assert not page.reset
            found += page.changes(EVERY_CHANGE, Cursor.parse(self.cursor))
            self.cursor = str(page.cursor)
            if not page.more:
                self.cursor = end
                return found

    async def one(self, kind: ChangeKind) -> Change:
        (change,) = await self.read(ChangeFilter(kinds=(kind,)))
        return change

    async def kinds(self, job_id: str) -> Kinds:
        return [change.kind for change in await self.read(ChangeFilter(jobs=(job_id,)))]


async def from_now(store: Store, page: int = 500, *, starts: bool = True) -> Reader:
    return Reader(store, str((await store.changes(starts=starts)).cursor), page, starts=starts)


def shape(changes: list[Change]) -> list[tuple[str, str | None]]:
    return [(change.kind, change.job_id) for change in changes]


def ids(changes: list[Change]) -> list[str]:
    return [change.id for change in changes]


class FeedScenario(StoreScenario):
    records_for_absent_readers = True  # also if no process has read the feed for its retention

    @pytest.fixture
    async def reader(self, store: Store, crew: None) -> Reader:
        return await from_now(store)


class RecordedTests(FeedScenario):
    # -- created --------------------------------------------------------------------------------

    async def test_a_new_job_is_recorded(self, store: Store, clock: ManualClock, reader: Reader) -> None:
        job_id = await put(store, target=TARGET, queue="mail", task="send")
        (change,) = await reader.read()
        assert change.to_dict() == {
            "id": change.id, "at": to_datetime(clock.now()), "kind": ChangeKind.CREATED, "job_id": job_id,
            "task": "send", "queue": "mail", "target": TARGET, "data": {}, "cursor": change.cursor,
        }  # fmt: skip
        assert await reader.read() == []

    @pytest.mark.parametrize("number", [2, 60, 2500])
    async def test_each_job_of_a_bulk_insert_is_recorded(self, store: Store, reader: Reader, number: int) -> None:
        jobs = [
            new_job(task=("a", "b")[place % 2], queue=("x", "y")[place // 2 % 2], target=TARGET if place % 3 else None)
            for place in range(number)
        ]
        await store.insert(jobs)
        found = {change.job_id: (change.task, change.queue, change.target) for change in await reader.read()}
        assert found == {job.id: (job.task, job.queue, job.target) for job in jobs}

    async def test_duplicates_and_repeated_inserts_are_not_recorded(self, store: Store, reader: Reader) -> None:
        job = new_job(dedupe_key="k")
        await store.insert([job, new_job(dedupe_key="k")])
        await store.insert([job])
        await store.insert([new_job(dedupe_key="k"), other := new_job()])
        assert shape(await reader.read()) == [("created", job.id), ("created", other.id)]

    async def test_follow_ups_and_jobs_of_steps_and_bundles_are_recorded(self, store: Store, reader: Reader) -> None:
        held = await running(store)
        jobs = [new_job(queue="later", target=TARGET) for _ in range(3)]
        await save(store, held, FETCH, jobs=(jobs[0],))
        await save(store, held, FETCH, jobs=(jobs[0],))
        await store.write([Bundle((Write(Key("things", "", "a"), "{}"),), (jobs[1],))])
        await end(store, held, Move.DONE, follow_ups=(jobs[2],))
        found = await reader.read(ChangeFilter(queues=("later",)))
        assert [(change.kind, change.job_id, change.target) for change in found] == [
            ("created", job.id, TARGET) for job in jobs
        ]

    async def test_what_a_halt_rejects_is_not_recorded(self, store: Store, clock: ManualClock, reader: Reader) -> None:
        await store.halt(a_halt(clock, accept=False))
        await reader.read()
        for number in (1, 3):
            with pytest.raises(SystemHalted):
                await store.insert([new_job() for _ in range(number)])
        assert await reader.read() == []

    # -- runs -------------------------------------------------------------------------------------

    @pytest.mark.parametrize("queue", ["default", "*"])
    async def test_each_claimed_job_is_recorded_as_started(self, store: Store, reader: Reader, queue: str) -> None:
        jobs = [new_job(task=("a", "b")[place % 2], target=(TARGET, None)[place % 3 == 0]) for place in range(6)]
        await store.insert(jobs)
        await reader.read()
        await claim(store, queue=queue, worker="w2")
        found = await reader.read()
        assert {(change.kind, change.queue, change.data["worker"]) for change in found} == {
            ("started", "default", "w2")
        }
        assert {(change.job_id, change.task, change.target) for change in found} == {
            (job.id, job.task, job.target) for job in jobs
        }
        assert len(found) == len(jobs)

    async def test_a_suspect_is_recorded_as_started(self, store: Store, reader: Reader) -> None:
        held = await running(store)
        await end(store, held, Move.CRASH)
        await reader.read()
        await claim_one(store, solo=True, worker="w2")
        started = await reader.one(ChangeKind.STARTED)
        assert (started.job_id, started.data) == (held.id, {"worker": "w2"})

    async def test_a_claim_that_finds_nothing_is_not_recorded(self, store: Store, reader: Reader) -> None:
        assert await claim(store) == []
        assert await reader.read() == []

    async def test_progress_is_recorded(self, store: Store, reader: Reader) -> None:
        held = await running(store, target=TARGET)
        await store.report([ProgressReport(held.id, held.token, 0.5, "half")])
        await store.report([ProgressReport(held.id, held.token, 0.75, "x" * 2000)])
        first, second = await reader.read(ChangeFilter(kinds=(ChangeKind.PROGRESSED,)))
        assert (first.job_id, first.target, first.data) == (held.id, TARGET, {"fraction": 0.5, "note": "half"})
        assert (first.task, first.queue) == ("greet", "default")
        assert second.data == {"fraction": 0.75, "note": "x" * feed.LONGEST_TEXT}

    @pytest.mark.parametrize("move", [Move.DONE, Move.DEAD, Move.CANCEL])
    async def test_the_last_progress_comes_before_the_end_and_stays(
        self, store: Store, reader: Reader, move: Move
    ) -> None:
        held = await running(store)
        await store.report([ProgressReport(held.id, held.token, 0.9, "nearly")])
        await end(store, held, move)
        assert await store.report([ProgressReport(held.id, held.token, 1.0, "late")]) == set()
        changes = await reader.read(ChangeFilter(jobs=(held.id,)))
        assert [change.kind for change in changes][-2:] == [ChangeKind.PROGRESSED, END_KINDS[move]]
        assert (await look(store, held.id)).progress == Progress(0.9, "nearly")

    @pytest.mark.parametrize("fields", [{}, {"result": "1"}, {"steps": (FETCH,)}, {"follow_ups": ("job",)}])
    async def test_a_completed_job_is_recorded_once(self, store: Store, reader: Reader, fields: dict[str, Any]) -> None:
        held = await running(store, target=TARGET)
        follow_ups = tuple(new_job() for _ in fields.get("follow_ups", ()))
        await reader.read()
        await end(store, held, Move.DONE, **{**fields, "follow_ups": follow_ups})
        change = await reader_of(reader, held.id)
        assert (change.kind, change.target, change.task, change.queue) == ("completed", TARGET, "greet", "default")
        assert change.data == {}

    @pytest.mark.parametrize("known", [True, False])
    async def test_each_job_of_a_batch_of_completions_is_recorded_once(
        self, store: Store, reader: Reader, known: bool
    ) -> None:
        jobs = [new_job(task=("a", "b")[place % 2], target=(TARGET, None)[place % 3 == 0]) for place in range(30)]
        await store.insert(jobs)
        held = await claim(store)
        await reader.read()
        ends = [outcome(run, Move.DONE) for run in held]
        await store.ack(ends if known else [replace(end, ref=None) for end in ends])
        found = await reader.read()
        assert {change.kind for change in found} == {ChangeKind.COMPLETED}
        assert sorted((change.job_id, change.task, change.target) for change in found) == sorted(
            (job.id, job.task, job.target) for job in jobs
        )

    async def test_a_failed_attempt_is_recorded(self, store: Store, clock: ManualClock, reader: Reader) -> None:
        held = await running(store, target=TARGET, max_attempts=3)
        await end(store, held, Move.RETRY, failure=BOOM, delay=5000)
        change = await reader.one(ChangeKind.RETRYING)
        assert (change.job_id, change.target) == (held.id, TARGET)
        assert change.data == {
            "worker": "w1", "attempt": 1, "max_attempts": 3, "error_type": "ValueError", "error": "boom",
            "fingerprint": await fingerprint(store, held.id), "run_at": clock.now() + 5000, "cause": "error",
        }  # fmt: skip

    async def test_a_dead_letter_is_recorded(self, store: Store, reader: Reader) -> None:
        held = await running(store, target=TARGET, max_attempts=2)
        await end(store, held, Move.DEAD, failure=replace(BOOM, message="é" * 2000), reason="r" * 2000)
        change = await reader.one(ChangeKind.DEAD_LETTERED)
        assert (change.job_id, change.target) == (held.id, TARGET)
        assert change.data == {
            "worker": "w1", "attempt": 1, "max_attempts": 2, "error_type": "ValueError",
            "error": "é" * feed.LONGEST_TEXT, "reason": "r" * feed.LONGEST_TEXT,
            "fingerprint": await fingerprint(store, held.id),
        }  # fmt: skip

    @pytest.mark.parametrize(("move", "kind"), [(Move.SNOOZE, ChangeKind.SNOOZED), (Move.RELEASE, ChangeKind.RELEASED)])
    async def test_a_job_that_goes_back_is_recorded(
        self, store: Store, clock: ManualClock, reader: Reader, move: Move, kind: ChangeKind
    ) -> None:
        held = await running(store)
        await end(store, held, move, delay=9000, reason="quiet hours")
        change = await reader.one(kind)
        assert (change.job_id, change.data["worker"], change.data["attempt"]) == (held.id, "w1", 0)
        assert (change.data["run_at"], change.data["reason"]) == (clock.now() + 9000, "quiet hours")

    async def test_a_cancel_by_the_handler_is_recorded(self, store: Store, reader: Reader) -> None:
        held = await running(store)
        await end(store, held, Move.CANCEL, reason="not needed")
        change = await reader.one(ChangeKind.CANCELLED)
        assert (change.job_id, change.data["reason"], change.data["worker"]) == (held.id, "not needed", "w1")

    @pytest.mark.parametrize("move", [Move.DONE, Move.RETRY, Move.DEAD, Move.SUSPEND, Move.RELEASE])
    async def test_a_lost_claim_records_nothing(self, store: Store, reader: Reader, move: Move) -> None:
        held = await running(store)
        await end(store, held, Move.RELEASE)
        await claim_one(store, worker="w2")
        await reader.read()
        assert await end(store, held, move, follow_ups=(new_job(),)) is None
        assert await store.report([ProgressReport(held.id, held.token, 0.5, "")]) == set()
        assert await save(store, held, FETCH, jobs=(new_job(),)) is None
        assert await reader.read() == []

    async def test_of_a_batch_only_the_accepted_outcomes_are_recorded(self, store: Store, reader: Reader) -> None:
        lost, held, failed = await running(store), await running(store), await running(store)
        await end(store, lost, Move.RELEASE)
        await reader.read()
        await store.ack([outcome(lost, Move.DONE), outcome(held, Move.DONE), outcome(failed, Move.RETRY)])
        assert sorted(shape(await reader.read())) == [("completed", held.id), ("retrying", failed.id)]

    # -- workers ------------------------------------------------------------------------------------

    async def test_a_crash_is_recorded_and_then_what_becomes_of_the_job(
        self, store: Store, clock: ManualClock, reader: Reader
    ) -> None:
        held, began = await running(store, target=TARGET), clock.now()
        await by_silence(store, clock, "w1")
        changes = await reader.read(ChangeFilter(jobs=(held.id,)))
        assert [change.kind for change in changes] == ["created", "started", "stalled", "released"]
        _, _, stalled, released = changes
        about = {"worker": "w1", "cause": "crashed", "started_at": began, "timeout_at": None}
        assert (stalled.target, stalled.data) == (TARGET, about)
        assert (released.target, released.data["error_type"]) == (TARGET, "WorkerCrashed")

    async def test_a_worker_that_dies_is_recorded_once(self, store: Store, clock: ManualClock, reader: Reader) -> None:
        await store.join(WorkerInfo(id="w3", host="host", pid=1, queues=("mail",), remote=True), None)
        await reader.read()
        for _ in range(2):
            await by_silence(store, clock, "w3")
        assert (await reader.one(ChangeKind.WORKER_DIED)).data == {"worker": "w3"}

    async def test_a_stall_is_recorded_and_then_what_becomes_of_the_job(
        self, store: Store, clock: ManualClock, reader: Reader
    ) -> None:
        held, began = await running(store, timeout=TIMEOUT), clock.now()
        await reader.read()
        await after(store, clock, OVERDUE)
        stalled, retrying = await reader.read(ChangeFilter(jobs=(held.id,)))
        about = {"worker": "w1", "cause": "stalled", "started_at": began, "timeout_at": began + TIMEOUT}
        assert (stalled.kind, stalled.data) == ("stalled", about)
        assert retrying.data["cause"] == "timeout"
        assert (retrying.kind, retrying.data["error_type"], retrying.data["attempt"]) == ("retrying", "TimeoutError", 1)

    async def test_the_feed_tells_a_timeout_from_an_error_of_the_same_name(self, store: Store, reader: Reader) -> None:
        failure = Failure("TimeoutError", "the bank did not answer")
        for timed_out, cause in ((False, "error"), (True, "timeout")):
            held = await running(store)
            await store.ack([outcome(held, Move.RETRY, failure=failure, timed_out=timed_out, delay=60_000)])
            (retrying,) = await reader.read(ChangeFilter(kinds=("retrying",), jobs=(held.id,)))
            assert retrying.data["cause"] == cause

    async def test_a_worker_that_comes_back_after_its_death_is_recorded_again(
        self, store: Store, clock: ManualClock, reader: Reader
    ) -> None:
        info = WorkerInfo(id="w3", host="host", pid=1, queues=("mail",), remote=True)
        for _ in range(2):
            await store.join(info, None)
            assert (await reader.one(ChangeKind.WORKER_JOINED)).data["worker"] == "w3"
            await by_silence(store, clock, "w3")
            assert (await reader.one(ChangeKind.WORKER_DIED)).data == {"worker": "w3"}

    @pytest.mark.parametrize("remote", [True, False])
    async def test_a_worker_that_joins_again_is_recorded_once(self, store: Store, reader: Reader, remote: bool) -> None:
        for queue in ("mail", "sms", "sms"):
            await store.join(WorkerInfo(id="w3", host="host", pid=1, queues=(queue,), remote=remote), ignore)
        assert (await reader.one(ChangeKind.WORKER_JOINED)).data["queues"] == ["mail"]
        await store.leave("w3")
        await join(store, "w3")
        assert [change.kind for change in await reader.read()] == ["worker_left", "worker_joined"]

    async def test_a_worker_that_comes_and_goes_is_recorded(self, store: Store, reader: Reader) -> None:
        await join(store, "w3", queues=("mail", "sms"))
        await store.leave("w3")
        joined, left = await reader.read()
        assert (joined.kind, joined.job_id, joined.task, joined.queue) == ("worker_joined", None, None, None)
        assert joined.data == {"worker": "w3", "host": "host", "pid": 1, "queues": ["mail", "sms"]}
        assert (left.kind, left.data) == ("worker_left", {"worker": "w3"})

    async def test_the_jobs_of_a_worker_that_leaves_are_released(self, store: Store, reader: Reader) -> None:
        held = await running(store)
        await reader.read()
        await store.leave("w1")
        assert set(shape(await reader.read())) == {("released", held.id), ("worker_left", None)}

    # -- suspended jobs -------------------------------------------------------------------------------

    async def test_a_suspension_is_recorded(self, store: Store, reader: Reader) -> None:
        job_id = await suspended(store, "bell", delay=60_000, target=TARGET)
        change = await reader.one(ChangeKind.SUSPENDED)
        assert (change.job_id, change.target, change.data["waits_for"]) == (job_id, TARGET, "bell")

    async def test_a_wake_up_is_recorded_for_each_job_woken(self, store: Store, reader: Reader) -> None:
        jobs = [await suspended(store, "bell", task=task, target=TARGET) for task in ("a", "a", "b")]
        await suspended(store, "door")
        await reader.read()
        await store.wake({"bell": 5, "nothing": 1})
        found = await reader.read()
        assert sorted((change.kind, change.job_id, change.task, change.target) for change in found) == sorted(
            ("resumed", job_id, task, TARGET) for job_id, task in zip(jobs, "aab", strict=True)
        )

    @pytest.mark.parametrize("move", [Move.DONE, Move.DEAD])
    async def test_the_end_of_a_job_is_recorded_and_what_it_resumes(
        self, store: Store, reader: Reader, move: Move
    ) -> None:
        child = await running(store)
        parent = await suspended(store, end_of(child.id), target=TARGET)
        await reader.read()
        await end(store, child, move)
        found = await reader.read()
        assert {(change.kind, change.job_id, change.target) for change in found} == {
            ({Move.DONE: "completed", Move.DEAD: "dead_lettered"}[move], child.id, None),
            ("resumed", parent, TARGET),
        }

    async def test_a_wait_for_a_job_that_has_ended_is_suspended_and_resumed(self, store: Store, reader: Reader) -> None:
        child = await running(store)
        await end(store, child, Move.DONE)
        parent = await suspended(store, end_of(child.id))
        assert await reader.kinds(parent) == ["created", "started", "suspended", "resumed"]

    async def test_a_job_inserted_to_wait_for_one_that_has_ended_is_created_and_resumed(
        self, store: Store, reader: Reader
    ) -> None:
        child = await running(store)
        await end(store, child, Move.DONE)
        jobs = [new_job(waits_for=end_of(child.id), target=TARGET) for _ in range(2)]
        await store.insert(jobs[:1])
        await store.insert(jobs)
        reader_of_two = Reader(store, reader.cursor)
        assert await reader.kinds(jobs[0].id) == ["created", "resumed"]
        assert await reader_of_two.kinds(jobs[1].id) == ["created", "resumed"]

    # -- by hand --------------------------------------------------------------------------------------

    @pytest.mark.parametrize("status", [Status.PENDING, Status.RETRYING, Status.SUSPENDED])
    async def test_a_cancel_by_hand_is_recorded(self, store: Store, reader: Reader, status: Status) -> None:
        job_id = await job_in(store, status, target=TARGET)
        await reader.read()
        await by_hand(store, Action.CANCEL, job_id)
        (change,) = await reader.read()
        assert (change.kind, change.job_id, change.target) == ("cancelled", job_id, TARGET)
        assert (change.data["reason"], change.data["worker"]) == ("by hand", None)

    async def test_a_request_to_cancel_is_recorded(self, store: Store, reader: Reader) -> None:
        held = await running(store)
        await reader.read()
        await by_hand(store, Action.CANCEL, held.id)
        (requested,) = await reader.read()
        assert (requested.kind, requested.job_id) == ("cancel_requested", held.id)
        assert requested.data == {"actor": "ana", "reason": "by hand"}
        await end(store, held, Move.RETRY)
        assert (await reader.one(ChangeKind.CANCELLED)).job_id == held.id

    @pytest.mark.parametrize("status", [Status.RETRYING, Status.DEAD_LETTER, Status.CANCELLED])
    async def test_a_retry_by_hand_is_recorded(self, store: Store, reader: Reader, status: Status) -> None:
        job_id = await job_in(store, status, target=TARGET)
        await reader.read()
        await by_hand(store, Action.RETRY, job_id)
        (change,) = await reader.read()
        assert (change.kind, change.job_id, change.target) == ("retried", job_id, TARGET)
        assert change.data == {"actor": "ana", "reason": "by hand"}

    async def test_an_edit_is_recorded_without_the_payload(self, store: Store, reader: Reader) -> None:
        job_id = await put(store)
        await reader.read()
        await by_hand(store, Action.EDIT, job_id, payload='{"secret": 1}', priority=1)
        (change,) = await reader.read()
        assert (change.kind, change.job_id) == ("edited", job_id)
        assert change.data == {
            "actor": "ana", "reason": "by hand", "fields": ["payload", "priority"], "priority": "high",
        }  # fmt: skip

    async def test_an_edit_tells_only_fields_that_have_another_value(
        self, store: Store, clock: ManualClock, reader: Reader
    ) -> None:
        """A debounced enqueue writes all of them, and most are as before."""
        long = json.dumps("x" * 5000)  # SQLite stores it apart, DynamoDB compresses it
        same = {"payload": long, "priority": 1, "queue": "mail", "run_at": clock.now() + 5000, "max_attempts": 3}
        job_id = await put(store, **same)
        await reader.read()
        for others in ({}, {"queue": "sms"}, {"run_at": clock.now()}, {"payload": "1", "priority": 2}):
            same |= others
            await by_hand(store, Action.EDIT, job_id, **same)
            told = {**(await reader.one(ChangeKind.EDITED)).data}
            assert told.pop("fields") == sorted(others)
            assert told.keys() == {"actor", "reason", *others} - {"payload"}

    async def test_an_edit_of_many_jobs_tells_for_each_what_it_has_changed(
        self, store: Store, clock: ManualClock, reader: Reader
    ) -> None:
        sooner, later = clock.now() + 5000, clock.now() + 9000
        jobs = [await put(store, run_at=run_at, priority=priority) for run_at in (sooner, later) for priority in (1, 2)]
        await reader.read()
        await by_hand(store, Action.EDIT, *jobs, run_at=later, priority=2)
        found = {change.job_id: change.data for change in await reader.read()}
        assert [found[job_id]["fields"] for job_id in jobs] == [["priority", "run_at"], ["run_at"], ["priority"], []]
        assert [found[job_id].get("run_at") for job_id in jobs] == [later, later, None, None]

    @pytest.mark.parametrize("deleted", [False, True])
    async def test_a_change_stays_in_the_queue_in_which_it_happened(
        self, store: Store, reader: Reader, deleted: bool
    ) -> None:
        """Also if the job is in another queue before the change is read: that may be the queue of another project."""
        held = await running(store, queue="first")
        await store.report([ProgressReport(held.id, held.token, 0.5, "half")])
        await end(store, held, Move.RETRY, failure=BOOM)
        await by_hand(store, Action.EDIT, held.id, queue="second")
        again = await claim_one(store, queue="second")
        await store.report([ProgressReport(again.id, again.token, 0.7, "more")])
        await end(store, again, Move.SUSPEND, waits_for="bell", delay=UNTIL_WOKEN)
        await store.wake({"bell": 1})
        await by_hand(store, Action.EDIT, held.id, queue="third")
        if deleted:
            await by_hand(store, Action.DELETE, held.id)
        found: dict[str | None, Kinds] = {}
        for change in await reader.read(ChangeFilter(queues=("first", "second", "third"))):
            found.setdefault(change.queue, []).append(change.kind)
        assert found == {
            "first": ["created", "started", "progressed", "retrying", "edited"],
            "second": ["started", "progressed", "suspended", "resumed", "edited"],
            **({"third": ["deleted"]} if deleted else {}),
        }

    @pytest.mark.parametrize("status", [Status.PENDING, Status.COMPLETED, Status.SUSPENDED])
    async def test_a_deletion_by_hand_is_recorded(self, store: Store, reader: Reader, status: Status) -> None:
        job_id = await job_in(store, status)
        await reader.read()
        await by_hand(store, Action.DELETE, job_id)
        (change,) = await reader.read()
        assert (change.kind, change.job_id, change.data["actor"]) == ("deleted", job_id, "ana")

    async def test_changes_of_many_jobs_by_hand_are_recorded_for_each(self, store: Store, reader: Reader) -> None:
        jobs = [*await put_many(store, 5, task="a"), *await put_many(store, 5, task="b")]
        await reader.read()
        await store.change(Action.CANCEL, Filter(), By("ana"))
        assert sorted(shape(await reader.read())) == sorted(("cancelled", job_id) for job_id in jobs)

    async def test_changes_by_hand_that_are_not_audited_are_recorded(self, store: Store, reader: Reader) -> None:
        job_id = await job_in(store, Status.DEAD_LETTER)
        await reader.read()
        await store.change(Action.RETRY, Filter(ids=(job_id,)), By("recovery", audited=False))
        assert shape(await reader.read()) == [("retried", job_id)]

    async def test_a_dry_run_and_a_change_without_effect_record_nothing(self, store: Store, reader: Reader) -> None:
        job_id = await put(store)
        await reader.read()
        await store.change(Action.CANCEL, Filter(ids=(job_id,)), BY, dry_run=True)
        await by_hand(store, Action.RETRY, job_id)
        await store.change(Action.EDIT, Filter(ids=(new_job().id,)), BY, edit=Edit(payload="{}"))
        assert await reader.read() == []

    async def test_what_retention_deletes_is_not_recorded(
        self, store: Store, clock: ManualClock, reader: Reader
    ) -> None:
        held = await running(store, keep=1000)
        await end(store, held, Move.DONE)
        await reader.read()
        clock.advance(2)
        while await store.prune():
            pass
        assert await store.get([held.id]) == []
        assert await reader.read() == []

    # -- halts and documents ----------------------------------------------------------------------------

    @pytest.mark.parametrize("queue", [None, "mail"])
    async def test_a_halt_and_its_end_are_recorded(
        self, store: Store, clock: ManualClock, reader: Reader, queue: str | None
    ) -> None:
        halt = a_halt(clock, seconds=60, queue=queue)
        await store.halt(halt)
        assert await store.resume(BY, queue)
        assert not await store.resume(BY, queue)
        halted, ended = await reader.read()
        assert (halted.kind, halted.queue, halted.job_id) == ("halted", queue, None)
        assert halt.until is not None
        assert halted.data == {
            "actor": "ana", "reason": "fire drill", "until": halt.until.isoformat(), "accept": True,
        }  # fmt: skip
        assert (ended.kind, ended.queue, ended.data) == ("halt_ended", queue, {"actor": "ana"})

    @pytest.mark.parametrize("queue", [None, "mail"])
    @pytest.mark.parametrize("noticed_by", ["prune", "resume", "halt"])
    async def test_the_end_of_a_halt_by_its_time_is_recorded_once(
        self, store: Store, clock: ManualClock, reader: Reader, queue: str | None, noticed_by: str
    ) -> None:
        await store.halt(a_halt(clock, seconds=60, queue=queue))
        clock.advance(59)
        await store.prune()
        assert [change.kind for change in await reader.read()] == ["halted"]
        clock.advance(1)
        if noticed_by == "resume":
            assert not await store.resume(BY, queue)
        elif noticed_by == "halt":
            await store.halt(a_halt(clock, queue="other"))
        for _ in range(2):
            await store.prune()
        ended = [change for change in await reader.read() if change.queue == queue]
        assert [(change.kind, change.data) for change in ended] == [("halt_ended", {"actor": None})]
        assert [halt.queue for halt in await store.halts()] == (["other"] if noticed_by == "halt" else [])

    @pytest.mark.parametrize(
        ("collection", "kind"),
        [
            ("schedules", "schedule"),
            ("breakers", "breaker"),
            ("failures", "failure_group"),
            ("people", "person"),
            ("occasions.birthday", "occasion"),
            ("settings", "document"),
        ],
    )
    async def test_documents_that_say_so_are_recorded(
        self, store: Store, reader: Reader, collection: str, kind: str
    ) -> None:
        key = Key(collection, "group", "one")
        await store.write([Bundle((Write(key, "{}", recorded=True), Write(Key(collection, "", "two"), "{}")))])
        await store.write([Bundle((Write(key, None, recorded=True),))])
        written, deleted = await reader.read()
        about = {"collection": collection, "group": "group", "id": "one"}
        assert (written.kind, written.data) == (kind, {**about, "deleted": False})
        assert (deleted.kind, deleted.data) == (kind, {**about, "deleted": True})

    async def test_a_recorded_document_can_say_what_became_of_its_thing(self, store: Store, reader: Reader) -> None:
        key = Key("people", "", "ana")
        steps: list[tuple[str, Became]] = [("{}", "created"), ('{"a": 1}', "updated"), ('{"gone": 1}', "deleted")]
        for data, became in steps:
            await store.write([Bundle((Write(key, data, recorded=True, became=became),))])
        told = [(change.data["became"], change.data["deleted"]) for change in await reader.read()]
        assert told == [("created", False), ("updated", False), ("deleted", True)]

    async def test_a_recorded_document_can_name_a_state_and_its_actor(self, store: Store, reader: Reader) -> None:
        key = Key("breakers", "", "mail")
        for state, actor in (("open", "ana"), ("half_open", None), ("closed", None), ("open", "bob")):
            await store.write([Bundle((Write(key, "{}", recorded=True, became=state, actor=actor),))])
        told = [(change.data["became"], change.data.get("actor")) for change in await reader.read()]
        assert told == [("open", "ana"), ("half_open", None), ("closed", None), ("open", "bob")]

    async def test_documents_with_different_states_in_one_write_stay_apart(self, store: Store, reader: Reader) -> None:
        states = {"a": "open", "b": "closed", "c": "open"}
        writes = [Write(Key("breakers", "", name), "{}", recorded=True, became=states[name]) for name in states]
        await store.write([Bundle((write,)) for write in writes])
        assert {change.data["id"]: change.data["became"] for change in await reader.read()} == states

    @pytest.mark.parametrize("number", [2, 60, 1500])
    async def test_each_document_of_many_is_a_change_of_its_own(
        self, store: Store, reader: Reader, number: int
    ) -> None:
        """As an import of people writes them: one bundle each, and all of them in one call."""
        names = [f"p{place:04}" for place in range(number)]
        await store.write([Bundle((Write(Key("people", "", name), "{}", recorded=True),)) for name in names])
        found = await reader.read()
        assert sorted(change.data["id"] for change in found) == names
        assert len(set(ids(found))) == number
        assert {change.job_id for change in found} == {None}

    async def test_a_reader_resumes_between_documents_of_one_write(self, store: Store, reader: Reader) -> None:
        start = reader.cursor
        await store.write([Bundle((Write(Key("people", "", name), "{}", recorded=True),)) for name in "abcd"])
        whole = await reader.read()
        for place, change in enumerate(whole):
            assert ids(await Reader(store, change.cursor).read()) == ids(whole[place + 1 :])
        assert ids(await Reader(store, start, page=1).read()) == ids(whole)

    async def test_a_refused_bundle_is_not_recorded(self, store: Store, reader: Reader) -> None:
        key = Key("people", "", "one")
        await store.write([Bundle((Write(key, "{}", recorded=True),))])
        await reader.read()
        refused = Bundle((Write(key, '{"a": 1}', expected=ABSENT, recorded=True),), (new_job(),))
        assert await store.write([refused]) == [None]
        assert await reader.read() == []


class TagTests(FeedScenario):
    """Changes selected by the tags of their jobs, which a reader looks up."""

    async def test_the_tags_of_jobs_can_be_looked_up(self, store: Store, crew: None) -> None:
        tagged, other = await put(store, tags=("vip", "eu")), await put(store, tags=("eu",))
        plain = await put(store)
        await end(store, await claim_one(store), Move.DONE)
        found = await store.tags([tagged, other, plain, new_job().id, "no id"])
        assert {job_id: sorted(tags) for job_id, tags in found.items()} == {tagged: ["eu", "vip"], other: ["eu"]}
        assert await store.tags([]) == {}

    async def test_a_filter_selects_jobs_with_all_of_its_tags(self, store: Store, reader: Reader) -> None:
        both, one = await put(store, tags=("vip", "eu", "new")), await put(store, tags=("eu",))
        await put(store)
        await store.halt(a_halt(ManualClock()))
        await store.resume(BY)
        for held in await claim(store, 3):
            await end(store, held, Move.DONE)
        start = reader.cursor
        assert await named(reader, start, ("vip", "eu")) == [
            (kind, both) for kind in ("created", "started", "completed")
        ]
        assert {job_id for _, job_id in await named(reader, start, ("eu",))} == {both, one}
        assert await named(reader, start, ("nothing",)) == []

    async def test_a_deletion_has_the_tags_of_its_job(self, store: Store, reader: Reader) -> None:
        tagged, plain = await put(store, tags=("vip",)), await put(store)
        start = reader.cursor
        await store.change(Action.DELETE, Filter(ids=(tagged, plain)), BY)
        assert await named(reader, start, ("vip",)) == [("created", tagged), ("deleted", tagged)]
        found = {change.job_id: change.data.get("tags") for change in await reader.read() if change.kind == "deleted"}
        assert found == {tagged: ["vip"], plain: None}


async def named(reader: Reader, start: str, tags: tuple[str, ...]) -> list[tuple[str, str | None]]:
    """Return the kinds and jobs of all changes after a cursor that have these tags."""
    where, found, cursor = ChangeFilter(tags=tags), list[Change](), start
    while (page := await reader.store.changes(cursor, starts=True)).entries:
        page = await feed.with_tags(page, where, reader.store.tags)
        found += page.changes(where)
        cursor = str(page.cursor)
    return shape(found)


async def reader_of(reader: Reader, job_id: str) -> Change:
    (change,) = await reader.read(ChangeFilter(jobs=(job_id,)))
    return change


class StartsTests(FeedScenario):
    """Claims are in the feed only while a reader asks for them."""

    @pytest.fixture
    async def modest(self, store: Store, crew: None) -> Reader:
        """A reader that does not ask for starts."""
        return await from_now(store, starts=False)

    async def test_a_claim_that_no_reader_asks_for_is_not_in_the_feed(self, store: Store, modest: Reader) -> None:
        held = await running(store, target=TARGET)
        await end(store, held, Move.DONE)
        assert await modest.kinds(held.id) == ["created", "completed"]
        await end(store, await running(store), Move.CRASH)
        await claim_one(store, solo=True)
        assert ChangeKind.STARTED not in {change.kind for change in await modest.read()}

    async def test_the_feed_ends_after_claims_that_are_not_in_it(self, store: Store, modest: Reader) -> None:
        """Its reader goes on from there, page by page."""
        modest.page = 1
        await put_many(store, 3, task="a")
        await put_many(store, 3, task="b")
        assert len(await claim(store)) == 6
        created = await modest.read()
        assert [change.kind for change in created] == ["created"] * 6
        assert await modest.read() == []
        last = await put(store, queue="other")
        assert shape(await modest.read()) == [("created", last)]
        assert shape(await Reader(store, created[-1].cursor, 1, starts=False).read()) == [("created", last)]

    async def test_starts_are_recorded_from_the_request_on(self, store: Store, modest: Reader) -> None:
        before, after = await put_many(store, 2)
        assert (await claim_one(store)).id == before
        await modest.read()
        await store.changes(modest.cursor, starts=True)
        assert (await claim_one(store)).id == after
        assert shape(await modest.read()) == [("started", after)]

    async def test_a_reader_without_a_place_may_ask(self, store: Store, crew: None) -> None:
        job_id = await put(store)
        reader = await from_now(store)
        await claim_one(store)
        assert shape(await reader.read()) == [("started", job_id)]

    async def test_starts_are_recorded_for_the_retention_after_the_last_request(
        self, store: Store, clock: ManualClock, reader: Reader
    ) -> None:
        await put_many(store, 4)
        for _ in range(2):
            await pass_time(store, clock, feed.RETENTION - 60_000)
            await claim_one(store)
            assert ChangeKind.STARTED in {change.kind for change in await reader.read()}
        reader.starts = False
        await pass_time(store, clock, feed.RETENTION - 60_000)
        await reader.read()  # DynamoDB records nothing if no process reads
        await pass_time(store, clock, feed.RETENTION - 60_000)
        await claim_one(store)
        assert ChangeKind.STARTED not in {change.kind for change in await reader.read()}
        await store.changes(reader.cursor, starts=True)
        await claim_one(store)
        assert ChangeKind.STARTED in {change.kind for change in await reader.read()}

    async def test_a_request_that_is_not_fresh_is_renewed(
        self, store: Store, clock: ManualClock, reader: Reader
    ) -> None:
        """A reader that is away loses no start before the feed forgets it: each read counts, not only the first."""
        for _ in range(100):
            await pass_time(store, clock, 1_800_000)
            await reader.read()
        await put(store)
        await pass_time(store, clock, feed.RETENTION - 60_000)
        held = await claim_one(store)
        assert ("started", held.id) in shape(await reader.read())

    async def test_a_start_is_counted_once_whether_or_not_a_reader_asks(self, store: Store, crew: None) -> None:
        for number in (1, 2, 3):
            await put(store, task=f"task {number % 2}")
            await claim_one(store)
            assert await starts_counted(store) == number
            await store.changes(starts=number > 1)


async def pass_time(store: Store, clock: ManualClock, length: int) -> None:
    """Let time pass; both workers stay alive."""
    clock.advance(length / 1000)
    for worker in ("w1", "w2"):
        await store.heartbeat(worker, {})


async def starts_counted(store: Store) -> int:
    figures = await store.numbers(NumbersQuery((Span(Period.DAY, 0, 1 << 62),)))
    return sum(figure.total(Measure.STARTED) for figure in figures)


class CursorTests(FeedScenario):
    async def test_without_a_cursor_the_feed_begins_now(self, store: Store) -> None:
        await put(store)
        page = await store.changes()
        assert (page.entries, page.reset, page.more) == ([], False, False)
        job_id = await put(store)
        assert shape(await Reader(store, str(page.cursor)).read()) == [("created", job_id)]

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 500])
    async def test_pages_of_any_size_show_the_same(self, store: Store, reader: Reader, size: int) -> None:
        start = reader.cursor
        await a_busy_hour(store)
        everything = await reader.read()
        assert len(everything) > 20
        assert ids(await Reader(store, start, size).read()) == ids(everything)
        assert len(set(ids(everything))) == len(everything)

    async def test_a_reader_resumes_after_any_change(self, store: Store, reader: Reader) -> None:
        """Also between two jobs of one entry, and with any size of page before and after."""
        start = reader.cursor
        await a_busy_hour(store)
        everything = await reader.read()
        for size in (1, 4, 500):
            changes = await Reader(store, start, size).read()
            for place, change in enumerate(changes, 1):
                rest = await Reader(store, change.cursor, size % 4 + 1).read()
                assert ids(rest) == ids(everything)[place:]

    async def test_a_reader_that_resumes_in_the_middle_sees_what_came_meanwhile(
        self, store: Store, reader: Reader
    ) -> None:
        jobs = await put_many(store, 4)
        changes = await reader.read()
        more = await put_many(store, 2)
        rest = await Reader(store, changes[1].cursor, 1).read()
        assert [change.job_id for change in rest] == [*[change.job_id for change in changes[2:]], *more]
        assert {change.job_id for change in changes} == set(jobs)

    async def test_filters_select_and_move_on(self, store: Store, reader: Reader) -> None:
        mail = await put(store, queue="mail", task="send", target=TARGET)
        await put_many(store, 3)
        await store.halt(a_halt(store.clock, queue="mail"))  # type: ignore[arg-type]
        start = reader.cursor
        for where in (
            ChangeFilter(jobs=(mail,)),
            ChangeFilter(tasks=("send",)),
            ChangeFilter(target_type="order"),
            ChangeFilter(target_type="order", target_id="7"),
            ChangeFilter(queues=("mail",), kinds=(ChangeKind.CREATED,)),
        ):
            assert shape(await Reader(store, start).read(where)) == [("created", mail)]
        of_queue = await Reader(store, start).read(ChangeFilter(queues=("mail",)))
        assert shape(of_queue) == [("created", mail), ("halted", None)]
        assert await Reader(store, start).read(ChangeFilter(target_type="order", target_id="8")) == []

    # -- cursors that are not valid here ----------------------------------------------------------------

    @pytest.mark.parametrize("text", ["", "garbage", "é", "bm9wZQ", "W10", "WyJhIiwxXQ", "A" * 10_000])
    async def test_garbage_is_not_a_cursor(self, store: Store, text: str) -> None:
        with pytest.raises(InvalidCursor, match="is not a cursor"):
            await store.changes(text)

    @pytest.mark.parametrize("page", [1, 3, 500])
    async def test_a_reader_ends_exactly_where_another_one_is(self, store: Store, reader: Reader, page: int) -> None:
        late = Reader(store, reader.cursor, page)
        first = [*await put_many(store, 3), await put(store, queue="mail"), *await put_many(store, 2)]
        assert len(await reader.read()) == len(first)
        then = [await put(store), *await put_many(store, 3)]
        assert [change.job_id for change in await late.read_until(reader.cursor)] == first
        assert await late.read_until(reader.cursor) == []
        rest = await late.read()
        assert [change.job_id for change in rest] == then
        assert ids(await reader.read()) == ids(rest)

    async def test_a_cursor_of_another_feed_is_reset(self, store: Store) -> None:
        await put(store)
        cursor = (await store.changes()).cursor
        page = await store.changes(str(cursor._replace(life="another")))
        assert (page.entries, page.reset) == ([], True)
        job_id = await put(store)
        assert shape(await Reader(store, str(page.cursor)).read()) == [("created", job_id)]

    async def test_a_cursor_before_deleted_changes_is_reset(
        self, store: Store, clock: ManualClock, reader: Reader
    ) -> None:
        old = reader.cursor
        await put_many(store, 3)
        await put(store)
        await expire(store, clock)
        page = await store.changes(old)
        assert (page.entries, page.reset) == ([], True)
        job_id = await put(store)
        assert shape(await Reader(store, str(page.cursor)).read()) == [("created", job_id)]

    async def test_a_reader_that_was_idle_for_longer_than_the_retention_goes_on(
        self, store: Store, clock: ManualClock, reader: Reader
    ) -> None:
        """All that was deleted it has read."""
        await put_many(store, 3)
        await put(store)
        await reader.read()
        await expire(store, clock)
        job_id = await put(store)
        if self.records_for_absent_readers:
            assert shape(await reader.read()) == [("created", job_id)]
        else:
            assert (await store.changes(reader.cursor)).reset

    async def test_young_changes_are_kept(self, store: Store, clock: ManualClock, reader: Reader) -> None:
        await put(store)
        clock.advance(feed.RETENTION / 1000 - 10)
        await put(store)
        await store.prune()
        assert len([change for change in await reader.read() if change.kind is ChangeKind.CREATED]) == 2

    async def test_numbers_are_not_used_again_after_all_changes_expired(
        self, store: Store, clock: ManualClock, reader: Reader
    ) -> None:
        await put(store)
        before = await reader.read()
        await expire(store, clock)
        reader.cursor = str((await store.changes(reader.cursor)).cursor)  # DynamoDB stops recording for absent readers
        await put(store)
        after = await reader.read()
        assert len(after) == 1
        assert not set(ids(before)) & set(ids(after))


async def fingerprint(store: Store, job_id: str) -> str:
    found = (await look(store, job_id)).fingerprint
    assert found
    return found


async def expire(store: Store, clock: ManualClock) -> None:
    """Let all changes become too old, and delete them. Both workers stay alive."""
    clock.advance(feed.RETENTION / 1000 + 1)
    for worker in ("w1", "w2"):
        await store.heartbeat(worker, {})
    for _ in range(10):
        await store.prune()


async def a_busy_hour(store: Store) -> None:
    """Changes of many kinds, several of them with many jobs in one entry."""
    await store.insert([new_job(task=("a", "b")[place % 2], target=TARGET) for place in range(7)])
    held = await claim(store, 5)
    await store.ack([outcome(run, Move.DONE) for run in held[:3]])
    await end(store, held[3], Move.RETRY, failure=BOOM)
    await by_hand(store, Action.CANCEL, held[4].id)
    await store.write([Bundle((Write(Key("people", "", "one"), "{}", recorded=True),))])
    await store.change(Action.CANCEL, Filter(tasks=("b",)), BY)
    await put(store)


class NoticeTests(FeedScenario):
    @pytest.fixture
    async def neighbour(self, store: Store) -> Store:
        """The store as another process has it: an object of its own over the same data, if the store can have one."""
        return store

    async def test_readers_are_told_of_each_kind_of_write(
        self, store: Store, neighbour: Store, clock: ManualClock
    ) -> None:
        reader = await from_now(store)
        news = asyncio.Event()
        async with store.watching(news.set):
            await reader.read()
            for write in (inserted, claimed, progressed, completed, failed, woken, by_ana, documented, halted, came):
                news.clear()
                await reader.read()
                await told(reader, news, write, neighbour, clock)

    async def test_all_readers_of_a_process_are_told(self, store: Store, neighbour: Store) -> None:
        """One that has read everything and sleeps is not forgotten while another one reads on."""
        busy, idle = await from_now(store), await from_now(store)
        rings = [asyncio.Event(), asyncio.Event()]
        async with store.watching(rings[0].set), store.watching(rings[1].set):
            await busy.read()
            await idle.read()
            for _ in range(3):
                await put(neighbour)
                await heard(rings[1], idle)
                await store.changes(busy.cursor)
                await put(neighbour)
                await heard(rings[1], idle)
            await heard(rings[0], busy)

    async def test_a_reader_that_left_is_not_told(self, store: Store, neighbour: Store) -> None:
        calls: list[None] = []
        async with store.watching(lambda: calls.append(None)):
            pass
        calls.clear()
        await put(neighbour)
        await store.changes()
        await asyncio.sleep(0)
        assert calls == []


async def heard(news: asyncio.Event, reader: Reader) -> None:
    """Wait as a stream does: read when told, until there is nothing more."""
    async with asyncio.timeout(PATIENCE):
        found: list[Change] = []
        while not found:
            await news.wait()
            news.clear()
            found = await reader.read()


Act = Callable[[Store, ManualClock], Awaitable[object]]


async def told(reader: Reader, news: asyncio.Event, write: Act, neighbour: Store, clock: ManualClock) -> None:
    await write(neighbour, clock)
    try:
        await heard(news, reader)
    except TimeoutError:
        pytest.fail(f"the reader was not told: {write.__name__}")


async def inserted(store: Store, _: ManualClock) -> None:
    await put(store)


async def claimed(store: Store, _: ManualClock) -> None:
    await store.heartbeat("w1", {})  # a worker learns by its heartbeats whether any process reads the feed
    assert await claim(store, 1)


async def held_by_w1(store: Store) -> Claim:
    return await running(store, queue="own")


async def progressed(store: Store, _: ManualClock) -> None:
    held = await held_by_w1(store)
    await store.report([ProgressReport(held.id, held.token, 0.5, "")])


async def completed(store: Store, _: ManualClock) -> None:
    await end(store, await held_by_w1(store), Move.DONE)


async def failed(store: Store, _: ManualClock) -> None:
    await end(store, await held_by_w1(store), Move.DEAD)


async def woken(store: Store, _: ManualClock) -> None:
    held = await held_by_w1(store)
    await end(store, held, Move.SUSPEND, waits_for="bell", delay=UNTIL_WOKEN)
    await store.wake({"bell": 1})
    assert (await look(store, held.id)).waits_for is None
    await by_hand(store, Action.CANCEL, held.id)


async def by_ana(store: Store, _: ManualClock) -> None:
    await by_hand(store, Action.CANCEL, await put(store, queue="own"))


async def documented(store: Store, _: ManualClock) -> None:
    await store.write([Bundle((Write(Key("people", "", "one"), "{}", recorded=True),))])


async def halted(store: Store, clock: ManualClock) -> None:
    await store.halt(a_halt(clock, queue="mail"))


async def came(store: Store, _: ManualClock) -> None:
    await join(store, "w9")
    await store.leave("w9")


class FeedTests(RecordedTests, TagTests, StartsTests, CursorTests, NoticeTests):
    """All that the suite asks of a change feed."""
