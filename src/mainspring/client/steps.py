"""What a call does, step by step, without I/O.

A call is a generator that yields its steps and gets their outcomes. So retries, pages, streams and waits are written
once; the runners (runners.py) take the steps, one with blocking I/O and one with asyncio.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mainspring.client.request import Request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request. Its outcome is the `Answer`; ServiceUnreachable is thrown into the generator."""

    request: Request


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request whose answer is a stream. Its outcome is an `Answer` without a body, or with that of an error."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Read on in the stream that is open. Its outcome is bytes; None at its end."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """Give an item to the caller that iterates."""

    value: T


@dataclass(frozen=True, slots=True)
class Done:
    """The call has ended, with this value."""

    value: Any


Step = Send | Open | Read | Pause
Steps = Generator[Step, Any, T]
Items = Generator[Step | Item[T], Any, None]
AnySteps = Generator[Any, Any, Any]


def resume(steps: AnySteps, outcome: Any = None, error: Exception | None = None) -> Any:
    """Give the outcome of a step, or throw its error; return the next step, or Done.

    A StopIteration must not leave this function: it cannot pass through a coroutine.
    """
    try:
        return steps.send(outcome) if error is None else steps.throw(error)
    except StopIteration as end:
        return Done(end.value)
