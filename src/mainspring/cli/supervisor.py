"""Worker processes and the parent that supervises them.

The parent restarts a child that dies, after a pause that doubles from 0.1 to 5 seconds. Once a child has lived for a
while, the pause starts over. The parent gives up only if the application or its store is clearly wrong. It passes
SIGTERM and SIGINT on: the first signal lets the children drain, the second stops them at once. Each child holds the
reading end of a pipe whose writing end only the parent has. So a child drains when the parent is gone, even by SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mainspring.cli.exits import Exit
from mainspring.cli.watch import Watch
from mainspring.log import get_log

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds before a child is started again
HEALTHY = 10.0  # seconds; a child that lived this long has probably started well
NEVER_WORKED = {Exit.USAGE, Exit.STORE}  # only a child that has not begun to work exits so, even after a long start
WATCH_EVERY = 0.5  # seconds

NUMBER_VARIABLE = "MAINSPRING_WORKER_NUMBER"  # tells each child its number, from 0

log = get_log("mainspring.supervisor")


@dataclass(eq=False, slots=True)
class Child:
    process: asyncio.subprocess.Process
    told: bool = False  # it was told to stop; a second time means to stop at once

    def tell(self) -> None:
        self.told = True
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)


class Supervisor:
    """Keeps `count` child processes of one command alive until a signal tells it to stop."""

    def __init__(self, command: Sequence[str], count: int, watch: Watch | None = None) -> None:
        self._command = command
        self._count = count
        self._watch = watch
        self._children: set[Child] = set()
        self._edition = 0  # version of the code; grows with each change that was seen
        self._code = Exit.OK
        self._has_worked = False  # a child has lived for a while

    def run(self) -> int:
        """Run until stopped; return the exit code, 0 if every child has drained."""
        return asyncio.run(self._run())

    async def _run(self) -> int:
        self._stopping, self._changed = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._pass_on, number)
        self._reading, writing = os.pipe()
        log.info("supervisor_started", pid=os.getpid(), workers=self._count, reload=self._watch is not None)
        watching = asyncio.create_task(self._look_for_changes())
        try:
            await asyncio.gather(*(self._keep_alive(number) for number in range(self._count)))
        finally:
            watching.cancel()
            os.close(writing)
            os.close(self._reading)
        log.info("supervisor_stopped", pid=os.getpid(), exit_code=int(self._code))
        return self._code

    def _pass_on(self, number: int) -> None:
        log.info("supervisor_stopping", signal=signal.Signals(number).name, children=len(self._children))
        self._tell_children(again=self._stopping.is_set())
        self._stopping.set()

    def _tell_children(self, *, again: bool = False) -> None:
        for child in self._children:
            if again or not child.told:
                child.tell()

    # -- one child after another --------------------------------------------------------------

    async def _keep_alive(self, number: int) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            edition, began = self._edition, time.monotonic()
            code = await self._run_child(edition, number)
            lived = time.monotonic() - began >= HEALTHY
            self._has_worked |= lived and code not in NEVER_WORKED
            if lived or edition != self._edition:
                pause = FIRST_PAUSE
            if self._stopping.is_set():
                self._note_end(code)
            elif edition == self._edition:
                await self._recover(code, pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _run_child(self, edition: int, number: int) -> int:
        """Run a child in its own process group, so that it gets a Ctrl-C only from the parent, not also directly."""
        pipe = self._reading
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, "--parent-pipe", str(pipe), pass_fds=[pipe], process_group=0,
                env={**os.environ, NUMBER_VARIABLE: str(number)},
            )  # fmt: skip
        except OSError as error:  # no memory or processes left, for now
            log.error("worker_process_not_started", error=str(error))  # noqa: TRY400 - the message says it all
            return Exit.FAILED
        child = Child(process)
        self._children.add(child)
        log.info("worker_process_started", child=process.pid)
        if self._stopping.is_set() or edition != self._edition:  # that changed while the child was being started
            child.tell()
        code = await process.wait()
        self._children.discard(child)
        return code

    def _note_end(self, code: int) -> None:
        """Log a child that did not drain. One that SIGTERM killed had not started yet, so it had nothing to drain."""
        if code not in {Exit.OK, -signal.SIGTERM}:
            log.error("worker_process_not_drained", **describe(code))
            self._code = self._code or Exit.FAILED

    async def _recover(self, code: int, pause: float) -> None:
        if not self._is_hopeless(code):
            log.error("worker_process_ended", **describe(code), restart_in=pause)
            await self._wait_for_news(pause)
        elif self._watch is not None:  # the child has reported the problem; a change of the code can fix it
            log.warning("waiting_for_a_change")
            await self._wait_for_news()
        else:
            self._code = Exit(code)
            self._stopping.set()
            self._tell_children()

    def _is_hopeless(self, code: int) -> bool:
        """Return whether waiting cannot help. A store that worked once may work again."""
        return code == Exit.USAGE or (code == Exit.STORE and not self._has_worked)

    async def _wait_for_news(self, seconds: float | None = None) -> None:
        """Wait for a signal to stop or a change of the code, at most this long."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (self._stopping, self._changed)]
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for future in waiting:
            future.cancel()

    # -- reloading ----------------------------------------------------------------------------

    async def _look_for_changes(self) -> None:
        while self._watch is not None:
            await asyncio.sleep(WATCH_EVERY)
            if files := await asyncio.to_thread(self._watch.changed):
                log.info("reloading", changed=files[:5])
                self._edition += 1
                self._changed.set()
                self._changed = asyncio.Event()
                self._tell_children()


def describe(code: int) -> dict[str, object]:
    """Return how a process ended: `signal=SIGKILL`, or `exit_code=1`."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return {"signal": signal.Signals(-code).name}
    return {"exit_code": code}
