"""What happens when deadlines fire. Handlers only use the transaction that they are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import structlog

from examples.petitions.application.ports import BeginWork, NotificationPort, Work
from examples.petitions.domain.models import Notice, PetitionState, ReferralState, ScheduledJob

log = structlog.get_logger("petitions.deadlines")


class Deadline(Protocol):
    async def fire(self, work: Work, job: ScheduledJob) -> Sequence[Notice]:
        """Change the petition's state, and return what people are to be told."""
        ...


class ReferralTimeout:
    """The knight has not answered in time (FR-4.5): the referral expires."""

    async def fire(self, work: Work, job: ScheduledJob) -> Sequence[Notice]:
        referral = await work.petitions.get_referral(UUID(job.payload["referral_id"]))
        if referral.state is not ReferralState.OPEN:
            return []
        await work.petitions.set_referral_state(referral.id, ReferralState.EXPIRED)
        await work.petitions.set_state(referral.petition_id, PetitionState.REFERRAL_EXPIRED)
        return [Notice(f"{job.id}-0", referral.petition_id, f"{referral.knight} has not answered in time")]


class DeliberationTimeout:
    """The Three Fates have not decided in time (NFR-10.2): the petition is escalated."""

    async def fire(self, work: Work, job: ScheduledJob) -> Sequence[Notice]:
        petition = await work.petitions.get(UUID(job.payload["petition_id"]))
        if petition.state is not PetitionState.DELIBERATING:
            return []
        await work.petitions.set_state(petition.id, PetitionState.ESCALATED)
        return [Notice(f"{job.id}-0", petition.id, f"“{petition.title}” was not decided in time, and is escalated")]


class EscalationCheck:
    """Petitions with enough co-signers are escalated."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold

    async def fire(self, work: Work, job: ScheduledJob) -> Sequence[Notice]:
        found = await work.petitions.with_cosigners(self._threshold)
        for petition in found:
            await work.petitions.set_state(petition.id, PetitionState.ESCALATED)
        return [
            Notice(f"{job.id}-{number}", petition.id, f"“{petition.title}” has enough co-signers, and is escalated")
            for number, petition in enumerate(found)
        ]


async def fire_once(work: Work, deadline: Deadline, job: ScheduledJob) -> Sequence[Notice]:
    """Let the deadline take effect, and record that in the same transaction. A repeated job changes nothing.

    Return the notices in both cases: the run that died may have died before it sent them.
    """
    before = await work.effects.applied(job.id)
    if before is not None:
        return before
    notices = await deadline.fire(work, job)
    await work.effects.record(job, notices)
    return notices


class DeadlineHandler:
    """Handles a leased job: first the transaction, then the notices. Both can be repeated until the job is completed.

    A lease cannot complete its job in the handler's transaction. Instead, the transaction records that the job took
    effect, and each notice has a key. So a crash at any point is followed by a run that does what is left.
    """

    def __init__(self, deadline: Deadline, begin: BeginWork, notifications: NotificationPort) -> None:
        self._deadline = deadline
        self._begin = begin
        self._notifications = notifications

    async def __call__(self, job: ScheduledJob) -> None:
        async with self._begin() as work:
            notices = await fire_once(work, self._deadline, job)
        for notice in notices:
            await self._notifications.notify(notice)
        log.info("deadline_fired", job_id=str(job.id), job_type=job.job_type, notices=len(notices))
