"""Reads and writes the states of limits as documents, in the collection "limits"."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mainspring.clock import Millis
from mainspring.features.limits.options import Fair, Rate, call_of
from mainspring.features.limits.state import Bucket, Slots, State, Turns
from mainspring.job import Status
from mainspring.json_text import from_json, to_json
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Write
from mainspring.stores.protocol import Store

RATES, FAIR = f"{Rate.kind}:", f"{Fair.kind}:"
MAX_TRIES = 5  # to note that fewer jobs were woken than planned


def state_in(document: Document) -> State:
    data = from_json(document.data)
    if document.key.group.startswith(RATES):
        return Bucket.from_data(data)
    return Turns.from_data(data) if document.key.group.startswith(FAIR) else Slots.from_data(data)


def states_in(documents: Iterable[Document]) -> dict[Key, State]:
    """Return the states that can be read: a document that was written by hand must not stop the timer of all others."""
    states: dict[Key, State] = {}
    for document in documents:
        with contextlib.suppress(ValueError, TypeError, LookupError):
            states[document.key] = state_in(document)
    return states


def write_of(key: Key, state: State, before: Document | None, now: Millis, *, anew: bool = False) -> Write:
    """Return the write of a state. With `anew`, the work that was due has been done, and a new time is planned."""
    expected = ABSENT if before is None else before.version
    if state.idle:
        return Write(key, None, expected)
    planned = None if before is None or anew else before.due_at
    due_at = state.due_at(now, planned)
    return Write(
        key,
        to_json(state.to_data()),
        expected,
        due_at=due_at,
        expires_at=state.expires_at(now),
        announced=planned is not None and due_at is not None and planned <= due_at,
    )


def written(write: Write) -> Document | None:
    if write.data is None:
        return None
    return Document(write.key, write.data, write.version, write.due_at, write.expires_at)


async def gone(store: Store, holders: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
    """Return the holders that do not run under their token any more. They never will again, so this stays true."""
    asked = set(holders)
    jobs = await store.get(sorted({job_id for job_id, _ in asked})) if asked else []
    return asked - {(job.id, job.token) for job in jobs if job.status is Status.RUNNING}


async def call(
    store: Store, calls: Mapping[Key, int], documents: Mapping[Key, Document], now: Millis
) -> dict[Key, Document | None]:
    """Wake so many jobs blocked by each limit. If fewer are found, note that none waits any more.

    That is noted only if the document is unchanged since the decision to wake: a job may start to wait at this moment.
    It checks once more after it is suspended, and finds either the free slot or a document that has changed. Return the
    documents for which fewer were found, as they are now; None for one that is gone or that another process wrote.
    """
    woken: Counter[str] = Counter(await store.wake({call_of(key): number for key, number in calls.items()}))
    missing = {key: number - woken[call_of(key)] for key, number in calls.items()}
    before = {key: documents[key] for key, number in missing.items() if number > 0 and key in documents}
    after = await note_missing(store, list(before.values()), missing, now)
    for _ in range(MAX_TRIES):  # no other process knows that fewer jobs were woken than are counted
        lost = [key for key in before if key not in after and key.group.startswith(FAIR)]
        if not lost:
            break
        after |= await note_missing(store, await store.documents(lost), missing, now)
    return {key: after.get(key) for key in before}


async def note_missing(
    store: Store, documents: Sequence[Document], missing: Mapping[Key, int], now: Millis
) -> dict[Key, Document | None]:
    """Write how many jobs were not found; return the documents for which that succeeded."""
    writes = [nobody_left(document, missing[document.key], now) for document in documents]
    answers = await store.write([Bundle((write,)) for write in writes]) if writes else []
    return {write.key: written(write) for write, answer in zip(writes, answers, strict=True) if answer is not None}


def nobody_left(document: Document, missing: int, now: Millis) -> Write:
    state = state_in(document)
    if isinstance(state, Turns):
        state.nobody_came(missing, now)
    else:
        state.waiting = False
    return write_of(document.key, state, document, now)
