"""Circuit breakers at work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring import Breaker, Cancel, Context, Discard, Mainspring, Retry, Snooze, Status
from mainspring.errors import ConfigurationError, StoreUnavailable
from mainspring.events import BreakerClosed, BreakerHalfOpened, BreakerOpened
from mainspring.features.breakers.rules import Phase
from mainspring.features.breakers.storage import COLLECTION
from mainspring.testing import Kit
from tests.worker.working import eventually, record

pytestmark = pytest.mark.slow

SETTINGS = Breaker(error_rate=0.5, per=60, min_calls=4, open_for=30, probes=2, counts=(OSError, TimeoutError))


class Service:
    """Answers, or raises what it is told to."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.calls = 0

    def call(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def app(service: Service) -> Mainspring:
    app = Mainspring("memory://")
    app.breakers.configure("mail", SETTINGS)
    retry = Retry(max_attempts=5, base=1, factor=1, jitter_share=0)

    @app.task(breaker="mail", retry=retry)
    async def declared(number: int = 0) -> None:
        service.call()

    @app.task(retry=retry)
    async def within(ctx: Context, number: int = 0) -> None:
        async with ctx.breaker("mail"):
            service.call()

    @app.task(retry=retry)
    def in_thread(ctx: Context, number: int = 0) -> None:
        with ctx.breaker("mail"):
            service.call()

    return app


async def phase(app: Mainspring) -> Phase:
    return (await app.breakers.get("mail")).phase


async def put(app: Mainspring, task: str, number: int) -> list[str]:
    return [handle.id for handle in await app.tasks[task].enqueue_many([{"number": n} for n in range(number)])]


async def jobs_of(app: Mainspring, ids: list[str]) -> list[tuple[Status, int]]:
    return [(job.status, job.attempts) for job in await app.store.get(ids)]


@pytest.mark.parametrize("task", ["declared", "within", "in_thread"])
async def test_closed_open_half_open_closed(app: Mainspring, kit: Kit, service: Service, task: str) -> None:
    events = record(app, BreakerOpened, BreakerHalfOpened, BreakerClosed)
    service.error = OSError("down")
    ids = await put(app, task, 10)
    await kit.drain()
    assert (service.calls, await phase(app)) == (4, Phase.OPEN)
    attempts = [one for _, one in await jobs_of(app, ids)]
    assert sorted(attempts) == [0] * 6 + [1] * 4, "those that were not let through have burnt an attempt"

    await kit.time.advance(seconds=29)
    assert service.calls == 4
    await kit.time.advance(seconds=2)  # half open: a probe fails
    assert (service.calls, await phase(app)) == (5, Phase.OPEN)

    service.error = None
    await kit.time.advance(minutes=3)
    assert await phase(app) is Phase.CLOSED
    assert {status for status, _ in await jobs_of(app, ids)} == {Status.COMPLETED}
    assert service.calls == 5 + 10
    kinds = [type(event).__name__ for event in events]
    assert kinds == ["BreakerOpened", "BreakerHalfOpened", "BreakerOpened", "BreakerHalfOpened", "BreakerClosed"]


async def test_jobs_that_wait_start_at_once_when_it_closes(app: Mainspring, kit: Kit, service: Service) -> None:
    await app.breakers.open("mail", reason="maintenance")
    ids = await put(app, "declared", 30)
    await kit.drain()
    assert {job.waits_for for job in await app.store.get(ids)} == {"breaker:mail"}
    assert (await app.breakers.get("mail")).reason == "maintenance"
    await kit.time.advance(hours=1)  # until somebody closes it: a few looks each
    assert service.calls == 0
    await app.breakers.close("mail")
    await kit.drain()
    assert (service.calls, kit.time.now()) == (30, datetime(2026, 3, 1, 13, tzinfo=UTC))
    assert set(await jobs_of(app, ids)) == {(Status.COMPLETED, 1)}


async def test_what_is_done_by_hand_is_in_the_audit_log(app: Mainspring) -> None:
    await app.breakers.open("mail", reason="maintenance", actor="ana")
    await app.breakers.close("mail", actor="ben")
    await app.breakers.close("mail", actor="ben")  # it is closed already
    noted = [(entry.action, entry.actor, entry.reason, entry.detail) for entry in await app.audit()]
    about = {"breaker": "mail"}
    assert noted == [("breaker.close", "ben", "", about), ("breaker.open", "ana", "maintenance", about)]


async def test_by_hand_for_a_while(app: Mainspring, kit: Kit, service: Service) -> None:
    await app.breakers.open("mail", open_for=60)
    await put(app, "declared", 5)
    await kit.time.advance(seconds=59)
    assert service.calls == 0
    await kit.time.advance(seconds=5)
    assert (service.calls, await phase(app)) == (5, Phase.CLOSED)


async def test_while_it_is_half_open_so_many_go_through_at_a_time(app: Mainspring, service: Service) -> None:
    running = asyncio.Event()
    at_once: list[int] = []
    inside: set[int] = set()

    @app.task(breaker="mail")
    async def slow(number: int) -> None:
        inside.add(number)
        at_once.append(len(inside))
        await running.wait()
        inside.discard(number)

    await app.breakers.open("mail", open_for=0.001)
    await slow.enqueue_many([{"number": number} for number in range(10)])
    await asyncio.sleep(0.002)
    worker = asyncio.create_task(app.worker(concurrency=10).drain())
    await eventually(lambda: len(inside) >= SETTINGS.probes)
    status = await app.breakers.get("mail")
    assert (status.phase, status.probing, max(at_once)) == (Phase.HALF_OPEN, 2, 2)
    running.set()
    await worker
    assert (len(at_once), await phase(app)) == (10, Phase.CLOSED)


@pytest.mark.parametrize("task", ["declared", "within", "in_thread"])
@pytest.mark.parametrize("error", [Discard("no use"), Snooze(3600), Cancel("no"), ValueError("ours"), KeyError("ours")])
async def test_what_is_not_the_services_fault(
    app: Mainspring, kit: Kit, service: Service, task: str, error: BaseException
) -> None:
    service.error = error
    await put(app, task, 10)
    await kit.drain()
    status = await app.breakers.get("mail")
    assert (service.calls, status.phase, status.bad) == (10, Phase.CLOSED, 0)


@pytest.mark.parametrize("declares", [True, False])
async def test_a_service_that_hangs_counts_as_failed(app: Mainspring, declares: bool) -> None:
    @app.task(timeout=0.01, breaker="mail" if declares else None, max_attempts=1)
    async def hang(ctx: Context) -> None:
        if declares:
            await asyncio.sleep(10)
        async with ctx.breaker("mail"):
            await asyncio.sleep(10)

    await app.enqueue_all([hang.prepare() for _ in range(4)])
    await app.worker().drain()
    assert await phase(app) is Phase.OPEN


async def test_one_that_is_well_costs_a_read_a_second_and_no_write(
    app: Mainspring, kit: Kit, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, store = list[Any](), app.store
    documents = store.documents

    async def counted(keys: Any) -> Any:
        reads.extend(key for key in keys if key.collection == COLLECTION)  # not those of settings
        return await documents(keys)

    monkeypatch.setattr(store, "documents", counted)
    for _ in range(5):
        await put(app, "within", 20)
        await kit.drain()
        kit.clock.advance(1)
    assert (service.calls, len(reads)) == (100, 5)
    assert [status.name for status in await app.breakers.list()] == ["mail"]
    assert (await app.breakers.get("mail")).since is None


async def test_those_that_tasks_declare_are_known_before_they_are_used() -> None:
    app = Mainspring("memory://")

    @app.task(breaker="print-shop")
    async def order() -> None: ...

    assert [status.name for status in await app.breakers.list()] == ["print-shop"]


async def test_others_hear_of_errors_within_a_second_or_so(new_app: Callable[[], Mainspring]) -> None:
    apps = [new_app() for _ in range(3)]
    for app in apps:
        app.breakers.configure("mail", SETTINGS)
    for _ in range(2):
        for app in apps[:2]:
            assert (await app.breakers.admit("mail", ["a"])).granted == {"a"}
            await app.breakers.note("mail", "a", well=False)
    for app in apps[:2]:  # two each: none can know alone
        view = app.breakers.circuits.view("mail")
        view.read_at -= 2000
        await app.breakers.note("mail", "a", well=True)
        view.read_at -= 2000
        await app.breakers.note("mail", "a", well=True)
    assert (await apps[2].breakers.get("mail")).phase is Phase.OPEN
    assert (await apps[2].breakers.admit("mail", ["a"])).granted == frozenset()


async def test_calls_go_through_while_the_store_is_unavailable(
    app: Mainspring, kit: Kit, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await app.breakers.admit("mail", ["a"])).granted
    kit.clock.advance(5)

    async def away(_keys: Any) -> Any:
        raise StoreUnavailable

    monkeypatch.setattr(app.store, "documents", away)
    assert (await app.breakers.admit("mail", ["b"])).granted
    for _ in range(10):
        await app.breakers.note("mail", "b", well=False)
    monkeypatch.undo()
    await app.breakers.note("mail", "b", well=False)
    assert await phase(app) is Phase.OPEN, "what was counted meanwhile is lost"


async def test_a_clock_that_went_back_does_not_keep_it_open(app: Mainspring, kit: Kit) -> None:
    """Each read moves the times that are ahead back to now. If that were not written, it would happen for an hour."""
    await app.breakers.open("mail", open_for=60)
    kit.clock.shift(-3600)
    for _ in range(30):
        assert not (await app.breakers.admit("mail", ["a"])).granted
        kit.clock.advance(2)
    assert (await app.breakers.admit("mail", ["a"])).granted == {"a"}


async def test_what_others_have_written_by_a_clock_that_is_ahead_delays_no_job_for_longer(
    app: Mainspring, kit: Kit
) -> None:
    assert (await app.breakers.admit("mail", ["a"])).granted
    await app.breakers.open("mail", open_for=60)
    kit.clock.shift(-3600)
    await app.runtime.features.state_changed()
    assert (await app.breakers.admit("mail", ["a"])).delay() <= 61_000


async def test_directly_called_handlers_pass(app: Mainspring, service: Service) -> None:
    await app.tasks["within"]()
    app.tasks["in_thread"]()
    assert service.calls == 2


def test_names_are_checked(app: Mainspring) -> None:
    for call in (lambda: app.breakers.configure("", SETTINGS), lambda: app.tasks["declared"].using(breaker="")):
        with pytest.raises(ConfigurationError, match="not a name for a circuit breaker"):
            call()


async def test_settings_are_checked(app: Mainspring) -> None:
    with pytest.raises(ConfigurationError, match=r"its settings are Breaker\("):
        app.breakers.configure("api", {"probes": 3})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="give a length of time above 0, or leave it out"):
        await app.breakers.open("api", open_for=0)
