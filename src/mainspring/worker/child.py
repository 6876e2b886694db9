"""The child process of isolation="process": it runs one job at a time, and dies with its parent."""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from mainspring.context import UNSET, Context
from mainspring.errors import Cancel, Discard, RunEnd, Snooze
from mainspring.features.breakers.call import Passage
from mainspring.features.durable.plan import StepPlan
from mainspring.job import Claim
from mainspring.log import SetUp, running, worker_id
from mainspring.log_redaction import use_in_logs
from mainspring.middleware import RunCall
from mainspring.observer import complain, guarded
from mainspring.stored_options import options_of
from mainspring.stores.engine.ack import LONGEST_MESSAGE
from mainspring.task import Task
from mainspring.worker.child_steps import ChildSteps, Questions
from mainspring.worker.failures import code_of, failure_of, storable
from mainspring.worker.threads import HeldBack


def main(connection: Connection, set_up_log: SetUp | None, set_up_log_after: SetUp) -> None:
    """Run the jobs the parent sends. Logging is set up before the application is imported, or after it if needed."""
    if set_up_log is not None:
        set_up_log()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    questions = Questions(partial(send, connection))
    threading.Thread(target=listen, args=(connection, inbox, questions), daemon=True).start()
    while True:
        order = inbox.get()
        send(connection, perform(order, connection, inbox, set_up_log_after, questions))
        flush_observers(order["observers"])


def listen(connection: Connection, inbox: queue.SimpleQueue[dict[str, Any]], questions: Questions) -> None:
    """Receive messages; exit when the pipe closes, as the parent is dead then and no job may go on in its name."""
    try:
        while True:
            message = json.loads(connection.recv_bytes())
            if "answer" in message:
                questions.answer(message)
            else:
                inbox.put(message)
    except (EOFError, OSError):
        os._exit(1)


sending = threading.Lock()  # several threads of a handler may send at once


def send(connection: Connection, message: dict[str, Any]) -> None:
    text = json.dumps(message).encode()
    with sending:
        connection.send_bytes(text)


def perform(
    order: dict[str, Any],
    connection: Connection,
    inbox: queue.SimpleQueue[dict[str, Any]],
    imported: SetUp,
    questions: Questions | None = None,
) -> dict[str, Any]:
    """Prepare the job, ask the parent whether it may still start, and run it. Return the message for the parent."""
    claim = to_claim(order["claim"])
    running.set(claim)
    worker_id.set(order["worker"])
    try:
        task = find_task(order["module"], order["name"])
        imported()
        use_in_logs(task.shared.services.redaction)
        plan = plan_of(task, claim)
        steps = ChildSteps(questions or Questions(partial(send, connection)), plan)
        context = Context(
            claim,
            key=task.idempotency_key(claim),
            worker=order["worker"],
            report=reporter(connection),
            passage=partial(Passage, task.shared.breakers),
            durable=lambda: steps,
            plan=plan,
        )
        find_middleware(task, [(module, name) for module, name in order["middleware"]])
        ask = partial(ask_to_start, connection, inbox)
        ask()
        with within_observers(order["observers"], claim):
            value = call(task, context, order["claim"]["payload"], ask, steps)
        if context.effects.result is not UNSET:
            value = context.effects.result
        follow_ups = [{name: getattr(job, name) for name in job.__slots__} for job in context.effects.follow_ups]
        return {"result": task.payload.dump_result(value), "follow_ups": follow_ups}
    except HeldBack:
        return {"held_back": True}
    except RunEnd as end:
        reason = storable(end.reason, LONGEST_MESSAGE)
        return {"end": kind_of(end), "reason": reason, "delay": delay_of(end), "code": code_of(end)}
    except BaseException as error:  # noqa: BLE001 - the parent decides what each exception means
        failure = failure_of(error)
        return {
            "error": failure.type,
            "kinds": [(kind.__module__, kind.__qualname__) for kind in type(error).__mro__],
            "message": failure.message,
            "traceback": failure.traceback,
            "place": failure.place,
            "code": failure.code,
        }


def ask_to_start(connection: Connection, inbox: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Ask the parent whether the job may still start. Raise HeldBack if not."""
    send(connection, {"ready": True})
    if not inbox.get()["start"]:
        raise HeldBack


def plan_of(task: Task[..., Any, Any], claim: Claim) -> StepPlan:
    own = options_of(claim.options)
    return StepPlan.from_options(own) if "plan" in own else task.plan


def call(task: Task[..., Any, Any], context: Context, payload: str, ask: Callable[[], None], steps: ChildSteps) -> Any:
    """Call the handler within all middleware. As middleware may wait, ask again just before the handler."""
    args, kwargs = task.payload.load(payload)
    if task.signature.context is not None:
        kwargs[task.signature.context] = context

    def handler() -> Any:
        if task.shared.middleware.runs:
            ask()
        steps.handler_is_here()
        return task.function(*args, **kwargs)

    around = task.shared.middleware.around if task.is_async else task.shared.middleware.around_here
    value = around(RunCall(task.name, (context,), task.is_async), handler)
    return asyncio.run(value) if inspect.iscoroutine(value) else value


@contextmanager
def within_observers(observers: Sequence[tuple[str, Mapping[str, Any]]], claim: Claim) -> Iterator[None]:
    """Enter what the parent's observers have for child processes. One that fails is logged; the job goes on."""
    with ExitStack() as stack:
        for module, data in observers:
            stack.enter_context(guarded(partial(observer_of, module, claim, data)))
        yield


def observer_of(module: str, claim: Claim, data: Mapping[str, Any]) -> AbstractContextManager[None]:
    manager: AbstractContextManager[None] = importlib.import_module(module).in_child(claim, data)
    return manager


def flush_observers(observers: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Send what the handler has recorded: this process may be killed at any moment. The parent has the result."""
    for module, _ in observers:
        try:
            importlib.import_module(module).flush()
        except Exception:  # noqa: BLE001 - an observer must not affect the work
            complain()


def find_middleware(task: Task[..., Any, Any], names: list[tuple[str, str]]) -> None:
    """Import the modules that register the middleware, as the parent did. A job must not run without it."""
    for module, _ in names:
        if module != "__main__":
            importlib.import_module(module)
    here = [as_in_parent(*name) for name in task.shared.middleware.names]
    if missing := [f"{module}.{name}" for module, name in names if (module, name) not in here]:
        msg = (
            f"middleware {', '.join(missing)} is not registered in the child process of task {task.name!r}: register it"
            " at the top of a module, where importing that module does it"
        )
        raise LookupError(msg)


def as_in_parent(module: str, name: str) -> tuple[str, str]:
    return "__main__" if module == "__mp_main__" else module, name


def find_task(module: str, name: str) -> Task[..., Any, Any]:
    """Import the module that defines the task, which registers it with its application, and return the task."""
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


def kind_of(end: RunEnd) -> str:
    return next(kind.__name__ for kind in (Snooze, Cancel, Discard) if isinstance(end, kind))


def delay_of(end: RunEnd) -> float:
    return end.delay.total_seconds() if isinstance(end, Snooze) else 0.0
