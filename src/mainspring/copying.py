"""Copy all jobs of one store into another: `mainspring copy`.

A copy consists of sweeps. Each sweep goes through the source page by page, compares every record with the target's
record, and inserts what the target lacks. When a sweep inserts nothing and finds all records equal, the copy is done,
and that sweep has verified it. So no progress needs to be stored: an interrupted copy starts again and passes over
what is there already.

Nothing runs twice and nothing is lost, because both stores are halted. Their halts also show how far the copy is:

1. The source is halted and takes no new jobs ("copying to …"). The target is halted ("copying from …").
2. The copy waits until the jobs that run in the source have ended, and takes over jobs of workers that have died.
3. The copy sweeps, then checks that no job that is live in the target has ended in the source meanwhile.
4. The source's halt now says "copied to …" and stays, because the target owns the jobs now.
5. The target is resumed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from mainspring.clock import to_datetime
from mainspring.errors import ConfigurationError, CopyFailed, StoreFull, StoreUnavailable, StoreVanished
from mainspring.job import Job, Status
from mainspring.stores.documents import By
from mainspring.stores.protocol import COPIER, Action, Filter, Halt, Store
from mainspring.stores.records import JOBS, Kind, Record, RecordPage

T = TypeVar("T")

PAGE_SIZE = 1000  # records
MAX_SWEEPS = 5
POLL_SECONDS = 0.2  # between two looks at the jobs that still run
RETRY_DELAYS = (0.1, 0.5, 1.0, 2.0, 5.0)  # seconds, for a store that cannot be reached
TEXTS_FOR_PEOPLE = ("error", "reason", "note")  # fields of a job that no program depends on
MARK = "\N{REPLACEMENT CHARACTER}"
MAX_SHOWN_JOBS = 5  # in a message


@dataclass(frozen=True, slots=True)
class Step:
    """What the copy does right now, for a progress display."""

    what: str
    done: int
    total: int


@dataclass(slots=True)
class Tally:
    """What a sweep found among the records of one kind."""

    equal: int = 0
    loaded: int = 0
    expired: int = 0  # not copied, because the target would remove them
    running: int = 0  # not copied before their run has ended
    conflicts: dict[str, str] = field(default_factory=dict)  # job -> the target's job that holds its dedupe key
    elsewhere: list[str] = field(default_factory=list)  # jobs that the target has as another kind
    differing: list[str] = field(default_factory=list)
    source_sum: Any = field(default_factory=hashlib.sha256)  # over the records that are in both stores
    target_sum: Any = field(default_factory=hashlib.sha256)

    @property
    def checksums(self) -> tuple[str, str]:
        return self.source_sum.hexdigest(), self.target_sum.hexdigest()

    def add(self, ours: Sequence[Record], theirs: Sequence[Record]) -> None:
        """Compare records that are in both stores, given in the same order."""
        our_text, their_text = canonical(ours), canonical(theirs)
        self.source_sum.update(our_text.encode("utf-8", "surrogatepass"))
        self.target_sum.update(their_text.encode("utf-8", "surrogatepass"))
        if our_text == their_text:
            self.equal += len(ours)
            return
        differing = [
            our["key"] for our, their in zip(ours, theirs, strict=True) if canonical([our]) != canonical([their])
        ]
        self.equal += len(ours) - len(differing)
        self.differing += differing


@dataclass(slots=True)
class Report:
    """How a copy ended."""

    source: str
    target: str
    kinds: dict[Kind, Tally] = field(default_factory=dict)
    loaded: dict[Kind, int] = field(default_factory=dict)  # in all sweeps of this run
    ended: list[str] = field(default_factory=list)  # jobs that are live in the target and have ended in the source
    done: bool = False
    before: bool = False  # an earlier run has copied it
    replaced: Halt | None = None  # an operator's halt of the source, which the copy replaced and does not copy
    target_halt: Halt | None = None  # the halt that keeps the target from running jobs, if there is one

    @property
    def conflicts(self) -> dict[str, str]:
        """Jobs that are not in the target, each with the target's job that holds its dedupe key."""
        return dict(self.kinds[Kind.LIVE].conflicts) if Kind.LIVE in self.kinds else {}

    @property
    def changed(self) -> list[str]:
        """Jobs that are in both stores, but differ."""
        tallies = [tally for kind, tally in self.kinds.items() if kind in JOBS]
        return [key for tally in tallies for key in (*tally.elsewhere, *tally.differing)] + self.ended


@dataclass(frozen=True, slots=True)
class Words:
    """The reasons of the halts."""

    copying_to: str
    copied_to: str
    copying_from: str
    copied_from: str

    @classmethod
    def of(cls, source: Store, target: Store) -> Words:
        to, from_ = target.url, source.url
        return cls(f"copying to {to}", f"copied to {to}", f"copying from {from_}", f"copied from {from_}")


