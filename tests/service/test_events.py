"""Live events: in order, resumable on any process, with an explicit reset, and only for those who may see them."""

from __future__ import annotations

import asyncio
import random
import socket as sockets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
import pytest

from mainspring import ChangeFilter, ChangeKind, Mainspring
from mainspring.changes import ChangeStream
from mainspring.clock import to_datetime
from mainspring.errors import StoreUnavailable
from mainspring.job import Move, ProgressReport
from mainspring.json_data import plain
from mainspring.service import Scope, Tokens, hub
from mainspring.service import live as live_module
from mainspring.service.event_frames import Event, Frame, Names, Parcel
from mainspring.service.event_socket import SocketWire
from mainspring.service.event_stream import SseWire
from mainspring.service.follower import Follower
from mainspring.service.guard import Caller
from mainspring.service.live import Live, Pace, Wish
from mainspring.stores.feed import Change, Cursor
from mainspring.stores.protocol import Halt, Store, Want, WorkerInfo
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import by_silence, end, put, put_many, running
from tests.conformance.takeover import OVERDUE, TIMEOUT, after
from tests.postgres import RecycledStore
from tests.service.event_client import PATIENCE, Got, Served, serving

QUICK = Pace(keep_alive=0.05, check=0.05, grace=0.5)
EVERYTHING = Wish(ChangeFilter(), None, Names.KIND)


def dynamodb_store(_: Path) -> Store:
    from tests.dynamodb import FreshStore

    return FreshStore()


STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "jobs.db"),
    "postgres": lambda _: RecycledStore(),
    "dynamodb": dynamodb_store,
}
KINDS = [kind if kind == "memory" else pytest.param(kind, marks=pytest.mark.slow) for kind in STORES]


@pytest.fixture
async def app() -> AsyncIterator[Mainspring]:
    async with Mainspring(MemoryStore()) as app:
        yield app


@pytest.fixture(params=KINDS)
async def any_app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mainspring]:
    """An application over each store in turn."""
    async with Mainspring(STORES[request.param](tmp_path)) as app:
        yield app


def jobs_of(events: Sequence[Got]) -> list[str | None]:
    return [event.job for event in events]


async def start_of(store: Store) -> str:
    return str((await store.changes()).cursor)


async def feed_after(store: Store, cursor: str) -> list[Change]:
    """Return the feed as it is read directly."""
    found: list[Change] = []
    while True:
        page = await store.changes(cursor)
        assert not page.reset
        found += page.changes(ChangeFilter(), Cursor.parse(cursor))
        cursor = str(page.cursor)
        if not page.more and not page.entries:
            return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what ends is not told
            await asyncio.sleep(0.005)


async def worker_of(store: Store) -> None:
    await store.join(WorkerInfo("w1", "host", 1, ("*",)), lambda _: None)


# -- frames ---------------------------------------------------------------------------------------


async def test_the_first_frame_is_hello_and_then_changes_come_in_order(any_app: Mainspring) -> None:
    async with serving(any_app) as served, await served.events() as client:
        assert client.hello.event == "hello"
        assert client.hello.id
        assert client.hello.data["resumed"] is False
        jobs = [await put(any_app.store, queue="mail", target=("order", "7")) for _ in range(5)]
        events = await client.take(5)
        assert jobs_of(events) == jobs
        assert events[0].data == {
            "id": events[0].data["id"], "at": events[0].data["at"], "kind": "created", "job_id": jobs[0],
            "task": events[0].data["task"], "queue": "mail", "target": {"type": "order", "id": "7"}, "data": {},
        }  # fmt: skip


async def test_the_answer_is_not_to_be_stored_or_held_up_by_proxies(app: Mainspring) -> None:
    async with serving(app) as served, await served.events() as client:
        headers = client.response.headers
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-store", "no")


async def test_clients_are_told_to_come_back_after_about_two_seconds(app: Mainspring) -> None:
    async with serving(app) as served:
        lines = []
        for _ in range(5):
            async with served.http.get(f"{served.url}/v1/events") as response:
                lines.append((await response.content.readline()).decode())
    waits = [int(line.removeprefix("retry: ")) for line in lines]
    assert all(1000 <= wait <= 3000 for wait in waits)
    assert len(set(waits)) > 1


async def test_silence_has_a_comment_and_the_place_moves_on_though_nothing_matches(app: Mainspring) -> None:
    async with serving(app, QUICK) as served, await served.events(queue="mail") as client:
        await put_many(app.store, 3, queue="other")
        last = await start_of(app.store)
        async with asyncio.timeout(PATIENCE):
            while client.last_id != last:
                await client._block()
        assert client.comments
    async with serving(app) as served, await served.events(after=client.last_id) as client:
        job_id = await put(app.store)
        assert (await client.next()).job == job_id


