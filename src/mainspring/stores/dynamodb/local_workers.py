"""Wake the workers of this process: at once for changes made here, and by a poll for changes made elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from mainspring.queue_patterns import meet
from mainspring.stores.protocol import Wake, WorkerInfo

SHORTEST_POLL, LONGEST_POLL = 0.02, 2.0  # seconds; the pause doubles each time nothing is found
MAX_POLL = 3600.0  # seconds; the highest setting


@dataclass(slots=True)
class Member:
    info: WorkerInfo
    wake: Callable[[Wake], None]
    loop: asyncio.AbstractEventLoop
    pause: float = SHORTEST_POLL
    timer: asyncio.TimerHandle | None = None

    def tell(self, what: Wake) -> None:
        with suppress(RuntimeError):  # its loop is closed, so there is no worker to wake
            self.loop.call_soon_threadsafe(self.wake, what)

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class LocalWorkers:
    def __init__(self, longest_poll: float = LONGEST_POLL) -> None:
        self.longest_poll = longest_poll  # seconds
        self.members: dict[str, Member] = {}

    def join(self, info: WorkerInfo, wake: Callable[[Wake], None]) -> None:
        self.leave(info.id)
        self.members[info.id] = Member(info, wake, asyncio.get_running_loop())

    def leave(self, worker: str) -> None:
        member = self.members.pop(worker, None)
        if member is not None:
            member.stop()

    def close(self) -> None:
        for member in self.members.values():
            member.stop()

    def wake(self, queues: Iterable[str]) -> None:
        """Wake the workers that serve these queues: jobs may be due there now, or sooner than expected."""
        named = set(queues)
        for member in self.members.values():
            served = member.info.queues
            if named and meet(served, named):
                member.pause = SHORTEST_POLL
                member.tell(Wake.JOBS)

    def tell_all(self, what: Wake) -> None:
        """Wake all workers of this process. Workers of other processes notice a change at their next poll."""
        for member in self.members.values():
            member.tell(what)

    def warn(self, worker: str) -> None:
        """Wake a worker because a job that it runs was taken over or is to be cancelled."""
        if worker in self.members:
            self.members[worker].tell(Wake.CANCELLATIONS)

    def after_claim(self, worker: str, *, fruitful: bool) -> None:
        """Schedule the next poll: soon after jobs were found, and more and more rarely while there are none."""
        member = self.members.get(worker)
        if member is None or member.loop is not asyncio.get_running_loop():
            return
        member.stop()
        if fruitful:
            member.pause = SHORTEST_POLL
            return
        member.timer = member.loop.call_later(member.pause, member.wake, Wake.JOBS)
        member.pause = min(member.pause * 2, self.longest_poll)
