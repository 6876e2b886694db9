"""`mainspring tasks`: what workers have published."""

from __future__ import annotations

import pytest

from mainspring import Mainspring
from tests.cli.conftest import Run, Shop


@pytest.fixture
def published(shop: Shop) -> None:
    app = Mainspring(shop.url)

    @app.task(queue="film", timeout=60, steps=["light", "shoot"])
    async def render(scene: int) -> None:
        """Render a scene."""

    app.run(app.published.publish([render], "worker-7"))
    app.run(app.close())


def test_nothing_is_published(run: Run, shop: Shop) -> None:
    done = run("tasks", "list", "--store", shop.url)
    assert (done.code, done.out) == (0, "")
    assert "no tasks are published" in done.err


@pytest.mark.usefixtures("published")
def test_they_are_listed(run: Run, shop: Shop) -> None:
    line = run("tasks", "list", "--store", shop.url).out.splitlines()[1]
    assert all(word in line for word in ("render", "film", "worker-7", "Render a scene."))
    (task,) = run("tasks", "list", "--store", shop.url, "--json").data["tasks"]
    assert (task["name"], task["options"]) == ("render", {"queue": "film", "timeout": 60.0})


@pytest.mark.usefixtures("published")
def test_one_is_shown_with_its_schema(run: Run, shop: Shop) -> None:
    shown = run("tasks", "show", "render", "--store", shop.url).out
    assert all(word in shown for word in ("Render a scene.", "film", "60.0", "light, shoot", '"scene"', '"integer"'))
    assert run("tasks", "show", "render", "--store", shop.url, "--json").data["task"]["schema"]["required"] == ["scene"]
    refused = run("tasks", "show", "rendr", "--store", shop.url)
    assert (refused.code, "do you mean 'render'?" in refused.err) == (2, True)


@pytest.mark.usefixtures("published")
def test_one_can_be_forgotten(run: Run, shop: Shop) -> None:
    argv = ("tasks", "forget", "render", "--reason", "gone", "--actor", "ana", "--store", shop.url)
    assert run(*argv).out == "render is forgotten\n"
    assert run(*argv).code == 2
    assert run("tasks", "list", "--store", shop.url, "--json").data == {"tasks": []}
    assert "task.forget" in run("audit", "--store", shop.url).out
