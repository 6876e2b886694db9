"""Firing, missed occurrences and overlap of schedules, on virtual time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from mainspring import Context, Mainspring, Retry, Snooze, testing
from mainspring.events import ScheduleFired, ScheduleSkipped
from mainspring.features.schedules.firing import Became, Entry
from mainspring.features.schedules.rules import Interval, Misfire
from mainspring.features.schedules.timer import PAST_HALTS, past_halts
from mainspring.job import Status
from mainspring.stores.documents import Listing
from mainspring.testing.kit import Kit
from tests.features.conftest import START
from tests.features.schedules.conftest import Note, Noted, at, ledger

pytestmark = pytest.mark.slow


# -- firing -----------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_daily_schedule_fires_every_morning_of_a_year(app: Mainspring) -> None:
    runs: Noted = []

    @app.every("0 9 * * *", tz="Europe/Berlin")
    async def greet() -> None:
        runs.append(app.now())

    async with testing.manual(app, start=START) as kit:
        await kit.time.advance(days=365)
        assert len(await app.schedules.ledger("greet", limit=1000)) == 90  # days that it is kept
        targets = {job.target for job in kit.jobs(greet)}
    assert len(runs) == 365
    assert runs[0] == at(2026, 3, 2, 8)
    assert runs[27:30] == [at(2026, 3, 29, 7), at(2026, 3, 30, 7), at(2026, 3, 31, 7)]
    assert {run.hour for run in runs} == {7, 8}
    assert targets == {("schedule", "greet")}


async def test_a_schedule_that_is_put_fires(app: Mainspring, kit: Kit, runs: Noted, note: Note) -> None:
    stored = await app.schedules.put("a", "every 1h", note.prepare())
    assert (stored.id, stored.task, stored.next and stored.next.utc) == ("a", "note", at(2026, 3, 1, 13))
    await kit.time.advance(hours=3)
    assert runs == [at(2026, 3, 1, 13), at(2026, 3, 1, 14), at(2026, 3, 1, 15)]
    stored = await app.schedules.get("a")
    assert stored.fires == 3
    assert stored.decided
    assert stored.decided.utc == at(2026, 3, 1, 15)
    assert stored.last_job == kit.jobs(note)[-1].id
    assert [schedule.id for schedule in await app.schedules.list()] == ["a"]


@pytest.mark.parametrize(
    "rule",
    [
        Interval("10m", anchor=datetime(2026, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC)),
        Interval(10 / 3),
        Interval(timedelta(seconds=1, microseconds=1), anchor=datetime(2026, 1, 1, 0, 0, 0, 999, tzinfo=UTC)),
    ],
    ids=["anchor", "third", "both"],
)
async def test_parts_of_a_millisecond_are_waited_for(app: Mainspring, kit: Kit, rule: Interval) -> None:
    """A store keeps whole milliseconds: the first that is not before the occurrence."""
    seen: list[tuple[datetime, datetime]] = []

    @app.task()
    async def note(ctx: Context) -> None:
        assert ctx.occurrence is not None
        seen.append((ctx.occurrence.utc, app.now()))

    await app.schedules.put("a", rule, note.prepare())
    await kit.time.advance(rule.interval * 5)
    assert len(seen) in {4, 5, 6}
    assert all(timedelta() <= at - due < timedelta(milliseconds=1) for due, at in seen)
    assert {after - before for (before, _), (after, _) in pairwise(seen)} == {rule.interval}


async def test_each_occurrence_is_in_the_ledger(app: Mainspring, kit: Kit, note: Note) -> None:
    await app.schedules.put("a", "30 2 * * *", note.prepare(), tz="Europe/Berlin")
    await kit.time.advance_to(at(2026, 3, 30))
    newest, *_ = await app.schedules.ledger("a")
    job = kit.jobs(note)[-1]
    assert newest == Entry(
        became=Became.FIRED,
        at=at(2026, 3, 29, 1, 30),
        nominal="2026-03-29T02:30:00",
        utc=at(2026, 3, 29, 1, 30),
        key="2026-03-29T02:30:00",
        job_id=job.id,
    )
    assert len(await app.schedules.ledger("a")) == 28
    page = await app.schedules.ledger("a", limit=2, before=newest.utc)
    assert [entry.utc for entry in page] == [at(2026, 3, 28, 1, 30), at(2026, 3, 27, 1, 30)]


async def test_a_job_knows_its_occurrence(app: Mainspring, kit: Kit) -> None:
    known = []

    @app.task()
    async def look(ctx: Context) -> None:
        known.append(ctx.occurrence)

    await app.schedules.put("a", "0 9 * * *", look.prepare(), tz="Asia/Tokyo")
    await kit.time.advance(days=1)
    await look.enqueue()
    await kit.drain(raise_errors=True)
    assert known[0] is not None
    assert (known[0].schedule, known[0].nominal, known[0].utc) == ("a", datetime(2026, 3, 2, 9), at(2026, 3, 2))  # noqa: DTZ001
    assert known[1] is None


async def test_jitter_puts_the_start_off_and_not_the_occurrence(
    app: Mainspring, kit: Kit, runs: Noted, note: Note
) -> None:
    await app.schedules.put("a", "0 9 * * *", note.prepare(), jitter="10m")
    await kit.time.advance(days=5)
    delays = {(run - run.replace(hour=9, minute=0, second=0, microsecond=0)).total_seconds() for run in runs}
    assert len(delays) == 5
    assert all(0 <= delay <= 600 for delay in delays)


async def test_fires_and_skips_emit_events(app: Mainspring, kit: Kit, note: Note) -> None:
    told: list[Any] = []
    app.on(ScheduleFired, ScheduleSkipped)(told.append)
    await app.schedules.put("a", "every 1h", note.prepare())
    kit.clock.advance(timedelta(hours=3))
    await kit.drain()
    await app.runtime.bus.flush()
    assert [type(event) for event in told] == [ScheduleSkipped, ScheduleFired]
    assert (told[0].schedule, getattr(told[0], "reason", None), getattr(told[0], "count", None)) == (
        "a",
        "coalesced",
        2,
    )


# -- what was missed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("misfire", "entries"),
    [
        (Misfire.latest(), [("coalesced", "coalesced", 4), ("fired", "", 1)]),
        (Misfire.all(), [("fired", "", 1)] * 5),
        (Misfire.all(max_fires=2), [("skipped", "too_many", 3), ("fired", "", 1), ("fired", "", 1)]),
        (Misfire.skip(), [("skipped", "missed", 5)]),
        (Misfire.latest(grace="30m"), [("skipped", "too_late", 5)]),
    ],
)
async def test_after_downtime_each_occurrence_is_caught_up_or_explained(
    app: Mainspring, kit: Kit, note: Note, misfire: Misfire, entries: list[tuple[str, str, int]]
) -> None:
    await app.schedules.put("a", "30 * * * *", note.prepare(), misfire=misfire)
    kit.clock.advance(timedelta(hours=5, minutes=15))  # no worker ran
    await kit.drain()
    ran = sum(became == "fired" for became, _, _ in entries)
    assert len(kit.jobs(note, status=Status.COMPLETED)) == ran
    assert await ledger(app) == entries
    assert all(entry.late for entry in await app.schedules.ledger("a") if entry.became is Became.FIRED)
    await kit.time.advance(minutes=15)
    assert len(kit.jobs(note, status=Status.COMPLETED)) == ran + 1


async def test_a_halt_that_refuses_jobs_is_downtime(app: Mainspring, kit: Kit, runs: Noted, note: Note) -> None:
    await app.schedules.put("a", "*/10 * * * *", note.prepare())
    await app.halt("stop", reject_new=True)
    await kit.time.advance(minutes=22)
    assert await ledger(app) == []
    await app.resume()
    await kit.drain()
    assert await ledger(app) == [("coalesced", "coalesced", 1), ("fired", "", 1)]
    assert len(runs) == 1


@pytest.mark.slow
async def test_the_ledger_tells_of_the_halt_that_was_in_the_way(app: Mainspring, kit: Kit, note: Note) -> None:
    await app.schedules.put("a", "*/10 * * * *", note.prepare())
    await app.schedules.put("skips", "*/10 * * * *", note.prepare(), misfire="skip")
    await app.halt("moving house", reject_new=True, actor="ana")
    await kit.time.advance(minutes=32)
    await app.resume()
    await kit.drain()
    told = "the system was halted by ana since 2026-03-01 12:00:00 UTC (moving house)"
    newest, older = await app.schedules.ledger("a")
    assert (newest.became, newest.late, newest.halted, newest.why) == (Became.FIRED, True, True, told)
    assert (older.became, older.count, older.halted) == (Became.COALESCED, 2, True)
    assert older.why == f"a newer one is fired in its place; {told}"
    (skipped,) = await app.schedules.ledger("skips")
    assert (skipped.reason, skipped.halted, skipped.why) == ("missed", True, f"missed ones are not caught up; {told}")
    await kit.time.advance(minutes=10)
    assert not (await app.schedules.ledger("a", limit=1))[0].halted


async def test_occurrences_missed_after_a_halt_are_not_attributed_to_it(app: Mainspring, kit: Kit, note: Note) -> None:
    await app.schedules.put("a", "*/10 * * * *", note.prepare(), misfire=Misfire.all())
    await app.halt("moving", reject_new=True, actor="ana")
    await kit.time.advance(minutes=12)
    await app.resume()
    kit.clock.advance(timedelta(minutes=20))  # no worker runs
    await kit.drain()
    assert [(entry.late, entry.halted) for entry in reversed(await app.schedules.ledger("a"))] == [
        (True, True),
        (True, False),
        (True, False),
    ]


@pytest.mark.slow
async def test_a_halt_is_noted_now_and_then_and_not_at_each_try(app: Mainspring, kit: Kit, note: Note) -> None:
    await app.schedules.put("a", "30 * * * *", note.prepare())
    await app.halt("moving", reject_new=True, actor="ana")
    await kit.time.advance(minutes=30)
    versions = set()
    for _ in range(60):
        await kit.time.advance(seconds=5)
        versions |= {document.version for document in await app.store.browse(Listing(PAST_HALTS))}
    assert len(versions) == 6  # refused sixty times in five minutes
    (halt,) = await past_halts(app.store)
    assert (halt.actor, halt.since, halt.seen) == ("ana", START, at(2026, 3, 1, 12, 35))


@pytest.mark.parametrize("queue", [None, "default"])
async def test_the_ledger_marks_fires_whose_jobs_wait(queue: str | None, app: Mainspring, kit: Kit, note: Note) -> None:
    await app.schedules.put("a", "30 * * * *", note.prepare())
    if queue is None:
        await app.halt("moving", actor="ana")
    else:
        await app.pause(queue, "moving", actor="ana")
    await kit.time.advance(hours=1)
    (entry,) = await app.schedules.ledger("a")
    assert (entry.became, entry.late, entry.halted) == (Became.FIRED, False, True)
    what = "the system is halted" if queue is None else "queue default is paused"
    assert entry.why == f"its job waits: {what} by ana since 2026-03-01 12:00:00 UTC (moving)"
    await app.resume(queue)
    await kit.drain()
    assert [job.status for job in kit.jobs(note)] == [Status.COMPLETED]


async def test_the_pause_of_another_queue_delays_nothing(app: Mainspring, kit: Kit, note: Note) -> None:
    await app.schedules.put("a", "30 * * * *", note.prepare())
    await app.pause("another", actor="ana")
    await kit.time.advance(hours=1)
    assert [(entry.halted, entry.why) for entry in await app.schedules.ledger("a")] == [(False, "")]


# -- overlap --------------------------------------------------------------------------------------------------


async def test_occurrences_missed_during_a_run_are_skipped_for_overlap(app: Mainspring, kit: Kit) -> None:
    """Nothing was fired in its place."""

    @app.task()
    async def slow() -> None:
        raise Snooze(timedelta(days=1))

    await app.schedules.put("a", "every 1h", slow.prepare(), overlap="skip")
    await kit.time.advance(hours=1)
    kit.clock.advance(timedelta(hours=3))
    await kit.drain()
    assert await ledger(app) == [("fired", "", 1), ("skipped", "overlap", 2), ("skipped", "overlap", 1)]


async def test_a_run_that_goes_on_is_not_overlapped(app: Mainspring, kit: Kit) -> None:
    @app.task(queue="slow")
    async def slow() -> None: ...

    await app.schedules.put("a", "every 1h", slow.prepare(), overlap="skip")
    await app.pause("slow")
    await kit.time.advance(hours=3)
    assert await ledger(app) == [("fired", "", 1), ("skipped", "overlap", 1), ("skipped", "overlap", 1)]
    assert len(kit.jobs(slow)) == 1
    await app.resume("slow")
    await kit.time.advance(hours=1)
    assert len(kit.jobs(slow)) == 2


async def test_a_run_that_goes_on_can_be_cancelled_for_the_next(app: Mainspring, kit: Kit) -> None:
    @app.task(queue="slow")
    async def slow() -> None: ...

    await app.schedules.put("a", "every 1h", slow.prepare(), overlap="cancel_old")
    await app.pause("slow")
    await kit.time.advance(hours=3)
    assert [job.status for job in kit.jobs(slow)] == [Status.CANCELLED, Status.CANCELLED, Status.PENDING]


async def test_all_runs_of_a_catch_up_are_cancelled_for_the_next(app: Mainspring, kit: Kit) -> None:
    @app.task(queue="slow")
    async def slow() -> None: ...

    await app.schedules.put("a", "every 1h", slow.prepare(), misfire=Misfire.all(), overlap="cancel_old")
    await app.pause("slow")
    kit.clock.advance(timedelta(hours=3, minutes=30))  # no worker ran
    await kit.drain()
    assert [job.status for job in kit.jobs(slow)] == [Status.PENDING] * 3
    assert (await app.schedules.get("a")).last_jobs == tuple(job.id for job in kit.jobs(slow))
    await kit.time.advance(hours=1)
    assert [job.status for job in kit.jobs(slow)] == [*[Status.CANCELLED] * 3, Status.PENDING]


async def test_any_run_of_a_catch_up_counts_as_overlap(app: Mainspring, kit: Kit, note: Note) -> None:
    """Also if the policy was `allow` when they were fired."""
    await app.schedules.put("a", "every 1h", note.prepare(), misfire=Misfire.all())
    await app.pause("default")
    kit.clock.advance(timedelta(hours=2, minutes=30))
    await kit.drain()
    await app.schedules.put("a", "every 1h", note.prepare(), misfire=Misfire.all(), overlap="skip")
    await app.jobs.cancel(kit.jobs(note)[-1].id)
    await kit.time.advance(hours=1)
    assert await ledger(app) == [("fired", "", 1), ("fired", "", 1), ("skipped", "overlap", 1)]


async def test_a_failed_run_that_waits_for_its_retry_counts_as_overlap(app: Mainspring, kit: Kit) -> None:
    @app.task(retry=Retry.fixed(timedelta(hours=5)))
    async def fails() -> None:
        raise ValueError

    await app.schedules.put("a", "every 1h", fails.prepare(), overlap="skip")
    await kit.time.advance(hours=2)
    assert await ledger(app) == [("fired", "", 1), ("skipped", "overlap", 1)]


async def test_the_oldest_missed_occurrence_fires_if_runs_may_not_overlap(
    app: Mainspring, kit: Kit, note: Note
) -> None:
    await app.schedules.put("a", "every 1h", note.prepare(), misfire=Misfire.all(), overlap="skip")
    kit.clock.advance(timedelta(hours=3, minutes=30))
    await kit.drain()
    fired, *others = reversed(await app.schedules.ledger("a"))
    assert (fired.became, fired.utc) == (Became.FIRED, at(2026, 3, 1, 13))
    assert [entry.reason for entry in others] == ["overlap", "overlap"]


@pytest.mark.parametrize(
    ("before", "after", "moved_at"),
    [
        (("daily 09:00", "Europe/Berlin"), ("daily 09:00", "America/New_York"), at(2026, 3, 2, 10)),  # fired in Berlin
        (("daily 09:00", "America/New_York"), ("daily 09:00", "Europe/Berlin"), at(2026, 3, 2, 10)),  # due at once
        (("daily 09:00", "Europe/Berlin"), ("daily 10:00", "Europe/Berlin"), at(2026, 3, 2, 8, 30)),  # a new rule
        (("every 5h", "UTC"), ("every 5h", "Asia/Tokyo"), at(2026, 3, 2, 8, 30)),
    ],
)
async def test_occurrences_announced_before_a_change_fire_after_it(
    *, app: Mainspring, kit: Kit, note: Note, before: tuple[str, str], after: tuple[str, str], moved_at: datetime
) -> None:
    horizon = moved_at + timedelta(days=2)
    await app.schedules.put("a", before[0], note.prepare(), tz=before[1])
    await kit.time.advance_to(moved_at)
    changes = await app.schedules.compare("a", after[0], tz=after[1], ahead=timedelta(days=2))
    announced = {row.utc for row in await app.schedules.preview("a", 20) if row.utc < horizon}
    announced -= {change.before.utc for change in changes if change.before}
    announced |= {change.after.utc for change in changes if change.after}
    fired = {entry.utc for entry in await app.schedules.ledger("a")}
    await app.schedules.put("a", after[0], note.prepare(), tz=after[1])
    assert {row.utc for row in await app.schedules.preview("a", 20) if row.utc < horizon} == announced
    await kit.time.advance_to(horizon - timedelta(milliseconds=1))
    then = [entry for entry in await app.schedules.ledger("a") if entry.utc not in fired]
    assert {entry.utc for entry in then if entry.became is Became.FIRED} == announced


async def test_an_interval_counts_from_the_last_finish(app: Mainspring, kit: Kit, runs: Noted) -> None:
    @app.task()
    async def work() -> None:
        runs.append(app.now())
        kit.clock.advance(timedelta(minutes=7))

    await app.schedules.put("a", "every 10m after finish", work.prepare())
    await kit.time.advance(hours=1)
    pauses = [later - earlier for earlier, later in pairwise(runs)]
    assert runs[0] == at(2026, 3, 1, 12, 10)
    assert set(pauses) == {timedelta(minutes=17)}
