"""A step's output as JSON: by the return annotation of its function, so that a model comes back as that model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from mainspring.errors import CannotStoreResult, ConfigurationError

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
        return text

    def load(self, text: str | None) -> Any:
        return self._adapter.validate_json(text or "null")


def adapter_of(step: str, function: Callable[..., Any]) -> TypeAdapter[Any]:
    named = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    try:
        hint = get_type_hints(named, include_extras=True).get("return", Any)
        return adapter_for(hint) if hint.__hash__ is not None else TypeAdapter(hint)
    except TypeError:  # an object without annotations
        return ANYTHING
    except NameError as error:
        msg = f"step {step!r}: {error}; the return annotation of its function must be importable where it is defined"
        raise ConfigurationError(msg) from error
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        msg = f"step {step!r} gives a type that cannot be JSON: {error}"
        raise ConfigurationError(msg) from error


@functools.lru_cache(maxsize=500)
def adapter_for(hint: Any) -> TypeAdapter[Any]:
    return ANYTHING if hint in {Any, None, type(None)} else TypeAdapter(hint)


def to_json(value: Any, what: str) -> str:
    """Of what has no annotation."""
    try:
        return ANYTHING.dump_json(value, by_alias=True, round_trip=True).decode()
    except (PydanticSerializationError, ValueError) as error:
        msg = f"{what} is not JSON: {error}"
        raise CannotStoreResult(msg) from error
