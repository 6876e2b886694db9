"""A worker's membership in its store: it joins, says which tasks it knows, sends heartbeats, and leaves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from mainspring.clock import since_boot
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.log import get_log
from mainspring.runtime import Runtime
from mainspring.stores.encrypted import bare, check_keys, keys_of
from mainspring.stores.protocol import Pulse, Store, Wake, WorkerInfo
from mainspring.worker.outage import Backoff, Outage
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.slots import Runs

log = get_log("mainspring.worker")

CONFIRMED_WITHIN = 2.0  # seconds to wait for the answer to a heartbeat before a job starts
SILENCE_TIMEOUT = 10.0  # seconds; a store that has neither answered nor failed by then is reported as away


class Membership:
    """The membership of one worker. The store calls `on_wake` when there may be something to do."""

    def __init__(
        self, runtime: Runtime, settings: WorkerSettings, outage: Outage, on_wake: Callable[[Wake], None]
    ) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._settings = settings
        self._outage = outage
        self._on_wake = on_wake
        self._started_at = datetime.now(UTC)
        self._note_tasks()
        self.queues = sorted(subscription.queue for subscription in settings.queues)

    async def join(self, unless: asyncio.Event) -> bool:
        """Join the store, waiting while it is away; return False if the event is set first.

        A store that cannot be used at all is an error at once.
        """
        backoff = Backoff()
        while not unless.is_set():
            try:
                await self._store.open()
                await check_keys(bare(self._store), keys_of(self._store))
                await self._store.join(self._info(), self._on_wake)
                await self._runtime.live_settings.look()  # before the first claim
            except StoreUnavailable as error:
                self._outage.failed("join", error)
                await backoff.wait(unless=unless)
            else:
                self._outage.worked("join")
                self._log_start()
                return True
        self._runtime.contact.forget(self._settings.id)
        return False

    async def announce_tasks(self) -> None:
        """Tell the store of tasks that were defined, or removed, since this worker joined."""
        self._note_tasks()
        await self._store.join(self._info(), self._on_wake)

    async def leave(self) -> None:
        with contextlib.suppress(StoreError):  # then the other workers will notice that this one is gone
            await self._store.leave(self._settings.id)
        self._runtime.contact.forget(self._settings.id)

    def _note_tasks(self) -> None:
        self.declared = frozenset(self._runtime.tasks)
        self.tasks = self.declared | self._runtime.internal_tasks  # all that this worker can run

    def _info(self) -> WorkerInfo:
        return WorkerInfo(
            id=self._settings.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=tuple(self.queues),
            concurrency=self._settings.concurrency,
            heartbeat=self._settings.heartbeat_interval,
            tasks=tuple(sorted(self.tasks)),
            version=self._runtime.version,
            started_at=self._started_at,
        )

    def _log_start(self) -> None:
        worker, tasks = self._settings.id, sorted(self._runtime.tasks)
        log.info("worker_started", worker=worker, queues=self.queues, tasks=tasks, store=self._store.url)
        if not tasks:
            advice = "import the modules that declare tasks where the application is made"
            log.warning("worker_has_no_tasks", worker=worker, advice=advice)


class Heartbeat:
    """Beats every `interval` seconds, or at once when poked.

    It does so in a thread with its own event loop: a busy loop or GIL must not cost the lease.

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
