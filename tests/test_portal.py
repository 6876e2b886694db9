from __future__ import annotations

import asyncio
import signal
import threading
from concurrent.futures import CancelledError
from contextvars import ContextVar
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.events import JobCreated
from mainspring.portal import Portal, run_at_once
from tests.forking import in_child


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


def test_a_coroutine_runs_over_there_and_is_waited_for_here() -> None:
    portal = Portal()
    assert portal.run(answer(7)) == 7

    async def fail() -> None:
        raise LookupError("over there")

    with pytest.raises(LookupError, match="over there"):
        portal.run(fail())
    portal.close()


def test_a_signal_that_another_thread_gets_ends_the_wait() -> None:
    """The system may give a signal to any thread. Python runs its handler in the main thread, once that looks up."""
    portal = Portal()

    def interrupt() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    async def wait() -> None:
        threading.Thread(target=interrupt).start()
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        portal.run(wait())
    portal.close()


def test_a_timeout_of_the_coroutine_is_raised() -> None:
    portal = Portal()

    async def fail() -> None:
        raise TimeoutError("over there")

    with pytest.raises(TimeoutError, match="over there"):
        portal.run(fail())
    portal.close()


async def test_it_works_inside_a_running_loop() -> None:
    portal = Portal()
    assert portal.run(answer(7)) == 7
    portal.close()


def test_many_threads_share_one_loop() -> None:
    portal, loops = Portal(), set[asyncio.AbstractEventLoop]()
    started = threading.Barrier(10)

    async def note() -> None:
        loops.add(asyncio.get_running_loop())

    def ask() -> None:
        started.wait()
        portal.run(note())

    threads = [threading.Thread(target=ask) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loops) == 1
    portal.close()


def test_the_callers_context_goes_along() -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")
    portal = Portal()

    async def ask() -> str:
        return who.get()

    who.set("ana")
    assert portal.run(ask()) == "ana"
    portal.close()


def test_a_closed_portal_opens_again() -> None:
    portal = Portal()
    assert portal.run(answer(1)) == 1
    portal.close()
    portal.close()
    assert portal.run(answer(2)) == 2
    portal.close()


def test_closing_cancels_waiting_callers() -> None:
    portal, begun = Portal(), threading.Event()
    outcome: list[BaseException] = []

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    def ask() -> None:
        try:
            portal.run(wait())
        except CancelledError as error:
            outcome.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    begun.wait()
    portal.close()
    thread.join(10)
    assert len(outcome) == 1


def test_it_does_not_wait_for_itself() -> None:
    portal = Portal()

    async def ask() -> int:
        return portal.run(answer(7))

    with pytest.raises(RuntimeError, match="cannot wait for itself; use await"):
        portal.run(ask())
    portal.close()


def test_a_synchronous_call_on_the_portals_loop_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """It used to hang, and with it every synchronous caller of the application."""
    app = Mainspring("memory://")

    @app.task()
    async def work(again: bool) -> None: ...

    @app.on(JobCreated)
    async def go_on(event: JobCreated) -> None:
        work.enqueue_sync(again=False)

    work.enqueue_sync(again=True)
    app.run(app.runtime.bus.flush())
    assert app.run(app.jobs.count()) == 1
    assert "use await" in caplog.text
    app.run(app.close())


def test_a_forked_child_has_its_own(tmp_path: Path) -> None:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")

    @app.task()
    async def note(text: str) -> None: ...

    def enqueue(text: str) -> bool:
        return note.enqueue_sync(text=text).created

    assert enqueue("before")
    assert in_child(lambda: enqueue("in the child")) == 0
    assert in_child(lambda: app.run(app.jobs.count()) == 2) == 0
    assert in_child(lambda: app.run(app.close()) is None and enqueue("in another")) == 0
    assert enqueue("after")
    assert app.run(app.jobs.count()) == 4
    app.run(app.close())


def test_a_child_forked_inside_a_running_loop_has_its_own() -> None:
    portal = Portal()

    async def fork() -> int:
        assert portal.run(answer(1)) == 1
        return in_child(lambda: portal.run(answer(2)) == 2)

    assert asyncio.run(fork()) == 0
    portal.close()


def test_a_coroutine_that_never_waits_can_run_in_the_calling_thread() -> None:
    async def at_once() -> int:
        return threading.get_ident()

    assert run_at_once(at_once()) == threading.get_ident()
    with pytest.raises(TypeError, match="an asynchronous connection needs `await"):
        run_at_once(answer(7))
