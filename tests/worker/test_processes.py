"""isolation="process": the work can really be ended, and its end cannot end the worker."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring, log
from mainspring.cli import logs
from mainspring.errors import CannotStoreResult, Failure, WorkerCrashed
from mainspring.events import JobDeadLettered, JobReleased, JobRetrying
from mainspring.job import Job, Progress, Status
from mainspring.stores.sqlite import MemoryStore
from mainspring.worker import child, intake
from mainspring.worker.processes import Child, error_from
from tests.worker import children
from tests.worker.working import claim_of, ended, eventually, reached, record, working


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mainspring]:
    monkeypatch.setattr(children.app.runtime, "store", MemoryStore())
    monkeypatch.setattr(children.app.runtime.bus, "_subscribers", type(children.app.runtime.bus._subscribers)(list))
    children.app.runtime.bus._wanted.clear()
    yield children.app
    children.app.runtime.bus._wanted.clear()


def alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.strip().startswith("Z")


async def pid_in(path: Path) -> int:
    await eventually(path.exists)
    return int(path.read_text())


async def failure(app: Mainspring, job_id: str) -> tuple[Job, Failure]:
    job = (await ended(app, job_id))[0]
    assert job.failure is not None
    return job, job.failure


@pytest.mark.slow
async def test_children_log_as_the_command_line_has_set_it_up(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "_of_children", [partial(logs.set_up, "info", as_json=True, final=True)])
    async with working(app, child_processes=1):
        job = await children.tells.enqueue("hello")
        await job.result(15)
    (line,) = (json.loads(line) for line in capfd.readouterr().err.splitlines() if "hello" in line)
    assert (line["event"], line["level"], line["logger"]) == ("hello", "info", "shop.mail")
    assert (line["job_id"], line["task"]) == (job.id, "tells")


@pytest.mark.slow
async def test_children_log_from_the_level_of_their_parent_on(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "_of_children", [])
    monkeypatch.setattr(logging.getLogger(), "level", logging.INFO)
    async with working(app, child_processes=1):
        job = await children.tells.enqueue("hello")
        await job.result(15)
    (line,) = (line for line in capfd.readouterr().err.splitlines() if "hello" in line)
    assert line.endswith(f"[INFO] shop.mail hello job_id={job.id} task=tells")


@pytest.mark.slow
async def test_jobs_run_in_reused_children_and_return_typed_results(app: Mainspring) -> None:
    async with working(app, child_processes=1) as worker:
        first = await (await children.pid.enqueue()).result(15)
        assert first != os.getpid()
        assert await (await children.pid_of_coroutine.enqueue()).result(15) == first  # reused
        assert await (await children.where_told.enqueue()).result(15) == os.getpid()
        assert await (await children.where_told.using(isolation="process").enqueue()).result(15) == first

        assert await (await children.page.enqueue(number=3)).result(15) == children.Page(number=3, day=date(2026, 1, 3))
        assert await (await children.next_day.enqueue(day=date(2026, 1, 31))).result(15) == date(2026, 2, 1)
        assert len(await (await children.big.enqueue(size=3_000_000)).result(15)) == 3_000_000

        asked = await children.describe.using(queue="q", tags=["t"], target=("page", "1")).enqueue()
        assert await asked.result(15) == [asked.id, 1, "q", ["t"], ["page", "1"], worker.id]

        leading = await children.follows.enqueue()
        assert await leading.result(15) == "better known"
        followed = [job async for job in app.jobs.all() if job.tags == ("followed",)]
        assert [(job.task, job.target) for job in followed] == [("where_told", ("page", "1"))]


@pytest.mark.slow
async def test_calls_that_a_child_does_not_support_make_a_dead_letter(app: Mainspring) -> None:
    async with working(app, child_processes=1):
        for call in ("spawn", "sleep", "transaction"):
            job, why = await failure(app, (await children.lasts.enqueue(call=call)).id)
            assert (job.status, job.attempts, why.type) == (Status.DEAD_LETTER, 1, "UnsupportedCall")


@pytest.mark.slow
async def test_progress_of_a_child_is_written(app: Mainspring, tmp_path: Path) -> None:
    async def half() -> bool:
        progress = (await job.get()).progress
        return progress is not None and (progress.fraction, progress.note) == (0.5, "half")

    async with working(app, child_processes=1):
        job = await children.reports.enqueue(note=str(tmp_path / "go"))
        await eventually(half)
        (tmp_path / "go").touch()
        await job.result(15)
    assert (await job.get()).progress == Progress(1.0, "done")


@pytest.mark.slow
async def test_errors_of_a_child_keep_type_message_and_traceback(app: Mainspring) -> None:
    async with working(app, child_processes=1):
        job, told = await failure(app, (await children.fails.enqueue(kind="value")).id)
        assert (job.attempts, told.type, told.message) == (3, "ValueError", "wrong\\udce9")
        assert 'raise ValueError("wrong' in told.traceback
        for kind, type_ in [
            ("ours", "OurError"),
            ("group", "OSError"),
            ("unicode", "UnicodeDecodeError"),
            ("exit", "SystemExit"),
            ("interrupt", "KeyboardInterrupt"),
            ("mute", "Mute"),
        ]:
            job, told = await failure(app, (await children.fails.enqueue(kind=kind)).id)
            assert (job.status, job.attempts, job.crashes, told.type) == (Status.DEAD_LETTER, 3, 0, type_)

        job, told = await failure(app, (await children.fails.enqueue(kind="result")).id)
        assert (job.attempts, told.type) == (1, "CannotStoreResult")  # not retried
        for kind, type_ in [("ours", "OurError"), ("key", "KeyError")]:  # by the rules of its retry policy
            job, told = await failure(app, (await children.picky.enqueue(kind=kind)).id)
            assert (job.attempts, told.type) == (1, type_)


@pytest.mark.slow
async def test_snooze_cancel_and_discard_work_in_a_child(app: Mainspring) -> None:
    async with working(app, child_processes=1):
        snoozed = await children.signals.enqueue(kind="snooze")
        cancelled = await children.signals.enqueue(kind="cancel")
        discarded = await children.signals.enqueue(kind="discard")
        found = await ended(app, cancelled.id, discarded.id)
        assert [(job.status, job.reason) for job in found] == [
            (Status.CANCELLED, "not needed"),
            (Status.DEAD_LETTER, "hopeless"),
        ]
        assert [job.failure and job.failure.code for job in found] == [None, "E-9"]
        waiting = (await reached(app, snoozed.id, statuses=(Status.PENDING,)))[0]
        assert (waiting.attempts, waiting.reason) == (0, "later")


@pytest.mark.slow
async def test_a_job_that_kills_three_children_is_a_dead_letter(app: Mainspring) -> None:
    retrying, dead = record(app, JobRetrying), record(app, JobDeadLettered)
    async with working(app, child_processes=1):
        job, last = await failure(app, (await children.dies.enqueue(how="kill")).id)
        assert await (await children.pid.enqueue()).result(15) > 0  # the worker goes on
    assert (job.status, job.crashes, job.attempts) == (Status.DEAD_LETTER, 3, 0)
    assert last.type == "WorkerCrashed"
    assert "SIGKILL" in last.message
    assert [event.reason for event in retrying] == ["crash", "crash"]
    assert len(dead) == 1


@pytest.mark.slow
@pytest.mark.parametrize("deaf", [False, True])
async def test_a_timeout_ends_the_child_process(
    app: Mainspring, tmp_path: Path, deaf: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.worker.processes.TERMINATE_TIMEOUT", 0.1)
    async with working(app, child_processes=1):
        await (await children.pid.enqueue()).result(15)  # a child that is up: the timeout is the handler's own
        job = await children.hangs.using(timeout=0.3).enqueue(note=str(tmp_path / "pid"), deaf=deaf)
        pid = await pid_in(tmp_path / "pid")
        found, told = await failure(app, job.id)
        assert (found.crashes, told.type) == (0, "TimeoutError")
        await eventually(lambda: not alive(pid))
        assert await (await children.pid.enqueue()).result(15) != pid


@pytest.mark.slow
async def test_a_job_can_be_cancelled_while_it_waits_for_a_child(app: Mainspring, tmp_path: Path) -> None:
    async with working(app, child_processes=1):
        running = await children.hangs.enqueue(note=str(tmp_path / "pid"))
        pid = await pid_in(tmp_path / "pid")
        waiting = await children.pid.enqueue()
        await reached(app, waiting.id, statuses=(Status.RUNNING,))
        for job in (waiting, running):
            await app.jobs.cancel(job.id)
            assert (await ended(app, job.id))[0].status is Status.CANCELLED
        await eventually(lambda: not alive(pid))


@pytest.mark.slow
async def test_a_stopping_worker_ends_children_and_hands_their_jobs_back(app: Mainspring, tmp_path: Path) -> None:
    async with working(app, child_processes=1, grace=0.05) as worker:
        jobs = [await children.hangs.enqueue(note=str(tmp_path / "pid")), await children.pid.enqueue()]
        pid = await pid_in(tmp_path / "pid")
        await reached(app, *[job.id for job in jobs], statuses=(Status.RUNNING,))
    found = [await job.get() for job in jobs]
    assert [(job.status, job.attempts, job.crashes) for job in found] == [(Status.PENDING, 0, 0)] * 2
    assert worker._abandoned == 0
    assert not alive(pid)


@pytest.mark.slow
async def test_jobs_that_wait_too_long_for_a_child_are_handed_back(
    app: Mainspring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the store they look as if they ran: with a timeout they would count as stalled."""
    monkeypatch.setattr(intake, "MAX_BUFFER_WAIT", 0.05)
    released = record(app, JobReleased)
    async with working(app, child_processes=1) as worker:
        running = await children.hangs.enqueue(note=str(tmp_path / "pid"))
        await pid_in(tmp_path / "pid")
        waiting = await children.pid.enqueue()
        await eventually(lambda: released)
        assert {event.job_id for event in released} == {waiting.id}
        assert running.id in worker.parts.runs.held
        await app.jobs.cancel(running.id)
        assert await waiting.result(15) > 0
        assert (await waiting.get()).attempts == 1
    numbers = (await app.numbers()).total
    assert (numbers.started, sum(numbers.wait.buckets)) == (2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["the worker stops", "the job is cancelled", "the system is halted"])
