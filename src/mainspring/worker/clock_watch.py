"""Watches the clock that decides what is due: reports jumps, and repairs what a wrong clock has left behind.

"Clocks that jump" in docs/internals/time.md explains the policy and its reasons.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from mainspring.clock import DOUBT, GREAT_LEAP, SKEW, Millis, SteadyClock, duration, elapsed_by, to_datetime
from mainspring.events import ClockHeld, ClockSettled
from mainspring.job import Job, Status
from mainspring.log import get_log
from mainspring.runtime import Runtime
from mainspring.stores.documents import By
from mainspring.stores.protocol import Action, Edit, Filter, Timekeeping

log = get_log("mainspring.worker")

KEEP_EVERY = 60.0  # seconds after which the current time is written to the store again
LONG_GAP: Millis = duration(timedelta(days=7))  # after such a gap, either no worker has run or the clock is wrong
GAP_DOUBT: Millis = duration(timedelta(hours=1))  # for how long nothing is deleted after such a gap
PAGE_SIZE = 500  # jobs to change at a time
HOUR: Millis = duration(timedelta(hours=1))
MAX_SNOOZE: Millis = HOUR  # jobs that were snoozed for longer keep their time: there may be very many jobs for later
RETENTION_WAITS = (
    "the clock is days ahead of what it was: nothing is deleted for another {hours:.1f} h, in case it is wrong"
)


class ClockWatch:
    """The clock watch of one worker."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._clock = runtime.store.clock
        self._offset: Millis | None = None  # at the last look; None at first, as the store may not be open yet
        self._held: Millis = 0  # the departure of the clock that was reported
        self._kept_at = float("-inf")
        self._doubted_until: Millis = 0  # by the clock of elapsed time
        self._has_looked = False
        self._went_back: Millis = 0  # by how much the clock went back, until the consequences are repaired

    async def look(self) -> None:
        """Look for a jump and act on it. The worker calls this about once a second."""
        self._tell_of_departure()
        jump = self._jump()
        if abs(jump) > SKEW:
            log.warning("clock_settled", by=jump / 1000)
            self._runtime.bus.emit(ClockSettled(by=jump / 1000))
        if jump > GREAT_LEAP:
            self._doubt(DOUBT)
        self._went_back = max(self._went_back, self._keep_time(at_once=jump != 0), -jump)
        if self._went_back:
            await put_right(self._runtime, self._went_back)  # if that fails, the next look tries again
            self._went_back = 0

    def may_delete(self) -> bool:
        """Return whether retention may trust this clock; if not, the health check says so.

        It may not for a while after a great leap forward: what a wrong clock deletes is lost.
        """
        left = self._doubted_until - self._elapsed()
        self._runtime.contact.clock = "" if left <= 0 else RETENTION_WAITS.format(hours=left / HOUR)
        return left <= 0

    def _tell_of_departure(self) -> None:
        departure = self._clock.departure if isinstance(self._clock, SteadyClock) else None
        by = 0 if departure is None else departure.by
        if by and abs(by - self._held) > SKEW:
            log.warning("clock_jumped", by=by / 1000)
            self._runtime.bus.emit(ClockHeld(by=by / 1000))
            self._held = by
        elif self._held and not by:
            if not self._jump(peek=True):
                log.info("clock_returned", by=-self._held / 1000)
                self._runtime.bus.emit(ClockSettled(by=0.0))
            self._held = 0

    def _jump(self, *, peek: bool = False) -> Millis:
        """Return by how much the time that jobs go by has jumped since the last look; 0 if it has not."""
        offset = self._effective_offset()
        if offset is None:
            return 0
        jump = 0 if self._offset is None else offset - self._offset
        if not peek:
            self._offset = offset
        return jump if abs(jump) > SKEW else 0

    def _keep_time(self, *, at_once: bool) -> Millis:
        """Return by how much the clock has gone back since a worker last stored the time; 0 if it has not."""
        store, now = self._runtime.store, self._clock.monotonic()
        if not isinstance(store, Timekeeping) or not (at_once or now - self._kept_at >= KEEP_EVERY):
            return 0
        self._kept_at = now
        before, doubted_until = store.keep_time(self._doubted_until)
        self._doubted_until = max(self._doubted_until, doubted_until)
        first, self._has_looked = not self._has_looked, True
        if not first or before is None:
            return 0
        if self._clock.now() - before > LONG_GAP:
            self._doubt(GAP_DOUBT)
        back = before - self._clock.now()
        return back if back > SKEW else 0

    def _doubt(self, length: Millis) -> None:
        self._doubted_until = self._elapsed() + length
        log.warning("retention_waits", seconds=length / 1000)

    def _elapsed(self) -> Millis:
        return int(elapsed_by(self._clock) * 1000)

    def _effective_offset(self) -> Millis | None:
        """Return the time minus the elapsed time; None if the process was stopped in between, which spoils it."""
        before, now, after = self._elapsed(), self._clock.now(), self._elapsed()
        return now - before if after - before < SKEW else None


async def put_right(runtime: Runtime, by: Millis) -> None:
    """Move what was planned by a clock that went back since; otherwise it would wait until that time comes again."""
    await runtime.timers.clock_went_back(by)
    now = runtime.store.clock.now()
    new = Filter(statuses=(Status.PENDING,), created_after=to_datetime(now + SKEW))
    due = [job.id async for job in runtime.jobs.all(new) if job.run_at <= job.created_at]
    moved = {job.id: at async for job in put_off(runtime, now, by) if (at := next_run_time(job, now)) is not None}
    for begin in range(0, len(due), PAGE_SIZE):
        await move(runtime, due[begin : begin + PAGE_SIZE], now)
    for job_id, at in moved.items():
        await move(runtime, [job_id], at)
    log.warning("clock_went_back", due=len(due), put_off=len(moved))


async def put_off(runtime: Runtime, now: Millis, by: Millis) -> AsyncIterator[Job]:
    """Yield the jobs whose last run may have put them off, by a retry or a snooze, with a clock that was ahead."""
    later = to_datetime(now + SKEW)
    async for job in runtime.jobs.all(Filter(statuses=(Status.RETRYING,), due_after=later)):
        yield job
    last = to_datetime(now + by + MAX_SNOOZE)
    async for job in runtime.jobs.all(Filter(statuses=(Status.PENDING,), due_after=later, due_before=last)):
        yield job


def next_run_time(job: Job, now: Millis) -> Millis | None:
    """Return a time as far from now as the next run was from the last one; None if that run's time was right.

    Several workers do this at about the same time. A job that is due before its last run began was moved by another.
    """
    if job.started_at is None or job.started_at <= to_datetime(now + SKEW) or job.run_at < job.started_at:
        return None
    return now + duration(job.run_at - job.started_at)


async def move(runtime: Runtime, ids: list[str], at: Millis) -> None:
    by = By("mainspring", "the clock went back: it was enqueued or put off by a clock that was ahead")
    await runtime.store.change(Action.EDIT, Filter(ids=tuple(ids)), by, edit=Edit(run_at=at), limit=PAGE_SIZE)
