"""An event loop whose time stands still while work is under way, and jumps to the next timer when there is none.

So what is measured by its clock does not depend on how fast this machine is: only what waits takes time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class StandingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 0.0
        self._under_way = 0
        super().__init__(Selector(self))

    def time(self) -> float:
        return self._now

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Work, on this machine or on its way to another process: it takes no time."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def stands(self) -> bool:
        return self._under_way > 0

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        """Join the threads in real time: since Python 3.12 this has a timeout, and the clock would jump to it."""
        with self.standing():
            await super().shutdown_default_executor(*timeout)

    def jump(self, seconds: float) -> None:
        self._now += seconds


class Selector(selectors.DefaultSelector):
    def __init__(self, loop: StandingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or self._loop.stands():
            return super().select(timeout if timeout == 0 else None)
        events = super().select(0)
        if not events:
            self._loop.jump(max(0.0, timeout))
        return events


def here() -> StandingLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StandingLoop)
    return loop


def run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=StandingLoop) as runner:
        return runner.run(work)
