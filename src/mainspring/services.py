"""What features use of an application: its store with its clock, events, tasks, and the event loop for sync code."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar

from mainspring.clock import to_datetime
from mainspring.events import Bus
from mainspring.halt_check import OutsideHalt
from mainspring.job import Job
from mainspring.portal import Portal
from mainspring.redaction import DEFAULT, Redaction
from mainspring.stores.protocol import Halt, Stats, Store

T = TypeVar("T")
PUBLISHED_TASKS = "tasks"  # the collection of the tasks that workers have published


class PayloadReader(Protocol):
    """Reads the stored arguments and results of a task's jobs."""

    def view(self, text: str) -> Any: ...
    def load_result(self, data: Any) -> Any: ...
    def check(self, text: str) -> str: ...


class JobTask(Protocol):
    """What the handle of a job knows of its task, which may be of another program."""

    @property
    def name(self) -> str: ...
    @property
    def payload(self) -> PayloadReader: ...


class TaskInfo(JobTask, Protocol):
    """What features know of a task."""

    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def options(self) -> Mapping[str, object]: ...


@dataclass(slots=True, eq=False)
class Services:
    """The services of one application. Tests and `mainspring jobs debug` may replace the store and the bus."""

    store: Store
    bus: Bus = field(default_factory=Bus)
    portal: Portal = field(default_factory=Portal)
    tasks: Mapping[str, TaskInfo] = field(default_factory=dict)
    remote_windows: dict[str, object] = field(default_factory=dict)  # delivery hours of tasks of other programs
    outside_halt: OutsideHalt | None = None  # another system that may halt this one
    redaction: Redaction = DEFAULT
    before_waiting: Callable[[Job], None] | None = None  # set by the test kit; may refuse to wait for a job
    endings: set[asyncio.Task[None]] = field(default_factory=set)  # what `close` waits for
    _opened: Store | None = None

    def now(self) -> datetime:
        return to_datetime(self.store.clock.now())

    async def halts(self) -> list[Halt]:
        """Return the halts in force, with that of another system."""
        return [*await self.store.halts(), *await self._halts_outside()]

    async def stats(self, within: Sequence[str] = ()) -> Stats:
        stats = await self.store.stats(within)
        return replace(stats, halts=[*stats.halts, *await self._halts_outside()])

    async def _halts_outside(self) -> list[Halt]:
        halt = None if self.outside_halt is None else await self.outside_halt.halt(self.now())
        return [] if halt is None else [halt]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from code without an event loop."""
        return self.portal.run(work)

    def open_sync(self) -> None:
        """Open the store unless this did so before. Use this before calls that must run in the caller's own thread."""
        if self._opened is not self.store:
            self.run(self.store.open())
            self._opened = self.store

    def end(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close something in the background, but before the application closes."""
        task = asyncio.get_running_loop().create_task(close())
        self.endings.add(task)
        task.add_done_callback(self.endings.discard)

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        if endings := [task for task in self.endings if task.get_loop() is loop]:
            await asyncio.wait(endings)
        await self.bus.flush()
        self._opened = None
        await self.store.close()
        self.bus.close()
        self.portal.close()


def whoami() -> str:
    """Return the default actor of changes: the account and machine of this process."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # in some containers the account has no name
        return f"unknown@{socket.gethostname()}"
