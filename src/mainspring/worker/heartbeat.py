"""Sends the worker's heartbeats from a thread with its own loop: a busy loop or GIL must not cost the lease."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping

from mainspring.clock import since_boot
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.log import get_log
from mainspring.stores.protocol import Pulse, Store
from mainspring.worker.outage import Outage
from mainspring.worker.runs import Runs

log = get_log("mainspring.worker")

CONFIRMED_WITHIN = 2.0  # seconds to wait for the answer to a heartbeat before a job starts
SILENCE_TIMEOUT = 10.0  # seconds; a store that has neither answered nor failed by then is reported as away


class Heartbeat:
    """Beats every `interval` seconds, or at once when poked.

    On the worker's loop, `runs.heard` gets the answer and the claims it is about. By then the worker may hold a newer
    claim of the same job, which an answer about the older one must not end.
    """

    def __init__(self, store: Store, worker: str, runs: Runs, outage: Outage, *, interval: float) -> None:
        self._store = store
        self._worker = worker
        self._runs = runs
        self._outage = outage
        self._interval = interval
        self._home = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poked: asyncio.Event | None = None
        self._stopped = False
        self.beaten_at = float("-inf")  # when a heartbeat last got through, by the monotonic clock
        self._sent_at = since_boot()  # when the last answered heartbeat was sent; joining counts as one
        self._answered = asyncio.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="mainspring-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def confirm(self, lease: float) -> None:
        """Return when the last heartbeat that was answered is younger than the lease; send one if it is not.

        A worker that was stopped for longer may have lost its claims. After this it knows which of them it has lost.
        """
        while since_boot() - self._sent_at > lease:
            self._answered.clear()
            self.poke()
            try:
                async with asyncio.timeout(CONFIRMED_WITHIN):
                    await self._answered.wait()
            except TimeoutError as error:
                msg = f"no heartbeat was answered within {CONFIRMED_WITHIN:g} s"
                raise StoreUnavailable(msg) from error

    def poke(self) -> None:
        if self._loop is not None and self._poked is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the heartbeat has stopped
                self._loop.call_soon_threadsafe(self._poked.set)

    async def stop(self) -> None:
        """Stop, and wait without a thread of the default executor: handlers may occupy all of those."""
        self._stopped = True
        self.poke()
        await self._ended.wait()

    def _run(self) -> None:
        try:
            asyncio.run(self._beat())
        finally:
            with contextlib.suppress(RuntimeError):  # the worker's loop is closed
                self._home.call_soon_threadsafe(self._ended.set)

    async def _beat(self) -> None:
        self._loop, self._poked = asyncio.get_running_loop(), asyncio.Event()
        while not self._stopped:
            await self._beat_once()
            try:
                async with asyncio.timeout(self._interval):
                    await self._poked.wait()
            except TimeoutError:
                pass
            self._poked.clear()

    async def _beat_once(self) -> None:
        silence = StoreUnavailable(f"no answer for {SILENCE_TIMEOUT:g} s")
        impatience = asyncio.get_running_loop().call_later(SILENCE_TIMEOUT, self._outage.failed, "heartbeat", silence)
        sent_at = since_boot()
        try:
            held = self._runs.tokens()
            pulse = await self._store.heartbeat(self._worker, held, stuck=self._runs.stuck.slots)
        except StoreError as error:
            self._outage.failed("heartbeat", error)
            return
        except Exception as error:  # noqa: BLE001 - the next beat may get through
            log.warning("heartbeat_failed", worker=self._worker, error=f"{type(error).__name__}: {error}")
            return
        finally:
            impatience.cancel()
        self.beaten_at = time.monotonic()
        self._outage.worked("heartbeat")
        with contextlib.suppress(RuntimeError):  # the worker's loop is closed
            self._home.call_soon_threadsafe(self._hear, pulse, held, sent_at)

    def _hear(self, pulse: Pulse, held: Mapping[str, int], sent_at: float) -> None:
        self._runs.heard(pulse, held)
        self._sent_at = sent_at
        self._answered.set()
