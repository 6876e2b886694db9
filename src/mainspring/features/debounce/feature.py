"""A newer enqueue replaces the job that waits (debounce), or is dropped (throttle).

A document says which job is the newest of a key. An enqueue changes that job if it still waits. Otherwise it inserts a
new job together with a new version of the document, unless another process was quicker. A job that had started by then
goes on. But if it fails, its retry gives way to the newer job, so that an old payload never comes last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainspring import names
from mainspring.clock import Length, Millis, duration, shown
from mainspring.errors import ConfigurationError
from mainspring.events import JobDeduplicated
from mainspring.features.resumption import goes_on
from mainspring.guards import Guarded, Refusal, refuse
from mainspring.job import Inserted, Move, NewJob, Status
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Write
from mainspring.stores.protocol import Action, By, Edit, Filter

if TYPE_CHECKING:
    from mainspring.app import Mainspring

COLLECTION = "newest"
OPTION = "newest"
KEY_RETENTION: Millis = 30 * 86_400_000  # how long a document is kept after its job is due
LONGEST_KEY = names.LONGEST_KEY
BY = By("mainspring", audited=False)


def check_key(key: Any, what: str) -> None:
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        msg = f"{what} needs a key, a text of up to {LONGEST_KEY} characters, not {shown(key)}"
        raise ConfigurationError(msg)
    names.check_key(key, f"the key of {what}")


@dataclass(frozen=True, slots=True)
class Throttle:
    """At most one job per key and window: `using(throttle=Throttle("report:7", per=60))`."""

    key: str
    per: Length  # counted from the job's enqueue; longer if the job is not finished by then

    def __post_init__(self) -> None:
        check_key(self.key, "throttle")
        if duration(self.per) <= 0:
            msg = f"throttle {self.key!r}: per is {self.per}; it must be a length of time above 0"
            raise ConfigurationError(msg)

    @property
    def dedupe_key(self) -> str:
        return f"throttle:{self.key}"


@dataclass(frozen=True, slots=True)
class Debounce:
    """Run once nothing more has come for a while: `using(debounce=Debounce("index:7", wait=5, max_wait=60))`."""

    key: str
    wait: Length  # each enqueue puts the job off by this
    max_wait: Length | None = None  # but not beyond this after the first enqueue; None: without end

    def __post_init__(self) -> None:
        check_key(self.key, "debounce")
        if duration(self.wait) <= 0:
            msg = f"debounce {self.key!r}: wait is {self.wait}; it must be a length of time above 0"
            raise ConfigurationError(msg)
        if self.max_wait is not None and duration(self.max_wait) < duration(self.wait):
            msg = f"debounce {self.key!r}: max_wait is {self.max_wait}, which is less than wait, {self.wait}"
            raise ConfigurationError(msg)

    def delay(self, first_at: Millis, now: Millis) -> Millis:
        wait = duration(self.wait)
        return wait if self.max_wait is None else max(0, min(wait, first_at + duration(self.max_wait) - now))


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest job of a key, and when the first enqueue that it stands for came."""

    job_id: str
    first_at: Millis

    @classmethod
    def read(cls, document: Document) -> Newest:
        return cls(**json.loads(document.data))

    def to_json(self) -> str:
        return json.dumps({"job_id": self.job_id, "first_at": self.first_at})


class Seat:
    """The document that says which job is the newest of a key."""

    def __init__(self, app: Mainspring, task: str, key: str) -> None:
        self._app = app
        self._place = Key(COLLECTION, task, key)

    async def put(self, job: NewJob, debounce: Debounce | None = None) -> Inserted:
        """Change the job that waits, or insert this one as the newest."""
        while True:
            now, found = self._app.store.clock.now(), await self._look()
            if found is not None and await self._change_waiting(found, job, debounce, now):
                if await self._is_still(found, job, now):
                    return self._changed(found, job)
            elif (inserted := await self._take(found, job, now)) is not None:
                return inserted

    async def _look(self) -> Document | None:
        return next(iter(await self._app.store.documents([self._place])), None)

    async def _change_waiting(self, found: Document, job: NewJob, debounce: Debounce | None, now: Millis) -> bool:
        """Change the job if it waits; return whether it did. A failed job is left alone: it gives way by itself."""
        known = Newest.read(found)
        delay = job.delay if debounce is None else debounce.delay(known.first_at, now)
        edit = Edit(
            payload=job.payload,
            priority=job.priority,
            queue=job.queue,
            run_at=job.run_at,
            delay=delay if job.run_at is None else None,
        )
        where = Filter(ids=(known.job_id,), statuses=(Status.PENDING,))
        return bool((await self._app.store.change(Action.EDIT, where, BY, edit=edit)).ids)

    async def _is_still(self, found: Document, job: NewJob, now: Millis) -> bool:
        """Return whether the changed job is still the newest: if not, it may give way, and our change with it."""
        if found.expires_at is not None and found.expires_at - now < KEY_RETENTION // 2:
            again = Write(self._place, found.data, expected=found.version, expires_at=due(job, now) + KEY_RETENTION)
            return (await self._app.store.write([Bundle((again,))]))[0] is not None
        current = await self._look()
        return current is not None and current.version == found.version

    def _changed(self, found: Document, job: NewJob) -> Inserted:
        job_id = Newest.read(found).job_id
        self._app.bus.emit(JobDeduplicated(job_id=job_id, task=job.task, queue=job.queue, dedupe_key=self._place.id))
        return Inserted(job_id, created=False)

    async def _take(self, found: Document | None, job: NewJob, now: Millis) -> Inserted | None:
        """Insert the job as the newest; return None if another process was quicker."""
        expected = ABSENT if found is None else found.version
        data = Newest(job.id, now).to_json()
        write = Write(self._place, data, expected=expected, expires_at=due(job, now) + KEY_RETENTION)
        (inserted,) = await self._app.store.write([Bundle((write,), (job,))])
        if inserted is None:
            return None
        self._app.announce([job], inserted)
        return inserted[0]


def due(job: NewJob, now: Millis) -> Millis:
    return now + job.delay if job.run_at is None else max(now, job.run_at)


class NewestOnly:
    """The guard that makes a job which had its turn before give way to the newer one of its key."""

    option = OPTION

    def __init__(self, app: Mainspring) -> None:
        self._app = app

    async def admit(self, jobs: Sequence[Guarded], now: Millis) -> Mapping[str, Refusal]:
        del now
        again = [job for job in jobs if job.claim.token > 1]
        if not again:
            return {}
        places = {job.claim.id: Key(COLLECTION, job.claim.task, job.option) for job in again}
        documents = await self._app.store.documents(list(set(places.values())))
        newest = {document.key: Newest.read(document).job_id for document in documents}
        refused: dict[str, Refusal] = {}
        for claim in (job.claim for job in again):
            other = newest.get(places[claim.id], claim.id)
            if other != claim.id and not await goes_on(self._app.store, claim):
                refused[claim.id] = refuse(claim, Move.CANCEL, reason=f"replaced by the newer job {other}")
        return refused

    async def ended(self, jobs: Sequence[Guarded]) -> None:
        """Do nothing: this guard hands nothing out."""
