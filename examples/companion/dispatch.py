"""The adapter between handler classes and Mainspring's tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel

from examples.companion.handlers import BaseJobHandler, Outside
from examples.companion.slack import SlackBusy
from mainspring import Context, Mainspring, Snooze, Task

Handlers = Mapping[str, type[BaseJobHandler[Any]]]


def register(app: Mainspring, handlers: Handlers, outside: Outside) -> dict[str, Task[..., Any, Any]]:
    """Declare a task for each type of job, and return the tasks by type."""
    return {
        job_type: app.task(name=job_type)(function_of(job_type, handler, outside))
        for job_type, handler in handlers.items()
    }


def function_of(job_type: str, handler: type[BaseJobHandler[Any]], outside: Outside) -> Callable[..., Any]:
    """Return a function that Mainspring can take as a task: its annotations name the payload's model.

    A handler whose `handle` is a coroutine function runs on the worker's event loop, any other one in a thread.
    """
    model = handler.payload_model()
    if not issubclass(model, BaseModel):
        raise TypeError(f"{handler.__name__}.payload_model() returned {model!r}; return a Pydantic model")

    def run(ctx: Context, payload: BaseModel) -> None:
        with later_if_busy():
            handler(outside, ctx).handle(payload)

    async def run_async(ctx: Context, payload: BaseModel) -> None:
        with later_if_busy():
            await handler(outside, ctx).handle(payload)  # type: ignore[misc] # it is a coroutine here

    function: Callable[..., Any] = run_async if inspect.iscoroutinefunction(handler.handle) else run
    function.__name__ = function.__qualname__ = job_type
    function.__annotations__ = {"ctx": Context, "payload": model, "return": None}
    return function


@contextmanager
def later_if_busy() -> Iterator[None]:
    """Run the job again when Slack takes calls again. That Slack is busy is not a failure, and uses no attempt."""
    try:
        yield
    except SlackBusy as busy:
        raise Snooze(busy.seconds, reason=str(busy)) from busy
