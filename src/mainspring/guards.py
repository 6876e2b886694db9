"""What a claimed job must pass before it starts: limits, quiet hours, jobs that come before it.

Each guard has an option of its own: jobs that carry it are the guard's concern, all others pay nothing. What a guard
must know of a job is in that option, put there when the job was enqueued. Or the guard says itself whom it concerns, by
what the program declares of tasks and queues. A job that may not start yet is given an `Outcome` instead of a run, and
burns no attempt.
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

STAND_BY = 0.5  # seconds that a job may wait in its worker for a guard to change its mind
PassAtOnce = Callable[[Sequence[Claim]], list[Claim]]
LookAgain = Callable[[], Awaitable[bool]]
"""Whether what a job waits for has happened by now: asked once more after it was suspended, see `Store`."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, and what its handler raised, if it did: at its timeout a TimeoutError."""

    outcome: Outcome
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Guarded:
    """A claimed job and what its option for this guard says."""

    claim: Claim
    option: Any  # None: it carries none, and the guard is concerned all the same
    ending: Ending | None = None  # when it has ended; None: it did not even start


@dataclass(frozen=True, slots=True)
class Refusal:
    """What becomes of a job that may not start now. Jobs that wait for the same may share their `look_again`."""

    outcome: Outcome
    look_again: LookAgain | None = None
    soon: asyncio.Future[bool] | None = None  # it may yet pass, within STAND_BY: True then

    def call_off(self) -> bool:
        """It does not wait any longer. Whether it had passed by then: its guard must hear of its end."""
        if self.soon is None or self.soon.cancel():
            return False
        return not self.soon.cancelled() and self.soon.result()


class Guard(Protocol):
    option: str  # the key in a job's options

    async def admit(self, jobs: Sequence[Guarded], now: Millis) -> Mapping[str, Refusal]:
        """Those that may not start, by their ids; the others have passed."""

    async def ended(self, jobs: Sequence[Guarded]) -> None:
        """Runs that had passed have ended, in whatever way, and the store knows it. May be told more than once.

        A process that dies does not tell; a guard that gives something out must find out by itself.
        """


@runtime_checkable
class Rechecking(Protocol):
    """A guard whose answer may change while a job that has passed waits in its worker to be started."""

    async def recheck(self, jobs: Sequence[Guarded], now: Millis) -> Mapping[str, Refusal]:
        """Those that had passed and may not start any more, by their ids. Asked at each start: quick as a rule."""

    def permits(self, job: Guarded) -> bool:
        """Whether it may start, as far as is known. Asked from any thread, when that is ready to call the handler."""


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
        """Its concern are jobs with its option, and those of which `concerns` says so.

        Of the latter `at_once` may let pass some without further asking, if it need not hear of their end; it returns
        the others. When `settled` returns, nothing of the guard is under way at the store.
        """
        self._guards[guard.option] = guard
        if concerns is not None:
            self._concerns[guard.option] = concerns
            self._at_once.append(at_once or list)
        if settled is not None:
            self._settled.append(settled)

    def concern(self, claims: Sequence[Claim]) -> set[str]:
        """Those that must be admitted, by their ids. May be asked once for each: who passes at once has passed."""
        names = self._guards.keys()
        ids = {one.id for one in claims if one.options is not None and not names.isdisjoint(read_object(one.options))}
        for concerns in self._concerns.values():
            own = [claim for claim in claims if claim.id not in ids and concerns(claim)]
            if len(self._at_once) == 1:  # else it would be a question what the others say
                own = self._at_once[0](own)
            ids.update(claim.id for claim in own)
        return ids

    async def admit(self, claims: Sequence[Claim], now: Millis) -> dict[str, Refusal]:
        """Those that may not start, by their ids. What had passed a guard before another refused it has ended."""
        refused: dict[str, Refusal] = {}
        try:
            await self._ask_each(claims, now, refused)
        except BaseException:
            for refusal in refused.values():
                refusal.call_off()
            raise
        return refused

    async def _ask_each(self, claims: Sequence[Claim], now: Millis, refused: dict[str, Refusal]) -> None:
        passed: list[tuple[Guard, Guarded]] = []
        concerned = list(self._jobs_of_each(claims))
        asked = Counter(job.claim.id for _, jobs in concerned for job in jobs)  # by how many
        for guard, jobs in concerned:
            open_ = [job for job in jobs if job.claim.id not in refused]
            for job_id, refusal in (await guard.admit(open_, now) if open_ else {}).items():
                refused[job_id] = final(refusal) if asked[job_id] > 1 else refusal
            passed += [(guard, job) for job in open_ if job.claim.id not in refused]
        for guard in self._guards.values():
            if taken_back := [job for by, job in passed if by is guard and job.claim.id in refused]:
                await guard.ended(taken_back)

    async def recheck(self, claims: Sequence[Claim], now: Millis) -> dict[str, Refusal]:
        """Those that had passed and may not start any more. All guards that they had passed must hear of their end."""
        refused: dict[str, Refusal] = {}
        for guard, jobs in self._jobs_to_recheck(claims):
            refused |= await guard.recheck([job for job in jobs if job.claim.id not in refused], now)
        return refused

    def permits(self, claim: Claim) -> bool:
        """The same without I/O, from any thread."""
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
        """For a worker that stops: the store may be closed now."""
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
    """Others would have to be asked again. At once, before it has passed after all."""
    refusal.call_off()
    return replace(refusal, soon=None)


def nobody(claim: Claim) -> bool:
    del claim
    return False


def refuse(
    claim: Claim,
    move: Move,
    *,
    look_again: LookAgain | None = None,
    soon: asyncio.Future[bool] | None = None,
    **fields: Any,
) -> Refusal:
    """`move` is SNOOZE (with a delay), SUSPEND (waits_for) or CANCEL, with a reason."""
    return Refusal(Outcome(claim.id, claim.token, move, ref=claim.ref, **fields), look_again, soon)
