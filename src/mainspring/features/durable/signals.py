"""Signals: events that jobs wait for. They are kept for a while, so a job also gets those sent before it waited.

A signal is a document whose id grows with time. Every job gets every signal of its key once, in order: the job's wait
records say which it has received. A sender writes the document, then wakes the jobs that wait for the key. If it dies
in between, the document comes due, and any worker wakes them instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from mainspring.clock import Length, Millis, duration, to_datetime, to_millis
from mainspring.errors import ConfigurationError
from mainspring.features.durable.journal import Asked, kind_of
from mainspring.features.durable.outputs import to_json
from mainspring.features.durable.run import DurableRun
from mainspring.features.durable.suspension import Wait, next_look
from mainspring.ids import new_id
from mainspring.job import UNTIL_WOKEN
from mainspring.projects import key_in
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Listing, Write, current_once
from mainspring.stores.protocol import Store

COLLECTION = "signals"
SENT = "signals_sent"  # signals by the id that their sender chose
ALL_WAITERS = 1_000_000
SIGNAL_RETENTION = timedelta(days=30)
REPEAT_WAKE_AFTER: Millis = 20_000
"""After a signal was written. Stores notify workers only of what is due within 15 s; this is found by polling."""
MAX_SENDER_SKEW: Millis = 10 * 60_000  # how far the clocks of two senders may differ
SIGNALS_PER_PAGE = 100
MAX_KEY_LENGTH = 180  # characters; short enough for "wait for <key>" as the name of a step


@dataclass(frozen=True, slots=True)
class Signal:
    """An event that was sent: `await app.signal("checked_in:r1", {"room": 7})`."""

    key: str
    payload: Any
    sent_at: datetime
    id: str

    def to_data(self) -> dict[str, Any]:
        return {"id": self.id, "sent_at": to_millis(self.sent_at), "payload": self.payload}

    @classmethod
    def from_data(cls, key: str, data: Mapping[str, Any]) -> Signal:
        return cls(key, data["payload"], to_datetime(data["sent_at"]), data["id"])

    @classmethod
    def from_document(cls, document: Document) -> Signal:
        return cls.from_data(document.key.group, {**json.loads(document.data), "id": document.key.id})


def waiting_key(key: str) -> str:
    return f"signal:{key}"


def check_key(key: object) -> None:
    if not is_line(key):
        msg = f'the key of a signal is 1 to {MAX_KEY_LENGTH} printable characters, like "checked_in:r1", not {key!r}'
        raise ConfigurationError(msg)


def check_id(id: object) -> None:
    if not is_line(id):
        msg = f"the id of a signal is 1 to {MAX_KEY_LENGTH} printable characters, not {id!r}"
        raise ConfigurationError(msg)


def is_line(text: object) -> bool:
    return isinstance(text, str) and 0 < len(text) <= MAX_KEY_LENGTH and text.isprintable()


# -- sending ----------------------------------------------------------------------------------------


async def send(store: Store, key: str, payload: Any, keep: Length, id: str | None = None) -> Signal:
    """Send a signal; return the first one if the sender's id was used before."""
    if id is not None:
        check_id(id)

    def notes(signal: Signal) -> list[Write]:
        if id is None:
            return []
        expires_at = to_millis(signal.sent_at) + duration(keep)
        return [Write(Key(SENT, key, id), json.dumps(signal.id), expected=ABSENT, expires_at=expires_at)]

    signal: Signal | None = None
    while signal is None:
        signal = await send_with(store, key, payload, keep, notes) or await sent_under(store, key, id or "")
    return signal


async def send_with(
    store: Store, key: str, payload: Any, keep: Length, notes: Callable[[Signal], list[Write]]
) -> Signal | None:
    """Send a signal in one commit with notes about it. Return None if one of them is refused: then nothing is sent."""
    check_key(key)
    if duration(keep) <= 0:
        msg = f"keep={keep!r}: a signal must be kept for longer than 0 seconds, or waiting jobs would miss it"
        raise ConfigurationError(msg)
    payload = json.loads(to_json(payload, f"the payload of signal {key!r}"))
    await store.open()
    now = store.clock.now()
    signal = Signal(key, payload, to_datetime(now), new_id())
    data = json.dumps({"payload": payload, "sent_at": now})
    place = Key(COLLECTION, key, signal.id)
    write = Write(place, data, due_at=now + REPEAT_WAKE_AFTER, expires_at=now + duration(keep))
    (written,) = await store.write([Bundle((write, *notes(signal)), once=current_once())])
    # also if nothing was sent: the sender of the first signal may have died before it woke the jobs
    await store.wake({waiting_key(key): ALL_WAITERS})
    return None if written is None else signal


