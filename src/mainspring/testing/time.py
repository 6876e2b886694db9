"""Virtual time for tests: a year passes in a moment, and every job that is due in it runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from mainspring.clock import Length, Millis, duration, to_datetime, to_millis
from mainspring.testing.apart import run_apart
from mainspring.testing.clock import ManualClock
from mainspring.testing.recorder import MAX_RUNS, Ran, Recorder, raise_failures, run_all


class VirtualTime:
    """The time of a kit, `kit.time`. It passes only when you advance it.

    `app.now()` and the store use it; `datetime.now()` and `asyncio.sleep()` do not.
    """

    def __init__(self, clock: ManualClock, recorder: Callable[[], Recorder]) -> None:
        self._clock = clock
        self._recorder = recorder

    def now(self) -> datetime:
        return to_datetime(self._clock.now())

    async def advance(
        self,
        length: Length = 0,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        raise_errors: bool = False,
        limit: int = MAX_RUNS,
    ) -> list[Ran]:
        """Go from each due time to the next and run the jobs due then. The options are those of `Kit.drain`."""
        named = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
        until = self._clock.now() + duration(length) + duration(named)
        return await self._pass_until(until, raising=raise_errors, limit=limit)

    async def advance_to(self, moment: datetime, *, raise_errors: bool = False, limit: int = MAX_RUNS) -> list[Ran]:
        return await self._pass_until(to_millis(moment), raising=raise_errors, limit=limit)

    def advance_to_sync(self, moment: datetime, *, raise_errors: bool = False, limit: int = MAX_RUNS) -> list[Ran]:
        return run_apart(self.advance_to(moment, raise_errors=raise_errors, limit=limit))

    def advance_sync(
        self,
        length: Length = 0,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        raise_errors: bool = False,
        limit: int = MAX_RUNS,
    ) -> list[Ran]:
        work = self.advance(
            length, weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds, raise_errors=raise_errors,
            limit=limit,
        )  # fmt: skip
        return run_apart(work)

    async def _pass_until(self, until: Millis, *, raising: bool, limit: int) -> list[Ran]:
        recorder = self._recorder()
        async with recorder.draining() as run_due:
            while (due := (await run_all(run_due, limit)).next_due) is not None and due <= until:
                self._move_to(due)
        self._move_to(until)
        if raising:
            raise_failures(recorder.ran)
        return recorder.ran

    def _move_to(self, moment: Millis) -> None:
        self._clock.advance(timedelta(milliseconds=moment - self._clock.now()))