async def test_a_job_that_only_waited_for_a_child_counts_no_start(app: Mainspring, tmp_path: Path, how: str) -> None:
    async with working(app, child_processes=1, grace=0.05):
        await children.hangs.enqueue(note=str(tmp_path / "pid"))
        await pid_in(tmp_path / "pid")
        waiting = await children.pid.enqueue()
        await reached(app, waiting.id, statuses=(Status.RUNNING,))
        if how == "the job is cancelled":
            await app.jobs.cancel(waiting.id)
            await ended(app, waiting.id)
        elif how == "the system is halted":
            assert (await app.halt()).confirmed
    await app.resume()
    assert (await app.numbers()).total.started == 1


@pytest.mark.slow
async def test_a_job_whose_child_was_ended_before_it_was_ready_counts_no_start(app: Mainspring) -> None:
    async with working(app, child_processes=1, grace=0.0) as worker:
        job = await children.pid.enqueue()
        await eventually(lambda: any(run.kill is not None for run in worker.parts.runs.running))
    assert (await job.get()).status is Status.PENDING
    assert (await app.numbers()).total.started == 0


@pytest.mark.slow
async def test_children_die_with_their_parent(tmp_path: Path) -> None:
    program = (
        "import asyncio\n"
        "from tests.worker import children\n"
        "from mainspring.worker import Worker\n"
        "async def main():\n"
        f"    await children.hangs.enqueue(note={str(tmp_path / 'pid')!r})\n"
        "    await Worker(children.app, child_processes=1).serve()\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    script = tmp_path / "program.py"
    script.write_text(program)
    root = Path(__file__).parents[2]
    parent = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(root)}, cwd=root)
    try:
        pid = await pid_in(tmp_path / "pid")
        parent.send_signal(signal.SIGKILL)
        await eventually(lambda: not alive(pid))
    finally:
        parent.kill()
        parent.wait()


