"""Unreasonable input is refused with a documented error, or kept so that everything can still be read."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from mainspring import (
    Context,
    Debounce,
    Interval,
    Limit,
    Mainspring,
    Person,
    Retention,
    Retry,
    Schedule,
    Snooze,
    Throttle,
    Window,
)
from mainspring.errors import CannotStoreResult, ConfigurationError, InvalidPayload, MainspringError
from mainspring.job import Status
from mainspring.json_text import MAX_LEVELS
from mainspring.stores.protocol import Filter, Severity, Store
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from mainspring.task import Task
from tests.dynamodb import FreshStore
from tests.postgres import RecycledStore

EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-14))
LATE, EARLY = datetime.max.replace(tzinfo=WEST), datetime.min.replace(tzinfo=EAST)
NAN, MANY_DIGITS = float("nan"), 10**5000
TEXTS = ["\0", "a\nb", "\ud800", "x" * 1_000_000, "", "größe", "👨‍👩‍👧", 'it\'s "q"', "%s;--", "a" * 500, "あ" * 501]
MOMENTS = [
    LATE,
    EARLY,
    datetime.max.replace(tzinfo=UTC),
    datetime.min.replace(tzinfo=UTC),
    datetime(2030, 1, 1, tzinfo=UTC),
]
LENGTHS = [timedelta.max, timedelta.min, MANY_DIGITS, -1, 0, 1e308, NAN, float("inf"), 0.0001, timedelta(days=365_000)]


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def an_app(store: Store | str = "memory://") -> tuple[Mainspring, Task[[Any], Any, Any]]:
    app = Mainspring(store)

    @app.task()
    async def work(data: Any) -> Any:
        return data

    return app, work


async def nothing() -> None: ...


# -- each route refuses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        *({"run_at": moment} for moment in MOMENTS[:4]),
        {"delay": timedelta.max},
        {"delay": MANY_DIGITS},
        {"delay": NAN},
        {"expires": timedelta.max},
        {"expires": LATE},
        {"timeout": timedelta.max},
        {"timeout": MANY_DIGITS},
        {"dedupe_key": "k", "dedupe_for": timedelta.max},
        {"dedupe_key": "k", "dedupe_for": -1},
        {"max_attempts": MANY_DIGITS},
        {"max_attempts": 1.5},
        *({name: text} for name in ("queue", "dedupe_key", "replace") for text in TEXTS[:5]),
        *({"target": pair} for text in TEXTS[:5] for pair in ((text, "1"), ("guest", text))),
        *({"tags": ["fine", text]} for text in TEXTS[:5]),
        {"tags": 7},
        {"tags": [7]},
    ],
    ids=lambda options: "-".join(
        f"{name} {str(value)[:12]!a}" if name in {"queue", "tags"} else name for name, value in options.items()
    ),
)
def test_an_option_that_cannot_be_kept_is_refused_before_anything_is_enqueued(options: dict[str, Any]) -> None:
    _, work = an_app()
    with pytest.raises(ConfigurationError) as refused:
        work.using(**options)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "make",
    [
        lambda: Throttle("k", per=timedelta.max),
        lambda: Debounce("k", wait=timedelta.max),
        lambda: Debounce("k", wait=1, max_wait=MANY_DIGITS),
        lambda: Throttle("\0", per=1),
        lambda: Retry.fixed(timedelta.max),
        lambda: Retry.delays(1, timedelta.max),
        lambda: Retry(max_delay=MANY_DIGITS),
        lambda: Retry(max_attempts=MANY_DIGITS),
        lambda: Snooze(timedelta.max),
        lambda: Snooze(1e300),
        lambda: Snooze(NAN),
        lambda: Retention(completed=NAN),
        lambda: Interval(timedelta.max),
        lambda: Interval("1h", anchor=LATE),
        lambda: Schedule("@daily", start=LATE),
        lambda: Schedule("@daily", end=EARLY),
        lambda: Schedule("@daily", start=datetime.min),  # noqa: DTZ901 - a wall time
        lambda: Schedule("@daily").paused(datetime(2026, 1, 1, tzinfo=UTC), LATE),
        lambda: Mainspring("memory://").task(name="\0")(nothing),
        lambda: Mainspring("memory://").task(name="x" * 201)(nothing),
        lambda: Mainspring("memory://").queue("a\0b", max_attempts=2),
        lambda: Filter(queues=("\0",)),
        lambda: Filter(target_id="\ud800"),
        lambda: Filter(payload={"a": NAN}),
        lambda: Filter(payload={"a": MANY_DIGITS}),
        lambda: Filter(payload={"\0": 1}),
        lambda: Filter(payload={"a": "\0"}),
    ],
)
def test_values_that_cannot_be_stored_or_searched_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert len(str(refused.value)) < 500


async def test_changes_by_hand_are_bounded_too() -> None:
    app, work = an_app()
    job = await work.enqueue(1)
    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: app.jobs.reschedule(job.id, run_at=LATE),
        lambda: app.jobs.reschedule(job.id, delay=timedelta.max),
        lambda: app.jobs.edit(job.id, max_attempts=MANY_DIGITS),
        lambda: app.jobs.edit(job.id, queue="\0"),
        lambda: app.halt(until=LATE),
        lambda: app.pause("default", until=datetime.max.replace(tzinfo=UTC)),
        lambda: app.pause("\0"),
        lambda: app.signal("k", keep=timedelta.max),
        lambda: app.signal("\0"),
        lambda: app.jobs.find(limit=0),
        lambda: app.jobs.find(cursor="x"),
        lambda: app.jobs.cancel_where(Filter(), reason="\0"),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError):
            await call()
    assert (await app.jobs.get(job.id)).queue == "default"


# -- JSON ----------------------------------------------------------------------------------------------------


class Reading(BaseModel):
    value: float | None
    more: Any = None


UNKEEPABLE_JSON = [
    pytest.param(NAN, id="NaN"),
    pytest.param({"a": [1, {"b": float("-inf")}]}, id="infinity"),
    pytest.param(Reading(value=NAN), id="model"),
    pytest.param(Reading(value=1, more={"x": NAN}), id="within a model"),
    pytest.param(nested(MAX_LEVELS + 20), id="depth"),
    pytest.param(MANY_DIGITS, id="digits"),
    pytest.param({"pad": "1" * 9000, "n": -MANY_DIGITS}, id="digits behind digits"),
    pytest.param("\ud800", id="half a pair"),
]


@pytest.mark.parametrize("value", UNKEEPABLE_JSON)
async def test_a_payload_that_json_cannot_carry_is_refused(value: Any) -> None:
    app, work = an_app()
    with pytest.raises(InvalidPayload):
        await work.enqueue(value)
    with pytest.raises(InvalidPayload):
        work.prepare(value)
    with pytest.raises(InvalidPayload):
        await work.enqueue_many([{"data": 1}, {"data": value}])
    assert await app.jobs.count() == 0


@pytest.mark.parametrize("value", UNKEEPABLE_JSON)
async def test_so_is_a_result_a_step_and_a_signal(value: Any) -> None:
    app, work = an_app()
    with pytest.raises(CannotStoreResult):
        work.payload.dump_result(value)
    with pytest.raises(CannotStoreResult):
        await app.signal("k", value)
    with pytest.raises(CannotStoreResult):
        await Context.detached().step("a", lambda: value)


async def test_progress_is_a_number_and_its_note_can_be_shown() -> None:
    seen: list[tuple[float, str]] = []
    context = Context.detached()
    context._report = lambda fraction, note: seen.append((fraction, note))
    with pytest.raises(ValueError, match="between 0 and 1"):
        context.progress(NAN)
    context.progress(0.5, "a\0b\ud800")
    assert seen == [(0.5, "a�b�")]


@pytest.mark.parametrize(
    "value", [None, {"a": None, "b": [1.5, "NaN"]}, nested(MAX_LEVELS - 5), 10**4200, "7" * 50_000, [{"a": [1]}] * 500]
)
async def test_json_values_come_back_unchanged(value: Any) -> None:
    app, work = an_app()
    handle = await work.enqueue(value)
    assert (await app.jobs.get(handle.id)).payload == {"data": value}


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2, {"b": "c" * 1000}]},
        [{"n": n, "of": ["a", None, 'it\'s "[["', "\\", "{\\"]} for n in range(1000)],
        {"digits": "1" * 4200, "more": list(range(5000))},
    ],
    ids=["small", "rows", "digits"],
)
def test_a_payload_that_is_neither_deep_nor_long_is_not_read_again(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read a large one would hold up the event loop for seconds."""
    monkeypatch.setattr("mainspring.json_text.problem_of_reading", None)
    _, work = an_app()
    work.prepare(value)