async def sent_under(store: Store, key: str, id: str) -> Signal | None:
    """Return the signal that was sent with this id, or None if it has expired."""
    found = await store.documents([Key(SENT, key, id)])
    if found:
        found = await store.documents([Key(COLLECTION, key, json.loads(found[0].data))])
    return Signal.from_document(found[0]) if found else None


# -- waiting ----------------------------------------------------------------------------------------


async def wait_for(run: DurableRun, key: str, timeout: Length | None, name: str | None) -> Signal | None:
    check_key(key)
    branch = run.branch()
    name = run.journal.called(name) if name else run.journal.derive(f"wait for {key}", main=branch is None)
    asked = await run.ask(name, "wait", branch)
    found = await receive(run, asked, key_in(run.claim.queue, key), timeout)
    return None if found is None else replace(found, key=key)


async def receive(run: DurableRun, asked: Asked, key: str, timeout: Length | None) -> Signal | None:
    """Return the next signal of a key as it is kept: that of a job of a project begins with the project."""
    check_key(key)
    state = json.loads(asked.record.output or "{}") if asked.record is not None else {}
    if "signal" in state:
        return None if state["signal"] is None else Signal.from_data(state["key"], state["signal"])
    now = run.now()
    until: Millis | None = state.get("until")
    if asked.record is None and timeout is not None:
        until = now + duration(timeout)
    found = await run.retry_outages(partial(next_signal, run, key))
    if found is not None and (until is None or to_millis(found.sent_at) <= until):
        run.consumed[key].add(found.id)
    elif until is None or now < until:
        await suspend(run, asked, key, until, int(state.get("looks", 0)))
    else:
        found = None
    await run.save(asked.step(json.dumps({"key": key, "signal": found and found.to_data()}), now))
    return found


async def suspend(run: DurableRun, asked: Asked, key: str, until: Millis | None, looks: int) -> None:
    now = run.now()

    async def recheck() -> bool:
        return await next_signal(run, key) is not None

    step = asked.step(json.dumps({"key": key, "until": until, "looks": looks + 1}), now)
    end = min(until or UNTIL_WOKEN, now + next_look(looks))
    await run.suspend(Wait(end, step, waiting_key(key), recheck))


async def next_signal(run: DurableRun, key: str) -> Signal | None:
    """Return the oldest signal of the key that this job has not received, or None."""
    seen = run.consumed.setdefault(key, seen_by(run, key))
    after = just_before(max(seen), run.store.clock.now()) if seen else None
    while True:
        listing = Listing(COLLECTION, key, None if after is None else (key, after), SIGNALS_PER_PAGE)
        page = await run.store.browse(listing)
        new = next((document for document in page if document.key.id not in seen), None)
        if new is not None:
            return Signal.from_document(new)
        if len(page) < SIGNALS_PER_PAGE:
            return None
        after = page[-1].key.id


def seen_by(run: DurableRun, key: str) -> set[str]:
    states = [json.loads(step.output or "{}") for step in run.journal.records.values() if kind_of(step) == "wait"]
    return {state["signal"]["id"] for state in states if state["key"] == key and state.get("signal")}


def just_before(id: str, now: Millis) -> str | None:
    """Return the id from which to look for new signals: a little before the last one received. None: from the start.

    Ids begin with the sender's time. A sender that is slow, or whose clock is behind, writes an id that sorts before
    earlier ones. If the clock of the last signal's sender was ahead, any new signal may sort before it: then None.
    """
    stamp = int(id[:8] + id[9:13], 16) - MAX_SENDER_SKEW
    if stamp > now:
        return None
    return f"{stamp >> 16:08x}-{stamp & 0xFFFF:04x}"
