"""Companion: its jobs, and how they are scheduled."""

from __future__ import annotations

import asyncio
from datetime import date, datetime, timedelta
from typing import Any

from examples.companion.dispatch import register
from examples.companion.errors import report_errors
from examples.companion.handlers import DailySummaryPayload, Outside, UserSyncPayload, job_handlers
from examples.companion.memory import Memory, User
from examples.companion.settings import Settings
from examples.companion.slack import Messenger, SlackMessenger
from mainspring import JobHandle, Mainspring, Retention, Retry, Task

JOBS_PER_POLL = 25
KEPT = timedelta(days=30)  # completed jobs, and the keys that keep them from being scheduled again


class Companion:
    """The application."""

    def __init__(self, settings: Settings, *, memory: Memory, slack: Messenger) -> None:
        self.memory = memory
        self.app = Mainspring(
            settings.store,
            retry=Retry(
                max_attempts=settings.max_attempts,
                base=settings.base_delay_seconds,
                max_delay=timedelta(days=1),
                jitter_share=0,
            ),
            retention=Retention(completed=KEPT, dead="forever"),
        )
        self.tasks = register(self.app, job_handlers, Outside(memory, slack, self.app.now))
        report_errors(self.app, settings.sentry_dsn)
        self.app.every("*/15 * * * *", id="plan_summaries")(self.plan_summaries)

    # -- scheduling -----------------------------------------------------------------------------

    async def plan_summaries(self) -> None:
        """Schedule each user's next summary. This runs every 15 minutes; the dedupe keys make repeats harmless."""
        for user in await asyncio.to_thread(self.memory.users):
            await self.schedule_next_summary(user)

    async def schedule_next_summary(self, user: User) -> JobHandle[Any]:
        return await self.schedule_summary(user, user.next_day(self.app.now()))

    async def schedule_summary(self, user: User, day: date) -> JobHandle[Any]:
        """Schedule the summary of one user and day, once."""
        payload = DailySummaryPayload(user_id=user.id, day=day)
        key = f"summary#{user.id}#{day}"
        return await self.schedule_once(self.tasks["daily_summary"], payload, key, user.summary_time(day))

    async def sync_user(self, user_id: str) -> JobHandle[Any]:
        """Sync a user now. While such a job waits or runs, no second one is made."""
        once = self.tasks["user_sync"].using(dedupe_key=user_id)
        return await once.enqueue(UserSyncPayload(user_id=user_id))

    async def schedule_once(
        self, task: Task[..., Any, Any], payload: Any, key: str, run_at: datetime
    ) -> JobHandle[Any]:
        """Enqueue a job unless one with this key exists, and check that the existing one is still present.

        If it is gone, because something other than Mainspring deleted its item, the next key replaces the lost one.
        The next key names the lost job. So all programs that notice the loss agree on it, and one of them enqueues.
        """
        while True:
            handle = await task.using(dedupe_key=key, dedupe_for=KEPT, run_at=run_at).enqueue(payload)
            if handle.created or await self.app.jobs.get_or_none(handle.id) is not None:
                return handle
            key = f"{key}#instead of {handle.id}"


def make(settings: Settings) -> Companion:
    """Make the application with its real adapters."""
    return Companion(
        settings,
        memory=Memory(settings.table, settings.region, settings.endpoint),
        slack=SlackMessenger(settings.slack_url, settings.slack_token),
    )
