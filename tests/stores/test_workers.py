from __future__ import annotations

from dataclasses import replace

import pytest

from mainspring.clock import to_datetime
from mainspring.stores.protocol import WorkerInfo
from mainspring.stores.workers import TimedRun, Watch
from mainspring.testing.clock import ManualClock

LEASE = 30.0
WORKER = WorkerInfo("w1", "host", 1, ("default",))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def watch(clock: ManualClock) -> Watch:
    return Watch(clock, LEASE)


def test_a_worker_is_silent_after_a_lease_with_the_same_heartbeat(watch: Watch, clock: ManualClock) -> None:
    assert not watch.is_silent("w1", 1)
    clock.advance(LEASE - 1)
    assert not watch.is_silent("w1", 1)
    clock.advance(1)
    assert watch.is_silent("w1", 1)
    assert not watch.is_silent("w1", 2)


def test_after_a_slow_look_silence_counts_anew(watch: Watch, clock: ManualClock) -> None:
    watch.is_silent("w1", 1)
    with watch.looking():
        clock.advance(LEASE)
    assert not watch.is_silent("w1", 1)


def test_after_a_failed_look_silence_counts_anew(watch: Watch, clock: ManualClock) -> None:
    watch.is_silent("w1", 1)
    with pytest.raises(OSError), watch.looking():  # noqa: PT011
        raise OSError
    clock.advance(LEASE)
    assert not watch.is_silent("w1", 1)


def test_after_a_quick_look_silence_goes_on(watch: Watch, clock: ManualClock) -> None:
    watch.is_silent("w1", 1)
    clock.advance(LEASE)
    with watch.looking():
        clock.advance(1)
    assert watch.is_silent("w1", 1)


def test_workers_that_are_gone_are_forgotten(watch: Watch) -> None:
    watch.is_silent("w1", 1)
    watch.is_silent("w2", 2)
    watch.forget_others({"w2"})
    assert (watch.last_heartbeat("w1"), watch.last_heartbeat("w2")) == (None, 2)


def test_a_run_is_overdue_once_it_was_seen_for_too_long(watch: Watch, clock: ManualClock) -> None:
    run, later = TimedRun("job", 1, 5000), TimedRun("job", 2, 5000)
    assert watch.overdue([run]) == []
    clock.advance(5)
    assert watch.overdue([run, later]) == [run]
    clock.advance(5)
    assert watch.overdue([later]) == [later]


def test_a_run_that_was_not_seen_meanwhile_counts_anew(watch: Watch, clock: ManualClock) -> None:
    run = TimedRun("job", 1, 5000)
    watch.overdue([run])
    watch.overdue([])
    clock.advance(5)
    assert watch.overdue([run]) == []


def test_without_heartbeats_the_last_sign_of_life_counts(watch: Watch, clock: ManualClock) -> None:
    info = replace(WORKER, seen_at=to_datetime(clock.now()), alive=True)
    clock.advance(LEASE)
    assert not watch.with_liveness(info).alive
    watch.is_silent("w1", 1)
    assert watch.with_liveness(info).alive
    watch.stop()
    assert not watch.with_liveness(info).alive
