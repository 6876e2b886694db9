"""Which settings count for the jobs of a queue or a task, and which level decides each of them.

docs/settings.md has the levels. What code says is read from the descriptions that workers publish, so every process
gives the same answer, also one without the tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mainspring.features.limits.options import Limit, Rate
from mainspring.features.settings.api import Setting
from mainspring.projects import plain_name
from mainspring.published.description import Description, retry_data
from mainspring.retry import Retry

if TYPE_CHECKING:
    from mainspring.features.limits.api import Limits, LimitState
    from mainspring.features.settings.api import Settings
    from mainspring.published.api import PublishedTasks

Source = Literal["set for the task", "task", "set for the queue", "queue", "application", "default"]
NEVER = datetime.min.replace(tzinfo=UTC)


class Application(Protocol):
    """What is read of an application."""

    @property
    def settings(self) -> Settings: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def published(self) -> PublishedTasks: ...


@dataclass(frozen=True, slots=True)
class Level:
    """A place that may give a value."""

    source: Source
    value: Any


@dataclass(frozen=True, slots=True)
class Effective:
    """One option: the value that counts, and all levels that give one, the one that decides first."""

    option: str
    value: Any
    source: Source
    levels: tuple[Level, ...]


Given = tuple[Source, Mapping[str, Any]]
"""A level and its options, as JSON data."""

BUILT_IN: Given = ("default", {"retry": retry_data(Retry()), "timeout": None})


def of_queue(queue: str, tasks: Iterable[Description], changed: Mapping[str, Setting]) -> list[Effective]:
    """Return the defaults of jobs in a queue whose task and enqueue leave them unset."""
    levels = under_task(queue, tasks, changed)
    return [decided(option, levels) for option in ("timeout", "max_attempts", "retry")]


def of_task(
    task: Description, changed: Mapping[str, Setting], changed_for_queue: Mapping[str, Setting]
) -> list[Effective]:
    """Return the defaults of a task's jobs in its own queue, and whether it is paused."""
    own: list[Given] = [("set for the task", data_of(changed)), ("task", task.options)]
    levels = [*own, *under_task(task.queue, [task], changed_for_queue)]
    pause = decided("paused", [("set for the task", data_of(changed)), ("default", {"paused": False})])
    return [*(decided(option, levels) for option in ("timeout", "max_attempts", "retry")), pause]


def under_task(queue: str, tasks: Iterable[Description], changed: Mapping[str, Setting]) -> list[Given]:
    defaults = newest_defaults(queue, tasks)
    queues: Mapping[str, Any] = defaults.get("queues", {})
    code = queues.get(queue, queues.get(plain_name(queue), {}))
    return [
        ("set for the queue", data_of(changed)),
        ("queue", code),
        ("application", defaults.get("app", {})),
        BUILT_IN,
    ]


def newest_defaults(queue: str, tasks: Iterable[Description]) -> Mapping[str, Any]:
    """Return the defaults of the application that has last published a task of this queue, or else any task."""
    names = {queue, plain_name(queue)}
    newest = max(tasks, key=lambda task: (task.queue in names, task.published_at or NEVER), default=None)
    return {} if newest is None else newest.defaults


def data_of(changed: Mapping[str, Setting]) -> dict[str, Any]:
    """Return what was set at run time, as JSON data."""
    values = {option: setting.value for option, setting in changed.items()}
    return {name: retry_data(value) if isinstance(value, Retry) else value for name, value in values.items()}


def decided(option: str, levels: Iterable[Given]) -> Effective:
    found = [Level(source, value) for source, data in levels for value in values_in(option, data)]
    return Effective(option, found[0].value, found[0].source, tuple(found))


def values_in(option: str, data: Mapping[str, Any]) -> list[Any]:
    """Return the value that a level gives for an option, if any. A retry policy may have a number of attempts."""
    if option == "max_attempts":
        number = data.get("max_attempts") or (data.get("retry") or {}).get("max_attempts")
        return [] if number is None else [number]
    return [data[option]] if option in data else []


# -- from the store ---------------------------------------------------------------------------------


async def settings_of_queue(app: Application, queue: str) -> list[Effective]:
    """Return which settings count for a queue, and where they come from."""
    changed = await app.settings.get(queue=queue)
    limits = await limits_of(app.limits, queue, "queue", changed)
    return [*limits, *of_queue(queue, await app.published.list(), changed)]


async def settings_of_task(app: Application, task: Description) -> list[Effective]:
    """Return which settings count for a task in its queue, and where they come from."""
    changed, for_queue = await app.settings.get(task=task.name), await app.settings.get(queue=task.queue)
    return [*await limits_of(app.limits, task.name, "task", changed), *of_task(task, changed, for_queue)]


# -- limits ---------------------------------------------------------------------------------------


async def limits_of(
    limits: Limits, name: str, kind: Literal["task", "queue"], changed: Mapping[str, Setting]
) -> list[Effective]:
    """Return the limit and the rate of a queue or task: as set at run time, else as they are in use by the code."""
    named = f"queue {name}" if kind == "queue" else name
    in_use = {each: await limits.get(named, kind=each.kind) for each in (Limit, Rate)}
    numbers: dict[str, Any] = {
        "limit": None if (limit := in_use[Limit]) is None else limit.size,
        "rate": None if (rate := in_use[Rate]) is None else rate_data(rate),
    }
    source: Source = "set for the queue" if kind == "queue" else "set for the task"
    found = []
    for option, number in numbers.items():
        given = [Level(source, value_of(changed[option].value))] if option in changed else []
        code = [Level(kind, number)] if number is not None and not given else []
        levels = [*given, *code, Level("default", None)]
        found.append(Effective(option, levels[0].value, levels[0].source, tuple(levels)))
    return found


def value_of(value: Any) -> Any:
    return {"count": value.count, "per": value.per, "burst": value.burst} if isinstance(value, Rate) else value


def rate_data(state: LimitState) -> dict[str, Any]:
    return {"count": state.per_second, "per": 1, "burst": state.size}
