"""What is planned, and what a change does to it: on the day itself, in all orders."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import count, pairwise, permutations
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.features.people import Occasion, Person
from mainspring.features.people.firing import firing_of, passed_over
from mainspring.features.people.plan import OccasionPlan, ended, planned
from mainspring.features.schedules.firing import Entry
from mainspring.job import NewJob

pytestmark = pytest.mark.slow

HOUR = timedelta(hours=1)


def at(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, tzinfo=UTC)


@dataclass
class Life:
    """One person's birthday, and a timer that is never late."""

    now: datetime
    fields: dict[str, Any] = field(default_factory=dict)
    plan: OccasionPlan | None = None
    sent: list[tuple[date, datetime]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    numbers: Any = field(default_factory=count)

    def put(self, **fields: Any) -> None:
        self.fields |= fields
        own = {name: self.fields[name] for name in ("tz", "quiet") if name in self.fields}
        rest = {name: value for name, value in self.fields.items() if name not in own}
        person = Person(id="p", occasions=[Occasion(kind="birthday", **rest)], **own)
        before = self.plan
        self.plan = planned(before, person, person.occasions[0], self.now)
        self.entries += passed_over(before, self.plan, self.now)
        self.run()

    def delete(self) -> None:
        assert self.plan
        after = ended(self.plan)
        self.plan = None if after.sent is None else after  # as `OccasionPlan.write` has it

    def pass_until(self, moment: datetime) -> None:
        while self.plan and self.plan.next and self.plan.next.due <= moment:
            self.now = max(self.now, self.plan.next.due)
            self.run()
        self.now = max(self.now, moment)

    def run(self) -> None:
        if self.plan is None or self.plan.next is None or self.plan.next.due > self.now:
            return
        firing = firing_of(self.plan, self.now, self._job)
        self.plan = firing.after
        self.entries += firing.entries

    def _job(self, plan: OccasionPlan, now: datetime) -> NewJob:
        assert plan.next
        self.sent.append((plan.next.on, now))
        return NewJob(str(next(self.numbers)), "greet", "{}")

    @property
    def due(self) -> datetime | None:
        return None if self.plan is None or self.plan.next is None else self.plan.next.due


SUMMER = at(2025, 6, 1)


def born(tz: str, day: str = "12-30", now: datetime = SUMMER, **fields: Any) -> Life:
    life = Life(now)
    life.put(tz=tz, date=day, **fields)
    return life


# -- a clock that was ahead --------------------------------------------------------------------------------------


def test_a_plan_that_was_moved_by_a_clock_ahead_comes_back() -> None:
    life = born("UTC", "12-30")
    assert life.plan
    skipped = life.plan.beyond()
    assert skipped.rewound(SUMMER) == life.plan
    assert life.plan.rewound(SUMMER) is life.plan


def test_a_plan_does_not_come_back_for_a_day_that_has_passed_or_was_sent() -> None:
    life = born("UTC", "12-30")
    assert life.plan
    skipped, sent = life.plan.beyond(), life.plan.beyond(sent=True)
    assert skipped.rewound(at(2025, 12, 31)) is skipped
    assert sent.rewound(SUMMER) is sent
    assert (gone := ended(sent)).rewound(SUMMER) is gone


# -- from one time zone to another ------------------------------------------------------------------------------

AUCKLAND, LOS_ANGELES = "Pacific/Auckland", "America/Los_Angeles"
NINE_IN_AUCKLAND, NINE_IN_LOS_ANGELES = at(2025, 12, 29, 20), at(2025, 12, 30, 17)


@pytest.mark.parametrize(
    ("moves_at", "sent_at"),
    [
        (NINE_IN_AUCKLAND - HOUR, NINE_IN_LOS_ANGELES),  # not sent yet: when it is nine there
        (NINE_IN_AUCKLAND, NINE_IN_AUCKLAND),  # sent: not again, although it is the 29th there
        (NINE_IN_AUCKLAND + HOUR, NINE_IN_AUCKLAND),
        (NINE_IN_LOS_ANGELES + HOUR, NINE_IN_AUCKLAND),
    ],
)
def test_a_move_from_auckland_to_los_angeles_on_the_day_sends_one_message(
    moves_at: datetime, sent_at: datetime
) -> None:
    life = born(AUCKLAND)
    life.pass_until(moves_at)
    life.put(tz=LOS_ANGELES)
    life.pass_until(at(2026, 6, 1))
    assert life.sent == [(date(2025, 12, 30), sent_at)]
    assert life.due == at(2026, 12, 30, 17)


@pytest.mark.parametrize("policy", [{}, {"late": "skip", "grace": "1m"}])
@pytest.mark.parametrize(
    ("moves_at", "sent_at"),
    [
        (NINE_IN_AUCKLAND - HOUR, NINE_IN_AUCKLAND),  # before nine there
        (NINE_IN_AUCKLAND + HOUR, NINE_IN_AUCKLAND + HOUR),  # past nine there: at once
        (at(2025, 12, 30, 16), at(2025, 12, 30, 16)),  # even if the day is over there: at once
        (NINE_IN_LOS_ANGELES + HOUR, NINE_IN_LOS_ANGELES),  # sent: not again
    ],
)
def test_a_move_from_los_angeles_to_auckland_on_the_day_sends_one_message(
    moves_at: datetime, sent_at: datetime, policy: dict[str, Any]
) -> None:
    """Whatever the policies: a move loses no message."""
    life = born(LOS_ANGELES, **policy)
    life.pass_until(moves_at)
    life.put(tz=AUCKLAND)
    life.pass_until(at(2026, 6, 1))
    assert life.sent == [(date(2025, 12, 30), sent_at)]
    assert life.due == at(2026, 12, 29, 20)


ZONES = (AUCKLAND, LOS_ANGELES, "Pacific/Kiritimati", "Etc/GMT+12", "Australia/Lord_Howe")
DAYS = ("12-30", "12-31", "01-01", "10-05", "03-08")  # ends of years; days on which clocks change in one of them


@pytest.mark.parametrize("day", DAYS)
@pytest.mark.parametrize(("before", "after"), list(permutations(ZONES, 2)))
def test_whenever_one_moves_each_year_is_sent_once(before: str, after: str, day: str) -> None:
    """Every third hour around the day; and back again, seven hours later."""
    month, number = map(int, day.split("-"))
    middle = at(2026, month, number, 9)
    for hours in range(-40, 41, 3):
        for back in (False, True):
            life = born(before, day, at(2025, 2, 1))
            life.pass_until(middle + hours * HOUR)
            life.put(tz=after)
            if back:
                life.pass_until(life.now + 7 * HOUR)
                life.put(tz=before)
            life.pass_until(at(2027, 12, 1))
            first = 2026 if day == "01-01" else 2025
            assert [on for on, _ in life.sent][:2] == [date(first, month, number), date(first + 1, month, number)]
            assert len({on.year for on, _ in life.sent}) == len(life.sent)
            lateness = [moment - local_nine(on, (before, after)) for on, moment in life.sent]
            assert max(lateness) <= timedelta(hours=30)


def local_nine(on: date, zones: tuple[str, str]) -> datetime:
    return max(datetime(on.year, on.month, on.day, 9, tzinfo=ZoneInfo(tz)) for tz in zones)


def test_a_new_send_time_on_the_day_sends_once() -> None:
    life = born("UTC", at="18:00")
    life.pass_until(at(2025, 12, 30, 12))
    life.put(at="09:00")  # has passed: at once
    assert life.sent == [(date(2025, 12, 30), at(2025, 12, 30, 12))]
    life.put(at="20:00")  # has been sent
    life.pass_until(at(2026, 6, 1))
    assert len(life.sent) == 1
    assert life.due == at(2026, 12, 30, 20)


def test_a_move_does_not_make_an_old_one_new() -> None:
    """What an outage made too late stays too late."""
    life = born("UTC", grace="1h")
    life.now = at(2025, 12, 30, 23)
    life.put(tz="Europe/Berlin")
    assert life.sent == []
    assert [entry.reason for entry in life.entries] == ["too_late"]


def test_a_person_added_too_late_gets_the_message_after_a_move_to_an_earlier_zone() -> None:
    life = born(AUCKLAND, now=at(2025, 12, 30, 4), late="skip")
    life.put(tz=LOS_ANGELES)
    life.pass_until(at(2026, 6, 1))
    assert life.sent == [(date(2025, 12, 30), NINE_IN_LOS_ANGELES)]


# -- from one date to another ------------------------------------------------------------------------------


def test_a_date_corrected_before_it_comes_is_sent_on_the_new_day() -> None:
    life = born("UTC", "06-20")
    life.put(date="06-25")
    life.pass_until(at(2026, 1, 1))
    assert life.sent == [(date(2025, 6, 25), at(2025, 6, 25, 9))]


def test_a_date_that_is_corrected_after_it_was_sent_waits_for_next_year() -> None:
    life = born("UTC", "06-20")
    life.pass_until(at(2025, 6, 21))
    life.put(date="06-25")
    life.pass_until(at(2026, 7, 1))
    assert [on for on, _ in life.sent] == [date(2025, 6, 20), date(2026, 6, 25)]


def test_a_date_that_is_corrected_to_one_just_past_is_sent_at_once() -> None:
    life = born("UTC", "06-20", now=at(2025, 6, 10))
    life.pass_until(at(2025, 6, 15))
    life.put(date="06-14")
    assert life.sent == [(date(2025, 6, 14), at(2025, 6, 15))]
    assert life.entries[0].late


@pytest.mark.parametrize(("day", "late"), [("06-10", "send"), ("06-14", "skip")])
def test_the_ledger_has_a_corrected_date_that_is_too_late(day: str, late: str) -> None:
    life = born("UTC", "06-20", now=at(2025, 6, 1), late=late)
    life.pass_until(at(2025, 6, 15))
    life.put(date=day)
    assert life.sent == []
    assert [(entry.reason, entry.nominal[:10]) for entry in life.entries] == [("passed", f"2025-{day}")]
    assert life.due
    assert life.due.year == 2026


def test_a_date_corrected_to_today_is_sent_at_once() -> None:
    life = born("UTC", "12-24", now=at(2025, 6, 15, 12))
    life.put(date="06-15")
    assert life.sent == [(date(2025, 6, 15), at(2025, 6, 15, 12))]


# -- whatever happens --------------------------------------------------------------------------------------

CHANGES = st.one_of(
    st.tuples(st.just("tz"), st.sampled_from([*ZONES, "UTC", "Europe/London", "Pacific/Apia", "Africa/Casablanca"])),
    st.tuples(st.just("at"), st.sampled_from(["00:00", "02:30", "09:00", "23:59"])),
    st.tuples(st.just("quiet"), st.sampled_from([None, "22:00-08:00", "08:00-22:00", "12:00-13:00"])),
)
DATES = st.tuples(st.just("date"), st.sampled_from([*DAYS, "02-29", "06-15", "1990-06-15"]))
OTHERS = st.sampled_from([("delete", None), ("late", "skip"), ("late", "send"), ("feb29", "mar1"), ("feb29", "skip")])
WAITS = st.integers(min_value=0, max_value=24 * 500)  # hours


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.sampled_from(DAYS), st.lists(st.tuples(WAITS, CHANGES), max_size=8))
def test_moves_and_send_times_cost_no_year_and_double_none(day: str, changes: list[Any]) -> None:
    life = born("UTC", day, at(2025, 2, 1))
    for hours, (name, value) in changes:
        life.pass_until(life.now + hours * HOUR)
        life.put(**{name: value})
    life.pass_until(life.now + timedelta(days=800))
    years = [on.year for on, _ in life.sent]
    assert all(later == earlier + 1 for earlier, later in pairwise(years))
    assert len(years) >= 2
    assert years[0] == (2026 if day == "01-01" else 2025)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(WAITS, st.one_of(CHANGES, DATES, OTHERS)), max_size=10))
def test_whatever_is_changed_no_year_is_sent_twice(changes: list[Any]) -> None:
    life = born("UTC", "06-15", at(2025, 2, 1))
    for hours, (name, value) in changes:
        life.pass_until(life.now + hours * HOUR)
        if name == "delete":
            if life.plan is not None and not life.plan.gone:
                life.delete()
        else:
            life.put(**{name: value})
    life.pass_until(life.now + timedelta(days=800))
    years = [on.year for on, _ in life.sent]
    assert len(set(years)) == len(years)
    assert years == sorted(years)
