"""The workers of this process: woken at once by what happens here, and by a poll for what happens elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from mainspring.stores.protocol import EVERY_QUEUE, Wake, WorkerInfo

SHORTEST_POLL, LONGEST_POLL = 0.02, 2.0  # seconds; each fruitless look doubles the pause


@dataclass(slots=True)
class Member:
    info: WorkerInfo
    wake: Callable[[Wake], None]
    loop: asyncio.AbstractEventLoop
    pause: float = SHORTEST_POLL
    timer: asyncio.TimerHandle | None = None

    def tell(self, what: Wake) -> None:
        with suppress(RuntimeError):  # its loop is closed: nobody there to be woken
            self.loop.call_soon_threadsafe(self.wake, what)

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class LocalWorkers:
    def __init__(self) -> None:
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

    def call(self, queues: Iterable[str]) -> None:
        """Something may be due in them, now or sooner than was thought."""
        called = set(queues)
        for member in self.members.values():
            served = member.info.queues
            if called and (EVERY_QUEUE in served or EVERY_QUEUE in called or not called.isdisjoint(served)):
                member.pause = SHORTEST_POLL
                member.tell(Wake.JOBS)

    def tell_all(self, what: Wake) -> None:
        """Of what happened in this process. Workers of other processes notice it when they next look."""
        for member in self.members.values():
            member.tell(what)

    def warn(self, worker: str) -> None:
        """A claim of it was taken away, or is to be cancelled."""
        if worker in self.members:
            self.members[worker].tell(Wake.CANCELLATIONS)

    def after_claim(self, worker: str, *, fruitful: bool) -> None:
        """Look again soon after there was something, and ever more seldom while there is nothing."""
        member = self.members.get(worker)
        if member is None or member.loop is not asyncio.get_running_loop():
            return
        member.stop()
        if fruitful:
            member.pause = SHORTEST_POLL
            return
        member.timer = member.loop.call_later(member.pause, member.wake, Wake.JOBS)
        member.pause = min(member.pause * 2, LONGEST_POLL)
