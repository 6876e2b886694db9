"""Durable subscribers within one process; tests/chaos/test_subscribers.py kills and stops real ones."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.errors import ConfigurationError, StoreReadOnly, StoreUnavailable
from mainspring.events import SubscriberReset
from mainspring.stores.documents import Bundle, Key, Write
from mainspring.stores.feed import Change, ChangeFilter, ChangeKind, Cursor
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from mainspring.subscribers import COLLECTION, SubscriberState, Timing
from tests.conformance.scenario import claim_one, join, put, put_many

PATIENCE = 10.0  # seconds; only a failing test waits this long
QUICK = Timing(lease=0.4, sign_of_life=0.05, first_pause=0.01, longest_pause=0.02, outage_pause=0.01)
CREATED = ChangeFilter(kinds=(ChangeKind.CREATED,))


@pytest.fixture
async def app() -> AsyncIterator[Mainspring]:
    app = Mainspring(MemoryStore())
    app.subscribers.timing = QUICK
    yield app
    await app.close()


@dataclass
class Notes:
    """What a subscriber was called with."""

    changes: list[Change] = field(default_factory=list)

    def __call__(self, change: Change) -> None:
        self.changes.append(change)

    @property
    def jobs(self) -> list[str | None]:
        return [change.job_id for change in self.changes]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what it waits for sets no event
            await asyncio.sleep(0.005)


async def owned(app: Mainspring) -> SubscriberState:
    """Wait until a worker serves the only subscriber."""
    async with asyncio.timeout(PATIENCE):
        while not (states := await app.subscribers.states()) or states[0].owner is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return states[0]


# -- what it is called for -----------------------------------------------------------------------------


async def test_a_subscriber_is_called_for_each_change_that_matches_in_order(app: Mainspring) -> None:
    notes = Notes()
    app.subscriber("mailer", where=replace(CREATED, queues=("mail",)))(notes)
    await put(app.store, queue="mail")
    async with app.worker(queues=["none"]):
        await owned(app)
        jobs = [await put(app.store, queue=queue) for queue in ("mail", "other", "mail", "mail")]
        await until(lambda: len(notes.jobs) == 3)
    assert notes.jobs == [jobs[0], jobs[2], jobs[3]]


async def test_a_subscriber_is_called_for_jobs_with_its_tags(app: Mainspring) -> None:
    notes = Notes()
    app.subscriber("mailer", where=replace(CREATED, tags=("vip",)))(notes)
    async with app.worker(queues=["none"]):
        await owned(app)
        jobs = [await put(app.store, tags=tags) for tags in ((), ("vip",), ("eu",), ("eu", "vip"))]
        await until(lambda: len(notes.jobs) == 2)
    assert notes.jobs == [jobs[1], jobs[3]]


async def test_a_subscriber_whose_filter_names_starts_is_called_for_them(app: Mainspring) -> None:
    notes = Notes()
    app.subscriber("mailer", where=ChangeFilter(kinds=("started",)))(notes)
    async with app.worker(queues=["none"]):
        await owned(app)
        await join(app.store, "w1")
        job_id = await put(app.store)
        await claim_one(app.store)
        await until(lambda: notes.jobs)
    assert notes.jobs == [job_id]


@pytest.mark.parametrize("kind", ["coroutine", "function"])
async def test_coroutines_run_on_the_loop_and_functions_in_threads(app: Mainspring, kind: str) -> None:
    threads: list[int] = []

    def note(_: Change) -> None:
        threads.append(threading.get_ident())

    async def note_here(change: Change) -> None:
        note(change)

    app.subscriber("mailer")(note_here if kind == "coroutine" else note)
    async with app.worker(queues=["none"]):
        await owned(app)
        await put(app.store)
        await until(lambda: threads)
    assert (threads[0] == threading.get_ident()) == (kind == "coroutine")


async def test_a_subscriber_goes_on_where_it_stopped(app: Mainspring) -> None:
    notes = Notes()
    app.subscriber("mailer", where=CREATED)(notes)
    async with app.worker(queues=["none"]):
        await owned(app)
        first = await put(app.store)
        await until(lambda: notes.jobs)
    more = await put_many(app.store, 3)
    async with app.worker(queues=["none"]):
        await until(lambda: len(notes.jobs) == 4)
    assert notes.jobs == [first, *more]


async def test_two_workers_of_one_process_handle_each_change_once(app: Mainspring) -> None:
    notes = Notes()
    app.subscriber("mailer", where=CREATED)(notes)
    async with app.worker(queues=["none"]), app.worker(queues=["none"]):
        await owned(app)
        jobs = [await put(app.store) for _ in range(30)]
        await until(lambda: len(notes.jobs) >= 30)
        await asyncio.sleep(2 * QUICK.lease)  # the other worker would have noticed silence by then
    assert notes.jobs == jobs


async def test_two_processes_handle_each_change_once(tmp_path: Path) -> None:
    notes = Notes()
    apps = [Mainspring(SqliteStore(tmp_path / "jobs.db")) for _ in range(2)]
    for app in apps:
        app.subscribers.timing = QUICK
        app.subscriber("mailer", where=CREATED)(notes)
    async with apps[0], apps[1], apps[0].worker(queues=["none"]), apps[1].worker(queues=["none"]):
        await owned(apps[0])
        jobs = [await put(apps[number % 2].store) for number in range(30)]
        await until(lambda: len(notes.jobs) >= 30)
    assert notes.jobs == jobs


# -- failures ------------------------------------------------------------------------------------------


async def test_a_failing_function_is_called_again_and_later_changes_wait(app: Mainspring) -> None:
    calls: list[tuple[str, str | None]] = []

    @app.subscriber("mailer", where=CREATED)
    async def fail_twice(change: Change) -> None:
        calls.append((change.id, change.job_id))
        if len(calls) in {2, 3}:
            raise ValueError("no")

    async with app.worker(queues=["none"]):
        await owned(app)
        jobs = await put_many(app.store, 3)
        await until(lambda: len(calls) == 5)
        (state,) = await app.subscribers.states()
    assert [job_id for _, job_id in calls] == [jobs[0], jobs[1], jobs[1], jobs[1], jobs[2]]
    assert len({change_id for change_id, _ in calls}) == 3
    assert state.failures == 0


class Mute(Exception):
    def __str__(self) -> str:
        raise LookupError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StopIteration(), "StopIteration"), (SystemExit(3), "SystemExit: 3"), (GeneratorExit(), "GeneratorExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"), (asyncio.CancelledError(), "CancelledError"),
        (Mute(), "Mute: <its message raised LookupError>"),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, BaseException) else "",
)  # fmt: skip
@pytest.mark.parametrize("kind", ["coroutine", "function"])
async def test_whatever_a_function_raises_is_a_failure_of_that_change(
    app: Mainspring, kind: str, error: BaseException, words: str
) -> None:
    """`next()` of an empty iterator hung the subscriber for ever, and `sys.exit()` ended the worker."""
    calls, states = list[str](), list[SubscriberState]()

    def fail_twice(change: Change) -> None:
        calls.append(change.id)
        if len(calls) < 3:
            raise error

    async def fail_twice_on_the_loop(change: Change) -> None:
        states.extend(await app.subscribers.states())
        fail_twice(change)

    app.subscriber("s", where=CREATED)(fail_twice if kind == "function" else fail_twice_on_the_loop)
    async with app.worker():
        await owned(app)
        first, second = await put(app.store), await put(app.store)
        await until(lambda: len(calls) == 4)
    assert first != second
    assert len(set(calls)) == 2
    assert calls[0] == calls[1] == calls[2]
    assert [state.failures for state in states] == ([] if kind == "function" else [0, 1, 2, 0])
    assert all(words in state.error for state in states if state.failures)


async def test_the_store_knows_how_often_and_why_a_function_failed(app: Mainspring) -> None:
    app.subscribers.timing = replace(QUICK, first_pause=60, longest_pause=60)

    @app.subscriber("mailer", where=CREATED)
    def fail(_: Change) -> None:
        raise ValueError("no")

    async with app.worker(queues=["none"]):
        before = await owned(app)
        await put(app.store)
        async with asyncio.timeout(PATIENCE):
            while not (state := (await app.subscribers.states())[0]).failures:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    assert (state.failures, state.error) == (1, "ValueError: no")
    assert Cursor.parse(state.cursor).number == Cursor.parse(before.cursor).number
    assert (await app.subscribers.states())[0].owner is None  # a stop does not wait for the pause
    async with app.worker(queues=["none"]):
        assert (await owned(app)).error == "ValueError: no"  # the next worker keeps it


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreReadOnly("a failover"), RuntimeError("a bug")])
async def test_an_outage_after_the_action_does_not_repeat_it(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    notes = Notes()
    app.subscriber("mailer", where=CREATED)(notes)
    write, outages = app.store.write, iter(range(3))

    async def away_three_times(bundles: list[Bundle]) -> object:
        if notes.jobs and next(outages, None) is not None:
            raise error
        return await write(bundles)

    monkeypatch.setattr(app.store, "write", away_three_times)
    async with app.worker(queues=["none"]):
        await owned(app)
        jobs = [await put(app.store), await put(app.store)]
        await until(lambda: len(notes.jobs) >= 2 and next(outages, None) is None)
    assert notes.jobs == jobs


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreReadOnly("a failover"), RuntimeError("a bug")])
async def test_an_outage_during_the_action_does_not_cut_it_off(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    write, failed, ended, notes = app.store.write, asyncio.Event(), asyncio.Event(), Notes()

    @app.subscriber("mailer", where=CREATED)
    async def slow(change: Change) -> None:
        notes(change)
        await failed.wait()
        await asyncio.sleep(QUICK.sign_of_life)
        ended.set()

    async def away_once(bundles: list[Bundle]) -> object:
        if notes.jobs and not failed.is_set():
            failed.set()
            raise error
        return await write(bundles)

    monkeypatch.setattr(app.store, "write", away_once)
    async with app.worker(queues=["none"]):
        await owned(app)
        job_id = await put(app.store)
        await asyncio.wait_for(ended.wait(), PATIENCE)
    assert notes.jobs == [job_id]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreReadOnly("a failover")])
async def test_an_outage_longer_than_the_lease_is_not_taken_for_the_death_of_the_owner(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The worker that has acted moves the place as soon as the store is back. Another one waits long enough for it."""
    store, notes, is_away = MemoryStore(), Notes(), False
    apps = [Mainspring(store), Mainspring(store)]
    for app in apps:
        app.subscribers.timing = QUICK

        @app.subscriber("mailer", where=CREATED)
        async def act(change: Change) -> None:
            nonlocal is_away
            notes(change)
            is_away = True

    def unless_away(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **options: Any) -> Any:
            if is_away:
                raise error
            return await method(*args, **options)

        return call

    monkeypatch.setattr(store, "write", unless_away(store.write))
    if isinstance(error, StoreUnavailable):  # a server that takes no writes still answers reads
        monkeypatch.setattr(store, "documents", unless_away(store.documents))
    async with apps[0], apps[0].worker(queues=["none"]), apps[1].worker(queues=["none"]):
        await owned(apps[0])
        await asyncio.sleep(2 * QUICK.sign_of_life)  # the other worker has seen the owner by then
        first = await put(store)
        await until(lambda: is_away)
        await asyncio.sleep(2 * QUICK.lease)
        is_away = False
        second = await put(store)
        await until(lambda: second in notes.jobs)
        is_away = False
    assert notes.jobs == [first, second]


