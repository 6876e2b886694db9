"""Documents: written if their version matches; read by key, in order, or when they come due."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mainspring.clock import Millis
from mainspring.job import Inserted
from mainspring.stores.documents import (
    ABSENT,
    Bundle,
    Document,
    Due,
    Key,
    Listing,
    Write,
    accepted,
    answers,
    comes_soon,
    last_writes,
)
from mainspring.stores.engine import feed
from mainspring.stores.sqlite import insertion
from mainspring.stores.sqlite.admin import write_entry
from mainspring.stores.sqlite.once import commit_once
from mainspring.stores.sqlite.steps import put_first_steps
from mainspring.stores.sqlite.transaction import Transaction, in_values
from mainspring.stores.tables import NEVER, none_if_never, or_never

COLUMNS = "collection, grp, id, data, version, due_at, expires_at"
READ = f"""
SELECT {COLUMNS} FROM mainspring_documents
WHERE expires_at > ? AND (collection, grp, id) IN (SELECT column1, column2, column3 FROM (VALUES {{values}}))
"""
VERSIONS = """
SELECT collection, grp, id, version FROM mainspring_documents
WHERE expires_at > ? AND (collection, grp, id) IN (SELECT column1, column2, column3 FROM (VALUES {values}))
"""
SOME_UNEXPECTED = f"""
SELECT 1 FROM (SELECT ? AS now) CROSS JOIN (VALUES {{values}}) WHERE column4 <> coalesce((
    SELECT version FROM mainspring_documents
    WHERE collection = column1 AND grp = column2 AND id = column3 AND expires_at > now), '{ABSENT}')
LIMIT 1
"""
PUT = f"INSERT OR REPLACE INTO mainspring_documents ({COLUMNS}) VALUES {{values}}"
DELETE = """
DELETE FROM mainspring_documents
WHERE (collection, grp, id) IN (SELECT column1, column2, column3 FROM (VALUES {values}))
"""
BROWSE = f"""
SELECT {COLUMNS} FROM mainspring_documents WHERE collection = :collection {{within}} {{after}} AND expires_at > :now
ORDER BY {{order}} LIMIT :limit
"""
BEGINNING = "AND id >= :prefix AND id < :prefix || char(1114111)"  # no text begins with the last code point
DUE = f"""
SELECT {COLUMNS} FROM mainspring_documents INDEXED BY mainspring_documents_due
WHERE collection = ? AND due_at <= ? AND due_at < {NEVER} AND expires_at > ? ORDER BY due_at LIMIT ?
"""
NEXT = f"""
SELECT due_at FROM mainspring_documents INDEXED BY mainspring_documents_due
WHERE collection = ? AND due_at < {NEVER} AND expires_at > ? ORDER BY due_at LIMIT 1 OFFSET ?
"""
PRUNE = f"""
DELETE FROM mainspring_documents WHERE (collection, grp, id) IN (
    SELECT collection, grp, id FROM mainspring_documents INDEXED BY mainspring_documents_expiry
    WHERE expires_at <= ? AND expires_at < {NEVER} ORDER BY expires_at LIMIT ?)
"""


@dataclass(slots=True)
class PreparedBundle:
    """A bundle and the rows of its jobs. The calling thread makes the rows, to save the writer's time."""

    bundle: Bundle
    jobs: list[insertion.PreparedJob]


def prepare(bundles: Sequence[Bundle]) -> list[PreparedBundle]:
    """Make the rows of the bundles' jobs. All jobs are checked together, which is much faster than bundle by bundle."""
    jobs = iter(insertion.prepare([job for bundle in bundles for job in bundle.jobs]))
    return [PreparedBundle(bundle, [next(jobs) for _ in bundle.jobs]) for bundle in bundles]


