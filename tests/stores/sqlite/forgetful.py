"""A store that never sees its own `ref` again: it must then search for the job, which is the slow way to ack."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.job import Outcome, Status
from mainspring.stores.sqlite import SqliteStore


class ForgetfulStore(SqliteStore):
    async def ack(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        for outcome in outcomes:
            outcome.ref = None
        return await super().ack(outcomes)
