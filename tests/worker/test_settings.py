from __future__ import annotations

import os
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.errors import ConfigurationError
from mainspring.worker import Subscription, Worker, WorkerOptions, WorkerSettings
from mainspring.worker.settings import new_worker_id, subscriptions


def test_queues_can_be_given_as_text_list_or_weights() -> None:
    assert subscriptions("*") == (Subscription("*"),)
    assert subscriptions(["mail", "default"]) == (Subscription("mail"), Subscription("default"))
    assert subscriptions({"mail": 3, "default": 1}) == (Subscription("mail", 3), Subscription("default", 1))
    assert subscriptions([Subscription("mail", 2, 5)]) == (Subscription("mail", 2, 5),)


def test_queue_concurrency_is_set_per_queue() -> None:
    assert subscriptions(["mail", "default"], {"mail": 4}) == (Subscription("mail", 1, 4), Subscription("default"))


@pytest.mark.parametrize(
    ("queues", "limits", "told"),
    [
        ([], None, "at least one queue"),
        (["mail"], {"other": 1}, "does not take from: other"),
        (["mail", "mail"], None, "named twice: mail"),
        ("*", {"mail": 2}, "does not take from: mail"),
        (["mail", "*"], {"mail": 2}, "limit would not hold"),
        ([""], None, "needs a name"),
        ({"mail": 0}, None, "at least 1"),
        (["mail"], {"mail": 0}, "at least 1"),
    ],
)
def test_contradictory_queues_are_refused(queues: Any, limits: dict[str, int] | None, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        subscriptions(queues, limits)


def test_every_queue_can_follow_others_and_have_its_own_concurrency() -> None:
    assert len(subscriptions(["urgent", "*"])) == 2
    assert subscriptions("*", {"*": 7}) == (Subscription("*", 1, 7),)


@pytest.mark.parametrize(
    "fields",
    [
        {"concurrency": 0},
        {"child_processes": 0},
        {"prefetch": -1},
        {"ack_delay": -0.1},
        {"grace": -1},
        {"heartbeat_interval": 0},
        {"maintenance_interval": 0},
        {"queues": (Subscription("a"), Subscription("a"))},
    ],
)
def test_settings_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        WorkerSettings(**fields)


def test_worker_ids_are_unique() -> None:
    assert new_worker_id() != new_worker_id()
    assert str(os.getpid()) in new_worker_id()


def test_a_worker_takes_a_settings_object_or_options() -> None:
    app = Mainspring("memory://")
    assert Worker(app, WorkerSettings(concurrency=7)).settings.concurrency == 7
    worker = Worker(app, queues={"mail": 2, "default": 1}, queue_concurrency={"mail": 3}, strict=True)
    assert worker.settings.queues == (Subscription("mail", 2, 3), Subscription("default", 1))
    assert worker.settings.strict
    with pytest.raises(ConfigurationError, match="no setting named colour; its settings are queues, queue_concurrency"):
        Worker(app, colour="red")  # type: ignore[call-arg]


def test_options_and_settings_have_the_same_names() -> None:
    assert WorkerOptions.__annotations__.keys() == {*WorkerSettings.__dataclass_fields__, "queue_concurrency"}


@pytest.mark.parametrize("fields", [{"concurrency": 9}, {"queues": ["mail"]}, {"queue_concurrency": {"*": 2}}])
def test_settings_and_options_together_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"give settings or {next(iter(fields))}, not both"):
        Worker(Mainspring("memory://"), WorkerSettings(), **fields)
