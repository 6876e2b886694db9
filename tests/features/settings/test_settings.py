"""Settings that are changed at run time: `app.settings`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Limit, Mainspring, Rate, Retry, live_settings
from mainspring.errors import ConfigurationError, StoreUnavailable
from mainspring.features.settings import api
from mainspring.job import Status
from mainspring.stores.documents import Bundle
from mainspring.stores.feed import ChangeFilter, ChangeKind
from mainspring.stores.protocol import Filter
from mainspring.testing import manual
from tests.features.conftest import START, NewApp
from tests.worker import working as waiting
from tests.worker.working import eventually, reached, working

LEVELS = ("enqueue", "set for task", "task", "set for queue", "queue", "app")  # each beats those after it
SUBSETS = [frozenset(some) for number in range(7) for some in itertools.combinations(LEVELS, number)]
QUIET = 3600.0  # seconds; a process that does not look by itself for so long must have been woken


# -- precedence -------------------------------------------------------------------------------------------


async def enqueued(levels: frozenset[str], options: Any) -> tuple[Any, Retry]:
    """The job of a task in queue "mail", and its retry policy, if these levels set the options that are given."""

    def at(level: str) -> dict[str, Any]:
        return options(LEVELS.index(level)) if level in levels else {}

    app = Mainspring("memory://", **at("app"))
    app.queue("mail", **at("queue"))

    @app.task(queue="mail", **at("task"))  # type: ignore[untyped-decorator] # mypy cannot choose an overload
    async def send() -> None: ...

    async with app:
        if "set for task" in levels:
            await app.settings.set(task="send", **at("set for task"))
        if "set for queue" in levels:
            await app.settings.set(queue="mail", **at("set for queue"))
        job = await (await send.using(**at("enqueue")).enqueue()).get()
        own = job.options.get("retry")
        return job, Retry.from_data(dict(own)) if own else send.retry_in("mail")


@pytest.mark.parametrize("levels", SUBSETS, ids=lambda levels: "+".join(sorted(levels)))
async def test_the_first_level_that_sets_an_option_decides_it(levels: frozenset[str]) -> None:
    job, retry = await enqueued(
        levels, lambda number: {"timeout": 10 + number, "retry": Retry.fixed(20 + number, max_attempts=30 + number)}
    )
    first = next((number for number, level in enumerate(LEVELS) if level in levels), None)
    assert job.timeout == (None if first is None else 10 + first)
    assert job.max_attempts == (3 if first is None else 30 + first)
    assert retry.base == (60 if first is None else 20 + first)


@pytest.mark.parametrize("levels", SUBSETS, ids=lambda levels: "+".join(sorted(levels)))
async def test_the_first_level_with_a_retry_or_a_number_decides_the_attempts(levels: frozenset[str]) -> None:
    """Levels with an even number give a policy, the others only a number of attempts."""

    def options(number: int) -> dict[str, Any]:
        return {"max_attempts": 30 + number} if number % 2 else {"retry": Retry.fixed(9, max_attempts=30 + number)}

    job, _ = await enqueued(levels, options)
    first = next((number for number, level in enumerate(LEVELS) if level in levels), None)
    assert job.max_attempts == (3 if first is None else 30 + first)


async def test_which_errors_are_retried_stays_in_the_code() -> None:
    app = Mainspring("memory://")

    @app.task(retry=Retry(never=(ValueError,)))
    async def send() -> None: ...

    async with app:
        await app.settings.set(task="send", retry=Retry.fixed(5))
        policy = send.retry_in("default")
        assert (policy.base, policy.allows(ValueError()), policy.allows(OSError())) == (5, False, True)


# -- all routes of new jobs, and failures -----------------------------------------------------------------


async def test_schedules_follow_ups_and_failures_use_what_is_set(new_app: NewApp) -> None:
    app, attempts = new_app(), []

    @app.task()
    async def leaf() -> None: ...

    @app.every("1h")
    @app.task()
    async def hourly(ctx: Any = None) -> None: ...

    @app.task(retry=Retry.fixed(600))
    async def fails() -> None:
        attempts.append(app.now())
        raise OSError("down")

    async with manual(app, start=START) as kit:
        await kit.time.advance(minutes=1)
        await app.settings.set(task="hourly", timeout=7)
        await app.settings.set(task="fails", retry=Retry.fixed(30))
        await fails.enqueue()
        await kit.time.advance(minutes=2)
        assert [later - first for first, later in itertools.pairwise(attempts)] == [timedelta(seconds=30)] * 2
        await kit.time.advance(hours=1)
        jobs = [job async for job in app.jobs.all(Filter(tasks=("hourly",)))]
        assert {job.timeout for job in jobs} == {7}


# -- in other processes -----------------------------------------------------------------------------------


def declare(app: Mainspring, gate: asyncio.Event, ran: list[int], **options: Any) -> Any:
    @app.task(queue="mail", **options)  # type: ignore[untyped-decorator] # mypy cannot choose an overload
    async def send(number: int) -> None:
        ran.append(number)
        await gate.wait()

    return send


@asynccontextmanager
async def two_processes(new_app: NewApp, **options: Any) -> AsyncIterator[tuple[Mainspring, Any, list[int], Any]]:
    """An operator's application, and one that works on jobs, which all wait for the event."""
    operator, serving, gate, ran = new_app(), new_app(), asyncio.Event(), list[int]()
    send = declare(serving, gate, ran, **options)
    async with working(serving, concurrency=20):
        try:
            yield operator, send, ran, gate
        finally:
            gate.set()


