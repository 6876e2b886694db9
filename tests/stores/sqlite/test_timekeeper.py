"""The processes of one machine agree on what time it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.clock import SETTLE_SECONDS, SteadyClock
from mainspring.stores.protocol import Timekeeping
from mainspring.stores.sqlite import SqliteStore, timekeeper
from mainspring.testing.clock import ManualClock

HOUR = 3_600_000


async def process(folder: Path, machine: ManualClock) -> SqliteStore:
    """One that starts now."""
    store = SqliteStore(folder / "jobs.db", clock=SteadyClock(machine))
    (folder / "jobs.db-workers").mkdir(exist_ok=True)
    await store.open()
    return store


async def test_a_process_that_starts_while_the_clock_is_wrong_goes_by_the_others_time(tmp_path: Path) -> None:
    machine = ManualClock()
    first = await process(tmp_path, machine)
    assert isinstance(first, Timekeeping)
    assert first.keep_time(0) == (None, 0)
    begin = machine.now()
    machine.shift(3600)
    second = await process(tmp_path, machine)
    assert (first.clock.now(), second.clock.now()) == (begin, begin)
    assert second.keep_time(0) == (begin, 0)  # and it writes nothing while it is in doubt
    machine.shift(-3600)
    assert second.clock.now() == begin
    await first.close()
    await second.close()


async def test_a_jump_that_one_of_them_believes_is_believed_by_all(tmp_path: Path) -> None:
    machine = ManualClock()
    first, second = [await process(tmp_path, machine) for _ in range(2)]
    machine.shift(3600)
    first.clock.now()
    machine.advance(SETTLE_SECONDS)
    assert first.clock.now() == machine.now()
    first.keep_time(0)
    assert second.clock.now() == machine.now()  # though it has not looked until now
    await first.close()
    await second.close()


async def test_a_time_written_before_a_reboot_is_only_a_lower_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = ManualClock()
    before = await process(tmp_path, machine)
    before.keep_time(7)
    written = machine.now()
    await before.close()
    monkeypatch.setattr(timekeeper, "this_machine", lambda: "started again")
    machine.shift(-3600)
    after = await process(tmp_path, machine)
    assert after.clock.now() == machine.now()
    assert after.keep_time(0) == (written, 0)
    assert after.keep_time(9) == (machine.now(), 0)
    assert after.keep_time(0) == (machine.now(), 9)
    await after.close()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"machine": 1, "more": 2}'])
async def test_a_file_that_cannot_be_read_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "jobs.db-workers").mkdir()
    (tmp_path / "jobs.db-workers" / "clock").write_text(text)
    store = await process(tmp_path, ManualClock())
    assert store.keep_time(0) == (None, 0)
    await store.close()


async def test_without_a_directory_nothing_is_written(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    await store.open()
    assert (store.keep_time(0), store.keep_time(0)) == ((None, 0), (None, 0))
    await store.close()
