"""Changing schedules and looking ahead, on virtual time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import Context, Mainspring, testing
from mainspring.context import Scheduled
from mainspring.errors import ConfigurationError, EditConflict, InvalidSchedule, ScheduleNotFound
from mainspring.features.schedules.firing import Became
from mainspring.features.schedules.rules import Misfire, Schedule
from mainspring.testing.kit import Kit
from tests.features.conftest import START
from tests.features.schedules.conftest import Note, Noted, at, ledger

pytestmark = pytest.mark.slow


# -- changing -----------------------------------------------------------------------------------------------


async def test_a_pause_is_not_caught_up(app: Mainspring, kit: Kit, runs: Noted, note: Note) -> None:
    await app.schedules.put("a", "every 1h", note.prepare())
    await app.schedules.pause("a")
    await kit.time.advance(hours=5, minutes=30)
    assert runs == []
    await app.schedules.resume("a")
    await kit.time.advance(hours=1)
    assert runs == [at(2026, 3, 1, 18)]
    assert await ledger(app) == [("skipped", "paused", 5), ("fired", "", 1)]


async def test_the_end_of_a_pause_writes_skipped_occurrences_to_the_ledger(
    app: Mainspring, kit: Kit, note: Note
) -> None:
    """Not only when it fires again, which may be a year later."""
    await app.schedules.put("a", "daily 13:00", note.prepare())
    await app.schedules.pause("a")
    await kit.time.advance(hours=2)
    await app.schedules.resume("a")
    await kit.drain()
    assert await ledger(app) == [("skipped", "paused", 1)]


async def test_a_second_pause_does_not_bring_back_what_fell_into_the_first(
    app: Mainspring, kit: Kit, runs: Noted, note: Note
) -> None:
    """Even if no worker ran in between to write to the ledger."""
    await app.schedules.put("a", "daily 13:00", note.prepare(), misfire=Misfire.all())
    await app.schedules.pause("a")
    kit.clock.advance(timedelta(hours=2))
    await app.schedules.resume("a")
    kit.clock.advance(timedelta(hours=1))
    await app.schedules.pause("a", until=at(2026, 3, 2, 14))
    stored = await app.schedules.get("a")
    assert stored.next
    assert stored.next.utc == at(2026, 3, 3, 13)
    await kit.time.advance(days=2)
    assert runs == [at(2026, 3, 3, 13)]
    assert sum(count for _, reason, count in await ledger(app) if reason == "paused") == 2
    assert (await app.schedules.get("a")).schedule.earlier == ()


async def test_pausing_a_paused_schedule_changes_only_the_end(
    app: Mainspring, kit: Kit, runs: Noted, note: Note
) -> None:
    await app.schedules.put("a", "every 1h", note.prepare(), misfire=Misfire.all())
    await app.schedules.pause("a")
    kit.clock.advance(timedelta(hours=2))
    await app.schedules.pause("a", until=at(2026, 3, 1, 15, 30))
    await kit.time.advance(hours=3)
    assert runs == [at(2026, 3, 1, 16), at(2026, 3, 1, 17)]


async def test_a_pause_may_end_by_itself(app: Mainspring, kit: Kit, runs: Noted, note: Note) -> None:
    await app.schedules.put("a", "every 1h", note.prepare())
    await app.schedules.pause("a", until=at(2026, 3, 1, 14, 30))
    await kit.time.advance(hours=4)
    assert runs == [at(2026, 3, 1, 15), at(2026, 3, 1, 16)]


async def test_a_trigger_is_beside_its_times(app: Mainspring, kit: Kit, runs: Noted, note: Note) -> None:
    await app.schedules.put("a", "every 1h", note.prepare())
    inserted = await app.schedules.trigger("a", actor="ana")
    await kit.drain()
    assert runs == [START]
    (entry,) = await app.schedules.ledger("a")
    assert (entry.became, entry.job_id, entry.why) == (Became.TRIGGERED, inserted.id, "by ana")
    await kit.time.advance(hours=1)
    assert len(runs) == 2


async def test_a_triggered_run_knows_its_moment_in_the_zone_of_its_schedule(app: Mainspring, kit: Kit) -> None:
    given: list[Scheduled | None] = []

    @app.task()
    async def note(ctx: Context) -> None:
        given.append(ctx.occurrence)

    await app.schedules.put("a", "daily 09:00", note.prepare(), tz="Asia/Kolkata")
    await app.schedules.trigger("a")
    await kit.drain()
    assert given == [Scheduled("a", datetime(2026, 3, 1, 17, 30), START)]  # noqa: DTZ001 - a wall time
    (entry,) = await app.schedules.ledger("a")
    assert (entry.nominal, entry.utc, entry.at) == ("2026-03-01T17:30:00", START, START)


async def test_two_triggers_at_one_moment_are_two_entries(app: Mainspring, note: Note) -> None:
    await app.schedules.put("a", "daily 09:00", note.prepare())
    jobs = {(await app.schedules.trigger("a")).id for _ in range(2)}
    assert {entry.job_id for entry in await app.schedules.ledger("a")} == jobs


async def test_a_new_rule_begins_anew(app: Mainspring, kit: Kit, runs: Noted, note: Note) -> None:
    await app.schedules.put("a", "daily 11:00", note.prepare())
    await kit.time.advance(days=1)
    await app.schedules.put("a", "daily 11:30", note.prepare())  # at noon: not for today
    await kit.drain()
    assert runs == [at(2026, 3, 2, 11)]
    await kit.time.advance(days=1)
    assert runs[1:] == [at(2026, 3, 3, 11, 30)]


@pytest.mark.parametrize(("change", "reason"), [("put", "changed"), ("delete", "removed")])
async def test_occurrences_due_before_a_change_are_in_the_ledger_as_skipped(
    change: str, reason: str, app: Mainspring, kit: Kit, note: Note
) -> None:
    await app.schedules.put("a", "every 1h", note.prepare())
    kit.clock.advance(timedelta(hours=3))  # no worker runs
    if change == "put":
        await app.schedules.put("a", "daily 11:00", note.prepare())
    else:
        await app.schedules.delete("a")
    await kit.drain()
    assert kit.jobs(note) == []
    assert await ledger(app) == [("skipped", reason, 2), ("skipped", reason, 1)]


async def test_a_move_on_the_day_itself_fires_exactly_once(app: Mainspring, kit: Kit, runs: Noted, note: Note) -> None:
    await app.schedules.put("a", "daily 09:00", note.prepare(), tz="Pacific/Auckland")
    await kit.time.advance_to(at(2026, 3, 2, 21))  # 10:00 on the 3rd there; in Los Angeles it is 13:00 on the 2nd
    assert runs == [at(2026, 3, 1, 20), at(2026, 3, 2, 20)]
    await app.schedules.put("a", "daily 09:00", note.prepare(), tz="America/Los_Angeles")
    await kit.time.advance(days=2)
    assert runs[2:] == [at(2026, 3, 4, 17)]  # the 3rd was greeted in Auckland; now the 4th
    await app.schedules.put("a", "daily 09:00", note.prepare(), tz="Pacific/Auckland")
    await kit.time.advance(days=1)
    assert runs[3:] == [at(2026, 3, 4, 21), at(2026, 3, 5, 20)]  # where it was the 5th already, at once


async def test_a_deleted_schedule_does_not_fire(app: Mainspring, kit: Kit, runs: Noted, note: Note) -> None:
    await app.schedules.put("a", "every 1h", note.prepare())
    await app.schedules.delete("a")
    await kit.time.advance(hours=2)
    assert runs == []
    with pytest.raises(ScheduleNotFound, match="'a'"):
        await app.schedules.get("a")
    with pytest.raises(ScheduleNotFound):
        await app.schedules.trigger("a")


async def test_bad_input_is_refused(app: Mainspring, kit: Kit, note: Note) -> None:
    with pytest.raises(InvalidSchedule, match="not a schedule"):
        await app.schedules.put("a", "sometimes", note.prepare())
    with pytest.raises(InvalidSchedule, match="Europe/Berlin"):
        await app.schedules.put("a", "@daily", note.prepare(), tz="Europe/Berln")
    with pytest.raises(ConfigurationError, match="id"):
        await app.schedules.put("", "@daily", note.prepare())
    with pytest.raises(ConfigurationError, match="tz"):
        await app.schedules.put("a", Schedule("@daily"), note.prepare(), tz="Asia/Tokyo")


# -- looking ahead --------------------------------------------------------------------------------------------


async def test_a_schedule_can_be_previewed(app: Mainspring, kit: Kit, note: Note) -> None:
    await app.schedules.put("a", "30 2 * * *", note.prepare(), tz="Europe/Berlin")
    rows = await app.schedules.preview("a", 40, reader="Asia/Tokyo")
    assert rows[0].utc == at(2026, 3, 2, 1, 30)
    assert rows[0].reader.isoformat() == "2026-03-02T10:30:00+09:00"
    assert [row.local.day for row in rows if row.notes] == [29]
    changes = await app.schedules.compare("a", "30 3 * * *", tz="Europe/Berlin", ahead=timedelta(days=2))
    assert {change.kind for change in changes} == {"added", "removed"}


async def test_a_task_is_run_at_whatever_says_when() -> None:
    app = Mainspring("memory://")

    @app.every("15m")
    async def by_text() -> None: ...

    @app.every(timedelta(minutes=20))
    async def by_timedelta() -> None: ...

    @app.every("at 09:00 every day, Europe/London time")
    async def by_words() -> None: ...

    async with testing.manual(app, start=datetime(2026, 6, 1, tzinfo=UTC)) as kit:
        ran = [run.task for run in await kit.time.advance(hours=1)]
        assert (ran.count("by_text"), ran.count("by_timedelta")) == (4, 3)
        assert [run.job.run_at.hour for run in await kit.time.advance(days=1) if run.task == "by_words"] == [8]


def test_a_policy_that_does_not_exist_is_refused_by_name() -> None:
    app = Mainspring("memory://")
    wrong: dict[str, Any] = {"overlp": "skip"}
    with pytest.raises(ConfigurationError, match="no policy named overlp; it has gap, fold, misfire"):
        app.every("15m", **wrong)
    job_option: dict[str, Any] = {"queue": "mail"}
    with pytest.raises(ConfigurationError, match="options of its job go into"):
        app.every("15m", **job_option)


# -- edits of several people --------------------------------------------------------------------------------


async def test_a_schedule_that_has_changed_since_it_was_read_is_not_overwritten(
    app: Mainspring, kit: Kit, note: Note
) -> None:
    read = await app.schedules.put("a", "every 1h", note.prepare(), expect="")
    changed = await app.schedules.put("a", "every 2h", note.prepare(), expect=read.revision)
    with pytest.raises(EditConflict, match="was changed since it was read"):
        await app.schedules.put("a", "every 3h", note.prepare(), expect=read.revision)
    with pytest.raises(EditConflict, match="already a schedule"):
        await app.schedules.put("a", "every 3h", note.prepare(), expect="")
    with pytest.raises(EditConflict):
        await app.schedules.delete("a", expect=read.revision)
    assert (await app.schedules.get("a")).revision == changed.revision
    await app.schedules.delete("a", expect=changed.revision)
    with pytest.raises(EditConflict, match="was deleted since it was read"):
        await app.schedules.put("a", "every 3h", note.prepare(), expect=changed.revision)


async def test_the_revision_of_a_schedule_stays_when_it_fires(app: Mainspring, kit: Kit, note: Note) -> None:
    before = await app.schedules.put("a", "every 1h", note.prepare())
    await kit.time.advance(hours=3)
    after = await app.schedules.get("a")
    assert after.fires == 3
    assert after.revision == before.revision
    assert (await app.schedules.pause("a")).revision != before.revision
