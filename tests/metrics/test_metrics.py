"""What is counted, and what the pages show of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mainspring import Mainspring
from mainspring.errors import StoreUnavailable
from mainspring.events import JobCancelled
from mainspring.job import Claim
from mainspring.metrics import Metrics
from mainspring.metrics.catalog import CLUSTER, PROCESS
from mainspring.metrics.job_cells import BOUNDS
from mainspring.metrics.labels import MAX_PLACES, MAX_QUEUES, MAX_TASKS, Names, Places, capped
from mainspring.metrics.shared_read import SharedRead
from mainspring.numbers import Histogram
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import SqliteStore
from mainspring.testing import ManualClock
from tests.dynamodb import FreshStore
from tests.metrics.story import NOON, make_app, tell
from tests.postgres import RecycledStore

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
OF_SOME_STORES = {"mainspring_store_connections", "mainspring_store_measure"}
OF_THE_SERVICE = {"mainspring_http_request_seconds", "mainspring_sse_clients", "mainspring_feed_lag_seconds"}
DOES_NOT_HAPPEN = {"mainspring_store_errors_total", "mainspring_occasions_skipped_total"}


def parsed(text: bytes) -> Samples:
    families = list(text_string_to_metric_families(text.decode()))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


class Page:
    """A page of metrics."""

    def __init__(self, text: bytes) -> None:
        self.samples = parsed(text)

    def __call__(self, name: str, /, **labels: str) -> float:
        return self.samples["mainspring_" + name, frozenset(labels.items())]

    def has(self, name: str) -> bool:
        ends = ("", "_bucket")
        return any(sample == name + end for sample, _ in self.samples for end in ends)

    def values(self, name: str, label: str) -> set[str]:
        return {dict(labels)[label] for sample, labels in self.samples if sample == "mainspring_" + name}


@asynccontextmanager
async def told() -> AsyncIterator[Metrics]:
    """The metrics of an application after the story."""
    clock = ManualClock(NOON)
    app = make_app(clock)
    metrics = Metrics.of(app)
    async with app:
        await tell(app, clock)
        yield metrics


async def test_a_story_of_jobs_is_counted() -> None:
    async with told() as metrics:
        page, cluster = Page(await metrics.of_process()), Page(await metrics.of_cluster())
    assert page("enqueued_total", queue="mail", task="welcome", via="app") == 3
    assert page("enqueued_total", queue="default", task="tidy", via="timer") == 3
    assert page("deduplicated_total", queue="mail", task="welcome") == 1
    assert page("jobs_finished_total", queue="mail", task="welcome", outcome="completed") == 1
    assert page("jobs_finished_total", queue="mail", task="welcome", outcome="cancelled") == 1
    assert page("jobs_finished_total", queue="default", task="fail", outcome="dead_letter") == 1
    assert page("jobs_retried_total", queue="default", task="fail", reason="error") == 1
    assert page("jobs_started_total", queue="default", task="fail") == 2
    assert page("jobs_stalled_total", queue="slow", task="hang") == 1
    assert page("job_duration_seconds_sum", queue="slow", task="hang") == 7
    assert page("jobs_deferred_total", queue="default", task="put_off", reason="snoozed") == 1
    assert page("breaker_calls_total", name="email-api", outcome="good") == 1
    assert (
        page("deliveries_total", channel="email", outcome="failed")
        == page("delivery_seconds_count", channel="email") - 1
    )
    assert page("schedules_fired_total", schedule="tidy") == 3
    assert page("occasions_fired_total", kind="birthday") == 1
    assert page("store_up") == 1
    assert cluster("queue_jobs", queue="slow", status="dead_letter") == 1
    assert cluster("breaker_state", name="email-api") == 2
    assert cluster("dead_letters_unresolved", queue="default", task="fail") == 1
    assert cluster("unknown_task_jobs", task="removed") == 1
    assert cluster("workers", kind="local") == 1
    assert cluster("today_jobs_total", queue="slow", event="stalled") == 1
    assert cluster("today_task_jobs_total", task="welcome", event="completed") == 1
    assert cluster("today_job_duration_seconds_count", task="fail") == 2


async def test_every_metric_has_a_sample_after_the_story() -> None:
    async with told() as metrics:
        page, cluster = Page(await metrics.of_process()), Page(await metrics.of_cluster())
    missing = {metric.name for metric in PROCESS if not page.has(metric.name)}
    assert missing == OF_SOME_STORES | OF_THE_SERVICE | DOES_NOT_HAPPEN
    assert {metric.name for metric in CLUSTER if not cluster.has(metric.name)} == set()
    assert not {sample for sample, _ in page.samples} & {sample for sample, _ in cluster.samples}


async def test_pages_have_no_metric_that_is_not_in_the_catalogue() -> None:
    async with told() as metrics:
        text = (await metrics.of_process() + await metrics.of_cluster()).decode()
    known = {metric.name: metric for metric in (*PROCESS, *CLUSTER)}
    for family in text_string_to_metric_families(text):
        if not family.name.startswith("mainspring_"):
            continue
        metric = known[family.name + ("_total" if family.type == "counter" else "")]
        assert family.type == metric.kind
        assert family.documentation == metric.help
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)


async def test_an_application_has_one_set_of_metrics() -> None:
    app = Mainspring("memory://")
    assert Metrics.of(app) is Metrics.of(app)
    assert Metrics.of(Mainspring("memory://")) is not Metrics.of(app)


async def test_an_application_without_metrics_has_nothing_to_call() -> None:
    app = Mainspring("memory://")
    assert app.runtime.bus.meter is None
    assert not app.runtime.bus.wants(JobCancelled)
    assert "insert" not in vars(app.store)


async def test_jobs_of_handlers_and_of_threads_are_counted() -> None:
    app = Mainspring("memory://")
    metrics = Metrics.of(app)

    @app.task()
    async def child() -> None: ...

    @app.task()
    def parent() -> None:
        child.enqueue_sync()

    async with app:
        await parent.enqueue()
        await asyncio.to_thread(parent.enqueue_sync)
        await app.worker().drain()
        page = Page(await metrics.of_process())
    assert page("enqueued_total", queue="default", task="child", via="job") == 2
    assert page("enqueued_total", queue="default", task="parent", via="app") == 2
    assert page("jobs_finished_total", queue="default", task="parent", outcome="completed") == 2


async def test_a_job_that_runs_is_shown_while_it_runs() -> None:
    app = Mainspring("memory://")
    metrics = Metrics.of(app)
    begun, end = asyncio.Event(), asyncio.Event()

    @app.task(queue="mail")
    async def work() -> None:
        begun.set()
        await end.wait()

    async with app, app.worker():
        handle = await work.enqueue()
        await begun.wait()
        assert Page(await metrics.of_process())("job_running", queue="mail") == 1
        end.set()
        await handle.result(timeout=10)
        assert Page(await metrics.of_process())("job_running", queue="mail") == 0
    assert app.runtime.live_runs == {}


# -- the store does not answer ----------------------------------------------------------------------


def break_store(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("gone")

    for name in ("halts", "stats"):
        monkeypatch.setattr(app.store, name, fail)


async def test_a_store_that_is_away_does_not_hide_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Mainspring("memory://")
    metrics = Metrics.of(app)
    async with app:
        with monkeypatch.context() as patch:
            break_store(app, patch)
            assert Page(await metrics.of_process())("store_up") == 0
            with pytest.raises(StoreUnavailable):
                await metrics.of_cluster()
        metrics._probe._began = float("-inf")
        assert Page(await metrics.of_process())("store_up") == 1
        await metrics.of_cluster()


async def test_a_store_that_hangs_does_not_hide_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Mainspring("memory://")
    metrics = Metrics.of(app)
    monkeypatch.setattr("mainspring.metrics.metrics.PROBE_TIMEOUT", 0.01)
    monkeypatch.setattr("mainspring.metrics.cluster.READ_TIMEOUT", 0.01)

    async def hang(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    async with app:
        for name in ("halts", "stats"):
            monkeypatch.setattr(app.store, name, hang)
        assert Page(await metrics.of_process())("store_up") == 0
        with pytest.raises(StoreUnavailable):
            await metrics.of_cluster()


async def test_errors_of_the_store_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Mainspring("memory://")

    async def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(app.store, "stats", fail)
    metrics = Metrics.of(app)
    async with app:
        with pytest.raises(StoreUnavailable):
            await app.stats()
        page = Page(await metrics.of_process())
    assert page("store_errors_total", op="stats") == 1
    assert page("store_operation_seconds_count", op="stats") == 1


async def test_the_first_moment_of_a_day_has_no_numbers() -> None:
    app = make_app(ManualClock(datetime(2026, 3, 14, tzinfo=UTC)))
    async with app:
        assert not Page(await Metrics.of(app).of_cluster()).has("mainspring_today_jobs_total")


# -- one read for all --------------------------------------------------------------------------------


async def test_clients_that_ask_at_once_share_one_read() -> None:
    reads = 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0)
        return reads

    shared = SharedRead(read, fresh_for=3600)
    assert await asyncio.gather(*(shared.get() for _ in range(50))) == [1] * 50
    assert await shared.get() == 1
    shared._began = float("-inf")
    assert await asyncio.gather(*(shared.get() for _ in range(50))) == [2] * 50


async def test_a_client_that_hangs_up_does_not_end_the_read_of_the_others() -> None:
    go = asyncio.Event()

    async def read() -> str:
        await go.wait()
        return "read"

    shared = SharedRead(read, fresh_for=3600)
    first, second = asyncio.create_task(shared.get()), asyncio.create_task(shared.get())
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    assert await second == "read"


async def test_a_read_that_failed_is_tried_again() -> None:
    answers = iter([StoreUnavailable("gone"), "read"])

    async def read() -> str:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return str(answer)

    shared = SharedRead(read, fresh_for=3600)
    with pytest.raises(StoreUnavailable):
        await shared.get()
    assert await shared.get() == "read"


def test_a_read_of_a_loop_that_is_gone_is_not_waited_for() -> None:
    go: list[bool] = []

    async def read() -> str:
        while not go:  # noqa: ASYNC110 - an event would belong to one loop
            await asyncio.sleep(0)
        return "read"

    shared = SharedRead(read, fresh_for=3600)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await shared.get()

    asyncio.run(give_up())
    go.append(True)
    assert asyncio.run(shared.get()) == "read"


# -- caps ----------------------------------------------------------------------------------------------


def claim(queue: str, task: str) -> Claim:
    return Claim("x", 1, task, queue, "{}", 0, 0, 3, 0, 0, 0, 0)


async def test_names_beyond_the_cap_share_a_series() -> None:
    app = Mainspring("memory://")
    metrics = Metrics.of(app)
    for number in range(MAX_TASKS + 50):
        metrics.process.started(claim("mail", f"task {number}"), 5)
        metrics.process.completed(claim("mail", f"task {number}"), 5)
    for number in range(MAX_QUEUES + 50):
        metrics.process.started(claim(f"queue {number}", "task 0"), 5)
    page = Page(await metrics.of_process())
    assert len(page.values("jobs_started_total", "task")) == MAX_TASKS + 1
    assert len(page.values("jobs_started_total", "queue")) == MAX_QUEUES + 1
    assert page("jobs_started_total", queue="mail", task="other") == 50
    assert page("job_duration_seconds_count", queue="mail", task="other") == 50
    assert page("job_wait_seconds_count", queue="other") == 51


def test_pairs_beyond_the_cap_share_a_name() -> None:
    places = Places()
    shown = {places[f"queue {i % 50}", f"task {i % 199}"] for i in range(50 * 199)}
    assert len(shown) == MAX_PLACES + 1
    assert places["queue 0", "task 0"] == ("queue 0", "task 0")


def test_a_name_keeps_its_place() -> None:
    names = Names(2)
    assert [names[name] for name in ("a", "b", "c", "a", "other")] == ["a", "b", "other", "a", "other"]


def test_the_cluster_shows_the_same_names_on_every_process() -> None:
    numbers = {"c": 3, "a": 1, "b": 2, "d": 4}
    assert capped(numbers, 2) == {"a": 1, "b": 2, "other": 7}
    assert capped(dict(reversed(numbers.items())), 2, max) == {"a": 1, "b": 2, "other": 4}
    assert capped(numbers, 4) == numbers
    assert capped({"a": 1, "other": 2, "z": 3}, 2) == {"a": 1, "other": 5}


def test_the_buckets_are_those_of_the_numbers_over_time() -> None:
    assert tuple(bound / 1000 for bound in BOUNDS) == Histogram.bounds


async def test_labels_may_have_any_text() -> None:
    app = Mainspring("memory://")
    metrics = Metrics.of(app)
    name = 'a "quoted"\\ name\nwith ünïcode'
    metrics.process.started(claim(name, name), -3)
    page = Page(await metrics.of_process())
    assert page("jobs_started_total", queue=name, task=name) == 1
    assert page("job_wait_seconds_sum", queue=name) == 0


async def test_a_delivery_that_raises_has_failed() -> None:
    metrics = Metrics.of(Mainspring("memory://"))
    with pytest.raises(LookupError), metrics.delivery("sms"):
        raise LookupError
    assert Page(await metrics.of_process())("deliveries_total", channel="sms", outcome="failed") == 1


@pytest.mark.slow
async def test_the_connections_of_postgresql_are_shown() -> None:
    app = Mainspring(RecycledStore())
    metrics = Metrics.of(app)
    async with app:
        await app.stats()
        page = Page(await metrics.of_process())
        await metrics.of_cluster()
    assert page("store_connections", state="active") == 0
    assert page("store_connections", state="idle") >= 1
    assert page("store_connections", state="limit") >= page("store_connections", state="idle")
    assert page("store_measure", measure="calls") >= 1


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "postgres", "dynamodb"])
async def test_every_store_has_the_numbers_of_the_cluster(store: str, tmp_path: Path) -> None:
    stores: dict[str, Callable[[], Store]] = {
        "sqlite": lambda: SqliteStore(tmp_path / "jobs.db"),
        "postgres": RecycledStore,
        "dynamodb": FreshStore,
    }
    app = Mainspring(stores[store]())

    @app.task(queue="mail", max_attempts=1)
    async def fail() -> None:
        raise LookupError

    @app.every("1h")
    async def tidy() -> None: ...

    metrics = Metrics.of(app)
    async with app:
        await fail.enqueue()
        await app.worker().drain()
        page, process = Page(await metrics.of_cluster()), Page(await metrics.of_process())
    assert page("queue_jobs", queue="mail", status="dead_letter") == 1
    assert page("dead_letters_unresolved", queue="mail", task="fail") == 1
    assert page("today_task_jobs_total", task="fail", event="dead") == 1
    assert page("schedule_lateness_seconds") == 0
    assert process("jobs_finished_total", queue="mail", task="fail", outcome="dead_letter") == 1
    assert process("store_operation_seconds_count", op="claim") >= 1
