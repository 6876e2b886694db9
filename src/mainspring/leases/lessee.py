"""A lessee and its leases: the objects by which a program of your own works on jobs."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

from mainspring.clock import Length
from mainspring.errors import Failure
from mainspring.leases.answers import Answer, PlannedStep, Pulse, Report, SavedStep, as_data
from mainspring.leases.items import (
    ENDINGS,
    Cancelled,
    Complete,
    Fail,
    Heartbeat,
    Item,
    Progress,
    Release,
    SaveStep,
    Snooze,
)

if TYPE_CHECKING:
    from mainspring.leases.api import Leases

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lease:
    """A job that a lessee works on. `id` and `token` are all that another process needs to report about it."""

    id: str
    token: int
    worker: str  # the id of the lessee
    task: str
    queue: str
    payload: Any  # decoded JSON
    attempt: int  # from 1
    max_attempts: int
    deadline: datetime | None  # when its timeout is over; a while later it counts as stalled
    suspect: bool  # a worker died with it before: run it alone, so that it can take nothing else with it
    priority: int
    run_at: datetime  # when it was due
    created_at: datetime
    target: tuple[str, str] | None = None
    tags: tuple[str, ...] = ()
    dedupe_key: str | None = None
    trace: Mapping[str, str] = field(default_factory=dict)  # its trace context, such as `traceparent`
    headers: Mapping[str, str] = field(default_factory=dict)  # that its enqueue gave it
    plan: tuple[PlannedStep, ...] = ()  # the steps that its enqueue asked for, or its task declared, in order
    _lessee: Lessee | None = field(default=None, repr=False, compare=False)

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = as_data(self)
        return data

    # -- while it runs --------------------------------------------------------------------------

    async def heartbeat(self) -> Answer:
        """Say that the work goes on. Any other call of the lessee does the same."""
        return await self._report(Heartbeat(self.id, self.token))

    def heartbeat_sync(self) -> Answer:
        return self._run(self.heartbeat())

    async def progress(self, fraction: float, note: str = "") -> Answer:
        return await self._report(Progress(self.id, self.token, fraction, note))

    def progress_sync(self, fraction: float, note: str = "") -> Answer:
        return self._run(self.progress(fraction, note))

    async def step(self, name: str, output: Any = None) -> Answer:
        """Record a step as done, so that the next attempt can skip it. A step of the same name is replaced."""
        return await self._report(SaveStep(self.id, self.token, name, output))

    def step_sync(self, name: str, output: Any = None) -> Answer:
        return self._run(self.step(name, output))

    async def steps(self) -> list[SavedStep]:
        """Return the recorded steps, also those of earlier attempts."""
        return await self._by.leases.steps(self.id)

    def steps_sync(self) -> list[SavedStep]:
        return self._run(self.steps())

    # -- when it ends ---------------------------------------------------------------------------

    async def complete(self, result: Any = None) -> Answer:
        return await self._report(Complete(self.id, self.token, result))

    def complete_sync(self, result: Any = None) -> Answer:
        return self._run(self.complete(result))

    async def fail(self, error: str | Failure | BaseException, *, retry: bool = True) -> Answer:
        """Report a failure. The retry policy decides what follows; with `retry=False` it is a dead letter at once."""
        return await self._report(Fail(self.id, self.token, error, retry))

    def fail_sync(self, error: str | Failure | BaseException, *, retry: bool = True) -> Answer:
        return self._run(self.fail(error, retry=retry))

    async def snooze(self, delay: Length | None = None, *, until: datetime | None = None, reason: str = "") -> Answer:
        """Run the job later, without using an attempt."""
        return await self._report(Snooze(self.id, self.token, delay, until, reason))

    def snooze_sync(self, delay: Length | None = None, *, until: datetime | None = None, reason: str = "") -> Answer:
        return self._run(self.snooze(delay, until=until, reason=reason))

    async def release(self, reason: str = "") -> Answer:
        """Give the job back unfinished, without using an attempt."""
        return await self._report(Release(self.id, self.token, reason))

    def release_sync(self, reason: str = "") -> Answer:
        return self._run(self.release(reason))

    async def cancelled(self, reason: str = "") -> Answer:
        """End the job as cancelled: it was cancelled by hand, or turned out to be pointless."""
        return await self._report(Cancelled(self.id, self.token, reason))

    def cancelled_sync(self, reason: str = "") -> Answer:
        return self._run(self.cancelled(reason))

    # -- how ------------------------------------------------------------------------------------

    @property
    def _by(self) -> Lessee:
        assert self._lessee is not None  # noqa: S101 - every lease is made for a lessee
        return self._lessee

    async def _report(self, item: Item) -> Answer:
        return (await self._by.report([item])).answers[0]

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._by.leases.run(work)


@dataclass(frozen=True, slots=True)
class Batch:
    """The response to a claim. It is empty if nothing became due in time, or something is halted."""

    leases: tuple[Lease, ...]
    pulse: Pulse

    def __iter__(self) -> Iterator[Lease]:
        return iter(self.leases)

    def __len__(self) -> int:
        return len(self.leases)

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = as_data(self)
        return data


class Lessee:
    """A program that works on jobs by its own means. `async with` or `with` it: at the end it leaves."""

    def __init__(
        self,
        leases: Leases,
        worker: str,
        queues: Any = "*",
        tasks: Iterable[str] | None = None,
        version: str | None = None,
    ) -> None:
        self.leases = leases
        self.version = version  # of its code; None: that of the application
        self.id = leases.check(worker, queues, tasks)
        self.queues = queues
        self.tasks = None if tasks is None else tuple(tasks)
        self._held: dict[str, int] = {}  # job -> token, of the leases that it got here and has not ended

    def __repr__(self) -> str:
        return f"<Lessee {self.id}, holds {len(self._held)} jobs>"

    @property
    def held(self) -> dict[str, int]:
        """The jobs of its leases, with their tokens, as far as this object knows."""
        return dict(self._held)

    async def claim(self, limit: int = 1, *, wait: Length = 0) -> Batch:
        """Claim up to `limit` due jobs. If none is due, wait for the first one, for at most `wait`.

        It returns early, perhaps without jobs, when a held job is cancelled or lost, or when a halt begins.
        """
        batch = await self.leases.claim(
            self.id, queues=self.queues, tasks=self.tasks, limit=limit, wait=wait, held=self._held, lessee=self
        )
        self._held.update({lease.id: lease.token for lease in batch.leases})
        return replace(batch, pulse=self._heard(batch.pulse))

    def claim_sync(self, limit: int = 1, *, wait: Length = 0) -> Batch:
        return self.leases.run(self.claim(limit, wait=wait))

    async def heartbeat(self) -> Pulse:
        """Say that the lessee lives; learn which of its jobs are cancelled or lost, and what is halted."""
        return self._heard(await self.leases.heartbeat(self.id, self.held, queues=self.queues))

    def heartbeat_sync(self) -> Pulse:
        return self.leases.run(self.heartbeat())

    async def report(self, items: Sequence[Item]) -> Report:
        """Report about several jobs at once. Each item has its own answer."""
        report = await self.leases.report(self.id, items, held=self._held, queues=self.queues)
        for item, answer in zip(items, report.answers, strict=True):
            if self._held.get(item.job_id) == item.token and answer.accepted and isinstance(item, ENDINGS):
                del self._held[item.job_id]
        return replace(report, pulse=self._heard(report.pulse))

    def report_sync(self, items: Sequence[Item]) -> Report:
        return self.leases.run(self.report(items))

    async def recover(self) -> list[Lease]:
        """Return all leases that the store has for this lessee: after a claim whose answer was lost, or a restart."""
        leases = await self.leases.held(self.id, lessee=self)
        self._held = {lease.id: lease.token for lease in leases}
        return leases

    def recover_sync(self) -> list[Lease]:
        return self.leases.run(self.recover())

    async def leave(self) -> None:
        """Give back all jobs that it still holds, and leave. They use no attempt."""
        self._held.clear()
        await self.leases.leave(self.id)

    def leave_sync(self) -> None:
        self.leases.run(self.leave())

    async def __aenter__(self) -> Self:
        await self.leases.enter(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    def __enter__(self) -> Self:
        self.leases.run(self.leases.enter(self))
        return self

    def __exit__(self, *_: object) -> None:
        self.leave_sync()

    def _heard(self, pulse: Pulse) -> Pulse:
        """Forget lost jobs. Those whose end was reported during the call are not lost."""
        lost = tuple(job_id for job_id in pulse.lost if job_id in self._held)
        for job_id in lost:
            del self._held[job_id]
        return replace(pulse, lost=lost)
