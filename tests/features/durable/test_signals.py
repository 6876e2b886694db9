"""No wait misses a signal, whichever comes first."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Context, Mainspring, Signal, Status
from mainspring.errors import CannotStoreResult, ConfigurationError, StoreUnavailable
from mainspring.events import JobSuspended
from mainspring.features.durable import signals
from mainspring.features.durable.signals import COLLECTION
from mainspring.ids import new_id
from mainspring.stores.documents import Bundle, Key, Write
from mainspring.stores.protocol import Store
from mainspring.testing.kit import Kit
from tests.features.durable.conftest import START
from tests.worker.working import ended, new_app, reached, record, working

HOUR = timedelta(hours=1)


def waiter(app: Mainspring, **options: Any) -> Any:
    @app.task(name="wait")
    async def wait(ctx: Context, key: str) -> Any:
        found = await ctx.wait_for(key, **options)
        return "timeout" if found is None else found.payload

    return wait


@pytest.mark.parametrize("first", ["signal", "wait"])
async def test_a_signal_is_received_whether_it_or_the_wait_comes_first(kit: Kit, first: str) -> None:
    wait = waiter(kit.app, timeout=HOUR)
    if first == "signal":
        sent = await kit.app.signal("door:1", {"who": "ana"})
        assert isinstance(sent, Signal)
    job = await wait.enqueue("door:1")
    ran = await kit.drain(raise_errors=True)
    if first == "wait":
        assert [run.status for run in ran] == ["suspended"]
        assert (await job.get()).waits_for == "signal:door:1"
        await kit.app.signal("door:2", "another")
        assert await kit.drain() == []
        await kit.app.signal("door:1", {"who": "ana"})
        await kit.drain(raise_errors=True)
    assert (await job.get()).result == {"who": "ana"}


async def test_a_wait_without_a_signal_times_out(kit: Kit) -> None:
    job = await waiter(kit.app, timeout=2 * HOUR).enqueue("door:1")
    await kit.time.advance(hours=1.9, raise_errors=True)
    assert (await job.get()).status is Status.SUSPENDED
    await kit.time.advance(hours=0.2, raise_errors=True)
    found = await job.get()
    assert (found.result, found.finished_at) == ("timeout", START + 2 * HOUR)


async def test_a_thread_may_wait(quick: Kit) -> None:
    @quick.app.task()
    def wait(ctx: Context) -> list[Any]:
        first = ctx.wait_for_sync("door", timeout=5)
        second = ctx.wait_for_sync("door")
        assert second
        return [first, second.payload, second.key, second.sent_at]

    job = await wait.enqueue()
    await quick.time.advance(minutes=1, raise_errors=True)
    quick.app.run(quick.app.signal("door", 7))
    await quick.drain(raise_errors=True)
    sent_at = (START + timedelta(minutes=1)).isoformat().replace("+00:00", "Z")
    assert (await job.get()).result == [None, 7, "door", sent_at]


async def test_each_waiting_job_sees_each_signal_once_in_order(kit: Kit) -> None:
    seen: dict[str, list[Any]] = {"a": [], "b": []}

    @kit.app.task()
    async def listen(ctx: Context, who: str) -> list[Any]:
        got: list[Any] = []
        while len(got) < 5:
            signal = await ctx.wait_for("door")
            assert signal is not None
            got.append(signal.payload)
        return got

    await kit.app.signal("door", 0)
    jobs = [await listen.enqueue(who) for who in seen]
    await kit.app.signal("door", 1)
    await kit.drain(raise_errors=True)
    await kit.app.signal("door", 2)
    await kit.app.signal("door", 3)
    await kit.drain(raise_errors=True)
    await kit.app.signal("door", None)
    await kit.drain(raise_errors=True)
    assert [(await job.get()).result for job in jobs] == [[0, 1, 2, 3, None]] * 2


async def test_a_signal_sent_again_with_its_id_is_the_same(kit: Kit) -> None:
    @kit.app.task()
    async def count(ctx: Context) -> list[Any]:
        seen = []
        while (found := await ctx.wait_for("paid", timeout=HOUR)) is not None:
            seen.append(found.payload)
        return seen

    job = await count.enqueue()
    first = await kit.app.signal("paid", 1, id="evt_7")
    again = await asyncio.gather(*[kit.app.signal("paid", 2, id="evt_7") for _ in range(5)])
    assert again == [first] * 5
    await kit.app.signal("paid", 3, id="evt_8")
    elsewhere = await kit.app.signal("shipped", 4, id="evt_7")
    assert elsewhere.payload == 4
    await kit.time.advance(hours=2, raise_errors=True)
    assert (await job.get()).result == [1, 3]


async def test_an_id_is_known_as_long_as_its_signal_is_kept(kit: Kit) -> None:
    first = await kit.app.signal("paid", 1, id="evt_7", keep=HOUR)
    await kit.time.advance(minutes=59)
    assert await kit.app.signal("paid", 2, id="evt_7", keep=HOUR) == first
    await kit.time.advance(minutes=1)
    assert (await kit.app.signal("paid", 2, id="evt_7", keep=HOUR)).payload == 2


async def test_a_sender_that_died_before_it_called_may_send_again(quick: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await waiter(quick.app).enqueue("door:1")
    await quick.drain()

    async def dies(_keys: Any) -> dict[str, int]:
        raise StoreUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(quick.store, "wake", dies)
        with pytest.raises(StoreUnavailable):
            await quick.app.signal("door:1", "in", id="evt_7")
    assert await quick.drain() == []
    await quick.app.signal("door:1", "in", id="evt_7")
    await quick.drain(raise_errors=True)
    assert (await job.get()).result == "in"


async def test_a_sender_whose_clock_is_behind_is_heard(quick: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    @quick.app.task()
    async def listen(ctx: Context) -> list[Any]:
        return [signal.payload for _ in range(2) if (signal := await ctx.wait_for("door", timeout=60))]

    behind = new_id()
    await asyncio.sleep(0.002)
    job = await listen.enqueue()
    await quick.app.signal("door", "first")
    await quick.drain(raise_errors=True)
    monkeypatch.setattr(signals, "new_id", lambda: behind)
    await quick.app.signal("door", "second")
    await quick.drain(raise_errors=True)
    assert (await job.get()).result == ["first", "second"]


async def test_a_signal_after_the_timeout_is_too_late(quick: Kit) -> None:
    """Even if the job had no chance to notice the time before that."""
    job = await waiter(quick.app, timeout=HOUR).enqueue("door")
    await quick.drain()
    quick.clock.advance(3601)
    await quick.app.signal("door", "late")
    await quick.drain(raise_errors=True)
    assert (await job.get()).result == "timeout"


async def test_a_recorded_timeout_is_not_undone_by_a_later_signal(quick: Kit) -> None:
    """A timeout is a fact: a signal that comes later does not undo what followed from it."""

    @quick.app.task()
    async def wait(ctx: Context) -> list[bool]:
        first = bool(await ctx.wait_for("door", timeout=60))
        await ctx.sleep(3600)
        return [first, bool(await ctx.wait_for("door", timeout=60))]

    job = await wait.enqueue()
    await quick.time.advance(minutes=2, raise_errors=True)
    await quick.app.signal("door")
    await quick.time.advance(hours=1, raise_errors=True)
    assert (await job.get()).result == [False, True]


async def test_signals_are_kept_for_so_long(kit: Kit) -> None:
    await kit.app.signal("door", 1, keep=HOUR)
    await kit.time.advance(hours=2)
    job = await waiter(kit.app, timeout=0).enqueue("door")
    await kit.drain(raise_errors=True)
    assert (await job.get()).result == "timeout"


async def test_a_signal_is_received_although_its_sender_died_before_the_wake(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its signal is written; any worker calls in its place."""
    job = await waiter(kit.app).enqueue("door")
    await kit.drain(raise_errors=True)
    await send_without_call(kit.store, monkeypatch, kit.app)
    assert (await job.get()).status is Status.SUSPENDED
    await kit.time.advance(21, raise_errors=True)
    assert (await job.get()).result == "called"
    assert (await kit.store.due(COLLECTION, ahead=10**9)).documents == []  # and once is enough


