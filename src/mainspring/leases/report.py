"""Writes what lessees report, and answers each item."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from mainspring.clock import to_datetime
from mainspring.errors import MainspringError, StoreError
from mainspring.feature import Features
from mainspring.features.durable.journal import FAILED, calls_in, kind_of
from mainspring.features.durable.plan import StepPlan
from mainspring.features.durable.saved import saved_in
from mainspring.job import Claim, Job, Outcome, ProgressReport, Save, Status, Step
from mainspring.json_text import from_json
from mainspring.leases.answers import Answer, Reply, SavedStep
from mainspring.leases.ending import LeasedRun, outcome_of, text_of
from mainspring.leases.items import ENDINGS, Complete, Fail, Item, Progress, SaveStep
from mainspring.log import get_log
from mainspring.names import showable
from mainspring.runtime import Runtime
from mainspring.worker.acker import AfterAck

log = get_log("mainspring.leases")

UNKNOWN = "there is no such job; it may have been removed by retention"
NOT_YOURS = "another lessee or worker holds the job, or held it last"
OVER = "the lease is over: the job was taken over, or its end was reported before"


class FollowUp:
    """What is left to do once ends are written. It may be repeated if it fails."""

    def __init__(self, features: Features, after_ack: AfterAck, claims: list[Claim]) -> None:
        self._features = features
        self._after_ack = after_ack
        self._claims = claims  # those that features have let pass, perhaps in another process

    async def settle(self) -> None:
        if self._claims:
            await self._features.adopt(self._claims)
            self._claims = []
        await self._after_ack.settle()


class Reporter:
    """Writes items in the order progress, steps, endings, so that one report may hold all of them about one job."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._unsettled: list[FollowUp] = []  # what failed; the next call does it

    async def take(
        self, worker: str, items: Sequence[Item], cancelled: Mapping[str, str], within: Sequence[str] = ()
    ) -> list[Answer]:
        await self._settle_rest()
        ids = list(dict.fromkeys(item.job_id for item in items))
        jobs = {job.id: job for job in await self._runtime.store.get(ids, within=within)} if ids else {}
        answers = [stale_answer(item, jobs.get(item.job_id), worker) for item in items]
        open_ = [number for number, answer in enumerate(answers) if answer is None]
        by_number: dict[int, Answer] = {number: answer for number, answer in enumerate(answers) if answer is not None}
        for number in open_:
            item = items[number]
            if not isinstance(item, (Progress, SaveStep, *ENDINGS)):
                by_number[number] = accepted(item, cancelled)
        by_number |= await self._progress({n: i for n in open_ if isinstance(i := items[n], Progress)}, cancelled, jobs)
        for number in open_:
            if isinstance(item := items[number], SaveStep):
                by_number[number] = await self._save(item, jobs[item.job_id], cancelled)
        by_number |= await self._end(worker, {n: items[n] for n in open_ if isinstance(items[n], ENDINGS)}, jobs)
        return [by_number[number] for number in range(len(items))]

    # -- while a job runs -----------------------------------------------------------------------

    async def _progress(
        self, items: Mapping[int, Progress], cancelled: Mapping[str, str], jobs: Mapping[str, Job]
    ) -> dict[int, Answer]:
        if not items:
            return {}
        last = {(item.job_id, item.token): item for item in items.values()}  # of several about one job
        reports = [
            ProgressReport(i.job_id, i.token, float(i.fraction), self._hidden(showable(str(i.note)), jobs[i.job_id]))
            for i in last.values()
        ]
        held = await self._runtime.store.report(reports)
        return {n: accepted(i, cancelled) if i.job_id in held else stale(i, OVER) for n, i in items.items()}

    def _hidden(self, note: str, job: Job) -> str:
        rules = self._runtime.services.redaction
        return rules.hide_stored([(job.payload, job.headers)], job.task)(note) if note else note

    async def _save(self, item: SaveStep, job: Job, cancelled: Mapping[str, str]) -> Answer:
        store = self._runtime.store
        known = {step.name: step for step in await store.steps(item.job_id)}
        before = known.get(item.name)
        if before is not None and kind_of(before) != "step":
            return invalid(item, f"{item.name!r} is a {kind_of(before)} of a durable function; choose another name")
        try:
            StepPlan.from_options(job.options).check(item.name)
            text = text_of(item.output, f"the output of step {item.name!r}")
        except MainspringError as error:
            return invalid(item, str(error))
        number = before.number if before else max((step.number for step in known.values()), default=0) + 1
        now = store.clock.now()
        saved = await store.save([Save(item.job_id, item.token, (Step(item.name, number, "step", text, now, now),))])
        return stale(item, OVER) if saved[0] is None else accepted(item, cancelled)

    async def steps(self, job_id: str) -> list[SavedStep]:
        records = await self._runtime.store.steps(job_id)
        saved = saved_in(records)
        calls = [saved_step(step, saved.pop(step.name, None)) for step in calls_in(records)]
        begun = [SavedStep(name, 0, None, None, state="begun", saved=value) for name, value in saved.items()]
        return [*calls, *begun]

    # -- when jobs end --------------------------------------------------------------------------

    async def _end(self, worker: str, items: Mapping[int, Item], jobs: Mapping[str, Job]) -> dict[int, Answer]:
        ended: dict[int, tuple[LeasedRun, Outcome]] = {}
        answers: dict[int, Answer] = {}
        if any(isinstance(item, Fail) for item in items.values()):
            await self._runtime.live_settings.refresh()  # the retry policy may have been changed since the claim
        now = self._runtime.store.clock.now()
        for number, item in items.items():
            job = jobs[item.job_id]
            run = LeasedRun.of(job, self._runtime.task_named(job.task), self._runtime.services.redaction)
            try:
                ended[number] = run, outcome_of(run, item, now)
            except MainspringError as error:
                answers[number] = invalid(item, str(error))
        statuses = await self.write(worker, list(ended.values()))
        for number, status in zip(ended, statuses, strict=True):
            item = items[number]
            answers[number] = stale(item, OVER) if status is None else Answer(item.job_id, item.token, Reply.OK, status)
        return answers

    async def write(self, worker: str, ended: Sequence[tuple[LeasedRun, Outcome]]) -> list[Status | None]:
        """Write how runs ended, and do what a worker does after that: events, features, waiting jobs, children."""
        if not ended:
            return []
        statuses = await self._runtime.pipeline.ack([outcome for _, outcome in ended])
        for (run, _), status in zip(ended, statuses, strict=True):
            run.admitted = run.passed and status is not None  # of a lost claim, what it held is found by the timers
        after = AfterAck(self._runtime, worker)
        after.confirmed(ended, statuses)
        self._unsettled.append(FollowUp(self._runtime.features, after, [run.claim for run, _ in ended if run.admitted]))
        await self._settle_rest()
        return statuses

    async def _settle_rest(self) -> None:
        """Finish what follows from written ends. If the store is away, the ends count, and the next call goes on."""
        rest, self._unsettled = self._unsettled, []
        while rest:
            try:
                await rest[0].settle()
            except (StoreError, asyncio.CancelledError) as error:
                self._unsettled += rest
                if isinstance(error, asyncio.CancelledError):
                    raise
                log.warning("lease_follow_up_failed", error=str(error))
                return
            rest.pop(0)


