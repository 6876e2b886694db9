"""Starts jobs only within local hours, of a zone or of the person they are about; defers them until the hours begin.

The code that knows hours and zones is imported when the first window is made, as most programs have none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from mainspring.clock import Millis, to_datetime, to_millis
from mainspring.errors import ConfigurationError, InvalidPerson, InvalidSchedule
from mainspring.guards import Guarded, Refusal, refuse
from mainspring.job import Claim, Job, Move, NewJob

if TYPE_CHECKING:
    from mainspring.app import Mainspring
    from mainspring.features.schedules.rules.hours import Hours
    from mainspring.features.schedules.rules.parse import TimeOfDay, Weekday
    from mainspring.features.schedules.rules.zones import Zone

OPTION = "deliver"
PUT_OFF = "put_off"  # an option that says why the job is later than asked for
NEWER_VERSION_DELAY: Millis = 60_000  # until the next try, when a worker of a newer version may take the job


def option_of(job: NewJob) -> Any:
    """Return the window in a prepared job's options; None if it has only its task's."""
    return json.loads(job.options or "{}").get(OPTION)


@dataclass(frozen=True, slots=True)
class Window:
    """`Window("08:00", "22:00", tz="Europe/London", days="mon-fri")`; from 22:00 to 06:00 it goes over midnight."""

    start: TimeOfDay
    end: TimeOfDay  # the first moment after the window
    tz: str = "UTC"
    days: Weekday | Sequence[Weekday] = "mon-sun"  # the days on which it opens

    def __post_init__(self) -> None:
        try:
            self.local()
        except InvalidSchedule as error:
            msg = f"a window for delivery: {error}"
            raise ConfigurationError(msg) from error

    @staticmethod
    def of_person(who: str | Callable[[Any], str]) -> PersonWindow:
        """Deliver outside a person's quiet hours. Give an id or, on a task, a function of the payload."""
        return PersonWindow(who)

    def local(self) -> LocalHours:
        from mainspring.features.schedules.rules.hours import Hours  # noqa: PLC0415 - see the module's docstring
        from mainspring.features.schedules.rules.parse import times_of_day, weekdays  # noqa: PLC0415
        from mainspring.features.schedules.rules.zones import PACKAGED  # noqa: PLC0415

        (start,), (end,) = times_of_day(self.start, "start"), times_of_day(self.end, "end")
        if start == end:
            msg = f"from {start} to {end} is the whole day or nothing; leave the window out, or make it shorter"
            raise InvalidSchedule(msg)
        days = weekdays(self.days, "days")
        if not days:
            msg = "days: at least one day of the week is needed"
            raise InvalidSchedule(msg)
        return LocalHours(Hours(start, end, days), PACKAGED.get(self.tz))

    def to_data(self) -> dict[str, Any]:
        return {**self.local().hours.to_data(), "tz": self.tz}


@dataclass(frozen=True, slots=True)
class PersonWindow:
    """The hours that are not quiet for a person."""

    who: str | Callable[[Any], str]

    def __post_init__(self) -> None:
        if not self.who or (not isinstance(self.who, str) and not callable(self.who)):
            msg = f"Window.of_person({self.who!r}): give a person's id or, on a task, a function: lambda p: p.person_id"
            raise ConfigurationError(msg)

    def to_data(self) -> dict[str, Any]:
        if not isinstance(self.who, str):
            msg = "deliver: give the person's id here; how to find it in a payload belongs on the task"
            raise ConfigurationError(msg)
        return {"person": self.who}


class LocalHours(NamedTuple):
    """Hours of the day in a zone."""

    hours: Hours
    zone: Zone

    def opening(self, now: Millis) -> Millis:
        """Return this moment if it is within the hours, else when they begin."""
        found = self.hours.opening(self.zone, to_datetime(now).replace(tzinfo=None)).replace(tzinfo=UTC)
        return max(now, to_millis(found))


AnyWindow = Window | PersonWindow


def window_of(data: Mapping[str, Any]) -> AnyWindow:
    return PersonWindow(data["person"]) if "person" in data else Window(**data)


