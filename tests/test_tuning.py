"""What a worker or a long import sets for the process, and leaves as it was."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from mainspring.tuning import SWITCH_INTERVAL, THRESHOLDS, tuned


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


def test_all_of_it_ends_with_the_worker() -> None:
    before, frozen = (sys.getswitchinterval(), gc.get_threshold()), gc.get_freeze_count()
    with tuned():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > 0
    assert (sys.getswitchinterval(), gc.get_threshold()) == before
    assert gc.get_freeze_count() <= frozen  # Python 3.12 starts with some frozen; `unfreeze` thaws these too


@pytest.mark.parametrize("own", [(50_000, 5, 5), (0, 0, 0)])
def test_an_application_that_has_decided_about_garbage_is_heard(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with tuned():
        assert gc.get_threshold() == own


def test_the_last_to_end_restores_what_was_before() -> None:
    before = sys.getswitchinterval(), gc.get_threshold()
    first, second = tuned(), tuned()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == THRESHOLDS
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)
    second.__exit__(None, None, None)
    assert (sys.getswitchinterval(), gc.get_threshold()) == before
