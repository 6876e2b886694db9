"""Forks programs from a process that has imported everything: a start costs milliseconds, not a second.

Orders come as JSON lines on standard input, each answered by one on standard output. This process is the parent, so a
process id that it signals never belongs to another process. At the end of its input it kills what is left.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import mainspring.stores.dynamodb
import mainspring.stores.postgres
import mainspring.worker  # noqa: F401 - what the programs need
from mainspring.cli import logs
from tests.chaos.programs.tasks import Shop

alive: set[int] = set()
codes: dict[int, int] = {}


def main() -> None:
    warm_up()
    try:
        for line in sys.stdin:
            order = json.loads(line)
            answer = ORDERS[order.pop("order")](**order)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)


def warm_up() -> None:
    """What is imported at first use is imported here. Nothing is opened: neither threads nor locks survive a fork."""
    logs.set_up("info", as_json=True)
    version("mainspring")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CHAOS_DATABASE"] = f"sqlite:///{folder}/jobs.db"
        Shop(folder, "warm-up").pen.close()


def start(program: str, log: str, database: str, args: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        become(program, log, database, args)
    alive.add(pid)
    codes.pop(pid, None)  # of one that had this number before
    return pid


def become(program: str, log: str, database: str, args: dict[str, Any]) -> None:
    """In the child; never returns."""
    code = 1
    try:
        redirect(log)
        os.environ["CHAOS_DATABASE"] = database
        module, _, function = program.partition(":")
        code = int(getattr(importlib.import_module(module), function)(**args) or 0)
    except SystemExit as done:
        code = int(done.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def redirect(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(nothing, 0)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.close(nothing)
    os.close(written)


def send(pid: int, number: int) -> int:
    """The moment just before the signal; up to then the process lived."""
    at = time.monotonic_ns()
    if look(pid) is None:
        os.kill(pid, number)
    return at


def look(pid: int) -> int | None:
    """The exit code, negative for a signal; None while it runs."""
    if pid in alive:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            alive.remove(pid)
            codes[pid] = os.waitstatus_to_exitcode(status)
    return codes.get(pid)


ORDERS: dict[str, Callable[..., Any]] = {"start": start, "send": send, "look": look}

if __name__ == "__main__":
    main()