async def test_a_raised_limit_wakes_waiting_jobs_and_a_lowered_one_delays_only_new_starts(new_app: NewApp) -> None:
    async with two_processes(new_app, limits=Limit(2)) as (operator, send, ran, gate):
        jobs = await send.enqueue_many([{"number": number} for number in range(8)])
        await eventually(lambda: len(ran) == 2)
        await operator.settings.set(task="send", limit=5, actor="ana", reason="backlog")
        await eventually(lambda: len(ran) == 5)
        await operator.settings.set(task="send", limit=1)
        assert len(ran) == 5
        gate.set()
        await reached(operator, *(job.id for job in jobs), statuses=(Status.COMPLETED,))
        await eventually(lambda: has_size(operator, 1))  # on DynamoDB, the worker may hear of it after the jobs


async def test_a_limit_that_the_code_does_not_have_can_be_set_and_cleared(new_app: NewApp) -> None:
    async with two_processes(new_app) as (operator, send, ran, _):
        await operator.settings.set(queue="mail", limit=1)
        await eventually(lambda: "queue mail" in known(send))
        await send.enqueue_many([{"number": number} for number in range(4)])
        await eventually(lambda: len(ran) == 1)
        waiting_jobs = Filter(statuses=(Status.SUSPENDED,))
        await eventually(lambda: holds(operator, waiting_jobs, 3))
        assert await operator.settings.clear(queue="mail")
        await eventually(lambda: len(ran) == 4)


async def has_size(app: Mainspring, size: int) -> bool:
    (state,) = await app.limits.list("send")
    return state.size == size


def known(send: Any) -> set[str]:
    """The names of the limits that the worker's process knows to be set."""
    return set(send.shared.settings.snapshot.numbers())


async def holds(app: Mainspring, where: Filter, number: int) -> bool:
    return await app.jobs.count(where) == number


async def test_the_number_of_each_key_is_set(new_app: NewApp) -> None:
    limits = [Limit(1, key=lambda payload: payload.number % 2)]
    async with two_processes(new_app, limits=limits) as (operator, send, ran, _):
        await send.enqueue_many([{"number": number} for number in range(6)])
        await eventually(lambda: len(ran) == 2)
        await operator.settings.set(task="send", limit=2)
        await eventually(lambda: len(ran) == 4)
        assert sorted(number % 2 for number in ran) == [0, 0, 1, 1]


async def test_a_rate_is_set(new_app: NewApp) -> None:
    async with two_processes(new_app, limits=Rate(1, per=3600)) as (operator, send, ran, _):
        await send.enqueue_many([{"number": number} for number in range(5)])
        await eventually(lambda: len(ran) == 1)
        await operator.settings.set(task="send", rate=Rate(1000, per=1))
        await eventually(lambda: len(ran) == 5)


async def test_a_named_limit_is_set_for_all_that_share_it(new_app: NewApp) -> None:
    async with two_processes(new_app, limits=Limit(1, name="smtp")) as (operator, send, ran, _):
        await send.enqueue_many([{"number": number} for number in range(5)])
        await eventually(lambda: len(ran) == 1)
        await operator.settings.set(name="smtp", limit=3)
        await eventually(lambda: len(ran) == 3)


async def test_a_paused_task_starts_no_job_until_it_goes_on(new_app: NewApp) -> None:
    async with two_processes(new_app) as (operator, send, ran, gate):
        gate.set()
        await operator.settings.set(task="send", paused=True, reason="the templates are wrong")
        await eventually(lambda: send.shared.settings.snapshot.paused)
        jobs = await send.enqueue_many([{"number": number} for number in range(3)])
        found = await reached(operator, *(job.id for job in jobs), statuses=(Status.SUSPENDED,))
        assert {(job.reason, job.attempts) for job in found} == {("the task 'send' is paused", 0)}
        assert ran == []
        assert await operator.settings.clear("paused", task="send")
        await eventually(lambda: sorted(ran) == [0, 1, 2])
        assert await operator.settings.get(task="send") == {}


