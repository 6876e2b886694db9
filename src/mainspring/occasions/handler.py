"""From a job to the user's function: who it is about is read when it runs, so a change before that is known to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, get_type_hints

from mainspring.context import Context
from mainspring.errors import Cancel, ConfigurationError, InvalidPerson, Snooze
from mainspring.log import get_log
from mainspring.occasions.lookups import Lookups
from mainspring.occasions.occasion import Occasion
from mainspring.occasions.person import Person

if TYPE_CHECKING:
    from mainspring.app import Mainspring

log = get_log("mainspring.occasions")

LATER = timedelta(minutes=1)  # a worker of a newer version may be there then, and get the job
Looked = Person | InvalidPerson | None
ASKS: dict[type, str] = {Person: "person", Occasion: "occasion", Context: "ctx"}


def task_function(app: Mainspring, function: Callable[..., Any], names: Mapping[str, Any]) -> Callable[..., Any]:
    """What the task of an occasion's handler runs."""
    wants = arguments_of(function, names)

    lookups: Lookups[Looked] = Lookups(app.people.look_up)

    def given(found: Looked, told: Mapping[str, Any], ctx: Context) -> dict[str, Any]:
        person, occasion = current(found, **told)
        values = {"person": person, "occasion": occasion, "ctx": ctx}
        return {name: values[what] for name, what in wants.items()}

    async def on_loop(*, ctx: Context, person: str, kind: str, on: date, due: datetime, lateness: float) -> Any:
        told = {"id": person, "kind": kind, "on": on, "due": due, "lateness": lateness}
        return await function(**given(await lookups.get(person), told, ctx))

    def in_thread(*, ctx: Context, person: str, kind: str, on: date, due: datetime, lateness: float) -> Any:
        told = {"id": person, "kind": kind, "on": on, "due": due, "lateness": lateness}
        return function(**given(app.run(lookups.get(person)), told, ctx))

    chosen = on_loop if inspect.iscoroutinefunction(function) else in_thread
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):  # not its signature
        setattr(chosen, name, getattr(function, name))
    return chosen


def current(person: Looked, *, id: str, kind: str, on: date, due: datetime, lateness: float) -> Any:
    """The person as they are now, and the occasion on the day that the job is for."""
    if person is None:
        msg = f"there is no person {id!r} any more"
        raise Cancel(msg)
    if isinstance(person, InvalidPerson):
        log.warning("person_unreadable", person=id, error=str(person))
        raise Snooze(LATER, f"left to a worker of a newer version: {person}")
    occasion = person.occasion(kind)
    if occasion is None:
        msg = f"person {id!r} has no {kind} any more"
        raise Cancel(msg)
    today = {"on": on, "due": due, "lateness": timedelta(seconds=lateness)}
    return person, occasion.model_copy(update=today)


def arguments_of(function: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, str]:
    """Which of its parameters wants what: by annotation, or without one by name."""
    try:
        hints = get_type_hints(function, localns=dict(names))
    except NameError as error:
        msg = f"handler {function.__name__!r}: {error}; its annotations must be importable where it is defined"
        raise ConfigurationError(msg) from error
    wants: dict[str, str] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        what = ASKS.get(hints[name]) if name in hints else (name if name in ASKS.values() else None)
        if what is not None:
            wants[name] = what
        elif parameter.default is parameter.empty:
            msg = (
                f"handler {function.__name__!r}: nothing is known for its argument {name!r}; it can ask for "
                "person: Person, occasion: Occasion, ctx: Context"
            )
            raise ConfigurationError(msg)
    return wants