class Deliveries:
    """Finds out when jobs may be delivered."""

    def __init__(self, app: Mainspring) -> None:
        self._app = app

    async def moved(self, jobs: Sequence[NewJob], window: AnyWindow) -> list[NewJob]:
        """Return prepared jobs, each moved to a time at which it may be delivered."""
        now = self._app.store.clock.now()
        local = await self.hours_of([(window, job.task, job.payload) for job in jobs])
        return [
            move(job, hours, now) if isinstance(hours, LocalHours) else job  # for others, the guard decides later
            for job, hours in zip(jobs, local, strict=True)
        ]

    async def hours_of(self, wanted: Sequence[tuple[AnyWindow, str, str]]) -> list[LocalHours | InvalidPerson | None]:
        """Return the hours for each window, task and payload; None if any time is fine.

        An InvalidPerson stands for a person whom only a newer version of Mainspring can read.
        """
        whose = [self._person(*one) for one in wanted]
        known = await self._of_people({person for person in whose if person is not None})
        return [
            window.local() if isinstance(window, Window) else known.get(person or "")
            for (window, _, _), person in zip(wanted, whose, strict=True)
        ]

    def _person(self, window: AnyWindow, task: str, payload: str) -> str | None:
        if isinstance(window, Window):
            return None
        return window.who if isinstance(window.who, str) else window.who(self._app.tasks[task].payload.view(payload))

    async def _of_people(self, ids: set[str]) -> dict[str, LocalHours | InvalidPerson]:
        """Return the hours of people who have quiet hours. A person who does not exist is up to the handler."""
        if not ids:
            return {}
        from mainspring.features.people.quiet import quiet_hours  # noqa: PLC0415 - programs without people start faster
        from mainspring.features.schedules.rules.zones import PACKAGED  # noqa: PLC0415 - see the module's docstring

        found: dict[str, LocalHours | InvalidPerson] = {}
        for who, person in (await self._app.people.look_up(ids)).items():
            if isinstance(person, InvalidPerson):
                found[who] = person
            elif person is not None and person.quiet is not None:
                found[who] = LocalHours(quiet_hours(person.quiet).others, PACKAGED.get(person.zone))
        return found


def move(job: NewJob, hours: LocalHours, now: Millis) -> NewJob:
    due = now + job.delay if job.run_at is None else max(now, job.run_at)
    opening = hours.opening(due)
    if opening == due:
        return job
    mark = {PUT_OFF: {"until": opening, "reason": reason_of(opening, hours)}}
    options = json.dumps({**json.loads(job.options or "{}"), **mark})
    return replace(job, run_at=opening, delay=0, options=options)


class DeliveryGuard:
    """The guard that defers jobs until their delivery hours begin."""

    option = OPTION

    def __init__(self, app: Mainspring) -> None:
        self._app = app
        self._deliveries = Deliveries(app)

    async def admit(self, jobs: Sequence[Guarded], now: Millis) -> Mapping[str, Refusal]:
        windows = [(window, job.claim) for job in jobs if (window := self._window(job)) is not None]
        local = await self._deliveries.hours_of([(window, claim.task, claim.payload) for window, claim in windows])
        refused: dict[str, Refusal] = {}
        for (_, claim), hours in zip(windows, local, strict=True):
            if isinstance(hours, InvalidPerson):
                reason = f"left to a worker of a newer version: {hours}"
                refused[claim.id] = refuse(claim, Move.SNOOZE, delay=NEWER_VERSION_DELAY, reason=reason)
            elif hours is not None and (opening := hours.opening(now)) > now:
                refused[claim.id] = put_off(claim, opening, now, hours)
        return refused

    def _window(self, job: Guarded) -> AnyWindow | None:
        """Return the job's own window, or else the current one of its task."""
        if job.option is not None:
            return window_of(job.option)
        task = self._app.tasks.get(job.claim.task)
        return None if task is None else task.options.deliver

    async def recheck(self, jobs: Sequence[Guarded], now: Millis) -> Mapping[str, Refusal]:
        """Refuse jobs whose window has closed since. The hours of people, read at the claim, are not read again."""
        fixed = [job for job in jobs if isinstance(self._window(job), Window)]
        return await self.admit(fixed, now) if fixed else {}

    def permits(self, job: Guarded) -> bool:
        """Return True: waiting for a thread takes too little time to matter."""
        del job
        return True

    async def ended(self, jobs: Sequence[Guarded]) -> None:
        """Do nothing: this guard hands nothing out."""


def put_off(claim: Claim, opening: Millis, now: Millis, hours: LocalHours) -> Refusal:
    return refuse(claim, Move.SNOOZE, delay=opening - now, reason=reason_of(opening, hours))


def reason_of(opening: Millis, hours: LocalHours) -> str:
    wall: datetime = to_datetime(opening).astimezone(hours.zone.info)
    span = f"{hours.hours.describe()} in {hours.zone.key}"
    return f"outside of the hours for delivery, {span}; they open {wall:%Y-%m-%d %H:%M} there"


def told_reason(job: Job) -> str:
    """Return why it was put off when it was enqueued; empty if its time was changed since."""
    mark = job.options.get(PUT_OFF)
    return str(mark["reason"]) if mark is not None and mark["until"] == to_millis(job.run_at) else ""
