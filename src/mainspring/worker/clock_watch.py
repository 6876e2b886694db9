"""Watches the clock that decides what is due: tells of jumps, and puts right what a wrong clock has left behind.

See "Clocks that jump" in docs/internals/time.md for the policy and its reasons.
"""

from __future__ import annotations

from datetime import timedelta

from mainspring.app import Mainspring
from mainspring.clock import DOUBT, GREAT_LEAP, SKEW, Millis, SteadyClock, duration, elapsed_by, to_datetime
from mainspring.events import ClockHeld, ClockSettled
from mainspring.job import Job, Status
from mainspring.log import get_log
from mainspring.stores.protocol import Action, By, Edit, Filter, Timekeeping

log = get_log("mainspring.worker")

KEEP_EVERY = 60.0  # seconds between two notes of what time it is
LONG_GAP: Millis = duration(timedelta(days=7))  # no worker has run for so long, or the clock is wrong
GAP_DOUBT: Millis = duration(timedelta(hours=1))
CHUNK = 500  # jobs
HOUR: Millis = duration(timedelta(hours=1))
RETENTION_WAITS = (
    "the clock is days ahead of what it was: nothing is deleted for another {hours:.1f} h, in case it is wrong"
)


class ClockWatch:
    """Of one worker."""

    def __init__(self, app: Mainspring) -> None:
        self._app = app
        self._clock = app.store.clock
        self._offset: Millis | None = None  # as of the last look; the store may not be open yet
        self._held: Millis = 0  # the departure that was told of
        self._kept_at = float("-inf")
        self._doubted_until: Millis = 0  # by the clock of elapsed time
        self._has_looked = False
        self._went_back: Millis = 0  # by how much, as long as the consequences have not been put right

    async def look(self) -> None:
        """Called about once a second."""
        self._tell_of_departure()
        jump = self._jump()
        if abs(jump) > SKEW:
            log.warning("clock_settled", by=jump / 1000)
            self._app.bus.emit(ClockSettled(by=jump / 1000))
        if jump > GREAT_LEAP:
            self._doubt(DOUBT)
        self._went_back = max(self._went_back, self._keep_time(at_once=jump != 0), -jump)
        if self._went_back:
            await put_right(self._app, self._went_back)  # if that fails, at the next look
            self._went_back = 0

    def may_delete(self) -> bool:
        """Whether retention may go by this clock; if not, health says so.

        Not soon after a great leap forward: what is deleted by a wrong clock is lost.
        """
        left = self._doubted_until - self._elapsed()
        self._app.contact.clock = "" if left <= 0 else RETENTION_WAITS.format(hours=left / HOUR)
        return left <= 0

    def _tell_of_departure(self) -> None:
        departure = self._clock.departure if isinstance(self._clock, SteadyClock) else None
        by = 0 if departure is None else departure.by
        if by and abs(by - self._held) > SKEW:
            log.warning("clock_jumped", by=by / 1000)
            self._app.bus.emit(ClockHeld(by=by / 1000))
            self._held = by
        elif self._held and not by:
            if not self._jump(peek=True):
                log.info("clock_returned", by=-self._held / 1000)
                self._app.bus.emit(ClockSettled(by=0.0))
            self._held = 0

    def _jump(self, *, peek: bool = False) -> Millis:
        """By how much the time that is gone by has jumped since the last look; 0 if it has not."""
        offset = self._effective_offset()
        if offset is None:
            return 0
        jump = 0 if self._offset is None else offset - self._offset
        if not peek:
            self._offset = offset
        return jump if abs(jump) > SKEW else 0

    def _keep_time(self, *, at_once: bool) -> Millis:
        """By how much the clock has gone back since a worker last wrote down what time it is; 0 if it has not."""
        store, now = self._app.store, self._clock.monotonic()
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
        """None: this process was stopped while it looked, so that the two clocks cannot be compared."""
        before, now, after = self._elapsed(), self._clock.now(), self._elapsed()
        return now - before if after - before < SKEW else None


async def put_right(app: Mainspring, by: Millis) -> None:
    """After the clock went back: what was planned by the wrong time must not wait until that comes again."""
    await app.timers.clock_went_back(by)
    now = app.store.clock.now()
    new = Filter(statuses=(Status.PENDING,), created_after=to_datetime(now + SKEW))
    due = [job.id async for job in app.jobs.all(new) if job.run_at <= job.created_at]
    retries = Filter(statuses=(Status.FAILED,), due_after=to_datetime(now + SKEW))
    moved = {job.id: at async for job in app.jobs.all(retries) if (at := retry_time(job, now)) is not None}
    for begin in range(0, len(due), CHUNK):
        await move(app, due[begin : begin + CHUNK], now)
    for job_id, at in moved.items():
        await move(app, [job_id], at)
    log.warning("clock_went_back", due=len(due), retries=len(moved))


def retry_time(job: Job, now: Millis) -> Millis | None:
    """As long from now as it was from the run that failed; None: that run was not by a wrong clock."""
    here = to_datetime(now)
    if job.started_at is None or job.started_at <= here + timedelta(milliseconds=SKEW):
        return None
    return now + duration(job.run_at - job.started_at)


async def move(app: Mainspring, ids: list[str], at: Millis) -> None:
    by = By("mainspring", "the clock went back: it was enqueued or put off by a clock that was ahead")
    await app.store.change(Action.EDIT, Filter(ids=tuple(ids)), by, edit=Edit(run_at=at), limit=CHUNK)
