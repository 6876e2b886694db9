"""Convert a function's arguments to JSON and back with Pydantic, checked at the enqueue and again at the run."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, ClassVar, Literal, NotRequired, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import PydanticSerializationError, to_json
from typing_extensions import TypedDict

from mainspring.errors import CannotStoreResult, ConfigurationError, InvalidPayload
from mainspring.json_text import MAX_UNCHECKED_CHARS, problem_of_json
from mainspring.signature import Signature

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
ONE_LIST = "a chunk task takes one argument, the list of its payloads: docs: list[Doc], or docs: list[Item[Doc]]"


class QuietJsonSchema(GenerateJsonSchema):
    """Leaves out defaults that are not JSON, and forms of a union that have no schema, without a warning."""

    ignored_warning_kinds: ClassVar[set[JsonSchemaWarningKind]] = {"non-serializable-default", "skipped-choice"}  # type: ignore[misc] # a class variable there too


class Payload:
    """The arguments and the result of one task.

    The payload is a JSON object of the named arguments. If the task's only argument is a Pydantic model, the payload is
    that model's JSON.
    """

    def __init__(self, signature: Signature) -> None:
        self.task = signature.task
        self._takes = signature.taken
        self._defaults = {
            name: parameter.default
            for name, parameter in self._takes.items()
            if parameter.default is not parameter.empty
        }
        self._model = self._only_model(signature.hints)
        self._adapt(self._shape(signature.hints), signature.hints.get("return", Any))

    def _adapt(self, shape: Any, returned: Any) -> None:
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(shape)
            self._validate = self._adapter.validator.validate_json  # calling these three through the adapter
            self._check = self._adapter.validator.validate_python  # would double their cost
            self._serialize = self._adapter.serializer.to_json
            self._result: TypeAdapter[Any] = TypeAdapter(Any if returned is type(None) else returned)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            msg = f"task {self.task!r}: an argument or the result has a type that cannot be JSON: {error}"
            raise ConfigurationError(msg) from error

    def dump(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the JSON of a call's arguments; raise InvalidPayload if the function does not take them."""
        return self._checked(kwargs if not args and self._model is None else self._bind(args, kwargs))

    def dump_one(self, payload: Mapping[str, Any] | BaseModel) -> str:
        """Return the JSON of arguments that come as one object."""
        if isinstance(payload, BaseModel):
            return self.dump((payload,), {})
        if not isinstance(payload, (dict, Mapping)):  # dict is checked first because it is faster
            msg = f"give a job of task {self.task!r} as a mapping of its arguments or as a model, not {payload!r}"
            raise InvalidPayload(msg)
        return self.dump((), dict(payload))

    def takes(self, name: str) -> bool:
        """Return whether the function has an argument of that name, or takes any."""
        return name in self._takes or any(parameter.kind is parameter.VAR_KEYWORD for parameter in self._takes.values())

    def load(self, text: str) -> Arguments:
        """Return the arguments for the function."""
        value = self.load_one(text)
        return (), value if self._model is None else {self._model: value}

    def load_one(self, text: str) -> Any:
        try:
            return self._validate(text)
        except ValidationError as error:
            raise InvalidPayload(self._explain(error)) from error

    def view(self, text: str) -> Any:
        """Return what key functions get: the model, or an object with the arguments as attributes."""
        _, arguments = self.load(text)
        if self._model is not None:
            return arguments[self._model]
        return SimpleNamespace(**self._defaults | arguments)

    def dump_data(self, payload: Any) -> str:
        """Return the JSON of a payload that is given as `job.payload` shows it, as for an enqueue by name."""
        return self.check(json_of(payload, self.task))

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the payload; raise ConfigurationError if one of its types has none."""
        try:
            return self._adapter.json_schema(schema_generator=QuietJsonSchema)
        except PydanticUserError as error:
            msg = f"a type of its payload has no JSON Schema: {str(error).partition(chr(10))[0]}"
            raise ConfigurationError(msg) from error

    def check(self, text: str) -> str:
        """Check a payload given as JSON, as for an edit, and return it in the form in which it is stored."""
        try:
            return self._dump(self._validate(text))
        except (ValidationError, PydanticSerializationError) as error:
            raise InvalidPayload(self._explain(error)) from error

    def dump_result(self, value: Any) -> str | None:
        if value is None:
            return None
        try:
            text = self._result.dump_json(value, by_alias=True, round_trip=True, warnings="error").decode()
        except (PydanticSerializationError, ValueError) as error:
            msg = f"the result of task {self.task!r} does not fit its return type or JSON: {error}"
            raise CannotStoreResult(msg) from error
        if problem := problem_of_json(text, value):
            msg = f"the result of task {self.task!r} cannot be kept: {problem}"
            raise CannotStoreResult(msg)
        return text

    def load_result(self, value: Any) -> Any:
        return None if value is None else self._result.validate_json(json.dumps(value))

    def _checked(self, given: Any) -> str:
        try:
            return self._dump(self._check(given))
        except (ValidationError, PydanticSerializationError) as error:
            raise InvalidPayload(self._explain(error)) from error

    def _dump(self, value: Any) -> str:
        """Return JSON in the form that `load` takes: by alias, without computed fields."""
        text = self._serialize(value, by_alias=True, round_trip=True).decode()
        # most texts skip the check
        if ("null" in text or len(text) > MAX_UNCHECKED_CHARS) and (problem := problem_of_json(text, value)):
            msg = f"task {self.task!r} cannot keep this payload: {problem}"
            raise InvalidPayload(msg)
        return text

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            bound = inspect.Signature(list(self._takes.values())).bind(*args, **kwargs).arguments
        except TypeError as error:
            msg = f"task {self.task!r}: {error}"
            raise InvalidPayload(msg) from None
        if self._model is not None:
            return bound[self._model]
        for key, parameter in self._takes.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                bound.update(bound.pop(key, {}))
        return bound

    def _only_model(self, hints: Mapping[str, Any]) -> str | None:
        """Return the name of the only argument if it is a Pydantic model, which then is the whole payload."""
        if len(self._takes) != 1:
            return None
        ((name, parameter),) = self._takes.items()
        if parameter.kind is parameter.VAR_KEYWORD or parameter.default is not parameter.empty:
            return None
        hint = hints.get(name)
        return name if isinstance(hint, type) and issubclass(hint, BaseModel) else None

    def _shape(self, hints: Mapping[str, Any]) -> Any:
        if self._model is not None:
            return hints[self._model]
        fields: dict[str, Any] = {}
        extra: Literal["allow", "forbid"] = "forbid"
        for key, parameter in self._takes.items():
            hint = hints.get(key, Any)
            if parameter.kind is parameter.VAR_KEYWORD:
                extra = "allow"
            else:
                fields[key] = hint if parameter.default is parameter.empty else NotRequired[hint]
        shape = TypedDict(self.task, fields)  # type: ignore[misc]
        return with_config(ConfigDict(extra=extra, title=self.task, allow_inf_nan=False))(shape)  # JSON has no NaN

    def _explain(self, error: ValidationError | PydanticSerializationError) -> str:
        if not isinstance(error, ValidationError):
            return f"task {self.task!r}: {error}"
        problems = (f"{'.'.join(map(str, found['loc'])) or 'payload'}: {found['msg']}" for found in error.errors())
        return f"task {self.task!r} does not take this payload: {'; '.join(problems)}"


class ChunkPayload(Payload):
    """The payload of a chunk task: that of each job is one item of the list that the function takes.

    Each item is checked on its own, when it is enqueued and when it is run. `item_type` is the class `Item`.
    """

    def __init__(self, signature: Signature, item_type: type) -> None:
        self.task = signature.task
        self._refuse_context(signature)
        item = self._item_of(signature)
        self.takes_items = get_origin(item) is item_type
        returned = self._result_of(signature.hints.get("return", Any))
        self._adapt(get_args(item)[0] if self.takes_items else item, returned)

    def dump(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the JSON of one item: `index.enqueue(doc)`. An object's fields may also be given by name."""
        if len(args) + bool(kwargs) != 1:
            msg = f"task {self.task!r} is a chunk task and takes one payload per job: an item of its list"
            raise InvalidPayload(msg)
        return self.dump_one(args[0] if args else kwargs)

    def dump_one(self, payload: Any) -> str:
        return self._checked(payload)

    def takes(self, name: str) -> bool:
        """Return True: an item's fields may have any name."""
        del name
        return True

    def load(self, text: str) -> Arguments:
        """Return the arguments for a chunk of one job."""
        return ([self.load_one(text)],), {}

    def _refuse_context(self, signature: Signature) -> None:
        if signature.context is not None:
            msg = (
                f"task {self.task!r}: each job of a chunk has a context of its own; ask for items: list[Item[…]] and"
                " use item.ctx"
            )
            raise ConfigurationError(msg)

    def _item_of(self, signature: Signature) -> Any:
        """Return the type of the list's items."""
        takes = list(signature.parameters.values())
        hint = (
            signature.hints.get(takes[0].name)
            if len(takes) == 1 and takes[0].kind is not takes[0].VAR_KEYWORD
            else None
        )
        if get_origin(hint) not in {list, Sequence, Iterable}:
            msg = f"task {self.task!r}: {ONE_LIST}"
            raise ConfigurationError(msg)
        return get_args(hint)[0]

    def _result_of(self, returned: Any) -> Any:
        """Return the type of one job's result. Exceptions in the list are failures, not results."""
        kinds = [kind for kind in members(returned) if kind is not NoneType]
        if kinds in ([], [Any]):
            return Any
        if len(kinds) > 1 or get_origin(kinds[0]) not in {list, Sequence}:
            msg = f"task {self.task!r} is a chunk task: it returns nothing, or a list with the result of each job"
            raise ConfigurationError(msg)
        results = [kind for kind in members(get_args(kinds[0])[0]) if not is_exception(kind)]
        return Union[tuple(results)] if results else Any  # noqa: UP007 - as many as there are


def json_of(payload: Any, task: str) -> str:
    """Return any JSON data, models and times included, as JSON; raise InvalidPayload for what cannot be JSON."""
    try:
        text = to_json(payload, by_alias=True, round_trip=True, inf_nan_mode="null").decode()
    except (PydanticSerializationError, ValueError) as error:
        msg = f"task {task!r}: the payload cannot be JSON: {error}"
        raise InvalidPayload(msg) from error
    if problem := problem_of_json(text, payload):
        msg = f"task {task!r} cannot keep this payload: {problem}"
        raise InvalidPayload(msg)
    return text


def members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)


def is_exception(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
