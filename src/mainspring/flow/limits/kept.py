"""How the states of limits are kept: as documents, in the collection "limits"."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping

from mainspring.clock import Millis
from mainspring.flow.limits.admission import State
from mainspring.flow.limits.bucket import Bucket
from mainspring.flow.limits.limit import Rate, call_of
from mainspring.flow.limits.slots import Slots
from mainspring.job import Status
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Write
from mainspring.stores.protocol import Store

RATES = f"{Rate.kind}:"


def state_in(document: Document) -> State:
    data = json.loads(document.data)
    return Bucket.from_data(data) if document.key.group.startswith(RATES) else Slots.from_data(data)


def write_of(key: Key, state: State, before: Document | None, now: Millis, *, anew: bool = False) -> Write:
    """`anew`: what was due has been done."""
    return Write(
        key,
        json.dumps(state.to_data()),
        expected=ABSENT if before is None else before.version,
        due_at=state.due_at(now, None if before is None or anew else before.due_at),
        expires_at=state.expires_at(now),
    )


def written(write: Write) -> Document:
    return Document(write.key, write.data or "", write.version, write.due_at, write.expires_at)


async def gone(store: Store, holders: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
    """Who does not run under that token any more. They never will again, so it can be believed at any time."""
    asked = set(holders)
    jobs = await store.get(sorted({job_id for job_id, _ in asked})) if asked else []
    return asked - {(job.id, job.token) for job in jobs if job.status is Status.RUNNING}


async def call(
    store: Store, calls: Mapping[Key, int], documents: Mapping[Key, Document], now: Millis
) -> list[Document]:
    """Wake so many of those that are blocked; where fewer are left, nobody waits: those documents, as they are then.

    Only if they are still as they were when it was decided to call: somebody may line up at this moment. He looks once
    more after that, and finds either the free place or a document that has changed.
    """
    woken: Counter[str] = Counter(await store.wake({call_of(key): number for key, number in calls.items()}))
    writes = []
    for key, number in calls.items():
        if woken[call_of(key)] < number and (document := documents.get(key)) is not None:
            state = state_in(document)
            if state.waiting:
                state.waiting = False
                writes.append(write_of(key, state, document, now))
    answers = await store.write([Bundle((write,)) for write in writes]) if writes else []
    return [written(write) for write, answer in zip(writes, answers, strict=True) if answer is not None]
