"""The signature of a task's function: its arguments, their types and which of them is the context.

This module does not import Pydantic. A program that only declares tasks, such as most commands, starts without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from enum import EnumType
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from mainspring.errors import ConfigurationError

PLAIN = frozenset({
    NoneType, bool, int, float, str, bytes, date, datetime, time, timedelta, list, tuple, set, frozenset, dict,
})  # fmt: skip
PLAIN_NAMES = frozenset({"decimal.Decimal", "uuid.UUID"})  # by name, because their modules take a while to import
GENERIC = frozenset({list, tuple, set, frozenset, dict, Iterable, Mapping, Sequence, Union, UnionType})


class Signature:
    """What the function of one task takes and returns."""

    def __init__(self, task: str, function: Callable[..., Any], context_type: type, names: Mapping[str, Any]) -> None:
        self.task = task
        self.hints = self._hints_of(function, names)
        self.parameters = inspect.signature(function).parameters
        self.context = next((name for name, hint in self._arguments() if hint is context_type), None)
        self.taken = {name: parameter for name, parameter in self.parameters.items() if name != self.context}

    def _hints_of(self, function: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return get_type_hints(function, localns=dict(names), include_extras=True)
        except NameError as error:
            msg = f"task {self.task!r}: {error}; its annotations must be importable where it is defined"
            raise ConfigurationError(msg) from error

    def _arguments(self) -> Iterable[tuple[str, Any]]:
        return ((name, hint) for name, hint in self.hints.items() if name != "return")

    def allows_no_arguments(self) -> bool:
        """Return whether a job without arguments is valid."""
        return all(
            parameter.default is not parameter.empty or parameter.kind is parameter.VAR_KEYWORD
            for parameter in self.taken.values()
        )

    def check_names(self) -> None:
        """Raise ConfigurationError if an argument cannot be passed by name."""
        for name, parameter in self.taken.items():
            if parameter.kind in {parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY}:
                msg = f"task {self.task!r}: argument {name!r} must be passable by name, since payloads are JSON objects"
                raise ConfigurationError(msg)

    def is_plain(self) -> bool:
        """Return whether all types are known to fit JSON. Of others, only Pydantic knows it."""
        return all(is_plain(hint) for name, hint in self.hints.items() if name != self.context)


def is_plain(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        return all(isinstance(value, (str, int, NoneType)) for value in get_args(hint))
    if origin is not None:
        return origin in GENERIC and all(map(is_plain, get_args(hint)))
    if hint is Any or hint is None or hint is ...:
        return True
    return isinstance(hint, type) and (hint in PLAIN or isinstance(hint, EnumType) or full_name(hint) in PLAIN_NAMES)


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
