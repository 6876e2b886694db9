"""The state of one key of a fair task: how many of its jobs are out of the line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mainspring.clock import Millis
from mainspring.flow.limits.slots import Slots

UNANSWERED: Millis = 30_000  # if nothing of a key is ready or runs, calls are lost after that
FRESH: Millis = (
    20_000  # so long turns are passed on without a word; less than UNANSWERED, so that what is older stands still
)
DOUBT: Millis = 1_000  # so long after jobs line up it is checked that they, or others of their key, are called
TOGETHER: Millis = 500  # such checks of many keys come due at the same times
IN_LINE: Millis = 60_000  # so long after a note that jobs line up it is believed: they may be on their way


@dataclass(slots=True)
class Turns(Slots):
    """Out are those that were let out and have not ended, ready or running: there are no more of one key than that.

    Holders are only those that nobody had let out, as their time came by itself: retries, jobs for later.
    """

    called: int = 0
    called_at: Millis = 0
    noted_at: Millis = 0  # when somebody last said that jobs line up
    doubted_at: Millis = (
        0  # since when jobs may be in line that no process will call, as theirs died; 0: there are none
    )
    short: bool = False  # more have left than were counted: what we know of the count is old, or it was wrong

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
        """So many of them, or as many as there is room for."""
        number = min(number, self.room)
        if number:
            self.called += number
            self.called_at = now
        return number

    def nobody_came(self, number: int, now: Millis) -> None:
        """They were called, and there were fewer in the line."""
        self._count_off(number)
        if now - self.noted_at > IN_LINE:
            self.waiting = False

    def _count_off(self, number: int) -> None:
        self.short = self.short or self.called < number
        self.called = max(0, self.called - number)

    def note(self, now: Millis) -> None:
        """Jobs line up, or are about to. Whether they are called is checked soon: their process may die before that."""
        self.waiting = True
        self.noted_at = max(now, self.noted_at + 1)  # each note is another one
        self.doubted_at = self.doubted_at or now

    def is_doubtful(self, now: Millis) -> bool:
        """Whether the check is due."""
        return self.doubted_at > 0 and not 0 <= now - self.doubted_at < DOUBT

    def clear_doubt(self, *, none_out: bool) -> None:
        """Do the check. If no job of the key is ready or runs, those that are counted are not there, or asleep."""
        if none_out and not self.holders:
            self.called = 0
        if self.room:
            self.noted_at += 1  # processes that found the line empty before must look at it again
        self.doubted_at = 0

    def give_up_calls(self, now: Millis) -> None:
        if not self.holders and abs(now - self.called_at) > UNANSWERED:  # far ahead: by a clock that was wrong
            self.called = 0

    def differs(self, before: Mapping[str, Any]) -> bool:
        """Not if as many were called as have left, and that has been seen to happen: nobody else need know.

        If the count fell short, it only looks as if it were the same; whoever writes finds out how things stand.
        """
        if self.short:
            return True
        data = self.to_data()
        if self.called_at - before["called_at"] < FRESH:
            data["called_at"] = before["called_at"]
        return data != before

    @property
    def idle(self) -> bool:
        return not (self.holders or self.called or self.waiting)

    def due_at(self, now: Millis, before: Millis | None) -> Millis | None:
        if self.doubted_at:
            check = min(self.doubted_at, now) + DOUBT
            return check + -check % TOGETHER
        due = Slots.due_at(self, now, before)
        return due if due is not None or not self.called else now + UNANSWERED + 1

    def expires_at(self, now: Millis) -> Millis | None:
        return None if self.called else Slots.expires_at(self, now)