def test_lists_and_objects_in_turn_count_as_levels_too() -> None:
    value: Any = 1
    for number in range(MAX_LEVELS + 60):
        value = [value] if number % 2 else {"a": value}
    _, work = an_app()
    with pytest.raises(InvalidPayload, match="nested too deep"):
        work.prepare(value)


def test_a_person_has_no_attribute_that_json_lacks() -> None:
    with pytest.raises(ValueError, match="finite number"):
        Person(id="p", tz="UTC", attributes={"a": NAN})


# -- rows that were written by hand ------------------------------------------------------------------------------

Execute = Callable[[str], object]

BY_HAND = [
    "UPDATE {jobs} SET status = 99 WHERE id = '{waiting[0]}'",
    "UPDATE {jobs} SET status = -7 WHERE id = '{waiting[1]}'",
    "UPDATE {jobs} SET priority = 99 WHERE id = '{waiting[2]}'",
    "UPDATE {jobs} SET options = 'nonsense', target_type = 'guest' WHERE id = '{waiting[3]}'",
    "UPDATE {archive} SET status = 99, priority = -1, result = 'nonsense' WHERE id = '{done}'",
    "INSERT INTO {documents} VALUES ('limits', 'limit:limited', '', 'v', 1, {never}, 'nonsense')",
    "INSERT INTO {documents} VALUES ('limits', 'limit:other', 'x', 'v', 1, {never}, '[]')",
    "INSERT INTO {documents} VALUES ('breakers', '', 'x', 'v', 1, {never}, 'nonsense')",
    "INSERT INTO {counts} (queue, status, n) VALUES ('default', 99, 5), ('default', -1, 5)",
]
ON_SQLITE = [
    "UPDATE {jobs} SET tags = 'nonsense' WHERE id = '{waiting[4]}'",
    "UPDATE {jobs} SET tags = '[7, null]' WHERE id = '{waiting[5]}'",
    "UPDATE mainspring_audit SET detail = 'nonsense'",
]
ON_POSTGRES = [
    "UPDATE {jobs} SET progress = 'NaN' WHERE id = '{waiting[4]}'",
    "UPDATE {jobs} SET created_at = 9e18::bigint WHERE id = '{waiting[5]}'",
    "UPDATE {schema}.audit SET detail = '[]'",
    "INSERT INTO {schema}.workers (id, info, queues, beat, seen_at) VALUES ('odd', '{{}}', '{{}}', 0, 9e18::bigint)",
]


