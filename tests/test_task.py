from __future__ import annotations

import asyncio
import inspect as inspection
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from mainspring import Context, Mainspring, Priority, Retention, Retry, Status, Task
from mainspring.errors import (
    ConfigurationError,
    InvalidPayload,
    SystemHalted,
)
from mainspring.job import FOREVER
from mainspring.testing import Kit, manual

app = Mainspring("sqlite:////nowhere/jobs.db")
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


class Order(BaseModel):
    number: int
    rush: bool = False


class Receipt(BaseModel):
    order: Order
    at: datetime


@app.task(queue="mail", priority="high", tags=["hotel"])
async def welcome(guest: str, nights: int = 1) -> str:
    """Write to a guest."""
    return f"{guest} for {nights}"


@app.task()
def add(first: int, second: int) -> int:
    return first + second


@app.task()
async def settle(order: Order) -> Receipt:
    return Receipt(order=order, at=NEW_YEAR)


@app.task()
async def gather(room: int, **more: str) -> dict[str, int | str]:
    return {"room": room, **more}


@app.task()
async def context_first(ctx: Context, room: int, guest: str = "ana") -> list[str | int]:
    return [ctx.task, ctx.attempt, room, guest]


@app.task()
def context_last(room: int, guest: str = "ana", *, ctx: Context) -> list[str | int]:
    return [ctx.task, ctx.attempt, room, guest]


@app.task()
def context_between(room: int, ctx: Context, guest: str = "ana") -> list[str | int]:
    return [ctx.task, ctx.attempt, room, guest]


@pytest.fixture
def kit() -> Iterator[Kit]:
    with manual(app) as kit:
        yield kit


# -- a task is a function -------------------------------------------------------------------------


async def test_a_task_is_called_like_the_function_it_is() -> None:
    assert await welcome("ana", nights=2) == "ana for 2"
    assert add(1, second=2) == 3
    assert (await settle(Order(number=7))).order.number == 7
    assert (welcome.name, welcome.__doc__) == ("welcome", "Write to a guest.")
    assert list(inspection.signature(welcome).parameters) == ["guest", "nights"]
    assert repr(welcome) == "<Task welcome>"


async def test_a_direct_call_gets_a_context_that_is_attached_to_nothing() -> None:
    assert await context_first(7, "bob") == ["context_first", 1, 7, "bob"]
    assert await context_first(7) == await context_first(room=7) == ["context_first", 1, 7, "ana"]
    assert context_last(7) == context_last(room=7) == ["context_last", 1, 7, "ana"]  # type: ignore[call-overload]
    assert context_last(7, "bob") == ["context_last", 1, 7, "bob"]  # type: ignore[call-overload]
    assert context_between(7, "bob") == ["context_between", 1, 7, "bob"]  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        await context_first(7, "bob", "too many")  # type: ignore[call-overload]


async def test_a_direct_call_may_bring_its_own_context() -> None:
    own = Context.detached(task="mine", attempts=4)
    assert context_last(7, ctx=own) == ["mine", 5, 7, "ana"]
    assert context_between(7, own) == ["mine", 5, 7, "ana"]
    assert await context_first(own, 7) == ["mine", 5, 7, "ana"]


# -- enqueuing ------------------------------------------------------------------------------------


async def test_every_way_to_enqueue_makes_the_same_job(kit: Kit) -> None:
    await welcome.enqueue(guest="ana", nights=2)
    await welcome.enqueue("ana", 2)
    welcome.enqueue_sync("ana", nights=2)
    await welcome.enqueue_many([{"guest": "ana", "nights": 2}])
    welcome.enqueue_many_sync([{"guest": "ana", "nights": 2}])
    await app.enqueue_all([welcome.prepare("ana", 2), welcome.using().prepare(guest="ana", nights=2)])
    made = {(job.payload["guest"], job.payload["nights"], job.queue, job.priority, job.tags) for job in kit.jobs()}
    assert made == {("ana", 2, "mail", Priority.HIGH, ("hotel",))}
    assert len(kit.jobs()) == 7


async def test_an_option_among_the_arguments_is_refused_with_a_hint(kit: Kit) -> None:
    with pytest.raises(InvalidPayload, match=r"delay: Extra inputs .* write using\(delay=…\).enqueue\(…\)"):
        await welcome.enqueue(guest="ana", delay=5)  # type: ignore[call-arg]
    with pytest.raises(InvalidPayload, match=r"keyword argument 'run_at'; .* write using\(run_at=…\).enqueue\(…\)"):
        await settle.enqueue(Order(number=1), run_at=5)  # type: ignore[call-arg]
    with pytest.raises(InvalidPayload, match=r"nigths: Extra inputs are not permitted$"):
        welcome.enqueue_sync(guest="ana", nigths=5)  # type: ignore[call-arg]
    assert kit.jobs() == []


