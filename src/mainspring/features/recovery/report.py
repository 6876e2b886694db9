"""What recoveries have done, as the store keeps it: a document for each task that declares one."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mainspring.clock import Millis, to_datetime, to_millis
from mainspring.services import Services
from mainspring.stores.documents import Document, Listing

COLLECTION = "recovery"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What the recovery of a task has done, whichever processes did it."""

    task: str
    fired_ms: Millis = 0
    next_at: datetime | None = None
    recovered_at: datetime | None = None  # when it last retried jobs
    recovered: int = 0  # jobs that it retried then
    exhausted: int = 0  # jobs that it left at its last look, because they were recovered `max_times` times
    total: int = 0  # jobs that it has retried in all

    @property
    def fired_at(self) -> datetime | None:
        """When it last looked for jobs."""
        return to_datetime(self.fired_ms) if self.fired_ms else None

    @classmethod
    def of(cls, document: Document) -> Recovery:
        data: dict[str, Any] = json.loads(document.data)
        at = data.get("recovered_at")
        return cls(
            document.key.id,
            int(data.get("fired_at", 0)),
            None if document.due_at is None else to_datetime(document.due_at),
            None if at is None else to_datetime(at),
            **{name: int(data.get(name, 0)) for name in ("recovered", "exhausted", "total")},
        )

    def to_data(self) -> str:
        at = None if self.recovered_at is None else to_millis(self.recovered_at)
        numbers = {"recovered": self.recovered, "exhausted": self.exhausted, "total": self.total}
        return json.dumps({"fired_at": self.fired_ms, "recovered_at": at, **numbers})

    def fired(self, now: Millis) -> Recovery:
        return replace(self, fired_ms=now)

    def with_result(self, now: Millis, recovered: int, exhausted: int) -> Recovery:
        """Return it after a look. One that retried nothing keeps the numbers of the last time that did."""
        looked = replace(self, exhausted=exhausted)
        if not recovered:
            return looked
        return replace(looked, recovered_at=to_datetime(now), recovered=recovered, total=self.total + recovered)


async def recoveries(services: Services) -> list[Recovery]:
    """Return what the recoveries of all tasks have done, also of tasks that only other programs know."""
    return [Recovery.of(document) for document in await services.store.browse(Listing(COLLECTION, limit=1000))]
