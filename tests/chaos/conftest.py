"""What all chaos tests share. `MAINSPRING_CHAOS=long` is the long form, `MAINSPRING_CHAOS_SEED` repeats a run."""

from __future__ import annotations

import faulthandler
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.nursery import Forks, Nursery


@dataclass(frozen=True)
class Chaos:
    """How much, and by which dice."""

    long: bool
    seed: int

    def size(self, short: int, long: int) -> int:
        return long if self.long else short

    def rng(self) -> random.Random:
        return random.Random(self.seed)


@pytest.fixture
def chaos() -> Chaos:
    seed = int(os.environ.get("MAINSPRING_CHAOS_SEED") or random.randrange(2**32))
    print(f"MAINSPRING_CHAOS_SEED={seed}")  # pytest shows it when the test fails
    long = os.environ.get("MAINSPRING_CHAOS") == "long"
    if long:
        faulthandler.cancel_dump_traceback_later()  # minutes are in order here
    return Chaos(long, seed)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    with Forks() as made:
        yield made


@pytest.fixture
def nursery(forks: Forks, tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(forks, tmp_path) as made:
        yield made
