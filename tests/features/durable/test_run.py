"""Steps: each runs once, whatever happens to the runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from mainspring import Context, Discard, Mainspring, Retry, Status
from mainspring.errors import CannotStoreResult, ClaimLost, ConfigurationError, StepsChanged, StoreUnavailable
from mainspring.testing.kit import Kit

AGAIN = Retry(max_attempts=10, base=0, jitter_share=0)


class Guest(BaseModel):
    name: str
    born: date


class CardDeclined(Exception):
    def __init__(self, card: str, code: int) -> None:
        super().__init__(f"card {card} was declined")
        self.code = code


class Ledger(list[str]):
    """What really happened."""

    async def note(self, what: str) -> str:
        self.append(what)
        return what

    def note_plainly(self, what: str) -> str:
        self.append(what)
        return what


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def flaky(app: Mainspring, ledger: Ledger, *, plain: bool = False) -> Any:
    """A function of three steps that fails after each of them, once."""
    failed: set[str] = set()

    def fail_once(after: str) -> None:
        if after not in failed:
            failed.add(after)
            raise RuntimeError(after)

    if plain:

        @app.task(retry=AGAIN, name="flaky")
        def plain_one(ctx: Context, guest: str) -> list[str]:
            done = []
            for name in ("a", "b", "c"):
                done.append(ctx.step_sync(name, ledger.note_plainly, f"{name} {guest}"))
                fail_once(name)
            return done

        return plain_one

    @app.task(retry=AGAIN, name="flaky")
    async def flaky(ctx: Context, guest: str) -> list[str]:
        done = []
        for name in ("a", "b", "c"):
            done.append(await ctx.step(name, ledger.note, f"{name} {guest}"))
            fail_once(name)
        return done

    return flaky


@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
async def test_each_step_runs_once_across_failures(kit: Kit, ledger: Ledger, plain: bool) -> None:
    job = await flaky(kit.app, ledger, plain=plain).enqueue("ana")
    ran = await kit.drain()
    assert [run.status for run in ran] == ["retrying", "retrying", "retrying", "completed"]
    assert ledger == ["a ana", "b ana", "c ana"]
    assert (await job.get()).result == ledger
    steps = await kit.app.store.steps(job.id)
    assert [(step.name, step.number, step.kind, step.output) for step in steps] == [
        ("a", 1, "step", '"a ana"'),
        ("b", 2, "step", '"b ana"'),
        ("c", 3, "step", '"c ana"'),
    ]


async def test_a_step_costs_one_commit_and_a_first_run_reads_nothing(quick: Kit, ledger: Ledger) -> None:
    calls: list[str] = []
    for name in ("save", "steps", "ack"):
        watch(quick, name, calls)
    await flaky(quick.app, ledger).enqueue("ana")
    await quick.drain()
    first = ["save", "ack"]
    assert calls == [*first, "steps", *first, "steps", *first, "steps", "ack"]


def watch(kit: Kit, name: str, calls: list[str]) -> None:
    real = getattr(kit.store, name)

    async def watched(*args: Any) -> Any:
        calls.append(name)
        return await real(*args)

    setattr(kit.store, name, watched)


async def test_outputs_come_back_as_what_they_were(quick: Kit) -> None:
    seen: list[Any] = []
    runs: list[int] = []

    async def fetch() -> Guest:
        return Guest(name="Ana", born=date(1990, 2, 3))

    def guests() -> list[Guest]:
        return [Guest(name="Bo", born=date(1991, 2, 3))]

    async def pause() -> Any:
        await asyncio.sleep(0)

    @quick.app.task(retry=AGAIN)
    async def work(ctx: Context) -> None:
        runs.append(ctx.attempt)
        one = await ctx.step("one", fetch)
        many = await ctx.step("many", guests)
        untyped = await ctx.step("untyped", lambda: (1, {"a": None}))
        nothing: Any = await ctx.step("nothing", pause)
        seen.append((one, many, untyped, nothing))
        if len(seen) == 1:
            raise RuntimeError

    await work.enqueue()
    await quick.drain()
    assert len(runs) == 2
    assert seen[0] == seen[1]  # the first run sees what later ones will
    assert seen[0] == (
        Guest(name="Ana", born=date(1990, 2, 3)),
        [Guest(name="Bo", born=date(1991, 2, 3))],
        [1, {"a": None}],
        None,
    )


async def test_an_output_that_is_not_json_is_an_error_and_not_recorded(quick: Kit) -> None:
    @quick.app.task()
    async def work(ctx: Context) -> None:
        await ctx.step("lock", lambda: threading.Lock())  # noqa: PLW0108 - since Python 3.13 Lock itself is a type

    job = await work.enqueue()
    (ran,) = await quick.drain()
    assert isinstance(ran.error, CannotStoreResult)
    assert "'lock'" in str(ran.error)
    assert ran.status is Status.DEAD_LETTER  # the next run could not store it either
    assert await quick.app.store.steps(job.id) == []


async def test_a_type_that_cannot_be_json_is_refused_before_the_work(quick: Kit, ledger: Ledger) -> None:
    def open_door() -> threading.Thread:
        ledger.append("opened")
        return threading.current_thread()

    @quick.app.task()
    async def work(ctx: Context) -> None:
        await ctx.step("open", open_door)

    await work.enqueue()
    (ran,) = await quick.drain()
    assert isinstance(ran.error, ConfigurationError)
    assert ledger == []


async def test_plain_functions_run_in_a_thread_of_a_coroutine(quick: Kit) -> None:
    loop_thread = threading.get_ident()
    places: list[int] = []

    @quick.app.task()
    async def work(ctx: Context) -> None:
        await ctx.step("plain", lambda: places.append(threading.get_ident()))

    await work.enqueue()
    await quick.drain(raise_errors=True)
    assert places != [loop_thread]


async def test_a_thread_may_have_steps_that_are_coroutines(quick: Kit, ledger: Ledger) -> None:
    @quick.app.task()
    def work(ctx: Context) -> str:
        return ctx.step_sync("a", ledger.note, "a")

    job = await work.enqueue()
    await quick.drain(raise_errors=True)
    assert (await job.get()).result == "a"


async def test_a_failure_that_was_caught_is_met_again(kit: Kit, ledger: Ledger) -> None:
    """The function went another way because of it; the next run must not find the step undone, or done."""
    codes: list[int] = []

    async def charge() -> str:
        ledger.append("charge")
        raise CardDeclined("4711", 51)

    @kit.app.task(retry=AGAIN)
    async def order(ctx: Context) -> str:
        try:
            await ctx.step("charge", charge)
        except CardDeclined as error:
            codes.append(error.code)
            await ctx.step("tell", ledger.note, f"tell: {error}")
        await ctx.sleep(60)
        return "told"

    job = await order.enqueue()
    await kit.drain(raise_errors=True)
    await kit.time.advance(minutes=1, raise_errors=True)
    assert (await job.get()).result == "told"
    assert ledger == ["charge", "tell: card 4711 was declined"]
    assert codes == [51, 51]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("x" * 5_000_000,), "x… shortened …x"),
        ((list(range(1_000_000)),), "[0, 1… shortened …999]"),
        ((b"x" * 5_000_000, 10**5000), "b'x… shortened …x'"),
    ],
    ids=["text", "list", "bytes"],
)
async def test_a_caught_failure_is_shortened(kit: Kit, args: tuple[Any, ...], message: str) -> None:
    """Megabytes of it would hold up what other jobs write."""
    met: list[str] = []

    async def fail() -> str:
        raise LookupError(*args)

    @kit.app.task()
    async def work(ctx: Context) -> str:
        try:
            await ctx.step("fails", fail)
        except LookupError as error:
            met.append(str(error.args[0]))
        await ctx.sleep(60)
        return "went on"

    job = await work.enqueue()
    await kit.drain(raise_errors=True)
    (failed, _) = await kit.app.store.steps(job.id)
    assert len(failed.output or "") < 20_000
    await kit.time.advance(minutes=1, raise_errors=True)
    assert (await job.get()).result == "went on"
    first, *_, last = message.split("… shortened …")
    assert met[1].startswith(first)
    assert met[1].endswith(last)
    assert len(met[1]) < 4200


@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
async def test_a_step_that_its_function_gave_up_stays_given_up(quick: Kit, ledger: Ledger, plain: bool) -> None:
    """It took another way, which it must find again: also if the thread came to its end after all."""
    go_on = threading.Event()

    async def slow() -> str:
        await asyncio.sleep(60)
        return "never"

    def slow_in_thread() -> str:
        assert go_on.wait(10)
        return "too late"

    @quick.app.task()
    async def work(ctx: Context) -> Any:
        try:
            async with asyncio.timeout(0.05):
                asyncio.get_running_loop().call_later(0.1, go_on.set)
                said: Any = await ctx.step("ask", slow_in_thread if plain else slow)
        except TimeoutError:
            said = await ctx.step("do without", ledger.note, "without")
        await ctx.sleep(60)
        return said

    job = await work.enqueue()
    await quick.time.advance(minutes=1, raise_errors=True)
    assert (await job.get()).result == "without"
    assert ledger == ["without"]


async def test_a_class_makes_what_it_is(quick: Kit) -> None:
    seen: list[Any] = []

    @quick.app.task()
    async def work(ctx: Context) -> None:
        seen.append(await ctx.step("guest", Guest, name="Ana", born=date(1990, 2, 3)))
        await ctx.sleep(1)

    await work.enqueue()
    await quick.time.advance(1, raise_errors=True)
    assert seen == [Guest(name="Ana", born=date(1990, 2, 3))] * 2


async def test_a_recorded_output_that_no_longer_fits_its_type_is_an_error(quick: Kit) -> None:
    kinds: list[Any] = [lambda: "seven"]

    @quick.app.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        await ctx.step("number", kinds[0])
        await ctx.sleep(1)

    def number() -> int:
        return 7

    await work.enqueue()
    await quick.drain(raise_errors=True)
    kinds[0] = number
    (ran,) = await quick.time.advance(1)
    assert isinstance(ran.error, StepsChanged)
    assert "step 'number'" in str(ran.error)


async def test_a_failure_that_was_not_caught_is_tried_again(quick: Kit, ledger: Ledger) -> None:
    async def charge() -> str:
        ledger.append("charge")
        if len(ledger) == 1:
            raise CardDeclined("4711", 51)
        return "paid"

    @quick.app.task(retry=AGAIN)
    async def order(ctx: Context) -> str:
        return await ctx.step("charge", charge)

    job = await order.enqueue()
    await quick.drain()
    assert (await job.get()).result == "paid"


async def test_steps_may_run_side_by_side(quick: Kit, ledger: Ledger) -> None:
    """A crash in the midst leaves some of them behind; those that are there are not run again, in whatever order."""
    failing = {"b2"}

    async def note(what: str) -> str:
        if what in failing:
            failing.discard(what)
            await asyncio.sleep(0.01)
            raise RuntimeError(what)
        return await ledger.note(what)

    @quick.app.task(retry=AGAIN)
    async def work(ctx: Context) -> list[str]:
        async def branch(name: str) -> str:
            for number in "123":
                await ctx.step(name + number, note, name + number)
            return name

        first = await ctx.step("begin", note, "begin")
        branches = await asyncio.gather(branch("a"), branch("b"), branch("c"))
        return [first, *branches, await ctx.step("end", note, "end")]

    job = await work.enqueue()
    ran = await quick.drain()
    assert [run.status for run in ran] == ["retrying", "completed"]
    assert (await job.get()).result == ["begin", "a", "b", "c", "end"]
    assert sorted(ledger) == sorted(["begin", "end", *(name + number for name in "abc" for number in "123")])


async def test_a_run_that_lost_its_claim_ends_without_an_outcome(quick: Kit, ledger: Ledger) -> None:
    """Even if its handler swallows the error."""
    real = quick.store.save
    swallowed: list[type] = []

    @quick.app.task(retry=AGAIN)
    async def work(ctx: Context) -> str:
        for name in ("a", "b"):
            try:
                await ctx.step(name, ledger.note, name)
            except Exception as error:
                swallowed.append(type(error))
        return "done"

    async def lose(saves: Any) -> Any:
        quick.store.save = real  # type: ignore[method-assign]
        return [None for _ in saves]

    quick.store.save = lose  # type: ignore[method-assign]
    job = await work.enqueue()
    await quick.drain()
    assert swallowed == [ClaimLost, ClaimLost]
    assert ledger == ["a"]
    found = await job.get()
    assert (found.status, found.attempts, found.result) == (Status.PENDING, 0, None)  # given back when the worker left


async def test_while_the_store_is_away_a_step_waits_and_is_not_repeated(quick: Kit, ledger: Ledger) -> None:
    real, away = quick.store.save, [StoreUnavailable(), StoreUnavailable()]

    async def save(saves: Any) -> Any:
        if away:
            raise away.pop()
        return await real(saves)

    quick.store.save = save  # type: ignore[method-assign]

    @quick.app.task()
    async def work(ctx: Context) -> str:
        return await ctx.step("a", ledger.note, "a")

    job = await work.enqueue()
    await quick.drain(raise_errors=True)
    assert ledger == ["a"]
    assert (await job.get()).result == "a"


async def test_a_step_is_one_piece_of_work(quick: Kit) -> None:
    said: list[str] = []

    @quick.app.task()
    async def work(ctx: Context) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: ctx.follow_up(work.prepare()),
            lambda: ctx.set_result(1),
            ctx.transaction,
        ]

        async def outer() -> None:
            for asked in (ctx.step("inner", threading.get_ident), ctx.sleep(5)):
                with pytest.raises(ConfigurationError, match="within step 'outer'"):
                    await asked
            for call in calls:
                with pytest.raises(ConfigurationError, match="within step 'outer'"):
                    call()
            said.append(ctx.idempotency_key)

        await ctx.step("outer", outer)
        said.append(ctx.idempotency_key)

    job = await work.enqueue()
    await quick.drain(raise_errors=True)
    assert said == [f"{job.id}:outer", job.id]


async def test_follow_ups_go_with_the_end_whatever_runs_there_were(kit: Kit, ledger: Ledger) -> None:
    @kit.app.task()
    async def other(number: int) -> None:
        ledger.append(f"other {number}")

    @kit.app.task()
    async def work(ctx: Context) -> None:
        ctx.follow_up(other.prepare(number=1))
        await ctx.sleep(60)
        ctx.follow_up(other.prepare(number=2))

    await work.enqueue()
    await kit.drain(raise_errors=True)
    assert len(kit.jobs(other)) == 0
    await kit.time.advance(minutes=1, raise_errors=True)
    assert sorted(ledger) == ["other 1", "other 2"]


async def test_a_wish_within_a_step_ends_the_job(quick: Kit) -> None:
    def refuse() -> None:
        raise Discard("no such order")

    @quick.app.task(retry=AGAIN)
    async def work(ctx: Context) -> None:
        await ctx.step("look", refuse)

    job = await work.enqueue()
    await quick.drain()
    assert ((await job.get()).status, (await job.get()).reason) == (Status.DEAD_LETTER, "no such order")


async def test_the_twins_do_not_mix(quick: Kit, ledger: Ledger) -> None:
    @quick.app.task()
    async def work(ctx: Context) -> None:
        with pytest.raises(RuntimeError, match="await the other method"):
            ctx.step_sync("a", ledger.note_plainly, "a")

    await work.enqueue()
    await quick.drain(raise_errors=True)


async def test_a_cancelled_run_waits_for_the_thread_of_its_step_and_keeps_what_it_did(quick: Kit) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert go_on.wait(10)
        return "done"

    @quick.app.task(timeout=0.3, retry=AGAIN)  # in which the second run comes to its end on any machine
    async def work(ctx: Context) -> str:
        return await ctx.step("slow", slow)

    job = await work.enqueue()
    draining = asyncio.create_task(quick.drain())
    await asyncio.to_thread(begun.wait, 10)
    await asyncio.sleep(0.4)
    go_on.set()
    ran = await draining
    assert [run.status for run in ran] == ["retrying", "completed"]
    assert [step.name for step in await quick.app.store.steps(job.id)] == ["slow"]
