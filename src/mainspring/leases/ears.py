"""Wakes the calls that wait for jobs of a lessee; several may wait in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from mainspring.errors import StoreError
from mainspring.stores.protocol import Store, Wake, WorkerInfo


class Ear:
    """What one waiting call hears; belongs to one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def ring(self) -> None:
        with suppress(RuntimeError):  # its loop is closed, so nothing waits
            self._loop.call_soon_threadsafe(self._woken.set)

    def clear(self) -> None:
        self._woken.clear()

    async def wait(self, seconds: float) -> None:
        """Wait until something has happened, for at most this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()


class Ears:
    """The waiting calls of this process, by lessee."""

    def __init__(self) -> None:
        self._ears: dict[str, set[Ear]] = {}
        self.state_changed = False  # another process has changed what features keep in memory

    @asynccontextmanager
    async def listening(self, store: Store, info: WorkerInfo) -> AsyncIterator[Ear]:
        """Join the lessee, and be woken while the block runs. The last call that waits for it turns that off."""
        ear = Ear()
        self._ears.setdefault(info.id, set()).add(ear)
        try:
            await store.join(info, lambda wake: self._ring(info.id, wake))
            yield ear
        finally:
            self._ears[info.id].discard(ear)
            if not self._ears[info.id]:
                del self._ears[info.id]
                with suppress(StoreError):  # then needless wake-ups come until the lessee's next call
                    await store.join(info, None)

    def _ring(self, worker: str, wake: Wake) -> None:
        if Wake.STATE in wake:
            self.state_changed = True
        if wake & (Wake.JOBS | Wake.CANCELLATIONS | Wake.HALTS | Wake.STATE):
            for ear in list(self._ears.get(worker, ())):
                ear.ring()
