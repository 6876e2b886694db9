"""The documents of limits: the slots of a `Limit`, the bucket of a `Rate`, the turns of one key of a `Fair` task.

Each is a document of its own, in the collection "limits", with the state of one limit. The code here does no I/O.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from mainspring.clock import SKEW, Millis
from mainspring.features.limits.options import Fair, Rate
from mainspring.json_text import from_json, to_json
from mainspring.stores.documents import ABSENT, Document, Key, Write

# -- slots: which jobs hold them ---------------------------------------------------------------------------

CHECK_EVERY: Millis = 20_000  # how long a slot may stay free, or held by a dead run, until the timer checks it
RENEW_WITHIN: Millis = 16_000  # a check planned nearer than this is moved: a near one would wake all workers
UNUSED_RETENTION: Millis = 3_600_000  # how long an unused limit is still shown


@dataclass(slots=True)
class Slots:
    """The holders of a limit's slots."""

    size: int
    holders: dict[str, int] = field(default_factory=dict)  # job -> the token under which it runs
    waiting: bool = False  # jobs may be suspended until they are woken

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Slots:
        return cls(data["size"], dict(data["holders"]), data["waiting"])

    def to_data(self) -> dict[str, Any]:
        return {"size": self.size, "holders": dict(self.holders), "waiting": self.waiting}

    def differs(self, before: Mapping[str, Any]) -> bool:
        return self.to_data() != before

    @property
    def idle(self) -> bool:
        """Return whether the document can be deleted. It is kept, as limits are shown for a while."""
        return False

    @property
    def room(self) -> int:
        return max(0, self.size - len(self.holders))

    def has_room_for(self, job_id: str) -> bool:
        """Return whether the job may start. If its last run is still listed as a holder, it takes over that slot."""
        return job_id in self.holders or self.room > 0

    def take(self, job_id: str, token: int) -> None:
        self.holders[job_id] = token

    def leave(self, job_id: str, token: int) -> bool:
        """Release a slot; return whether it was held. A run that lost its claim cannot release its successor's slot."""
        if self.holders.get(job_id) != token:
            return False
        del self.holders[job_id]
        return True

    def drop(self, gone: Iterable[tuple[str, int]]) -> int:
        return sum(self.leave(job_id, token) for job_id, token in gone)

    def due_at(self, now: Millis, before: Millis | None) -> Millis | None:
        """Return when to check the limit: as planned before, unless a check so near would wake all workers."""
        if not self.holders and not self.waiting:
            return None
        # if it is later than that, a wrong clock has planned it
        is_near = before is not None and now + RENEW_WITHIN < before <= now + CHECK_EVERY
        return before if is_near else now + CHECK_EVERY

    def expires_at(self, now: Millis) -> Millis | None:
        return None if self.holders or self.waiting else now + UNUSED_RETENTION


# -- a bucket: tokens drip into it, and each start takes one -----------------------------------------------

WAKE_EVERY: Millis = 50  # shortest time between two wake-ups of waiting jobs, as each costs a read, a write and a claim
AHEAD_ROOM: Millis = 100  # holds what drips in this time even if the burst is less, to be taken in advance
WAITING_ROOM: Millis = 150  # while jobs wait, the bucket holds what drips in this time beyond the burst: see `capacity`
WOKEN_FOR: Millis = 2_000  # a woken job that has not taken its token by then is not expected any more
EXPIRY_SLACK: Millis = 60_000  # how long the document of a bucket is kept after it is full


