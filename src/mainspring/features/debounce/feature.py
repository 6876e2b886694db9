"""A newer enqueue replaces the job that waits.

A document says which job is the newest of a key. An enqueue changes that job if it still waits. Otherwise it inserts a
new job together with a new version of the document, unless another process was quicker. A job that had started by then
goes on. But if it fails, its retry gives way to the newer job, so that an old payload never comes last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainspring.clock import Millis
from mainspring.feature import Candidate, Enqueue, Feature, Refusal, refuse
from mainspring.features.debounce.options import OPTION, Debounce
from mainspring.features.debounce.storage import KEY_RETENTION, Newest, due, key_of, write_newest
from mainspring.features.resumption import goes_on
from mainspring.job import Inserted, Move, NewJob, Status
from mainspring.pipeline import Pipeline
from mainspring.projects import key_in
from mainspring.services import Services
from mainspring.stores.documents import Bundle, By, Document, Key, Write
from mainspring.stores.protocol import Action, Edit, Filter

BY = By("mainspring", audited=False)


class DebounceFeature(Feature):
    """Lets only the newest job of a key run."""

    option = OPTION

    def __init__(self, services: Services, pipeline: Pipeline) -> None:
        self._services = services
        self._pipeline = pipeline

    # -- at the enqueue -----------------------------------------------------------------------------

    async def put(self, job: NewJob, key: str, debounce: Debounce | None = None) -> Inserted:
        """Change the job that waits under the key, or insert this one as the newest."""

        async def write(jobs: list[NewJob]) -> list[Inserted]:
            [prepared] = jobs
            place = key_of(prepared.task, key_in(prepared.queue, key))
            return [await self._change_or_insert(place, prepared, debounce)]

        return (await self._pipeline.commit(Enqueue([job]), write))[0]

    async def _change_or_insert(self, place: Key, job: NewJob, debounce: Debounce | None) -> Inserted:
        while True:
            now, found = self._services.store.clock.now(), await self._look(place)
            if found is not None and await self._change_waiting(found, job, debounce, now):
                if await self._is_still(place, found, job, now):
                    return Inserted(Newest.read(found).job_id, created=False)
            else:
                bundle = Bundle((write_newest(place, found, job, now),), (job,))
                (inserted,) = await self._services.store.write([bundle])
                if inserted is not None:
                    return inserted[0]

    async def _look(self, place: Key) -> Document | None:
        return next(iter(await self._services.store.documents([place])), None)

    async def _change_waiting(self, found: Document, job: NewJob, debounce: Debounce | None, now: Millis) -> bool:
        """Change the job if it waits; return whether it did. A retrying job is left alone: it gives way by itself."""
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
        return bool((await self._services.store.change(Action.EDIT, where, BY, edit=edit)).ids)

    async def _is_still(self, place: Key, found: Document, job: NewJob, now: Millis) -> bool:
        """Return whether the changed job is still the newest. If not, it may be cancelled, and the change is lost."""
        if found.expires_at is not None and found.expires_at - now < KEY_RETENTION // 2:
            again = Write(place, found.data, expected=found.version, expires_at=due(job, now) + KEY_RETENTION)
            return (await self._services.store.write([Bundle((again,))]))[0] is not None
        current = await self._look(place)
        return current is not None and current.version == found.version

    # -- between claim and start --------------------------------------------------------------------

    async def admit(self, jobs: Sequence[Candidate], now: Millis) -> Mapping[str, Refusal]:
        """Refuse a job that had its turn before, if there is a newer one of its key."""
        del now
        again = [job for job in jobs if job.claim.token > 1]
        if not again:
            return {}
        places = {job.claim.id: key_of(job.claim.task, key_in(job.claim.queue, job.option)) for job in again}
        documents = await self._services.store.documents(list(set(places.values())))
        newest = {document.key: Newest.read(document).job_id for document in documents}
        refused: dict[str, Refusal] = {}
        for claim in (job.claim for job in again):
            other = newest.get(places[claim.id], claim.id)
            if other != claim.id and not await goes_on(self._services.store, claim):
                refused[claim.id] = refuse(claim, Move.CANCEL, reason=f"replaced by the newer job {other}")
        return refused
