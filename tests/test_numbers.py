from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring import ConfigurationError, Mainspring, Numbers
from mainspring.clock import Millis, to_millis
from mainspring.numbers import Histogram, Plan, oldest_kept, plan, series_of
from mainspring.stores.numbers import BOUNDS, BUCKETS, DAY, HOUR, MINUTE, Figure, Measure, Period, slot, times_of
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing.clock import ManualClock

NOW = to_millis(datetime(2026, 5, 20, 10, 24, 30, tzinfo=UTC))
BERLIN, KOLKATA = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata")
LENGTHS = {Period.MINUTE: MINUTE, Period.HOUR: HOUR, Period.DAY: DAY}


def ago(**length: float) -> Millis:
    return NOW - int(timedelta(**length).total_seconds() * 1000)


def chosen(since: Millis, step: Period, zone: tzinfo = UTC, until: Millis = NOW) -> Plan:
    return plan(since, until, step, zone, NOW)


# -- which lines are read ---------------------------------------------------------------------------------


def test_the_last_day_by_hours_begins_and_ends_with_minutes() -> None:
    wanted = chosen(ago(hours=24), Period.HOUR)
    first, rest = wanted.spans
    assert (first.period, first.until - first.since) == (Period.MINUTE, 36 * MINUTE)
    assert (rest.period, rest.until - rest.since) == (Period.HOUR, 24 * HOUR)
    assert len(wanted.starts) == 25


def test_days_in_utc_are_read_as_days() -> None:
    wanted = chosen(to_millis(datetime(2026, 1, 1, tzinfo=UTC)), Period.DAY)
    assert [span.period for span in wanted.spans] == [Period.DAY]


def test_a_day_of_another_zone_is_read_as_hours() -> None:
    midnight = to_millis(datetime(2026, 5, 20, tzinfo=BERLIN))
    wanted = chosen(midnight, Period.DAY, BERLIN)
    assert wanted.starts == [midnight]
    assert [span.period for span in wanted.spans] == [Period.HOUR]


