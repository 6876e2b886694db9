"""All jobs of one store into another: `mainspring copy`.

A copy is a number of sweeps. Each goes through the source chunk by chunk, compares every record with the target's, and
puts in what the target lacks. When a sweep finds nothing to put in, and all of it equal, the copy is done and verified
by that very sweep. So there is nothing to remember: whoever is interrupted, at any moment, begins again, and passes
over what is there already.

Nothing runs twice and nothing is lost on the way, because both stores are halted. Their halts also say how far the copy
has come:

1. the source is halted and takes no new jobs ("copying to …"), the target is halted ("copying from …");
2. what runs in the source finishes, or is taken from workers that have died;
3. sweeps, and a look back: no job that is live in the target may have ended in the source meanwhile;
4. the source's halt says "copied to …" and stays: its jobs are the target's now;
5. the target is resumed.
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
from mainspring.stores.protocol import COPIER, Action, By, Filter, Halt, Store
from mainspring.stores.records import JOBS, Chunk, Kind, Record

T = TypeVar("T")

CHUNK = 1000  # records
MOST_SWEEPS = 5
POLL = 0.2  # seconds
AGAIN_AFTER = (0.1, 0.5, 1.0, 2.0, 5.0)  # seconds, for a store that cannot be reached
FOR_PEOPLE = ("error", "reason", "note")  # texts of a job that no program depends on
MARK = "\N{REPLACEMENT CHARACTER}"
SHOWN = 5  # jobs or changes in a message


@dataclass(frozen=True, slots=True)
class Step:
    """What is done just now, for whoever watches."""

    what: str
    done: int
    total: int


@dataclass(slots=True)
class Tally:
    """What a sweep found of one kind."""

    equal: int = 0
    loaded: int = 0
    expired: int = 0  # not worth the way
    running: int = 0  # not to be copied before their run has ended
    conflicts: dict[str, str] = field(default_factory=dict)  # key -> who in the target holds it
    elsewhere: list[str] = field(default_factory=list)  # jobs that the target has as another kind
    differing: list[str] = field(default_factory=list)
    source_sum: Any = field(default_factory=hashlib.sha256)  # over all that is in both
    target_sum: Any = field(default_factory=hashlib.sha256)

    @property
    def checksums(self) -> tuple[str, str]:
        return self.source_sum.hexdigest(), self.target_sum.hexdigest()

    def add(self, ours: Sequence[Record], theirs: Sequence[Record]) -> None:
        """Records that are in both stores, in the same order."""
        our_text, their_text = canonical(ours), canonical(theirs)
        self.source_sum.update(our_text.encode("utf-8", "surrogatepass"))
        self.target_sum.update(their_text.encode("utf-8", "surrogatepass"))
        if our_text == their_text:
            self.equal += len(ours)
            return
        differing = [
            one["key"] for one, other in zip(ours, theirs, strict=True) if canonical([one]) != canonical([other])
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
    before: bool = False  # it had been copied by an earlier run
    replaced: Halt | None = None  # somebody's halt of the source, which is not copied
    target_halt: Halt | None = None  # the target stands still, for this reason

    @property
    def conflicts(self) -> dict[str, str]:
        """Jobs that are not in the target, and the target's jobs that hold their dedupe keys."""
        return dict(self.kinds[Kind.LIVE].conflicts) if Kind.LIVE in self.kinds else {}

    @property
    def changed(self) -> list[str]:
        """Jobs that are in both stores, but not the same."""
        tallies = [tally for kind, tally in self.kinds.items() if kind in JOBS]
        return [key for tally in tallies for key in (*tally.elsewhere, *tally.differing)] + self.ended


@dataclass(frozen=True, slots=True)
class Words:
    """What the halts say."""

    copying_to: str
    copied_to: str
    copying_from: str
    copied_from: str

    @classmethod
    def of(cls, source: Store, target: Store) -> Words:
        to, from_ = target.url, source.url
        return cls(f"copying to {to}", f"copied to {to}", f"copying from {from_}", f"copied from {from_}")