async def test_a_client_that_catches_up_hears_of_its_place_though_nothing_matches(app: Mainspring) -> None:
    start = await start_of(app.store)
    for _ in range(100):
        await put(app.store, queue="other")
    last, real = await start_of(app.store), app.store.changes

    async def slow(*args: Any, **options: Any) -> Any:
        await asyncio.sleep(0.01)
        return await real(*args, **options)

    with patch.object(app.store, "changes", slow), patch("mainspring.service.follower.PAGE", 1):
        async with serving(app, Pace(keep_alive=0.1)) as served, await served.events(start, queue="mail") as client:
            async with asyncio.timeout(PATIENCE):
                while not client.comments:
                    await client._block()
    assert client.last_id not in {start, last}


@pytest.mark.parametrize("transport", ["events", "socket"])
async def test_changes_without_a_name_do_not_count_as_a_sign_of_life(app: Mainspring, transport: str) -> None:
    async with serving(app, Pace(keep_alive=0.1)) as served, AsyncExitStack() as stack:
        stack.push_async_callback(ended, halting := asyncio.create_task(keep_halting(app.store)))
        async with asyncio.timeout(PATIENCE):
            if transport == "events":
                client = await served.events(names="job")
                while not client.comments:
                    await client._block()
            else:
                socket = await served.socket({"subscribe": "events", "names": "job"})
                assert [(await received(socket)).event for _ in range(2)] == ["hello", "keep_alive"]
        assert not halting.done()


async def keep_halting(store: Store) -> None:
    """Make changes that have no name among those of other libraries."""
    while True:
        await store.halt(Halt("ana", "", to_datetime(store.clock.now()), None, "mail", accept=True))
        await asyncio.sleep(0.01)


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_a_stream_ends_after_its_lifetime_with_a_fresh_id(any_app: Mainspring) -> None:
    async with serving(any_app, Pace(lifetime=0.3)) as served:
        async with await served.events(queue="mail") as client:
            await put_many(any_app.store, 2)
            (end,) = await client.rest()
        assert (end.event, end.data) == ("end", {"reason": "lifetime"})
        job_id = await put(any_app.store, queue="mail")
        async with await served.events(after=end.id) as client:
            assert jobs_of([await client.next()]) == [job_id]


async def test_streams_end_when_the_service_stops(app: Mainspring) -> None:
    async with serving(app) as served, await served.events() as client:
        job_id = await put(app.store)
        first = await client.next()
        await served.live.close()
        (end,) = await client.rest()
        assert (first.job, end.data) == (job_id, {"reason": "closing"})
        assert end.id == first.id


# -- filters --------------------------------------------------------------------------------------


