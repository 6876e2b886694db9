"""Guards: the checks a claimed job must pass before it starts, such as limits, quiet hours or jobs that come before it.

Each guard has its own key in a job's options. It checks the jobs that carry this key; all others cost nothing. What the
guard must know of a job is stored under that key when the job is enqueued. A guard can also choose further jobs itself,
by what the program declares of tasks and queues. A job that may not start yet gets an `Outcome` instead of a run, and
uses no attempt.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from mainspring.clock import Millis
from mainspring.job import Claim, Move, Outcome
from mainspring.json_text import read_object

HANDOVER_WAIT = 0.5  # seconds that a refused job may wait in its worker, in case the guard lets it pass after all
PassAtOnce = Callable[[Sequence[Claim]], list[Claim]]
Recheck = Callable[[], Awaitable[bool]]
"""Returns whether what a job waits for has happened by now. Asked again after the job was suspended, see `Store`."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, and what its handler raised, if anything; after a timeout that is a TimeoutError."""

    outcome: Outcome
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Guarded:
    """A claimed job and the value of its option for this guard."""

    claim: Claim
    option: Any  # None: the job does not carry the option; the guard chose it itself
    ending: Ending | None = None  # set when the run has ended; None also if it did not even start


@dataclass(frozen=True, slots=True)
class Refusal:
    """What becomes of a job that may not start now. Jobs that wait for the same thing may share their `recheck`."""

    outcome: Outcome
    recheck: Recheck | None = None
    pending: asyncio.Future[bool] | None = None  # becomes True if the job may start after all, within HANDOVER_WAIT

    def cancel_wait(self) -> bool:
        """Stop waiting; return whether the job had already been let in. If so, its guard must be told when it ends."""
        if self.pending is None or self.pending.cancel():
            return False
        return not self.pending.cancelled() and self.pending.result()


class Guard(Protocol):
    """Decides whether claimed jobs may start."""

    option: str  # the key in a job's options

    async def admit(self, jobs: Sequence[Guarded], now: Millis) -> Mapping[str, Refusal]:
        """Return a refusal for each job that may not start, by job id; the others have passed."""

    async def ended(self, jobs: Sequence[Guarded]) -> None:
        """Note that runs which had passed are over, however they ended, and that the store knows it.

        This may be called more than once for a run. A process that dies does not call it at all, so a guard that hands
        something out must find that out by itself.
        """


@runtime_checkable
class Rechecking(Protocol):
    """A guard whose answer may change while a job that has passed waits in its worker to be started."""

    async def recheck(self, jobs: Sequence[Guarded], now: Millis) -> Mapping[str, Refusal]:
        """Return refusals for jobs that had passed and may not start any more. Called at each start: must be quick."""

    def permits(self, job: Guarded) -> bool:
        """Return whether the job may start, as far as is known. Called from any thread, just before the handler."""


