"""The steps of a handler in a child process. The parent records them, with the token of the claim.

The child sends a question for each call and waits for the answer. It runs the step itself. If it dies in the middle of
a step, the parent has recorded all steps before it, and the next attempt does not repeat them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from mainspring.errors import ClaimLost, ConfigurationError, UnsupportedCall
from mainspring.features.durable.deadline import cancelled_after
from mainspring.features.durable.failures import dump_failure, load_failure
from mainspring.features.durable.outputs import Output, to_json
from mainspring.features.durable.plan import StepPlan
from mainspring.features.durable.run import await_value, is_coroutine_function, replayed
from mainspring.job import Step

T = TypeVar("T")
Send = Callable[[dict[str, Any]], None]

current_step: ContextVar[str | None] = ContextVar("mainspring_child_step", default=None)


class Questions:
    """The questions that the child has asked its parent, and the answers that it waits for. Any thread may ask."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._open: dict[int, concurrent.futures.Future[dict[str, Any]]] = {}

    def ask(self, call: str, **given: Any) -> concurrent.futures.Future[dict[str, Any]]:
        number = next(self._numbers)
        future = self._open[number] = concurrent.futures.Future()
        self._send({"durable": call, "number": number, **given})
        return future

    def answer(self, message: dict[str, Any]) -> None:
        self._open.pop(message["answer"]).set_result(message)


def answered(message: dict[str, Any]) -> dict[str, Any]:
    """Return the parent's answer, or raise the error that the parent met."""
    if message.get("lost"):
        raise ClaimLost
    if (error := message.get("error")) is not None:
        raise load_failure(error)
    return message


class ChildSteps:
    """Carries out the durable calls of one handler in a child process."""

    def __init__(self, questions: Questions, plan: StepPlan) -> None:
        self._questions = questions
        self.plan = plan
        self._thread = threading.get_ident()
        self._task: asyncio.Task[Any] | None = None  # the one that runs a coroutine function's handler

    def handler_is_here(self) -> None:
        """Remember the thread, and the task if there is one, that runs the handler: other callers are branches."""
        self._thread = threading.get_ident()
        with contextlib.suppress(RuntimeError):
            self._task = asyncio.current_task()

    def _branch(self) -> int | None:
        """Return None in the handler itself; otherwise a number for the task or thread that makes the call."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            ident = threading.get_ident()
            return None if ident == self._thread else ident
        return None if task is self._task else id(task)

    # -- steps ----------------------------------------------------------------------------------------

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        timeout: float | None = None,
    ) -> Any:
        branch, seconds = self._branch(), timeout or self.plan.timeout(name)
        is_async = is_coroutine_function(function)
        record = await self._asked(self._begin(name, branch, seconds, is_async=is_async))
        output = Output(name, function)
        if record is not None:
            return replayed(Step(*record), output)
        with self._running(name, branch):
            call = partial(function, *args, **kwargs)
            if is_async:
                async with cancelled_after(name, seconds):
                    value = await call()
            else:
                value = await asyncio.to_thread(call)  # the parent ends this process when its time is over
            if inspect.isawaitable(value):
                value = await await_value(value, name, seconds)
            text = output.dump(value)
        await self._asked(self._questions.ask("done", name=name, output=text))
        return output.load(text)

    def step_sync(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        timeout: float | None = None,
    ) -> Any:
        branch, seconds = self._branch(), timeout or self.plan.timeout(name)
        record = answered(self._begin(name, branch, seconds, is_async=False).result())["record"]
        output = Output(name, function)
        if record is not None:
            return replayed(Step(*record), output)
        with self._running(name, branch):
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = asyncio.run(await_value(value, name, None))
            text = output.dump(value)
        answered(self._questions.ask("done", name=name, output=text).result())
        return output.load(text)

    def _begin(
        self, name: str, branch: int | None, seconds: float | None, *, is_async: bool
    ) -> concurrent.futures.Future[dict[str, Any]]:
        self.refuse_within_step(f"step {name!r}")
        return self._questions.ask("begin", name=name, branch=branch, timeout=seconds, is_async=is_async)

    async def _asked(self, question: concurrent.futures.Future[dict[str, Any]]) -> Any:
        return answered(await asyncio.wrap_future(question)).get("record")

    @contextlib.contextmanager
    def _running(self, name: str, branch: int | None) -> Iterator[None]:
        token = current_step.set(name)
        try:
            yield
        except Exception as error:
            self._questions.ask("failed", name=name, branch=branch, failure=dump_failure(error))
            raise
        finally:
            current_step.reset(token)

    # -- states of steps ------------------------------------------------------------------------------

    async def save_state(self, step: str, state: Any) -> None:
        text = to_json(state, f"the state of step {step!r}")
        await self._asked(self._questions.ask("save", name=step, state=text))

    async def step_state(self, step: str) -> Any:
        return answered(await asyncio.wrap_future(self._questions.ask("state", name=step)))["state"]

    # -- the rest -------------------------------------------------------------------------------------

    def run_on_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine that asks the parent, from a plain function or from the thread of a step."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work())
        msg = (
            "the methods that end in _sync are for plain functions, which run in threads; here, await the other method"
        )
        raise RuntimeError(msg)

    def refuse_within_step(self, what: str) -> None:
        if (step := current_step.get()) is not None:
            msg = f"{what} within step {step!r}: a step cannot contain durable calls; make this call before or after it"
            raise ConfigurationError(msg)

    def step_here(self) -> str | None:
        return current_step.get()

    async def sleep(self, *_: Any) -> None:
        raise UnsupportedCall(not_in_a_child("ctx.sleep"))

    async def wait_for(self, *_: Any) -> Any:
        raise UnsupportedCall(not_in_a_child("ctx.wait_for"))

    async def spawn(self, *_: Any, **__: Any) -> Any:
        raise UnsupportedCall(not_in_a_child("ctx.spawn"))

    async def gather(self, *_: Any, **__: Any) -> Any:
        raise UnsupportedCall(not_in_a_child("ctx.gather"))


def not_in_a_child(call: str) -> str:
    return (
        f'{call} does not work in a child process (isolation="process"), which has steps and their states only. Call it'
        " in a task without isolation, and have that task spawn this one"
    )
