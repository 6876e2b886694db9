"""A store that never sees its own `ref` again: it must then search for the job, which is the slow way to ack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mainspring.job import Outcome, Status
from mainspring.stores.sqlite import SqliteStore


class ForgetfulStore(SqliteStore):
    async def ack(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        return await super().ack([replace(outcome, ref=None) for outcome in outcomes])
