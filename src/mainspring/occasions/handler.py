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
PAYLOAD: dict[str, type] = {"person": str, "kind": str, "on": date, "due": datetime, "lateness": float}
ASKS: dict[type, str] = {Person: "person", Occasion: "occasion", Context: "ctx"}


def task_function(app: Mainspring, function: Callable[..., Any], names: Mapping[str, Any]) -> Callable[..., Any]:
    """What the task of an occasion's handler runs."""
    wants = arguments_of(function, names)
    lookups: Lookups[Looked] = Lookups(app.people.look_up)

    def given(found: Looked, told: dict[str, Any]) -> dict[str, Any]:
        ctx = told.pop("ctx", None)
        person, occasion = current(found, **told)
        values = {"person": person, "occasion": occasion, "ctx": ctx}
        return {name: values[what] for name, what in wants.items()}

    async def on_loop(**told: Any) -> Any:
        return await function(**given(await lookups.get(told["person"]), told))

    def in_thread(**told: Any) -> Any:
        return function(**given(app.run(lookups.get(told["person"])), told))

    chosen = on_loop if inspect.iscoroutinefunction(function) else in_thread
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(chosen, name, getattr(function, name))
    return with_arguments(chosen, PAYLOAD | ({"ctx": Context} if "ctx" in wants.values() else {}))


def with_arguments(function: Callable[..., Any], arguments: Mapping[str, type]) -> Callable[..., Any]:
    """Declare what a function is called with. A context is made only for handlers that ask for one: it takes time."""
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in arguments]
    function.__annotations__ = dict(arguments)
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def current(found: Looked, *, person: str, kind: str, on: date, due: datetime, lateness: float) -> Any:
    """The person as they are now, and the occasion on the day that the job is for."""
    if found is None:
        msg = f"there is no person {person!r} any more"
        raise Cancel(msg)
    if isinstance(found, InvalidPerson):
        log.warning("person_unreadable", person=person, error=str(found))
        raise Snooze(LATER, f"left to a worker of a newer version: {found}")
    occasion = found.occasion(kind)
    if occasion is None:
        msg = f"person {person!r} has no {kind} any more"
        raise Cancel(msg)
    today = {"on": on, "due": due, "lateness": timedelta(seconds=lateness)}
    return found, occasion.model_copy(update=today)


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
