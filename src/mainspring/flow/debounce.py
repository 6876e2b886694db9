"""A newer enqueue takes the place of the one that waits, or is left out.

Which job waits under a key is a document. Whoever enqueues changes that job, if it still waits; else he writes the
document anew, together with a new job, if nobody was quicker. What had begun by then is let go on; but if it fails, its
retry gives way to the newer job, so that an old payload never has the last word.
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
from mainspring.flow.resumption import goes_on
from mainspring.guards import Guarded, Refusal, refuse
from mainspring.job import Inserted, Move, NewJob, Status
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Write
from mainspring.stores.protocol import Action, By, Edit, Filter

if TYPE_CHECKING:
    from mainspring.app import Mainspring

COLLECTION = "newest"
OPTION = "newest"
KEPT: Millis = 30 * 86_400_000  # beyond the time at which its job is due
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
    per: Length  # from its enqueue; longer if it is not finished by then

    def __post_init__(self) -> None:
        check_key(self.key, "throttle")
        if duration(self.per) <= 0:
            msg = f"throttle {self.key!r}: per is {self.per}; it is a length of time"
            raise ConfigurationError(msg)

    @property
    def dedupe_key(self) -> str:
        return f"throttle:{self.key}"


@dataclass(frozen=True, slots=True)
class Debounce:
    """Once nothing more has come for a while: `using(debounce=Debounce("index:7", wait=5, max_wait=60))`."""

    key: str
    wait: Length  # each enqueue puts the job off by this
    max_wait: Length | None = None  # but not beyond this after the first; None: as long as there are more

    def __post_init__(self) -> None:
        check_key(self.key, "debounce")
        if duration(self.wait) <= 0:
            msg = f"debounce {self.key!r}: wait is {self.wait}; it is a length of time"
            raise ConfigurationError(msg)
        if self.max_wait is not None and duration(self.max_wait) < duration(self.wait):
            msg = f"debounce {self.key!r}: max_wait is {self.max_wait}, which is less than wait, {self.wait}"
            raise ConfigurationError(msg)

    def delay(self, first_at: Millis, now: Millis) -> Millis:
        wait = duration(self.wait)
        return wait if self.max_wait is None else max(0, min(wait, first_at + duration(self.max_wait) - now))


@dataclass(frozen=True, slots=True)
class Newest:
    """Under a key: the newest job, and since when enqueues have met it."""

    job_id: str
    first_at: Millis

    @classmethod
    def read(cls, document: Document) -> Newest:
        return cls(**json.loads(document.data))

    def to_json(self) -> str:
        return json.dumps({"job_id": self.job_id, "first_at": self.first_at})


class Seat:
    """The place of the newest job under a key."""

    def __init__(self, app: Mainspring, task: str, key: str) -> None:
        self._app = app
        self._place = Key(COLLECTION, task, key)

    async def put(self, job: NewJob, debounce: Debounce | None = None) -> Inserted:
        """Change the job that waits, or make this one the newest."""
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
        """False: it waits no more. One that failed waits too, but is left to its history, and gives way by itself."""
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
        """Whether the job that we changed is the newest: else it may give way to another, and our change with it."""
        if found.expires_at is not None and found.expires_at - now < KEPT // 2:
            again = Write(self._place, found.data, expected=found.version, expires_at=due(job, now) + KEPT)
            return (await self._app.store.write([Bundle((again,))]))[0] is not None
        current = await self._look()
        return current is not None and current.version == found.version

    def _changed(self, found: Document, job: NewJob) -> Inserted:
        job_id = Newest.read(found).job_id
        self._app.bus.emit(JobDeduplicated(job_id=job_id, task=job.task, queue=job.queue, dedupe_key=self._place.id))
        return Inserted(job_id, created=False)

    async def _take(self, found: Document | None, job: NewJob, now: Millis) -> Inserted | None:
        """None: somebody else was quicker."""
        expected = ABSENT if found is None else found.version
        data = Newest(job.id, now).to_json()
        write = Write(self._place, data, expected=expected, expires_at=due(job, now) + KEPT)
        (inserted,) = await self._app.store.write([Bundle((write,), (job,))])
        if inserted is None:
            return None
        self._app.announce([job], inserted)
        return inserted[0]


def due(job: NewJob, now: Millis) -> Millis:
    return now + job.delay if job.run_at is None else max(now, job.run_at)


class NewestOnly:
    """A job that had its turn before gives way to the newer one of its key."""

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
        """Nothing was given out."""