# -- without a process ----------------------------------------------------------------------------


def answer(error: BaseException) -> dict[str, Any]:
    kinds = [(kind.__module__, kind.__qualname__) for kind in type(error).__mro__]
    texts = {"error": type(error).__name__, "message": str(error), "traceback": "there", "place": "", "code": "E-9"}
    return {**texts, "kinds": kinds}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("x"), ValueError),
        (FileNotFoundError("x"), FileNotFoundError),
        (KeyError("x"), KeyError),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "x"), UnicodeDecodeError),
        (children.OurError(1, "x"), children.OurError),
        (CannotStoreResult("x"), CannotStoreResult),
        (ExceptionGroup("x", [OSError()]), Exception),
        (SystemExit(1), Exception),
        (StopIteration(), StopIteration),
    ],
)
def test_an_error_of_a_child_gets_the_nearest_class_known_here(error: BaseException, kind: type[BaseException]) -> None:
    told = error_from(answer(error))
    assert type(told) is kind
    failure = Failure(type(error).__name__, str(error), "there", code="E-9")
    assert told.mainspring_failure == failure  # type: ignore[attr-defined]


def test_an_unknown_error_class_is_replaced_by_its_base_class() -> None:
    data = answer(OSError("gone"))
    data["kinds"].insert(0, ("some.library", "ConnectionError"))  # named like a built-in, but none
    assert type(error_from(data)) is OSError


