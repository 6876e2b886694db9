"""The port to the database: one transaction at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from examples.petitions.domain.models import Notice, Petition, PetitionState, Referral, ReferralState, ScheduledJob


class PetitionRepository(Protocol):
    async def add(self, petition: Petition) -> None: ...

    async def get(self, petition_id: UUID) -> Petition:
        """Return a petition, locked until the transaction ends. Raise LookupError if there is none."""
        ...

    async def set_state(self, petition_id: UUID, state: PetitionState) -> None: ...

    async def add_referral(self, referral: Referral, deadline: datetime) -> None: ...

    async def get_referral(self, referral_id: UUID) -> Referral: ...

    async def set_referral_state(self, referral_id: UUID, state: ReferralState) -> None: ...

    async def add_cosigner(self, petition_id: UUID, name: str) -> None: ...

    async def with_cosigners(self, at_least: int) -> Sequence[Petition]:
        """Return received petitions with at least this many co-signers, locked until the transaction ends."""
        ...


class EffectLog(Protocol):
    """Which jobs have taken effect. A job takes effect once: its second row is refused."""

    async def applied(self, job_id: UUID) -> Sequence[Notice] | None:
        """Return the notices of a job that took effect before; None if it did not."""
        ...

    async def record(self, job: ScheduledJob, notices: Sequence[Notice]) -> None: ...


class Work(Protocol):
    """One transaction. Its parts are committed together, or not at all."""

    @property
    def petitions(self) -> PetitionRepository: ...

    @property
    def effects(self) -> EffectLog: ...

    async def schedule(self, job_type: str, payload: dict[str, Any], run_at: datetime) -> UUID:
        """Schedule a deadline that exists if the transaction commits, and only then."""
        ...


BeginWork = Callable[[], AbstractAsyncContextManager[Work]]
