"""How a circuit breaker decides."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import Breaker
from mainspring.clock import SKEW
from mainspring.errors import ConfigurationError
from mainspring.features.breakers.rules import PROBE_LEASE, Circuit, Phase, Slice, answer, ask, merge

BREAKER = Breaker(error_rate=0.5, per=10, min_calls=4, open_for=30, max_open_for=100, probes=2)
NOW = 1_000_000


def results(good: int, bad: int, at: int = NOW) -> list[Slice]:
    return [Slice(BREAKER.slice_of(at), good, bad)]


def opened(times: int = 1) -> Circuit:
    made = Circuit()
    for _ in range(times):
        made = merge(Circuit(times=made.times), results(0, 4), BREAKER, NOW)
    return made


def half_open() -> tuple[Circuit, int]:
    before = opened()
    assert before.until is not None
    made, granted = ask(before, ["a", "b", "c"], BREAKER, before.until)
    assert (made.phase, granted) == (Phase.HALF_OPEN, frozenset("ab"))
    return made, before.until


@pytest.mark.parametrize(
    ("good", "bad", "phase"),
    [
        (0, 3, Phase.CLOSED),  # too few to tell
        (3, 1, Phase.CLOSED),
        (3, 2, Phase.CLOSED),
        (2, 2, Phase.OPEN),
        (0, 4, Phase.OPEN),
        (100, 99, Phase.CLOSED),
        (100, 0, Phase.CLOSED),
    ],
)
def test_it_opens_at_the_rate(good: int, bad: int, phase: Phase) -> None:
    assert merge(Circuit(), results(good, bad), BREAKER, NOW).phase is phase


def test_results_of_several_add_up() -> None:
    once = merge(Circuit(), results(1, 1), BREAKER, NOW)
    assert once.counted(BREAKER, NOW) == (1, 1)
    assert merge(once, results(1, 1, NOW + 1500), BREAKER, NOW + 1500).phase is Phase.OPEN


def test_what_left_the_window_counts_no_more() -> None:
    once = merge(Circuit(), results(0, 3), BREAKER, NOW)
    later = merge(once, results(3, 1, NOW + 10_000), BREAKER, NOW + 10_000)
    assert (later.phase, later.counted(BREAKER, NOW + 10_000)) == (Phase.CLOSED, (3, 1))


def test_no_call_passes_while_it_is_open() -> None:
    circuit = opened()
    assert circuit.until == NOW + 30_000
    assert ask(circuit, ["a"], BREAKER, NOW + 29_999) == (circuit, frozenset())


def test_so_many_probes_at_a_time() -> None:
    circuit, now = half_open()
    assert ask(circuit, ["d"], BREAKER, now + 1) == (circuit, frozenset())


def test_it_closes_when_all_probes_have_succeeded() -> None:
    circuit, now = half_open()
    once = answer(circuit, {"a": True}, BREAKER, now)
    assert (once.phase, ask(once, ["d"], BREAKER, now)[1]) == (Phase.HALF_OPEN, frozenset())
    done = answer(once, {"b": True}, BREAKER, now)
    assert (done.phase, done.times, done.slices) == (Phase.CLOSED, 0, ())


def test_one_that_fails_opens_it_for_longer_each_time() -> None:
    circuit = opened()
    lengths = []
    for _ in range(4):
        assert circuit.until is not None
        lengths.append(circuit.until - circuit.since)
        circuit, _granted = ask(circuit, ["a", "b"], BREAKER, circuit.until)
        circuit = answer(circuit, {"a": True, "b": False}, BREAKER, circuit.since)
        assert circuit.phase is Phase.OPEN
    assert lengths == [30_000, 60_000, 100_000, 100_000]


def test_one_that_cannot_tell_makes_room_for_another() -> None:
    circuit, now = half_open()
    after = answer(circuit, {"a": None}, BREAKER, now)
    assert (after.passed, ask(after, ["d", "e"], BREAKER, now)[1]) == (0, frozenset("d"))


def test_a_probe_that_is_not_heard_of_makes_room_and_is_heard_late() -> None:
    circuit, now = half_open()
    later = now + PROBE_LEASE
    circuit, granted = ask(circuit, ["d"], BREAKER, later)
    assert granted == {"d"}
    assert answer(circuit, {"a": True, "d": True}, BREAKER, later).phase is Phase.CLOSED


def test_what_was_begun_before_it_opened_says_nothing() -> None:
    circuit, now = half_open()
    assert answer(circuit, {"x": False}, BREAKER, now) == circuit
    assert merge(circuit, results(0, 9, now), BREAKER, now) == circuit
    closed = answer(circuit, {"a": True, "b": True}, BREAKER, now)
    assert merge(closed, results(0, 9, now - 5000), BREAKER, now).phase is Phase.CLOSED


def test_what_a_clock_that_was_ahead_has_written_moves_back_to_now() -> None:
    circuit, now = half_open()
    assert circuit.rewound(now - SKEW) is circuit
    assert opened().rewound(NOW - 3_600_000).until == NOW - 3_600_000 + 30_000
    assert set(circuit.rewound(now - 3_600_000).probes.values()) == {now - 3_600_000 + PROBE_LEASE}
    counted = merge(Circuit(), results(1, 1), BREAKER, NOW).rewound(NOW - 3_600_000)
    assert (counted.since, counted.counted(BREAKER, NOW - 3_600_000)) == (0, (1, 1))


def test_it_is_read_as_it_was_written() -> None:
    for circuit in (Circuit(), merge(Circuit(), results(1, 1), BREAKER, NOW), opened(), half_open()[0]):
        assert Circuit.from_json(circuit.to_json()) == circuit


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"error_rate": 0}, "error_rate is 0"),
        ({"error_rate": 1.5}, "error_rate is 1.5"),
        ({"min_calls": 0}, "at least 1"),
        ({"probes": 0}, "at least 1"),
        ({"per": 0}, "lengths of time"),
        ({"open_for": -1}, "lengths of time"),
        ({"counts": OSError}, "tuple of exception types"),
        ({"counts": ("OSError",)}, "tuple of exception types"),
    ],
)
def test_what_cannot_be(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Breaker(**fields)
