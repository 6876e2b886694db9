"""What workers do for failure groups: add up notes, end mutes, and remove groups that are over."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.clock import Millis
from mainspring.feature import Timer
from mainspring.features.failures.storage import COLLECTION, Groups
from mainspring.stores.documents import Document
from mainspring.stores.engine.failures import NOTES


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
    """The timer of the groups: a group is due when its mute ends, and when it is old enough to be removed."""

    collection = COLLECTION

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    async def fire(self, documents: Sequence[Document], now: Millis) -> Millis | None:
        await self._groups.renew(documents, now)
        return None
