"""A step's output as JSON: by the return annotation of its function, so that a model comes back as that model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from mainspring.errors import CannotStoreResult, ConfigurationError, StepsChanged
from mainspring.json_text import problem_of_json

ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


class Output:
    """Of one step. What the function gets in its first run is what it will get after a resume: both came from JSON."""

    def __init__(self, step: str, function: Callable[..., Any]) -> None:
        self._step = step
        self._adapter = adapter_of(step, function)

    def dump(self, value: Any) -> str:
        try:
            text = self._adapter.dump_json(value, by_alias=True, round_trip=True, warnings="error").decode()
            self._adapter.validate_json(text)
        except (PydanticSerializationError, ValidationError, ValueError) as error:
            msg = f"what step {self._step!r} gave does not fit its return type or JSON, and was not recorded: {error}"
            raise CannotStoreResult(msg) from error
        if problem := problem_of_json(text, value):
            msg = f"what step {self._step!r} gave cannot be kept, and was not recorded: {problem}"
            raise CannotStoreResult(msg)
        return text

    def load(self, text: str | None) -> Any:
        try:
            return self._adapter.validate_json(text or "null")
        except ValidationError as error:
            msg = f"what step {self._step!r} gave in an earlier run does not fit its return type any more: {error}"
            raise StepsChanged(msg) from error


def adapter_of(step: str, function: Callable[..., Any]) -> TypeAdapter[Any]:
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
        return TypeAdapter(hint)


@functools.lru_cache(maxsize=500)
def known_adapter(hint: Any) -> TypeAdapter[Any]:
    return ANYTHING if hint in {Any, None, type(None)} else TypeAdapter(hint)


def to_json(value: Any, what: str) -> str:
    """Of what has no annotation."""
    try:
        text = ANYTHING.dump_json(value, by_alias=True, round_trip=True).decode()
    except (PydanticSerializationError, ValueError) as error:
        msg = f"{what} is not JSON: {error}"
        raise CannotStoreResult(msg) from error
    if problem := problem_of_json(text, value):
        msg = f"{what} cannot be kept: {problem}"
        raise CannotStoreResult(msg)
    return text