async def test_recovery_after_a_workers_death_calls_again_at_once(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await waiter(kit.app).enqueue("door")
    await kit.drain(raise_errors=True)
    await send_without_call(kit.store, monkeypatch, kit.app)
    await kit.app.runtime.timers.recover()
    await kit.drain(raise_errors=True)
    assert (await job.get()).result == "called"


async def send_without_call(store: Store, monkeypatch: pytest.MonkeyPatch, app: Mainspring) -> None:
    class KilledError(Exception):
        pass

    async def die(keys: Any) -> Any:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(store, "wake", die)
        with pytest.raises(KilledError):
            await app.signal("door", "called")


async def test_a_signal_between_the_look_and_the_suspension_is_not_missed(quick: Kit) -> None:
    """And it does not take the net: it is seen by the second look."""
    real = quick.store.ack

    async def ack(outcomes: Any) -> Any:
        quick.store.ack = real  # type: ignore[method-assign]
        await quick.app.signal("door", "just now")
        return await real(outcomes)

    quick.store.ack = ack  # type: ignore[method-assign]
    job = await waiter(quick.app).enqueue("door")
    await quick.drain(raise_errors=True)
    assert (await job.get()).result == "just now"


async def test_a_waiting_job_looks_by_itself_ever_more_rarely(quick: Kit) -> None:
    """It looks by itself after a minute, then an hour, then each day."""
    job = await waiter(quick.app).enqueue("door")
    ran = await quick.time.advance(days=5, raise_errors=True)
    assert [run.job.started_at - START for run in ran if run.job.started_at] == [
        timedelta(),
        timedelta(minutes=1),
        timedelta(minutes=61),
        *(timedelta(days=day, minutes=61) for day in range(1, 5)),
    ]
    document = Write(Key(COLLECTION, "door", new_id()), '{"payload": 1, "sent_at": 0}')
    await quick.store.write([Bundle((document,))])
    await quick.time.advance(days=1, raise_errors=True)
    assert (await job.get()).result == 1


async def test_two_waits_can_run_in_parallel(quick: Kit) -> None:
    """A job waits for one key at a time; it looks after the other within a minute."""

    @quick.app.task()
    async def wait(ctx: Context) -> list[Any]:
        found = await asyncio.gather(ctx.wait_for("a"), ctx.wait_for("b"))
        return [signal.payload for signal in found if signal]

    job = await wait.enqueue()
    await quick.drain(raise_errors=True)
    await quick.app.signal("b", 2)
    await quick.time.advance(minutes=1, raise_errors=True)
    await quick.app.signal("a", 1)
    await quick.time.advance(minutes=1, raise_errors=True)
    assert (await job.get()).result == [1, 2]


async def test_a_wait_emits_job_suspended(quick: Kit) -> None:
    events = record(quick.app, JobSuspended)
    await waiter(quick.app).enqueue("door")
    await quick.drain()
    assert [(event.waits_for, event.until) for event in events] == [("signal:door", START + timedelta(minutes=1))]


@pytest.mark.parametrize("key", ["", "k" * 181, "a\x00", "\udc80", 7])
async def test_invalid_keys_are_refused(quick: Kit, key: Any) -> None:
    with pytest.raises(ConfigurationError, match="the key of a signal"):
        await quick.app.signal(key)
    with pytest.raises(ConfigurationError, match="the id of a signal"):
        await quick.app.signal("door", id=key)


async def test_the_longest_key_and_id_can_be_used(kit: Kit) -> None:
    key = "ü" * 180
    await kit.app.signal(key, 1, id=key)
    job = await waiter(kit.app, timeout=0).enqueue(key)
    await kit.drain(raise_errors=True)
    assert (await job.get()).result == 1


async def test_a_signal_is_kept_for_a_while(quick: Kit) -> None:
    with pytest.raises(ConfigurationError, match="keep=0"):
        await quick.app.signal("door", keep=0)


async def test_a_payload_must_be_json(quick: Kit) -> None:
    with pytest.raises(CannotStoreResult, match="payload of signal 'door'"):
        await quick.app.signal("door", object())


async def test_a_signal_wakes_a_worker_at_once() -> None:
    app = new_app()
    wait = waiter(app)
    async with working(app):
        job = await wait.enqueue("door")
        await reached(app, job.id, statuses=(Status.SUSPENDED,))
        await app.signal("door", 5)
        (found,) = await ended(app, job.id)
    assert found.result == 5
