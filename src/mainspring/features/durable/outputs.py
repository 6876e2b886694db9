"""Step outputs as JSON, according to the function's return annotation: a model comes back as that model.

Pydantic is imported when the first step runs. Its import is slow, and importing Mainspring must be fast.
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
    """Converts one step's output. The first run also gets the value from its JSON, so later runs get an equal value."""

    def __init__(self, step: str, function: Callable[..., Any]) -> None:
        self._step = step
        self._adapter = adapter_of(step, function)

    def dump(self, value: Any) -> str:
        try:
            text = self._adapter.dump_json(value, by_alias=True, round_trip=True, warnings="error").decode()
            self._adapter.validate_json(text)
        except ValueError as error:  # all of Pydantic's errors are ValueErrors
            msg = (
                f"the output of step {self._step!r} does not fit its return type or JSON, and was not recorded: {error}"
            )
            raise CannotStoreResult(msg) from error
        if problem := problem_of_json(text, value):
            msg = f"the output of step {self._step!r} cannot be stored, and was not recorded: {problem}"
            raise CannotStoreResult(msg)
        return text

    def load(self, text: str | None) -> Any:
        try:
            return self._adapter.validate_json(text or "null")
        except ValueError as error:
            msg = f"the recorded output of step {self._step!r} no longer fits its return type: {error}"
            raise StepsChanged(msg) from error


def adapter_of(step: str, function: Callable[..., Any]) -> TypeAdapter[Any]:
    from pydantic import PydanticSchemaGenerationError, PydanticUserError  # noqa: PLC0415 - see above

    try:
        return adapter_for(returned_by(function))
    except NameError as error:
        msg = f"step {step!r}: {error}; the return annotation of its function must be importable where it is defined"
        raise ConfigurationError(msg) from error
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        msg = f"step {step!r} returns a type that cannot be converted to JSON: {error}"
        raise ConfigurationError(msg) from error


def returned_by(function: Callable[..., Any]) -> Any:
    """Return the annotated return type; for a class, the class itself, as calling it makes an instance."""
    named = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    if inspect.isclass(named):
        return named
    try:
        return get_type_hints(named if inspect.isroutine(named) else type(named).__call__, include_extras=True)[
            "return"
        ]
    except (KeyError, TypeError, AttributeError):  # there is no annotation, or the callable cannot have one
        return Any


def adapter_for(hint: Any) -> TypeAdapter[Any]:
    try:
        return known_adapter(hint)
    except TypeError:  # the annotation is not hashable, so it cannot be cached
        return new_adapter(hint)


@functools.lru_cache(maxsize=500)
def known_adapter(hint: Any) -> TypeAdapter[Any]:
    return new_adapter(Any if hint in {None, type(None)} else hint)


def new_adapter(hint: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - see above

    return TypeAdapter(hint)


def to_json(value: Any, what: str) -> str:
    """Return a value without annotation as JSON; `what` names it in errors."""
    try:
        text = known_adapter(Any).dump_json(value, by_alias=True, round_trip=True).decode()
    except ValueError as error:
        msg = f"{what} is not JSON: {error}"
        raise CannotStoreResult(msg) from error
    if problem := problem_of_json(text, value):
        msg = f"{what} cannot be stored: {problem}"
        raise CannotStoreResult(msg)
    return text
