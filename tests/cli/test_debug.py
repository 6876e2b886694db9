"""Running a job once more, here, without leaving a trace in the store."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType

import pytest

from mainspring.app import Mainspring
from mainspring.cli.loading import load
from mainspring.job import Job, Status
from tests.cli.conftest import Outcome, Run
from tests.cli.waiting import wait_until

pytestmark = pytest.mark.slow

SHOP = """
import os
from datetime import timedelta
from pathlib import Path

from mainspring import Chunk, Context, Item, Mainspring, Snooze

app = Mainspring("sqlite:///shop.db")

def log(what):
    with Path("log").open("a") as file:
        print(what, file=file)

@app.task(max_attempts=1)
def divide(ctx: Context, number: int) -> int:
    log(f"divide {ctx.attempt} {ctx.job_id}")
    return 12 // number

@app.task(max_attempts=1)
async def after(number: int) -> None: ...

async def charge(order: str) -> int:
    log("charge")
    return 7

def ship(order: str) -> str:
    log("ship")
    if not os.environ.get("FIXED"):
        raise OSError("no truck")
    return "shipped"

@app.task(max_attempts=1)
async def fulfil(ctx: Context, order: str) -> dict:
    paid = await ctx.step("charge", charge, order)
    await ctx.sleep(timedelta(days=1))
    signal = await ctx.wait_for("packed", timeout=timedelta(days=2))
    told = signal and signal.payload
    shipped = await ctx.step("ship", ship, order)
    await after.enqueue(number=1)
    ctx.follow_up(after.prepare(number=2))
    child = await ctx.spawn(after, number=3)
    if os.environ.get("GATHER"):
        await ctx.gather(child)
    return {"paid": paid, "told": told, "shipped": shipped}

@app.task(max_attempts=1)
def plain(ctx: Context) -> int:
    one = ctx.step_sync("one", int, "1")
    ctx.sleep_sync(60)
    if not os.environ.get("FIXED"):
        raise RuntimeError("half way")
    return one + ctx.step_sync("two", int, "2")

@app.task(max_attempts=1, chunk=Chunk(10))
async def together(items: list[Item[int]]) -> None:
    for item in items:
        item.fail(ValueError(item.payload))

@app.task(max_attempts=1)
async def moody() -> None:
    if os.environ.get("FIXED"):
        raise Snooze(60, "not today")
    raise RuntimeError

