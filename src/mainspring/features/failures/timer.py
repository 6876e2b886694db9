"""What workers do for failure groups: add up notes, and remove groups that are over."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.clock import Millis
from mainspring.feature import Timer
from mainspring.features.failures import rules
from mainspring.features.failures.storage import COLLECTION, RETENTION, Groups
from mainspring.services import Services
from mainspring.stores.documents import Bundle, Document, Write
from mainspring.stores.engine.failures import NOTES
from mainspring.stores.protocol import Filter

LOOK_AGAIN: Millis = 7 * 86_400_000  # at a group that is old enough to be removed, but still has jobs


class NotesTimer(Timer):
    """The timer of the notes: they are due at once."""

    collection = NOTES

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    async def fire(self, documents: Sequence[Document], now: Millis) -> Millis | None:
        del now
        await self._groups.add(documents)
        return None


class GroupsTimer(Timer):
    """The timer of the groups: a group is due when it is old enough to be removed."""

    collection = COLLECTION

    def __init__(self, services: Services) -> None:
        self._services = services

    async def fire(self, documents: Sequence[Document], now: Millis) -> Millis | None:
        await self._services.store.write([Bundle((await self._next(document, now),)) for document in documents])
        return None

    async def _next(self, document: Document, now: Millis) -> Write:
        """Return what becomes of a group that is due: it goes, unless it has jobs or has failed since."""
        again = rules.from_json(document.data).last_seen + RETENTION
        if again <= now:
            there = (await self._services.store.find(Filter(fingerprint=document.key.id), limit=1)).jobs
            if not there:
                return Write(document.key, None, expected=document.version, recorded=True)
            again = now + LOOK_AGAIN
        return Write(document.key, document.data, expected=document.version, due_at=again)