async def test_the_error_says_which_of_many_items_is_wrong(kit: Kit) -> None:
    with pytest.raises(InvalidPayload, match="number 2 of the payloads: task 'welcome' does not take this"):
        await welcome.enqueue_many([{"guest": "ana"}, {"guest": 7}])
    assert kit.jobs() == []


async def test_arguments_of_every_kind_reach_the_handler(kit: Kit) -> None:
    results = [
        await settle.enqueue(Order(number=1)),
        await settle.enqueue(order=Order(number=1)),
        *await settle.enqueue_many([Order(number=1)]),
        await gather.enqueue(1, guest="ana"),
        await context_first.enqueue(1),
        context_last.enqueue_sync(1),  # type: ignore[call-arg]
        await context_between.enqueue(1, guest="bob"),  # type: ignore[call-arg]
    ]
    await kit.drain(raise_errors=True)
    receipt = Receipt(order=Order(number=1), at=datetime(2026, 1, 1, tzinfo=UTC))
    assert [await handle.result() for handle in results] == [
        receipt,
        receipt,
        receipt,
        {"room": 1, "guest": "ana"},
        ["context_first", 1, 1, "ana"],
        ["context_last", 1, 1, "ana"],
        ["context_between", 1, 1, "bob"],
    ]


async def test_one_invalid_item_keeps_all_jobs_of_the_call_from_being_enqueued(kit: Kit) -> None:
    with pytest.raises(InvalidPayload, match="task 'welcome' does not take this payload: nights"):
        await welcome.enqueue(guest="ana", nights="many")  # type: ignore[arg-type]
    with pytest.raises(InvalidPayload, match="gest: Extra inputs are not permitted"):
        await welcome.enqueue_many([{"guest": "ana"}, {"gest": "bob"}])
    with pytest.raises(InvalidPayload, match="queue: Extra inputs"):
        await welcome.enqueue(guest="ana", queue="mail")  # type: ignore[call-arg]
    assert kit.jobs() == []


async def test_payloads_that_are_not_objects_are_refused(kit: Kit) -> None:
    with pytest.raises(InvalidPayload, match="as a mapping of its arguments or as a model, not 7"):
        await welcome.enqueue_many([7])  # type: ignore[list-item]


async def test_a_payload_that_went_bad_ends_as_a_dead_letter_at_once(kit: Kit) -> None:
    job = welcome.prepare("ana")
    job.payload = json.dumps({"guest": ["ana"]})
    await app.enqueue_all([job])
    (ran,) = await kit.drain()
    assert ran.status is Status.DEAD_LETTER
    assert ran.job.failure is not None
    assert ran.job.failure.type == "InvalidPayload"
    assert "guest: Input should be a valid string" in ran.job.failure.message


# -- options --------------------------------------------------------------------------------------


def prepared(**options: Any) -> Any:
    return welcome.using(**options).prepare("ana")