class Copy:
    """A copy of one open store into another."""

    def __init__(
        self,
        source: Store,
        target: Store,
        *,
        history: bool = False,
        timeout: float = 300.0,  # seconds that running jobs may take to finish
        skip_conflicts: bool = False,
        stay_halted: bool = False,
        tell: Callable[[Step], None] = lambda _: None,
    ) -> None:
        self.source = source
        self.target = target
        self.words = Words.of(source, target)
        self.report = Report(source.url, target.url)
        self._history = history
        self._timeout = timeout
        self._skip_conflicts = skip_conflicts
        self._stay_halted = stay_halted
        self._tell = tell
        self._halted: Halt | None = None  # the source's halt during the copy
        self._deleted: dict[tuple[datetime, str], int] = {}  # manual deletions before the first sweep
        self._undo: list[Callable[[], Awaitable[Any]]] = []  # usable until something was copied

    async def run(self) -> Report:
        await self.check()
        if self.report.before:
            return await self._add_history()
        await self._halt_both()
        await self._drain()
        await self._sweep_until_equal([kind for kind in Kind if self._history or kind is not Kind.HISTORY])
        await self._look_back()
        if self._is_verified():
            await self._refuse_if_it_went_on()
            await self._refuse_deletions()
            await self._finish()
        return self.report

    # -- may it be done? ----------------------------------------------------------------------

    async def check(self, *, target_exists: bool = True) -> None:
        """Raise CopyFailed or ConfigurationError if the copy cannot succeed, before anything is changed."""
        refuse_same(self.source, self.target)
        source = await system_halt(self.source)
        target = await system_halt(self.target) if target_exists else None
        self.report.before = is_ours(source, self.words.copied_to)
        if not self.report.before:
            self._check_source(source)
            self._check_target(target)
            if is_ours(target, self.words.copying_from) and not is_ours(source, self.words.copying_to):
                raise self._given_up()

    def _check_source(self, halt: Halt | None) -> None:
        if halt is None or is_ours(halt, self.words.copying_to):
            return
        if halt.actor != COPIER:
            self.report.replaced = halt
            return
        msg = (
            f"{self.source.url} is {halt.reason}; another copy would let its jobs run twice. If that copy was given "
            f"up, or its jobs are to run from here again: mainspring resume --force --store {self.source.url}"
        )
        raise CopyFailed(msg)

    def _check_target(self, halt: Halt | None) -> None:
        if halt is None or is_ours(halt, self.words.copying_from):
            return
        url = self.target.url
        if is_ours(halt, self.words.copying_to):
            raise same_store(self.source)
        if halt.actor == COPIER:
            give_up = f"mainspring resume --force --store {url}"
            msg = f"{url} is {halt.reason}; finish that first, or give it up with: {give_up}"
            raise CopyFailed(msg)
        if halt.until is not None:
            msg = (
                f"{url} is halted by {halt.actor} ({halt.reason or 'no reason given'}) and would go on by itself at "
                f"{halt.until:%Y-%m-%d %H:%M:%S} UTC, perhaps in the middle; resume it, or halt it without an end"
            )
            raise CopyFailed(msg)
        self.report.target_halt = halt

    def _given_up(self) -> CopyFailed:
        """Return the error for a source that was resumed: jobs copied before may have run there since."""
        source, target = self.source.url, self.target.url
        return CopyFailed(
            f"{target} has jobs of an unfinished copy, but {source} has been resumed since, and may have run them. "
            f"Copy into an empty store; or delete them from {target}, and then: "
            f"mainspring resume --force --store {target}"
        )

    # -- standing still -----------------------------------------------------------------------

    async def _halt_both(self) -> None:
        """Halt both stores. If this is interrupted, the next run keeps or repeats the halts."""
        before = await system_halt(self.source)
        if not is_ours(before, self.words.copying_to):
            await halt(self.source, self.words.copying_to, accept=False)
            self._undo.append(lambda: put_back(self.source, before))
        if is_ours(await system_halt(self.target), self.words.copying_to):  # our own halt: two URLs of one store
            await put_back(self.source, None if is_ours(before, self.words.copying_to) else before)
            raise same_store(self.source)
        if await system_halt(self.target) is None:
            await halt(self.target, self.words.copying_from, accept=True)
            self._undo.append(lambda: put_back(self.target, None))
        self._halted = await system_halt(self.source)
        self._deleted = await deletions(self.source)

    async def _drain(self) -> None:
        """Wait until no job runs any more, and take over the jobs of dead workers, as other workers would.

        Not every store knows that for sure (an index of DynamoDB may be late), so the sweeps check it too.
        """
        end = time.monotonic() + self._timeout
        most = running = await self.source.under_way()
        while running:
            self._tell(Step("waiting for running jobs", most - running, most))
            if time.monotonic() >= end:
                await self._give_up()
            await asyncio.sleep(POLL_SECONDS)
            await self.source.reap()
            running = await self.source.under_way()
            most = max(most, running)

    async def _give_up(self) -> None:
        page = await self.source.find(Filter(statuses=(Status.RUNNING,)), limit=MAX_SHOWN_JOBS)
        listed = ", ".join(describe(job) for job in page.jobs) or "a transaction that has enqueued and is not committed"
        for undo in reversed(self._undo):  # the source last: its halt says that a copy is under way
            await undo()
        now = "Nothing was copied, both stores go on as before" if self._undo else "Both stores stay halted"
        msg = f"{listed} did not end within {self._timeout:g} s. {now}; try later, or give a longer --timeout"
        raise CopyFailed(msg)

    # -- sweeping -----------------------------------------------------------------------------

    async def _sweep_until_equal(self, kinds: Sequence[Kind]) -> None:
        """Sweep until a sweep inserts no job: that one is the proof. Late transactions may need further sweeps."""
        self._undo.clear()
        sizes = await self.source.sizes()
        total = sum(sizes[kind] for kind in kinds)
        for number in range(MAX_SWEEPS):
            done = 0
            for kind in kinds:
                tally = self.report.kinds[kind] = Tally()
                done = await self._sweep(kind, tally, done, total, "verifying" if number else "copying")
                self.report.loaded[kind] = self.report.loaded.get(kind, 0) + tally.loaded
            if any(tally.running for tally in self.report.kinds.values()):
                await asyncio.sleep(POLL_SECONDS)
                await self._drain()
                continue
            still = {kind for kind, tally in self.report.kinds.items() if tally.loaded}
            if not still or (number and not still & JOBS):  # a scheduler may still write its ledger
                return
        msg = f"{self.source.url} keeps changing although it is halted; find out what writes to it. Both stay halted"
        raise CopyFailed(msg)

    async def _sweep(self, kind: Kind, tally: Tally, done: int, total: int, what: str) -> int:
        """Sweep all records of one kind. Read the next page while this one is compared and inserted."""
        reading: asyncio.Task[RecordPage] | None = asyncio.create_task(self._read(self.source, kind, None))
        try:
            while reading is not None:
                page = await reading
                reading = None
                if page.cursor is not None:
                    reading = asyncio.create_task(self._read(self.source, kind, page.cursor))
                await self._compare(kind, page.records, tally)
                done += len(page.records)
                self._tell(Step(what, done, max(total, done)))
        finally:
            if reading is not None:
                reading.cancel()
        return done

    async def _read(self, store: Store, kind: Kind, cursor: str | None) -> RecordPage:
        return await patiently(partial(store.dump, kind, after=cursor, limit=PAGE_SIZE))

    async def _compare(self, kind: Kind, dumped: Sequence[Record], tally: Tally) -> None:
        now = self.target.clock.now()
        lasting = [record for record in dumped if not is_over(record, now)]
        records = {record["key"]: portable(record) for record in lasting if record.get("status") != Status.RUNNING}
        tally.expired += len(dumped) - len(lasting)
        tally.running += len(lasting) - len(records)
        found = await patiently(partial(self.target.look_up, kind, list(records))) if records else []
        here = {record["key"]: record for record in found}
        missing = [record for key, record in records.items() if key not in here]
        if missing:
            in_the_way = await patiently(partial(self.target.load, kind, missing))
            tally.loaded += len(missing) - len(in_the_way)
            tally.conflicts |= {key: holder for key, holder in in_the_way.items() if holder != key}
            tally.elsewhere += [key for key, holder in in_the_way.items() if holder == key]
        if here:
            tally.add([records[key] for key in here], list(here.values()))

    async def _look_back(self) -> None:
        """Find jobs that ended in the source after they were copied: they must not run in the target."""
        page = await self._read(self.target, Kind.LIVE, None)
        await self._find_ended(page)
        while page.cursor is not None:
            page = await self._read(self.target, Kind.LIVE, page.cursor)
            await self._find_ended(page)

    async def _find_ended(self, page: RecordPage) -> None:
        keys = [record["key"] for record in page.records]
        for kind in (Kind.DEAD, Kind.HISTORY):
            found = await patiently(partial(self.source.look_up, kind, keys)) if keys else []
            self.report.ended += [record["key"] for record in found]

    def _is_verified(self) -> bool:
        return not self.report.changed and (self._skip_conflicts or not self.report.conflicts)

    # -- the end ------------------------------------------------------------------------------

    async def _refuse_if_it_went_on(self) -> None:
        if await system_halt(self.source) != self._halted:
            raise self._given_up()

    async def _refuse_deletions(self) -> None:
        """Raise CopyFailed if jobs were deleted in the source after they were copied: the target would run them.

        Each deletion is reported once: the renewed halt makes the next run accept it.
        """
        since = self._halted.since if self._halted else now_of(self.source)
        deleted = await deletions(self.source)
        changes = [key for key, count in deleted.items() if key[0] >= since or count > self._deleted.get(key, count)]
        if not changes:
            return
        await halt(self.source, self.words.copying_to, accept=False)
        listed = ", ".join(sorted({actor for _, actor in changes}))
        msg = (
            f"while {self.source.url} was copied, jobs were deleted from it by hand (by {listed}). Delete them from "
            f"{self.target.url} too, where they may be already, then run this again. Both stores stay halted"
        )
        raise CopyFailed(msg)

    async def _finish(self) -> None:
        """Mark the source as copied, then release the target. In this order, a crash in between runs no job twice."""
        await halt(self.source, self.words.copied_to, accept=False)
        await self._release_target()
        self.report.done = True

    async def _release_target(self) -> None:
        if is_ours(await system_halt(self.target), self.words.copying_from):
            if self._stay_halted:
                await halt(self.target, self.words.copied_from, accept=True)
            else:
                await self.target.resume(By(COPIER, self.words.copied_from))
        self.report.target_halt = await system_halt(self.target)

    async def _add_history(self) -> Report:
        """Copy the audit log and finished jobs after an earlier run. The live jobs run in the target by now."""
        await self._release_target()
        if self._history:
            await self._sweep_until_equal([Kind.AUDIT, Kind.HISTORY])
        self.report.done = True
        return self.report


