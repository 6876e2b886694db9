"""Numbers over time: exact figures for scripted histories."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from mainspring.job import Claim, Move, ProgressReport
from mainspring.stores.numbers import (
    BOUNDS,
    BUCKETS,
    DAY,
    HOUR,
    MAX_PLACES,
    MINUTE,
    OTHER,
    Figure,
    Measure,
    NumbersQuery,
    Period,
    Span,
    measure_and_bucket,
)
from mainspring.stores.protocol import Action, Filter, Store
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    BY,
    StoreScenario,
    a_halt,
    by_silence,
    claim,
    claim_one,
    end,
    new_job,
    outcome,
    put,
    put_many,
    running,
)

ALL = 1 << 52
FOLD_ENTRIES = 100  # with `fold_often`, more than any store leaves for its readers to add up


async def figures(store: Store, period: Period = Period.DAY, **where: Any) -> list[Figure]:
    return await store.numbers(NumbersQuery((Span(period, 0, ALL),), **where))


async def total(store: Store, period: Period = Period.DAY, **where: Any) -> dict[Measure, int]:
    """Return the sum of each measure, over all buckets and periods."""
    found: Counter[Measure] = Counter()
    for figure in await figures(store, period, **where):
        for key, n in figure.counts.items():
            found[measure_and_bucket(key)[0]] += n
    return {measure: n for measure, n in found.items() if n}


async def buckets(store: Store, measure: Measure) -> dict[int, int]:
    counted = [(measure_and_bucket(key), n) for figure in await figures(store) for key, n in figure.counts.items()]
    return {bucket: n for (found, bucket), n in counted if found is measure}


def at_start_of_a_day(clock: ManualClock) -> None:
    clock.advance((DAY - clock.now() % DAY) / 1000)


class NumbersTests(StoreScenario):
    async def test_an_empty_store_has_no_numbers(self, store: Store) -> None:
        assert await figures(store) == []
        assert await figures(store, by="task") == []

    async def test_each_thing_that_happens_to_a_job_is_counted(self, store: Store, clock: ManualClock) -> None:
        at_start_of_a_day(clock)
        done, retried, dead, cancelled = [await running(store, max_attempts=5) for _ in range(4)]
        clock.advance(2)
        await end(store, done, Move.DONE)
        await end(store, retried, Move.RETRY, delay=HOUR)
        await end(store, dead, Move.DEAD)
        await end(store, cancelled, Move.CANCEL)
        assert await total(store) == {
            Measure.ENQUEUED: 4,
            Measure.STARTED: 4,
            Measure.COMPLETED: 1,
            Measure.RETRIED: 1,
            Measure.DEAD: 1,
            Measure.CANCELLED: 1,
            Measure.DURATION: 6000,
        }

    async def test_a_job_that_is_cancelled_by_hand_is_counted(self, store: Store) -> None:
        await put(store)
        await store.change(Action.CANCEL, Filter(), BY)
        assert await total(store) == {Measure.ENQUEUED: 1, Measure.CANCELLED: 1}

    async def test_snoozed_released_and_suspended_runs_count_as_starts_only(self, store: Store) -> None:
        for move in (Move.SNOOZE, Move.RELEASE, Move.SUSPEND):
            await end(store, await running(store, queue=move), move, delay=HOUR)
        assert await total(store) == {Measure.ENQUEUED: 3, Measure.STARTED: 3}

    async def test_a_job_that_was_held_back_counts_no_start(self, store: Store, clock: ManualClock) -> None:
        for move in (Move.SNOOZE, Move.RELEASE, Move.SUSPEND, Move.CANCEL):
            await put(store, queue=move)
            clock.advance(seconds=7)
            held = await claim_one(store, queue=move)
            clock.advance(seconds=1)
            await end(store, held, move, delay=HOUR, blocked=True)
        assert await total(store) == {Measure.ENQUEUED: 4, Measure.CANCELLED: 1}
        assert not any((await buckets(store, Measure.STARTED)).values())
        await end(store, await running(store, queue="other"), Move.DONE)
        assert (await total(store))[Measure.STARTED] == 1

    async def test_only_jobs_that_a_claim_returns_count_as_started(self, store: Store, clock: ManualClock) -> None:
        await put_many(store, 2)
        await store.halt(a_halt(clock))
        assert await claim(store) == []
        await store.resume(BY)
        await by_silence(store, clock, "w1")
        handed_out = await claim(store)  # a store may give a worker nothing before it has joined again
        assert (await total(store)).get(Measure.STARTED, 0) == len(handed_out)
        handed_out += await claim(store)
        assert (await total(store))[Measure.STARTED] == len(handed_out) == 2
        assert sum((await buckets(store, Measure.STARTED)).values()) == 2

    async def test_a_run_taken_from_its_worker_counts_as_stalled(self, store: Store, clock: ManualClock) -> None:
        await running(store)
        await by_silence(store, clock, "w1")
        await store.reap()
        assert (await total(store))[Measure.STALLED] == 1

    async def test_a_lost_claim_counts_nothing(self, store: Store) -> None:
        held = await running(store)
        assert await end(store, held, Move.RELEASE) is not None
        before = await total(store)
        assert await end(store, held, Move.DONE) is None
        assert await total(store) == before

    async def test_a_repeated_insert_counts_once(self, store: Store) -> None:
        job = new_job()
        await store.insert([job])
        await store.insert([job])
        await put(store, dedupe_key="k")
        await store.insert([new_job(dedupe_key="k")])
        assert await total(store) == {Measure.ENQUEUED: 2}

    # -- waits and durations --------------------------------------------------------------------------

    async def test_a_wait_lasts_from_the_due_time_to_the_claim(self, store: Store, clock: ManualClock) -> None:
        at_start_of_a_day(clock)
        await put(store, delay=30_000)
        clock.advance(33)
        held = await claim_one(store)
        clock.advance(7)
        await end(store, held, Move.DONE)
        found = await total(store)
        assert found[Measure.WAIT] == 3000
        assert found[Measure.DURATION] == 7000
        assert await buckets(store, Measure.STARTED) == {4: 1}
        assert await buckets(store, Measure.COMPLETED) == {5: 1}

    async def test_jobs_that_are_claimed_together_may_have_waited_differently(
        self, store: Store, clock: ManualClock
    ) -> None:
        at_start_of_a_day(clock)
        for length in (0, *BOUNDS):
            await put(store, delay=BOUNDS[-1] - length)
        clock.advance(BOUNDS[-1] / 1000)
        assert len(await claim(store)) == BUCKETS
        assert await buckets(store, Measure.STARTED) == dict.fromkeys(range(BUCKETS), 1)
        assert (await total(store))[Measure.WAIT] == sum(BOUNDS)

    async def test_runs_that_end_together_may_have_lasted_differently(self, store: Store, clock: ManualClock) -> None:
        at_start_of_a_day(clock)
        await put_many(store, 3)
        began = clock.now()
        held = await claim(store)
        clock.advance(100)
        await store.ack(
            [outcome(each, Move.DONE, started_at=began + 1000 * number) for number, each in enumerate(held, 40)]
        )
        assert await buckets(store, Measure.COMPLETED) == {6: 2, 7: 1}
        assert (await total(store))[Measure.DURATION] == 60_000 + 59_000 + 58_000

    async def test_a_clock_of_a_worker_that_is_ahead_gives_no_negative_duration(
        self, store: Store, clock: ManualClock
    ) -> None:
        held = await running(store)
        await end(store, held, Move.DONE, started_at=clock.now() + 5000)
        assert Measure.DURATION not in await total(store)
        assert await buckets(store, Measure.COMPLETED) == {0: 1}

    # -- periods --------------------------------------------------------------------------------------

    @pytest.mark.parametrize("period", Period)
    async def test_a_change_belongs_to_the_period_in_which_it_was_written(
        self, store: Store, clock: ManualClock, period: Period
    ) -> None:
        at_start_of_a_day(clock)
        start = clock.now()
        await put(store)
        clock.advance((period.length - 1) / 1000)
        await put(store)
        clock.advance(0.001)
        await put(store)
        found = [(figure.start - start, figure.total(Measure.ENQUEUED)) for figure in await figures(store, period)]
        assert sorted(found) == [(0, 2), (period.length, 1)]

    async def test_only_the_wanted_spans_are_returned(self, store: Store, clock: ManualClock) -> None:
        at_start_of_a_day(clock)
        start = clock.now()
        for _ in range(4):
            await put(store)
            clock.advance(60)
        spans = (Span(Period.MINUTE, start, start + MINUTE), Span(Period.MINUTE, start + 3 * MINUTE, start + HOUR))
        found = await store.numbers(NumbersQuery(spans))
        assert sorted(figure.start - start for figure in found) == [0, 3 * MINUTE]

    # -- places ---------------------------------------------------------------------------------------

    async def test_numbers_of_a_queue_and_a_task(self, store: Store) -> None:
        await put_many(store, 1, queue="a", task="x")
        await put_many(store, 2, queue="a", task="y")
        await put_many(store, 4, queue="b", task="x")
        expected = {
            (None, None): 7,
            ("a", None): 3,
            ("b", None): 4,
            (None, "x"): 5,
            (None, "y"): 2,
            ("a", "x"): 1,
            ("b", "y"): 0,
        }
        for (queue, task), number in expected.items():
            found = await total(store, queue=queue, task=task)
            assert found.get(Measure.ENQUEUED, 0) == number, (queue, task)

    async def test_numbers_by_queue_or_task(self, store: Store) -> None:
        await put_many(store, 1, queue="a", task="x")
        await put_many(store, 2, queue="a", task="y")
        await put_many(store, 4, queue="b", task="x")
        expected: dict[tuple[Any, ...], dict[str, int]] = {
            ("queue", None, None): {"a": 3, "b": 4},
            ("task", None, None): {"x": 5, "y": 2},
            ("task", "a", None): {"x": 1, "y": 2},
            ("queue", None, "x"): {"a": 1, "b": 4},
            ("queue", "b", "x"): {"b": 4},
            ("queue", "a", None): {"a": 3},
        }
        for (by, queue, task), numbers in expected.items():
            found = await figures(store, by=by, queue=queue, task=task)
            assert {figure.group: figure.total(Measure.ENQUEUED) for figure in found} == numbers, (by, queue, task)

    # -- folding and retention --------------------------------------------------------------------------

    @pytest.fixture
    def fold_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("mainspring.stores.sqlite.transaction.FOLD_EVERY", FOLD_ENTRIES - 10)

    @pytest.mark.usefixtures("fold_often")
    async def test_numbers_stay_the_same_when_they_are_folded(self, store: Store, clock: ManualClock) -> None:
        at_start_of_a_day(clock)
        other = await running(store, queue="other")
        await put_many(store, 3)
        held = await claim(store)
        clock.advance(61)
        for each in held:
            await end(store, each, Move.DONE)
        before = {period: sorted(await figures(store, period, by="task")) for period in Period}
        for _ in range(2):
            await fold(store, other)
            assert {period: sorted(await figures(store, period, by="task")) for period in Period} == before

    @pytest.mark.usefixtures("fold_often")
    async def test_what_happens_after_folding_is_added(self, store: Store) -> None:
        other = await running(store, queue="other")
        for number in range(1, 4):
            await put(store)
            assert await total(store, queue="default") == {Measure.ENQUEUED: number}
            await fold(store, other)
            assert await total(store, queue="default") == {Measure.ENQUEUED: number}

    @pytest.mark.usefixtures("fold_often")
    async def test_many_writes_are_added_up(self, store: Store) -> None:
        for _ in range(3):
            for each in [put(store, queue="a") for _ in range(FOLD_ENTRIES // 2)]:
                await each
            await put_many(store, 10, queue="b")
        assert await total(store, queue="a") == {Measure.ENQUEUED: 3 * (FOLD_ENTRIES // 2)}
        assert await total(store) == {Measure.ENQUEUED: 3 * (FOLD_ENTRIES // 2) + 30}

    async def test_old_numbers_are_deleted(self, store: Store, clock: ManualClock) -> None:
        at_start_of_a_day(clock)
        await put(store)
        for period, later in ((Period.MINUTE, 2), (Period.HOUR, 30), (Period.DAY, 731)):
            assert await total(store, period) == {Measure.ENQUEUED: 1}
            await store.prune()
            assert await total(store, period) == {Measure.ENQUEUED: 1}
            clock.advance(later * DAY / 1000 + 3601)
            await store.prune()
            assert await total(store, period) == {}

    async def test_old_numbers_are_deleted_after_the_clock_was_far_ahead(
        self, store: Store, clock: ManualClock
    ) -> None:
        clock.shift(3650 * DAY / 1000)
        await store.prune()
        clock.shift(-3650 * DAY / 1000)
        await put(store)
        for _ in range(2):  # the first time, it may be only in the change feed
            clock.advance(4 * DAY / 1000)
            await put(store)
            await store.prune()
        clock.advance(4 * DAY / 1000)
        await store.prune()
        assert await total(store, Period.MINUTE) == {}
        assert await total(store, Period.HOUR) == {Measure.ENQUEUED: 3}

    async def test_the_numbers_outlive_the_jobs_and_the_change_feed(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, keep=0)
        await end(store, held, Move.DONE)
        clock.advance(4 * DAY / 1000)
        await put(store)  # the feed keeps its last entry
        while await store.prune():
            pass
        assert (await total(store))[Measure.COMPLETED] == 1

    async def test_too_many_tasks_are_counted_as_others(self, store: Store) -> None:
        names = [f"task{number}" for number in range(MAX_PLACES + 5)]
        for _ in range(3):
            await store.insert([new_job(task=name) for name in names])
            await store.prune()
        found = await figures(store, by="task")
        assert len(found) == MAX_PLACES + 1
        assert {figure.group: figure.total(Measure.ENQUEUED) for figure in found}[OTHER] == 15
        assert await total(store) == {Measure.ENQUEUED: 3 * len(names)}


async def fold(store: Store, held: Claim) -> None:
    """Have the store add the new entries of the feed to its numbers, by maintenance or by many entries."""
    await store.report([ProgressReport(held.id, held.token, 0.5, "") for _ in range(FOLD_ENTRIES)])
    await store.prune()
