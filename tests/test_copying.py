"""One store into another: what is refused, what stands still meanwhile, and how an interrupted copy goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring, copying
from mainspring.copying import Copy, Report, Step
from mainspring.errors import ConfigurationError, CopyFailed, Failure, StoreFull, StoreUnavailable, SystemHalted
from mainspring.job import FOREVER, Move, Outcome, Status
from mainspring.portal import run_at_once
from mainspring.stores.documents import Bundle, By, Key, Write
from mainspring.stores.protocol import COPIER, Action, Filter, Halt, Store
from mainspring.stores.records import Kind
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    a_halt,
    at,
    by_hand,
    claim,
    claim_one,
    end,
    job_in,
    join,
    new_job,
    put,
    put_many,
    running,
    status_of,
)
from tests.conformance.transfer import all_of, everything, fill
from tests.in_memory import execute
from tests.stores.sqlite.template import fresh_database


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(copying, "RETRY_DELAYS", (0.0, 0.0))
    monkeypatch.setattr(copying, "PAGE_SIZE", 2)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def source(clock: ManualClock) -> MemoryStore:
    return MemoryStore("memory://source", clock=clock)


@pytest.fixture
def target(clock: ManualClock) -> MemoryStore:
    return MemoryStore("memory://target", clock=clock)


async def halted(store: Store) -> tuple[str, str, bool] | None:
    halt = await copying.system_halt(store)
    return None if halt is None else (halt.actor, halt.reason, halt.accept)


COPIED = (COPIER, "copied to memory://target", False)


# -- what it does -----------------------------------------------------------------------------------


async def test_everything_but_history_is_copied(source: MemoryStore, target: MemoryStore, clock: ManualClock) -> None:
    await fill(source, clock)
    await end_runs(source)
    report = await Copy(source, target).run()
    assert report.done
    assert not report.before
    before, after = await everything(source), await everything(target)
    for kind in (Kind.PAUSES, Kind.KEYS, Kind.LIVE, Kind.DEAD):
        assert after[kind] == before[kind]
        assert report.kinds[kind].equal == report.loaded[kind] == len(before[kind])
        assert report.kinds[kind].checksums[0] == report.kinds[kind].checksums[1]
    assert after[Kind.HISTORY] == {}
    assert after[Kind.AUDIT].items() >= {k: v for k, v in before[Kind.AUDIT].items() if v["actor"] != COPIER}.items()


async def end_runs(store: Store) -> None:
    running = [record for record in await all_of(store, Kind.LIVE) if record["status"] == Status.RUNNING]
    await store.ack([Outcome(record["id"], record["token"], Move.SNOOZE) for record in running])


async def test_history_comes_along_if_asked_for(source: MemoryStore, target: MemoryStore) -> None:
    done = await job_in(source, Status.COMPLETED)
    gone = await job_in(source, Status.CANCELLED)
    assert (await Copy(source, target, history=True).run()).done
    assert (await status_of(target, done), await status_of(target, gone)) == (Status.COMPLETED, Status.CANCELLED)


async def test_history_can_follow_while_the_target_works(source: MemoryStore, target: MemoryStore) -> None:
    cancelled = await job_in(source, Status.CANCELLED)
    done = await job_in(source, Status.COMPLETED)
    await put(source)
    await Copy(source, target).run()
    held = await claim_one(target)
    report = await Copy(source, target, history=True).run()
    assert report.done
    assert report.before
    assert report.loaded[Kind.HISTORY] == 2
    assert await end(target, held, Move.DONE) is Status.COMPLETED
    await by_hand(target, Action.RETRY, cancelled)
    report = await Copy(source, target, history=True).run()
    assert report.done
    assert (report.loaded[Kind.HISTORY], await status_of(target, cancelled)) == (0, Status.PENDING)
    assert await status_of(target, done) is Status.COMPLETED
    assert await halted(target) is None


async def test_the_source_stays_halted_and_the_target_goes_on(source: MemoryStore, target: MemoryStore) -> None:
    job_id = await put(source)
    assert (await Copy(source, target).run()).done
    assert await halted(source) == COPIED
    assert await halted(target) is None
    assert await claim(source) == []
    with pytest.raises(SystemHalted):
        await source.insert([new_job()])
    assert [job.id for job in await claim(target)] == [job_id]


async def test_a_store_that_was_copied_is_resumed_only_on_purpose(source: MemoryStore, target: MemoryStore) -> None:
    await put(source)
    await Copy(source, target).run()
    app = Mainspring(source)
    with pytest.raises(SystemHalted, match=r"memory://source is copied to memory://target, and stays halted.* --force"):
        await app.resume()
    with pytest.raises(SystemHalted, match="is already halted, because it is copied to memory://target"):
        await app.halt("fire drill")
    assert await halted(source) == COPIED
    await app.pause("mail")
    assert await app.resume("mail")
    assert await app.resume(force=True)
    assert await halted(source) is None


async def test_a_target_that_was_left_halted_is_simply_resumed(source: MemoryStore, target: MemoryStore) -> None:
    await Copy(source, target, stay_halted=True).run()
    assert await Mainspring(target).resume()


@pytest.mark.parametrize("reason", ["copying to memory://target", "copying from memory://source"])
async def test_a_store_that_is_being_copied_is_resumed_only_on_purpose(source: MemoryStore, reason: str) -> None:
    await copying.halt(source, reason, accept=True)
    app = Mainspring(source)
    with pytest.raises(SystemHalted, match=f"is {reason}, and stays halted"):
        await app.resume()
    assert await app.resume(force=True)


async def test_while_it_copies_nothing_starts_on_either_side(source: MemoryStore, target: MemoryStore) -> None:
    await put_many(source, 5)
    await put(target)
    seen: list[Any] = []

    def look(step: Step) -> None:
        [theirs], [ours] = run_at_once(source.halts()), run_at_once(target.halts())
        seen.append((step.what, theirs.reason, theirs.accept, ours.accept))

    await Copy(source, target, tell=look).run()
    assert {entry[1:] for entry in seen} == {("copying to memory://target", False, True)}
    assert {entry[0] for entry in seen} == {"copying", "verifying"}


async def test_progress_goes_up_to_the_number_of_records(source: MemoryStore, target: MemoryStore) -> None:
    await put_many(source, 7)
    steps: list[Step] = []
    await Copy(source, target, tell=steps.append).run()
    copied = [step.done for step in steps if step.what == "copying"]
    assert copied == sorted(copied)
    assert copied[-1] == 8  # with the line of the halt in the audit log
    assert all(step.total >= 8 for step in steps)  # it is an estimate


async def test_a_copy_that_is_repeated_changes_nothing(source: MemoryStore, target: MemoryStore) -> None:
    ids = await put_many(source, 3)
    await Copy(source, target).run()
    done, held, waiting = await claim(target)
    await end(target, done, Move.DONE)
    await by_hand(target, Action.CANCEL, waiting.id)
    before = await everything(target)
    report = await Copy(source, target).run()
    assert report.done
    assert report.before
    assert await everything(target) == before
    assert await end(target, held, Move.DONE) is Status.COMPLETED
    assert {job.id for job in (done, held, waiting)} == set(ids)


async def test_the_target_may_have_jobs_of_its_own(source: MemoryStore, target: MemoryStore) -> None:
    await put(source, dedupe_key="k", task="a")
    await job_in(target, Status.DEAD_LETTER)
    await put(target, dedupe_key="k", task="b")
    report = await Copy(source, target).run()
    assert report.done
    assert report.kinds[Kind.LIVE].equal == 1
    assert await target.count(Filter()) == 3


async def test_the_target_can_be_left_halted(source: MemoryStore, target: MemoryStore) -> None:
    await put(source)
    report = await Copy(source, target, stay_halted=True).run()
    assert report.done
    assert await halted(target) == (COPIER, "copied from memory://source", True)
    await Copy(source, target).run()
    assert await halted(target) == (COPIER, "copied from memory://source", True)


async def test_expired_jobs_are_not_copied(source: MemoryStore, target: MemoryStore, clock: ManualClock) -> None:
    old = await job_in(source, Status.COMPLETED, keep=1000)
    dead = await job_in(source, Status.DEAD_LETTER, keep_dead=5000)
    clock.advance(2)
    report = await Copy(source, target, history=True).run()
    assert report.done
    assert report.kinds[Kind.HISTORY].expired == 1
    assert [job.id for job in await target.get([old, dead])] == [dead]


async def test_a_message_with_a_nul_is_marked(source: MemoryStore, target: MemoryStore) -> None:
    held = await running(source)
    await end(source, held, Move.RETRY, failure=Failure("E", "a\0b", "t\0"), reason="r\0")
    assert (await Copy(source, target).run()).done
    (run,) = await target.attempts(held.id)
    assert run.failure == Failure("E", "a�b", "t�")


# -- waiting for what runs --------------------------------------------------------------------------


async def test_running_jobs_are_waited_for(source: MemoryStore, target: MemoryStore) -> None:
    await join(source, "w1")
    held = await running(source)
    waited = asyncio.Event()
    task = asyncio.create_task(Copy(source, target, tell=lambda _: waited.set()).run())
    await waited.wait()
    assert await target.count(Filter()) == 0
    follow_up = new_job()
    assert await end(source, held, Move.DONE, follow_ups=(follow_up,)) is Status.COMPLETED
    assert (await task).done
    assert [job.id for job in await claim(target)] == [follow_up.id]


class Unsure(MemoryStore):
    """Learns late of what runs."""

    asked = 0

    async def under_way(self) -> int:
        self.asked += 1
        return 0 if self.asked == 1 else await super().under_way()


async def test_a_run_that_the_store_did_not_know_of_is_waited_for_all_the_same(
    target: MemoryStore, clock: ManualClock
) -> None:
    source = Unsure("memory://source", clock=clock)
    await join(source, "w1")
    held = await running(source)
    await put(source)
    waited = asyncio.Event()

    def tell(step: Step) -> None:
        if step.what.startswith("waiting"):
            waited.set()

    task = asyncio.create_task(Copy(source, target, tell=tell).run())
    await waited.wait()
    assert await target.get([held.id]) == []
    await end(source, held, Move.SNOOZE)
    assert (await task).done
    assert await status_of(target, held.id) is Status.PENDING


async def test_jobs_of_dead_workers_are_taken_over(
    source: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    held = await running(source, worker="gone")
    report = await Copy(source, target, tell=lambda _: clock.advance(10)).run()
    assert report.done
    (taken,) = await claim(target, solo=True)
    assert (taken.id, taken.crashes, taken.token) == (held.id, 1, held.token + 1)


@pytest.mark.parametrize("was_halted", [False, True])
async def test_a_copy_fails_if_a_job_does_not_end_in_time(
    source: MemoryStore, target: MemoryStore, clock: ManualClock, was_halted: bool
) -> None:
    await join(source, "w1")
    held = await running(source)
    before = a_halt(clock) if was_halted else None
    if before:
        await source.halt(before)
    with pytest.raises(CopyFailed, match=f"greet {held.id} on w1 did not end within 0 s. Nothing was copied, both st"):
        await Copy(source, target, timeout=0).run()
    assert await copying.system_halt(source) == before
    assert await halted(target) is None


# -- what is in the way -----------------------------------------------------------------------------


async def test_a_dedupe_key_held_in_the_target_is_reported(source: MemoryStore, target: MemoryStore) -> None:
    holder = await put(target, dedupe_key="k")
    loser = await put(source, dedupe_key="k")
    other = await put(source)
    report = await Copy(source, target).run()
    assert not report.done
    assert report.conflicts == {loser: holder}
    assert await status_of(target, other) is Status.PENDING
    assert await halted(source) == (COPIER, "copying to memory://target", False)
    assert await halted(target) is not None
    await by_hand(target, Action.CANCEL, holder)
    assert (await Copy(source, target).run()).done
    assert await status_of(target, loser) is Status.PENDING


async def test_such_jobs_can_be_left_behind(source: MemoryStore, target: MemoryStore) -> None:
    holder = await put(target, dedupe_key="k")
    loser = await put(source, dedupe_key="k")
    report = await Copy(source, target, skip_conflicts=True).run()
    assert report.done
    assert report.conflicts == {loser: holder}
    assert await target.get([loser]) == []


async def test_a_lasting_key_or_pause_of_the_target_stays(
    source: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    await job_in(source, Status.COMPLETED, dedupe_key="k", dedupe_for=FOREVER)
    mine = await job_in(target, Status.COMPLETED, dedupe_key="k", dedupe_for=FOREVER)
    await source.halt(a_halt(clock, queue="mail"))
    await target.halt(a_halt(clock, queue="mail", seconds=60))
    report = await Copy(source, target).run()
    assert report.done
    assert [len(report.kinds[kind].differing) for kind in (Kind.KEYS, Kind.PAUSES)] == [1, 1]
    (inserted,) = await target.insert([new_job(dedupe_key="k")])
    assert inserted.id == mine


async def test_a_job_changed_in_the_target_is_reported(source: MemoryStore, target: MemoryStore) -> None:
    edited, run = await put_many(source, 2)
    done = False

    def meddle(step: Step) -> None:
        nonlocal done
        if step.what == "verifying" and not done:
            done = True
            execute(target, "UPDATE mainspring_jobs SET payload = ? WHERE id = ?", '{"other": 1}', edited)
            run_at_once(target.change(Action.CANCEL, Filter(ids=(run,)), By("meddler", audited=False)))

    report = await Copy(source, target, tell=meddle).run()
    assert not report.done
    assert sorted(report.changed) == sorted([edited, run])
    await by_hand(target, Action.DELETE, edited, run)
    assert (await Copy(source, target).run()).done


class Meddler:
    """Does something in the middle of the verification."""

    def __init__(self, meddle: Callable[[], Awaitable[Any]], clock: ManualClock) -> None:
        self._meddle = meddle
        self._clock = clock
        self._tasks: list[asyncio.Future[Any]] = []

    def __call__(self, step: Step) -> None:
        self._clock.advance(0.001)
        if step.what == "verifying" and not self._tasks:
            self._tasks.append(asyncio.ensure_future(self._meddle()))


async def test_a_job_cancelled_in_the_source_meanwhile_is_reported(
    source: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    """It was copied before, and would run in the target."""
    job_id = await put(source)
    report = await Copy(source, target, tell=Meddler(lambda: by_hand(source, Action.CANCEL, job_id), clock)).run()
    assert not report.done
    assert report.changed == [job_id]
    await by_hand(target, Action.DELETE, job_id)
    assert (await Copy(source, target).run()).done
    assert await claim(target) == []


@pytest.mark.parametrize("is_long", [False, True])
async def test_jobs_deleted_from_the_source_meanwhile_are_reported_once(
    source: MemoryStore, target: MemoryStore, clock: ManualClock, is_long: bool
) -> None:
    """By an operation that began before the copy, or during it."""
    job_id, before = await put_many(source, 2)
    by = By("ana")
    await source.change(Action.DELETE, Filter(ids=(before,)), by)
    clock.advance(1)

    async def delete() -> None:
        await source.change(Action.DELETE, Filter(ids=(job_id,)), by if is_long else By("ana"))

    with pytest.raises(CopyFailed, match=r"jobs were deleted from it by hand \(by ana\)"):
        await Copy(source, target, tell=Meddler(delete, clock)).run()
    assert await halted(target) is not None
    clock.advance(0.001)
    await by_hand(target, Action.DELETE, job_id)
    assert (await Copy(source, target).run()).done
    assert await claim(target) == []


async def test_a_source_that_was_resumed_meanwhile_is_not_believed(
    source: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    """Its jobs may have run, and been forgotten."""
    await put(source)

    async def go_on() -> None:
        await source.resume(By("ana"))

    with pytest.raises(CopyFailed, match="memory://source has been resumed since, and may have run them"):
        await Copy(source, target, tell=Meddler(go_on, clock)).run()
    assert await claim(target) == []
    with pytest.raises(CopyFailed, match="Copy into an empty store; or delete them"):
        await Copy(source, target).run()
    assert await halted(source) is None
    await by_hand(target, Action.DELETE, *(record["id"] for record in await all_of(target, Kind.LIVE)))
    await target.resume(By("ana"))
    assert (await Copy(source, target).run()).done


async def test_a_job_that_ran_in_the_source_meanwhile_is_reported(
    source: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    await put(source)

    async def run_one() -> None:
        await source.resume(By("ana"))
        await end(source, await claim_one(source), Move.DONE)

    report = await Copy(source, target, tell=Meddler(run_one, clock)).run()
    assert not report.done
    assert len(report.changed) == 1
    assert await claim(target) == []


async def test_a_copy_completes_while_the_ledger_grows(
    source: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    """A scheduler of the source writes down that it did not fire."""
    tasks: list[asyncio.Future[Any]] = []

    def tell(_: Step) -> None:
        write = Write(Key("ledger", "", str(len(tasks))), "{}")
        tasks.append(asyncio.ensure_future(source.write([Bundle((write,))])))

    await put(source)
    report = await Copy(source, target, tell=tell).run()
    assert report.done
    assert report.kinds[Kind.DOCUMENTS].equal > 0


async def test_jobs_that_come_late_are_copied_too(source: MemoryStore, target: MemoryStore, clock: ManualClock) -> None:
    """A transaction that had begun before the halt is committed during the copy."""
    elsewhere = MemoryStore(clock=clock)
    late = await put(elsewhere)
    records = await all_of(elsewhere, Kind.LIVE)
    await put(source)
    tasks: list[asyncio.Task[Any]] = []

    def commit(step: Step) -> None:
        if step.what == "verifying" and not tasks:
            tasks.append(asyncio.create_task(source.load(Kind.LIVE, records)))

    assert (await Copy(source, target, tell=commit).run()).done
    assert await status_of(target, late) is Status.PENDING


# -- halts of others --------------------------------------------------------------------------------


async def test_a_halted_source_can_be_copied(source: MemoryStore, target: MemoryStore, clock: ManualClock) -> None:
    await put(source)
    await source.halt(a_halt(clock))
    report = await Copy(source, target).run()
    assert report.done
    assert report.replaced == a_halt(clock)
    assert await halted(source) == COPIED


async def test_a_halt_of_the_target_stays(source: MemoryStore, target: MemoryStore, clock: ManualClock) -> None:
    await put(source)
    await target.halt(a_halt(clock))
    report = await Copy(source, target).run()
    assert report.done
    assert report.target_halt == a_halt(clock)
    assert await claim(target) == []


async def test_a_halt_of_the_target_that_would_end_is_refused(
    source: MemoryStore, target: MemoryStore, clock: ManualClock
) -> None:
    await target.halt(a_halt(clock, seconds=60))
    with pytest.raises(CopyFailed, match=r"halted by ana \(fire drill\) and would go on by itself at 2026-01-01 00:01"):
        await Copy(source, target).run()
    assert await halted(source) is None


@pytest.mark.parametrize("reason", ["copying to memory://other", "copied to memory://other"])
async def test_two_copies_of_one_source_are_refused(
    source: MemoryStore, target: MemoryStore, clock: ManualClock, reason: str
) -> None:
    await source.halt(Halt(COPIER, reason, at(clock)))
    with pytest.raises(
        CopyFailed, match=f"is {reason}; another copy would .*: mainspring resume --force --store memory://sou"
    ):
        await Copy(source, target).run()
    assert await halted(target) is None


@pytest.mark.parametrize("reason", ["copying from memory://other", "copied to memory://other"])
async def test_two_copies_into_one_target_are_refused(
    source: MemoryStore, target: MemoryStore, clock: ManualClock, reason: str
) -> None:
    await target.halt(Halt(COPIER, reason, at(clock)))
    with pytest.raises(CopyFailed, match=f"is {reason}; finish that first"):
        await Copy(source, target).run()
    assert await halted(source) is None


async def test_a_store_is_not_copied_onto_itself(source: MemoryStore) -> None:
    with pytest.raises(ConfigurationError, match="the same store, memory://source"):
        await Copy(source, source).run()


@pytest.mark.parametrize("before", [None, "ana"])
async def test_two_names_of_one_store_are_seen_through(clock: ManualClock, tmp_path: Path, before: str | None) -> None:
    path = fresh_database(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    one, other = SqliteStore(path, clock=clock), SqliteStore(tmp_path / "link" / path.name, clock=clock)
    await put(one)
    if before:
        await one.halt(Halt(before, "drill", at(clock)))
    with pytest.raises(ConfigurationError, match="the same store"):
        await Copy(one, other).run()
    halt = await copying.system_halt(one)
    assert (halt and halt.actor) == before
    await one.close()
    await other.close()


# -- interrupted ------------------------------------------------------------------------------------


class Interrupted(BaseException):
    """As a signal would."""


class Fragile:
    """A store that fails at one of its calls: before it, or after it with the answer lost."""

    def __init__(self, store: Store, count: Callable[[], None]) -> None:
        self._store = store
        self._count = count

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            self._count()
            result = await found(*args, **options)
            self._count()
            return result

        return call


class Countdown:
    def __init__(self, moment: int) -> None:
        self.moment = moment
        self.passed = 0

    def __call__(self) -> None:
        self.passed += 1
        if self.passed == self.moment:
            raise Interrupted


async def attempt(source: Store, target: Store, moment: int) -> Report | None:
    countdown = Countdown(moment)
    try:
        return await Copy(Fragile(source, countdown), Fragile(target, countdown)).run()
    except Interrupted:
        return None


@pytest.mark.slow
async def test_interrupted_at_any_moment_it_is_simply_run_again(clock: ManualClock) -> None:
    moment, done = 0, False
    while not done:
        moment += 1
        source, target = MemoryStore("memory://source", clock=clock), MemoryStore("memory://target", clock=clock)
        ids = await put_many(source, 5)
        await put(target, queue="other")
        done = await attempt(source, target, moment) is not None
        if not done and await halted(target) is None and await halted(source) is not None:
            assert await claim(source) == []  # they do not run twice
        assert (await Copy(source, target).run()).done
        assert await halted(source) == COPIED
        assert await halted(target) is None
        assert await claim(source) == []
        assert sorted(job.id for job in await claim(target)) == sorted(ids)
    assert moment > 40


async def test_interrupted_again_and_again_it_ends_all_the_same(clock: ManualClock) -> None:
    source, target = MemoryStore("memory://source", clock=clock), MemoryStore("memory://target", clock=clock)
    ids = await put_many(source, 11)
    for moment in range(1, 60):
        await attempt(source, target, moment)
    assert (await Copy(source, target).run()).done
    assert sorted(job.id for job in await claim(target)) == sorted(ids)


class Unreachable:
    """A store that cannot be reached at every other call."""

    def __init__(self, store: Store, error: Exception) -> None:
        self._store = store
        self._error = error
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in {"dump", "look_up", "load"}:
            return found

        async def call(*args: Any, **options: Any) -> Any:
            self._calls += 1
            if self._calls % 2:
                raise self._error
            return await found(*args, **options)

        return call


async def test_a_store_that_is_away_for_a_moment_is_asked_again(source: MemoryStore, target: MemoryStore) -> None:
    await put_many(source, 5)
    away = StoreUnavailable("a failover")
    report = await Copy(Unreachable(source, away), Unreachable(target, away)).run()
    assert report.done


async def test_a_full_target_raises_at_once(source: MemoryStore, target: MemoryStore) -> None:
    await put_many(source, 5)
    with pytest.raises(StoreFull):
        await Copy(source, Unreachable(target, StoreFull())).run()
    assert (await Copy(source, target).run()).done
