"""Documents other than jobs: written by version, read by key, in order, or when they come due."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mainspring.clock import Millis
from mainspring.errors import StoreBusy
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
from mainspring.stores.postgres import arrays, insertion, steps
from mainspring.stores.postgres.admin import write_entry
from mainspring.stores.postgres.once import commit_once
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.tables import NEVER, none_if_never, or_never

COLUMNS = "collection, grp, id, data, version, due_at, expires_at"
KEYS = "unnest(%(collections)s::text[], %(groups)s::text[], %(ids)s::text[])"
READ = f"""
SELECT {COLUMNS} FROM {{s}}.documents JOIN {KEYS} AS wanted(collection, grp, id) USING (collection, grp, id)
WHERE expires_at > {{now}}
"""
LOCK = f"""
SELECT collection, grp, id, CASE WHEN expires_at > {{now}} THEN version ELSE '{ABSENT}' END, {{now}}
FROM {{s}}.documents JOIN {KEYS} AS wanted(collection, grp, id) USING (collection, grp, id)
ORDER BY collection, grp, id FOR UPDATE OF documents
"""
NEW = f"""
{KEYS[:-1]}, %(data)s::text[], %(versions)s::text[], %(due)s::bigint[], %(expiry)s::bigint[])
"""
INSERT = f"INSERT INTO {{s}}.documents ({COLUMNS}) SELECT * FROM {NEW} ON CONFLICT DO NOTHING"
UPDATE = f"""
UPDATE {{s}}.documents AS d SET data = new.data, version = new.version, due_at = new.due_at, expires_at = new.expires_at
FROM {NEW} AS new({COLUMNS}) WHERE d.collection = new.collection AND d.grp = new.grp AND d.id = new.id
"""
DELETE = f"""
DELETE FROM {{s}}.documents AS d USING {KEYS} AS gone(collection, grp, id)
WHERE d.collection = gone.collection AND d.grp = gone.grp AND d.id = gone.id
"""
BROWSE = f"""
SELECT {COLUMNS} FROM {{{{s}}}}.documents
WHERE collection = %(collection)s {{within}} {{after}} AND expires_at > {{{{now}}}} ORDER BY {{order}} LIMIT %(limit)s
"""
BEGINNING = "AND id >= %(prefix)s AND id < %(prefix)s || chr(1114111)"  # no text begins with the last code point
DUE = f"""
SELECT {COLUMNS}, {{now}} FROM {{s}}.documents
WHERE collection = %(collection)s AND due_at < {NEVER} AND expires_at > {{now}} ORDER BY due_at LIMIT %(limit)s
"""
PRUNE = f"""
WITH gone AS MATERIALIZED ( -- as a plain subquery it may be evaluated several times, and then the limit does not hold
    SELECT collection, grp, id FROM {{s}}.documents WHERE expires_at <= {{now}} AND expires_at < {NEVER}
    ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
DELETE FROM {{s}}.documents AS old USING gone
WHERE old.collection = gone.collection AND old.grp = gone.grp AND old.id = gone.id
"""


async def write(transaction: Transaction, bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
    """Apply the bundles whose expected versions still hold; return None for the others.

    Existing documents are locked. A missing one cannot be: if another transaction creates it meanwhile, `StoreBusy`
    makes the caller start over.
    """
    wanted = {write.key for bundle in bundles for write in bundle.writes}
    locked = await transaction.rows(LOCK, **columns_of_keys(sorted(wanted)))
    there = {Key(*row[:3]): row[3] for row in locked}
    holds = accepted(bundles, there)
    taken = [bundle for bundle, held in zip(bundles, holds, strict=True) if held]
    jobs = [job for bundle in taken for job in bundle.jobs]
    inserted = await insertion.insert(transaction, jobs) if jobs else []
    writes = last_writes(taken)
    puts = [write for write in writes if write.data is not None]
    await insert(transaction, [write for write in puts if write.key not in there])
    await update(transaction, [write for write in puts if write.key in there])
    if gone := [write.key for write in writes if write.data is None]:
        await transaction.do(DELETE, **columns_of_keys(gone))
    await transaction.record(feed.documents(writes))
    for bundle in taken:
        if bundle.note is not None:
            await write_entry(transaction, bundle.note)
        await commit_once(transaction, bundle.once)
        if bundle.steps:
            await steps.put_first(transaction, bundle.steps)
    if puts and comes_soon(puts, await transaction.value("SELECT {now}")):
        transaction.documents = True
    transaction.state_changed |= any(bundle.spread for bundle in taken)
    return answers(bundles, holds, inserted)


async def insert(transaction: Transaction, writes: Sequence[Write]) -> None:
    if writes and await transaction.do(INSERT, **columns_of(writes)) < len(writes):
        msg = "another program created one of these documents at the same time"
        raise StoreBusy(msg)


async def update(transaction: Transaction, writes: Sequence[Write]) -> None:
    if writes:
        await transaction.do(UPDATE, **columns_of(writes))


def columns_of(writes: Sequence[Write]) -> dict[str, str]:
    return {
        **columns_of_keys([write.key for write in writes]),
        "data": arrays.of_texts(write.data for write in writes),
        "versions": arrays.of_texts(write.version for write in writes),
        "due": arrays.of_plain(or_never(write.due_at) for write in writes),
        "expiry": arrays.of_plain(or_never(write.expires_at) for write in writes),
    }


def columns_of_keys(keys: Iterable[Key]) -> dict[str, str]:
    names = ("collections", "groups", "ids")
    columns = zip(*keys, strict=True)
    return dict(zip(names, [arrays.of_texts(column) for column in columns] or ["{}"] * 3, strict=True))


# -- reading ----------------------------------------------------------------------------------------------


async def read(transaction: Transaction, keys: Sequence[Key]) -> list[Document]:
    return [to_document(row) for row in await transaction.rows(READ, **columns_of_keys(keys))]


async def browse(transaction: Transaction, listing: Listing) -> list[Document]:
    sign, direction = ("<", "DESC") if listing.backwards else (">", "ASC")
    name, seen = ("(grp, id)", "(%(grp_seen)s, %(id_seen)s)") if listing.group is None else ("id", "%(id_seen)s")
    statement = BROWSE.format(
        within="" if listing.group is None else f"AND grp = %(grp)s {BEGINNING if listing.prefix else ''}",
        after="" if listing.after is None else f"AND {name} {sign} {seen}",
        order=f"grp {direction}, id {direction}",
    )
    grp_seen, id_seen = listing.after or (None, None)
    rows = await transaction.rows(
        statement,
        collection=listing.collection,
        grp=listing.group,
        prefix=listing.prefix,
        grp_seen=grp_seen,
        id_seen=id_seen,
        limit=listing.limit,
    )
    return [to_document(row) for row in rows]


async def due(transaction: Transaction, collection: str, limit: int, ahead: Millis) -> Due:
    """Return due documents. One more than `limit` is read, because it shows when to look again."""
    rows = await transaction.rows(DUE, collection=collection, limit=limit + 1)
    now = rows[0][-1] if rows else await transaction.value("SELECT {now}")
    documents = [to_document(row[:-1]) for row in rows]
    ready = [doc for doc in documents[:limit] if doc.due_at is not None and doc.due_at <= now + ahead]
    following = documents[len(ready)].due_at if len(ready) < len(documents) else None
    return Due(ready, now, following)


def to_document(row: Sequence[Any]) -> Document:
    collection, group, name, data, version, due_at, expires_at = row
    return Document(Key(collection, group, name), data, version, none_if_never(due_at), none_if_never(expires_at))