def test_days_with_a_change_of_the_clocks_have_23_or_25_hours() -> None:
    now = to_millis(datetime(2026, 4, 2, 12, tzinfo=UTC))
    wanted = plan(to_millis(datetime(2026, 3, 28, tzinfo=BERLIN)), now, Period.DAY, BERLIN, now)
    lengths = [(end - start) // HOUR for start, end in pairwise(wanted.starts)]
    assert lengths == [24, 23, 24, 24, 24]


def test_a_recent_day_of_a_half_hour_zone_begins_to_the_minute() -> None:
    midnight = to_millis(datetime(2026, 5, 20, tzinfo=KOLKATA))
    wanted = chosen(midnight, Period.DAY, KOLKATA)
    assert wanted.spans[0].period is Period.MINUTE
    assert wanted.spans[0].since == midnight
    assert wanted.spans[0].until - midnight == 30 * MINUTE


def test_an_old_day_of_a_half_hour_zone_begins_with_the_next_hour() -> None:
    since, until = (to_millis(datetime(2026, 5, day, tzinfo=KOLKATA)) for day in (10, 12))
    wanted = chosen(since, Period.DAY, KOLKATA, until)
    assert {span.period for span in wanted.spans} == {Period.HOUR}
    hours = [hour for span in wanted.spans for hour in range(span.since, span.until, HOUR)]
    tallies = series_of(wanted, [Figure(hour, "", {slot(Measure.ENQUEUED, 0): 1}) for hour in hours])
    assert [tally.enqueued for tally in tallies][-2:] == [24, 24]


@pytest.mark.parametrize(
    ("since", "step", "zone"),
    [
        (ago(hours=50), Period.MINUTE, UTC),
        (ago(days=32), Period.HOUR, UTC),
        (ago(days=800), Period.DAY, UTC),
        (ago(days=32), Period.DAY, BERLIN),
    ],
)
def test_what_is_not_kept_is_refused(since: Millis, step: Period, zone: tzinfo) -> None:
    with pytest.raises(ConfigurationError, match="give a later time, or a longer step"):
        chosen(since, step, zone)


@given(
    st.integers(0, 47 * 60), st.integers(1, 47 * 60), st.sampled_from(Period), st.sampled_from([UTC, BERLIN, KOLKATA])
)
@settings(max_examples=200, deadline=None)
def test_each_recent_minute_is_read_once_and_for_its_step(since: int, length: int, step: Period, zone: tzinfo) -> None:
    begin = NOW - since * MINUTE
    until = min(begin + length * MINUTE, NOW)
    wanted = chosen(begin, step, zone, until) if begin < until else None
    if wanted is None:
        return
    first, last = begin - begin % MINUTE, min(NOW, until)
    seen = [m for span in wanted.spans for m in range(span.since, span.until, MINUTE) if m <= NOW]
    assert len(seen) == len(set(seen))
    assert set(range(first, last, MINUTE)) <= set(seen)
    assert min(seen) == first
    assert max(seen) < last + (MINUTE if until < NOW else DAY)


@given(st.integers(49, 700), st.integers(1, 600), st.sampled_from([UTC, BERLIN, KOLKATA]))
@settings(max_examples=200, deadline=None)
def test_each_older_hour_is_read_once(since: int, length: int, zone: tzinfo) -> None:
    begin = NOW - since * HOUR
    wanted = chosen(begin, Period.DAY, zone, min(begin + length * HOUR, NOW))
    spans = sorted(wanted.spans, key=lambda span: span.since)
    assert all(first.until <= second.since for first, second in pairwise(spans))
    assert sum(span.until - span.since for span in spans) >= min(length, since) * HOUR - HOUR
    assert all(span.since % LENGTHS[span.period] == 0 for span in spans)
    assert all(span.since >= oldest_kept(Period.MINUTE, NOW) for span in spans if span.period is Period.MINUTE)


# -- histograms -------------------------------------------------------------------------------------------


def histogram(*lengths: Millis) -> Histogram:
    total, *buckets = times_of(lengths) if lengths else [0] * (BUCKETS + 1)
    return Histogram(tuple(buckets), total / 1000)


def test_a_percentile_without_jobs_is_unknown() -> None:
    assert histogram().percentile(50) is None
    assert histogram().mean is None


@given(st.lists(st.integers(0, BOUNDS[-1] - 1), min_size=1), st.integers(1, 100))
def test_a_percentile_is_in_the_bucket_of_the_true_value(lengths: list[int], p: int) -> None:
    found = histogram(*lengths).percentile(p)
    true = sorted(lengths)[max(0, -(-len(lengths) * p // 100) - 1)]
    edges = [0, *BOUNDS]
    bucket = next(number for number, end in enumerate(BOUNDS) if true < end)
    assert found is not None
    assert edges[bucket] / 1000 <= found <= edges[bucket + 1] / 1000


def test_a_percentile_in_the_last_bucket_is_its_beginning() -> None:
    assert histogram(DAY).percentile(99) == BOUNDS[-1] / 1000


@pytest.mark.parametrize("p", [-1, 101, float("nan"), "95"])
def test_a_percentile_must_be_a_percentage(p: Any) -> None:
    with pytest.raises(ConfigurationError, match="give a number from 0 to 100"):
        histogram(1).percentile(p)


@given(st.lists(st.integers(-5, 10**8), min_size=1))
def test_times_are_summed_up(lengths: list[int]) -> None:
    total, *buckets = times_of(lengths)
    assert total == sum(max(0, length) for length in lengths)
    assert sum(buckets) == len(lengths)


# -- the application ----------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 5, 20, 23, 50, tzinfo=UTC))


@pytest.fixture
def app(clock: ManualClock) -> Mainspring:
    app = Mainspring(MemoryStore(clock=clock))

    @app.task
    def send() -> None: ...

    @app.task(queue="slow")
    def render() -> None: ...

    return app


def fill(app: Mainspring, clock: ManualClock) -> None:
    """Enqueue a job of each task every ten minutes, for an hour."""
    for _ in range(6):
        for name in ("send", "render"):
            app.run(app.tasks[name].enqueue())
        clock.advance(600)


def read(app: Mainspring, **options: Any) -> Numbers:
    return app.run(app.numbers(**options))


def test_the_series_has_each_step_also_the_empty_ones(app: Mainspring, clock: ManualClock) -> None:
    fill(app, clock)
    numbers = read(app, since=timedelta(hours=3))
    assert [tally.enqueued for tally in numbers.series] == [0, 0, 2, 10]
    assert numbers.total.enqueued == 12
    assert numbers.series[-1].start == datetime(2026, 5, 21, tzinfo=UTC)
    assert numbers.series[-1].end == numbers.total.end == datetime(2026, 5, 21, 0, 50, tzinfo=UTC)


def test_days_begin_at_midnight_of_the_zone(app: Mainspring, clock: ManualClock) -> None:
    fill(app, clock)
    by_zone = {zone: read(app, step="day", zone=zone) for zone in ("UTC", "Europe/Berlin", "Asia/Kolkata")}
    assert {zone: [tally.enqueued for tally in numbers.series] for zone, numbers in by_zone.items()} == {
        "UTC": [2, 10],
        "Europe/Berlin": [0, 12],
        "Asia/Kolkata": [0, 12],
    }


def test_numbers_of_a_queue_or_task(app: Mainspring, clock: ManualClock) -> None:
    fill(app, clock)
    assert read(app, queue="slow").total.enqueued == 6
    assert read(app, task="send").total.enqueued == 6
    assert read(app, task="send", queue="slow").total.enqueued == 0
    by_task = read(app, by="task", step="minute", since=timedelta(minutes=15))
    assert {name: part.total.enqueued for name, part in by_task.groups.items()} == {"render": 1, "send": 1}
    assert len(by_task.groups["send"].series) == 16 - 1


def test_rates(app: Mainspring, clock: ManualClock) -> None:
    app.run(app.tasks["send"].enqueue())

    async def work() -> None:
        async with app.worker():
            while not (await app.numbers()).total.completed:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)

    app.run(work())
    clock.advance(60)
    total = read(app, since=100).total
    assert (total.failed, total.failure_rate) == (0, 0.0)
    assert total.throughput == pytest.approx(1 / (total.end - total.start).total_seconds())
    assert total.duration.count == total.wait.count == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": "week"}, "use one of minute, hour, day"),
        ({"by": "worker"}, "use queue or task"),
        ({"zone": "Mars"}, "is not a time zone"),
        ({"since": timedelta(hours=-1)}, "since is .* length of time before now, and must be above 0"),
        ({"since": 0}, "since is 0, but it is a length of time before now"),
        ({"since": datetime(2030, 1, 1, tzinfo=UTC)}, "give an earlier time"),
        ({"since": timedelta(days=3), "step": "minute"}, "minutes are kept for 48 hours"),
        ({"since": datetime(2030, 1, 1, tzinfo=UTC), "until": datetime(2031, 1, 1, tzinfo=UTC)}, "is not before now"),
        ({"until": "now"}, "until must be a datetime"),
        ({"until": datetime(2026, 5, 1, tzinfo=UTC)}, "is not before until"),
        ({"step": ["hour"]}, "use one of minute, hour, day"),
        ({"by": ["task"]}, "use queue or task"),
        ({"queue": 7}, "queue must be a string"),
    ],
)
def test_wrong_options_are_refused(app: Mainspring, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(app, **options)
