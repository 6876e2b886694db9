"""How handlers are run, whatever they do."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import threading
import time
from datetime import date
from typing import Any

import pytest

from mainspring import Cancel, Context, Discard, Mainspring, Retry, Snooze
from mainspring.errors import ConfigurationError
from mainspring.events import JobRetrying
from mainspring.job import Move, NewJob, Status
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing.clock import ManualClock
from mainspring.worker.executor import Executor
from mainspring.worker.threads import Threads
from tests.worker.working import ended, eventually, new_app, reached, record, run_of, working

pytestmark = pytest.mark.slow

AT_ONCE = Retry.fixed(0)
JOB = "018f0000-0000-7000-8000-000000000001"
seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Delegating(Exception):
    """Like errors of some libraries for remote calls, which look up in an answer whatever they are asked for."""

    def __getattr__(self, name: str) -> Any:
        return dict[str, Any]()[name]


class Wordless(Cancel):
    def __init__(self) -> None:
        """It has forgotten to call the one of its base."""


@pytest.fixture
def app() -> Mainspring:
    return new_app()


@pytest.mark.parametrize(
    ("n", "move", "result"), [(7, Move.DONE, "8"), (-1, Move.RETRY, None), (-2, Move.CANCEL, None)]
)
async def test_a_run_returns_its_outcome_without_a_store(
    app: Mainspring, n: int, move: Move, result: str | None
) -> None:
    @app.task()
    async def work(n: int) -> int:
        if n < 0:
            raise ValueError(n) if n == -1 else Cancel("not wanted")
        return n + 1

    nothing: Any = None  # a plain coroutine needs neither a context nor a further check
    executor = Executor(nothing, nothing, app.runtime.middleware, Threads(), processes=1, clock=ManualClock())
    outcome = await executor.run(run_of(app, "work", payload=json.dumps({"n": n})))
    assert outcome is not None
    assert (outcome.job_id, outcome.move, outcome.result) == ("j1", move, result)
    executor.close()


# -- three ways to run ----------------------------------------------------------------------------


async def test_coroutines_run_on_the_loop_and_functions_in_threads(app: Mainspring) -> None:
    @app.task()
    async def on_loop(a: int, b: int = 2) -> list[int]:
        assert threading.current_thread() is threading.main_thread()
        return [a, b]

    @app.task()
    def in_thread(day: date) -> date:
        assert threading.current_thread() is not threading.main_thread()
        return day

    async with working(app):
        assert await (await on_loop.enqueue(a=1)).result(10) == [1, 2]
        assert await (await in_thread.enqueue(day=date(2026, 1, 2))).result(10) == date(2026, 1, 2)


async def test_plain_functions_run_in_parallel(app: Mainspring) -> None:
    together = threading.Barrier(10, timeout=10)

    @app.task()
    def meet() -> None:
        together.wait()

    async with working(app, concurrency=10):
        jobs = await ended(app, *[job.id for job in await meet.enqueue_many([{}] * 10)])
    assert {job.status for job in jobs} == {Status.COMPLETED}


async def test_one_job_sees_no_context_variables_of_another(app: Mainspring) -> None:
    @app.task()
    async def leaving_traces(number: int) -> str:
        before = seen.get()
        seen.set(f"by {number}")
        if number % 2:
            await asyncio.sleep(0)
        return before

    @app.task()
    def in_thread() -> str:
        before = seen.get()
        seen.set("by a thread")
        return before

    async with working(app, concurrency=2):
        jobs = await leaving_traces.enqueue_many([{"number": n} for n in range(20)])
        jobs += await in_thread.enqueue_many([{}] * 4)
        assert {job.result for job in await ended(app, *[job.id for job in jobs])} == {"nothing"}


@pytest.mark.filterwarnings("error")
async def test_a_plain_function_may_return_a_coroutine(app: Mainspring) -> None:
    async def real(n: int) -> int:
        await asyncio.sleep(0)
        return n * 2

    @app.task()
    def wrapped(n: int) -> Any:
        return real(n)

    async with working(app):
        job = await wrapped.enqueue(n=21)
        assert [found.result for found in await ended(app, job.id)] == [42]


async def test_a_coroutine_from_a_plain_function_can_be_cancelled(app: Mainspring) -> None:
    async def hang() -> None:
        await asyncio.sleep(3600)

    @app.task()
    def begin() -> Any:
        return hang()

    async with working(app):
        job = await begin.using(timeout=0.05, max_attempts=1).enqueue()
        found = (await ended(app, job.id))[0]
    assert found.failure is not None
    assert found.failure.type == "TimeoutError"


async def test_methods_can_be_tasks(app: Mainspring) -> None:
    class Greeter:
        async def greet(self, name: str) -> str:
            return f"hello {name}"

        def wave(self, name: str) -> str:
            return f"bye {name}"

    greet, wave = app.task()(Greeter().greet), app.task()(Greeter().wave)
    async with working(app):
        assert await (await greet.enqueue(name="ana")).result(10) == "hello ana"
        assert await (await wave.enqueue(name="ana")).result(10) == "bye ana"


async def test_wrapped_coroutines_can_be_tasks(app: Mainspring) -> None:
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return wrapper

    @app.task()
    @logged
    async def double(n: int) -> int:
        return 2 * n

    async with working(app):
        job = await double.enqueue(n=4)
        assert (await ended(app, job.id))[0].result == 8


def test_a_task_that_is_not_a_function_is_refused(app: Mainspring) -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    class Adder:
        async def __call__(self, a: int) -> int:
            return a

    things: list[Any] = [functools.partial(add, 1), Adder(), add(1, 2)]
    for thing in things:
        with pytest.raises(ConfigurationError, match="a task is a function or a method"):
            app.task(name="add")(thing)
    things[-1].close()


# -- results --------------------------------------------------------------------------------------


async def test_a_huge_result_is_stored(app: Mainspring) -> None:
    @app.task()
    async def big() -> str:
        return "x" * 5_000_000

    async with working(app):
        assert len(await (await big.enqueue()).result(10)) == 5_000_000


async def test_a_result_that_cannot_be_stored_is_a_dead_letter_at_once(app: Mainspring) -> None:
    @app.task(retry=AT_ONCE)
    async def odd() -> Any:
        return object()

    async with working(app):
        job = (await ended(app, (await odd.enqueue()).id))[0]
    assert (job.status, job.attempts) == (Status.DEAD_LETTER, 1)
    assert job.failure is not None
    assert job.failure.type == "CannotStoreResult"


async def test_a_payload_that_no_longer_fits_is_a_dead_letter(app: Mainspring) -> None:
    @app.task(retry=AT_ONCE)
    async def work(n: int) -> None: ...

    async with working(app):
        await app.store.insert([NewJob(JOB, "work", '{"n": "many"}')])
        job = (await ended(app, JOB))[0]
    assert (job.status, job.attempts) == (Status.DEAD_LETTER, 1)
    assert job.failure is not None
    assert job.failure.type == "InvalidPayload"
    assert "n:" in job.failure.message


async def test_follow_ups_are_committed_only_if_the_job_completes(app: Mainspring) -> None:
    ran: list[str] = []

    @app.task()
    async def second(name: str) -> None:
        ran.append(name)

    @app.task(retry=Retry(max_attempts=1))
    async def first(ctx: Context, fails: bool) -> None:
        ctx.follow_up(second.prepare(name="failed" if fails else "fine"))
        if fails:
            raise ValueError

    async with working(app):
        await ended(app, (await first.enqueue(fails=True)).id, (await first.enqueue(fails=False)).id)
        await eventually(lambda: ran)
        await eventually(lambda: idle(app))
    assert ran == ["fine"]


async def idle(app: Mainspring) -> bool:
    return all(
        not counts[status] for counts in (await app.stats()).queues for status in (Status.PENDING, Status.RUNNING)
    )


# -- errors ---------------------------------------------------------------------------------------


def recurse(depth: int = 0) -> int:
    return recurse(depth + 1)


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("wrong"), "ValueError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(1), "SystemExit"),
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration(), "RuntimeError"),
        (asyncio.CancelledError(), "CancelledError"),
        (Mute(), "Mute"),
        (ValueError("caf\udce9"), "ValueError"),
        (ExceptionGroup("many", [OSError(), ValueError()]), "OSError"),
        (MemoryError(), "MemoryError"),
        (Delegating("wrong"), "Delegating"),
        (Discard(ValueError("wrong")), "Discard"),
        (Wordless(), "AttributeError"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_the_worker_goes_on_whatever_a_handler_raises(
    app: Mainspring, error: BaseException, told: str, threaded: bool
) -> None:
    @app.task(max_attempts=1)
    async def on_loop() -> None:
        raise error

    @app.task(max_attempts=1)
    def in_thread() -> None:
        raise error

    @app.task()
    async def fine() -> str:
        return "fine"

    async with working(app, concurrency=1):
        bad = await (in_thread if threaded else on_loop).enqueue()
        good = await fine.enqueue()
        assert await good.result(10) == "fine"
        job = (await ended(app, bad.id))[0]
    assert job.status is Status.DEAD_LETTER
    assert job.failure is not None
    assert job.failure.type == ("RuntimeError" if threaded and told == "GeneratorExit" else told)


@pytest.mark.parametrize("threaded", [False, True])
async def test_endless_recursion_fails_only_its_job(app: Mainspring, threaded: bool) -> None:
    @app.task(max_attempts=1)
    async def on_loop() -> int:
        return recurse()

    @app.task(max_attempts=1)
    def in_thread() -> int:
        return recurse()

    async with working(app):
        job = (await ended(app, (await (in_thread if threaded else on_loop).enqueue()).id))[0]
    assert job.failure is not None
    assert job.failure.type == "RecursionError"
    assert "in recurse" in job.failure.traceback


async def test_a_job_s_retry_policy_overrides_that_of_its_task(app: Mainspring) -> None:
    events = record(app, JobRetrying)

    @app.task(retry=Retry(max_attempts=2, base=100, jitter_share=0))
    async def fails() -> None:
        raise OSError("down")

    async with working(app):
        by_task = await fails.enqueue()
        by_job = await fails.using(retry=Retry.delays(0, 0, 0)).enqueue()
        assert (await ended(app, by_job.id))[0].attempts == 4
        waiting = (await reached(app, by_task.id, statuses=(Status.RETRYING,)))[0]
    assert waiting.attempts == 1
    assert 90 < (waiting.run_at - app.now()).total_seconds() <= 100
    delays = [event.delay for event in events if event.job_id == by_task.id]
    assert delays == [100.0]
    assert [event.reason for event in events] == ["error"] * 4


async def test_a_function_of_attempt_and_error_can_be_the_retry_policy(app: Mainspring) -> None:
    asked: list[tuple[int, str]] = []

    def policy(attempt: int, error: BaseException) -> float | None:
        asked.append((attempt, type(error).__name__))
        return 0 if attempt < 3 else None

    @app.task(retry=Retry.by(policy, max_attempts=10))
    async def fails() -> None:
        raise ConnectionError

    async with working(app):
        job = (await ended(app, (await fails.enqueue()).id))[0]
    assert (job.status, job.attempts) == (Status.DEAD_LETTER, 3)
    assert asked == [(1, "ConnectionError"), (2, "ConnectionError"), (3, "ConnectionError")]


async def test_a_retry_policy_that_raises_loses_neither_job_nor_slot(app: Mainspring) -> None:
    def policy(attempt: int, error: BaseException) -> float:
        raise ZeroDivisionError

    @app.task(retry=Retry.by(policy))
    async def fails() -> None:
        raise OSError("down")

    @app.task()
    async def fine() -> str:
        return "fine"

    async with working(app, concurrency=1):
        job = await fails.enqueue()
        assert await (await fine.enqueue()).result(10) == "fine"
        await reached(app, job.id, statuses=(Status.RETRYING,))


async def test_snooze_cancel_and_discard_decide_how_a_job_ends(app: Mainspring) -> None:
    runs = 0

    @app.task()
    async def gives_up() -> None:
        raise Discard("hopeless")

    @app.task()
    def cancels() -> None:
        raise Cancel("not needed")

    @app.task(max_attempts=1)
    async def snoozes(ctx: Context) -> int:
        nonlocal runs
        runs += 1
        if runs < 4:
            raise Snooze(0.01, "not yet")
        return ctx.attempt

    async with working(app):
        jobs = [await gives_up.enqueue(), await cancels.enqueue(), await snoozes.enqueue()]
        dead, cancelled, done = await ended(app, *[job.id for job in jobs])
    assert (dead.status, dead.reason, dead.attempts) == (Status.DEAD_LETTER, "hopeless", 1)
    assert (cancelled.status, cancelled.reason) == (Status.CANCELLED, "not needed")
    assert (done.status, done.result, done.attempts) == (Status.COMPLETED, 1, 1)


# -- timeouts -------------------------------------------------------------------------------------


async def test_a_coroutine_is_cancelled_at_its_timeout(app: Mainspring) -> None:
    events, ends = record(app, JobRetrying), []

    @app.task(timeout=0.05, retry=Retry.fixed(0, max_attempts=2))
    async def hangs() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ends.append(True)

    async with working(app):
        job = (await ended(app, (await hangs.enqueue()).id))[0]
        await app.runtime.bus.flush()
    assert (job.status, job.attempts, ends) == (Status.DEAD_LETTER, 2, [True, True])
    assert job.failure is not None
    assert job.failure.message == "ran longer than its timeout of 0.05 s"
    assert [event.reason for event in events] == ["timeout"]


async def test_a_thread_is_told_to_stop_at_its_timeout_and_waited_for(app: Mainspring) -> None:
    @app.task(timeout=0.05, max_attempts=1)
    def listens(ctx: Context) -> None:
        while not ctx.wait_cancelled(10):
            pass
        ctx.raise_if_cancelled()

    @app.task(timeout=0.05, max_attempts=1)
    def finishes(ctx: Context) -> str:
        ctx.wait_cancelled(10)
        return "done all the same"

    async with working(app):
        told, finished = await listens.enqueue(), await finishes.enqueue()
        job = (await ended(app, told.id))[0]
        assert await finished.result(10) == "done all the same"
    assert job.failure is not None
    assert (job.status, job.failure.type) == (Status.DEAD_LETTER, "TimeoutError")


async def test_a_handler_that_swallows_its_cancellation_keeps_its_result(app: Mainspring) -> None:
    @app.task(timeout=0.05)
    async def stubborn() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "done"

    @app.task()
    async def after() -> str:
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        async with asyncio.TaskGroup() as group:
            child = group.create_task(asyncio.sleep(0, "fine"))
        return child.result()

    async with working(app, concurrency=1):
        assert await (await stubborn.enqueue()).result(10) == "done"
        assert await (await after.enqueue()).result(10) == "fine"


async def test_a_cancellation_left_behind_by_a_job_does_not_end_its_slot(app: Mainspring) -> None:
    @app.task()
    async def mean() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.01, task.cancel)

    @app.task(retry=AT_ONCE)
    async def fine() -> str:
        return "fine"

    async with working(app, concurrency=1):
        for _ in range(3):
            await (await mean.enqueue()).result(10)
            await asyncio.sleep(0.02)  # the stray cancellation is what is waited for
            assert await (await fine.enqueue()).result(10) == "fine"


async def test_a_job_that_cancels_its_own_task_does_not_end_the_next_job(app: Mainspring) -> None:
    """Nothing has met that cancellation when the next job of the same slot begins."""

    @app.task()
    async def selfish() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done"

    @app.task(max_attempts=1)
    async def next_one() -> str:
        await asyncio.sleep(0)
        return "fine"

    jobs = [await task.enqueue() for _ in range(3) for task in (selfish, next_one)]
    async with working(app, concurrency=len(jobs)):  # all in one claim, so that one slot runs them in a row
        results = [await job.result(60) for job in jobs]
    assert results == ["done", "fine"] * 3


# -- cancelling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_running_job_is_cancelled(app: Mainspring, threaded: bool) -> None:
    begun = threading.Event()

    @app.task()
    async def on_loop() -> None:
        begun.set()
        await asyncio.sleep(3600)

    @app.task()
    def in_thread(ctx: Context) -> None:
        begun.set()
        assert ctx.wait_cancelled(10)
        assert ctx.cancelled
        ctx.raise_if_cancelled()

    async with working(app, heartbeat_interval=60):  # woken, not by chance
        job = await (in_thread if threaded else on_loop).enqueue()
        await eventually(begun.is_set)
        assert not await app.jobs.cancel(job.id, reason="changed our mind")
        found = (await ended(app, job.id))[0]
    assert (found.status, found.reason) == (Status.CANCELLED, "changed our mind")


async def test_a_cancellation_after_the_handler_returned_changes_nothing(app: Mainspring) -> None:
    @app.task()
    async def finishes_anyway() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "done"
        return "never"

    async with working(app):
        job = await finishes_anyway.enqueue()
        await reached(app, job.id, statuses=(Status.RUNNING,))
        await app.jobs.cancel(job.id)
        assert await job.result(10) == "done"


# -- progress -------------------------------------------------------------------------------------


async def test_progress_is_written_while_the_job_runs(app: Mainspring) -> None:
    gate = asyncio.Event()

    @app.task()
    async def work(ctx: Context) -> None:
        ctx.progress(0.25, "a quarter")
        await gate.wait()

    async def quarter() -> bool:
        progress = (await job.get()).progress
        return progress is not None and (progress.fraction, progress.note) == (0.25, "a quarter")

    async with working(app):
        job = await work.enqueue()
        await eventually(quarter)
        gate.set()
        await job.result(10)


@pytest.mark.slow
async def test_a_worker_whose_event_loop_is_blocked_keeps_its_lease() -> None:
    class Counting(MemoryStore):
        beats = 0

        async def heartbeat(self, *args: Any, **kwargs: Any) -> Any:
            self.beats += 1
            return await super().heartbeat(*args, **kwargs)

    store = Counting()
    app = Mainspring(store)

    @app.task()
    async def rude() -> int:
        before, end = store.beats, time.monotonic() + 30
        while store.beats < before + 10 and time.monotonic() < end:
            time.sleep(0.01)  # noqa: ASYNC251 - that is what makes it rude
        return store.beats - before

    async with working(app):
        assert await (await rude.enqueue()).result(60) >= 10


# -- claims that were lost ------------------------------------------------------------------------
