"""The job queue of the petition system: Mainspring on PostgreSQL, through its lease API.

`get_pending_jobs` claims with SELECT … FOR UPDATE SKIP LOCKED, and each claim has a token. So a worker that was paused,
and whose jobs another worker has by now, cannot mark them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Self
from uuid import UUID

from examples.petitions.application.ports import (
    InvalidRequestError,
    JobNotClaimedError,
    SystemHaltedError,
    UnknownJobTypeError,
)
from examples.petitions.domain.models import JobStatus, ScheduledJob
from examples.petitions.infrastructure.adapters.scheduling.executions import NOT_BEGUN
from mainspring import ConfigurationError, JobNotFound, Lease, Mainspring, Status, SystemHalted, UnknownTask
from mainspring.errors import EditConflict
from mainspring.leases import Answer

QUEUE = "deadlines"
WAITING = {Status.PENDING, Status.RETRYING, Status.SUSPENDED}
JOB_TYPES = ("referral_timeout", "deliberation_timeout")  # `escalation_check` is a schedule, which a worker runs


class PostgresJobScheduler:
    """Implements JobSchedulerProtocol and JobReleaseProtocol. `async with` it to claim jobs.

    `wait` is how long `get_pending_jobs` waits for the first job. It returns as soon as one is due, so a worker that
    polls with `wait=10` starts a job milliseconds after its time.
    """

    def __init__(self, app: Mainspring, *, name: str = "petitions", wait: float = 0.0) -> None:
        self._app = app
        self._wait = wait
        self._lessee = app.leases.lessee(name, queues=[QUEUE], tasks=JOB_TYPES)
        self._leases: dict[UUID, Lease] = {}  # claimed, and neither marked nor released
        self._connection: Any = None

    async def __aenter__(self) -> Self:
        await self._lessee.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leases.clear()
        await self._lessee.leave()

    @property
    def worker(self) -> str:
        return self._lessee.id

    def within(self, connection: Any) -> PostgresJobScheduler:
        """Return a scheduler whose `schedule` takes part in the transaction of this connection."""
        bound = PostgresJobScheduler(self._app)
        bound._connection = connection
        return bound

    async def schedule(self, job_type: str, payload: dict[str, Any], run_at: datetime) -> UUID:
        if not isinstance(payload, dict):
            raise InvalidRequestError(f"the payload must be a dictionary, not {payload!r}")
        target = ("petition", str(payload.get("petition_id", "none")))
        with errors_of_the_port():
            handle = await self._app.enqueue(
                job_type, payload, run_at=run_at, target=target, connection=self._connection
            )
        return UUID(handle.id)

    async def cancel(self, job_id: UUID) -> bool:
        """Cancel a job that waits. It stays on record as cancelled, with who cancelled it (CT-12).

        Mainspring would ask a running job to stop, which would take its retries from it. So the cancellation expects
        the revision in which the job was seen waiting. If a worker has claimed it since, nothing is changed.
        """
        name = str(job_id)
        while (job := await self._app.jobs.get_or_none(name)) is not None and job.status in WAITING:
            try:
                return await self._app.jobs.cancel(
                    name, reason="the deadline was met", actor="petitions", expect=job.revision
                )
            except (EditConflict, JobNotFound):
                continue  # it was claimed, changed or deleted since: look again
        return False

    async def get_pending_jobs(self, limit: int) -> list[ScheduledJob]:
        with errors_of_the_port():
            batch = await self._lessee.claim(limit, wait=self._wait)
        for lost in batch.pulse.lost:
            self._leases.pop(UUID(lost), None)
        self._leases.update({UUID(lease.id): lease for lease in batch})
        return [job_of(lease) for lease in batch]

    async def mark_completed(self, job_id: UUID) -> None:
        self._end(job_id, await self._held(job_id).complete())

    async def mark_failed(self, job_id: UUID, reason: str) -> None:
        if not reason:
            raise InvalidRequestError("the reason is empty; say why the job failed (CT-11)")
        self._end(job_id, await self._held(job_id).fail(reason))

    async def release(self, job_id: UUID) -> None:
        self._end(job_id, await self._held(job_id).release(NOT_BEGUN))

    async def heartbeat(self) -> None:
        """Say that this worker lives. Every other call says so too."""
        await self._lessee.heartbeat()

    def _held(self, job_id: UUID) -> Lease:
        lease = self._leases.get(job_id)
        if lease is None:
            raise JobNotClaimedError(f"job {job_id} is not claimed by this worker; claim it with get_pending_jobs")
        return lease

    def _end(self, job_id: UUID, answer: Answer) -> None:
        """Forget the lease. If the queue did not answer at all, it is kept, and the call can be repeated."""
        self._leases.pop(job_id, None)
        if not answer.accepted:
            raise JobNotClaimedError(f"job {job_id}: {answer.message}")


@contextmanager
def errors_of_the_port() -> Iterator[None]:
    """Turn what Mainspring raises into the errors of the port: its callers do not know Mainspring."""
    try:
        yield
    except SystemHalted as error:
        raise SystemHaltedError(str(error)) from error
    except UnknownTask as error:
        raise UnknownJobTypeError(str(error)) from error
    except (ConfigurationError, ValueError) as error:  # InvalidPayload is a ValueError
        raise InvalidRequestError(str(error)) from error


def job_of(lease: Lease) -> ScheduledJob:
    return ScheduledJob(
        id=UUID(lease.id),
        job_type=lease.task,
        payload=lease.payload,
        scheduled_for=lease.run_at,
        created_at=lease.created_at,
        attempts=lease.attempt,
        last_attempt_at=datetime.now(UTC),
        status=JobStatus.PROCESSING,
    )
