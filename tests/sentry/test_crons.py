"""Check-ins of schedules for Sentry's Crons page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import sentry_sdk

from mainspring import Cancel, ConfigurationError, Context, Mainspring, Retry, Snooze
from mainspring.features.schedules.rules import Daily, Monthly, Rule, Schedule, Weekly, Yearly
from mainspring.sentry import Crons, instrument
from mainspring.sentry.crons import LONGEST_SLUG, check_in_id, config_of, slug_of
from mainspring.testing import manual
from mainspring.testing.fakes import FakeSentry

START = datetime(2027, 3, 1, 8, 30, tzinfo=UTC)  # in the middle of an hour, so that an hour's schedule fires once


def statuses(sentry: FakeSentry) -> list[tuple[str, str]]:
    sentry_sdk.flush(10)
    return [(each["monitor_slug"], each["status"]) for each in sentry.check_ins]


async def test_a_run_of_a_schedule_is_a_check_in(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app, crons=Crons(max_runtime=10))
    ids: list[str] = []

    @app.every("0 * * * *", tz="Europe/London", id="hourly", jitter=90)
    async def hourly(ctx: Context) -> None:
        ids.append(ctx.job_id)

    async with manual(app, start=START) as kit:
        await kit.time.advance(hours=1, minutes=2)
    assert statuses(sentry) == [("mainspring-hourly", "in_progress"), ("mainspring-hourly", "ok")]
    assert sentry.runs == {check_in_id(ids[0]): "ok"}
    assert sentry.monitors == {
        "mainspring-hourly": {
            "schedule": {"type": "crontab", "value": "0 * * * *"},
            "timezone": "Europe/London",
            "checkin_margin": 7,
            "max_runtime": 10,
            "failure_issue_threshold": 1,
            "recovery_threshold": 1,
        }
    }


async def test_a_check_in_stays_open_until_the_last_attempt(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app)

    @app.task(retry=Retry.fixed(5, max_attempts=2))
    async def hourly() -> None:
        raise LookupError

    async with manual(app, start=START) as kit:
        await app.schedules.put("hourly", "every 1h", hourly.prepare())
        await app.schedules.trigger("hourly")
        await kit.drain()
        assert [status for _, status in statuses(sentry)] == ["in_progress"]
        await kit.time.advance(seconds=6)
    assert [status for _, status in statuses(sentry)] == ["in_progress", "in_progress", "error"]
    assert list(sentry.runs.values()) == ["error"]


@pytest.mark.parametrize(
    ("end", "expected"), [(Snooze(600), ["in_progress"]), (Cancel("not today"), ["in_progress", "ok"])]
)
async def test_ends_that_are_not_errors(
    app: Mainspring, sentry: FakeSentry, end: Exception, expected: list[str]
) -> None:
    instrument(app)

    @app.task()
    async def work() -> None:
        raise end

    async with manual(app, start=START) as kit:
        await app.schedules.put("s", "every 1h", work.prepare())
        await app.schedules.trigger("s")
        await kit.drain()
    assert [status for _, status in statuses(sentry)] == expected


async def test_a_lease_checks_in_too(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app)

    @app.task(max_attempts=1)
    async def far() -> None: ...

    async with manual(app, start=START):
        await app.schedules.put("far", "every 1h", far.prepare())
        for succeeds in (True, False):
            await app.schedules.trigger("far")
            (lease,) = await app.leases.claim("js-worker")
            await (lease.complete() if succeeds else lease.fail("no"))
    assert [status for _, status in statuses(sentry)] == ["in_progress", "ok", "in_progress", "error"]


async def test_a_schedule_that_is_gone_still_checks_in(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app)

    @app.task()
    async def work() -> None: ...

    async with manual(app, start=START) as kit:
        await app.schedules.put("s", "every 1h", work.prepare())
        await app.schedules.trigger("s")
        await app.schedules.delete("s")
        await kit.drain()
    assert [status for _, status in statuses(sentry)] == ["in_progress", "ok"]
    assert sentry.monitors == {}


async def test_other_jobs_do_not_check_in_and_crons_can_be_left_out(app: Mainspring, sentry: FakeSentry) -> None:
    instrument(app, crons=False)

    @app.task()
    async def work() -> None: ...

    async with manual(app, start=START) as kit:
        await work.enqueue()
        await app.schedules.put("s", "every 1h", work.prepare())
        await app.schedules.trigger("s")
        await kit.drain()
    assert statuses(sentry) == []


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("*/15 9-17 * * MON-FRI", {"type": "crontab", "value": "*/15 9-17 * * MON-FRI"}),
        ("@daily", {"type": "crontab", "value": "0 0 * * *"}),
        ("0 9 L * *", None),
        ("0 9 15W * *", None),
        ("0 9 * * FRI#2", None),
        ("30 0 9 * * *", None),
        ("every 90s", None),
        ("every 90min", {"type": "interval", "value": 90, "unit": "minute"}),
        ("every 48h", {"type": "interval", "value": 2, "unit": "day"}),
    ],
)
def test_a_rule_is_told_in_words_that_sentry_has(rule: str, expected: dict[str, Any] | None) -> None:
    config = config_of(Schedule(rule), Crons())
    assert (None if config is None else config["schedule"]) == expected


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        (Daily(["09:30", "17:30"]), "30 9,17 * * *"),
        (Daily(["09:00", "17:30"]), None),
        (Daily("09:00", every=3, starting="2026-01-01"), None),
        (Weekly(["mon", "fri"], at="08:00"), "0 8 * * MON,FRI"),
        (Monthly([1, 15], at="08:00"), "0 8 1,15 * *"),
        (Monthly(31, at="08:00"), None),
        (Monthly("last", at="08:00"), None),
        (Yearly(12, 24, at="08:00"), "0 8 24 12 *"),
        (Yearly(2, 29, at="08:00"), None),
    ],
)
def test_rules_about_days_become_cron_expressions(rule: Rule, value: str | None) -> None:
    config: Any = config_of(Schedule(rule), Crons())
    assert (None if config is None else config["schedule"]["value"]) == value


def test_a_slug_is_one_that_sentry_accepts() -> None:
    assert slug_of("nightly_sync-2") == "mainspring-nightly_sync-2"
    ids = ["Nightly", "nightly!", "nightly?", "x" * 60, "x" * 61, "é"]
    slugs = [slug_of(each) for each in ids]
    assert len(set(slugs)) == len(ids)
    assert all(len(slug) <= LONGEST_SLUG and slug.replace("-", "").replace("_", "").isalnum() for slug in slugs)
    assert all(slug == slug.lower() and slug.isascii() for slug in slugs)


def test_wrong_settings_are_errors() -> None:
    with pytest.raises(ConfigurationError, match="max_runtime is 0; give a whole number of at least 1"):
        Crons(max_runtime=0)
