"""A change of settings: what is allowed, and what the document of a task, queue or limit becomes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mainspring.clock import Length, duration, shown
from mainspring.errors import ConfigurationError
from mainspring.features.limits.options import Rate, check_number
from mainspring.job import check_queue
from mainspring.json_text import read_object
from mainspring.live_settings import COLLECTION, Kind
from mainspring.names import check_name
from mainspring.retry import Retry, problem_of_attempts
from mainspring.stores.documents import By, Key

OPTIONS = ("limit", "rate", "retry", "timeout", "max_attempts", "paused")
OF_LIMITS = frozenset({"limit", "rate"})

Data = dict[str, dict[str, Any]]
"""What a document has of each setting: its value, and who set it, when and why."""


@dataclass(frozen=True, slots=True)
class Owner:
    """What settings are of: a task, a queue, or a limit with a name of its own."""

    kind: Kind
    name: str

    @property
    def key(self) -> Key:
        return Key(COLLECTION, self.kind, self.name)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def owner_of(task: str | None, queue: str | None, name: str | None) -> Owner:
    """Return what settings are of. Raise ConfigurationError unless exactly one is given."""
    given = [(kind, value) for kind, value in zip(Kind, (task, queue, name), strict=True) if value is not None]
    if len(given) != 1:
        msg = 'say what the settings are of, by one of task="send", queue="mail" or name="smtp" (of a limit or rate)'
        raise ConfigurationError(msg)
    [(kind, value)] = given
    checked = check_queue(value) if kind is Kind.QUEUE else check_name(value, f"the {kind}")
    return Owner(kind, checked)


def values_of(
    owner: Owner,
    *,
    limit: int | None,
    rate: Rate | None,
    retry: Retry | None,
    timeout: Length | None,
    max_attempts: int | None,
    paused: bool | None,
) -> dict[str, Any]:
    """Return the values that are given, as JSON data. Raise ConfigurationError if one is wrong."""
    values: dict[str, Any] = {}
    if limit is not None:
        check_number("settings", "limit", limit)
        values["limit"] = limit
    if rate is not None:
        values["rate"] = rate_data(rate)
    if retry is not None:
        values["retry"] = retry_data(retry)
    if timeout is not None:
        values["timeout"] = timeout_data(timeout)
    if max_attempts is not None:
        if problem := problem_of_attempts(max_attempts):
            raise ConfigurationError(problem)
        values["max_attempts"] = max_attempts
    if paused is not None:
        values["paused"] = paused_data(paused)
    check_fit(owner, values)
    return values


def check_fit(owner: Owner, values: Collection[str]) -> None:
    """Raise ConfigurationError if nothing is given, or something that its owner cannot have."""
    if not values:
        msg = f"give at least one of {', '.join(OPTIONS)}; to go back to the code's values, use clear"
        raise ConfigurationError(msg)
    if owner.kind is Kind.LIMIT and (wrong := set(values) - OF_LIMITS):
        msg = f"a limit has no {min(wrong)}; set it of the task or queue"
        raise ConfigurationError(msg)
    if owner.kind is Kind.QUEUE and "paused" in values:
        msg = f"pause a queue by app.pause({owner.name!r}) or `mainspring pause`, and end that by app.resume"
        raise ConfigurationError(msg)


def rate_data(rate: Any) -> dict[str, Any]:
    if not isinstance(rate, Rate):
        msg = f"rate is {shown(rate)}; give a Rate, such as Rate(100, per=60)"
        raise ConfigurationError(msg)
    if rate.key is not None or rate.name is not None:
        msg = "rate: give only numbers, such as Rate(100, per=60); the key and the name of a rate stay in the code"
        raise ConfigurationError(msg)
    return {"count": rate.count, "per": duration(rate.per), "burst": rate.burst}


def retry_data(retry: Any) -> dict[str, Any]:
    if not isinstance(retry, Retry):
        msg = f"retry is {shown(retry)}; give a Retry, such as Retry.fixed(30) or Retry(max_attempts=5, base=10)"
        raise ConfigurationError(msg)
    if retry.function or retry.only or retry.never:
        msg = "retry: give only numbers; a function, and which errors are retried, stay in the code"
        raise ConfigurationError(msg)
    return retry.to_data()


def timeout_data(timeout: Length) -> int:
    if duration(timeout) <= 0:
        msg = f"timeout is {shown(timeout)}; give at least a millisecond, or clear it for the code's value"
        raise ConfigurationError(msg)
    return duration(timeout)


def paused_data(paused: Any) -> bool:
    if not isinstance(paused, bool):
        msg = f"paused is {shown(paused)}; give True or False"
        raise ConfigurationError(msg)
    return paused


def changed(text: str | None, values: Mapping[str, Any], by: By, now: datetime) -> Data:
    """Return the contents of a document with new values."""
    who = {"actor": by.actor, "reason": by.reason, "at": now.isoformat()}
    return {**read_object(text), **{name: {"value": value, **who} for name, value in values.items()}}


def cleared(text: str | None, names: Collection[str], by: By, now: datetime) -> Data:
    """Return the contents of a document without these settings.

    A pause stays in it as ended: a worker that starts later wakes the jobs that still wait for its end.
    """
    data: Data = dict(read_object(text))
    left = {name: entry for name, entry in data.items() if name not in names}
    return changed(json.dumps(left), {"paused": False}, by, now) if "paused" in data and "paused" in names else left


def named_options(names: Collection[str]) -> tuple[str, ...]:
    """Return the settings that are meant; all, if none is named. Raise ConfigurationError for an unknown one."""
    if wrong := set(names) - set(OPTIONS):
        msg = f"there is no setting {min(wrong)!r}; there are {', '.join(OPTIONS)}"
        raise ConfigurationError(msg)
    return tuple(names) or OPTIONS
