"""The documents of failure groups, and how the notes of failed runs are added to them.

Any process may add up notes, at any time: the bundle that changes the group deletes the notes, and takes effect only if
all of them and the group are as they were read. So each note counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from mainspring.clock import Millis
from mainspring.errors import FailureGroupNotFound, StoreBusy
from mainspring.features.failures import rules
from mainspring.features.failures.rules import GroupData
from mainspring.job import Status
from mainspring.services import Services
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Listing, Note, Write
from mainspring.stores.engine.failures import NOTES, FailureNote, note_of
from mainspring.stores.paging import pages
from mainspring.stores.protocol import Filter

COLLECTION = "failures"
RETENTION: Millis = 90 * 86_400_000  # of a group after its last failure, if it has no jobs any more
NOTES_AT_ONCE = 80  # in one bundle: DynamoDB writes up to 100 items at once
NOTES_PAGE = 1000
MAX_PAGES = 20  # of notes that a reader adds up
MAX_TRIES = 20
UNSETTLED = (Status.PENDING, Status.RETRYING, Status.SUSPENDED, Status.RUNNING, Status.DEAD_LETTER)
"""The statuses of jobs that have failed and have not succeeded since."""


def key_of(fingerprint: str) -> Key:
    return Key(COLLECTION, "", fingerprint)


class Groups:
    """The groups in the store."""

    def __init__(self, services: Services) -> None:
        self._services = services

    # -- reading ----------------------------------------------------------------------------------

    async def all(self) -> list[GroupData]:
        return [
            rules.from_json(document.data)
            async for page in pages(self._services.store, COLLECTION)
            for document in page
        ]  # fmt: skip

    async def get(self, fingerprint: str) -> GroupData:
        return rules.from_json((await self._document(fingerprint)).data)

    async def _document(self, fingerprint: str) -> Document:
        found = await self._services.store.documents([key_of(fingerprint)])
        if not found:
            msg = f"there is no failure group {fingerprint!r}; it may have been removed by retention"
            raise FailureGroupNotFound(msg)
        return found[0]

    # -- by hand ----------------------------------------------------------------------------------

    async def change(self, fingerprint: str, decide: Callable[[GroupData, Millis], GroupData], note: Note) -> GroupData:
        """Change a group by hand. Repeat it if the group has changed meanwhile."""
        for _ in range(MAX_TRIES):
            document = await self._document(fingerprint)
            before = rules.from_json(document.data)
            after = decide(before, self._services.store.clock.now())
            bundle = Bundle((written(after, document, recorded=True),), note=note)
            if (await self._services.store.write([bundle]))[0] is not None:
                return after
        msg = f"failure group {fingerprint} changes too often; try again"
        raise StoreBusy(msg)

    # -- notes ------------------------------------------------------------------------------------

    async def add_up(self) -> bool:
        """Add notes to their groups; return whether a reader sees every failure that is committed.

        After many thousands of failures at once, a reader does not wait until all are added: workers go on.
        """
        for _ in range(MAX_PAGES):
            waiting = await self._services.store.browse(Listing(NOTES, limit=NOTES_PAGE))
            if not waiting:
                return True
            await self.add(waiting)
        return not await self._services.store.browse(Listing(NOTES, limit=1))

    async def add(self, documents: Sequence[Document]) -> None:
        """Add notes to their groups. Leave notes that another process is adding to it."""
        by_group: dict[str, list[tuple[Document, FailureNote]]] = {}
        for document in documents:
            note = note_of(document.data)
            by_group.setdefault(note.fingerprint, []).append((document, note))
        for some in in_parts(by_group, NOTES_AT_ONCE):
            await self._add(some)

    async def _add(self, notes: dict[str, list[tuple[Document, FailureNote]]]) -> None:
        store = self._services.store
        found = {doc.key.id: doc for doc in await store.documents([key_of(fingerprint) for fingerprint in notes])}
        bundles = [await self._bundle(fingerprint, found.get(fingerprint), some) for fingerprint, some in notes.items()]
        await store.write(bundles)

    async def _bundle(
        self, fingerprint: str, document: Document | None, notes: Sequence[tuple[Document, FailureNote]]
    ) -> Bundle:
        before = after = None if document is None else rules.from_json(document.data)
        for _, note in sorted(notes, key=lambda pair: pair[1].at):
            if note.count:
                after = rules.failed(after, note)
        if after is not None and any(note.recovered for _, note in notes) and await self._is_settled(fingerprint):
            after = rules.recovered(after, self._services.store.clock.now())
        done = [Write(note.key, None, expected=note.version) for note, _ in notes]
        if after is None:  # the group was removed
            return Bundle(tuple(done))
        is_news = before is None or before.state is not after.state
        return Bundle((written(after, document, recorded=is_news), *done))

    async def _is_settled(self, fingerprint: str) -> bool:
        """Return whether no job of the group waits, runs or is a dead letter."""
        where = Filter(fingerprint=fingerprint, statuses=UNSETTLED)
        return not (await self._services.store.find(where, limit=1)).jobs


def written(group: GroupData, before: Document | None, *, recorded: bool) -> Write:
    expected = ABSENT if before is None else before.version
    due_at = group.last_seen + RETENTION
    return Write(key_of(group.fingerprint), group.to_json(), expected, due_at, announced=True, recorded=recorded)


def in_parts(
    by_group: dict[str, list[tuple[Document, FailureNote]]], most: int
) -> Iterable[dict[str, list[tuple[Document, FailureNote]]]]:
    """Yield parts with at most `most` notes of each group, until no notes are left."""
    rest = {fingerprint: iter(notes) for fingerprint, notes in by_group.items()}
    while part := {fingerprint: some for fingerprint, notes in rest.items() if (some := list(islice(notes, most)))}:
        yield part
