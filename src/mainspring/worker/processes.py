"""The parent's side of isolation="process": a pool of child processes, each of which can be ended at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from mainspring.context import Context
from mainspring.errors import Cancel, Discard, Failure, RunEnd, Snooze, WorkerCrashed
from mainspring.features.durable.run import DurableRun
from mainspring.job import Claim, NewJob
from mainspring.log import set_up_of_children
from mainspring.observer import Observers
from mainspring.task import Task
from mainspring.worker import child as child_side
from mainspring.worker.failures import as_failure
from mainspring.worker.run import Dumped
from mainspring.worker.step_clerk import StepClerk
from mainspring.worker.threads import HeldBack

RUN_ENDS: dict[str, Callable[[dict[str, Any]], RunEnd]] = {
    "Snooze": lambda answer: Snooze(answer["delay"], answer["reason"]),
    "Cancel": lambda answer: Cancel(answer["reason"]),
    "Discard": lambda answer: Discard(answer["reason"], code=answer["code"]),
}
TERMINATE_TIMEOUT = 2.0  # seconds between asking a child to end and killing it


class Child:
    """A child process and the pipe to it. Messages are JSON."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=child_side.main, args=(theirs, *set_up_of_children()), name="mainspring-child", daemon=True
        )
        self._process.start()
        self._doomed = False
        theirs.close()

    @property
    def usable(self) -> bool:
        """Return False also after `end`: the child may just have answered, but the next job must not die with it."""
        return not self._doomed and self._process.is_alive()

    def send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `receive` will notice that the child is dead
            self._pipe.send_bytes(json.dumps(message).encode())

    async def receive(self) -> dict[str, Any]:
        """Return the next message; raise WorkerCrashed if the child has died."""
        await readable(self._pipe)
        try:
            message: dict[str, Any] = json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):  # the child may also die in the middle of a message
            raise WorkerCrashed(self._obituary()) from None
        return message

    def end(self) -> None:
        """Ask the child to end, and kill it soon after."""
        self._doomed = True
        self._process.terminate()
        with contextlib.suppress(RuntimeError):  # there is no loop any more
            asyncio.get_running_loop().call_later(TERMINATE_TIMEOUT, self._kill)

    def close(self) -> None:
        self._kill()
        self._process.join()
        self._pipe.close()
        self._process.close()

    def _kill(self) -> None:
        with contextlib.suppress(ValueError):  # the process object is closed already
            self._process.kill()

    def _obituary(self) -> str:
        self._process.join()
        code = self._process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the process that ran the job died ({how})"


class Processes:
    """A pool of at most `limit` children, started when needed and reused."""

    def __init__(self, limit: int, observers: Observers | None = None) -> None:
        self._observers = observers or Observers()
        self._free = asyncio.Semaphore(limit)
        self._idle: list[Child] = []
        self._all: set[Child] = set()

    async def run(
        self,
        task: Task[..., Any, Any],
        claim: Claim,
        context: Context,
        *,
        begun: Callable[[Callable[[], None]], None],
        may_start: Callable[[], bool],
        durable: Callable[[], DurableRun],
    ) -> Any:
        """Run the job in a child and return its result; raise what the handler raised.

        `begun` gets a function that ends the child. `may_start` is asked when the child is ready to call the handler;
        if it returns False, `HeldBack` is raised. `durable` makes what records the steps of the handler.
        """
        async with self._free:
            child = self._take()
            begun(child.end)
            clerk = StepClerk(durable, child.send, child.end)
            try:
                answer = await self._converse(child, task, claim, context, may_start=may_start, clerk=clerk)
            except BaseException as error:
                self._discard(child)
                if isinstance(error, WorkerCrashed) and clerk.overdue is not None:
                    raise clerk.overdue from None
                raise
            finally:
                await clerk.close()
            self._idle.append(child)
        return self._interpret(answer, context)

    def close(self) -> None:
        for child in list(self._all):
            self._discard(child)

    def _take(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.usable:
                return child
            self._discard(child)
        child = Child()
        self._all.add(child)
        return child

    def _discard(self, child: Child) -> None:
        self._all.discard(child)
        child.close()

    async def _converse(
        self,
        child: Child,
        task: Task[..., Any, Any],
        claim: Claim,
        context: Context,
        *,
        may_start: Callable[[], bool],
        clerk: StepClerk,
    ) -> dict[str, Any]:
        order = {
            "module": task.function.__module__,
            "name": task.name,
            "claim": {**asdict(claim), "ref": None},
            "worker": context.worker,
            "middleware": task.shared.middleware.names,
            "observers": self._observers.children,
        }
        child.send(order)
        may = True
        while True:
            message = await child.receive()
            if "ready" in message:  # starting a new child takes long, and so may its middleware
                may = may_start()
                child.send({"start": may})
            elif "durable" in message:
                clerk.serve(message)
            elif "progress" in message:
                context.progress(*message["progress"])
            else:
                return message if may else {"held_back": True}  # even if middleware caught HeldBack

    def _interpret(self, answer: dict[str, Any], context: Context) -> Any:
        if "held_back" in answer:
            raise HeldBack
        if "end" in answer:
            raise RUN_ENDS[answer["end"]](answer)
        if "error" in answer:
            raise error_from(answer)
        for fields in answer["follow_ups"]:
            target = tuple(fields["target"]) if fields["target"] else None
            context.follow_up(NewJob(**{**fields, "target": target, "tags": tuple(fields["tags"])}))
        return Dumped(answer["result"])


def error_from(answer: dict[str, Any]) -> Exception:
    """Return an exception of the nearest class of the child's exception that exists here, so that retry rules apply."""
    kind = next((known for known in map(find_kind, answer["kinds"]) if known is not None), Exception)
    try:
        error = kind.__new__(kind, answer["message"])  # not __init__: it may need arguments that we do not have
    except TypeError:
        error = Exception(answer["message"])
    texts = answer["error"], answer["message"], answer["traceback"]
    failure = Failure(*texts, place=answer["place"], code=answer["code"])
    error.mainspring_failure = as_failure(failure)  # type: ignore[attr-defined]
    return error


def find_kind(name: Sequence[str]) -> type[Exception] | None:
    module, qualname = name
    found: Any = sys.modules.get("__main__" if module == "__mp_main__" else module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


async def readable(pipe: Connection) -> None:
    """Wait, without using a thread, until there is something to read."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(pipe.fileno(), settle)
    try:
        await ready
    finally:
        loop.remove_reader(pipe.fileno())