async def test_filters_select(app: Mainspring) -> None:
    store = app.store
    await worker_of(store)
    async with serving(app) as served, AsyncExitStack() as stack:
        mine = await put(store, run_at=1)
        queries: list[dict[str, Any]] = [
            {"kind": "created"},
            {"queue": "mail"},
            {"task": "send"},
            {"job": mine},
            {"target_type": "order", "target_id": "7"},
            {"kind": ["started", "completed"], "queue": ["default", "mail"]},
        ]
        clients = [await stack.enter_async_context(await served.events(**query)) for query in queries]
        mail = await put(store, queue="mail", task="send", target=("order", "7"))
        await put(store, queue="other", target=("order", "8"))
        held = await running(store, queue="own")
        (claim,) = (await store.claim("w1", [Want("default", 1)])).jobs
        assert claim.id == mine
        await end(store, claim, Move.DONE)
        expected = [3, 1, 1, 2, 1, 2]
        found = [await client.take(number) for client, number in zip(clients, expected, strict=True)]
    assert [event.data["kind"] for event in found[0]] == ["created"] * 3
    assert jobs_of(found[1]) == jobs_of(found[2]) == jobs_of(found[4]) == [mail]
    assert [event.data["kind"] for event in found[3]] == ["started", "completed"]
    assert jobs_of(found[3]) == jobs_of(found[5]) == [mine, mine]
    assert held.id in jobs_of(found[0])


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"kind": "exploded"}, "invalid_request"),
        ({"unknown": "x"}, "invalid_request"),
        ({"names": "x"}, "invalid_request"),
        ({"queue": ""}, "invalid_request"),
        ({"last_event_id": "garbage"}, "invalid_cursor"),
        ({"last_event_id": str(Cursor("a", 2**70))}, "invalid_cursor"),
        ({"last_event_id": "WyJhIiwxZTk5OSxudWxsLCIiXQ"}, "invalid_cursor"),
    ],
)
async def test_a_wrong_request_gets_a_problem_instead_of_a_stream(
    app: Mainspring, query: dict[str, str], code: str
) -> None:
    async with serving(app) as served, await served.events(**query) as client:
        assert (client.status // 100, await client.problem()) == (4, code)
        assert served.live.number == 0
        assert not served.live.hub.is_running


async def test_names_as_other_libraries_have_them(app: Mainspring) -> None:
    store = app.store
    await worker_of(store)
    async with serving(app) as served, await served.events(names="job") as client:
        held = await running(store)
        await store.halt(Halt("ana", "", to_datetime(store.clock.now()), None, "mail", accept=True))
        await end(store, held, Move.RETRY, delay=1500)
        created, started, retrying = await client.take(3)
    assert [created.event, started.event, retrying.event] == ["job:created", "job:started", "job:retrying"]
    assert (created.data["jobId"], created.data["type"]) == (held.id, retrying.data["type"])
    assert started.data["workerId"] == "w1"
    names = ("attempt", "maxAttempts", "delayMs", "reason")
    assert [retrying.data[name] for name in names] == [1, retrying.data["maxAttempts"], 1500, "error"]


async def test_workers_and_lost_runs_have_the_names_of_other_libraries(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(tmp_path / "jobs.db", clock=clock)
    async with Mainspring(store) as app, serving(app) as served, await served.events(names="job") as client:
        await store.join(WorkerInfo("w1", "host", 1, ("*",), remote=True), None)
        late, began = await running(store, timeout=TIMEOUT), clock.now()
        await after(store, clock, OVERDUE)
        stalled = await client.named("job:stalled")
        held = await running(store, queue="mail")
        await by_silence(store, clock, "w1")
        crashed, stopped = await client.named("job:crashed"), await client.named("worker:stopped")
    moments = {"startedAt": plain(to_datetime(began)), "timeoutAt": plain(to_datetime(began + TIMEOUT))}
    assert {name: stalled.data[name] for name in ("jobId", *moments)} == {"jobId": late.id, **moments}
    assert (crashed.data["jobId"], crashed.data["workerId"], crashed.data["timeoutAt"]) == (held.id, "w1", None)
    assert (stopped.data["workerId"], stopped.data["reason"]) == ("w1", "died")


# -- order and resume -----------------------------------------------------------------------------


async def test_a_client_resumes_after_any_change(any_app: Mainspring) -> None:
    """On the same process, whose ring has the change, and on another one, which reads the store."""
    store = any_app.store
    async with serving(any_app) as first, serving(any_app) as second, await first.events() as watching:
        jobs = [*await put_many(store, 3), await put(store, queue="mail")]
        events = await watching.take(len(jobs))
        for place, event in enumerate([watching.hello, *events]):
            for served in (first, second):
                async with await served.events(after=event.id) as client:
                    assert client.hello.data["resumed"] is True
                    rest = await client.take(len(jobs) - place)
                assert [each.id for each in rest if served is first] == [
                    e.id for e in events[place:] if served is first
                ]
                assert Counter(jobs_of(rest)) == Counter(jobs_of(events[place:]))


async def test_a_client_that_comes_back_by_a_parameter_resumes(app: Mainspring) -> None:
    async with serving(app) as served:
        start = await start_of(app.store)
        job_id = await put(app.store)
        async with await served.events(last_event_id=start) as client:
            assert (await client.next()).job == job_id


async def test_clients_that_leave_and_come_back_lose_repeat_and_reorder_nothing(any_app: Mainspring) -> None:
    """While jobs change, in overlapping transactions on PostgreSQL, each client hops between three processes."""
    rng = random.Random(7)
    start = await start_of(any_app.store)
    await worker_of(any_app.store)
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(serving(any_app)) for _ in range(3)]
        done = asyncio.Event()
        clients = [asyncio.create_task(hop(processes, start, rng, done)) for _ in range(4)]
        await asyncio.gather(*[write(any_app.store, random.Random(seed)) for seed in range(4)])
        last = await put(any_app.store, queue="last")
        seen = await asyncio.wait_for(asyncio.gather(*clients), 60)
    truth = await feed_after(any_app.store, start)
    assert truth[-1].job_id == last
    for events in seen:
        check_against(truth, events)


async def hop(processes: list[Served], after: str, rng: random.Random, done: asyncio.Event) -> list[Got]:
    """Follow until the last job, on a new connection after every few events."""
    found: list[Got] = []
    while not done.is_set() and not (found and found[-1].data["queue"] == "last"):
        async with await rng.choice(processes).events(after=after) as client:
            for _ in range(rng.choice((5, 20, 40))):
                event = await client.next()
                assert event.event not in {"reset", "end"}
                found.append(event)
                after = event.id or after
                if event.data["queue"] == "last":
                    break
    return found


async def write(store: Store, rng: random.Random) -> None:
    for _ in range(12):
        held = await running(store, queue=f"q{rng.random()}")
        await put_many(store, rng.choice((1, 4)))
        await end(store, held, rng.choice((Move.DONE, Move.DEAD, Move.SNOOZE)))
        await asyncio.sleep(rng.uniform(0, 0.01))


def check_against(truth: Sequence[Change], events: Sequence[Got]) -> None:
    ids = [event.data["id"] for event in events]
    assert Counter(ids) == Counter(change.id for change in truth)
    seen: dict[str | None, list[str]] = {}
    for event in events:
        seen.setdefault(event.job, []).append(event.data["kind"])
    happened: dict[str | None, list[str]] = {}
    for change in truth:
        happened.setdefault(change.job_id, []).append(change.kind)
    assert {job: kinds for job, kinds in seen.items() if job} == {job: kinds for job, kinds in happened.items() if job}


async def test_a_client_far_behind_the_ring_catches_up(any_app: Mainspring) -> None:
    start = await start_of(any_app.store)
    with patch.object(hub, "RING", 10), patch("mainspring.service.follower.PAGE", 7):
        async with serving(any_app) as served, await served.events() as watching:
            jobs = [await put(any_app.store) for _ in range(40)]
            await watching.take(40)
            async with await served.events(after=start) as client:
                assert jobs_of(await client.take(40)) == jobs
                job_id = await put(any_app.store)
                assert (await client.next()).job == job_id


async def test_clients_that_catch_up_do_not_all_read_at_once(app: Mainspring) -> None:
    start = Cursor.parse(await start_of(app.store))
    for _ in range(3):
        await put(app.store)
    real, reading, most = app.store.changes, 0, 0

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        for _ in range(10):
            await asyncio.sleep(0)
        reading -= 1
        return await real(*args, **options)

    reader = hub.Hub(app)
    followers = [Follower(reader, app.store, ChangeFilter(), start) for _ in range(10)]
    with patch("mainspring.service.follower.PAGE", 1), patch.object(app.store, "changes", counted):
        await asyncio.gather(*(follower.begin() for follower in followers))
        assert all(await asyncio.gather(*(follower.next() for follower in followers)))
        assert all(await asyncio.gather(*(follower.next() for follower in followers)))
    assert most <= hub.OWN_READS + 1  # and the hub
    await reader.close("closing")


# -- gaps -----------------------------------------------------------------------------------------


async def test_a_cursor_of_another_life_of_the_store_is_reset(any_app: Mainspring) -> None:
    cursor = Cursor.parse(await start_of(any_app.store))
    async with serving(any_app) as served, await served.events(after=str(cursor._replace(life="old"))) as client:
        reset = await client.next()
        assert (reset.event, reset.data) == ("reset", {"reason": "lost"})
        job_id = await put(any_app.store)
        event = await client.next()
        assert event.job == job_id
    async with serving(any_app) as served, await served.events(after=reset.id) as client:
        assert (await client.next()).data == event.data


async def test_a_feed_that_is_lost_while_it_is_followed_resets_its_clients(app: Mainspring) -> None:
    async with serving(app) as served, await served.events() as client:
        await put(app.store)
        await client.next()
        real = app.store.changes
        news = (await real()).cursor

        async def lost(*args: Any, **options: Any) -> Any:
            page = await real(*args, **options)
            page.entries, page.reset, page.cursor = [], True, news
            return page

        with patch.object(app.store, "changes", lost):
            await put(app.store)
            reset, end = await client.rest()
        assert (reset.event, reset.data, reset.id) == ("reset", {"reason": "lost"}, str(news))
        assert (end.event, end.data) == ("end", {"reason": "lost"})


async def test_a_slow_client_is_reset_and_closed(app: Mainspring) -> None:
    async with serving(app, Pace(grace=30)) as served:
        reader, writer = await raw_stream(served)
        async with await served.events(queue="none"):
            for _ in range(100):
                await put_many(app.store, 500, queue="q" * 100)
                await asyncio.sleep(0.03)
                if any(stream._follower.subscription.over for stream in served.live._streams):
                    break
            async with asyncio.timeout(PATIENCE):
                text = (await reader.read()).decode()
        writer.close()
    assert text.count('event: reset\ndata: {"reason":"slow"}') == 1
    assert text.rstrip().endswith('event: end\ndata: {"reason":"slow"}\n\n\r\n0')
    async with serving(app) as served, await served.events(after=await start_of(app.store)) as client:
        assert client.hello.data["resumed"]


async def test_a_client_that_takes_nothing_at_all_is_cut_off(app: Mainspring) -> None:
    async with serving(app, Pace(grace=0.2)) as served:
        _, writer = await raw_stream(served)
        async with asyncio.timeout(PATIENCE):
            while served.live._streams:
                await put_many(app.store, 500, queue="q" * 100)
                await asyncio.sleep(0.03)
        writer.close()


class StuckWire:
    """A client that is connected, and takes nothing."""

    async def hello(self, frame: Frame, retry: float) -> None:
        await never(frame, retry)

    async def send(self, frame: Frame) -> None:
        await never(frame)

    async def send_parcels(self, parcels: Sequence[Parcel], names: Names) -> bool:
        return bool(await never(parcels, names))

    async def keep_alive(self, place: str) -> None:
        await never(place)


async def test_a_client_that_takes_nothing_is_cut_off_though_nothing_happens(app: Mainspring) -> None:
    live = Live(app, Tokens(app.store), Pace(lifetime=0.05, grace=0.01))
    async with asyncio.timeout(PATIENCE), live.stream(Caller(None), EVERYTHING) as stream:
        assert not await stream.run(StuckWire(), "")


async def test_a_stream_that_ends_before_it_runs_has_the_usual_time_for_its_last_frames(app: Mainspring) -> None:
    live = Live(app, Tokens(app.store), Pace(grace=0.01))
    async with asyncio.timeout(PATIENCE), live.stream(Caller(None), EVERYTHING) as stream:
        stream.end("closing")
        assert not await stream.run(StuckWire(), "")


class FastSocket:
    """A client that takes everything at once. It counts how often others have had their turn."""

    def __init__(self) -> None:
        self.sent, self.turns = 0, 0

    async def send(self, message: Any) -> None:
        del message
        self.sent += 1

    async def take_turns(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)


@pytest.mark.parametrize("wire_of", [lambda client: SseWire(client.send), SocketWire])
async def test_others_have_their_turn_while_a_client_gets_thousands_of_events(app: Mainspring, wire_of: Any) -> None:
    start = await start_of(app.store)
    await put_many(app.store, 2_000)
    parcel = [Event(change) for change in await feed_after(app.store, start)]
    client = FastSocket()
    others = asyncio.create_task(client.take_turns())
    assert await wire_of(client).send_parcels([parcel], Names.KIND)
    await ended(others)
    assert client.turns >= 20
    assert client.sent >= 20


async def raw_stream(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that reads nothing until it is told to, with a small buffer."""
    connection = sockets.socket()
    connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    connection.setblocking(False)
    host, port = served.url.removeprefix("http://").split(":")
    await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1024)
    writer.write(f"GET /v1/events HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    await reader.readuntil(b"event: hello")
    return reader, writer


@pytest.mark.parametrize("any_app", KINDS[:-1], indirect=True)  # DynamoDB's test server takes 40 s for 5,000 jobs
async def test_many_changes_at_once_do_not_make_a_client_slow(any_app: Mainspring) -> None:
    async with serving(any_app) as served, await served.events() as client:
        await put_many(any_app.store, 5_000)
        assert len({event.job for event in await client.take(5_000)}) == 5_000


# -- progress -------------------------------------------------------------------------------------


async def test_progress_is_conflated_and_its_last_report_arrives(app: Mainspring) -> None:
    await worker_of(app.store)
    async with serving(app) as served, await served.events(kind=["progressed", "completed"]) as client:
        held = await running(app.store)
        for number in range(20):
            await app.store.report([ProgressReport(held.id, held.token, number / 20, "")])
            await asyncio.sleep(0.03)
        await app.store.report([ProgressReport(held.id, held.token, 0.99, "nearly")])
        found = [await client.next()]
        while found[-1].data["data"]["fraction"] != 0.99:
            found.append(await client.next())
        fractions = [event.data["data"]["fraction"] for event in found]
        assert fractions == sorted(fractions)
        assert 2 <= len(fractions) <= 7
        await app.store.report([ProgressReport(held.id, held.token, 1.0, "")])
        await end(app.store, held, Move.DONE)
        last, completed = await client.take(2)
        assert (last.data["data"]["fraction"], completed.event) == (1.0, "completed")
    async with serving(app) as served, await served.events(after=completed.id) as client:
        job_id = await put(app.store)
        assert (await client.next()).job == job_id


# -- one reader -----------------------------------------------------------------------------------


async def test_one_reader_serves_all_clients_and_ends_with_the_last(app: Mainspring) -> None:
    reads = 0
    real = ChangeStream._read

    async def counted(stream: ChangeStream) -> Any:
        nonlocal reads
        reads += 1
        return await real(stream)

    with patch.object(ChangeStream, "_read", counted):
        async with serving(app) as served, AsyncExitStack() as stack:
            assert not served.live.hub.is_running
            clients = [await stack.enter_async_context(await served.events()) for _ in range(20)]
            assert served.live.hub.is_running
            reads = 0
            job_id = await put(app.store)
            assert {(await client.next()).job for client in clients} == {job_id}
            assert reads <= 4
            for client in clients:
                client.close()
            await until(lambda: not served.live.hub.is_running and not served.live.number)


async def test_starts_are_asked_for_once_a_client_wants_them(app: Mainspring) -> None:
    asked: list[tuple[Any, ...]] = []
    real = app.changes

    def noted(**options: Any) -> ChangeStream:
        asked.append(options["where"].kinds)
        return real(**options)

    await worker_of(app.store)
    with patch.object(app, "changes", noted):
        async with serving(app) as served, await served.events(kind="completed") as first:
            assert [ChangeKind.STARTED in kinds for kinds in asked] == [False]
            async with await served.events() as second:
                assert [ChangeKind.STARTED in kinds for kinds in asked] == [False, True]
                held = await running(app.store)
                assert [event.event for event in await second.take(2)] == ["created", "started"]
                await end(app.store, held, Move.DONE)
                assert (await first.next()).job == held.id


async def test_clients_follow_jobs_with_all_of_their_tags(any_app: Mainspring) -> None:
    """Another client is there first, for which the hub has not looked up tags."""
    store = any_app.store
    async with serving(any_app) as served, await served.events(kind="created") as first:
        before = await put(store, tags=("vip",))
        begun = await first.next()
        async with (
            await served.events(tag=["vip", "eu"], kind="created") as client,
            await served.events(tag="vip", kind="created", last_event_id=first.hello.id) as behind,
            await served.events(tag="vip", kind="created", last_event_id=begun.id) as next_one,
        ):
            socket = await served.socket({"subscribe": "events", "filter": {"tag": ["eu"], "kind": ["created"]}})
            assert (await received(socket)).event == "hello"
            jobs = [await put(store, tags=tags) for tags in ((), ("vip",), ("eu",), ("new", "eu", "vip"))]
            assert jobs_of(await first.take(4)) == jobs
            assert jobs_of(await client.take(1)) == [jobs[3]]
            assert jobs_of(await behind.take(3)) == [before, jobs[1], jobs[3]]
            assert jobs_of(await next_one.take(2)) == [jobs[1], jobs[3]]
            assert jobs_of([await received(socket) for _ in range(2)]) == [jobs[2], jobs[3]]
            await socket.close()


async def test_an_outage_of_the_store_ends_no_stream(app: Mainspring) -> None:
    async with serving(app) as served, await served.events() as client:
        real, failed = app.store.changes, asyncio.Event()

        async def fail(*_: Any, **__: Any) -> Any:
            failed.set()
            raise StoreUnavailable("gone")

        with patch.object(app.store, "changes", fail):
            job_id = await put(app.store)
            await asyncio.wait_for(failed.wait(), PATIENCE)
        assert app.store.changes == real
        assert (await client.next()).job == job_id


async def test_a_hub_that_fails_lets_its_clients_come_back(app: Mainspring) -> None:
    async with serving(app) as served:
        async with await served.events() as client:
            with patch.object(hub.Ring, "add", side_effect=RuntimeError("a bug")):
                job_id = await put(app.store)
                (end,) = await client.rest()
            assert end.data == {"reason": "failed"}
        async with await served.events(after=client.hello.id) as client:
            assert (await client.next()).job == job_id


async def test_a_client_that_stops_waiting_for_the_hub_leaves_nothing_there(app: Mainspring) -> None:
    reader = hub.Hub(app)
    client = hub.Subscription(reader, ChangeFilter())
    with patch.object(app.store, "changes", never):
        reader.enter(client)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await reader.join(client)
        assert not reader._joining
        await reader.close("closing")


# -- streams that cannot begin --------------------------------------------------------------------


async def never(*_: Any, **__: Any) -> Any:
    await asyncio.Event().wait()


async def away(*_: Any, **__: Any) -> Any:
    raise StoreUnavailable("gone")


@pytest.mark.parametrize("changes", [never, away])
async def test_a_client_that_cannot_begin_is_told_to_try_again(app: Mainspring, changes: Any) -> None:
    start = await start_of(app.store)
    async with serving(app, Pace(begin=0.05)) as served:
        with patch.object(app.store, "changes", changes):
            for after in (None, start):
                async with await served.events(after=after) as client:
                    assert (client.status, await client.problem()) == (503, "store_unavailable")
                    assert client.response.headers["retry-after"] == "5"
                socket = await served.socket({"subscribe": "events", "since": after})
                assert (await received(socket)).data["code"] == "store_unavailable"
                assert await closed(socket) == 1013
        await until(lambda: not served.live.number and not served.live.hub.is_running)


async def test_a_client_that_goes_before_its_stream_begins_leaves_nothing(app: Mainspring) -> None:
    async with serving(app, Pace(begin=2 * PATIENCE)) as served, AsyncExitStack() as stack:
        with patch.object(app.store, "changes", never):
            waiting = [asyncio.create_task(served.events()) for _ in range(3)]
            sockets = [await served.socket() for _ in range(3)]
            stack.callback(lambda: [task.cancel() for task in waiting])
            await until(lambda: served.live.number == 6)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*(socket.close() for socket in sockets))
            await until(lambda: not served.live.number and not served.live.hub.is_running)


async def test_a_client_that_sends_too_much_is_cut_off(app: Mainspring) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"x" * 10_000

    async with serving(app, max_body=1_000) as served, served.http.get(f"{served.url}/v1/events", data=body()):
        await until(lambda: not served.live.number and not served.live.hub.is_running)


async def test_clients_that_wait_are_sent_away_when_the_service_stops(app: Mainspring) -> None:
    async with serving(app, Pace(begin=2 * PATIENCE)) as served:
        with patch.object(app.store, "changes", never):
            waiting = asyncio.create_task(served.events())
            socket = await served.socket()
            await until(lambda: len(served.live.hub._joining) == 2)
            await served.live.close()
            client = await waiting
            assert (client.status, await client.problem()) == (503, "store_unavailable")
            assert (await received(socket)).data["code"] == "store_unavailable"


async def test_clients_that_wait_are_sent_away_when_the_hub_fails(app: Mainspring) -> None:
    failing = asyncio.Event()

    async def fail(*_: Any, **__: Any) -> Any:
        await failing.wait()
        raise RuntimeError("a bug")

    async with serving(app, Pace(begin=2 * PATIENCE)) as served:
        with patch.object(app.store, "changes", fail):
            waiting = asyncio.create_task(served.events())
            await until(lambda: bool(served.live.hub._joining))
            failing.set()
            assert (await waiting).status == 503


async def test_a_stream_whose_token_is_being_checked_does_not_begin_after_the_end(app: Mainspring) -> None:
    async with serving(app) as served:
        _, text = await token_of(served)
        checking, goes_on = asyncio.Event(), asyncio.Event()
        real = Tokens.current

        async def slow(tokens: Tokens, ids: Any) -> Any:
            checking.set()
            await goes_on.wait()
            return await real(tokens, ids)

        with patch.object(Tokens, "current", slow):
            waiting = asyncio.create_task(served.events(token=text))
            await asyncio.wait_for(checking.wait(), PATIENCE)
            await served.live.close()
            goes_on.set()
            assert (await waiting).status == 503
        assert not served.live.hub.is_running


# -- who may --------------------------------------------------------------------------------------


async def token_of(served: Served, *scopes: str, **options: Any) -> tuple[str, str]:
    token, text = await served.tokens.create("test", scopes or (Scope.READ,), actor="ana", **options)
    return token.id, text


async def test_events_need_a_token_with_the_scope_read(app: Mainspring) -> None:
    async with serving(app, tokens="required") as served:
        _, good = await token_of(served)
        _, other = await token_of(served, "enqueue", "lease", "operate")
        statuses = []
        for text in (None, "msk_wrong", other, good):
            async with await served.events(token=text) as client:
                statuses.append(client.status)
    assert statuses == [401, 401, 403, 200]


async def test_the_stream_of_a_revoked_token_ends(any_app: Mainspring) -> None:
    """Also if another process revokes it."""
    async with serving(any_app, QUICK, tokens="required") as served, serving(any_app) as another:
        token_id, text = await token_of(served)
        _, second = await token_of(served)
        async with await served.events(token=text) as client, await served.events(token=second) as other:
            await another.tokens.revoke(token_id, actor="ana")
            (end,) = await client.rest()
            assert (end.event, end.data) == ("end", {"reason": "revoked"})
            job_id = await put(any_app.store)
            assert (await other.next()).job == job_id
        async with await served.events(token=text, after=end.id) as client:
            assert client.status == 401


async def test_the_stream_of_an_expired_token_ends(app: Mainspring) -> None:
    async with serving(app, QUICK) as served:
        soon = to_datetime(app.store.clock.now()) + timedelta(seconds=1)
        _, text = await token_of(served, expires_at=soon)
        async with await served.events(token=text) as client:
            (end,) = await client.rest()
        assert end.data == {"reason": "revoked"}


async def test_the_stream_of_a_token_that_cannot_be_checked_ends(app: Mainspring) -> None:
    async with serving(app, QUICK) as served:
        _, text = await token_of(served)
        async with await served.events(token=text) as client, await served.events() as without:
            with patch.object(Tokens, "current", side_effect=ValueError("a bug")):
                (end,) = await client.rest()
            assert (end.event, end.data) == ("end", {"reason": "failed"})
            job_id = await put(app.store)
            assert (await without.next()).job == job_id
        async with await served.events(token=text) as client:
            assert client.status == 200


async def test_a_token_has_so_many_streams_at_most(app: Mainspring) -> None:
    with patch.object(live_module, "MOST_STREAMS", 3):
        async with serving(app) as served, AsyncExitStack() as stack:
            _, text = await token_of(served)
            _, other = await token_of(served)
            clients = [await stack.enter_async_context(await served.events(token=text)) for _ in range(3)]
            async with await served.events(token=text) as refused:
                assert (refused.status, await refused.problem()) == (429, "too_many_streams")
            await stack.enter_async_context(await served.events(token=other))
            clients[0].close()
            await until(lambda: served.live.number == 3)
            await stack.enter_async_context(fourth := await served.events(token=text))
            assert fourth.status == 200


# -- WebSocket ------------------------------------------------------------------------------------


async def received(socket: aiohttp.ClientWebSocketResponse) -> Got:
    frame = await socket.receive_json(timeout=PATIENCE)
    return Got(frame["event"], frame["data"], frame["id"])


async def closed(socket: aiohttp.ClientWebSocketResponse) -> int | None:
    message = await socket.receive(timeout=PATIENCE)
    assert message.type in {aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED}, message
    return socket.close_code


async def test_a_websocket_has_the_same_frames_and_resumes(any_app: Mainspring) -> None:
    async with serving(any_app) as served, await served.events() as client:
        socket = await served.socket()
        hello = await received(socket)
        assert (hello.event, bool(hello.id)) == ("hello", True)
        jobs = [await put(any_app.store) for _ in range(3)]
        by_socket = [await received(socket) for _ in range(3)]
        assert by_socket == await client.take(3)
        await socket.close()
        again = await served.socket({"subscribe": "events", "since": by_socket[0].id, "filter": {"kind": ["created"]}})
        frames = [await received(again) for _ in range(3)]
        assert jobs_of(frames) == [None, *jobs[1:]]
        await again.close()
        await until(lambda: served.live.number == 1)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"subscribe": "jobs"}, "invalid_request"),
        ({"subscribe": "events", "filter": {"kind": ["exploded"]}}, "invalid_request"),
        ({"subscribe": "events", "since": "garbage"}, "invalid_cursor"),
        ({"subscribe": "events", "token": "msk_wrong"}, "unauthorized"),
        ("text", "invalid_request"),
    ],
)
async def test_a_wrong_first_message_is_answered_and_closed(app: Mainspring, message: Any, code: str) -> None:
    async with serving(app) as served:
        socket = await served.socket(message)
        error = await received(socket)
        assert (error.event, error.data["code"]) == ("error", code)
        assert await closed(socket) == 1008


async def test_a_websocket_takes_its_token_from_the_header_or_the_first_message(app: Mainspring) -> None:
    async with serving(app, QUICK, tokens="required") as served:
        token_id, text = await token_of(served)
        _, other = await token_of(served, "enqueue")
        by_header = await served.socket(headers={"authorization": f"Bearer {text}"})
        by_message = await served.socket({"subscribe": "events", "token": text})
        assert [(await received(socket)).event for socket in (by_header, by_message)] == ["hello", "hello"]
        for message, code in [
            ({"subscribe": "events"}, "unauthorized"),
            ({"subscribe": "events", "token": other}, "forbidden"),
        ]:
            refused = await served.socket(message)
            assert (await received(refused)).data["code"] == code
        await served.tokens.revoke(token_id, actor="ana")
        while (last := await received(by_message)).event == "keep_alive":
            pass
        assert (last.event, last.data) == ("end", {"reason": "revoked"})
        assert await closed(by_message) == 1001


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"authorization": "Bearer msk_wrong"}, 401),
    ],
)
async def test_a_websocket_of_a_strange_host_page_or_token_is_refused(
    app: Mainspring, headers: dict[str, str], status: int
) -> None:
    async with serving(app) as served:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await served.socket(headers=headers)
        assert refused.value.status == status
        own = await served.socket(headers={"Origin": served.url})
        assert (await received(own)).event == "hello"


async def test_a_client_that_does_not_subscribe_is_closed(app: Mainspring) -> None:
    with patch("mainspring.service.event_socket.FIRST_MESSAGE", 0.05):
        async with serving(app) as served, served.http.ws_connect(f"{served.url}/v1/events/ws") as socket:
            assert (await received(socket)).data["code"] == "invalid_request"
            assert await closed(socket) == 1008


async def test_a_slow_websocket_is_reset(app: Mainspring) -> None:
    async with serving(app, Pace(grace=30)) as served:
        socket = await served.socket()
        await received(socket)
        with patch.object(hub, "QUEUE", 0):
            await put(app.store)
            reset, end = await received(socket), await received(socket)
        assert (reset.event, reset.data) == ("reset", {"reason": "slow"})
        assert (end.event, await closed(socket)) == ("end", 1001)
