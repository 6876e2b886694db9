"""The child's side of isolation="process": runs one job at a time, and dies with its parent."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import queue
import signal
import sys
import threading
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from mainspring.context import UNSET, Context
from mainspring.errors import Cancel, Discard, Snooze, Wish
from mainspring.flow.passage import Passage
from mainspring.job import Claim
from mainspring.task import Task
from mainspring.worker import decide


def main(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(connection, inbox), daemon=True).start()
    while True:
        send(connection, perform(inbox.get(), connection, inbox))


def listen(connection: Connection, inbox: queue.SimpleQueue[dict[str, Any]]) -> None:
    """The end of the pipe is the end of the parent: an orphan must not go on in a dead worker's name."""
    try:
        while True:
            inbox.put(json.loads(connection.recv_bytes()))
    except (EOFError, OSError):
        os._exit(1)


def send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def perform(order: dict[str, Any], connection: Connection, inbox: queue.SimpleQueue[dict[str, Any]]) -> dict[str, Any]:
    """Prepare the job, ask the parent whether it may still start, and run it."""
    try:
        task = find_task(order["module"], order["name"])
        context = Context(
            to_claim(order["claim"]),
            worker=order["worker"],
            report=reporter(connection),
            passage=partial(Passage, task.app),
        )
        send(connection, {"ready": True})
        if not inbox.get()["start"]:
            return {"held_back": True}
        value = call(task, context, order["claim"]["payload"])
        if context.effects.result is not UNSET:
            value = context.effects.result
        follow_ups = [{name: getattr(job, name) for name in job.__slots__} for job in context.effects.follow_ups]
        return {"result": task.payload.dump_result(value), "follow_ups": follow_ups}
    except Wish as wish:
        return {"wish": kind_of(wish), "reason": wish.reason, "delay": delay_of(wish)}
    except BaseException as error:  # noqa: BLE001 - all of it is the parent's to judge
        return {
            "error": type(error).__name__,
            "kinds": [(kind.__module__, kind.__qualname__) for kind in type(error).__mro__],
            "message": decide.message_of(error),
            "traceback": decide.trace_of(error),
        }


def call(task: Task[..., Any, Any], context: Context, payload: str) -> Any:
    args, kwargs = task.payload.load(payload)
    if task.payload.context is not None:
        kwargs[task.payload.context] = context
    value = task.function(*args, **kwargs)
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def find_task(module: str, name: str) -> Task[..., Any, Any]:
    """By the module that defines it: importing that registers the task with its application."""
    loaded = sys.modules.get("__mp_main__") if module == "__main__" else importlib.import_module(module)
    for value in vars(loaded).values():
        found = value if isinstance(value, Task) else None
        if found is not None and found.name == name:
            return found
    msg = f"task {name!r} must be defined at the top of module {module!r} to run in a process of its own"
    raise LookupError(msg)


def reporter(connection: Connection) -> Any:
    def report(fraction: float, note: str) -> None:
        send(connection, {"progress": [fraction, note]})

    return report


def to_claim(data: dict[str, Any]) -> Claim:
    target = None if data["target"] is None else (data["target"][0], data["target"][1])
    return Claim(**{**data, "target": target, "tags": tuple(data["tags"])})


def kind_of(wish: Wish) -> str:
    return next(kind.__name__ for kind in (Snooze, Cancel, Discard) if isinstance(wish, kind))


def delay_of(wish: Wish) -> float:
    return wish.delay.total_seconds() if isinstance(wish, Snooze) else 0.0
