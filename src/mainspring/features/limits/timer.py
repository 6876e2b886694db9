"""Checks limits: wakes jobs whose turn it is, and repairs what a worker that died left behind.

A dead worker may leave behind: slots held by runs that are gone; jobs that are counted for a fair key as ready or
running and are not; a free slot for which no job was woken; jobs that it suspended without noting in the limit's
document that jobs wait. The last would wait for ever, since a limit that nothing waits for does not come due.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from mainspring.clock import Millis, to_datetime
from mainspring.errors import InvalidPayload
from mainspring.feature import Timer
from mainspring.features.limits.coordinator import gone, wake
from mainspring.features.limits.options import COLLECTION, AnyLimit, DeclaredLimits, Limit, Rate, wait_key
from mainspring.features.limits.storage import (
    CHECK_AFTER,
    FAIR,
    LOST_AFTER,
    UNUSED_RETENTION,
    Bucket,
    Slots,
    State,
    Turns,
    states_in,
    write_of,
    written,
)
from mainspring.job import Status
from mainspring.services import Services
from mainspring.stores.documents import Bundle, Document, Key, Write
from mainspring.stores.paging import pages
from mainspring.stores.protocol import Filter
from mainspring.timers import fire_planned, leave_to_newer

COUNT_EVERY: Millis = 5_000  # between two counts of the ready and running jobs of a fair task
ON_THE_WAY = 0.1  # seconds; usually the next job of a fair key starts within this time after the last one has ended
EMPTY_FOR: Millis = 600_000  # a limit that was empty for so long has not refused a job lately
MAX_TRIES = 10  # to repair documents that other processes change at the same time
ALL_WAITING = 1_000_000  # jobs to wake: more than ever wait
MAX_OUT = 20_000  # ready or running jobs of a fair task; if there are more, they are not counted by key
JOBS_PER_PAGE = 500
CLOCK_SKEW: Millis = 5_000  # a job may be due now although its time, by the store's clock, is slightly ahead


class LimitTimer(Timer):
    """The timer of the collection "limits"."""

    collection = COLLECTION

    def __init__(self, services: Services, declared: DeclaredLimits) -> None:
        self._services = services
        self._declared = declared
        self._out: dict[str, tuple[Millis, Counter[str] | None]] = {}  # group -> time and result of the last count

    async def fire(self, documents: Sequence[Document], now: Millis) -> Millis | None:
        """Check limits that have come due. A doubt about a fair task is left to programs that know this task."""
        states = states_in(documents)
        strange = [document for document in documents if document.key not in states]
        again = [await leave_to_newer(self._services, strange, now)] if strange else []
        others = {key for key, state in states.items() if self._is_for_others(key, state, now)}
        if 0 < len(others) < self.page_size:  # else limits that come due later would wait behind them
            states = {key: state for key, state in states.items() if key not in others}
            again.append(now + CHECK_AFTER)
        await self._look([document for document in documents if document.key in states], states, now)
        return min((moment for moment in again if moment is not None), default=None)

    def _is_for_others(self, key: Key, state: State, now: Millis) -> bool:
        is_new = isinstance(state, Turns) and state.is_doubtful(now) and now - state.doubted_at < COUNT_EVERY
        return is_new and not self._declared.fair_tasks(key.group.removeprefix(FAIR))

    async def _look(self, documents: Sequence[Document], states: Mapping[Key, State], now: Millis) -> None:
        await self._clear_doubts(states, now)
        busy = await self._busy({key for key, state in states.items() if has_stale_wakeups(state, now)}, now)
        for key, state in states.items():
            if isinstance(state, Turns) and key not in busy:
                state.give_up_woken(now)
        await self._wake_next(documents, states, now)

    async def _clear_doubts(self, states: Mapping[Key, State], now: Millis) -> None:
        """Check jobs that wait in fair keys: the process that enqueued them may have died before waking them.

        It may also have died after it counted jobs as ready, and before it inserted them. A key without ready or
        running jobs is checked twice: a job may have ended at this moment, and the next one is about to be woken.
        """
        doubtful = {key: turns for key, turns in states.items() if isinstance(turns, Turns) and turns.is_doubtful(now)}
        still = await self._none_out([key for key, state in doubtful.items() if state.woken])
        if still:
            await asyncio.sleep(ON_THE_WAY)
            still &= await self._none_out(still)
        for key, state in doubtful.items():
            state.clear_doubt(none_out=key in still)

    async def _none_out(self, keys: Collection[Key]) -> set[Key]:
        """Return the fair keys of which no job is ready or running, as far as this process can tell."""
        now = self._services.store.clock.now()
        groups = {key.group for key in keys if self._declared.fair_tasks(key.group.removeprefix(FAIR))}
        out = {group: await self._out_now(group, now) for group in groups}
        return {key for key in keys if (found := out.get(key.group)) is not None and not found[key.id]}

    async def recover(self) -> None:
        """Check every limit that a worker which died may have left in a wrong state."""
        await self._look_at_all(recount=True)

    async def refresh(self) -> None:
        """Look for jobs that wait unnoticed, in case the worker that should have recovered died as well.

        Fair keys are not counted again: in normal operation, a count may be ahead of jobs that are about to be woken.
        """
        await self._look_at_all(recount=False)

    async def clock_went_back(self, by: Millis) -> None:
        del by
        await fire_planned(self._services, self)

    async def _look_at_all(self, *, recount: bool) -> None:
        async for page in pages(self._services.store, COLLECTION, None, size=self.page_size):
            await self._recover(page, recount=recount)

    async def _recover(self, documents: Sequence[Document], *, recount: bool) -> None:
        for _ in range(MAX_TRIES):  # other processes may change them at the same time
            now = self._services.store.clock.now()
            found = states_in(documents)
            known = (document for document in documents if document.key in found)
            doubtful = [document for document in known if may_be_wrong(document, found[document.key], now)]
            if not doubtful:
                return
            states = {document.key: found[document.key] for document in doubtful}
            if recount:
                await self._recount(states, now)
            for state in states.values():
                state.waiting = True  # if no job waits after all, `wake` notes that
            accepted = await self._wake_next(doubtful, states, now)
            documents = await self._services.store.documents([key for key in states if key not in accepted])

    # -- numbers that are set at run time -------------------------------------------------------------

    async def renumber(self, name: str, limits: Sequence[AnyLimit]) -> None:
        """Write new numbers into the limit and the rate of this name, and wake jobs that may start by them.

        If the name has no limit any more, wake all jobs that wait for it. A process that has not heard of the change
        yet may refuse jobs by the old number, and write it again. When it hears of the change, it comes here, too.
        """
        for kind in (Limit.kind, Rate.kind):
            by_keys = {limit.key is not None: limit for limit in limits if limit.kind == kind}
            async for page in pages(self._services.store, COLLECTION, f"{kind}:{name}", size=self.page_size):
                if by_keys:
                    await self._renumber(page, by_keys)
                elif waiting := [key for key, state in states_in(page).items() if state.waiting]:
                    await self._services.store.wake(dict.fromkeys(map(wait_key, waiting), ALL_WAITING))

    async def _renumber(self, documents: Sequence[Document], by_keys: Mapping[bool, AnyLimit]) -> None:
        for _ in range(MAX_TRIES):  # other processes may change them at the same time
            now, states = self._services.store.clock.now(), dict[Key, State]()
            for key, state in states_in(documents).items():
                limit = by_keys.get(bool(key.id))
                if limit is not None and give_number(state, limit, now):
                    states[key] = state
            if not states:
                return
            accepted = await self._wake_next([each for each in documents if each.key in states], states, now)
            documents = await self._services.store.documents([key for key in states if key not in accepted])

    async def _recount(self, states: Mapping[Key, State], now: Millis) -> None:
        """Count again, for fair keys, the jobs that are really ready or running."""
        turns = {key: state for key, state in states.items() if isinstance(state, Turns) and state.woken}
        out = {group: await self._out_now(group, now) for group in {key.group for key in turns}}
        for key, state in turns.items():
            if (found := out[key.group]) is not None:
                state.woken = min(state.woken, max(0, found[key.id] - len(state.holders)))

    async def _wake_next(self, documents: Sequence[Document], states: Mapping[Key, State], now: Millis) -> set[Key]:
        """Free the slots of runs that are gone and wake jobs for all free slots; return the limits written."""
        holders = {holder for state in states.values() if isinstance(state, Slots) for holder in state.holders.items()}
        dead = await gone(self._services.store, holders)
        wakeups: dict[Key, int] = {}
        writes: list[Write] = []
        for document in documents:
            state = states[document.key]
            wakeups[document.key] = (
                next_turn(state, now) if isinstance(state, Bucket) else empty_places(state, dead, now)
            )
            writes.append(write_of(document.key, state, document, now, anew=True))
        answers = await self._services.store.write([Bundle((write,)) for write in writes])
        accepted = [write for write, answer in zip(writes, answers, strict=True) if answer is not None]
        ours = {write.key: after for write in accepted if (after := written(write)) is not None}
        if wanted := {key: number for key, number in wakeups.items() if number and key in ours}:
            await wake(self._services.store, wanted, ours, now)
        return {write.key for write in accepted}

    async def _busy(self, keys: Collection[Key], now: Millis) -> set[Key]:
        """Return the fair keys of which jobs are ready or running: these may be the woken ones, which will end."""
        out = {group: await self._out_lately(group, now) for group in {key.group for key in keys}}
        return {key for key in keys if (found := out[key.group]) is None or found[key.id]}

    async def _out_lately(self, group: str, now: Millis) -> Counter[str] | None:
        """Count once for many documents. Within COUNT_EVERY, nothing changes for keys whose wake-ups are this old."""
        looked_at, found = self._out.get(group, (-COUNT_EVERY, None))
        if not 0 <= now - looked_at < COUNT_EVERY:
            found = await self._out_now(group, now)
            self._out[group] = now, found
        return found

    async def _out_now(self, group: str, now: Millis) -> Counter[str] | None:
        """Count the ready or running jobs of a fair task by key. Return None if there are too many to look through."""
        name = group.removeprefix(FAIR)
        tasks = self._declared.fair_tasks(name)
        ready = Filter(statuses=(Status.PENDING,), tasks=tasks or (name,), due_before=to_datetime(now + CLOCK_SKEW))
        running = Filter(statuses=(Status.RUNNING,), tasks=tasks or (name,))
        found: dict[str, str] = {}
        for where in (ready, running):  # in this order, a job claimed in between is seen twice rather than missed
            if await self._services.store.count(where) > (MAX_OUT if tasks else 0):
                return None
            found |= {job_id: key async for job_id, key in self._keys(where)}
        return Counter(found.values())

    async def _keys(self, where: Filter) -> AsyncIterator[tuple[str, str]]:
        cursor: str | None = None
        while True:
            page = await self._services.store.find(where, limit=JOBS_PER_PAGE, cursor=cursor)
            for job in page.jobs:
                with contextlib.suppress(InvalidPayload):
                    yield job.id, self._declared.turn(job.task, json.dumps(job.payload)).key
            if (cursor := page.cursor) is None:
                return


def give_number(state: State, limit: AnyLimit, now: Millis) -> bool:
    """Set the number of a limit or rate; return whether that may let jobs start.

    The number may have been written before, by another process that has heard of the change. The jobs that it woke then
    were perhaps refused here by the old number.
    """
    before = state.to_data()
    if isinstance(state, Bucket) and isinstance(limit, Rate):
        state.fill(now)
        state.drip, state.burst = limit.per_milli, limit.most
        return state.waiting or (state.drip, state.burst) != (before["drip"], before["burst"])
    if isinstance(state, Slots) and isinstance(limit, Limit):
        state.size = limit.size
        return (state.waiting and state.room > 0) or bool(state.size != before["size"])
    return False


def may_be_wrong(document: Document, state: State, now: Millis) -> bool:
    """Return whether a worker that died in the last minutes may have left this limit in a wrong state.

    A limit refuses jobs only while it is full. So the documents of many keys, which are kept for an hour only to be
    shown, need no repair.
    """
    if isinstance(state, (Bucket, Turns)) or state.holders or state.waiting or document.expires_at is None:
        return True
    return now - (document.expires_at - UNUSED_RETENTION) < EMPTY_FOR


def has_stale_wakeups(state: State, now: Millis) -> bool:
    return isinstance(state, Turns) and state.woken > 0 and abs(now - state.woken_at) > LOST_AFTER


def next_turn(bucket: Bucket, now: Millis) -> int:
    bucket.fill(now)
    return bucket.wake(now) if bucket.waiting else 0


def empty_places(slots: Slots, dead: set[tuple[str, int]], now: Millis) -> int:
    slots.drop(dead & set(slots.holders.items()))
    if isinstance(slots, Turns):
        return slots.wake(slots.room, now) if slots.waiting else 0
    return slots.room if slots.waiting else 0