# -- halts ----------------------------------------------------------------------------------------


async def system_halt(store: Store) -> Halt | None:
    return next((halt for halt in await store.halts() if halt.queue is None), None)


def is_ours(halt: Halt | None, reason: str) -> bool:
    return halt is not None and (halt.actor, halt.reason) == (COPIER, reason)


async def halt(store: Store, reason: str, *, accept: bool) -> None:
    await store.halt(Halt(COPIER, reason, now_of(store), accept=accept))


async def put_back(store: Store, before: Halt | None) -> None:
    if before is None:
        await store.resume(By(COPIER, "not copied"))
    else:
        await store.halt(before)


def now_of(store: Store) -> datetime:
    return to_datetime(store.clock.now())


def refuse_same(source: Store, target: Store) -> None:
    if source.url == target.url:
        raise same_store(source)


def same_store(store: Store) -> ConfigurationError:
    return ConfigurationError(f"source and target are the same store, {store.url}")


async def deletions(store: Store) -> dict[tuple[datetime, str], int]:
    """Return how many jobs were recently deleted by hand, by the time the deletion began and the actor."""
    entries = await store.audit(limit=1000)
    return {(entry.at, entry.actor): entry.count for entry in entries if entry.action == Action.DELETE}


# -- records --------------------------------------------------------------------------------------


