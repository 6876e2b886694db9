"""Any rule in plain words."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules import (
    BusinessCalendar,
    Cron,
    Daily,
    Interval,
    Misfire,
    Monthly,
    Once,
    RRule,
    Rule,
    Schedule,
    Weekly,
    Yearly,
    describe,
    in_words,
)
from tests.features.schedules.rules.patience import PATIENT

GB = BusinessCalendar("GB", "ENG")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("2/5 * * * *", "every 5 minutes, starting 2 minutes past"),
        ("*/7 * * * *", "at 0, 7, 14, 21, 28, 35, 42, 49 and 56 minutes past every hour"),
        ("0-29 * * * *", "every minute from 0 to 29 past every hour"),
        ("1 * * * *", "at 1 minute past every hour"),
        ("15,45 * * * *", "at 15 and 45 minutes past every hour"),
        ("0 * * * *", "every hour"),
        ("0 */2 * * *", "every 2 hours"),
        ("0 1-23/2 * * *", "every 2 hours from 01:00"),
        ("0 9-17 * * 1-5", "every hour from 09:00 to 17:00 Monday to Friday"),
        ("*/15 9-17 * * 1-5", "every 15 minutes from 09:00 to 17:45 Monday to Friday"),
        ("*/5 22-23,0-4 * * *", "every 5 minutes from 00:00 to 04:55 and from 22:00 to 23:55"),
        ("5,10 1,3,5,7,9 * * *", "at 5 and 10 minutes past 01:00, 03:00, 05:00, 07:00 and 09:00 every day"),
        ("* 9 * * *", "every minute from 09:00 to 09:59"),
        ("* * * * * *", "every second"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("5 * * * * *", "at 5 seconds past every minute"),
        ("30 0 9 * * *", "at 09:00:30 every day"),
        ("30 2 * * *", "at 02:30 every day"),
        ("0 9,17 * * *", "at 09:00 and 17:00 every day"),
        ("0 12 * 6,7 *", "at 12:00 every day in June and July"),
        ("* * * 6 *", "every minute in June"),
        ("0 9 * * MON", "at 09:00 every Monday"),
        ("0 9 * * SAT,SUN", "at 09:00 every Saturday and Sunday"),
        ("0 9 * 1-3 MON", "at 09:00 every Monday in January to March"),
        ("0 9 * * FRI#2,MONL", "at 09:00 on the last Monday and the second Friday of every month"),
        ("0 9 1 * *", "at 09:00 on the 1st of every month"),
        ("0 9 1,15 * *", "at 09:00 on the 1st and 15th of every month"),
        ("0 9 1-7 * *", "at 09:00 on the 1st to the 7th of every month"),
        ("0 9 L * *", "at 09:00 on the last day of every month"),
        ("0 9 L-3 * *", "at 09:00 on the day 3 days before the last of every month"),
        ("0 9 LW * *", "at 09:00 on the last weekday of every month"),
        ("0 9 15W */3 *", "at 09:00 on the weekday nearest to the 15th of every 3rd month from January"),
        ("0 9 24 12 *", "at 09:00 on 24 December"),
        ("0 9 1 1,7 *", "at 09:00 on the 1st of January and July"),
        ("0 9 13 * FRI", "at 09:00 on the 13th of every month and every Friday"),
        ("0 9 */2 * MON", "at 09:00 on every 2nd day from the 1st of every month, if that is a Monday"),
        ("@yearly", "at 00:00 on 1 January"),
    ],
)
def test_cron_expressions_are_described_in_words(expression: str, words: str) -> None:
    assert in_words(Cron(expression)) == words


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Interval("1m"), "every minute"),
        (Interval("90s"), "every 1 minute and 30 seconds"),
        (Interval("14d"), "every 2 weeks"),
        (Interval("10d"), "every 10 days"),
        (Interval("0.5s"), "every 0.5 seconds"),
        (Interval("1h", after="finish"), "1 hour after the last run has ended"),
        (Interval("5m", anchor=NOON), "every 5 minutes, counted from 2026-01-01 12:00:00 UTC"),
        (Daily("09:00"), "at 09:00 every day"),
        (Daily(["09:00", "17:30"], every=3, starting="2026-01-01"), "at 09:00 and 17:30 every 3 days from 1 January 2026"),
        (Daily("09:00", business=GB), "at 09:00 every business day in GB (ENG)"),
        (Weekly("mon-fri", "09:00"), "at 09:00 Monday to Friday"),
        (Weekly("tue,thu", "09:00"), "at 09:00 every Tuesday and Thursday"),
        (Weekly("fri", "16:00", every=2, starting="2026-01-02"), "at 16:00 on Friday every 2 weeks from 2 January 2026"),
        (Monthly("last", "09:00"), "at 09:00 on the last day of every month"),
        (Monthly([1, 15], "09:00"), "at 09:00 on the 1st and the 15th of every month"),
        (Monthly(31, "09:00"), "at 09:00 on the 31st of every month (the last day of shorter months)"),
        (Monthly(31, "09:00", short="skip"), "at 09:00 on the 31st of every month (not in shorter months)"),
        (Monthly(-2, "09:00"), "at 09:00 on the 2nd to last day of every month"),
        (Monthly("2nd tue", "09:00"), "at 09:00 on the 2nd Tuesday of every month"),
        (Monthly("last business day", "17:00"), "at 17:00 on the last business day of every month"),
        (Monthly("last business day", "17:00", business=GB), "at 17:00 on the last business day in GB (ENG) of every month"),
        (Monthly(1, "09:00", every=3, starting="2026-01-01"), "at 09:00 on the 1st of every 3 months from 1 January 2026"),
        (Monthly(1, "09:00", business=GB), "at 09:00 on the 1st of every month, or the next business day in GB (ENG)"),
        (Monthly(1, "09:00", business=GB, adjust="skip"), "at 09:00 on the 1st of every month, if that is a business day in GB (ENG)"),
        (Yearly(12, 24), "at 09:00 on 24 December every year"),
        (Yearly(2, 29), "at 09:00 on 29 February (28 February in other years)"),
        (Yearly(2, 29, feb29="mar1"), "at 09:00 on 29 February (1 March in other years)"),
        (Yearly(2, 29, feb29="skip"), "at 09:00 on 29 February in leap years"),
        (Once("2026-12-24T18:00"), "once, at 18:00 on 24 December 2026"),
        (RRule("FREQ=DAILY", NOON.replace(tzinfo=None)), "every day at 12:00, from 1 January 2026"),
        (RRule("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,FR;COUNT=10", "2026-01-01T09:00"), "every 2 weeks on Monday and Friday at 09:00, 10 times from 1 January 2026"),
        (RRule("FREQ=WEEKLY", "2026-01-01T09:00"), "every week on Thursday at 09:00, from 1 January 2026"),
        (RRule("FREQ=MONTHLY;BYDAY=-1FR", "2026-01-01T09:00"), "every month on the last Friday at 09:00, from 1 January 2026"),
        (RRule("FREQ=MONTHLY;BYMONTHDAY=1,-1", "2026-01-01T09:00"), "every month on the 1st and the last day of the month at 09:00, from 1 January 2026"),
        (RRule("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", "2026-01-01T09:00"), "every month on Monday, Tuesday, Wednesday, Thursday and Friday at 09:00 (of these only the last), from 1 January 2026"),
        (RRule("FREQ=YEARLY;UNTIL=20300101T000000", "2026-03-04T09:00"), "every year on 4 March at 09:00, from 4 March 2026 until 1 January 2030"),
        (RRule("FREQ=HOURLY;INTERVAL=6", "2026-01-01T00:30"), "every 6 hours at 30 minutes past, from 1 January 2026"),
    ],
    ids=lambda value: "" if isinstance(value, Rule) else value,
)  # fmt: skip
def test_other_rules_are_described_in_words(rule: Rule, words: str) -> None:
    assert in_words(rule) == words
    assert describe(rule).removesuffix(f" ({rule.exact()})") == words


def test_schedules_add_their_zone_and_bounds() -> None:
    assert (
        Schedule("0 9 LW * *", "Europe/London").describe()
        == "at 09:00 on the last weekday of every month (cron 0 9 LW * *), Europe/London time"
    )
    assert Schedule("0 9 * * *").describe() == "at 09:00 every day (cron 0 9 * * *), UTC"
    assert Schedule("daily 09:00").describe() == "at 09:00 every day, UTC"
    assert Schedule("every 5m").describe() == "every 5 minutes"
    assert Schedule("every 5m", "Europe/London").describe() == "every 5 minutes, Europe/London time"
    bounded = Schedule("daily 09:00", "Asia/Tokyo", start="2026-01-01T00:00", end=NOON)
    assert (
        bounded.describe()
        == "at 09:00 every day, Asia/Tokyo time, from 00:00 on 1 January 2026, until 12:00 on 1 January 2026 UTC"
    )


def test_misfire_policies_are_described_in_words() -> None:
    assert Misfire.latest().describe() == "the last missed one is caught up"
    assert Misfire.latest(grace="1h").describe() == "the last missed one is caught up if it is at most 1h late"
    assert Misfire.all(5).describe() == "every missed one is caught up, up to 5"
    assert Misfire.skip().describe() == "missed ones are skipped"


FIELDS = [
    st.sampled_from(["*", "0", "*/10", "5,7", "1-4", "59"]),
    st.sampled_from(["*", "0", "*/15", "5,7", "1-40", "7/9"]),
    st.sampled_from(["*", "0", "*/6", "5,7,22", "9-17", "*/5"]),
    st.sampled_from(["*", "?", "1", "L", "L-2", "LW", "15W", "1,15", "*/3", "1-9", "L,15W,1"]),
    st.sampled_from(["*", "1", "1,6", "*/3", "2-5", "2/5"]),
    st.sampled_from(["*", "?", "1", "1-5", "FRI#1", "SUNL", "*/2", "0,6", "MON,FRI#2"]),
]


@settings(PATIENT, max_examples=150)
@given(fields=st.tuples(*FIELDS))
def test_every_expression_has_words_and_different_days_have_different_ones(fields: tuple[str, ...]) -> None:
    try:
        words = in_words(Cron(" ".join(fields)))
    except InvalidSchedule:
        return
    assert words
    assert "  " not in words
    assert words == words.strip()
    if fields[3] not in ("*", "?"):
        assert " on " in words
    if fields[4] == "2-5":
        assert "February to May" in words
