"""A stored schedule is data: as JSON and back, as text, and with errors that say what is wrong."""

from __future__ import annotations

import copy
import json
import pickle
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.errors import InvalidSchedule, UnknownTimeZone
from mainspring.features.schedules.rules import (
    BusinessCalendar,
    Cron,
    Daily,
    Interval,
    Misfire,
    Monthly,
    Occurrence,
    Once,
    RRule,
    Rule,
    Schedule,
    SchedulePause,
    Weekly,
    Yearly,
    rule_from_data,
    rule_from_text,
)
from mainspring.features.schedules.rules.forms import KINDS
from mainspring.features.schedules.rules.parse import length, write_length
from tests.features.schedules.rules.patience import PATIENT

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
OFFICE = BusinessCalendar("GB", "ENG", closed=["2026-12-24"], open=["2026-12-28"])
RULES: list[Rule] = [
    Cron("*/5 * * * *"),
    Interval("1h30m"),
    Interval(0.25, anchor=NOON),
    Interval(timedelta(days=2), after="finish"),
    Daily(["09:00", "17:30:15"], every=3, starting="2026-01-01"),
    Daily("09:00", business=OFFICE, adjust="previous"),
    Weekly("mon-fri", "09:00"),
    Monthly([1, "last", "2nd tue", "last business day"], "09:00", short="skip", business=BusinessCalendar()),
    Yearly(2, 29, feb29="mar1"),
    Once("2026-12-24T18:00"),
    RRule("FREQ=MONTHLY;BYDAY=-1FR", "2026-01-01T09:00"),
]
SCHEDULES = [
    *(Schedule(rule, "Europe/London") for rule in RULES),
    Schedule(
        "0 9 * * *",
        "Asia/Kathmandu",
        gap="skip",
        fold="both",
        misfire=Misfire.all(max_fires=5, grace="2h"),
        overlap="cancel_old",
        jitter="1m30s",
        start="2026-01-01T00:00",
        end=NOON + timedelta(days=365),
        pause=SchedulePause(NOON, NOON + timedelta(days=1)),
    ),
    Schedule("every 5m", misfire="skip", pause=SchedulePause(NOON)),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.rule.kind)
def test_schedules_survive_json(schedule: Schedule) -> None:
    text = json.dumps(schedule.to_data())
    assert Schedule.from_data(json.loads(text)) == schedule
    assert json.dumps(Schedule.from_data(json.loads(text)).to_data()) == text
    assert rule_from_data(schedule.rule.to_data()) == schedule.rule
    assert len({schedule, Schedule.from_data(json.loads(text))}) == 1


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.rule.kind)
def test_schedules_can_be_copied_and_pickled(schedule: Schedule) -> None:
    assert copy.deepcopy(schedule) == schedule
    assert pickle.loads(pickle.dumps(schedule)) == schedule  # noqa: S301 - our own


def test_every_kind_of_rule_is_tried_here() -> None:
    assert {rule.kind for rule in RULES} == set(KINDS)


def test_the_stored_form_of_a_schedule_is_stable() -> None:
    """Databases hold these: a change here needs a migration."""
    assert SCHEDULES[-2].to_data() == {
        "rule": {"kind": "cron", "expression": "0 9 * * *"},
        "tz": "Asia/Kathmandu",
        "gap": "skip",
        "fold": "both",
        "misfire": {"mode": "all", "grace": "2h", "max_fires": 5},
        "overlap": "cancel_old",
        "jitter": "1m30s",
        "start": "2026-01-01T00:00:00",
        "end": "2027-11-15T12:00:00+00:00",
        "pause": {"since": "2026-11-15T12:00:00+00:00", "until": "2026-11-16T12:00:00+00:00"},
    }
    assert RULES[5].to_data() == {
        "kind": "daily",
        "at": ["09:00"],
        "every": 1,
        "business": {
            "country": "GB",
            "subdivision": "ENG",
            "closed": ["2026-12-24"],
            "open": ["2026-12-28"],
            "weekend": ["sat", "sun"],
        },
        "adjust": "previous",
    }


