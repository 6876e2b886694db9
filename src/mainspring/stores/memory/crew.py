"""The workers that have joined."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from mainspring.clock import Millis, to_datetime
from mainspring.stores.protocol import (
    EVERY_QUEUE,
    Wake,
    WorkerInfo,
)


@dataclass(slots=True)
class Member:
    info: WorkerInfo
    wake: Callable[[Wake], None]
    loop: asyncio.AbstractEventLoop
    seen_at: Millis
    beats: int = 0
    stuck: int = 0  # slots
    alive: bool = True


class Crew:
    """Workers: who has joined, who has fallen silent, and whom to wake when the operation is over."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._watch: dict[str, tuple[int, float]] = {}  # the beats a worker had when it was last seen to beat
        self._queues: set[str] = set()
        self._losers: set[str] = set()
        self._for_all = Wake(0)
        self._called = False

    def join(
        self, info: WorkerInfo, wake: Callable[[Wake], None], loop: asyncio.AbstractEventLoop, now: Millis
    ) -> None:
        beats = self._members[info.id].beats + 1 if info.id in self._members else 0
        self._members[info.id] = Member(info, wake, loop, now, beats)

    def leave(self, worker: str) -> None:
        self._members.pop(worker, None)
        self._watch.pop(worker, None)

    def beat(self, worker: str, now: Millis, stuck: int) -> None:
        if member := self._members.get(worker):
            member.beats += 1
            member.seen_at = now
            member.stuck = stuck
            member.alive = True

    def listing(self) -> list[WorkerInfo]:
        present = [member for member in self._members.values() if member.alive]
        return [
            replace(member.info, seen_at=to_datetime(member.seen_at), alive=True, stuck=member.stuck)
            for member in present
        ]

    def dead(self, holders: set[str], monotonic: float, lease: float) -> set[str]:
        """Those whose beats have not changed for the lease; holders of jobs are watched even if they never joined."""
        watched = holders | {worker for worker, member in self._members.items() if member.alive}
        self._watch = {worker: self._look(worker, monotonic) for worker in watched}
        dead = {worker for worker, (_, since) in self._watch.items() if monotonic - since >= lease}
        for worker in dead:
            self._bury(worker)
        return dead

    def _look(self, worker: str, monotonic: float) -> tuple[int, float]:
        member = self._members.get(worker)
        beats = member.beats if member else -1
        before = self._watch.get(worker)
        return before if before and before[0] == beats else (beats, monotonic)

    def _bury(self, worker: str) -> None:
        """Not listed any more, but remembered: it is back with its next heartbeat."""
        del self._watch[worker]
        if member := self._members.get(worker):
            member.alive = False

    def call_for_jobs(self, queue: str) -> None:
        self._called = True
        self._queues.add(queue)

    def call_about_claims(self, worker: str) -> None:
        self._called = True
        self._losers.add(worker)

    def call_for_documents(self) -> None:
        self._called = True
        self._for_all |= Wake.DOCUMENTS

    def call_about_halts(self) -> None:
        self._called = True
        self._for_all |= Wake.HALTS

    def call_about_state(self) -> None:
        self._called = True
        self._for_all |= Wake.STATE

    def ring(self) -> None:
        """Wake those who were called. After most operations nobody was."""
        if not self._called:
            return
        self._called = False
        here = running_loop()
        for worker, member in self._members.items():
            wake = self._for_all
            if worker in self._losers:
                wake |= Wake.CANCELLATIONS
            if self._serves(member, self._queues):
                wake |= Wake.JOBS
            if wake:
                with suppress(RuntimeError):  # its loop is closed: nobody there to be woken
                    call = member.loop.call_soon if member.loop is here else member.loop.call_soon_threadsafe
                    call(member.wake, wake)
        self._queues.clear()
        self._losers.clear()
        self._for_all = Wake(0)

    @staticmethod
    def _serves(member: Member, queues: set[str]) -> bool:
        serves_all = EVERY_QUEUE in member.info.queues or EVERY_QUEUE in queues
        return bool(queues) and (serves_all or not queues.isdisjoint(member.info.queues))


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # code without an event loop runs a coroutine that never waits
        return None
