"""What people do with petitions. Each deadline is scheduled in the transaction that gives rise to it."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID, uuid4

from examples.petitions.application.ports import BeginWork, JobSchedulerProtocol
from examples.petitions.domain.models import Petition, PetitionState, Referral, ReferralState


class WrongState(ValueError):
    """The petition or referral is not in a state that allows this."""


class PetitionService:
    def __init__(self, begin: BeginWork, scheduler: JobSchedulerProtocol) -> None:
        self._begin = begin
        self._scheduler = scheduler

    async def submit(self, title: str) -> Petition:
        petition = Petition(uuid4(), title, PetitionState.RECEIVED)
        async with self._begin() as work:
            await work.petitions.add(petition)
        return petition

    async def cosign(self, petition_id: UUID, name: str) -> None:
        """Add a co-signer; a name counts once."""
        async with self._begin() as work:
            await work.petitions.add_cosigner(petition_id, name)

    async def refer(self, petition_id: UUID, knight: str, deadline: datetime) -> tuple[Referral, UUID]:
        """Refer a petition to a knight; return the referral, and the job that fires at its deadline."""
        referral = Referral(uuid4(), petition_id, knight, ReferralState.OPEN)
        async with self._begin() as work:
            petition = await work.petitions.get(petition_id)
            require(petition, PetitionState.RECEIVED)
            await work.petitions.add_referral(referral, deadline)
            await work.petitions.set_state(petition_id, PetitionState.REFERRED)
            payload = {"petition_id": str(petition_id), "referral_id": str(referral.id)}
            return referral, await work.schedule("referral_timeout", payload, deadline)

    async def answer(self, referral: Referral, job_id: UUID) -> None:
        """Record the knight's answer, and cancel the deadline.

        If the process dies in between, the deadline fires, finds the referral answered, and does nothing.
        """
        async with self._begin() as work:
            found = await work.petitions.get_referral(referral.id)
            if found.state is not ReferralState.OPEN:
                raise WrongState(f"referral {referral.id} is {found.state}; only an open one can be answered")
            await work.petitions.set_referral_state(referral.id, ReferralState.ANSWERED)
            await work.petitions.set_state(referral.petition_id, PetitionState.RECEIVED)
        await self._scheduler.cancel(job_id)

    async def deliberate(self, petition_id: UUID, deadline: datetime) -> UUID:
        """Begin the deliberation; return the job that fires at its deadline."""
        async with self._begin() as work:
            require(await work.petitions.get(petition_id), PetitionState.RECEIVED)
            await work.petitions.set_state(petition_id, PetitionState.DELIBERATING)
            return await work.schedule("deliberation_timeout", {"petition_id": str(petition_id)}, deadline)

    async def decide(self, petition_id: UUID, job_id: UUID) -> None:
        async with self._begin() as work:
            require(await work.petitions.get(petition_id), PetitionState.DELIBERATING)
            await work.petitions.set_state(petition_id, PetitionState.DECIDED)
        await self._scheduler.cancel(job_id)


def require(petition: Petition, state: PetitionState) -> None:
    if petition.state is not state:
        raise WrongState(f"petition {petition.id} is {petition.state}; it must be {state} for this")
