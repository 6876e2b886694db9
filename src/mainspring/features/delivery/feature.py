"""Starts jobs only within local hours, of a time zone or of a person, and defers them until the hours begin.

The code that knows hours and time zones is imported when the first window is made, as most programs have none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from mainspring.clock import Millis, to_datetime, to_millis
from mainspring.errors import InvalidPerson
from mainspring.feature import Candidate, Enqueue, Feature, Refusal, refuse
from mainspring.features.delivery.options import OPTION, AnyWindow, LocalHours, PersonWindow, Window, window_of
from mainspring.job import Claim, Job, Move, NewJob
from mainspring.services import Services
from mainspring.stored_options import options_of, with_options

NEWER_VERSION_DELAY: Millis = 60_000  # until the next try, when a worker of a newer version may take the job


HoursOfPeople = Callable[[set[str]], Awaitable[Mapping[str, LocalHours | InvalidPerson]]]
"""Returns the hours of people who have quiet hours; InvalidPerson if only a newer version can read the person."""


class DeliveryFeature(Feature):
    """Moves jobs into their delivery hours, when they are enqueued and when they are claimed outside of them."""

    option = OPTION

    def __init__(self, services: Services, hours_of_people: HoursOfPeople) -> None:
        self._services = services
        self._hours_of_people = hours_of_people

    # -- at the enqueue -----------------------------------------------------------------------------

    async def prepare(self, enqueue: Enqueue) -> None:
        """Move each job to a time at which it may be delivered. For unreadable people, that is decided at the claim."""
        now, windows = self._services.store.clock.now(), [self._window_of(job) for job in enqueue.jobs]
        local = await self._hours(zip(windows, enqueue.jobs, strict=True))
        enqueue.jobs = [
            move(job, hours, now) if isinstance(hours, LocalHours) else job
            for job, hours in zip(enqueue.jobs, local, strict=True)
        ]

    def _window_of(self, job: NewJob) -> AnyWindow | None:
        options = options_of(job.options)
        return self._window(job.task, options["deliver"]) if OPTION in options else None

    def _window(self, task: str, option: Mapping[str, Any] | None) -> AnyWindow | None:
        """Return the job's own window, or else the current one of its task."""
        if option is not None:
            return window_of(option)
        known = self._services.tasks.get(task)
        window = self._services.remote_windows.get(task) if known is None else known.options.get(OPTION)
        return window if isinstance(window, (Window, PersonWindow)) else None

    async def _hours(
        self, wanted: Iterable[tuple[AnyWindow | None, NewJob | Claim]]
    ) -> list[LocalHours | InvalidPerson | None]:
        """Return the hours for each job; None if any time is fine."""
        wanted = list(wanted)
        whose = [self._person(window, job) for window, job in wanted]
        ids = {person for person in whose if person is not None}
        known = await self._hours_of_people(ids) if ids else {}
        return [
            window.local() if isinstance(window, Window) else known.get(person or "")
            for (window, _), person in zip(wanted, whose, strict=True)
        ]

    def _person(self, window: AnyWindow | None, job: NewJob | Claim) -> str | None:
        if not isinstance(window, PersonWindow):
            return None
        if isinstance(window.person, str):
            return window.person
        return window.person(self._services.tasks[job.task].payload.view(job.payload))

    # -- between claim and start --------------------------------------------------------------------

    async def admit(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        claims = [job.claim for job in jobs]
        local = await self._hours((self._window(job.claim.task, job.option), job.claim) for job in jobs)
        refused: dict[str, Refusal] = {}
        for claim, hours in zip(claims, local, strict=True):
            if isinstance(hours, InvalidPerson):
                reason = f"left to a worker of a newer version: {hours}"
                refused[claim.id] = refuse(claim, Move.SNOOZE, delay=NEWER_VERSION_DELAY, reason=reason)
            elif hours is not None and (opening := hours.opening(now)) > now:
                refused[claim.id] = put_off(claim, opening, now, hours)
        return refused

    async def recheck(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        """Refuse jobs whose window has closed since. The hours of people, read at the claim, are not read again."""
        fixed = [job for job in jobs if isinstance(self._window(job.claim.task, job.option), Window)]
        return await self.admit(fixed, now) if fixed else {}


def move(job: NewJob, hours: LocalHours, now: Millis) -> NewJob:
    due = now + job.delay if job.run_at is None else max(now, job.run_at)
    opening = hours.opening(due)
    if opening == due or job.waits_for is not None:  # what it waits for may come at any time
        return job
    moved = replace(job, run_at=opening, delay=0)
    return with_options(moved, put_off={"until": opening, "reason": reason_of(opening, hours)})


def put_off(claim: Claim, opening: Millis, now: Millis, hours: LocalHours) -> Refusal:
    return refuse(claim, Move.SNOOZE, delay=opening - now, reason=reason_of(opening, hours))


def reason_of(opening: Millis, hours: LocalHours) -> str:
    wall: datetime = to_datetime(opening).astimezone(hours.tz.info)
    span = f"{hours.hours.describe()} in {hours.tz.key}"
    return f"outside of the hours for delivery, {span}; they open {wall:%Y-%m-%d %H:%M} there"


def told_reason(job: Job) -> str:
    """Return why it was put off when it was enqueued; empty if its time was changed since."""
    mark = job.options.get("put_off")
    return str(mark["reason"]) if mark is not None and mark["until"] == to_millis(job.run_at) else ""
