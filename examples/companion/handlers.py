"""The handlers: one class per type of job, as section 5 of the specification has them."""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from examples.companion.memory import Memory, User
from examples.companion.slack import Messenger
from mainspring import Context

log = logging.getLogger(__name__)
P = TypeVar("P", bound=BaseModel)
MESSAGE_TOKENS = uuid.UUID("6c0f4fd6-4f0e-4e3c-9d0e-8f5a4c1b7e02")  # the namespace of our Slack message tokens


@dataclass(frozen=True, slots=True)
class Outside:
    """What handlers use of the world."""

    memory: Memory
    slack: Messenger
    now: Callable[[], datetime]


class BaseJobHandler(ABC, Generic[P]):
    """Handles jobs of one type. Each run makes a new one."""

    def __init__(self, outside: Outside, ctx: Context) -> None:
        self.outside = outside
        self.ctx = ctx

    @classmethod
    @abstractmethod
    def payload_model(cls) -> type[P]:
        """Return the Pydantic model that checks a payload, at the enqueue and before the run."""

    @abstractmethod
    def handle(self, payload: P) -> None:
        """Do the job. It may run again after a crash, so it must not repeat its effects."""

    def message_token(self) -> str:
        """Return the token of this job's Slack message: the same for every attempt, also after a crash."""
        return str(uuid.uuid5(MESSAGE_TOKENS, self.ctx.idempotency_key))


class DailySummaryPayload(BaseModel):
    user_id: str
    day: date  # on the user's calendar


class DailySummaryHandler(BaseJobHandler[DailySummaryPayload]):
    """Send a user the summary of the conversations since the summary before.

    Two guards keep a repeated run from sending it twice. `summary_sent_at` is written after the message was sent. If
    the process dies between the two, Slack recognises the message by its token.
    """

    @classmethod
    def payload_model(cls) -> type[DailySummaryPayload]:
        return DailySummaryPayload

    def handle(self, payload: DailySummaryPayload) -> None:
        memory = self.outside.memory
        summary = memory.summary(payload.user_id, payload.day) or {}
        if "summary_sent_at" in summary:
            log.info("the summary of %s for %s was sent before", payload.day, payload.user_id)
            return
        user = memory.user(payload.user_id)
        first, until = self.span(user, payload.day)
        text = summarize(user, payload.day, memory.conversations(user.id, first, until))
        ts = self.outside.slack.post(user.channel, text, token=self.message_token())
        note = partial(memory.summary_sent, user.id, payload.day, job_id=self.ctx.job_id, at=self.outside.now())
        note(text=text, until=until, slack_ts=ts)

    def span(self, user: User, day: date) -> tuple[datetime, datetime]:
        """Return the time of this summary's conversations: from the end of the one before, up to its own planned time.

        The planned time is that of the day, so a late or repeated run covers the same. The end of the summary before
        was noted: if the user's hour or time zone has changed since, no conversation is missed or told twice.
        """
        yesterday = day - timedelta(days=1)
        before = self.outside.memory.summary(user.id, yesterday) or {}
        first = datetime.fromisoformat(before["until"]) if "until" in before else user.summary_time(yesterday)
        return first, max(first, min(user.summary_time(day), self.outside.now()))


class UserSyncPayload(BaseModel):
    user_id: str


class UserSyncHandler(BaseJobHandler[UserSyncPayload]):
    """Copy a user's name and time zone from Slack. To do this twice has no further effect."""

    @classmethod
    def payload_model(cls) -> type[UserSyncPayload]:
        return UserSyncPayload

    def handle(self, payload: UserSyncPayload) -> None:
        user = self.outside.memory.user(payload.user_id)
        profile = self.outside.slack.profile(user.slack_id)
        self.outside.memory.synced(user.id, name=profile.name, tz=profile.tz, at=self.outside.now())


def summarize(user: User, day: date, conversations: list[str]) -> str:
    if not conversations:
        return f"{user.name}, there were no conversations for your summary of {day}."
    lines = "\n".join(f"• {text}" for text in conversations)
    return f"{user.name}, your summary of {day}:\n{lines}"


job_handlers: dict[str, type[BaseJobHandler[Any]]] = {
    "daily_summary": DailySummaryHandler,
    "user_sync": UserSyncHandler,
}
