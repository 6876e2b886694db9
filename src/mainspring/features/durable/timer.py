"""Wakes jobs for signals whose sender died before it woke them."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.clock import Millis
from mainspring.feature import Timer
from mainspring.features.durable.signals import ALL_WAITERS, COLLECTION, REPEAT_WAKE_AFTER, waiting_key
from mainspring.services import Services
from mainspring.stores.documents import Bundle, Document, Write
from mainspring.timers import fire_planned

MAX_REPEATED_WAKES = 1000  # signals repeated at once when a worker died; the others wait until they are due


class SignalTimer(Timer):
    """Repeats the wake for signals, as their sender may have died before it woke the waiting jobs."""

    collection = COLLECTION

    def __init__(self, services: Services) -> None:
        self._services = services

    async def fire(self, documents: Sequence[Document], now: Millis) -> None:
        del now
        await self._services.store.wake({waiting_key(signal.key.group): ALL_WAITERS for signal in documents})
        writes = [
            Write(signal.key, signal.data, expected=signal.version, expires_at=signal.expires_at)
            for signal in documents
        ]
        await self._services.store.write([Bundle((write,)) for write in writes])

    async def recover(self) -> None:
        """Repeat the wake for the latest signals: a dead worker may have suspended a job just after the first."""
        latest = await self._services.store.due(COLLECTION, MAX_REPEATED_WAKES, ahead=REPEAT_WAKE_AFTER)
        await self._services.store.wake({waiting_key(document.key.group): ALL_WAITERS for document in latest.documents})

    async def clock_went_back(self, by: Millis) -> None:
        del by
        await fire_planned(self._services, self)
