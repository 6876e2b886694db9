"""How people's occasions take part: each kind has a handler, and a timer that enqueues the handler's jobs.

The person is read when the job runs, so the handler gets the latest data. In a burst thousands of jobs run at once, and
a separate read for each of them would take most of their time: `Lookups` combines the reads.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Generic, TypeVar, get_type_hints

from pydantic import BaseModel

from mainspring.context import Context
from mainspring.errors import Cancel, ConfigurationError, InvalidPerson, Snooze
from mainspring.feature import Feature
from mainspring.features.people.api import People
from mainspring.features.people.occasion import KIND, Occasion
from mainspring.features.people.person import Person
from mainspring.features.people.timer import OccasionTimer
from mainspring.log import get_log
from mainspring.pipeline import Pipeline
from mainspring.services import Services

log = get_log("mainspring.occasions")

UNREADABLE_RETRY_DELAY = timedelta(minutes=1)  # until then, a worker of a newer version may start and claim the job
PAYLOAD: dict[str, type] = {"person": str, "kind": str, "on": date, "due": datetime, "lateness": float}
INJECTED: dict[type, str] = {Person: "person", Occasion: "occasion", Context: "ctx"}

T = TypeVar("T")
Looked = Person | InvalidPerson | None
Read = Callable[[Sequence[str]], Awaitable[Mapping[str, T]]]
Waiting = list[tuple[str, "asyncio.Future[T]"]]


class PeopleFeature(Feature):
    """The handlers of an application, by the kind of occasion."""

    def __init__(self, services: Services, pipeline: Pipeline, people: People) -> None:
        self._services = services
        self._pipeline = pipeline
        self._people = people
        self.timers: list[OccasionTimer] = []

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds that have a handler in this application."""
        return tuple(timer.kind for timer in self.timers)

    def handle(
        self, kind: str, function: Callable[..., Any], names: Mapping[str, Any], make: Callable[..., Any]
    ) -> None:
        """See `app.occasion`."""
        if not re.fullmatch(KIND, kind):
            msg = f"{kind!r} is not a kind of occasion; use letters, digits, - and _"
            raise ConfigurationError(msg)
        known = next((timer for timer in self.timers if timer.kind == kind), None)
        if known is not None and _place(known.task.function) != _place(function):  # else the module is reloaded
            msg = f"{kind!r} is handled by {known.task.name!r} already; a kind can have only one handler"
            raise ConfigurationError(msg)
        task = make(task_function(self._people, self._services, function, names))
        task.keys_are_unique = True
        if known is None:
            self.timers.append(OccasionTimer(self._services, self._pipeline, kind, task))
        else:
            known.task = task


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__, function.__qualname__


# -- the task of a handler ---------------------------------------------------------------------------------


def task_function(
    people: People, services: Services, function: Callable[..., Any], names: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return the function that the task of an occasion's handler runs."""
    wants = arguments_of(function, names)
    lookups: Lookups[Looked] = Lookups(people.look_up)

    def arguments(found: Looked, payload: dict[str, Any]) -> dict[str, Any]:
        ctx = payload.pop("ctx", None)
        person, occasion = current(found, **payload)
        values = {"person": person, "occasion": occasion, "ctx": ctx}
        return {name: values[what] for name, what in wants.items()}

    async def on_loop(**payload: Any) -> Any:
        return await function(**arguments(await lookups.get(payload["person"]), payload))

    def in_thread(**payload: Any) -> Any:
        return function(**arguments(services.run(lookups.get(payload["person"])), payload))

    chosen = on_loop if inspect.iscoroutinefunction(function) else in_thread
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(chosen, name, getattr(function, name))
    return with_arguments(chosen, PAYLOAD | ({"ctx": Context} if "ctx" in wants.values() else {}))


def with_arguments(function: Callable[..., Any], arguments: Mapping[str, type]) -> Callable[..., Any]:
    """Declare the arguments of a function. A context is made only for handlers that need one, as that takes time."""
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in arguments]
    function.__annotations__ = dict(arguments)
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def current(found: Looked, *, person: str, kind: str, on: date, due: datetime, lateness: float) -> Any:
    """Return the person as stored now, and the occasion with the day that the job is for."""
    if found is None:
        msg = f"there is no person {person!r} any more"
        raise Cancel(msg)
    if isinstance(found, InvalidPerson):
        log.warning("person_unreadable", person=person, error=str(found))
        raise Snooze(UNREADABLE_RETRY_DELAY, f"left to a worker of a newer version: {found}")
    occasion = found.occasion(kind)
    if occasion is None:
        msg = f"person {person!r} has no {kind} any more"
        raise Cancel(msg)
    today = {"on": on, "due": due, "lateness": timedelta(seconds=lateness)}
    return found, occasion.model_copy(update=today)


def arguments_of(function: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, str]:
    """Return what to pass for each parameter of a handler, by its annotation or, without one, by its name."""
    try:
        hints = get_type_hints(function, localns=dict(names))
    except NameError as error:
        msg = f"handler {function.__name__!r}: {error}; its annotations must be importable where it is defined"
        raise ConfigurationError(msg) from error
    wants: dict[str, str] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        what = INJECTED.get(hints[name]) if name in hints else (name if name in INJECTED.values() else None)
        if what is not None:
            wants[name] = what
        elif parameter.default is parameter.empty:
            msg = (
                f"handler {function.__name__!r}: its argument {name!r} is unknown; the arguments can be "
                "person: Person, occasion: Occasion, ctx: Context"
            )
            raise ConfigurationError(msg)
    return wants


# -- the reads of many jobs --------------------------------------------------------------------------------


class Lookups(threading.local, Generic[T]):
    """While one read is in progress, requests are collected for the next. Each thread has its own loop and reads.

    A read begins after all of its requests, so it sees everything that was written before a request.
    """

    def __init__(self, read: Read[T]) -> None:
        self._read = read
        self._waiting: Waiting[T] = []
        self._reader: asyncio.Task[None] | None = None

    async def get(self, id: str) -> T:
        loop = asyncio.get_running_loop()
        if self._reader is None or self._reader.get_loop() is not loop:
            self._waiting = []
            # in a new context, not in that of the first job
            self._reader = loop.create_task(self._read_all(), context=contextvars.Context())
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.append((id, future))
        return await future

    async def _read_all(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                await self._answer(group)
        finally:
            self._reader = None

    async def _answer(self, group: Waiting[T]) -> None:
        try:
            found = await self._read(list({person_id for person_id, _ in group}))
        except Exception as error:  # noqa: BLE001 - each request gets the error
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
        else:
            given: set[str] = set()
            for person_id, future in group:
                if not future.done():  # else its job was cancelled
                    future.set_result(_copy(found[person_id]) if person_id in given else found[person_id])
                given.add(person_id)


def _copy(value: T) -> T:
    """Return a copy, so that handlers do not see each other's changes to attributes."""
    return value.model_copy(deep=True) if isinstance(value, BaseModel) else value
