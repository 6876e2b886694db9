"""Calls your handler of an occasion. The person is read when the job runs, so the handler gets the latest data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import Any, get_type_hints

from mainspring.context import Context
from mainspring.errors import Cancel, ConfigurationError, InvalidPerson, Snooze
from mainspring.features.people.api import People
from mainspring.features.people.lookups import Lookups
from mainspring.features.people.occasion import Occasion
from mainspring.features.people.person import Person
from mainspring.log import get_log
from mainspring.services import Services

log = get_log("mainspring.occasions")

UNREADABLE_RETRY_DELAY = timedelta(minutes=1)  # until then, a worker of a newer version may start and claim the job
Looked = Person | InvalidPerson | None
PAYLOAD: dict[str, type] = {"person": str, "kind": str, "on": date, "due": datetime, "lateness": float}
INJECTED: dict[type, str] = {Person: "person", Occasion: "occasion", Context: "ctx"}


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