class Pipe:
    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send_bytes(self, data: bytes) -> None:
        self.sent.append(data)


def perform(
    name: str, payload: str, module: str = "tests.worker.children", *, may_start: bool = True
) -> dict[str, Any]:
    claim = asdict(claim_of(task=name, payload=payload))
    order = {"module": module, "name": name, "claim": claim, "worker": "w", "middleware": [], "observers": []}
    pipe: Any = Pipe()
    inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    inbox.put({"start": may_start})  # the parent's answer, when the child is ready
    return contextvars.copy_context().run(child.perform, order, pipe, inbox, lambda: None)


def test_a_task_must_be_at_the_top_of_its_module() -> None:
    told = perform("nowhere", "{}")
    assert told["error"] == "LookupError"
    assert "must be defined at the top of module" in told["message"]


def test_a_child_answers_with_the_expected_message() -> None:
    assert perform("next_day", '{"day": "2026-01-31"}')["result"] == '"2026-02-01"'
    assert perform("pid_of_coroutine", "{}")["result"] == str(os.getpid())
    assert perform("signals", '{"kind": "snooze"}') == {
        "end": "Snooze", "reason": "later", "delay": 3600.0, "code": None,
    }  # fmt: skip
    assert perform("fails", '{"kind": "mute"}')["message"] == "<its message raised RuntimeError>"


def test_a_child_does_not_call_the_handler_if_it_may_no_longer_start() -> None:
    assert perform("next_day", '{"day": "2026-01-31"}', may_start=False) == {"held_back": True}


@pytest.mark.slow
async def test_a_child_that_was_asked_to_end_is_not_used_again() -> None:
    child = Child()
    assert child.usable
    child.end()
    assert not child.usable
    with pytest.raises(WorkerCrashed, match="SIGTERM"):
        await asyncio.wait_for(child.receive(), 10)
    child.close()
