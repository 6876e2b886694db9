"""`mainspring follow` and `mainspring subscribers`."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring import Change, ChangeKind, Mainspring
from mainspring.cli import main
from mainspring.cli.exits import Exit
from mainspring.job import NewJob
from mainspring.stores.feed import FIELDS
from tests.conformance.scenario import claim, join, new_job

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def write(url: str, *jobs: NewJob) -> str:
    """Insert jobs; return the cursor of before."""

    async def insert() -> str:
        async with Mainspring(url) as app:
            cursor = await app.changes().begin()
            await app.store.insert(jobs)
            return cursor

    return asyncio.run(insert())


JOBS = [
    new_job(task="send", queue="mail", target=("order", "7")),
    new_job(task="send", queue="mail", tags=("vip", "eu")),
    new_job(task="render"),
]


def test_changes_are_printed_as_lines(url: str, capsys: Capture) -> None:
    after = write(url, *JOBS)
    assert main(["follow", "--store", url, "--after", after, "-n", "3"]) == 0
    out, err = capsys.readouterr()
    lines = sorted(out.splitlines(), key=lambda line: [job.id in line for job in JOBS], reverse=True)
    assert [line.split()[3:] for line in lines] == [
        ["created", JOBS[0].id, "send", "queue=mail", "target=order:7"],
        ["created", JOBS[1].id, "send", "queue=mail"],
        ["created", JOBS[2].id, "render", "queue=default"],
    ]
    assert err == "following the changes; press Ctrl-C to end\n"


def test_each_line_of_json_has_its_cursor(url: str, capsys: Capture) -> None:
    after = write(url, *JOBS)
    seen = []
    for _ in JOBS:
        assert main(["follow", "--store", url, "--after", after, "-n", "1", "--json"]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        change = json.loads(line)
        assert change.keys() == set(FIELDS)
        after = change["cursor"]
        seen.append(change["job_id"])
    assert sorted(seen) == sorted(job.id for job in JOBS)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--queue", "default"], JOBS[2]),
        (["--task", "render,other"], JOBS[2]),
        (["--target", "order:7"], JOBS[0]),
        (["--target", "order", "--kind", "created"], JOBS[0]),
        (["--job", JOBS[1].id], JOBS[1]),
        (["--tag", "vip,eu"], JOBS[1]),
    ],
)
def test_options_select_changes(url: str, capsys: Capture, options: list[str], wanted: NewJob) -> None:
    after = write(url, *JOBS)
    assert main(["follow", "--store", url, "--after", after, "-n", "1", "--json", *options]) == 0
    assert json.loads(capsys.readouterr().out)["job_id"] == wanted.id


def test_naming_starts_has_them_recorded(url: str, capsys: Capture) -> None:
    after = write(url, *JOBS)
    assert main(["follow", "--store", url, "--after", after, "-n", "1", "--kind", "created,started"]) == 0
    capsys.readouterr()
    asyncio.run(claim_all(url))
    assert main(["follow", "--store", url, "--after", after, "-n", "3", "--kind", "started", "--json"]) == 0
    started = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(change["job_id"] for change in started) == sorted(job.id for job in JOBS)


async def claim_all(url: str) -> None:
    async with Mainspring(url) as app:
        await join(app.store, "w1")
        assert len(await claim(app.store, queue="*")) == len(JOBS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kind", "born"], f"'born' is not a kind of change; use any of {', '.join(ChangeKind)}"),
        (["--after", "garbage"], "'garbage' is not a cursor of a change feed"),
        (["--limit", "0"], "'0' is not a whole number of at least 1"),
        (["--job", "01a1efd7,zz"], "'zz' is not the id of a job or the beginning of one"),
    ],
)
def test_wrong_values_are_refused(url: str, capsys: Capture, options: list[str], message: str) -> None:
    write(url)
    assert main(["follow", "--store", url, *options]) == Exit.USAGE
    assert message in capsys.readouterr().err


def test_a_place_that_is_lost_is_an_error(url: str, tmp_path: Path, capsys: Capture) -> None:
    after = write(url)
    other = f"sqlite:///{tmp_path}/other.db"
    write(other)
    assert main(["follow", "--store", other, "--after", after]) == Exit.FAILED
    problem, hint = capsys.readouterr().err.splitlines()[-2:]
    assert "the change feed no longer has what came after" in problem
    command, cursor = hint.rsplit(" ", 1)
    assert command == "to go on from now, run the same command with: --after"
    write(other, JOBS[0])
    assert main(["follow", "--store", other, "--after", cursor, "-n", "1"]) == 0
    assert JOBS[0].id in capsys.readouterr().out


def test_a_program_gets_the_cursor_to_go_on_from(url: str, tmp_path: Path, capsys: Capture) -> None:
    after = write(url)
    other = f"sqlite:///{tmp_path}/other.db"
    write(other)
    assert main(["follow", "--json", "--store", other, "--after", after]) == Exit.FAILED
    error = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (set(error), error["type"]) == ({"error", "type", "cursor"}, "ChangesLost")
    write(other, JOBS[0])
    assert main(["follow", "--json", "--store", other, "--after", error["cursor"], "-n", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["job_id"] == JOBS[0].id


@pytest.mark.slow
def test_changes_of_other_processes_are_printed_until_an_interrupt(url: str) -> None:
    write(url)
    command = [sys.executable, "-m", "mainspring", "follow", "--store", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stderr.readline() == "following the changes; press Ctrl-C to end\n"
            write(url, JOBS[0])
            assert JOBS[0].id in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) == Exit.INTERRUPTED
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_subscribers_are_listed_and_removed(url: str, capsys: Capture) -> None:
    app = Mainspring(url)

    @app.subscriber("webhooks")
    async def ignore(change: Change) -> None:
        """Print nothing: the worker's own start is a change too, and may be handled before the worker ends."""

    async def serve() -> None:
        async with app, app.worker(queues=["none"]):
            while not await app.subscribers.states():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(serve())
    assert main(["subscribers", "list", "--store", url]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert (head.split()[0], line.split()) == ("SUBSCRIBER", ["webhooks", "no", "worker", "0"])
    assert main(["subscribers", "list", "--store", url, "--json"]) == 0
    (state,) = json.loads(capsys.readouterr().out)["subscribers"]
    assert (state["name"], state["owner"], state["failures"], state["error"]) == ("webhooks", None, 0, "")
    assert main(["subscribers", "remove", "webhooks", "--store", url]) == 0
    assert capsys.readouterr().out == "forgot webhooks\n"
    assert main(["subscribers", "remove", "webhooks", "--store", url]) == Exit.NOT_FOUND
    assert "there is no subscriber named 'webhooks'" in capsys.readouterr().err
    assert main(["subscribers", "list", "--store", url]) == 0
    assert capsys.readouterr().err == "no durable subscribers\n"
