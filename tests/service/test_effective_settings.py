"""Which settings count for a queue and a task, over HTTP and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainspring import Limit, Mainspring, Rate, Retry
from mainspring.cli import main
from tests.service.serving import Client, serving

DEFAULTS: dict[str, Any] = {"timeout": 10, "retry": Retry(max_attempts=7, base=5)}


def shop(store: str = "memory://") -> Mainspring:
    app = Mainspring(store, **DEFAULTS)
    app.queue("mail", timeout=20)
    app.limit_queue("mail", Limit(4))

    @app.task(queue="mail", timeout=30)
    async def send(guest: str) -> None: ...

    return app


async def settings_at(client: Client, path: str) -> dict[str, tuple[Any, str]]:
    answer = await client.get(path)
    assert answer.status == 200, answer
    return {each["option"]: (each["value"], each["source"]) for each in answer.data["settings"]}


async def test_a_queue_shows_its_jobs_and_the_settings_that_count() -> None:
    async with shop() as app, serving(app) as client:
        await app.enqueue("send", {"guest": "Ada"})
        await app.worker().drain()
        await app.published.publish(app.tasks.values(), "w1")
        queue = (await client.get("/v1/queues/mail")).data
        assert (queue["queue"], queue["completed"], queue["paused"]) == ("mail", 1, None)
        found = await settings_at(client, "/v1/queues/mail")
        assert found["timeout"] == (20.0, "queue")
        assert found["max_attempts"] == (7, "application")
        assert (found["retry"][0]["base"], found["retry"][1]) == (5.0, "application")
        assert found["rate"] == (None, "default")
        await app.settings.set(queue="mail", timeout=90, limit=2, rate=Rate(100, per=60))
        found = await settings_at(client, "/v1/queues/mail")
        assert found["timeout"] == (90.0, "set for the queue")
        assert found["limit"] == (2, "set for the queue")
        assert found["rate"] == ({"count": 100, "per": 60, "burst": None}, "set for the queue")
        levels = {each["option"]: each["levels"] for each in (await client.get("/v1/queues/mail")).data["settings"]}
        assert [(level["source"], level["value"]) for level in levels["timeout"]] == [
            ("set for the queue", 90.0),
            ("queue", 20.0),
            ("application", 10.0),
            ("default", None),
        ]


async def test_a_limit_of_the_code_is_shown_while_it_is_in_use() -> None:
    async with shop() as app, serving(app) as client:
        await app.enqueue("send", {"guest": "Ada"})
        (lease,) = (await app.leases.claim("far", queues=["mail"])).leases
        assert (await settings_at(client, "/v1/queues/mail"))["limit"] == (4, "queue")
        await lease.complete()


async def test_a_task_shows_the_settings_that_count_in_its_queue() -> None:
    async with shop() as app, serving(app) as client:
        await app.published.publish(app.tasks.values(), "w1")
        found = await settings_at(client, "/v1/tasks/send")
        assert (found["timeout"], found["paused"]) == ((30.0, "task"), (False, "default"))
        await app.settings.set(queue="mail", timeout=90, max_attempts=2)
        await app.settings.set(task="send", paused=True)
        found = await settings_at(client, "/v1/tasks/send")
        assert (found["timeout"], found["max_attempts"]) == ((30.0, "task"), (2, "set for the queue"))
        assert found["paused"] == (True, "set for the task")
        await app.settings.set(task="send", timeout=60)
        assert (await settings_at(client, "/v1/tasks/send"))["timeout"] == (60.0, "set for the task")


async def test_a_queue_without_jobs_has_the_built_in_settings() -> None:
    async with Mainspring("memory://") as app, serving(app) as client:
        found = await settings_at(client, "/v1/queues/p/unknown")
        assert (found["timeout"], found["max_attempts"][1]) == ((None, "default"), "default")
        assert (await client.get("/v1/queues/mail/*")).code == "invalid_request"


def test_the_command_line_shows_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = f"sqlite:///{tmp_path}/jobs.db"
    app = shop(store)
    app.run(app.published.publish(app.tasks.values(), "w1"))
    app.settings.set_sync(queue="mail", timeout=90)
    app.run(app.close())
    assert main(["queues", "show", "mail", "--store", store]) == 0
    assert "timeout      90.0  (set for the queue)" in capsys.readouterr().out
    assert main(["tasks", "show", "send", "--store", store]) == 0
    assert "timeout      30.0  (task)" in capsys.readouterr().out
    assert main(["queues", "show", "mail", "--store", store, "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)["queue"]["settings"]
    assert {each["option"] for each in settings} == {"limit", "rate", "timeout", "max_attempts", "retry"}
