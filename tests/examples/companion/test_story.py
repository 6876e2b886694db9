"""The whole story on virtual time, seen from outside: Slack, Sentry, and the table with the application's own items."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
import sentry_sdk

from examples.companion.settings import Settings
from mainspring import Filter, Status, testing
from tests.examples.companion.conftest import ANA, BO, NewWorld, World

pytestmark = pytest.mark.slow  # `make test` runs it; it takes a server or several processes

MORNING = datetime(2026, 7, 1, 6, 0, tzinfo=UTC)


async def test_a_day_of_companion(world: World) -> None:
    companion, slack, sentry = world.companion, world.slack, world.sentry
    companion.memory.add_conversation("ana", datetime(2026, 7, 1, 9, 30, tzinfo=UTC), "The contract is signed")
    companion.memory.add_conversation("ana", datetime(2026, 6, 30, 9, 30, tzinfo=UTC), "Of yesterday")
    before = world.own_items()
    async with testing.manual(companion.app, start=MORNING, store=world.settings.store, schedules=False) as kit:
        await companion.plan_summaries()
        await companion.plan_summaries()  # as it does every 15 minutes
        slack.fail(503, times=2)
        sync = await companion.sync_user("bo")
        await kit.time.advance(minutes=5)
        synced = await sync.get()

        await kit.time.advance_to(datetime(2026, 7, 1, 22, 40, tzinfo=UTC))
        await kit.time.advance_to(datetime(2026, 7, 2, 3, 0, tzinfo=UTC))
        summaries = [job async for job in companion.app.jobs.all(Filter(tasks=("daily_summary",)))]

    assert (synced.status, synced.attempts) == (Status.COMPLETED, 3)
    assert {job.payload["user_id"]: job.status for job in summaries} == {"ana": "completed", "bo": "completed"}
    assert [(message.channel, message.text) for message in slack.messages] == [
        ("C-ana", "Ana, your summary of 2026-07-01:\n• The contract is signed"),
        ("C-bo", "Bo, there were no conversations for your summary of 2026-07-02."),
    ]
    sentry_sdk.flush(10)
    assert [event["tags"]["job_id"] for event in sentry.events] == [sync.id, sync.id]
    after = world.own_items()
    changed = {key for key in after if after[key] != before.get(key)}
    assert changed == {("users", "bo"), ("summaries#ana", "2026-07-01"), ("summaries#bo", "2026-07-02")}
    assert before.keys() <= after.keys()
    assert after["summaries#ana", "2026-07-01"]["summary_sent_at"]["S"].startswith("2026-07-01T17:00:00")


async def test_each_conversation_is_in_one_summary(world: World) -> None:
    companion = world.companion
    due = datetime(2026, 7, 1, 17, 0, tzinfo=UTC)
    for minutes, text in ((-1, "just before"), (0, "at six"), (180, "in the evening"), (360, "at midnight")):
        companion.memory.add_conversation("ana", due + timedelta(minutes=minutes), text)
    async with testing.manual(companion.app, start=MORNING, store=world.settings.store, schedules=False) as kit:
        for day in (1, 2, 3):
            await companion.schedule_summary(ANA, date(2026, 7, day))
        await kit.time.advance(days=3)
    assert [message.text.partition(":")[2].split("\n• ")[1:] for message in world.slack.messages] == [
        ["just before"],
        ["at six", "in the evening", "at midnight"],
        [],
    ]


@pytest.mark.parametrize(
    ("environment", "delays"),
    [
        ({"COMPANION_BASE_DELAY_SECONDS": "2.5", "COMPANION_MAX_ATTEMPTS": "4"}, [2.5, 5, 10]),
        ({"COMPANION_MAX_ATTEMPTS": "2"}, [60]),
    ],
)
async def test_the_environment_sets_how_jobs_are_retried(
    new_world: NewWorld, environment: dict[str, str], delays: list[float]
) -> None:
    given = Settings.from_environment(environment)
    world = new_world(base_delay_seconds=given.base_delay_seconds, max_attempts=given.max_attempts)
    world.slack.down()
    found = []
    async with testing.manual(world.companion.app, start=MORNING, store=world.settings.store, schedules=False) as kit:
        job = await world.companion.sync_user("ana")
        await kit.drain()
        while (now := await job.get()).status is Status.RETRYING:
            found.append((now.run_at - kit.time.now()).total_seconds())
            await kit.time.advance_to(now.run_at)
    assert found == delays
    assert (now.status, now.attempts) == (Status.DEAD_LETTER, len(delays) + 1)


async def test_five_attempts_then_a_dead_letter_that_is_kept_for_ever_and_in_sentry(world: World) -> None:
    companion, slack, sentry = world.companion, world.slack, world.sentry
    slack.down()
    async with testing.manual(companion.app, start=MORNING, store=world.settings.store, schedules=False) as kit:
        job = await companion.schedule_summary(ANA, date(2026, 7, 1))
        due = ANA.summary_time(date(2026, 7, 1))
        await kit.time.advance_to(due)
        delays = []
        while (now := await job.get()).status is Status.RETRYING:
            delays.append((now.run_at - kit.time.now()).total_seconds())
            await kit.time.advance_to(now.run_at)
        dead = await job.get()
        await kit.time.advance(days=3650)
        kept = await job.get()

        slack.recover()
        await companion.app.jobs.retry(job.id)
        await kit.drain()
        assert await job.status() is Status.COMPLETED

    assert delays == [60, 120, 240, 480]
    assert (dead.status, dead.attempts, dead.expires_at) == (Status.DEAD_LETTER, 5, None)
    assert kept.status is Status.DEAD_LETTER
    sentry_sdk.flush(10)
    assert [event["level"] for event in sentry.events] == ["warning"] * 4 + ["error"]
    event = sentry.events[-1]
    error = event["exception"]["values"][-1]
    assert event["tags"] == {
        "job_id": job.id,
        "task": "daily_summary",
        "queue": "default",
        "attempt": "5",
        "outcome": "dead_letter",
    }
    assert event["extra"]["payload"] == {"user_id": "ana", "day": "2026-07-01"}
    assert error["type"].endswith("URLError")
    assert "Connection refused" in error["value"]
    assert "handle" in [frame["function"] for frame in error["stacktrace"]["frames"]]
    assert len(slack.messages) == 1


async def test_a_summary_is_scheduled_once_and_again_only_if_its_job_is_gone(world: World) -> None:
    companion, day = world.companion, date(2026, 7, 1)
    async with testing.manual(companion.app, start=MORNING, store=world.settings.store, schedules=False) as kit:
        first = await companion.schedule_summary(ANA, day)
        assert not (await companion.schedule_summary(ANA, day)).created

        world.delete_item(world.job_item(first.id))
        second = await companion.schedule_summary(ANA, day)
        assert second.created
        assert second.id != first.id
        assert (await companion.schedule_summary(ANA, day)).id == second.id

        await kit.time.advance_to(companion.memory.user("ana").summary_time(day))
        assert not (await companion.schedule_summary(ANA, day)).created  # also after it was sent
        await companion.app.jobs.delete(second.id)  # Mainspring's own deletion frees the key
        third = await companion.schedule_summary(ANA, day)
        assert third.created
        await kit.drain()
        assert await third.status() is Status.COMPLETED
    assert len(world.slack.messages) == 1  # of the third job too: summary_sent_at was there


async def test_a_summary_waits_as_long_as_a_busy_slack_asks_and_uses_no_attempt(world: World) -> None:
    companion, slack = world.companion, world.slack
    slack.fail(429, times=7, headers={"Retry-After": "30"}, body={"ok": False, "error": "ratelimited"})
    async with testing.manual(companion.app, start=MORNING, store=world.settings.store, schedules=False) as kit:
        job = await companion.schedule_summary(ANA, date(2026, 7, 1))
        await kit.time.advance_to(ANA.summary_time(date(2026, 7, 1)))
        waiting = await job.get()
        assert (waiting.run_at - kit.time.now()).total_seconds() == 30
        await kit.time.advance(seconds=7 * 30)
        sent = await job.get()
    assert (sent.status, sent.attempts) == (Status.COMPLETED, 1)
    assert len(slack.messages) == 1
    sentry_sdk.flush(10)
    assert world.sentry.events == []


async def test_a_user_with_an_unknown_time_zone_does_not_stop_the_summaries_of_others(world: World) -> None:
    companion = world.companion
    world.slack.add_user("U1", "Ana", "Mars/Phobos")
    async with testing.manual(companion.app, start=MORNING, store=world.settings.store, schedules=False) as kit:
        await companion.sync_user("ana")
        await kit.drain(raise_errors=True)
        await companion.plan_summaries()
        testing.assert_enqueued(companion.app, companion.tasks["daily_summary"], count=2)


async def test_a_cancelled_summary_is_not_sent(world: World) -> None:
    companion = world.companion
    async with testing.manual(companion.app, start=MORNING, store=world.settings.store, schedules=False) as kit:
        job = await companion.schedule_summary(BO, date(2026, 7, 2))
        assert await job.cancel(reason="on holiday")
        await kit.time.advance(days=2)
        assert await job.status() is Status.CANCELLED
        assert world.job_item(job.id)["status"] == {"S": "cancelled"}
    assert world.slack.messages == []


async def test_the_plan_runs_every_fifteen_minutes(world: World) -> None:
    companion = world.companion
    async with testing.manual(companion.app, start=MORNING) as kit:
        ran = await kit.time.advance(hours=1)
        assert [run.task for run in ran] == ["plan_summaries"] * 4
        testing.assert_enqueued(companion.app, companion.tasks["daily_summary"], count=2)
