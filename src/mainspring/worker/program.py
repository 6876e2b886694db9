"""The two ways to run a worker: as the program of its process (`Program`), or in the background of yours.

`Program` handles signals, the exit code and the end of the process. `Background` is what `async with app.worker():`
starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from typing import Any, Protocol

from mainspring.errors import WorkerStuck
from mainspring.log import get_log
from mainspring.runtime import Runtime
from mainspring.tuning import tuned
from mainspring.worker.outage import is_being_cancelled

log = get_log("mainspring.worker")

EXIT_ABANDONED = 1  # exit code if a handler did not end and was left behind
EXIT_STUCK = 5  # exit code if the worker stopped because its slots are stuck: start it again
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SAME_SIGNAL_WITHIN = 0.1  # seconds; two signals closer together count as one
LEFT_BEHIND_TIMEOUT = 3.0  # seconds that what handlers have left behind has to end
STOP_NOW_TIMEOUT = 9.0  # seconds that a worker has to stop after a second signal


class Stoppable(Protocol):
    """What a program uses of what it runs: a `Worker`, or a service with one."""

    @property
    def id(self) -> str: ...
    @property
    def runtime(self) -> Runtime: ...
    @property
    def exit_code(self) -> int: ...
    @property
    def stops_now(self) -> bool: ...
    def stop(self) -> None: ...
    async def serve(self) -> None: ...


class Program:
    """Runs one worker until it is told to stop by a signal."""

    def __init__(self, worker: Stoppable) -> None:
        self._worker = worker
        self._signalled_at = float("-inf")
        self._impatience: list[threading.Timer] = []  # each ends the process when it fires

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; return the exit code for the process."""
        before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        try:
            with tuned(collect=True), asyncio.Runner() as runner:
                try:
                    code = runner.run(self.serve())
                finally:
                    for number in STOP_SIGNALS:  # another signal must not kill the process now, in its orderly end
                        runner.get_loop().remove_signal_handler(number)
                        signal.signal(number, signal.SIG_IGN)
                    self._end_within(LEFT_BEHIND_TIMEOUT)
        finally:
            self.be_patient()
            for number, handler in before.items():
                signal.signal(number, handler)
        return code

    async def serve(self) -> int:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        try:
            with contextlib.suppress(WorkerStuck):  # it is logged, and the exit code tells it
                await self._worker.serve()
        finally:
            await self._worker.runtime.close()
        return self._worker.exit_code

    def be_patient(self) -> None:
        """Do not end the process after all."""
        for timer in self._impatience:
            timer.cancel()

    def _on_signal(self) -> None:
        """Stop. Two signals in quick succession count as one: `timeout` and terminals signal process and group."""
        now = asyncio.get_running_loop().time()
        if now - self._signalled_at > SAME_SIGNAL_WITHIN:
            self._signalled_at = now
            self._worker.stop()
            if self._worker.stops_now:
                self._end_within(STOP_NOW_TIMEOUT)  # a store that never answers must not keep the process alive

    def _end_within(self, seconds: float) -> None:
        """End this process after `seconds`, even if something still runs, unless `be_patient` is called before."""
        timer = threading.Timer(seconds, end_process, [self._worker.id, self._worker.exit_code or EXIT_ABANDONED])
        timer.daemon = True
        timer.start()
        self._impatience.append(timer)


def end_process(worker: str, exit_code: int = EXIT_ABANDONED) -> None:
    """End a process that is held up by what handlers left behind, or by a store that never answers."""
    log.warning("left_behind", worker=worker, threads=threading.active_count())
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


class Background:
    """Holds the asyncio task in which a worker serves. If that task dies, it is logged at once; `ended` raises why."""

    def __init__(self, worker: str, serve: Coroutine[Any, Any, None]) -> None:
        self._worker = worker
        self._task = asyncio.create_task(serve, name=f"mainspring-worker-{worker}")
        self._leaving = False

    async def begun(self, joined: asyncio.Event) -> None:
        """Wait until the worker has joined; if it could not join, raise the reason."""
        waiting = asyncio.create_task(joined.wait())
        try:
            await asyncio.wait({self._task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # your program gave up on starting: leave no worker behind
            self._task.cancel()
            await asyncio.wait({self._task})
            raise
        finally:
            waiting.cancel()
        if self._task.done():
            await self.ended()
        self._task.add_done_callback(self._report)

    async def ended(self) -> None:
        """Wait for a worker that was told to stop. If the caller is cancelled meanwhile, the worker's grace ends."""
        self._leaving = True
        try:
            await self._task
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            msg = f"the asyncio task of worker {self._worker} was cancelled"
            raise RuntimeError(msg) from None

    def _report(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            if not self._leaving:
                log.error("worker_died", worker=self._worker, error="its asyncio task was cancelled")
        elif (error := task.exception()) is not None:
            log.error("worker_died", worker=self._worker, error=f"{type(error).__name__}: {error}", exc_info=error)
