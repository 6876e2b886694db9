"""Gives jobs their slots and tokens: pure functions decide, compare-and-set writes.

All requests of one moment are decided in one round: one read (none if the documents are known and no other process has
written since), one write, and one wake-up of the jobs that wait.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mainspring.clock import Millis
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.features.limits.fair_share import FairShare
from mainspring.features.limits.options import AnyLimit, Fair, Ticket, wait_key
from mainspring.features.limits.rules import (
    Acquire,
    LimitDecision,
    LimitRequest,
    Prefetch,
    Release,
    Wait,
    cases,
    decide,
    state_of,
    wake_next,
)
from mainspring.features.limits.storage import FAIR, Bucket, Slots, State, Turns, state_in, write_of, written
from mainspring.features.limits.token_cache import TOKENS_AHEAD, USABLE_FOR, Portion, TokenCache, most_drawn, returnable
from mainspring.job import Status
from mainspring.json_text import read_object
from mainspring.log import get_log
from mainspring.stores.documents import Bundle, Document, Key, Write
from mainspring.stores.protocol import Store

log = get_log("mainspring.limits")

MAX_DOCUMENTS = 50  # in one bundle
MAX_CASES = 200  # in one write
MAX_KNOWN = 10_000  # documents kept in memory
MAX_TRIES = 50  # of a round, before it gives up
MAX_NOTE_TRIES = 5  # to note that fewer jobs were woken than planned
RETRY_PAUSE = 0.004  # seconds; multiplied by the number of the try and a random factor below 1
WAKE_ALL_EVERY = 10.0  # seconds after which all free slots of a limit are offered again, as a wake-up may be lost
CHECK_HOLDERS_EVERY = 1.0  # seconds between two checks whether the holders of a full limit still run


class Submission(NamedTuple):
    """What one caller of `settle` wants, and the answer it waits for."""

    requests: Sequence[LimitRequest]
    answer: asyncio.Future[LimitDecision]


@dataclass(slots=True, eq=False)
class Case:
    """Requests that are decided together, and the result."""

    requests: list[LimitRequest]
    decision: LimitDecision
    states: Mapping[Key, State]  # after the decision
    writes: tuple[Write, ...]
    drawn: Mapping[Key, int]  # tokens taken in advance


class LimitCoordinator:
    """Decides all requests of one process; belongs to one event loop."""

    def __init__(self, store: Store, current: Callable[[AnyLimit], AnyLimit] | None = None) -> None:
        self.store = store
        self._current = current  # returns a limit with the number that counts now
        self._fair_share = FairShare()
        self._submissions: list[Submission] = []
        self._round: asyncio.Task[None] | None = None
        self._known: dict[Key, Document] = {}  # as this process last read or wrote them
        self._token_caches: dict[Key, TokenCache] = {}
        self._drawing: set[Key] = set()
        self._left_over: dict[Key, list[Portion]] = {}  # tokens that go back with the next write
        self._returning: set[Key] = set()  # a check for unused tokens is planned
        self._none_waits: dict[Key, Millis] = {}  # the `noted_at` of the state in which no job was found waiting
        self._looked: dict[Key, float] = {}  # when the holders were last checked
        self._woken_at: dict[Key, float] = {}  # when jobs were last woken
        self._gone: dict[Key, set[tuple[str, int]]] = {}  # holders that do not run any more
        self._owed: Counter[Key] = Counter()  # jobs still to be woken
        self._random = random.Random()  # noqa: S311 - pauses

    def admit_at_once(self, tickets: Sequence[Ticket], number: int) -> int:
        """Return how many of `number` jobs with these tickets can start with tokens taken in advance."""
        now = self._time()
        token_caches = [(ticket, self._token_caches.get(ticket.document)) for ticket in tickets]
        number = min(
            number, *(0 if token_cache is None else token_cache.tokens(now) for _, token_cache in token_caches)
        )
        for ticket, token_cache in token_caches:
            if number and token_cache is not None:
                token_cache.take(number)
                if token_cache.is_low(now):
                    self._draw(ticket, token_cache)
        return number

    def _draw(self, ticket: Ticket, token_cache: TokenCache) -> None:
        """Take more tokens in the background. Jobs that find none meanwhile take their own by `draw`."""
        if ticket.document not in self._drawing:
            self._drawing.add(ticket.document)
            self._submit([Prefetch((ticket,), token_cache.used)])

    async def draw(self, wanted: Mapping[tuple[Ticket, ...], int]) -> None:
        """Take a token for each of these jobs, as far as there are any, and some more for coming jobs."""
        await self.settle([Prefetch((ticket,), number) for tickets, number in wanted.items() for ticket in tickets])

    async def settle(self, requests: Sequence[LimitRequest]) -> LimitDecision:
        """Grant what can be granted. The answer may contain the requests of other callers, too.

        Raise StoreError if the store does not answer. Then the outcome is unknown; if a slot was granted, a later check
        finds that no run uses it.
        """
        return await asyncio.shield(self._submit(requests).answer)

    def _submit(self, requests: Sequence[LimitRequest]) -> Submission:
        submission = Submission(requests, asyncio.get_running_loop().create_future())
        submission.answer.add_done_callback(seen)
        self._submissions.append(submission)
        if self._round is None or self._round.done():
            self._round = asyncio.create_task(self._rounds(), name="mainspring-limits")
        return submission

    async def settled(self) -> None:
        """Wait until no request is under way."""
        if self._round is not None:
            await asyncio.wait([self._round])

    async def _rounds(self) -> None:
        while self._submissions:
            submissions, self._submissions = self._submissions, []
            try:
                decision = await self._decide(
                    [request for submission in submissions for request in submission.requests]
                )
            except BaseException as error:
                for submission in submissions:
                    submission.answer.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            else:
                for submission in submissions:
                    submission.answer.set_result(decision)
            self._drawing.clear()
            await self._wake()

    # -- one round ------------------------------------------------------------------------------

    async def _decide(self, requests: list[LimitRequest]) -> LimitDecision:
        decision, made = LimitDecision(), cases(requests, MAX_DOCUMENTS)
        for begin in range(0, len(made), MAX_CASES):
            await self._decide_cases(made[begin : begin + MAX_CASES], decision)
        return decision

    async def _decide_cases(self, left: list[list[LimitRequest]], decision: LimitDecision) -> None:
        looks = any(needs_current_state(request) for requests in left for request in requests)
        for number in range(1, MAX_TRIES + 1):
            left = await self._try(left, decision, trusted=not looks and number == 1)
            if not left:
                return
            await asyncio.sleep(self._random.random() * RETRY_PAUSE * number if number > 1 else 0)
        msg = f"another process changed the limit first, {MAX_TRIES} times in a row"
        raise StoreUnavailable(msg)

    async def _try(
        self, left: list[list[LimitRequest]], decision: LimitDecision, *, trusted: bool
    ) -> list[list[LimitRequest]]:
        """Return what is left to decide. Only a refusal needs the current state: a write detects an outdated one."""
        tickets = {ticket.document: ticket for requests in left for request in requests for ticket in request.tickets}
        self._forget_if_many()  # before reading: what is not known when deciding would be taken for absent
        await self._read([key for key in tickets if not trusted or key not in self._known])
        if any(isinstance(ticket.limit, Fair) for ticket in tickets.values()):
            await self._fair_share.look(self.store)
        self._empty_caches(left)
        now = self.store.clock.now()
        made = [self._case(requests, tickets, now) for requests in left]
        refused = [case for case in made if case.decision.refused]
        freed = set() if trusted else await self._look_for_gone(refused)
        doubted = {case for case in refused if trusted or not freed.isdisjoint(case.states)}
        clear = [case for case in made if case not in doubted]
        again = await self._write(clear)
        for case in clear:
            if case not in again:
                self._accept(case, decision)
        return [case.requests for case in (*doubted, *again)]

    def _case(self, requests: list[LimitRequest], tickets: Mapping[Key, Ticket], now: Millis) -> Case:
        own = {ticket.document for request in requests for ticket in request.tickets}
        states = {key: self._state(tickets[key], now) for key in own}
        before = {key: state.to_data() for key, state in states.items()}
        freed = {key: self._drop_gone(key, state) for key, state in states.items() if key in self._gone}
        decision = decide(requests, states, now)
        self._wake_more(decision, states, freed)
        wake_next(decision, states, now, known=self._none_waits)
        drawn = draw_ahead(states, decision.taken, requests)
        changed = [(key, state) for key, state in states.items() if state.differs(before[key])]
        writes = tuple(write_of(key, state, self._known.get(key), now) for key, state in changed)
        return Case(requests, decision, states, writes, drawn)

    def _drop_gone(self, key: Key, state: State) -> int:
        return state.drop(self._gone[key]) if isinstance(state, Slots) else 0

    def _state(self, ticket: Ticket, now: Millis) -> State:
        if self._current is not None and (now_is := self._current(ticket.limit)) is not ticket.limit:
            ticket = replace(ticket, limit=now_is)
        known, limit = self._known.get(ticket.document), ticket.limit
        size = (
            self._fair_share.size(limit.name or "", limit, ticket.key, self._time()) if isinstance(limit, Fair) else 0
        )
        data = None if known is None else read_object(known.data) or None  # an unreadable document is replaced
        state = state_of(ticket, data, now, size)
        if isinstance(state, Bucket):
            state.put_back(returnable(self._left_over.get(ticket.document, ()), self._time()))
        return state

    def _empty_caches(self, left: Iterable[Iterable[LimitRequest]]) -> None:
        """Move stale tokens, and all tokens of limits that jobs ask for, out of the caches.

        They go back to the bucket with the next write. No job may use them while requests for them are being decided.
        """
        for request in (
            request for requests in left for request in requests if isinstance(request, (Acquire, Prefetch))
        ):
            for key in (ticket.document for ticket in request.tickets):
                if (token_cache := self._token_caches.get(key)) is not None:
                    unused = token_cache.give_back_stale() if isinstance(request, Prefetch) else token_cache.empty()
                    self._left_over.setdefault(key, []).extend(unused)

    def _time(self) -> float:
        return self.store.clock.monotonic()

    def _wake_more(self, decision: LimitDecision, states: Mapping[Key, State], freed: Mapping[Key, int]) -> None:
        """Wake jobs for the slots of dead runs and, now and then, for all free slots, as a wake-up may be lost."""
        for key, state in states.items():
            if isinstance(state, Slots) and not isinstance(state, Turns) and state.waiting and state.room:
                if self._time() - self._woken_at.get(key, 0) > WAKE_ALL_EVERY:
                    decision.wakeups[key] = state.room
                elif number := freed.get(key, 0):
                    decision.wakeups[key] = min(state.room, decision.wakeups[key] + number)

    async def _look_for_gone(self, refused: Sequence[Case]) -> set[Key]:
        """Find holders that do not run any more; return the limits that they block."""
        now, holders = self._time(), dict[Key, set[tuple[str, int]]]()
        for case in refused:
            for key in {ticket.document for ticket in case.decision.refused.values()}:
                state = case.states[key]
                if isinstance(state, Slots) and now - self._looked.get(key, 0) > CHECK_HOLDERS_EVERY:
                    self._looked[key] = now
                    holders[key] = set(state.holders.items())
        dead = await gone(self.store, set().union(*holders.values())) if holders else set()
        self._gone |= {key: own & dead for key, own in holders.items()}
        return {key for key, own in holders.items() if own & dead}

    async def _read(self, keys: Collection[Key]) -> None:
        if not keys:
            return
        for key in keys:
            self._known.pop(key, None)
        self._known |= {document.key: document for document in await self.store.documents(list(keys))}

    def _forget_if_many(self) -> None:
        """Limit the memory used. Tokens that are forgotten can be taken again."""
        if len(self._known) > MAX_KNOWN:
            for memory in (self._known, self._looked, self._woken_at, self._gone, self._token_caches, self._none_waits):
                memory.clear()

    async def _write(self, made: Sequence[Case]) -> set[Case]:
        """Write the cases; return those that must be decided again, because other processes were quicker."""
        asked = [case for case in made if case.writes]
        answers = await self.store.write([Bundle(case.writes) for case in asked]) if asked else []
        return {case for case, answer in zip(asked, answers, strict=True) if answer is None}

    def _accept(self, case: Case, decision: LimitDecision) -> None:
        decision.add(case.decision)
        now = self._time()
        for write in case.writes:
            self._know(write.key, written(write))
            if write.key in case.drawn:
                self._left_over.pop(write.key, None)
                self._token_caches.setdefault(write.key, TokenCache()).add(case.drawn[write.key], now)
                self._plan_return(write.key, case)
        self._owed.update({key: number for key, number in case.decision.wakeups.items() if number})

    def _plan_return(self, key: Key, case: Case) -> None:
        """Plan to return tokens that this process does not use, while that is possible: others may need them."""
        if case.drawn[key] and key not in self._returning:
            self._returning.add(key)
            ticket = next(ticket for request in case.requests for ticket in request.tickets if ticket.document == key)
            asyncio.get_running_loop().call_later(USABLE_FOR, self._return, ticket)

    def _return(self, ticket: Ticket) -> None:
        key = ticket.document
        self._returning.discard(key)
        token_cache = self._token_caches.get(key)
        if token_cache is None:
            return
        left = token_cache.tokens(self._time())
        if returnable(token_cache.stale, self._time()):
            self._submit([Prefetch((ticket,), 0)])
        elif left:
            self._returning.add(key)
            asyncio.get_running_loop().call_later(USABLE_FOR / 4, self._return, ticket)

    # -- waking jobs that wait --------------------------------------------------------------------

    async def _wake(self) -> None:
        """Wake jobs. If the store does not answer, the next round retries; without one, the timer finds free slots."""
        if not self._owed:
            return
        wakeups, now = dict(self._owed), self.store.clock.now()
        self._owed.clear()
        self._woken_at |= dict.fromkeys(wakeups, self._time())
        try:
            missed = await wake(self.store, wakeups, self._known, now)
        except StoreError as error:
            self._owed.update(wakeups)
            log.warning("wakeup_failed", limits=len(wakeups), error=str(error))
            return
        for key, document in missed.items():
            self._remember_none_waits(key, document)

    def _remember_none_waits(self, key: Key, document: Document | None) -> None:
        """Remember that no job waits, until another process notes in the document that one does."""
        state = state_in(self._known[key])
        if isinstance(state, Turns):
            self._none_waits[key] = state.noted_at
        self._know(key, document)

    def _know(self, key: Key, document: Document | None) -> None:
        if document is None:
            self._known.pop(key, None)
        else:
            self._known[key] = document


def seen(answer: asyncio.Future[LimitDecision]) -> None:
    """Fetch the exception, so that asyncio does not warn about it if the caller was cancelled meanwhile."""
    if not answer.cancelled():
        answer.exception()


def draw_ahead(states: Mapping[Key, State], taken: Counter[Key], requests: Iterable[LimitRequest]) -> dict[Key, int]:
    """Take some more tokens than were needed, for the jobs that come next; return the numbers."""
    buckets = {key: state for key, state in states.items() if isinstance(state, Bucket)}
    if not buckets:
        return {}
    wanted = Counter(taken)
    for prefetch in (request for request in requests if isinstance(request, Prefetch)):
        wanted[prefetch.tickets[0].document] += prefetch.number
    return {
        key: bucket.draw(min(wanted[key] * TOKENS_AHEAD, most_drawn(bucket.drip))) for key, bucket in buckets.items()
    }


# -- at the store ------------------------------------------------------------------------------------------


async def gone(store: Store, holders: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
    """Return the holders that do not run under their token any more. They never will again, so this stays true."""
    asked = set(holders)
    jobs = await store.get(sorted({job_id for job_id, _ in asked})) if asked else []
    return asked - {(job.id, job.token) for job in jobs if job.status is Status.RUNNING}


async def wake(
    store: Store, wakeups: Mapping[Key, int], documents: Mapping[Key, Document], now: Millis
) -> dict[Key, Document | None]:
    """Wake up to the given number of jobs for each limit. If fewer are found, write that no job waits any more.

    That is written only if the document is unchanged since the decision to wake: a job may start to wait just then.
    It checks once more after it is suspended, and finds either the free slot or a document that has changed. Return the
    documents for which fewer were found, as they are now; None for one that is gone or that another process wrote.
    """
    woken: Counter[str] = Counter(await store.wake({wait_key(key): number for key, number in wakeups.items()}))
    missing = {key: number - woken[wait_key(key)] for key, number in wakeups.items()}
    before = {key: documents[key] for key, number in missing.items() if number > 0 and key in documents}
    after = await note_missing(store, list(before.values()), missing, now)
    for _ in range(MAX_NOTE_TRIES):  # no other process knows that fewer jobs were woken than are counted
        lost = [key for key in before if key not in after and key.group.startswith(FAIR)]
        if not lost:
            break
        after |= await note_missing(store, await store.documents(lost), missing, now)
    return {key: after.get(key) for key in before}


async def note_missing(
    store: Store, documents: Sequence[Document], missing: Mapping[Key, int], now: Millis
) -> dict[Key, Document | None]:
    """Write how many jobs were not found; return the documents for which that succeeded."""
    writes = [nobody_left(document, missing[document.key], now) for document in documents]
    answers = await store.write([Bundle((write,)) for write in writes]) if writes else []
    return {write.key: written(write) for write, answer in zip(writes, answers, strict=True) if answer is not None}


def nobody_left(document: Document, missing: int, now: Millis) -> Write:
    state = state_in(document)
    if isinstance(state, Turns):
        state.nobody_came(missing, now)
    else:
        state.waiting = False
    return write_of(document.key, state, document, now)


def needs_current_state(request: LimitRequest) -> bool:
    """Return whether a remembered state may be too old: jobs were suspended, or another process holds what it frees."""
    return isinstance(request, Wait) or (isinstance(request, Release) and request.adopted)