def in_sqlite(path: Path) -> Execute:
    def execute(statement: str) -> object:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            return connection.execute(statement)

    return execute


def in_postgres(dsn: str) -> Execute:
    def execute(statement: str) -> object:
        with psycopg.connect(dsn, autocommit=True) as connection:
            return connection.execute(statement.encode())

    return execute


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def test_a_row_that_was_written_by_hand_hides_no_others(kind: str, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db") if kind == "sqlite" else RecycledStore()
    app, work = an_app(store)
    done = await work.enqueue("done")
    await app.worker().drain()
    waiting = [await work.enqueue(number) for number in range(7)]
    waiting.append(await app.task(name="limited", limits=[Limit(1)])(nothing).enqueue())
    await app.jobs.reschedule(waiting[7].id, delay=0)  # for a line in the audit log
    if isinstance(store, SqliteStore):
        names, execute, statements = {"schema": ""}, in_sqlite(store.file.path), ON_SQLITE
        names |= {table: f"mainspring_{table}" for table in ("jobs", "archive", "counts", "documents")}
    else:
        names, execute, statements = {"schema": store.schema}, in_postgres(store._dsn), ON_POSTGRES
        names |= {table: f"{store.schema}.{table}" for table in ("jobs", "archive", "counts", "documents")}
    for statement in (*BY_HAND, *statements):
        execute(statement.format(**names, never=2**62, done=done.id, waiting=[job.id for job in waiting]))
    everyone = {done.id, *(job.id for job in waiting)}
    assert await everything_can_be_read(app) == everyone
    assert await app.jobs.count() == len(everyone)
    for job_id in everyone:
        await job_can_be_read(app, job_id)
    (found,) = [finding for finding in await store.diagnose() if finding.check == "rows"]
    assert (found.severity, "and 3 more" in found.message) == (Severity.ERROR, True)
    assert await store.audit()
    assert await app.limits.list() == []
    assert await app.breakers.list() == []
    await store.repair()
    assert await everything_can_be_read(app) == everyone
    await app.worker().drain()
    ran = {job.id async for job in app.jobs.all(Filter(statuses=(Status.COMPLETED,)))}
    assert ran >= {job.id for job in waiting[3:]}  # also beside one whose options cannot be read
    await app.close()


# -- whatever comes, reading works -----------------------------------------------------------------------------


def one_of(values: list[Any]) -> st.SearchStrategy[Any]:
    """By their places: hypothesis would write out the values themselves, for ever."""
    return st.integers(0, len(values) - 1).map(lambda place: values[place])


texts = one_of(TEXTS) | st.text(max_size=20) | st.text(st.characters(exclude_categories=()), max_size=8)
moments = one_of(MOMENTS) | st.datetimes(timezones=st.sampled_from([UTC, EAST, WEST]))
lengths = one_of(LENGTHS) | st.floats() | st.timedeltas() | st.integers()
digits = one_of([MANY_DIGITS])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | digits | one_of([nested(300)]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
options = st.fixed_dictionaries(
    {},
    optional={
        "queue": texts,
        "priority": st.sampled_from(["urgent", "low", "", 7]),
        "run_at": moments,
        "delay": lengths,
        "dedupe_key": texts,
        "dedupe_for": lengths | st.sampled_from(["active", "forever", "x"]),
        "target": st.tuples(texts, texts) | texts,
        "tags": st.lists(texts, max_size=3) | texts,
        "max_attempts": st.integers() | digits,
        "timeout": lengths,
        "expires": lengths | moments,
        "replace": texts,
        "breaker": texts,
        "retention": lengths.map(lambda length: ("retention", length)),
        "deliver": st.just(Window("08:00", "22:00", tz="Pacific/Apia")),
    },
)


async def enqueue(work: Task[[Any], Any, Any], given: dict[str, Any], value: Any) -> str | None:
    """The job's id, or None if it was refused in the documented way."""
    try:
        if isinstance(given.get("retention"), tuple):
            given = {**given, "retention": Retention(completed=given["retention"][1])}
        return (await work.using(**given).enqueue(value)).id
    except MainspringError:
        return None


async def job_can_be_read(app: Mainspring, job_id: str) -> None:
    job = await app.jobs.get(job_id)
    await app.jobs.why(job_id)
    await app.jobs.timeline(job_id)
    where = Filter(ids=(job_id,), queues=(job.queue,), tasks=(job.task,), dedupe_key=job.dedupe_key)
    assert [job.id for job in (await app.jobs.find(where)).jobs] == [job_id]


async def everything_can_be_read(app: Mainspring) -> set[str]:
    """The ids of all jobs, page by page."""
    await app.stats()
    await app.store.diagnose()
    assert (await app.health()).reachable
    return {job.id async for job in app.jobs.all()}


def fuzz(make: Callable[[], Store], examples: int) -> None:
    """Each job is read at once, and all of them together in the end: a row that breaks listings does so then too."""
    ids: set[str] = set()
    with asyncio.Runner() as runner:
        app, work = an_app(make())
        runner.run(app.store.open())

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],  # a failure is clear enough, and shrinking such values takes for ever
            suppress_health_check=list(HealthCheck),
        )
        @given(given_options=options, value=values)
        def attempt(given_options: dict[str, Any], value: Any) -> None:
            job_id = runner.run(enqueue(work, given_options, value))
            if job_id is not None:
                ids.add(job_id)
                runner.run(job_can_be_read(app, job_id))

        try:
            attempt()
            assert ids
            assert runner.run(everything_can_be_read(app)) == ids
        finally:
            runner.run(app.close())


@pytest.mark.slow
def test_whatever_is_enqueued_all_can_be_read_in_memory() -> None:
    fuzz(MemoryStore, 100)


@pytest.mark.slow
def test_whatever_is_enqueued_all_can_be_read_on_sqlite(tmp_path: Path) -> None:
    fuzz(lambda: SqliteStore(tmp_path / "jobs.db"), 60)


@pytest.mark.slow
def test_whatever_is_enqueued_all_can_be_read_on_postgres() -> None:
    fuzz(RecycledStore, 40)


@pytest.mark.slow
def test_whatever_is_enqueued_all_can_be_read_on_dynamodb() -> None:
    fuzz(FreshStore, 30)