def test_a_rule_alone_is_a_schedule() -> None:
    assert Schedule.from_data({"rule": "0 9 * * *"}) == Schedule("0 9 * * *")
    assert Schedule.from_data({"rule": {"kind": "yearly", "month": 12, "day": 24}}) == Schedule(Yearly(12, 24))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, "schedule: None is not a JSON object"),
        ([], "schedule: .* is not a JSON object"),
        ({}, "schedule: .*'rule'"),
        ({"rule": "0 9 * * *", "tzz": "UTC"}, "schedule: 'tzz' is not a field; .* did you mean tz"),
        ({"rule": "0 9 * * *", "tz": "Mars/Base"}, "Mars/Base"),
        ({"rule": "0 9 * * *", "tz": 5}, "5 is not an IANA time zone"),
        ({"rule": {"kind": "corn"}}, "kind 'corn' is not one of .* did you mean cron"),
        ({"rule": {"expression": "0 9 * * *"}}, "kind None is not one of"),
        ({"rule": {"kind": "cron"}}, "rule cron: .*'expression'"),
        ({"rule": {"kind": "cron", "expression": 5}}, "rule cron: a cron expression is text"),
        ({"rule": {"kind": "daily", "at": "9 o'clock"}}, "schedule: rule daily: at: \"9 o'clock\" is not a time of"),
        ({"rule": {"kind": "daily", "at": None}}, "rule daily: at: None"),
        ({"rule": {"kind": "daily", "at": ["09:00", 5]}}, "at: 5 is not a time of day"),
        ({"rule": {"kind": "yearly", "month": "12", "day": 24}}, "month: '12' is not a whole number"),
        ({"rule": {"kind": "monthly", "on": [None], "at": "09:00"}}, "on: None is not a day of a month"),
        ({"rule": {"kind": "weekly", "on": None, "at": "09:00"}}, "rule weekly: on: None"),
        ({"rule": "0 9 * * *", "misfire": "latest"}, "misfire: 'latest' is not a JSON object"),
        ({"rule": "0 9 * * *", "misfire": {"mode": "all", "max_fires": 0}}, "misfire: misfire max_fires: 0 is not"),
        ({"rule": "0 9 * * *", "pause": {"until": "2026-01-01T00:00Z"}}, "pause: .*'since'"),
        ({"rule": "0 9 * * *", "start": "soon"}, "start: 'soon' is not a time"),
        ({"rule": "0 9 * * *", "jitter": []}, r"jitter: \[\] is not a length"),
        ({"rule": "0 9 * * *", "gap": ["shift"]}, "gap: .* is not one of"),
    ],
)  # fmt: skip
def test_bad_data_is_refused_and_why(data: Any, why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why):
        Schedule.from_data(data)


def test_an_unknown_zone_stays_an_unknown_zone() -> None:
    with pytest.raises(UnknownTimeZone):
        Schedule.from_data({"rule": "0 9 * * *", "tz": "Mars/Base"})


TEXT = st.text("aLW09:-/*,#. T\n\x00é", max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow
@settings(PATIENT)
@given(kind=st.sampled_from(sorted(KINDS)), data=st.data())
def test_whatever_json_says_it_is_a_rule_or_an_invalid_schedule(kind: str, data: st.DataObject) -> None:
    names = [name for rule in RULES if rule.kind == kind for name in rule.to_data()]
    fields = data.draw(st.dictionaries(st.sampled_from(names), JSON)) | {"kind": kind}
    with suppress(InvalidSchedule):
        assert rule_from_data(fields).kind == kind


@pytest.mark.slow
@settings(PATIENT)
@given(data=st.dictionaries(st.sampled_from(sorted(SCHEDULES[-2].to_data())), JSON))
def test_whatever_json_says_it_is_a_schedule_or_an_invalid_one(data: dict[str, Any]) -> None:
    with suppress(InvalidSchedule):
        assert Schedule.from_data({"rule": "0 9 * * *"} | data).to_data()


@pytest.mark.parametrize("data", [{}, {"nominal": "x"}, {"nominal": 1, "utc": 2, "offset": "3", "key": 4}])
def test_invalid_occurrences_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchedule, match="this is not an occurrence"):
        Occurrence.from_data(data)


@settings(PATIENT)
@given(
    st.timedeltas(timedelta(), timedelta(days=1000)).map(
        lambda length: timedelta(milliseconds=length // timedelta(milliseconds=1))
    )
)
def test_lengths_are_read_as_they_are_written(value: timedelta) -> None:
    assert length(write_length(value), "it") == value


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("*/5 * * * *", Cron("*/5 * * * *")),
        ("@daily", Cron("@daily")),
        ("every 90s", Interval("90s")),
        ("every 1h 30m", Interval("90m")),
        ("every 10m after finish", Interval("10m", after="finish")),
        ("daily 09:00", Daily("09:00")),
        ("Daily 09:00, 17:00", Daily(["09:00", "17:00"])),
        ("weekly mon-fri 09:00", Weekly("mon-fri", "09:00")),
        ("weekly mon thu 09:00", Weekly("mon thu", "09:00")),
        ("monthly 1 09:00", Monthly(1, "09:00")),
        ("monthly -1 09:00", Monthly(-1, "09:00")),
        ("monthly last fri 09:00", Monthly("last fri", "09:00")),
        ("monthly last business day 17:00", Monthly("last business day", "17:00")),
        ("yearly 12-24 09:00", Yearly(12, 24)),
        ("once 2026-12-24T18:00", Once("2026-12-24T18:00")),
    ],
)
def test_rules_are_read_from_text(text: str, rule: Rule) -> None:
    assert rule_from_text(text) == rule


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a schedule. The forms are:"),
        ("hourly", "is not a schedule"),
        ("every", "'every': interval: '' is not a length"),
        ("every 5m after lunch", "after: 'lunch' is not one of start, finish"),
        ("daily nine", "'daily nine': at: 'nine' is not a time of day"),
        ("weekly 09:00", "a day and a time are needed"),
        ("monthly 09:00", "a day and a time are needed"),
        ("yearly 24.12. 09:00", "write 12-24 for 24 December"),
        ("once tomorrow", "is not a time"),
    ],
)
def test_invalid_rule_text_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why):
        rule_from_text(text)
