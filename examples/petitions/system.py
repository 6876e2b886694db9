"""Puts the petition system together: its Mainspring application, its ports and its services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import structlog

from examples.petitions.application.services import (
    DeadLetterAlertService,
    Deadline,
    DeadlineHandler,
    Death,
    DeliberationTimeout,
    EscalationCheck,
    JobWorkerService,
    PetitionService,
    ReferralTimeout,
    fire_once,
)
from examples.petitions.domain.models import JobStatus, Notice, ScheduledJob
from examples.petitions.infrastructure.adapters import (
    ENDS,
    HttpAlerts,
    HttpHaltChecker,
    HttpNotifications,
    PostgresDatabase,
    PostgresDeadLetters,
    PostgresExecutionAudit,
    PostgresHeartbeats,
    PostgresJobScheduler,
    PostgresWork,
    execution_of,
    migrate,
)
from mainspring import Change, ChangeFilter, ChangeKind, Context, HaltCheck, Mainspring, Retry
from mainspring.events import WorkerHeartbeat

log = structlog.get_logger("petitions")

ALERT, AUDIT = "dead-letter-alert", "execution-audit"  # the durable subscribers
SUBSCRIBER_PAUSE = 0.02  # seconds between two checks that the subscribers have begun


@dataclass(frozen=True, slots=True)
class Settings:
    database: str  # a URL of PostgreSQL; Mainspring and the petitions share it
    halt_url: str
    alert_url: str
    notice_url: str
    retry_delays: tuple[float, ...] = (30.0, 60.0)  # seconds: three attempts
    poll_interval: float = 10.0  # seconds
    job_timeout: float = 60.0  # seconds for one handler; a claimed job may wait as long for its turn before that
    escalation_every: str = "1m"
    escalation_threshold: int = 5  # co-signers
    lease: float = 30.0  # seconds without a heartbeat after which a worker's jobs are taken over
    queue_schema: str = "mainspring"  # where Mainspring keeps its tables

    @property
    def store(self) -> str:
        separator = "&" if "?" in self.database else "?"
        return f"{self.database}{separator}lease={self.lease:g}&schema={self.queue_schema}"


class PetitionSystem:
    """The whole application. `async with system.running():` runs it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.halt_checker = HttpHaltChecker(settings.halt_url)
        self.notifications = HttpNotifications(settings.notice_url)
        halt = HaltCheck(self.halt_checker.get_halt_status, every=0.2, reject_new=True)  # strict: an error is a halt
        self.app = Mainspring(settings.store, halted=halt, retry=Retry.delays(*settings.retry_delays))
        self.scheduler = PostgresJobScheduler(self.app, wait=settings.poll_interval)
        self.database = PostgresDatabase(settings.database, self.scheduler)
        self.dead_letters = PostgresDeadLetters(settings.database)
        self.petitions = PetitionService(self.database.begin, self.scheduler)
        self.deadlines: dict[str, Deadline] = {
            "referral_timeout": ReferralTimeout(),
            "deliberation_timeout": DeliberationTimeout(),
            "escalation_check": EscalationCheck(settings.escalation_threshold),
        }
        self.job_worker = self._job_worker()
        self._declare_tasks()
        self._declare_alerts()
        self._declare_audit()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[PetitionSystem]:
        """Run the job worker, and beside it a worker of Mainspring's for schedules, notices and alerts."""
        async with self.app:
            await migrate(self.settings.database, self.settings.queue_schema)
            async with (
                self.app.worker(queues=["escalations", "notices"], concurrency=4, grace=5),
                self._subscribed(),
                self.scheduler,
                self._job_worker_running(),
            ):
                yield self

    @asynccontextmanager
    async def _subscribed(self) -> AsyncIterator[None]:
        """Wait until the subscribers have their places in the feed: a new one misses what happened before it began."""
        states = self.app.subscribers.states
        while not {ALERT, AUDIT} <= {state.name for state in await states()}:  # noqa: ASYNC110 - in the database
            await asyncio.sleep(SUBSCRIBER_PAUSE)
        yield

    @asynccontextmanager
    async def _job_worker_running(self) -> AsyncIterator[None]:
        working = asyncio.create_task(self.job_worker.run())
        try:
            yield
        finally:
            self.job_worker.stop()
            await working

    def _job_worker(self) -> JobWorkerService:
        handlers = {
            name: DeadlineHandler(deadline, self.database.begin, self.notifications)
            for name, deadline in self.deadlines.items()
        }
        return JobWorkerService(
            self.scheduler,
            self.halt_checker,
            handlers,
            heartbeat=PostgresHeartbeats(self.settings.database, self.scheduler),
            releaser=self.scheduler,
            name=self.scheduler.worker,
            poll_interval=self.settings.poll_interval,
            job_timeout=self.settings.job_timeout,
        )

    # -- tasks ----------------------------------------------------------------------------------

    def _declare_tasks(self) -> None:
        """Declare the types of jobs: their payloads, queues and retries.

        The job worker leases deadlines. Should a worker of Mainspring's get one, it does the same by the same code.
        """
        app, every = self.app, self.settings.escalation_every

        @app.task(queue="deadlines", timeout=2 * self.settings.job_timeout)
        async def referral_timeout(ctx: Context, petition_id: UUID, referral_id: UUID) -> None:
            await fire(ctx, {"petition_id": str(petition_id), "referral_id": str(referral_id)})

        @app.task(queue="deadlines", timeout=2 * self.settings.job_timeout)
        async def deliberation_timeout(ctx: Context, petition_id: UUID) -> None:
            await fire(ctx, {"petition_id": str(petition_id)})

        @app.every(every, overlap="skip")
        @app.task(queue="escalations", timeout=120)
        async def escalation_check(ctx: Context) -> None:
            await fire(ctx, {})

        @app.task(queue="notices", timeout=60)
        async def send_notice(key: str, petition_id: UUID, text: str) -> None:
            await self.notifications.notify(Notice(key, petition_id, text))

        async def fire(ctx: Context, payload: dict[str, Any]) -> None:
            """Let a deadline take effect. Its rows, the end of its job and the notices to send are one commit."""
            async with ctx.transaction() as connection:
                work, job = PostgresWork(connection, self.scheduler), job_of(ctx, payload)
                for notice in await fire_once(work, self.deadlines[job.job_type], job):
                    prepared = send_notice.prepare(notice.key, notice.petition_id, notice.text)
                    ctx.follow_up(prepared)

    # -- alerts and audit -----------------------------------------------------------------------

    def _declare_alerts(self) -> None:
        alerts = DeadLetterAlertService(self.dead_letters, HttpAlerts(self.settings.alert_url))

        @self.app.subscriber(ALERT, where=ChangeFilter(kinds=(ChangeKind.DEAD_LETTERED,)))
        async def alert(change: Change) -> None:
            """Alert about a dead letter. The place in the feed moves on only if this succeeds, so none is lost."""
            if change.job_id is None:
                return
            data = change.data
            reason = str(data.get("error") or data.get("reason") or "unknown")
            death = Death(UUID(change.job_id), str(change.task), reason, int(data.get("attempt", 0)))
            await alerts.alert(death, change.id)

        @self.app.on(WorkerHeartbeat)
        def tell(event: WorkerHeartbeat) -> None:
            log.debug("worker_heartbeat", worker=event.worker, halted=event.halted, running=event.running)

    def _declare_audit(self) -> None:
        audit = PostgresExecutionAudit(self.settings.database)

        @self.app.subscriber(AUDIT, where=ENDS)
        async def record(change: Change) -> None:
            """Record how an execution ended (CT-12). Later ones wait until this succeeds, so none is lost."""
            execution = execution_of(change)
            if execution is not None:
                await audit.record(execution)


def job_of(ctx: Context, payload: dict[str, Any]) -> ScheduledJob:
    now = datetime.now(UTC)
    return ScheduledJob(UUID(ctx.job_id), ctx.task, payload, now, now, ctx.attempt, now, JobStatus.PROCESSING)