def is_over(record: Record, now: int) -> bool:
    """Return whether a record has expired. A worker of the target would remove it, and every sweep would miss it."""
    end = record.get("expires_at") or record.get("until")
    return end is not None and end <= now


def portable(record: Record) -> Record:
    """Replace NUL characters in texts for people: PostgreSQL cannot store them, and a mark does no harm there."""
    marked: Record = {}
    for name in TEXTS_FOR_PEOPLE:
        text = record.get(name)
        if text and "\0" in text:
            marked[name] = text.replace("\0", MARK)
    for run in record.get("runs", ()):
        if any("\0" in value for value in run if isinstance(value, str)):
            marked["runs"] = [[without_nul(value) for value in run] for run in record["runs"]]
    return {**record, **marked} if marked else record


def without_nul(value: Any) -> Any:
    return value.replace("\0", MARK) if isinstance(value, str) else value


def canonical(records: Sequence[Record]) -> str:
    """Return the records' values as JSON, in the order of the field names.

    The names are left out: they are the same for all records of a kind, and repeating them costs the most.
    """
    names = sorted(records[0])
    return encode([[record[name] for name in names] for record in records])


encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode  # jsonb has its own order


def describe(job: Job) -> str:
    return f"{job.task} {job.id} on {job.worker}"


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Call again while a store cannot be reached. All calls made here are safe to repeat."""
    for delay in RETRY_DELAYS:
        try:
            return await call()
        except (StoreFull, StoreVanished):
            raise
        except StoreUnavailable:
            await asyncio.sleep(delay)
    return await call()