async def test_workers_that_start_after_a_pause_was_ended_wake_its_jobs(
    new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All processes died between the end of the pause and the wake-up of its jobs."""
    app, gate, ran = new_app(), asyncio.Event(), list[int]()
    gate.set()
    send = declare(app, gate, ran)
    async with working(app):
        await app.settings.set(task="send", paused=True)
        job = await send.enqueue(number=1)
        await reached(app, job.id, statuses=(Status.SUSPENDED,))
    app.runtime.live_settings.listeners.clear()  # the process does nothing after it has written
    await app.settings.clear(task="send")
    another = new_app()
    declare(another, gate, ran)
    async with working(another):
        await eventually(lambda: ran == [1])


async def test_the_jobs_of_a_paused_task_go_on_after_an_outage_at_the_end_of_the_pause(
    new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's process died after its write, and the worker could not wake the jobs at its first attempt."""
    operator, serving, gate, ran = new_app(), new_app(), asyncio.Event(), list[int]()
    gate.set()
    send = declare(serving, gate, ran)
    wake, failures = serving.store.wake, [StoreUnavailable("away")]

    async def wake_later(numbers: Any) -> Any:
        if failures:
            raise failures.pop()
        return await wake(numbers)

    async with working(serving):
        await operator.settings.set(task="send", paused=True)
        await eventually(lambda: send.shared.settings.snapshot.paused)
        job = await send.enqueue(number=1)
        await reached(operator, job.id, statuses=(Status.SUSPENDED,))
        operator.runtime.live_settings.listeners.clear()
        monkeypatch.setattr(serving.store, "wake", wake_later)
        await operator.settings.clear(task="send")
        await eventually(lambda: ran == [1])
    assert not failures


async def test_a_worker_that_is_woken_reads_at_once(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look by itself after an hour only. DynamoDB wakes only workers of the same process."""
    monkeypatch.setattr("mainspring.worker.worker.FRESH_FOR", QUIET)
    async with two_processes(new_app) as (operator, send, _, _gate):
        if operator.store.url.startswith("dynamodb"):
            pytest.skip("DynamoDB does not wake workers of other processes: they look")
        await operator.settings.set(task="send", timeout=5)
        await eventually(lambda: send.shared.settings.snapshot.tasks)


async def test_workers_learn_of_a_change_whose_process_died_before_it_woke_them(
    new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "Bundle", lambda writes, note, spread: Bundle(writes, note=note))
    async with two_processes(new_app, limits=Limit(1)) as (operator, send, ran, _):
        await send.enqueue_many([{"number": number} for number in range(3)])
        await eventually(lambda: len(ran) == 1)
        await operator.settings.set(task="send", limit=3)
        await eventually(lambda: len(ran) == 3)


async def test_a_program_without_a_worker_looks_once_within_a_second(
    new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, program, gate = new_app(), new_app(), asyncio.Event()
    send, now, reads = declare(program, gate, []), [100.0], []
    monkeypatch.setattr(live_settings, "since_boot", lambda: now[0])
    documents = program.store.documents

    async def counted(keys: Any) -> Any:
        reads.append(keys)
        return await documents(keys)

    monkeypatch.setattr(program.store, "documents", counted)

    async def timeout() -> float | None:
        found: float | None = (await (await send.enqueue(number=1)).get()).timeout
        return found

    assert [await timeout() for _ in range(3)] == [None] * 3
    if program.store is not operator.store:
        assert len(reads) == 1
    await operator.settings.set(task="send", timeout=5)
    now[0] += 0.81
    assert await timeout() == 5
    assert (await (await asyncio.to_thread(send.enqueue_sync, number=1)).get()).timeout == 5
    await operator.settings.clear(task="send")
    now[0] += 0.81
    assert (await (await asyncio.to_thread(send.enqueue_sync, number=1)).get()).timeout is None


# -- several operators ------------------------------------------------------------------------------------


async def test_operators_who_change_at_the_same_time_all_take_effect(new_app: NewApp) -> None:
    """The last change of the same setting counts; changes of other settings stay."""
    one, other = new_app(), new_app()
    await asyncio.gather(
        *(one.settings.set(task="send", limit=number, actor="ana") for number in range(1, 6)),
        *(other.settings.set(task="send", timeout=number, actor="ben") for number in range(1, 6)),
    )
    found = await one.settings.get(task="send")
    assert {option: setting.actor for option, setting in found.items()} == {"limit": "ana", "timeout": "ben"}
    assert len([entry for entry in await one.audit() if entry.action == "settings.set"]) == 10


async def test_changes_are_listed_audited_and_in_the_feed(new_app: NewApp) -> None:
    app = new_app()
    if not hasattr(app.store, "changes"):
        pytest.skip("this store has no change feed yet")
    stream = app.changes(where=ChangeFilter(kinds=(ChangeKind.DOCUMENT,)))
    await app.store.open()
    first = asyncio.ensure_future(anext(aiter(stream)))
    await eventually(lambda: stream.cursor)
    await app.settings.set(queue="mail", rate=Rate(100, per=60), actor="ana", reason="quiet hours")
    await app.pause("mail", "maintenance", actor="ben", wait=None)
    async with asyncio.timeout(waiting.DEADLINE):
        change = await first
    assert change.data == {"collection": "settings", "group": "queue", "id": "mail", "deleted": False}
    rows = [
        (each.kind, each.name, each.option, each.value, each.actor, each.reason) for each in await app.settings.list()
    ]
    assert rows == [
        ("queue", "mail", "paused", True, "ben", "maintenance"),
        ("queue", "mail", "rate", Rate(100, per=60.0), "ana", "quiet hours"),
    ]
    entry = (await app.audit())[-1]
    assert (entry.actor, entry.action, entry.reason) == ("ana", "settings.set", "quiet hours")
    assert entry.detail == {"queue": "mail", "rate": {"count": 100, "per": 60_000, "burst": None}}
    assert await app.settings.clear("rate", queue="mail")
    assert not await app.settings.clear("rate", queue="mail")


# -- wrong values -----------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "say what the settings are of"),
    ({"task": "a", "queue": "b", "limit": 1}, "say what the settings are of"),
    ({"task": "a"}, "give at least one of limit, rate"),
    ({"queue": "*", "limit": 1}, "not a name for a queue"),
    ({"task": "a", "limit": 0}, "give a whole number from 1"),
    ({"task": "a", "rate": 5}, "give a Rate"),
    ({"task": "a", "rate": Rate(5, key=str)}, "stay in the code"),
    ({"task": "a", "retry": 5}, "give a Retry"),
    ({"task": "a", "retry": Retry(only=(OSError,))}, "stay in the code"),
    ({"task": "a", "timeout": 0}, "give at least a millisecond"),
    ({"task": "a", "max_attempts": 0}, "at least one attempt"),
    ({"task": "a", "limit": 10**30}, "give a whole number from 1 to 1,000,000,000"),
    ({"task": "a", "paused": 1}, "give True or False"),
    ({"queue": "a", "paused": True}, "app.pause"),
    ({"name": "a", "timeout": 1}, "a limit has no timeout"),
    ({"name": "nope", "limit": 1}, "no limit or rate is named 'nope' here"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
async def test_wrong_settings_are_refused(given: dict[str, Any], message: str) -> None:
    app = Mainspring("memory://")

    @app.task()
    async def a() -> None: ...

    async with app:
        with pytest.raises(ConfigurationError, match=message):
            await app.settings.set(**given)
        with pytest.raises(ConfigurationError, match="there is no setting 'limits'"):
            await app.settings.clear("limits", task="a")


def test_the_synchronous_twins() -> None:
    app = Mainspring("memory://")
    assert app.settings.set_sync(task="send", limit=3)["limit"].value == 3
    assert [setting.option for setting in app.settings.list_sync()] == ["limit"]
    assert app.settings.get_sync(task="send").keys() == {"limit"}
    assert app.settings.clear_sync(task="send")
    app.run(app.close())


# -- unknown tasks ----------------------------------------------------------------------------------------


async def warned(app: Mainspring, caplog: pytest.LogCaptureFixture, **owner: str) -> bool:
    """Return whether setting a limit logs that the task is unknown. It is set in any case."""
    caplog.clear()
    settings = await app.settings.set(**owner, limit=1)  # type: ignore[arg-type] # only names
    assert settings["limit"].value == 1
    return any("settings_of_unknown_task" in record.getMessage() for record in caplog.records)


async def test_settings_of_a_task_that_nothing_knows_are_written_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Mainspring("memory://")

    @app.task
    async def send() -> None: ...

    async with app:
        assert await warned(app, caplog, task="nope")
        assert not await warned(app, caplog, task="send")
        assert not await warned(app, caplog, queue="nope")
        other = Mainspring(app.store)

        @other.task
        async def render() -> None: ...

        assert await warned(app, caplog, task="render")
        await other.published.publish([render], "w1")
        assert not await warned(app, caplog, task="render")