class Guards:
    """All guards of an application, in the order in which jobs pass them."""

    def __init__(self) -> None:
        self._guards: dict[str, Guard] = {}
        self._concerns: dict[str, Callable[[Claim], bool]] = {}
        self._at_once: list[PassAtOnce] = []
        self._settled: list[Callable[[], Awaitable[None]]] = []

    def add(
        self,
        guard: Guard,
        concerns: Callable[[Claim], bool] | None = None,
        at_once: PassAtOnce | None = None,
        settled: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Add a guard. It checks the jobs that carry its option, and those for which `concerns` returns True.

        Of the latter, `at_once` may let some pass without calling `admit`, if the guard need not be told of their end;
        it returns the others. When `settled` returns, the guard has no operation under way at the store.
        """
        self._guards[guard.option] = guard
        if concerns is not None:
            self._concerns[guard.option] = concerns
            self._at_once.append(at_once or list)
        if settled is not None:
            self._settled.append(settled)

    def concern(self, claims: Sequence[Claim]) -> set[str]:
        """Return the ids of the jobs that must be admitted. Ask once per claim: some jobs pass by being asked about."""
        names = self._guards.keys()
        ids = {job.id for job in claims if job.options is not None and not names.isdisjoint(read_object(job.options))}
        for concerns in self._concerns.values():
            own = [claim for claim in claims if claim.id not in ids and concerns(claim)]
            if len(self._at_once) == 1:  # with several, one could let pass what another would refuse
                own = self._at_once[0](own)
            ids.update(claim.id for claim in own)
        return ids

    async def admit(self, claims: Sequence[Claim], now: Millis) -> dict[str, Refusal]:
        """Return refusals by job id. Guards that a job passed before another refused it are told that it has ended."""
        refused: dict[str, Refusal] = {}
        try:
            await self._ask_each(claims, now, refused)
        except BaseException:
            for refusal in refused.values():
                refusal.cancel_wait()
            raise
        return refused

    async def _ask_each(self, claims: Sequence[Claim], now: Millis, refused: dict[str, Refusal]) -> None:
        passed: list[tuple[Guard, Guarded]] = []
        concerned = list(self._jobs_of_each(claims))
        asked = Counter(job.claim.id for _, jobs in concerned for job in jobs)  # by how many guards
        for guard, jobs in concerned:
            open_ = [job for job in jobs if job.claim.id not in refused]
            for job_id, refusal in (await guard.admit(open_, now) if open_ else {}).items():
                refused[job_id] = final(refusal) if asked[job_id] > 1 else refusal
            passed += [(guard, job) for job in open_ if job.claim.id not in refused]
        for guard in self._guards.values():
            if taken_back := [job for by, job in passed if by is guard and job.claim.id in refused]:
                await guard.ended(taken_back)

    async def recheck(self, claims: Sequence[Claim], now: Millis) -> dict[str, Refusal]:
        """Return refusals for jobs that had passed and may not start any more. Tell all their guards of their end."""
        refused: dict[str, Refusal] = {}
        for guard, jobs in self._jobs_to_recheck(claims):
            refused |= await guard.recheck([job for job in jobs if job.claim.id not in refused], now)
        return refused

    def permits(self, claim: Claim) -> bool:
        """Do the same as `recheck` for one job, without I/O. Any thread may call this."""
        return all(guard.permits(job) for guard, jobs in self._jobs_to_recheck([claim]) for job in jobs)

    def _jobs_to_recheck(self, claims: Sequence[Claim]) -> Iterable[tuple[Rechecking, list[Guarded]]]:
        with_options = [claim for claim in claims if claim.options is not None]
        for guard, jobs in self._jobs_of_each(with_options) if with_options else ():
            if isinstance(guard, Rechecking):
                yield guard, jobs

    async def ended(self, claims: Sequence[Claim], endings: Mapping[str, Ending] | None = None) -> None:
        for guard, jobs in self._jobs_of_each(claims, endings):
            await guard.ended(jobs)

    async def settled(self) -> None:
        """Wait until no guard has an operation under way: after this, a stopping worker may close the store."""
        for settled in self._settled:
            await settled()

    def _jobs_of_each(
        self, claims: Sequence[Claim], endings: Mapping[str, Ending] | None = None
    ) -> Iterable[tuple[Guard, list[Guarded]]]:
        endings = endings or {}
        options = [(claim, read_object(claim.options)) for claim in claims]
        for name, guard in self._guards.items():
            concerns = self._concerns.get(name, nobody)
            if jobs := [
                Guarded(claim, own.get(name), endings.get(claim.id))
                for claim, own in options
                if name in own or concerns(claim)
            ]:
                yield guard, jobs


def final(refusal: Refusal) -> Refusal:
    """Make a refusal final, before it is granted after all: other guards would have to be asked again."""
    refusal.cancel_wait()
    return replace(refusal, pending=None)


def nobody(claim: Claim) -> bool:
    del claim
    return False


def refuse(
    claim: Claim,
    move: Move,
    *,
    recheck: Recheck | None = None,
    pending: asyncio.Future[bool] | None = None,
    **fields: Any,
) -> Refusal:
    """Make a refusal. `move` is SNOOZE (with a delay), SUSPEND (with waits_for) or CANCEL, with a reason."""
    return Refusal(Outcome(claim.id, claim.token, move, ref=claim.ref, **fields), recheck, pending)
