from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from mainspring.worker.threads import Threads
from tests.worker.working import eventually

name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")


async def test_values_and_errors_reach_the_caller() -> None:
    threads = Threads()
    assert await threads.run(lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    threads.close()


async def test_functions_run_in_daemon_threads() -> None:
    threads = Threads()
    thread = await threads.run(threading.current_thread)
    assert thread is not threading.main_thread()
    assert thread.daemon
    threads.close()


async def test_idle_threads_are_reused() -> None:
    threads = Threads()
    used = {await threads.run(threading.get_ident) for _ in range(20)}
    assert len(used) <= 2  # the second if the first had not yet said that it is free
    threads.close()


async def test_as_many_threads_are_started_as_are_needed_at_once() -> None:
    threads, together = Threads(), threading.Barrier(8, timeout=10)
    await asyncio.gather(*(threads.run(together.wait) for _ in range(8)))
    assert threads._count == 8
    threads.close()


async def test_context_variables_are_copied_into_the_thread() -> None:
    def change() -> str:
        before = name.get()
        name.set("changed")
        return before

    threads = Threads()
    name.set("caller")
    assert await threads.run(change) == "caller"
    assert name.get() == "caller"
    threads.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_base_exceptions_do_not_end_a_thread(error: type[BaseException]) -> None:
    def leave() -> None:
        raise error

    threads = Threads()
    future = threads.run(leave)
    await asyncio.wait([future])
    assert isinstance(future.exception(), error)
    assert await threads.run(lambda: "still here") == "still here"
    threads.close()


@pytest.mark.parametrize("error", [StopIteration, GeneratorExit])
async def test_exceptions_that_a_future_refuses_become_runtime_errors(error: type[BaseException]) -> None:
    def leave() -> None:
        raise error

    threads = Threads()
    with pytest.raises(RuntimeError, match=error.__name__):
        await threads.run(leave)
    threads.close()


async def test_threads_end_after_close() -> None:
    threads = Threads()
    thread = await threads.run(threading.current_thread)
    threads.close()
    await eventually(lambda: not thread.is_alive())


async def test_a_cancelled_caller_gets_no_result() -> None:
    threads, begin = Threads(), threading.Event()
    future = threads.run(begin.wait)
    future.cancel()
    begin.set()
    assert await threads.run(lambda: 1) == 1
    threads.close()
