from __future__ import annotations

import itertools
import logging
from typing import Any, cast

import pytest

from mainspring.errors import StoreFull, StoreUnavailable, StoreVanished
from mainspring.health import Contact
from mainspring.worker.outage import FIRST_REMINDER, LONGEST_REMINDER, Outage
from tests.worker.working import FakeContact, eventually, fields_of


class Watch:
    """Shows the time that it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def outage(watch: Watch) -> Outage:
    return Outage("w", monotonic=watch)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="mainspring")
    return caplog


def warnings(log: Any) -> list[tuple[str, float]]:
    """Of which loop, and how long the store had been away."""
    return [(line["loop"], line["gone_for"]) for line in fields_of(log, "store_unavailable")]


def test_it_is_told_of_at_growing_intervals(outage: Outage, watch: Watch, log: pytest.LogCaptureFixture) -> None:
    for second in range(4000):
        watch.now = float(second)
        outage.failed("claim", StoreUnavailable())
    moments = [gone_for for _, gone_for in warnings(log)]
    pauses = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert pauses == [min(FIRST_REMINDER * 2**n, LONGEST_REMINDER) for n in range(len(pauses))]
    assert pauses[-1] == LONGEST_REMINDER


def test_of_several_loops_the_first_is_told_of(outage: Outage, log: pytest.LogCaptureFixture) -> None:
    for loop in ("heartbeat", "claim", "maintenance", "heartbeat"):
        outage.failed(loop, StoreUnavailable())
    assert warnings(log) == [("heartbeat", 0.0)]


def test_another_kind_of_error_is_news(outage: Outage, log: pytest.LogCaptureFixture) -> None:
    for error in (StoreVanished("gone"), StoreFull("full"), StoreVanished("gone"), StoreFull("full")):
        outage.failed("claim", error)
    assert [line["error"] for line in fields_of(log, "store_unavailable")] == ["StoreVanished: gone", "StoreFull: full"]


def test_the_end_is_told_of_when_all_are_back(outage: Outage, watch: Watch, log: pytest.LogCaptureFixture) -> None:
    outage.failed("claim", StoreUnavailable())
    watch.now = 3.0
    outage.failed("heartbeat", StoreUnavailable())
    watch.now = 4.0
    outage.worked("heartbeat")
    outage.worked("maintenance")  # which had not tried
    assert not fields_of(log, "store_back")
    watch.now = 8.0  # it waited before it tried again
    outage.worked("claim")
    outage.worked("claim")
    assert fields_of(log, "store_back") == [{"worker": "w", "gone_for": 4.0, "failures": 2}]


def test_one_that_fails_again_meanwhile_shows_that_it_was_not_over(
    outage: Outage, watch: Watch, log: pytest.LogCaptureFixture
) -> None:
    outage.failed("claim", StoreUnavailable())
    outage.failed("acks", StoreUnavailable())
    outage.worked("claim")
    watch.now = 2.0
    outage.failed("claim", StoreUnavailable())
    watch.now = 5.0
    outage.worked("claim")
    outage.worked("acks")
    assert fields_of(log, "store_back") == [{"worker": "w", "gone_for": 5.0, "failures": 3}]


def test_the_next_one_is_told_of_anew(outage: Outage, watch: Watch, log: pytest.LogCaptureFixture) -> None:
    for second in (0.0, 1.0):
        watch.now = second
        outage.failed("claim", StoreUnavailable())
        outage.worked("claim")
    assert warnings(log) == [("claim", 0.0), ("claim", 0.0)]
    assert len(fields_of(log, "store_back")) == 2


async def test_the_contact_is_told_of_each_failure_and_of_the_end() -> None:
    contact, full = FakeContact(), StoreFull()
    outage = Outage("w", cast("Contact", contact))
    outage.worked("claim")
    outage.failed("claim", full)
    outage.failed("acks", full)
    outage.worked("claim")
    await eventually(lambda: contact.told == [full, full])
    outage.worked("acks")
    await eventually(lambda: contact.told == [full, full, None])