def write(transaction: Transaction, new: list[PreparedBundle]) -> list[list[Inserted] | None]:
    bundles = [prepared.bundle for prepared in new]
    holds = which_hold(transaction, bundles)
    taken = [prepared for prepared, held in zip(new, holds, strict=True) if held]
    jobs = [job for prepared in taken for job in prepared.jobs]
    inserted = insertion.insert(transaction, jobs) if jobs else []
    writes = last_writes(prepared.bundle for prepared in taken)
    put(transaction, [write for write in writes if write.data is not None])
    if deleted := [write.key for write in writes if write.data is None]:
        delete(transaction, deleted)
    transaction.record(feed.documents(writes))
    for bundle in (prepared.bundle for prepared in taken):
        if bundle.note is not None:
            write_entry(transaction, bundle.note)
        if bundle.once is not None:
            commit_once(transaction, bundle.once)
        if bundle.steps:
            put_first_steps(transaction, bundle.steps)
    if comes_soon(writes, transaction.now):
        transaction.documents = True
    transaction.state_changed |= any(prepared.bundle.spread for prepared in taken)
    return answers(bundles, holds, inserted)


def which_hold(transaction: Transaction, bundles: Sequence[Bundle]) -> list[bool]:
    """Return for each bundle whether its expected versions match. Usually all do: one query in SQLite shows that."""
    writes = [write for bundle in bundles for write in bundle.writes]
    if is_each_once(writes) and not some_unexpected(transaction, writes):
        return [True] * len(bundles)
    return accepted(bundles, versions(transaction, {write.key for write in writes}))


def is_each_once(writes: Sequence[Write]) -> bool:
    return len({write.key for write in writes}) == len(writes)


def some_unexpected(transaction: Transaction, writes: Sequence[Write]) -> bool:
    expected = [(*write.key, write.expected) for write in writes if write.expected is not None]
    return any(transaction.value(*part) for part in in_values(SOME_UNEXPECTED, expected, transaction.now))


def versions(transaction: Transaction, keys: Iterable[Key]) -> dict[Key, str]:
    parts = in_values(VERSIONS, list(keys), transaction.now)
    return {Key(*row[:3]): row[3] for part in parts for row in transaction.execute(*part)}


def put(transaction: Transaction, writes: Sequence[Write]) -> None:
    rows = [
        (*write.key, write.data, write.version, or_never(write.due_at), or_never(write.expires_at)) for write in writes
    ]
    for part in in_values(PUT, rows):
        transaction.execute(*part)


def delete(transaction: Transaction, keys: Sequence[Key]) -> None:
    for part in in_values(DELETE, keys):
        transaction.execute(*part)


def prune(transaction: Transaction, now: Millis, limit: int) -> int:
    return transaction.execute(PRUNE, (now, limit)).rowcount


# -- reading ----------------------------------------------------------------------------------------------


def read(connection: sqlite3.Connection, keys: Sequence[Key], now: Millis) -> list[Document]:
    return [to_document(row) for part in in_values(READ, keys, now) for row in connection.execute(*part)]


def browse(connection: sqlite3.Connection, listing: Listing, now: Millis) -> list[Document]:
    sign, direction = ("<", "DESC") if listing.backwards else (">", "ASC")
    name, seen = ("(grp, id)", "(:grp_seen, :id_seen)") if listing.group is None else ("id", ":id_seen")
    statement = BROWSE.format(
        within="" if listing.group is None else f"AND grp = :grp {BEGINNING if listing.prefix else ''}",
        after="" if listing.after is None else f"AND {name} {sign} {seen}",
        order=f"grp {direction}, id {direction}",
    )
    grp_seen, id_seen = listing.after or (None, None)
    given = {
        "collection": listing.collection,
        "grp": listing.group,
        "prefix": listing.prefix,
        "grp_seen": grp_seen,
        "id_seen": id_seen,
        "now": now,
        "limit": listing.limit,
    }
    return [to_document(row) for row in connection.execute(statement, given)]


def due(connection: sqlite3.Connection, collection: str, limit: int, now: Millis, ahead: Millis) -> Due:
    documents = [to_document(row) for row in connection.execute(DUE, (collection, now + ahead, now, limit))]
    following = connection.execute(NEXT, (collection, now, len(documents))).fetchone()
    return Due(documents, now, following[0] if following else None)


def to_document(row: Sequence[Any]) -> Document:
    collection, group, name, data, version, due_at, expires_at = row
    return Document(Key(collection, group, name), data, version, none_if_never(due_at), none_if_never(expires_at))
