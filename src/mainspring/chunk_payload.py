"""The payload of a chunk task: each job's payload is one item of the list that the function takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from mainspring.chunk import Item
from mainspring.context import Context
from mainspring.errors import ConfigurationError, InvalidPayload
from mainspring.payload import Arguments, Payload
from mainspring.signature import Signature

ONE_LIST = "a chunk task takes one argument, the list of its payloads: docs: list[Doc], or docs: list[Item[Doc]]"


class ChunkPayload(Payload):
    """Check each item on its own, when it is enqueued and when it is run."""

    def __init__(self, signature: Signature) -> None:
        self.task = signature.task
        self._refuse_context(signature.hints)
        item = self._item_of(signature)
        self.takes_items = get_origin(item) is Item
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

    def _refuse_context(self, hints: Mapping[str, Any]) -> None:
        if Context in hints.values():
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


def members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)


def is_exception(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
