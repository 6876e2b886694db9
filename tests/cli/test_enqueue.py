"""`mainspring enqueue` and `mainspring signal`."""

from __future__ import annotations

import io
import os
from pathlib import Path
from uuid import uuid4

import pytest

from mainspring.cli.loading import load
from mainspring.job import Status
from tests.cli.conftest import Outcome, Run, Shop

CODE = """
from mainspring import Context, Mainspring

app = Mainspring("sqlite:///shop.db")

@app.task(queue="mail", max_attempts=3)
async def welcome(guest: str, number: int = 0) -> None: ...

@app.task()
async def stay(ctx: Context) -> object:
    signal = await ctx.wait_for("door")
    return signal.payload
"""


@pytest.fixture
def enqueue(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """With a module of its own for each test: a module stays imported."""
    name = f"shop_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.setenv("MAINSPRING_APP", f"{name}:app")
    return lambda *argv: run("enqueue", *argv)


def test_a_job_is_enqueued_as_its_task_says(enqueue: Run, shop: Shop) -> None:
    done = enqueue("welcome", '{"guest": "ana", "number": 7}', "--json")
    assert (done.code, done.data["created"]) == (0, True)
    job = done.data["job"]
    assert (job["task"], job["queue"], job["max_attempts"]) == ("welcome", "mail", 3)
    assert job["payload"] == {"guest": "ana", "number": 7}
    assert shop.status(job["id"]) is Status.PENDING


def test_with_options_of_its_own(enqueue: Run) -> None:
    options = ("--queue", "slow", "--priority", "high", "--in", "2h", "--tag", "a,b", "--target", "room:7", "--json")
    job = enqueue("welcome", '{"guest": "ana"}', *options).data["job"]
    assert (job["queue"], job["priority"], job["tags"]) == ("slow", "high", ["a", "b"])
    assert job["target"] == {"type": "room", "id": "7"}
    assert job["run_at"] > job["created_at"]


def test_a_second_one_with_the_same_key_is_the_first(enqueue: Run) -> None:
    argv = ("welcome", '{"guest": "ana"}', "--dedupe-key", "ana")
    assert " enqueued in mail, due " in enqueue(*argv).out
    assert "already exists" in enqueue(*argv).out


def test_the_payload_may_come_from_standard_input(enqueue: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"guest": "bo"}'))
    assert enqueue("welcome", "-", "--json").data["job"]["payload"]["guest"] == "bo"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nothing"], "no task is named 'nothing'"),
        (["welcom"], "do you mean 'welcome'?"),
        (["welcome", "[1]"], "does not take this payload"),
        (["welcome", "{"], "the payload is not JSON"),
        (["welcome", "{}"], "guest"),
        (["welcome", '{"guest": "ana"}', "--at", "now", "--in", "2h"], "not allowed with"),
    ],
)
def test_what_cannot_be_enqueued_is_explained_and_leaves_nothing(
    enqueue: Run, shop: Shop, argv: list[str], said: str
) -> None:
    refused = enqueue(*argv)
    assert refused.code != 0
    assert said in refused.err
    assert shop.count() == 0


def publish_all() -> None:
    app = load(os.environ["MAINSPRING_APP"])
    app.run(app.published.publish(app.tasks.values(), "w1"))
    app.run(app.close())


@pytest.mark.usefixtures("enqueue")
def test_a_store_alone_is_enough_if_a_worker_has_published_the_task(run: Run, shop: Shop) -> None:
    argv = ("enqueue", "welcome", '{"guest": "ana"}', "--store", shop.url, "--json")
    refused = run(*argv)
    assert (refused.code, "no worker has published one" in refused.err) == (2, True)
    publish_all()
    job = run(*argv).data["job"]
    assert (job["queue"], job["max_attempts"], job["payload"]) == ("mail", 3, {"guest": "ana"})
    wrong = run("enqueue", "welcome", '{"guest": 5}', "--store", shop.url)
    assert (wrong.code, "guest: must be a string, not 5" in wrong.err) == (1, True)


def test_an_unknown_task_can_be_allowed(run: Run, shop: Shop) -> None:
    done = run("enqueue", "later", "[1]", "--allow-unknown", "--store", shop.url, "--json")
    assert done.data["job"]["payload"] == [1]


def test_a_signal_reaches_what_waits_for_it(enqueue: Run, run: Run, shop: Shop) -> None:
    job_id = enqueue("stay", "--json").data["job"]["id"]
    app = load(os.environ["MAINSPRING_APP"])
    app.run(app.worker().drain())
    sent = run("signal", "door", '{"room": 7}', "--store", shop.url, "--json")
    assert sent.data["signal"]["payload"] == {"room": 7}
    app.run(app.worker().drain())
    assert app.run(app.jobs.get(job_id)).result == {"room": 7}
    app.run(app.close())


def test_a_signal_with_an_id_is_sent_once(run: Run, shop: Shop) -> None:
    first, second = [run("signal", "door", "--id", "evt_7", "--store", shop.url, "--json") for _ in range(2)]
    assert first.data == second.data


def test_a_signal_that_is_not_json_is_refused(run: Run, shop: Shop) -> None:
    refused: Outcome = run("signal", "door", "{", "--store", shop.url)
    assert (refused.code, "the signal's payload is not JSON" in refused.err) == (2, True)


def test_the_error_about_an_unknown_task_advises_the_option(enqueue: Run) -> None:
    refused = enqueue("welcom", "{}")
    assert refused.code != 0
    assert "do you mean 'welcome'?" in refused.err
    assert "add --allow-unknown" in refused.err
    assert "allow_unknown=True" not in refused.err
    assert enqueue("welcom", "{}", "--allow-unknown").code == 0