# -- the place ---------------------------------------------------------------------------------------------


async def test_a_function_may_take_longer_than_the_lease(app: Mainspring) -> None:
    notes, other = Notes(), asyncio.Event()

    @app.subscriber("mailer", where=CREATED)
    async def slow(change: Change) -> None:
        notes(change)
        await asyncio.sleep(3 * QUICK.lease)
        other.set()

    async with app.worker(queues=["none"]), app.worker(queues=["none"]):
        await owned(app)
        await put(app.store)
        await asyncio.wait_for(other.wait(), PATIENCE)
    assert len(notes.jobs) == 1


async def test_a_worker_that_stops_finishes_the_change_and_hands_over_the_place(app: Mainspring) -> None:
    begun, may_end, notes = asyncio.Event(), asyncio.Event(), Notes()

    @app.subscriber("mailer", where=CREATED)
    async def slow(change: Change) -> None:
        notes(change)
        begun.set()
        await may_end.wait()

    async with app.worker(queues=["none"]):
        await owned(app)
        first, second = await put_many(app.store, 2)
        await asyncio.wait_for(begun.wait(), PATIENCE)
        asyncio.get_running_loop().call_later(0.1, may_end.set)  # the worker is stopping by then
    (state,) = await app.subscribers.states()
    assert (state.owner, notes.jobs) == (None, [first])
    async with app.worker(queues=["none"]):
        await until(lambda: len(notes.jobs) == 2)
    assert notes.jobs == [first, second]