def saved_step(step: Step, saved: Any) -> SavedStep:
    failed = kind_of(step) == FAILED
    return SavedStep(
        step.name,
        step.number,
        None if step.output is None or failed else from_json(step.output),
        to_datetime(step.finished_at) if step.finished_at else None,
        "step" if failed else kind_of(step),
        "failed" if failed else "done",
        saved,
    )


def stale_answer(item: Item, job: Job | None, worker: str) -> Answer | None:
    """Return the answer if the job is not this lessee's; None if it is.

    A success that is reported again, because its first answer was lost, is answered as at first.
    """
    if job is None:
        return stale(item, UNKNOWN)
    if job.worker != worker or job.token != item.token:
        return stale(item, NOT_YOURS if job.worker != worker else OVER, job.status)
    if job.status is Status.COMPLETED and isinstance(item, Complete):
        return Answer(item.job_id, item.token, Reply.OK, Status.COMPLETED, "it was reported before")
    return None if job.status is Status.RUNNING else stale(item, OVER, job.status)


def stale(item: Item, why: str, status: Status | None = None) -> Answer:
    return Answer(item.job_id, item.token, Reply.STALE, status, why)


def invalid(item: Item, why: str) -> Answer:
    return Answer(item.job_id, item.token, Reply.INVALID, Status.RUNNING, why)


def accepted(item: Item, cancelled: Mapping[str, str]) -> Answer:
    if item.job_id in cancelled:
        return Answer(item.job_id, item.token, Reply.CANCELLED, Status.RUNNING, cancelled[item.job_id])
    return Answer(item.job_id, item.token, Reply.OK, Status.RUNNING)