class Copy:
    """From one open store into another."""

    def __init__(
        self,
        source: Store,
        target: Store,
        *,
        history: bool = False,
        wait: float = 300.0,
        skip_conflicts: bool = False,
        stay_halted: bool = False,
        tell: Callable[[Step], None] = lambda _: None,
    ) -> None:
        self.source = source
        self.target = target
        self.words = Words.of(source, target)
        self.report = Report(source.url, target.url)
        self._history = history
        self._wait = wait
        self._skip_conflicts = skip_conflicts
        self._stay_halted = stay_halted
        self._tell = tell
        self._halted: Halt | None = None  # the source's, as long as it lasts
        self._deleted: dict[tuple[datetime, str], int] = {}  # by hand, before the first sweep
        self._undo: list[Callable[[], Awaitable[Any]]] = []  # as long as nothing was copied

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
        """Refuse what cannot end well, before anything is touched."""
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
            f"up, or its jobs are to run from here again: mainspring resume --anyway --store {self.source.url}"
        )
        raise CopyFailed(msg)

    def _check_target(self, halt: Halt | None) -> None:
        if halt is None or is_ours(halt, self.words.copying_from):
            return
        url = self.target.url
        if is_ours(halt, self.words.copying_to):
            raise same_store(self.source)
        if halt.actor == COPIER:
            give_up = f"mainspring resume --anyway --store {url}"
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
        """Jobs that were copied before may have run in the source since: nobody knows which."""
        source, target = self.source.url, self.target.url
        return CopyFailed(
            f"{target} has jobs of a copy that was begun, but {source} has been resumed since, and may have run them. "
            f"Copy into an empty store; or delete them from {target}, and then: "
            f"mainspring resume --anyway --store {target}"
        )

    # -- standing still -----------------------------------------------------------------------

    async def _halt_both(self) -> None:
        """Whoever is interrupted in between finds both as they must be, or halts them again."""
        before = await system_halt(self.source)
        if not is_ours(before, self.words.copying_to):
            await halt(self.source, self.words.copying_to, accept=False)
            self._undo.append(lambda: put_back(self.source, before))
        if is_ours(await system_halt(self.target), self.words.copying_to):  # we see ourselves: two names for one store
            await put_back(self.source, None if is_ours(before, self.words.copying_to) else before)
            raise same_store(self.source)
        if await system_halt(self.target) is None:
            await halt(self.target, self.words.copying_from, accept=True)
            self._undo.append(lambda: put_back(self.target, None))
        self._halted = await system_halt(self.source)
        self._deleted = await deletions(self.source)

    async def _drain(self) -> None:
        """Until nothing runs any more; what dead workers held is taken over, as their colleagues would.

        Not every store knows that for sure (an index of DynamoDB may be late), so the sweeps have an eye on it too.
        """
        end = time.monotonic() + self._wait
        most = running = await self.source.under_way()
        while running:
            self._tell(Step("waiting for running jobs", most - running, most))
            if time.monotonic() >= end:
                await self._give_up()
            await asyncio.sleep(POLL)
            await self.source.reap()
            running = await self.source.under_way()
            most = max(most, running)

    async def _give_up(self) -> None:
        page = await self.source.find(Filter(statuses=(Status.RUNNING,)), limit=SHOWN)
        listed = ", ".join(describe(job) for job in page.jobs) or "a transaction that has enqueued and is not committed"
        for undo in reversed(self._undo):  # the source last: as long as it is halted, a copy is under way
            await undo()
        now = "Nothing was copied, both stores go on as before" if self._undo else "Both stores stay halted"
        msg = f"{listed} did not end within {self._wait:g} s. {now}; try later, or --wait longer"
        raise CopyFailed(msg)

    # -- sweeping -----------------------------------------------------------------------------

    async def _sweep_until_equal(self, kinds: Sequence[Kind]) -> None:
        """The last sweep puts no job in: it is the proof. Late transactions may make more of them necessary."""
        self._undo.clear()
        sizes = await self.source.sizes()
        total = sum(sizes[kind] for kind in kinds)
        for number in range(MOST_SWEEPS):
            done = 0
            for kind in kinds:
                tally = self.report.kinds[kind] = Tally()
                done = await self._sweep(kind, tally, done, total, "verifying" if number else "copying")
                self.report.loaded[kind] = self.report.loaded.get(kind, 0) + tally.loaded
            if any(tally.running for tally in self.report.kinds.values()):
                await asyncio.sleep(POLL)
                await self._drain()
                continue
            still = {kind for kind, tally in self.report.kinds.items() if tally.loaded}
            if not still or (number and not still & JOBS):  # a scheduler may go on writing its ledger
                return
        msg = f"{self.source.url} keeps changing although it is halted; who writes to it? Both stay halted"
        raise CopyFailed(msg)

    async def _sweep(self, kind: Kind, tally: Tally, done: int, total: int, what: str) -> int:
        """The next chunk is read while this one is compared and put in."""
        reading: asyncio.Task[Chunk] | None = asyncio.create_task(self._read(self.source, kind, None))
        try:
            while reading is not None:
                chunk = await reading
                reading = None
                if chunk.cursor is not None:
                    reading = asyncio.create_task(self._read(self.source, kind, chunk.cursor))
                await self._compare(kind, chunk.records, tally)
                done += len(chunk.records)
                self._tell(Step(what, done, max(total, done)))
        finally:
            if reading is not None:
                reading.cancel()
        return done

    async def _read(self, store: Store, kind: Kind, cursor: str | None) -> Chunk:
        return await patiently(partial(store.dump, kind, after=cursor, limit=CHUNK))

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
            tally.conflicts |= {key: who for key, who in in_the_way.items() if who != key}
            tally.elsewhere += [key for key, who in in_the_way.items() if who == key]
        if here:
            tally.add([records[key] for key in here], list(here.values()))

    async def _look_back(self) -> None:
        """A job that was cancelled, or ran, in the source after it was copied must not run in the target."""
        chunk = await self._read(self.target, Kind.LIVE, None)
        await self._find_ended(chunk)
        while chunk.cursor is not None:
            chunk = await self._read(self.target, Kind.LIVE, chunk.cursor)
            await self._find_ended(chunk)

    async def _find_ended(self, chunk: Chunk) -> None:
        keys = [record["key"] for record in chunk.records]
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
        """Who was deleted in the source after it was copied would run in the target. Told once."""
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
        """First the source says that its jobs are gone: who is killed now must not find it as it was."""
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
        """The jobs run in the target by now, and are none of our business; what had finished can still follow."""
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
    """How many jobs were deleted by hand lately, by when it began and by whom."""
    entries = await store.audit(limit=1000)
    return {(one.at, one.actor): one.count for one in entries if one.action == Action.DELETE}


# -- records --------------------------------------------------------------------------------------


def is_over(record: Record, now: int) -> bool:
    """Its time is over: any worker of the target would remove it, and it would be missing again and again."""
    end = record.get("expires_at") or record.get("until")
    return end is not None and end <= now


def portable(record: Record) -> Record:
    """PostgreSQL keeps no NUL; in a message to people, a mark in its place does no harm."""
    marked: Record = {}
    for name in FOR_PEOPLE:
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
    """Their values, by the names of the fields: records of a kind have the same, and to repeat them costs the most."""
    names = sorted(records[0])
    return encode([[record[name] for name in names] for record in records])


encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode  # jsonb has its own order


def describe(job: Job) -> str:
    return f"{job.task} {job.id} on {job.worker}"


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Try again while a store cannot be reached: whatever is asked for here may be asked for twice."""
    for delay in AGAIN_AFTER:
        try:
            return await call()
        except (StoreFull, StoreVanished):
            raise
        except StoreUnavailable:
            await asyncio.sleep(delay)
    return await call()
