"""The documents of failure groups, and how the notes of failed runs are added to them.

Any process may add up notes, at any time: the bundle that changes the group deletes the notes, and takes effect only if
all of them and the group are as they were read. So each note counts once. The same holds for what time changes: a mute
ends, and an old group goes. A group is due then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from mainspring.clock import Millis
from mainspring.errors import FailureGroupNotFound, StoreBusy
from mainspring.features.failures import rules
from mainspring.features.failures.group import GroupState
from mainspring.features.failures.index import INDEX, earliest, fingerprint_in, lane, moves
from mainspring.features.failures.rules import GroupData
from mainspring.fingerprint import project_in
from mainspring.job import Status
from mainspring.services import Services
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Listing, Note, Write
from mainspring.stores.engine.failures import NOTES, FailureNote, note_of
from mainspring.stores.protocol import Filter

COLLECTION = "failures"
RETENTION: Millis = 90 * 86_400_000  # of a group after its last failure, if it has no jobs any more
LOOK_AGAIN: Millis = 7 * 86_400_000  # at a group that is old enough to be removed, but still has jobs
NOTES_AT_ONCE = 80  # in one bundle: DynamoDB writes up to 100 items at once
NOTES_PAGE = 1000
MAX_PAGES = 20  # of notes, or of groups that are due, that a reader works off
MAX_TRIES = 20
UNSETTLED = (Status.PENDING, Status.RETRYING, Status.SUSPENDED, Status.RUNNING, Status.DEAD_LETTER)
"""The statuses of jobs that have failed and have not succeeded since."""


def key_of(fingerprint: str) -> Key:
    return Key(COLLECTION, project_in(fingerprint), fingerprint)


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """Which groups a list shows."""

    states: tuple[GroupState, ...]
    task: str | None
    since: Millis | None
    project: str  # EVERY_PROJECT: groups of all projects, and those of none

    def lanes(self) -> list[str]:
        return [lane(self.project, state, self.task) for state in self.states]

    def wants(self, group: GroupData) -> bool:
        return group.state in self.states and (self.since is None or group.last_seen >= self.since)


class Groups:
    """The groups in the store."""

    def __init__(self, services: Services) -> None:
        self._services = services

    # -- reading ----------------------------------------------------------------------------------

    async def page(self, query: GroupQuery, after: str | None, limit: int) -> tuple[list[GroupData], str | None]:
        """Return groups, the one that failed last first, and the last entry of the page; None if it is the last page.

        A group that is changed between the two reads is shown as it is then, or left out if it no longer matches.
        """
        entries = await self._entries(query, after, limit + 1)
        if not entries:
            return [], None
        shown = list(dict.fromkeys(fingerprint_in(entry) for entry in entries[:limit]))
        found = await self._services.store.documents([key_of(fingerprint) for fingerprint in shown])
        groups = {document.key.id: rules.from_json(document.data) for document in found}
        page = [groups[name] for name in shown if name in groups and query.wants(groups[name])]
        return page, entries[limit - 1] if len(entries) > limit else None

    async def _entries(self, query: GroupQuery, after: str | None, limit: int) -> list[str]:
        """Return the first entries of the lists together, newest first.

        A group that changes its state meanwhile may be read from two lists, and then counts once, or from none.
        """
        found: set[str] = set()
        for name in query.lanes():
            place = None if after is None else (name, after)
            entries = await self._services.store.browse(Listing(INDEX, name, place, limit, backwards=True))
            found.update(entry.key.id for entry in entries)
        if query.since is not None:
            found = {entry for entry in found if entry > earliest(query.since)}
        return sorted(found, reverse=True)[:limit]

    async def beginning_with(self, key: Key, limit: int) -> list[GroupData]:
        """Return the groups whose keys begin with this one, ordered by fingerprint."""
        listing = Listing(key.collection, key.group, limit=limit, prefix=key.id)
        return [rules.from_json(document.data) for document in await self._services.store.browse(listing)]

    async def get(self, key: Key) -> GroupData:
        return rules.from_json((await self._document(key)).data)

    async def _document(self, key: Key) -> Document:
        found = await self._services.store.documents([key])
        if not found:
            msg = f"there is no failure group {key.id!r}; it may have been removed by retention"
            raise FailureGroupNotFound(msg)
        return found[0]

    # -- by hand ----------------------------------------------------------------------------------

    async def change(self, key: Key, decide: Callable[[GroupData, Millis], GroupData], note: Note) -> GroupData:
        """Change a group by hand. Repeat it if the group has changed meanwhile."""
        for _ in range(MAX_TRIES):
            document = await self._document(key)
            before = rules.from_json(document.data)
            after = decide(before, self._services.store.clock.now())
            bundle = Bundle(writes_of(before, after, document, recorded=True, actor=note.by.actor), note=note)
            if (await self._services.store.write([bundle]))[0] is not None:
                return after
        msg = f"failure group {key.id} changes too often; try again"
        raise StoreBusy(msg)

    # -- notes, and what is due -------------------------------------------------------------------

    async def catch_up(self) -> bool:
        """Add up notes and end mutes; return whether a reader sees every failure that is committed.

        After many thousands of failures at once, a reader does not wait until all are added: workers go on.
        """
        complete = await self._add_up()
        for _ in range(MAX_PAGES):
            due = await self._services.store.due(COLLECTION)
            if not due.documents:
                break
            await self.renew(due.documents, due.now)
        return complete

    async def renew(self, documents: Sequence[Document], now: Millis) -> None:
        """Do what is due: a mute ends, a group without jobs goes."""
        await self._services.store.write([await self._renewed(document, now) for document in documents])

    async def _renewed(self, document: Document, now: Millis) -> Bundle:
        before = rules.from_json(document.data)
        after: GroupData | None = rules.unmuted(await self.checked(before), now)
        kept_until = 0
        if before.last_seen + RETENTION <= now:
            where = Filter(fingerprint=before.fingerprint)
            after = after if (await self._services.store.find(where, limit=1)).jobs else None
            kept_until = now + LOOK_AGAIN
        is_news = after is None or after.state is not before.state
        return Bundle(writes_of(before, after, document, recorded=is_news, kept_until=kept_until))

    async def checked(self, group: GroupData) -> GroupData:
        """Return a muted group without its mark `recovered` if a job of it waits, runs or is a dead letter again."""
        is_wrong = group.recovered and not await self._is_settled(group.fingerprint)
        return replace(group, recovered=False) if is_wrong else group

    async def _add_up(self) -> bool:
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
        bundles = [await self._bundle(found.get(fingerprint), some) for fingerprint, some in notes.items()]
        await store.write(bundles)

    async def _bundle(self, document: Document | None, notes: Sequence[tuple[Document, FailureNote]]) -> Bundle:
        before = after = None if document is None else rules.from_json(document.data)
        for _, note in sorted(notes, key=lambda pair: pair[1].at):
            if note.count:
                after = rules.failed(after, note, self._services.store.clock.now())
        if after is not None:
            after = await self._settled(after, [note for _, note in notes])
        done = [Write(note.key, None, expected=note.version) for note, _ in notes]
        if after is None:  # the group was removed
            return Bundle(tuple(done))
        is_news = before is None or before.state is not after.state
        return Bundle((*writes_of(before, after, document, recorded=is_news), *done))

    async def _settled(self, group: GroupData, notes: Sequence[FailureNote]) -> GroupData:
        """Resolve a group that has recovered, and open one that was resolved too early.

        A job may fail while the group is being resolved: after the look at its jobs, and before that time was noted.
        """
        new_failures = [note for note in notes if note.count]
        if rules.is_resolved_by_itself(group) and new_failures:
            settled = await self._is_settled(group.fingerprint)
            return group if settled else rules.opened_again(group, max(new_failures, key=lambda note: note.at))
        if any(note.recovered for note in notes) and await self._is_settled(group.fingerprint):
            return rules.recovered(group, self._services.store.clock.now())
        return group

    async def _is_settled(self, fingerprint: str) -> bool:
        """Return whether no job of the group waits, runs or is a dead letter."""
        where = Filter(fingerprint=fingerprint, statuses=UNSETTLED)
        return not (await self._services.store.find(where, limit=1)).jobs


def writes_of(
    before: GroupData | None,
    after: GroupData | None,
    document: Document | None,
    *,
    recorded: bool,
    kept_until: Millis = 0,
    actor: str | None = None,
) -> tuple[Write, ...]:
    """Return the writes that change a group, if it is as it was read. One of them must exist."""
    expected = ABSENT if document is None else document.version
    group = after or before
    assert group is not None  # noqa: S101 - see above
    key = key_of(group.fingerprint)
    if after is None:
        own = Write(key, None, expected, recorded=recorded, became="deleted", actor=actor)
    else:
        removal = max(after.last_seen + RETENTION, kept_until)
        due_at = removal if after.until is None else min(after.until, removal)
        own = Write(
            key, after.to_json(), expected, due_at,
            announced=True, recorded=recorded, became=after.state.value, actor=actor,
        )  # fmt: skip
    return own, *moves(before, after)


def in_parts(
    by_group: dict[str, list[tuple[Document, FailureNote]]], most: int
) -> Iterable[dict[str, list[tuple[Document, FailureNote]]]]:
    """Yield parts with at most `most` notes of each group, until no notes are left."""
    rest = {fingerprint: iter(notes) for fingerprint, notes in by_group.items()}
    while part := {fingerprint: some for fingerprint, notes in rest.items() if (some := list(islice(notes, most)))}:
        yield part
