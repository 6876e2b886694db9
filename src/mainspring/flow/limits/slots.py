"""The state of a `Limit`: who holds its places. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mainspring.clock import Millis

LOOK_EVERY: Millis = 20_000  # so long may a place stay empty, or held by the dead, if nobody tells
RENEW: Millis = 16_000  # of that; what comes due sooner than that rouses all workers
KEEP: Millis = 3_600_000  # how long an unused limit is shown


@dataclass(slots=True)
class Slots:
    size: int
    holders: dict[str, int] = field(default_factory=dict)  # job -> the token under which it runs
    waiting: bool = False  # jobs may be suspended until they are called

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Slots:
        return cls(data["size"], dict(data["holders"]), data["waiting"])

    def to_data(self) -> dict[str, Any]:
        return {"size": self.size, "holders": dict(self.holders), "waiting": self.waiting}

    def differs(self, before: Mapping[str, Any]) -> bool:
        return self.to_data() != before

    @property
    def idle(self) -> bool:
        """As good as if there were none; but limits are shown for a while."""
        return False

    @property
    def room(self) -> int:
        return max(0, self.size - len(self.holders))

    def has_room_for(self, job_id: str) -> bool:
        """Also for a job whose last run has not been struck out yet: it has that run's place."""
        return job_id in self.holders or self.room > 0

    def take(self, job_id: str, token: int) -> None:
        self.holders[job_id] = token

    def leave(self, job_id: str, token: int) -> bool:
        """Whether a place is free by that. A run that lost its claim cannot give up the place of the next one."""
        if self.holders.get(job_id) != token:
            return False
        del self.holders[job_id]
        return True

    def drop(self, gone: Iterable[tuple[str, int]]) -> int:
        return sum(self.leave(job_id, token) for job_id, token in gone)

    def due_at(self, now: Millis, before: Millis | None) -> Millis | None:
        """When to look whether all is right. Not put off at each change, and not so near that it rouses others."""
        if not self.holders and not self.waiting:
            return None
        is_near = before is not None and now + RENEW < before <= now + LOOK_EVERY  # beyond that: by a wrong clock
        return before if is_near else now + LOOK_EVERY

    def expires_at(self, now: Millis) -> Millis | None:
        return None if self.holders or self.waiting else now + KEEP
