"""Record changes for the change feed, while some process reads it.

A change is recorded in the job's own item, in the list `journal`, by the write that makes the change. So neither can
happen without the other, and the list has the order of the writes. The same transaction puts a hint, an item that names
the changed jobs: readers find the jobs by it, see changes.py. A change that is not about a job, or deletes its job, is
in the hint itself.

This makes each write a transaction, at twice the price, and no batch request can be used. So changes are recorded only
while `recording` is set. A reader sets it, and it ends by itself when no process has read the feed for its retention.
It is an attribute of the item that has the halts, because claims and enqueues read that item anyway. Claims are
recorded only if a reader asks for them; the same attribute says until when.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

from mainspring.clock import Millis, elapsed_by
from mainspring.ids import new_id
from mainspring.stores.dynamodb.client import Item
from mainspring.stores.dynamodb.items import key, stamp, ttl
from mainspring.stores.dynamodb.table import Action, Table
from mainspring.stores.dynamodb.values import ItemUpdate, Row, put, unpack
from mainspring.stores.feed import RETENTION, Entry

RECORDING = "recording"  # attribute of the item with the halts
STARTS = "starts"  # part of it: until when claims are recorded too
JOURNAL, TOLD = "journal", "told"  # attributes of a job's item: recorded changes; hints whose changes are in the feed
HINT_PARTITIONS = 4


def note_recording(table: Table, row: Row | None, looked_at: float) -> None:
    """Note from the item with the halts whether changes are recorded.

    `looked_at` is a moment before the item was read: from then on, the process may write without recording.
    """
    if looked_at < table.recording_read_at:  # another look of this process has overtaken this one
        return
    found: dict[str, str] = (row or {}).get(RECORDING, {})
    is_on = found.get("until", "") > stamp(table.clock.now())
    table.recording = found["life"] if is_on else None
    table.records_starts = is_on and found.get(STARTS, "") > stamp(table.clock.now())
    table.recording_read_at = looked_at


def moment(table: Table) -> float:
    """Return seconds that also pass while the machine sleeps."""
    return elapsed_by(table.clock)


class Hint:
    """The hint of one transaction. It collects what the transaction records; without anything, it is not written."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.id = new_id()
        self.is_on = table.recording is not None
        self._jobs: dict[str, None] = {}
        self._entries: list[list[Any]] = []

    def journal(self, job_id: str, entries: Iterable[Entry]) -> list[str]:
        """Return what the write of this job's item adds to its journal; nothing while no process reads the feed."""
        if not self.is_on:
            return []
        lines = [self._line(entry) for entry in entries]
        if lines:
            self._jobs[job_id] = None
        return lines

    def _line(self, entry: Entry) -> str:
        data: dict[str, Any] = dict(entry.data or {})
        for job in entry.jobs:
            data |= {} if isinstance(job, str) else job.data or {}
        return json.dumps([self.id, self._table.clock.now(), entry.kind, entry.queue, data or None])

    def add(self, entries: Iterable[Entry]) -> None:
        """Record changes that have no item of a job to be recorded in."""
        if self.is_on:
            self._entries += (stored(entry, self._table.clock.now()) for entry in entries)

    def carry(self, row: Row, journal: Sequence[str]) -> None:
        """Record the changes of a job whose item is deleted, with those that its journal still has."""
        if self.is_on or journal:
            self._entries += from_journal(row, journal)

    @property
    def size(self) -> int:
        return 1 if self._jobs or self._entries else 0

    def actions(self) -> list[Action]:
        if not self.size:
            return []
        now = self._table.clock.now()
        words = {
            **unpack(hint_key(self.id)),
            "at": stamp(now),
            "jobs": list(self._jobs),
            "data": json.dumps(self._entries) if self._entries else None,
            "ttl": ttl(now + RETENTION),
        }
        return [("Put", put(words))]


def hint_key(hint: str) -> Item:
    return key(f"hints#{crc32(hint.encode()) % HINT_PARTITIONS}", hint)


def recorded_update(table: Table, job_id: str, change: ItemUpdate, entries: Iterable[Entry]) -> ItemUpdate:
    """Return the update of a job's item with the changes that it records."""
    hint = Hint(table)
    lines = hint.journal(job_id, entries)
    return replace(change, append={JOURNAL: lines}, beside=hint.actions()) if lines else change


# -- entries as they are stored ---------------------------------------------------------------------------


def stored(entry: Entry, now: Millis) -> list[Any]:
    jobs = [job if isinstance(job, str) else job.to_list() for job in entry.jobs]
    return [now, entry.kind, entry.queue, entry.task, jobs, None if entry.data is None else dict(entry.data)]


def from_journal(row: Row, lines: Sequence[str]) -> list[list[Any]]:
    """Return the lines of a job's journal as stored entries. What a line does not say is in the job's item.

    A line has the queue, because an edit may change it before the line is read. Only a report of progress does not
    know it. The queue of a running job cannot change, so it is that of the next line, or of the item.
    """
    job = [row["SK"]]
    if row.get("target_type") is not None:
        job += [row["target_type"], row.get("target_id")]
    entries: list[list[Any]] = []
    queue = row["queue"]
    for line in reversed(lines):
        _, at, kind, known, data = json.loads(line)
        queue = known or queue
        entries.append([at, kind, queue, row["job_type"], [job], data])
    return entries[::-1]


def hint_of(line: str) -> str:
    return str(json.loads(line)[0])