async def test_a_silent_owner_loses_the_place(app: Mainspring) -> None:
    notes = Notes()
    app.subscriber("mailer", where=CREATED)(notes)
    async with app.worker(queues=["none"]):
        await owned(app)
    (document,) = await app.store.documents([Key(COLLECTION, "", "mailer")])
    await take_for(app, document.data)
    job_id = await put(app.store)
    async with app.worker(queues=["none"]):
        await until(lambda: notes.jobs)
    assert notes.jobs == [job_id]


async def take_for(app: Mainspring, data: str) -> None:
    """Let a process that is dead own the place."""
    dead = data.replace('"owner": null', '"owner": "host:1:dead"')
    assert dead != data
    await app.store.write([Bundle((Write(Key(COLLECTION, "", "mailer"), dead),))])


async def test_a_subscriber_that_is_too_late_goes_on_from_now_and_it_is_told(app: Mainspring) -> None:
    notes, resets = Notes(), list[str]()
    app.subscriber("mailer", where=CREATED)(notes)
    app.on(SubscriberReset)(lambda event: resets.append(event.subscriber))
    async with app.worker(queues=["none"]):
        state = await owned(app)
    (document,) = await app.store.documents([Key(COLLECTION, "", "mailer")])
    foreign = str(Cursor.parse(state.cursor)._replace(life="another"))
    await replace_cursor(app, document.data, state.cursor, foreign)
    await put(app.store)
    async with app.worker(queues=["none"]):
        await until(lambda: resets)
        job_id = await put(app.store)
        await until(lambda: notes.jobs)
    assert (notes.jobs, resets) == ([job_id], ["mailer"])


