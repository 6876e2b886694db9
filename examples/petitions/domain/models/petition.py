"""Petitions, their referrals, and what people are told about them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class PetitionState(StrEnum):
    RECEIVED = "received"
    REFERRED = "referred"  # a knight has until the referral's deadline to answer
    REFERRAL_EXPIRED = "referral_expired"
    DELIBERATING = "deliberating"  # the Three Fates have until the deadline to decide
    DECIDED = "decided"
    ESCALATED = "escalated"


class ReferralState(StrEnum):
    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Petition:
    id: UUID
    title: str
    state: PetitionState


@dataclass(frozen=True, slots=True)
class Referral:
    id: UUID
    petition_id: UUID
    knight: str
    state: ReferralState


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to people about a petition. Whoever sends it again uses the same key."""

    key: str
    petition_id: UUID
    text: str
