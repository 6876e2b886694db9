"""Reads rules and schedules from JSON data, with errors that say what is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from mainspring.errors import InvalidSchedule, MissingExtra
from mainspring.features.schedules.rules.calendar import Daily, Monthly, Once, Weekly, Yearly
from mainspring.features.schedules.rules.cron import Cron
from mainspring.features.schedules.rules.interval import Interval
from mainspring.features.schedules.rules.parse import did_you_mean
from mainspring.features.schedules.rules.rrule import RRule
from mainspring.features.schedules.rules.rule import Rule

KINDS: dict[str, type[Rule]] = {
    rule.kind: rule for rule in (Cron, Interval, Daily, Weekly, Monthly, Yearly, Once, RRule)
}

Built = TypeVar("Built")


def rule_from_data(data: Any) -> Rule:
    """Return the rule that `Rule.to_data` wrote."""
    fields = _mapping(data, "rule")
    kind = fields.pop("kind", None)
    if kind not in KINDS:
        msg = f"rule: kind {kind!r} is not one of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}"
        raise InvalidSchedule(msg)
    known = [field.name for field in dataclasses.fields(KINDS[kind])]  # type: ignore[arg-type]
    return build(f"rule {kind}", KINDS[kind], fields, known)


def build(what: str, make: Callable[..., Built], data: Any, known: Iterable[str]) -> Built:
    """Call a constructor with the fields of a JSON object. Errors begin with `what`."""
    fields = _mapping(data, what)
    for name in fields:
        if name not in known:
            msg = f"{what}: {name!r} is not a field; the fields are {', '.join(known)}{did_you_mean(name, known)}"
            raise InvalidSchedule(msg)
    try:
        return make(**fields)
    except InvalidSchedule as error:
        msg = f"{what}: {error}"
        raise type(error)(msg) from None
    except MissingExtra:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        msg = f"{what}: {_plainly(error)}"
        raise InvalidSchedule(msg) from None


def _plainly(error: Exception) -> str:
    """Return an error's text without the name of the Python function: `missing 1 required … argument: 'at'`."""
    text = str(error)
    return text.partition("() ")[2] or text


def _mapping(data: Any, what: str) -> dict[str, Any]:
    if isinstance(data, Mapping) and all(isinstance(name, str) for name in data):
        return dict(data)
    msg = f"{what}: {data!r} is not a JSON object"
    raise InvalidSchedule(msg)
