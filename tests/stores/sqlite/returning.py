"""A store that is given its own `ref` back with each outcome, as workers do it: that is the quick way to ack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mainspring.job import Outcome, Status
from mainspring.stores.protocol import Claims
from mainspring.stores.sqlite import SqliteStore


class ReturningStore(SqliteStore):
    """Callers need not know of refs: it remembers them by job, and a zombie is given the newest one."""

    _refs: dict[str, Any]

    async def claim(self, *args: Any, **kwargs: Any) -> Claims:
        claims = await super().claim(*args, **kwargs)
        self._refs = {**getattr(self, "_refs", {}), **{job.id: job.ref for job in claims.jobs}}
        return claims

    async def ack(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        refs = getattr(self, "_refs", {})
        return await super().ack([replace(outcome, ref=refs.get(outcome.job_id)) for outcome in outcomes])