@dataclass(slots=True)
class Bucket:
    """The tokens of a rate, and how many waiting jobs were woken for them."""

    drip: float  # tokens per millisecond
    burst: int
    tokens: float
    at: Millis  # when the tokens were last counted
    waiting: bool = False  # jobs may be suspended until they are woken
    woken: int = 0  # jobs that were woken and may take a token; while jobs wait, no others may start
    woken_at: Millis = 0
    noted: int = 0  # how often a process has noted that jobs wait

    @classmethod
    def full(cls, drip: float, burst: int, now: Millis) -> Bucket:
        return cls(drip, burst, float(burst), now)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Bucket:
        return cls(**data)

    def to_data(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def differs(self, before: Mapping[str, Any]) -> bool:
        return self.to_data() != before

    @property
    def idle(self) -> bool:
        return False

    @property
    def capacity(self) -> float:
        """Return how many tokens the bucket can hold; more are lost.

        While jobs wait, a token stays unused for the time that waking and claiming a job takes. It must not be lost
        meanwhile, or a rate with a small burst would never be reached. No tokens are taken in advance then. So in both
        cases no more than burst + rate x 0.2 s can start at once (docs/flow.md).
        """
        return self.burst + self.drip * WAITING_ROOM if self.waiting else max(self.burst, self.drip * AHEAD_ROOM)

    def fill(self, now: Millis) -> None:
        """Add the tokens that have dripped. A process whose clock is slightly behind the last one's adds nothing."""
        if self.at - now > SKEW:
            self.at = now
        dripped = max(0, now - self.at) * self.drip
        self.tokens = min(self.capacity, self.tokens + dripped)
        self.at = max(self.at, now)
        if not -SKEW <= now - self.woken_at <= WOKEN_FOR:
            self.woken = 0

    @property
    def room(self) -> int:
        return min(int(self.tokens), self.woken) if self.waiting else int(self.tokens)

    def has_room_for(self, job_id: str) -> bool:
        del job_id
        return self.room > 0

    def take(self, job_id: str, token: int) -> None:
        del job_id, token
        self.tokens -= 1
        self.woken = max(0, self.woken - 1)

    def draw(self, most: int) -> int:
        """Take up to `most` tokens for coming starts; none while jobs wait."""
        drawn = 0 if self.waiting else min(int(self.tokens), most)
        self.tokens -= drawn
        return drawn

    def note(self) -> None:
        """Note that jobs wait. It is written each time: a process that found none just before must not write so."""
        self.waiting = True
        self.noted += 1

    def put_back(self, number: int) -> None:
        self.tokens = min(self.capacity, self.tokens + number)

    def wake(self, now: Millis) -> int:
        """Return how many waiting jobs may be woken, and count them as woken."""
        number = max(0, int(self.tokens) - self.woken)
        if number:
            self.woken += number
            self.woken_at = now
        return number

    def due_at(self, now: Millis, before: Millis | None) -> Millis | None:
        """Return when to wake the next of the waiting jobs. It is never later than was planned before.

        It is also not later than the moment at which woken jobs are given up: their worker may have died.
        """
        if not self.waiting:
            return None
        missing = max(0.0, 1 - (self.tokens - self.woken))
        due = now + max(WAKE_EVERY, ceil(missing / self.drip))
        if self.woken:
            due = min(due, max(now, self.woken_at) + WOKEN_FOR + 1)
        return due if before is None else min(before, due)

    def expires_at(self, now: Millis) -> Millis | None:
        """Return when the document may be deleted: a full bucket is the same as none."""
        if self.waiting:
            return None
        return now + ceil((self.capacity - self.tokens) / self.drip) + EXPIRY_SLACK


# -- turns: how many jobs of one key are ready or running --------------------------------------------------

LOST_AFTER: Millis = 30_000  # if no job of a key is ready or running this long after a wake-up, it was lost
# How long turns are passed on without a write. Less than LOST_AFTER, so that a `woken_at` older than that means
# that no turns are passed on any more.
UNWRITTEN_FOR: Millis = 20_000
CHECK_AFTER: Millis = 1_000  # after jobs start to wait; then the timer checks that jobs of their key are woken
CHECK_STEP: Millis = 500  # these checks are rounded up to multiples of this, so that many come due together
EXPECTED_FOR: Millis = 60_000  # how long announced jobs are expected to wait, even if none is found


@dataclass(slots=True)
class Turns(Slots):
    """Counts the jobs of one key that may be ready or running. Together they use up the key's size.

    `woken` counts the jobs that were inserted as ready or woken, and have not ended. `holders` are the jobs that
    became due by themselves: retries, and jobs enqueued for later.
    """

    woken: int = 0
    woken_at: Millis = 0
    noted_at: Millis = 0  # when a process last announced that jobs wait
    doubted_at: Millis = 0  # since when jobs may wait that no process will wake, as theirs died; 0: there are none
    short: bool = False  # more jobs have left than were counted: the known count is outdated, or was wrong

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Turns:
        return cls(**{**data, "holders": dict(data["holders"])})

    def to_data(self) -> dict[str, Any]:
        times = {"woken_at": self.woken_at, "noted_at": self.noted_at, "doubted_at": self.doubted_at}
        return {**Slots.to_data(self), "woken": self.woken, **times}

    @property
    def room(self) -> int:
        return max(0, self.size - len(self.holders) - self.woken)

    def has_room_for(self, job_id: str) -> bool:
        return job_id in self.holders or self.woken > 0 or self.room > 0

    def take(self, job_id: str, token: int) -> None:
        if job_id not in self.holders:
            self.woken = max(0, self.woken - 1)
        self.holders[job_id] = token

    def depart(self, job_id: str, token: int, *, had_turn: bool) -> None:
        if not self.leave(job_id, token) and had_turn:
            self._count_off(1)

    def wake(self, number: int, now: Millis) -> int:
        """Count up to `number` jobs as woken, as far as there is room; return how many."""
        number = min(number, self.room)
        if number:
            self.woken += number
            self.woken_at = now
        return number

    def nobody_came(self, number: int, now: Millis) -> None:
        """Correct the count: `number` jobs were to be woken, but were not found waiting."""
        self._count_off(number)
        if now - self.noted_at > EXPECTED_FOR:
            self.waiting = False

    def _count_off(self, number: int) -> None:
        self.short = self.short or self.woken < number
        self.woken = max(0, self.woken - number)

    def note(self, now: Millis) -> None:
        """Announce that jobs wait, or are about to. Plan a check that they are woken: their process may die first."""
        self.waiting = True
        self.noted_at = max(now, self.noted_at + 1)  # each announcement has another number
        self.doubted_at = self.doubted_at or now

    def is_doubtful(self, now: Millis) -> bool:
        """Return whether the check is due."""
        return self.doubted_at > 0 and not 0 <= now - self.doubted_at < CHECK_AFTER

    def clear_doubt(self, *, none_out: bool) -> None:
        """Do the check. If no job of the key is ready or running, the counted jobs do not exist, or are suspended."""
        if none_out and not self.holders:
            self.woken = 0
        if self.room:
            self.noted_at += 1  # processes that found no waiting job before must look again
        self.doubted_at = 0

    def give_up_woken(self, now: Millis) -> None:
        if not self.holders and abs(now - self.woken_at) > LOST_AFTER:  # far in the future: written by a wrong clock
            self.woken = 0

    def differs(self, before: Mapping[str, Any]) -> bool:
        """Return whether to write. If as many jobs were woken as have left, the count is the same: skip the write.

        If the count fell short, it only looks the same, as it is outdated. Then the write finds out the true count.
        """
        if self.short:
            return True
        data = self.to_data()
        if self.woken_at - before["woken_at"] < UNWRITTEN_FOR:
            data["woken_at"] = before["woken_at"]
        return data != before

    @property
    def idle(self) -> bool:
        return not (self.holders or self.woken or self.waiting)

    def due_at(self, now: Millis, before: Millis | None) -> Millis | None:
        if self.doubted_at:
            check = min(self.doubted_at, now) + CHECK_AFTER
            return check + -check % CHECK_STEP
        due = Slots.due_at(self, now, before)
        return due if due is not None or not self.woken else now + LOST_AFTER + 1

    def expires_at(self, now: Millis) -> Millis | None:
        return None if self.woken else Slots.expires_at(self, now)


State = Slots | Bucket | Turns

# -- as documents ------------------------------------------------------------------------------------------

RATES, FAIR = f"{Rate.kind}:", f"{Fair.kind}:"  # how the groups of their keys begin


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