def test_a_job_has_the_options_of_its_task_unless_it_has_its_own() -> None:
    job = prepared()
    assert (job.queue, job.priority, job.tags) == ("mail", Priority.HIGH, ("hotel",))
    job = prepared(queue="sms", priority="low", tags=(tag for tag in ("a", "b")))
    assert (job.queue, job.priority, job.tags) == ("sms", Priority.LOW, ("a", "b"))


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"run_at": datetime(2026, 1, 1, tzinfo=UTC)}, "run_at", 1_767_225_600_000),
        ({"delay": 1.5}, "delay", 1500),
        ({"delay": timedelta(minutes=1)}, "delay", 60_000),
        ({"delay": 0}, "delay", 0),
        ({"run_at": datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)}, "run_at", -1000),
        ({"dedupe_key": "k"}, "dedupe_key", "k"),
        ({"dedupe_key": "k", "dedupe_for": "active"}, "dedupe_for", None),
        ({"dedupe_key": "k", "dedupe_for": "forever"}, "dedupe_for", FOREVER),
        ({"dedupe_key": "k", "dedupe_for": timedelta(hours=1)}, "dedupe_for", 3_600_000),
        ({"target": ("guest", "ana")}, "target", ("guest", "ana")),
        ({"max_attempts": 7}, "max_attempts", 7),
        ({"retry": Retry(max_attempts=7)}, "max_attempts", 7),
        ({"retry": Retry(max_attempts=7), "max_attempts": 8}, "max_attempts", 8),
        ({"timeout": 1.5}, "timeout", 1500),
        ({"retention": Retention(completed=1, dead=2)}, "keep", 1000),
        ({"retention": Retention(completed=1, dead=2)}, "keep_dead", 2000),
        ({"isolation": "process"}, "options", '{"isolation": "process"}'),
    ],
)
def test_each_option_reaches_the_job(options: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(prepared(**options), field) == value


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": ""}, "'' is not a name for a queue"),
        ({"queue": "*"}, r"'\*' is not a name for a queue"),
        ({"queue": 7}, "queue must be a string, not 7"),
        ({"priority": 5}, "5 is not a priority; use one of urgent, high, normal, low"),
        ({"dedupe_key": 7}, "dedupe_key must be a string, not 7"),
        ({"run_at": "2026-01-01"}, "run_at must be a datetime with a time zone, not '2026-01-01'"),
        ({"priority": "hgih"}, "'hgih' is not a priority; use one of urgent, high, normal, low"),
        ({"run_at": datetime(2026, 1, 1, tzinfo=UTC), "delay": 5}, "give run_at or delay, not both"),
        ({"dedupe_for": 5}, "dedupe_for needs a dedupe_key"),
        ({"dedupe_key": "k", "dedupe_for": "always"}, "dedupe_for must be .* not 'always'"),
        ({"target": ("reservation", 7)}, r"target must be a type and an id, two strings, not \('reservation', 7\)"),
        ({"target": "ab"}, "two strings, not 'ab'"),
        ({"tags": "vip"}, "tags must be a list of strings, not the string 'vip'"),
        ({"max_attempts": 0}, "max_attempts is 0; a job needs at least one attempt"),
        ({"timeout": 0}, "timeout is 0; give at least a millisecond"),
        ({"isolation": "thread"}, "isolation must be .* not 'thread'"),
        ({"timeout": "5m"}, "'5m' is not a length of time"),
        ({"delay": -5}, "delay is -5, which is negative"),
        ({"delay": timedelta(seconds=-5)}, r"delay is datetime.timedelta\(.*\), which is negative"),
        ({"expires": "5m"}, "'5m' is not a length of time"),
        ({"after": [3]}, "after is a list of jobs"),
        ({"retry": 3}, r"retry must be a Retry\(…\), not 3"),
        ({"debounce": "key"}, r"debounce must be a Debounce\(…\), not 'key'"),
        ({"deliver": "08:00-22:00"}, r"deliver must be a Window\(…\), not '08:00-22:00'"),
        ({"retry": Retry.by(lambda attempt, error: 1)}, "belongs on the task"),
    ],
)
def test_a_wrong_option_is_refused_and_explained(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        prepared(**options)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        prepared(run_at=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point


def test_a_wrong_option_of_a_task_is_refused_where_the_task_is_defined() -> None:
    with pytest.raises(ConfigurationError, match="not a priority"):
        Mainspring("memory://").task(priority="hgih")  # type: ignore[call-overload] # a type checker sees it too


def test_a_priority_may_be_the_enumerations_own() -> None:
    assert prepared(priority=Priority.LOW).priority is Priority.LOW
    own = Mainspring("memory://")

    @own.task(priority=Priority.URGENT)
    async def alarm() -> None: ...

    assert alarm.prepare().priority is Priority.URGENT


async def test_a_jobs_own_retry_policy_holds_whatever_the_task_says() -> None:
    own = Mainspring("memory://")

    @own.task(retry=Retry.fixed(60), max_attempts=2)
    async def fail() -> None:
        raise LookupError

    with manual(own) as kit:
        await fail.enqueue()
        assert [run.status for run in await kit.time.advance(hours=1)] == [Status.RETRYING, Status.DEAD_LETTER]
        await fail.using(retry=Retry.fixed(1, max_attempts=4)).enqueue()
        assert len(await kit.time.advance(seconds=3)) == 4
        await fail.using(max_attempts=1).enqueue()
        assert [run.status for run in await kit.drain()] == [Status.DEAD_LETTER]


# -- in the caller's own transaction --------------------------------------------------------------


@pytest.fixture
async def hotel(tmp_path: Path) -> AsyncIterator[tuple[Mainspring, Task[..., Any, Any], Path]]:
    """An application, a task of it, and the file that it shares with the hotel's own tables."""
    path = tmp_path / "hotel.db"
    own = Mainspring(f"sqlite:///{path}")

    @own.task()
    async def prepare_room(room: int) -> None: ...

    async with own:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE rooms (number INTEGER)")
        connection.close()
        yield own, prepare_room, path


Hotel = tuple[Mainspring, Task[..., Any, Any], Path]


async def test_a_job_is_enqueued_with_the_callers_rows_or_not_at_all(hotel: Hotel) -> None:
    own, prepare_room, path = hotel
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    for number, end in ((1, connection.rollback), (2, connection.commit)):
        connection.execute("INSERT INTO rooms VALUES (?)", (number,))
        handle = await prepare_room.using(connection=connection).enqueue(room=number)
        assert handle.created
        assert await own.jobs.count() == 0  # other connections do not see it yet
        end()
    assert [job.payload for job in (await own.jobs.find()).jobs] == [{"room": 2}]
    assert [row["number"] for row in connection.execute("SELECT number FROM rooms")] == [2]
    assert (await own.stats()).queues[0][Status.PENDING] == 1
    connection.close()


async def test_every_way_to_enqueue_takes_a_connection(hotel: Hotel) -> None:
    own, prepare_room, path = hotel
    connection = sqlite3.connect(path)
    using = prepare_room.using(connection=connection)
    using.enqueue_sync(room=1)
    using.enqueue_many_sync([{"room": 2}])
    await using.enqueue_many([{"room": 3}])
    await own.enqueue_all([prepare_room.prepare(room=4)], connection=connection)
    assert connection.in_transaction
    connection.commit()
    connection.close()
    assert await own.jobs.count() == 4


async def test_a_job_on_an_autocommit_connection_is_there_at_once(hotel: Hotel) -> None:
    own, prepare_room, path = hotel
    connection = sqlite3.connect(path, isolation_level=None)
    await prepare_room.using(connection=connection).enqueue(room=1)
    assert await own.jobs.count() == 1
    connection.execute("BEGIN")
    await prepare_room.using(connection=connection).enqueue(room=2)
    connection.execute("ROLLBACK")
    connection.close()
    assert await own.jobs.count() == 1


async def test_a_duplicate_in_a_transaction_finds_a_job_enqueued_outside_it(hotel: Hotel) -> None:
    _, prepare_room, path = hotel
    first = await prepare_room.using(dedupe_key="a").enqueue(room=1)
    connection = sqlite3.connect(path)
    using = prepare_room.using(connection=connection, dedupe_key="a")
    assert (await using.enqueue(room=1)).id == first.id
    connection.rollback()
    connection.close()


async def test_a_worker_notices_what_a_stranger_committed(hotel: Hotel) -> None:
    """It sends no wake-up: the worker looks for commits that are not ours."""
    own, prepare_room, path = hotel
    worker = own.worker()
    serving = asyncio.create_task(worker.serve())
    connection = sqlite3.connect(path)
    handle = prepare_room.using(connection=connection).enqueue_sync(room=1)
    connection.commit()
    connection.close()
    await handle.result(timeout=10)
    worker.stop()
    await serving


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("other file", "the connection is to .*other.db, but the jobs are in .*hotel.db"),
        ("in memory", "the connection is to a database in memory"),
        ("not one", "connection must be an sqlite3 or aiosqlite connection, .*, not str"),
    ],
)
async def test_a_connection_to_another_database_is_refused(hotel: Hotel, kind: str, said: str) -> None:
    own, prepare_room, path = hotel
    other = path.with_name("other.db") if kind == "other file" else ":memory:"
    connection: Any = "postgresql://" if kind == "not one" else sqlite3.connect(other)
    if kind == "other file":
        connection.execute("CREATE TABLE t (x)")
    with pytest.raises(ConfigurationError, match=said):
        await prepare_room.using(connection=connection).enqueue(room=1)
    with pytest.raises(ConfigurationError, match=said):
        prepare_room.using(connection=connection).enqueue_sync(room=1)
    assert await own.jobs.count() == 0
    if isinstance(connection, sqlite3.Connection):
        connection.close()


async def test_a_halt_that_accepts_nothing_holds_in_transactions_too(hotel: Hotel) -> None:
    own, prepare_room, path = hotel
    await own.halt("fire", reject_new=True)
    connection = sqlite3.connect(path)
    with pytest.raises(SystemHalted):
        await prepare_room.using(connection=connection).enqueue(room=1)
    connection.close()
