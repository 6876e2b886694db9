"""Seals what is stored with the active key of an encrypted store, so that old keys can be removed.

Values are replaced one by one, each only if it is still the one that was read. So rotation may run beside workers, and
may be killed at any time: what it has done stays, and the next run does the rest. It goes over the store again until it
finds nothing to do, because jobs move while it looks at them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from mainspring.encryption import FIELD, Keys, Unreadable, key_in, sealed_in
from mainspring.errors import ConfigurationError
from mainspring.json_text import read_object, to_json
from mainspring.stores.documents import Bundle, Document, Key, Write
from mainspring.stores.encrypted import HEADERS, KEY_COLLECTION, SEALED_COLLECTIONS, EncryptedStore, needed_keys
from mainspring.stores.protocol import Rewrite, Store
from mainspring.stores.records import STEP, Kind, Record
from mainspring.stores.sealed_ends import ON_END, opened_text

KEYED = frozenset({"idempotency", "trigger_keys"})  # documents of idempotency keys, see service/replay.py

PAGE = 200  # jobs or documents that are read at once
ORDER = (Kind.LIVE, Kind.DEAD, Kind.HISTORY, Kind.LIVE)  # a job that is retried meanwhile is found by the second look
MOST_SWEEPS = 100
NAME, OUTPUT = STEP.index("name"), STEP.index("output")


@dataclass(slots=True)
class Rotation:
    """What a rotation has done so far."""

    examined: int = 0  # jobs and documents
    resealed: int = 0  # values
    unreadable: set[str] = field(default_factory=set)  # ids of keys that are missing, or whose values were changed
    removed: list[str] = field(default_factory=list)  # keys that are not needed any more


OnProgress = Callable[[Rotation], None]


async def rotate(store: Any, on_progress: OnProgress = lambda _: None) -> Rotation:
    """Seal everything with the active key. All processes must use that key as the active one already."""
    if not isinstance(store, EncryptedStore):
        msg = "this store has no keys to rotate; set MAINSPRING_ENCRYPTION_KEYS (docs/security.md)"
        raise ConfigurationError(msg)
    await store.open()
    rotation = Rotation()
    for _ in range(MOST_SWEEPS):
        if not await sweep(store, rotation, on_progress):
            break
    else:
        msg = "values are still being sealed with an old key; make the new key the active one in every process first"
        raise ConfigurationError(msg)
    await forget_keys(store, rotation)
    return rotation


async def sweep(store: EncryptedStore, rotation: Rotation, on_progress: OnProgress) -> int:
    """Go over the store once; return how many values had an old key."""
    old = 0
    for kind in ORDER:
        async for records in pages(store.inner, kind):
            texts = [text for record in records for text in texts_of(record, store.keys, rotation)]
            rotation.resealed += await store.inner.rewrite(texts) if texts else 0
            old += len(texts)
            rotation.examined += len(records)
            on_progress(rotation)
    async for records in pages(store.inner, Kind.DOCUMENTS):
        writes = [write for record in records if (write := write_of(record, store.keys, rotation)) is not None]
        answers = await store.inner.write([Bundle((write,)) for write in writes]) if writes else []
        rotation.resealed += sum(answer is not None for answer in answers)
        old += len(writes)
        rotation.examined += len(records)
        on_progress(rotation)
    return old


async def pages(store: Store, kind: Kind) -> AsyncIterator[list[Record]]:
    cursor: str | None = None
    while True:
        page = await store.dump(kind, after=cursor, limit=PAGE)
        yield page.records
        if (cursor := page.cursor) is None:
            return


def texts_of(record: Record, keys: Keys, rotation: Rotation) -> list[Rewrite]:
    """Return the texts of a job that another key has sealed, each with its new form."""
    job_id = record["id"]
    told = told_of(record, keys, rotation)
    columns = ("result",) if told is not None else ("payload", "result")
    found: list[tuple[str, str, str | None, tuple[str, ...]]] = [
        (column, record[column], None, (job_id, column)) for column in columns if record[column] is not None
    ]
    found += [
        ("output", step[OUTPUT], step[NAME], (job_id, "step", step[NAME]))
        for step in record["steps"]
        if step[OUTPUT] is not None
    ]
    texts = [
        Rewrite(job_id, column, text, new, step)
        for column, text, step, about in found
        if (new := resealed(text, about, keys, rotation)) is not None
    ]
    options = options_of(job_id, record["options"], keys, rotation)
    return [*texts, *(each for each in (told, options) if each is not None)]


def told_of(record: Record, keys: Keys, rotation: Rotation) -> Rewrite | None:
    """Return the payload of a job that follows an end, sealed as a whole, like other payloads."""
    job_id, text = record["id"], record["payload"]
    try:
        told = None if text is None else opened_text(keys, text)
    except Unreadable:
        rotation.unreadable.add(key_in(text) or "?")
        return None
    return None if told is None else Rewrite(job_id, "payload", text, keys.seal_json(told, job_id, "payload"))


def options_of(job_id: str, options: str | None, keys: Keys, rotation: Rotation) -> Rewrite | None:
    if options is None or (FIELD not in options and f'"{ON_END}"' not in options):
        return None
    data = dict(read_object(options))
    changed = headers_of(job_id, data, keys, rotation) | on_end_of(job_id, data, keys, rotation)
    return Rewrite(job_id, "options", options, to_json({**data, **changed})) if changed else None


def headers_of(job_id: str, data: dict[str, Any], keys: Keys, rotation: Rotation) -> dict[str, Any]:
    sealed = sealed_in(data.get(HEADERS))
    new = None if sealed is None else resealed(to_json({FIELD: sealed}), (job_id, HEADERS), keys, rotation)
    return {} if new is None else {HEADERS: read_object(new)}


def on_end_of(job_id: str, data: dict[str, Any], keys: Keys, rotation: Rotation) -> dict[str, Any]:
    found = {
        name: {**fields, "payload": new}
        for name, fields in data.get(ON_END, {}).items()
        if (new := resealed(fields["payload"], (job_id, ON_END), keys, rotation)) is not None
    }
    return {ON_END: {**data[ON_END], **found}} if found else {}


def write_of(record: Record, keys: Keys, rotation: Rotation) -> Write | None:
    """Return the new form of a document that another key has sealed."""
    place = Key(record["collection"], record["grp"], record["id"])
    if place.collection not in SEALED_COLLECTIONS:
        return None
    if place.collection in KEYED and is_unanswered(record["data"]):
        return None  # its request may add the answer at this moment, under the same version
    document = Document(place, record["data"], record["version"], record["due_at"], record["expires_at"])
    new = resealed(document.data, tuple(place), keys, rotation)
    if new is None:
        return None
    due_at, expires_at = document.due_at, document.expires_at
    version = document.version  # it means the same, and who writes it next need not know
    return Write(place, new, version, due_at, expires_at, version, announced=True)


def is_unanswered(text: str) -> bool:
    """Return whether this is the document of an idempotency key whose request is under way: it has ids only."""
    data = read_object(text)
    return "answer" in data and data["answer"] is None and not data.get("omitted")


def resealed(text: str, about: tuple[str, ...], keys: Keys, rotation: Rotation) -> str | None:
    """Return a text sealed with the active key; None if it is already, or was never sealed, or cannot be opened.

    A text that was never sealed is from before encryption: it is sealed by `mainspring keys rotate` too.
    """
    key = key_in(text)
    if key == keys.active:
        return None
    try:
        return keys.seal_json(keys.open_json(text, *about), *about)
    except Unreadable:
        rotation.unreadable.add(key or "?")
        return None


async def forget_keys(store: EncryptedStore, rotation: Rotation) -> None:
    """Remove the notes of keys with which nothing is sealed any more."""
    needed = await needed_keys(store.inner)
    rotation.removed = sorted(needed.keys() - {store.keys.active} - rotation.unreadable)
    for name in rotation.removed:
        await store.inner.write([Bundle((Write(Key(KEY_COLLECTION, "", name), None),))])
