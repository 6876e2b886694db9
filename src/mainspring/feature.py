"""The protocol of features, such as limits, delivery hours or dependencies, and how jobs meet them.

Each feature has its own key in a job's options (stored_options.py): what it must know of a job is stored under that key
when the job is enqueued. A feature takes part in the jobs that carry its key; all others cost nothing. It can also
choose further jobs itself, by what the program declares of tasks and queues.

A feature takes part at up to three moments: at the enqueue (pipeline.py), between the claim and the start of a job
(worker/admission.py), and after the end of its run. A job that may not start yet gets an `Outcome` instead of a run,
and uses no attempt.

A feature that acts by time has timers (timers.py): they act on its documents when these come due.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mainspring.clock import Millis
from mainspring.job import Claim, Move, NewJob, Outcome
from mainspring.json_text import read_object
from mainspring.stores.documents import Document

DUE_PAGE_SIZE = 200  # due documents that a timer fires at a time, unless it says otherwise
HANDOVER_WAIT = 0.5  # seconds that a refused job may wait in its worker, in case its feature lets it pass after all
Recheck = Callable[[], Awaitable[bool]]
"""Returns whether what a job waits for has happened by now. Asked again after the job was suspended, see `Store`."""

Told = Callable[[Collection[str]], Awaitable[None]]
"""Hears the ids of the jobs that were created."""


@dataclass(slots=True)
class Enqueue:
    """New jobs on their way to one commit."""

    jobs: list[NewJob]
    in_transaction: bool = False  # of the caller
    has_caller: bool = True  # errors are raised to it; False: a run that has ended, or a timer, makes the jobs
    afterwards: list[Told] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended, and what its handler raised, if anything; after a timeout that is a TimeoutError."""

    outcome: Outcome
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A claimed job and the value of its option for this feature."""

    claim: Claim
    option: Any  # None: the job does not carry the option; the feature chose it itself
    run_result: RunResult | None = None  # set when the run has ended; None also if it did not even start


@dataclass(frozen=True, slots=True)
class Refusal:
    """What becomes of a job that may not start now. Jobs that wait for the same thing may share their `recheck`."""

    outcome: Outcome
    recheck: Recheck | None = None
    pending: asyncio.Future[bool] | None = None  # becomes True if the job may start after all, within HANDOVER_WAIT

    def cancel_wait(self) -> bool:
        """Stop waiting; return whether the job was let in already. If so, its feature must be told when it ends."""
        if self.pending is None or self.pending.cancel():
            return False
        return not self.pending.cancelled() and self.pending.result()


class Timer:
    """Acts on the due documents of one collection. Every worker runs all timers, unless it leaves out schedules."""

    collection: str
    is_schedule = False  # schedules and occasions: a worker with schedules=False leaves them to others
    page_size = DUE_PAGE_SIZE

    async def fire(self, documents: Sequence[Document], now: Millis) -> Millis | None:
        """Do what these documents ask for, and write them so that they come due later or not again.

        Other processes may do the same at the same time: only a write that finds the version read here may take
        effect. If documents were left to others as they are, return when to look at them again.
        """
        raise NotImplementedError

    async def refresh(self) -> None:
        """Repair what may have become wrong for reasons other than time."""

    async def recover(self) -> None:
        """Finish what a worker that has died may have left half done."""

    async def clock_went_back(self, by: Millis) -> None:
        """Repair what was planned by a clock that was ahead by this much."""


class Feature:
    """A feature of Mainspring. By default it does nothing; a feature overrides what it needs."""

    option: str | None = None  # the key in a job's options; None if jobs do not meet the feature
    timers: Sequence[Timer] = ()
    prepared_tasks: Collection[str] = ()  # `prepare` is called for all jobs of these tasks, with the option or without

    # -- at the enqueue -----------------------------------------------------------------------------

    async def prepare(self, enqueue: Enqueue) -> None:
        """Change the jobs, or raise an error; add to `afterwards` what to do when they are committed, or are not.

        Called if one of the jobs carries the option, or belongs to one of `prepared_tasks`.
        """

    # -- between claim and start --------------------------------------------------------------------

    def concerns(self, claim: Claim) -> bool:
        """Return whether a job that does not carry the option must be admitted too."""
        del claim
        return False

    def pass_at_once(self, claims: list[Claim]) -> list[Claim]:
        """Admit jobs that it chose without `admit`, if it need not know when they end; return the others."""
        return claims

    async def admit(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        """Return a refusal for each job that may not start, by job id; the others have passed."""
        del jobs, now
        return {}

    async def recheck(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        """Return refusals for jobs that had passed and may not start any more. Called at each start: must be quick."""
        del jobs, now
        return {}

    def permits(self, job: Candidate) -> bool:
        """Return whether the job may start, as far as is known. Called from any thread, just before the handler."""
        del job
        return True

    # -- after the end ------------------------------------------------------------------------------

    async def ended(self, jobs: Sequence[Candidate]) -> None:
        """Note that runs which had passed are over, however they ended, and that the store knows it.

        This may be called more than once for a run. A process that dies does not call it at all, so a feature that
        hands out slots or the like must detect dead holders itself.
        """

    def disown(self, jobs: Sequence[Candidate]) -> None:
        """Forget jobs that have just passed: they run in another program, and any process may hear of their end."""

    async def adopt(self, jobs: Sequence[Candidate]) -> None:
        """Note again what `disown` forgot, perhaps in another process. `ended` follows."""

    async def settled(self) -> None:
        """Return when it has no operation under way at the store."""

    # -- when something else has changed ------------------------------------------------------------

    async def state_changed(self) -> None:
        """Read again what it keeps in memory: another process has changed shared state, see `Bundle.spread`."""

    async def clock_went_back(self, by: Millis) -> None:
        """Repair what was planned by a clock that was ahead by this much."""
        for timer in self.timers:
            await timer.clock_went_back(by)


class Features:
    """All features of an application, in the order in which jobs meet them."""

    def __init__(self) -> None:
        self.all: list[Feature] = []
        self._features: dict[str, Feature] = {}  # those that jobs meet, by their option
        self.choosing: dict[str, Feature] = {}  # those that choose claimed jobs themselves
        self._rechecking: set[str] = set()
        self._settling: list[Feature] = []
        self.preparing: list[Feature] = []  # those that prepare jobs at the enqueue

    def add(self, feature: Feature, *, in_use: bool = True) -> None:
        """Add a feature. If it is not in use, only its timers run, as earlier programs may have left it work to do."""
        self.all.append(feature)
        if in_use:
            self.use(feature)

    def use(self, feature: Feature) -> None:
        """Let jobs meet a feature that was added."""
        if feature.option is None:
            return
        self._features[feature.option] = feature
        kind = type(feature)
        if kind.concerns is not Feature.concerns:
            self.choosing[feature.option] = feature
        if kind.recheck is not Feature.recheck:
            self._rechecking.add(feature.option)
        if kind.settled is not Feature.settled:
            self._settling.append(feature)
        if kind.prepare is not Feature.prepare:
            self.preparing.append(feature)

    def concern(self, claims: Sequence[Claim]) -> set[str]:
        """Return the ids of the jobs that must be admitted. Ask once per claim: some jobs pass by being asked about."""
        names = self._features.keys()
        ids = {job.id for job in claims if job.options is not None and not names.isdisjoint(read_object(job.options))}
        for feature in self.choosing.values():
            own = [claim for claim in claims if claim.id not in ids and feature.concerns(claim)]
            if len(self.choosing) == 1:  # with several, one could let pass what another would refuse
                own = feature.pass_at_once(own)
            ids.update(claim.id for claim in own)
        return ids

    async def admit(self, claims: Sequence[Claim], now: Millis) -> dict[str, Refusal]:
        """Return refusals by job id. Features that a job passed before another refused it hear of its end."""
        refused: dict[str, Refusal] = {}
        try:
            await self._ask_each(claims, now, refused)
        except BaseException:
            for refusal in refused.values():
                refusal.cancel_wait()
            raise
        return refused

    async def _ask_each(self, claims: Sequence[Claim], now: Millis, refused: dict[str, Refusal]) -> None:
        passed: list[tuple[Feature, Candidate]] = []
        concerned = list(self._jobs_of_each(claims))
        asked = Counter(job.claim.id for _, jobs in concerned for job in jobs)  # by how many features
        for feature, jobs in concerned:
            open_ = [job for job in jobs if job.claim.id not in refused]
            for job_id, refusal in (await feature.admit(open_, now) if open_ else {}).items():
                refused[job_id] = final(refusal) if asked[job_id] > 1 else refusal
            passed += [(feature, job) for job in open_ if job.claim.id not in refused]
        for feature in self._features.values():
            if taken_back := [job for by, job in passed if by is feature and job.claim.id in refused]:
                await feature.ended(taken_back)

    async def recheck(self, claims: Sequence[Claim], now: Millis) -> dict[str, Refusal]:
        """Return refusals for jobs that had passed and may not start any more. The caller must pass them to `ended`."""
        refused: dict[str, Refusal] = {}
        for feature, jobs in self._jobs_to_recheck(claims):
            refused |= await feature.recheck([job for job in jobs if job.claim.id not in refused], now)
        return refused

    def permits(self, claim: Claim) -> bool:
        """Do the same as `recheck` for one job, without I/O. Any thread may call this."""
        return all(feature.permits(job) for feature, jobs in self._jobs_to_recheck([claim]) for job in jobs)

    def _jobs_to_recheck(self, claims: Sequence[Claim]) -> Iterable[tuple[Feature, list[Candidate]]]:
        with_options = [claim for claim in claims if claim.options is not None]
        for feature, jobs in self._jobs_of_each(with_options) if with_options else ():
            if feature.option in self._rechecking:
                yield feature, jobs

    async def ended(self, claims: Sequence[Claim], results: Mapping[str, RunResult] | None = None) -> None:
        for feature, jobs in self._jobs_of_each(claims, results):
            await feature.ended(jobs)

    def disown(self, claims: Sequence[Claim]) -> None:
        """Forget claims that have passed, because another process may hear of their end."""
        for feature, jobs in self._jobs_of_each(claims):
            feature.disown(jobs)

    async def adopt(self, claims: Sequence[Claim]) -> None:
        """Get ready to hear of the end of runs that were disowned. `ended` must follow."""
        for feature, jobs in self._jobs_of_each(claims):
            await feature.adopt(jobs)

    async def settled(self) -> None:
        """Wait until no feature has an operation under way: after this, a stopping worker may close the store."""
        for feature in self._settling:
            await feature.settled()

    async def state_changed(self) -> None:
        """Tell all features that another process has changed shared state."""
        for feature in self.all:
            await feature.state_changed()

    def _jobs_of_each(
        self, claims: Sequence[Claim], results: Mapping[str, RunResult] | None = None
    ) -> Iterable[tuple[Feature, list[Candidate]]]:
        results = results or {}
        options = [(claim, read_object(claim.options)) for claim in claims]
        for name, feature in self._features.items():
            chooses = name in self.choosing
            if jobs := [
                Candidate(claim, own.get(name), results.get(claim.id))
                for claim, own in options
                if name in own or (chooses and feature.concerns(claim))
            ]:
                yield feature, jobs


def final(refusal: Refusal) -> Refusal:
    """Make a refusal final. Otherwise the job could be admitted later without asking the other features again."""
    refusal.cancel_wait()
    return replace(refusal, pending=None)


def refuse(
    claim: Claim,
    move: Move,
    *,
    recheck: Recheck | None = None,
    pending: asyncio.Future[bool] | None = None,
    **fields: Any,
) -> Refusal:
    """Make a refusal. `move` is SNOOZE (with a delay), SUSPEND (with waits_for) or CANCEL, with a reason."""
    return Refusal(Outcome(claim.id, claim.token, move, ref=claim.ref, blocked=True, **fields), recheck, pending)