async def replace_cursor(app: Mainspring, data: str, old: str, new: str) -> None:
    changed = json.dumps({**json.loads(data), "cursor": new})
    assert old != new
    await app.store.write([Bundle((Write(Key(COLLECTION, "", "mailer"), changed),))])


# -- names ---------------------------------------------------------------------------------------------------


async def test_a_name_is_given_once(app: Mainspring) -> None:
    app.subscriber("mailer")(Notes())
    with pytest.raises(ConfigurationError, match="there is a subscriber named 'mailer' already"):
        app.subscriber("mailer")(Notes())


async def test_a_removed_subscriber_is_forgotten(app: Mainspring) -> None:
    app.subscriber("mailer")(Notes())
    async with app.worker(queues=["none"]):
        await owned(app)
    assert await app.subscribers.remove("mailer")
    assert await app.subscribers.states() == []
    assert not await app.subscribers.remove("mailer")


@pytest.mark.parametrize("function", [3, lambda: None, lambda _change, _more: None, lambda *, change: change])
def test_what_cannot_be_called_with_a_change_is_refused_at_once(app: Mainspring, function: Any) -> None:
    with pytest.raises(ConfigurationError, match="a subscriber is"):
        app.subscriber("wrong")(function)
    assert not app.subscribers.registered


def test_what_can_be_called_with_a_change_is_a_subscriber(app: Mainspring) -> None:
    functions: list[Any] = [print, Notes(), [].append, lambda change, more=1: (change, more), lambda *changes: changes]
    for number, function in enumerate(functions):
        app.subscriber(f"right-{number}")(function)
    assert len(app.subscribers.registered) == len(functions)


def test_a_filter_of_changes_must_be_one(app: Mainspring) -> None:
    where: Any = {"kinds": ("created",)}
    with pytest.raises(ConfigurationError, match="give a ChangeFilter"):
        app.changes(where=where)
    with pytest.raises(ConfigurationError, match="give a ChangeFilter"):
        app.subscriber("wrong", where=where)(print)
