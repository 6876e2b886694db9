"""A step's output as JSON: by the return annotation of its function, so that a model comes back as that model.

Pydantic is imported when the first step runs: it takes a while, and importing Mainspring should not.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_type_hints

from mainspring.errors import CannotStoreResult, ConfigurationError, StepsChanged
from mainspring.json_text import problem_of_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter


class Output:
    """Of one step. What the function gets in its first run is what it will get after a resume: both came from JSON."""

    def __init__(self, step: str, function: Callable[..., Any]) -> None:
        self._step = step
        self._adapter = adapter_of(step, function)

    def dump(self, value: Any) -> str:
        try:
            text = self._adapter.dump_json(value, by_alias=True, round_trip=True, warnings="error").decode()
            self._adapter.validate_json(text)
        except ValueError as error:  # as all of Pydantic's are
            msg = f"what step {self._step!r} gave does not fit its return type or JSON, and was not recorded: {error}"
            raise CannotStoreResult(msg) from error
        if problem := problem_of_json(text, value):
            msg = f"what step {self._step!r} gave cannot be kept, and was not recorded: {problem}"
            raise CannotStoreResult(msg)
        return text

    def load(self, text: str | None) -> Any:
        try:
            return self._adapter.validate_json(text or "null")
        except ValueError as error:
            msg = f"what step {self._step!r} gave in an earlier run does not fit its return type any more: {error}"
            raise StepsChanged(msg) from error


def adapter_of(step: str, function: Callable[..., Any]) -> TypeAdapter[Any]:
    from pydantic import PydanticSchemaGenerationError, PydanticUserError  # noqa: PLC0415 - see above

    try:
        return adapter_for(returned_by(function))
    except NameError as error:
        msg = f"step {step!r}: {error}; the return annotation of its function must be importable where it is defined"
        raise ConfigurationError(msg) from error
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        msg = f"step {step!r} gives a type that cannot be JSON: {error}"
        raise ConfigurationError(msg) from error


def returned_by(function: Callable[..., Any]) -> Any:
    """The type; of a class, what calling it makes."""
    named = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    if inspect.isclass(named):
        return named
    try:
        return get_type_hints(named if inspect.isroutine(named) else type(named).__call__, include_extras=True)[
            "return"
        ]
    except (KeyError, TypeError, AttributeError):  # none is given, or it has no place for any
        return Any


def adapter_for(hint: Any) -> TypeAdapter[Any]:
    try:
        return known_adapter(hint)
    except TypeError:  # it cannot be a key
        return new_adapter(hint)


@functools.lru_cache(maxsize=500)
def known_adapter(hint: Any) -> TypeAdapter[Any]:
    return new_adapter(Any if hint in {None, type(None)} else hint)


def new_adapter(hint: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - see above

    return TypeAdapter(hint)


def to_json(value: Any, what: str) -> str:
    """Of what has no annotation."""
    try:
        text = known_adapter(Any).dump_json(value, by_alias=True, round_trip=True).decode()
    except ValueError as error:
        msg = f"{what} is not JSON: {error}"
        raise CannotStoreResult(msg) from error
    if problem := problem_of_json(text, value):
        msg = f"{what} cannot be kept: {problem}"
        raise CannotStoreResult(msg)
    return text
