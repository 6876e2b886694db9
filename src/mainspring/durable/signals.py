"""Signals: facts that jobs wait for, kept for a while, so that nobody misses one that came before it looked.

A signal is a document; its id grows with time. Every job sees every signal of its key once, in order: its own wait
records say which it has seen. A sender writes the document, then calls the key. Should it die in between, the document
comes due and any worker calls in its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from mainspring.clock import Length, Millis, duration, to_datetime, to_millis
from mainspring.durable.journal import Asked, kind_of
from mainspring.durable.outputs import to_json
from mainspring.durable.run import DurableRun
from mainspring.durable.suspension import Wait, next_look
from mainspring.errors import ConfigurationError
from mainspring.ids import new_id
from mainspring.job import UNTIL_WOKEN
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Listing, Write
from mainspring.stores.protocol import Store
from mainspring.timers import CHUNK, fire_planned

if TYPE_CHECKING:
    from mainspring.app import Mainspring

COLLECTION = "signals"
SENT = "signals_sent"  # by ids of their senders
EVERYBODY = 1_000_000
KEPT = timedelta(days=30)
CALLED_AGAIN: Millis = 20_000  # after a signal was written; later than workers are told of, which look by themselves
MOST_RECALLED = 1000  # signals for which is called again at once when a worker died; the others wait for their time
OUT_OF_ORDER: Millis = 10 * 60_000  # by so much the clocks of two senders may differ
PAGE = 100
LONGEST_KEY = 180  # characters: a wait is named after it


@dataclass(frozen=True, slots=True)
class Signal:
    """Something that has happened: `await app.signal("checked_in:r1", {"room": 7})`."""

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
        msg = f'the key of a signal is a line like "checked_in:r1", of 1 to {LONGEST_KEY} characters, not {key!r}'
        raise ConfigurationError(msg)


def check_id(id: object) -> None:
    if not is_line(id):
        msg = f"the id of a signal is a line of 1 to {LONGEST_KEY} characters, each time the same, not {id!r}"
        raise ConfigurationError(msg)


def is_line(text: object) -> bool:
    return isinstance(text, str) and 0 < len(text) <= LONGEST_KEY and text.isprintable()


# -- sending ----------------------------------------------------------------------------------------


async def send(store: Store, key: str, payload: Any, keep: Length, id: str | None = None) -> Signal:
    check_key(key)
    if id is not None:
        check_id(id)
    if duration(keep) <= 0:
        msg = f"a signal is kept for a while, so that nobody misses it; keep={keep!r} is none"
        raise ConfigurationError(msg)
    text = to_json(payload, f"the payload of signal {key!r}")
    await store.open()
    signal = await put(store, key, json.loads(text), duration(keep), id)
    await store.wake({waiting_key(key): EVERYBODY})  # if it was sent before too: that call may have died in between
    return signal


async def put(store: Store, key: str, payload: Any, keep: Millis, id: str | None) -> Signal:
    """With an id of the sender's, only once: what was sent under it is written together with the signal."""
    while True:
        now = store.clock.now()
        signal = Signal(key, payload, to_datetime(now), new_id())
        data = json.dumps({"payload": payload, "sent_at": now})
        place = Key(COLLECTION, key, signal.id)
        writes = [Write(place, data, due_at=now + CALLED_AGAIN, expires_at=now + keep)]
        if id is not None:
            writes.append(Write(Key(SENT, key, id), json.dumps(signal.id), expected=ABSENT, expires_at=now + keep))
        if (await store.write([Bundle(tuple(writes))]))[0] is not None:
            return signal
        if id is not None and (first := await sent_under(store, key, id)) is not None:
            return first


async def sent_under(store: Store, key: str, id: str) -> Signal | None:
    """None: it is not kept any more."""
    found = await store.documents([Key(SENT, key, id)])
    if found:
        found = await store.documents([Key(COLLECTION, key, json.loads(found[0].data))])
    return Signal.from_document(found[0]) if found else None


class SignalTimer:
    """Calls again for signals whose sender may have died before it could call."""

    collection = COLLECTION
    chunk = CHUNK

    def __init__(self, app: Mainspring) -> None:
        self._app = app

    async def fire(self, documents: Sequence[Document], now: Millis) -> None:
        del now
        await self._app.store.wake({waiting_key(one.key.group): EVERYBODY for one in documents})
        writes = [Write(one.key, one.data, expected=one.version, expires_at=one.expires_at) for one in documents]
        await self._app.store.write([Bundle((write,)) for write in writes])

    async def refresh(self) -> None:
        """Nothing but time changes them."""

    async def recover(self) -> None:
        """Call again for the latest signals: the worker may have suspended a job for one that had just been sent."""
        latest = await self._app.store.due(COLLECTION, MOST_RECALLED, ahead=CALLED_AGAIN)
        await self._app.store.wake({waiting_key(one.key.group): EVERYBODY for one in latest.documents})

    async def clock_went_back(self, by: Millis) -> None:
        del by
        await fire_planned(self._app, self)


# -- waiting ----------------------------------------------------------------------------------------


async def wait_for(run: DurableRun, key: str, timeout: Length | None, name: str | None) -> Signal | None:
    check_key(key)
    asker = run.asker()
    name = run.journal.called(name) if name else run.journal.derive(f"wait for {key}", main=asker is None)
    asked = await run.ask(name, "wait", asker)
    state = json.loads(asked.record.output or "{}") if asked.record is not None else {}
    if "signal" in state:
        return None if state["signal"] is None else Signal.from_data(state["key"], state["signal"])
    now = run.now()
    until: Millis | None = state.get("until")
    if asked.record is None and timeout is not None:
        until = now + duration(timeout)
    found = await run.patiently(partial(next_signal, run, key))
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

    async def look_again() -> bool:
        return await next_signal(run, key) is not None

    step = asked.step(json.dumps({"key": key, "until": until, "looks": looks + 1}), now)
    end = min(until or UNTIL_WOKEN, now + next_look(looks))
    await run.suspend(Wait(end, step, waiting_key(key), look_again))


async def next_signal(run: DurableRun, key: str) -> Signal | None:
    """The oldest that this job has not seen."""
    seen = run.consumed.setdefault(key, seen_by(run, key))
    after = just_before(max(seen), run.store.clock.now()) if seen else None
    while True:
        listing = Listing(COLLECTION, key, None if after is None else (key, after), PAGE)
        page = await run.store.browse(listing)
        new = next((one for one in page if one.key.id not in seen), None)
        if new is not None:
            return Signal.from_document(new)
        if len(page) < PAGE:
            return None
        after = page[-1].key.id


def seen_by(run: DurableRun, key: str) -> set[str]:
    states = [json.loads(step.output or "{}") for step in run.journal.records.values() if kind_of(step) == "wait"]
    return {state["signal"]["id"] for state in states if state["key"] == key and state.get("signal")}


def just_before(id: str, now: Millis) -> str | None:
    """Return the id from which to look for new signals, a little before the last one that was seen.

    Ids begin with the sender's time, so a sender that was slow, or whose clock is behind, writes one that sorts before
    it. If the last one's sender had a clock that is ahead, any may: then None, which means from the beginning.
    """
    stamp = int(id[:8] + id[9:13], 16) - OUT_OF_ORDER
    if stamp > now:
        return None
    return f"{stamp >> 16:08x}-{stamp & 0xFFFF:04x}"
