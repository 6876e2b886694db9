"""Streams of changes: `async for` and `for`, cursors, outages, resets."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import pytest

from mainspring import Change, Mainspring, changes
from mainspring.errors import ChangesLost, ConfigurationError, InvalidCursor, StoreUnavailable
from mainspring.stores.feed import ChangeFilter, ChangeKind, ChangePage, Cursor
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from tests.conformance.scenario import claim_one, join, put, put_many

CREATED = ChangeFilter(kinds=(ChangeKind.CREATED,))


@pytest.fixture
async def app() -> AsyncIterator[Mainspring]:
    app = Mainspring(MemoryStore())
    yield app
    await app.close()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Mainspring]:
    """For code without an event loop."""
    app = Mainspring(SqliteStore(tmp_path / "jobs.db"))
    yield app
    app.run(app.close())


async def test_a_stream_yields_changes_as_they_happen(app: Mainspring) -> None:
    stream = app.changes(where=CREATED)
    await stream.begin()
    follower = aiter(stream)
    for _ in range(3):
        job_id = await put(app.store)
        change = await asyncio.wait_for(anext(follower), 5)
        assert (change.job_id, change.cursor) == (job_id, stream.cursor)


@pytest.mark.parametrize("kinds", [("started",), tuple(ChangeKind), (ChangeKind.STARTED, "completed")])
async def test_a_stream_whose_filter_names_starts_has_them_recorded(app: Mainspring, kinds: tuple[str, ...]) -> None:
    await app.changes(where=CREATED).begin()
    await app.changes().begin()
    assert not await are_starts_recorded(app.store)
    await app.changes(where=ChangeFilter(kinds=kinds)).begin()
    assert await are_starts_recorded(app.store)


async def test_a_stream_that_resumes_has_starts_recorded_too(app: Mainspring) -> None:
    start = await app.changes().begin()
    await put(app.store)
    async for change in app.changes(after=start, where=ChangeFilter(kinds=("created", "started"))):
        assert change.kind == "created"
        break
    assert await are_starts_recorded(app.store)


async def are_starts_recorded(store: Store) -> bool:
    """Claim a job of its own, and look whether the feed has its start."""
    cursor = (await store.changes()).cursor
    await join(store, "w1")
    job_id = await put(store, queue="claimed")
    await claim_one(store, queue="claimed")
    found = (await store.changes(str(cursor))).changes(ChangeFilter(jobs=(job_id,)))
    return [change.kind for change in found] == ["created", "started"]


async def test_a_stream_can_follow_jobs_with_some_tags(app: Mainspring) -> None:
    stream = app.changes(where=ChangeFilter(tags=("vip", "eu")))
    await stream.begin()
    follower = aiter(stream)
    for tags in ((), ("vip",), ("other", "eu", "vip"), ("eu",), ("vip", "eu")):
        job_id = await put(app.store, tags=tags)
        if {"vip", "eu"} <= set(tags):
            assert (await asyncio.wait_for(anext(follower), 5)).job_id == job_id


async def test_a_stream_resumes_after_a_cursor(app: Mainspring) -> None:
    start = await app.changes().begin()
    jobs = await put_many(app.store, 5)
    first = [change async for change in up_to(app, start, 2)]
    rest = [change async for change in up_to(app, first[-1].cursor, 3)]
    assert [change.job_id for change in first + rest] == jobs


async def test_a_wait_with_a_timeout_can_be_repeated(app: Mainspring) -> None:
    """A generator that is cancelled has ended: the next wait would say that there are no more changes, for ever."""
    stream = app.changes(where=CREATED)
    await stream.begin()
    follower = aiter(stream)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(follower), 0.01)
    jobs = [await put(app.store) for _ in range(3)]
    first = await asyncio.wait_for(anext(follower), 5)
    waiting = asyncio.ensure_future(anext(follower))
    waiting.cancel()  # in the middle of a page
    await asyncio.wait([waiting])
    rest = [await asyncio.wait_for(anext(follower), 5) for _ in range(2)]
    assert [change.job_id for change in [first, *rest]] == jobs


async def test_a_plain_loop_does_not_block_an_event_loop(app: Mainspring) -> None:
    with pytest.raises(RuntimeError, match="async for"):
        iter(app.changes())


async def test_a_loop_that_ends_early_closes_its_stream_before_the_application_closes() -> None:
    class Slow(MemoryStore):
        left = False

        @asynccontextmanager
        async def watching(self, notice: Callable[[], None]) -> AsyncIterator[None]:
            try:
                async with super().watching(notice):
                    yield
            finally:
                await asyncio.sleep(0.01)
                self.left = True

    store = Slow()
    app = Mainspring(store)
    start = await app.changes().begin()
    await put(store)
    async for _ in app.changes(after=start):
        break
    assert not store.left
    await app.close()
    assert store.left


async def up_to(app: Mainspring, after: str, number: int) -> AsyncIterator[Change]:
    async for change in app.changes(after=after, where=CREATED):
        yield change
        number -= 1
        if not number:
            return


async def test_the_cursor_moves_on_although_nothing_matches(app: Mainspring) -> None:
    stream = app.changes(where=ChangeFilter(queues=("mail",)))
    start = await stream.begin()
    await put_many(app.store, 5)
    waiting = asyncio.ensure_future(anext(aiter(stream)))
    async with asyncio.timeout(5):
        while stream.cursor == start:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    waiting.cancel()
    assert Cursor.parse(stream.cursor or "").number > Cursor.parse(start).number


async def test_a_lost_place_is_an_error_that_has_a_new_one(app: Mainspring) -> None:
    start = await app.changes().begin()
    foreign = str(Cursor.parse(start)._replace(life="another"))
    stream = app.changes(after=foreign, where=CREATED)
    with pytest.raises(ChangesLost) as lost:
        await anext(aiter(stream))
    job_id = await put(app.store)
    assert (await anext(aiter(stream))).job_id == job_id
    assert stream.cursor is not None
    assert foreign in str(vars(lost.value)) or lost.value.args


async def test_a_stream_survives_an_outage(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "RETRY_PAUSE", 0.01)
    stream = app.changes(where=CREATED)
    await stream.begin()
    job_id = await put(app.store)
    read, outages = app.store.changes, iter(range(3))

    async def away_three_times(after: str | None = None, *, limit: int = 500, starts: bool = False) -> ChangePage:
        if next(outages, None) is not None:
            raise StoreUnavailable("away")
        return await read(after, limit=limit, starts=starts)

    monkeypatch.setattr(app.store, "changes", away_three_times)
    assert (await asyncio.wait_for(anext(aiter(stream)), 5)).job_id == job_id


def test_a_loop_without_an_event_loop_sees_changes_of_other_threads(plain: Mainspring) -> None:
    stream = plain.changes(where=CREATED)
    plain.run(stream.begin())
    jobs: list[str] = []
    enqueuer = threading.Thread(target=lambda: jobs.extend(plain.run(put_many(plain.store, 3))))
    enqueuer.start()
    found = [change.job_id for change in islice(stream, 3)]
    enqueuer.join()
    assert found == jobs


def test_garbage_is_refused_at_once(plain: Mainspring) -> None:
    with pytest.raises(InvalidCursor, match="'garbage' is not a cursor"):
        plain.changes(after="garbage")
    with pytest.raises(ConfigurationError, match=r"must be a tuple, not a string; write queues=\('mail',\)"):
        ChangeFilter(queues="mail")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="'born' is not a kind of change; use any of created"):
        ChangeFilter(kinds=("born",))


INTERRUPTED = """
import sys
from mainspring import Mainspring
app = Mainspring(f"sqlite:///{sys.argv[1]}")
print("follows", flush=True)
try:
    for change in app.changes():
        print(change.kind, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
app.run(app.close())
"""


@pytest.mark.slow
def test_a_loop_that_waits_can_be_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "jobs.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "follows\n"
        while not list(tmp_path.glob("jobs.db-workers/*")) and process.poll() is None:
            pass
        process.send_signal(signal.SIGINT)
        said, wrong = process.communicate(timeout=30)
    assert (said, process.returncode, wrong) == ("interrupted\n", 0, "")
