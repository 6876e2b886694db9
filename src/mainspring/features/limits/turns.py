"""The state of one key of a fair task: how many of its jobs are ready or running. The code here does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mainspring.clock import Millis
from mainspring.features.limits.slots import Slots

LOST_AFTER: Millis = 30_000  # if no job of a key is ready or running this long after a wake-up, it was lost
# How long turns are passed on without a write. Less than LOST_AFTER, so that a `called_at` older than that means
# that no turns are passed on any more.
UNWRITTEN_FOR: Millis = 20_000
CHECK_AFTER: Millis = 1_000  # after jobs start to wait; then the timer checks that jobs of their key are woken
CHECK_STEP: Millis = 500  # these checks are rounded up to multiples of this, so that many come due together
EXPECTED_FOR: Millis = 60_000  # how long announced jobs are expected to wait, even if none is found


@dataclass(slots=True)
class Turns(Slots):
    """Counts the jobs of one key that may be ready or running. Together they use up the key's width.

    `called` counts the jobs that were inserted as ready or woken, and have not ended. `holders` are the jobs that
    became due by themselves: retries, and jobs enqueued for later.
    """

    called: int = 0
    called_at: Millis = 0
    noted_at: Millis = 0  # when a process last announced that jobs wait
    doubted_at: Millis = 0  # since when jobs may wait that no process will wake, as theirs died; 0: there are none
    short: bool = False  # more jobs have left than were counted: the known count is outdated, or was wrong

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Turns:
        return cls(**{**data, "holders": dict(data["holders"])})

    def to_data(self) -> dict[str, Any]:
        times = {"called_at": self.called_at, "noted_at": self.noted_at, "doubted_at": self.doubted_at}
        return {**Slots.to_data(self), "called": self.called, **times}

    @property
    def room(self) -> int:
        return max(0, self.size - len(self.holders) - self.called)

    def has_room_for(self, job_id: str) -> bool:
        return job_id in self.holders or self.called > 0 or self.room > 0

    def take(self, job_id: str, token: int) -> None:
        if job_id not in self.holders:
            self.called = max(0, self.called - 1)
        self.holders[job_id] = token

    def depart(self, job_id: str, token: int, *, called: bool) -> None:
        if not self.leave(job_id, token) and called:
            self._count_off(1)

    def call(self, number: int, now: Millis) -> int:
        """Count up to `number` jobs as woken, as far as there is room; return how many."""
        number = min(number, self.room)
        if number:
            self.called += number
            self.called_at = now
        return number

    def nobody_came(self, number: int, now: Millis) -> None:
        """Correct the count: so many jobs were to be woken, but were not found waiting."""
        self._count_off(number)
        if now - self.noted_at > EXPECTED_FOR:
            self.waiting = False

    def _count_off(self, number: int) -> None:
        self.short = self.short or self.called < number
        self.called = max(0, self.called - number)

    def note(self, now: Millis) -> None:
        """Announce that jobs wait, or are about to. Plan a check that they are woken: their process may die first."""
        self.waiting = True
        self.noted_at = max(now, self.noted_at + 1)  # each announcement has another number
        self.doubted_at = self.doubted_at or now

    def is_doubtful(self, now: Millis) -> bool:
        """Return whether the check is due."""
        return self.doubted_at > 0 and not 0 <= now - self.doubted_at < CHECK_AFTER

    def clear_doubt(self, *, none_out: bool) -> None:
        """Do the check. If no job of the key is ready or running, the counted jobs do not exist, or are suspended."""
        if none_out and not self.holders:
            self.called = 0
        if self.room:
            self.noted_at += 1  # processes that found no waiting job before must look again
        self.doubted_at = 0

    def give_up_calls(self, now: Millis) -> None:
        if not self.holders and abs(now - self.called_at) > LOST_AFTER:  # far in the future: written by a wrong clock
            self.called = 0

    def differs(self, before: Mapping[str, Any]) -> bool:
        """Return whether to write. If as many jobs were woken as have left, the count is the same: skip the write.

        If the count fell short, it only looks the same, as it is outdated. Then the write finds out the true count.
        """
        if self.short:
            return True
        data = self.to_data()
        if self.called_at - before["called_at"] < UNWRITTEN_FOR:
            data["called_at"] = before["called_at"]
        return data != before

    @property
    def idle(self) -> bool:
        return not (self.holders or self.called or self.waiting)

    def due_at(self, now: Millis, before: Millis | None) -> Millis | None:
        if self.doubted_at:
            check = min(self.doubted_at, now) + CHECK_AFTER
            return check + -check % CHECK_STEP
        due = Slots.due_at(self, now, before)
        return due if due is not None or not self.called else now + LOST_AFTER + 1

    def expires_at(self, now: Millis) -> Millis | None:
        return None if self.called else Slots.expires_at(self, now)
