"""The state of a `Limit`: which jobs hold its slots. The code here does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mainspring.clock import Millis

CHECK_EVERY: Millis = 20_000  # how long a slot may stay free, or held by a dead run, until the timer checks it
RENEW_WITHIN: Millis = 16_000  # a check planned nearer than this is moved: a near one would wake all workers
UNUSED_RETENTION: Millis = 3_600_000  # how long an unused limit is still shown


@dataclass(slots=True)
class Slots:
    """The holders of a limit's slots."""

    size: int
    holders: dict[str, int] = field(default_factory=dict)  # job -> the token under which it runs
    waiting: bool = False  # jobs may be suspended until they are woken

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Slots:
        return cls(data["size"], dict(data["holders"]), data["waiting"])

    def to_data(self) -> dict[str, Any]:
        return {"size": self.size, "holders": dict(self.holders), "waiting": self.waiting}

    def differs(self, before: Mapping[str, Any]) -> bool:
        return self.to_data() != before

    @property
    def idle(self) -> bool:
        """Return whether the document can be deleted. It is kept, as limits are shown for a while."""
        return False

    @property
    def room(self) -> int:
        return max(0, self.size - len(self.holders))

    def has_room_for(self, job_id: str) -> bool:
        """Return whether the job may start. If its last run is still listed as a holder, it takes over that slot."""
        return job_id in self.holders or self.room > 0

    def take(self, job_id: str, token: int) -> None:
        self.holders[job_id] = token

    def leave(self, job_id: str, token: int) -> bool:
        """Release a slot; return whether it was held. A run that lost its claim cannot release its successor's slot."""
        if self.holders.get(job_id) != token:
            return False
        del self.holders[job_id]
        return True

    def drop(self, gone: Iterable[tuple[str, int]]) -> int:
        return sum(self.leave(job_id, token) for job_id, token in gone)

    def due_at(self, now: Millis, before: Millis | None) -> Millis | None:
        """Return when to check the limit: as planned before, unless a check so near would wake all workers."""
        if not self.holders and not self.waiting:
            return None
        # if it is later than that, a wrong clock has planned it
        is_near = before is not None and now + RENEW_WITHIN < before <= now + CHECK_EVERY
        return before if is_near else now + CHECK_EVERY

    def expires_at(self, now: Millis) -> Millis | None:
        return None if self.holders or self.waiting else now + UNUSED_RETENTION