@app.task(max_attempts=1)
def booked(ctx: Context, guest: str) -> str:
    if not os.environ.get("FIXED"):
        raise RuntimeError
    with ctx.transaction() as connection:
        connection.execute("CREATE TABLE guests (name TEXT)")
        assert connection.execute("SELECT count(*) FROM guests").fetchone()[0] == 0
    return guest
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mainspring:
    """Its module is there for `--app` too."""
    (tmp_path / "debugged_shop.py").write_text(SHOP)
    monkeypatch.delenv("FIXED", raising=False)
    monkeypatch.delitem(sys.modules, "debugged_shop", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return load("debugged_shop:app")


def dead(app: Mainspring, task: str, *args: object, **kwargs: object) -> str:
    job_id = app.tasks[task].enqueue_sync(*args, **kwargs).id
    app.run(app.worker().drain())
    assert job_of(app, job_id).status is Status.DEAD_LETTER
    return job_id


def job_of(app: Mainspring, job_id: str) -> Job:
    return app.run(app.jobs.get(job_id))


def everything(app: Mainspring) -> list[Job]:
    async def read() -> list[Job]:
        return [job async for job in app.jobs.all()]

    return app.run(read())


@pytest.fixture
def debugged(run: Run, app: Mainspring) -> Callable[..., Outcome]:
    def call(job_id: str, *argv: str) -> Outcome:
        before = everything(app)
        outcome = run("jobs", "debug", job_id, "--app", "debugged_shop:app", *argv)
        assert everything(app) == before, "a debug run writes nothing"
        return outcome

    return call


Debugged = Callable[..., Outcome]


def test_the_traceback_is_as_python_shows_it(debugged: Debugged, app: Mainspring, tmp_path: Path) -> None:
    job = dead(app, "divide", number=0)
    outcome = debugged(job)
    assert outcome.code == 1
    lines = outcome.out.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "debugged_shop.py" in lines[1]
    assert lines[-1].startswith("ZeroDivisionError")
    assert (tmp_path / "log").read_text() == f"divide 1 {job}\n" * 2


def test_what_completes_says_its_result(debugged: Debugged, app: Mainspring) -> None:
    job = app.tasks["divide"].enqueue_sync(number=4).id
    app.run(app.worker().drain())
    outcome = debugged(job)
    assert (outcome.code, outcome.out) == (0, "completed, with result 3\n")


@pytest.fixture
def half_done(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> str:
    """Charged, slept, packed; not shipped. Its days are milliseconds."""
    monkeypatch.setattr(sys.modules["debugged_shop"], "timedelta", lambda days: timedelta(milliseconds=days))
    app.run(app.signal("packed", {"box": 9}))
    return finished(app, app.tasks["fulfil"].enqueue_sync(order="o1").id)


def finished(app: Mainspring, job_id: str) -> str:
    def work() -> bool:
        app.run(app.worker().drain())
        return job_of(app, job_id).finished

    wait_until(work, lambda: str(job_of(app, job_id)))
    return job_id


def test_recorded_steps_are_not_run_again(
    debugged: Debugged, half_done: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").unlink()
    stopped = debugged(half_done)
    assert stopped.code == 1
    assert stopped.out == "stopped: step 'ship' is not recorded\n"
    assert not (tmp_path / "log").exists()
    assert "step 'charge': recorded" in stopped.err
    failed = debugged(half_done, "--run-steps")
    assert failed.out.splitlines()[-1] == "OSError: no truck"
    assert (tmp_path / "log").read_text() == "ship\n"
    monkeypatch.setenv("FIXED", "1")
    fixed = debugged(half_done, "--run-steps", "--json")
    assert fixed.code == 0
    assert fixed.data["result"] == {"paid": 7, "told": {"box": 9}, "shipped": "shipped"}
    assert fixed.data["steps_run"] == ["ship"]
    assert [(job["would"], job["payload"]) for job in fixed.data["jobs"]] == [
        ("enqueue", '{"number":1}'), ("spawn", '{"number":3}'), ("follow up with", '{"number":2}'),
    ]  # fmt: skip


def test_a_step_may_be_forgotten(
    debugged: Debugged, half_done: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").unlink()
    monkeypatch.setenv("FIXED", "1")
    assert debugged(half_done, "--from-step", "charge", "--run-steps").code == 0
    assert (tmp_path / "log").read_text() == "charge\nship\n"
    wrong = debugged(half_done, "--from-step", "nonsense")
    assert wrong.code == 2
    assert "it has done: 'charge'" in wrong.err


def test_a_debug_run_may_begin_at_the_step_that_failed(
    debugged: Debugged, half_done: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").unlink()
    monkeypatch.setenv("FIXED", "1")
    assert debugged(half_done, "--from-step", "ship", "--run-steps").code == 0
    assert (tmp_path / "log").read_text() == "ship\n"


def test_children_that_were_not_enqueued_end_it(
    debugged: Debugged, half_done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIXED", "1")
    monkeypatch.setenv("GATHER", "1")
    outcome = debugged(half_done, "--run-steps")
    assert outcome.code == 1
    assert "which were not enqueued" in outcome.out


def test_a_person_is_asked_before_a_step_is_run(
    debugged: Debugged, half_done: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").unlink()
    monkeypatch.setattr("mainspring.cli.terminal.Terminal.interactive", property(lambda _self: True))
    asked: list[str] = []
    monkeypatch.setattr("mainspring.cli.terminal.Terminal.confirm", lambda _self, question: asked.append(question))
    assert debugged(half_done).out == "stopped: step 'ship' is not recorded\n"
    assert asked == ["ship is not recorded: really run it?"]


def test_steps_of_plain_functions_run_only_if_told(
    debugged: Debugged, app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.features.durable.sleep.delay_of", lambda *_: 1)
    job = finished(app, app.tasks["plain"].enqueue_sync().id)
    assert debugged(job).out.splitlines()[-1] == "RuntimeError: half way"
    monkeypatch.setenv("FIXED", "1")
    assert debugged(job).out == "stopped: step 'two' is not recorded\n"
    assert debugged(job, "--run-steps").out == "completed, with result 3\n"


def test_a_chunk_handler_gets_the_one_job(debugged: Debugged, app: Mainspring) -> None:
    assert debugged(dead(app, "together", 5)).out.splitlines()[-1] == "ValueError: 5"


def test_a_job_that_snoozes_itself_says_why(
    debugged: Debugged, app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = dead(app, "moody")
    monkeypatch.setenv("FIXED", "1")
    outcome = debugged(job)
    assert outcome.out == "it ended itself with Snooze: not today\n"


def test_a_transaction_is_rolled_back(debugged: Debugged, app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    job = dead(app, "booked", guest="ana")
    monkeypatch.setenv("FIXED", "1")
    assert debugged(job).out.startswith("stopped: it begins ctx.transaction()")
    for _ in range(2):  # the table was not left behind
        outcome = debugged(job, "--run-steps")
        assert outcome.out == "completed, with result 'ana'\n"
        assert "was rolled back" in outcome.err


def test_the_debugger_opens_in_the_handler(
    debugged: Debugged, app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def note(trace: TracebackType) -> None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        opened.append(trace.tb_frame.f_code.co_name)

    monkeypatch.setattr("pdb.post_mortem", note)
    debugged(dead(app, "divide", number=0), "--pdb")
    assert opened == ["divide"]


def test_what_a_worker_will_run_is_not_debugged(debugged: Debugged, app: Mainspring) -> None:
    job = app.tasks["divide"].using(delay=60).enqueue_sync(number=1).id
    outcome = debugged(job)
    assert outcome.code == 1
    assert "a worker will run it" in outcome.err


def test_what_must_be_said(run: Run, app: Mainspring) -> None:
    job = dead(app, "divide", number=0)
    assert "give --app" in run("jobs", "debug", job).err
    assert run("jobs", "debug", job, "--pdb", "--json", "--app", "debugged_shop:app").code == 2
    assert run("jobs", "debug", "0190b2c4-0000-7000-8000-000000000000", "--app", "debugged_shop:app").code == 3
