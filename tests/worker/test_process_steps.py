"""Steps of jobs with isolation="process": the parent records them, and a killed child does not repeat them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.job import Status
from tests.features.conftest import stores
from tests.worker import children
from tests.worker.working import ended, working

pytestmark = pytest.mark.slow
ANY_STORE = pytest.mark.parametrize("app", ["memory"], indirect=True)  # the store sees only the end of the attempt


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def app(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[Mainspring]:
    async with AsyncExitStack() as stack:
        store = (await stores(request.param, tmp_path, stack))()
        stack.push_async_callback(store.close)
        monkeypatch.setattr(children.app.runtime, "store", store)
        yield children.app
        children.app.runtime.bus._wanted.clear()


async def test_a_child_that_is_killed_in_a_step_does_not_repeat_the_steps_before(
    app: Mainspring, tmp_path: Path
) -> None:
    """Its saved state survives too, and other processes read it."""
    notes = tmp_path / "notes"
    async with working(app, child_processes=1):
        job = await children.steps_sync.using(steps=["prepare", "render"]).enqueue(path=str(notes))
        saved = {"frame": 900, "attempt": 1}
        assert await job.result(20) == [saved, ["prepare", "render"], "prepare", 7]
    assert notes.read_text().split() == ["prepare", "render", "render"]
    assert [(step.name, step.state, step.saved) for step in await job.steps()] == [
        ("prepare", "done", None),
        ("render", "done", saved),
    ]


async def test_a_coroutine_in_a_child_runs_steps_side_by_side(app: Mainspring, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with working(app, child_processes=1):
        job = await children.steps_async.enqueue(path=str(notes))
        assert await job.result(20) == [{"frame": 900, "attempt": 1}, [], ["fetch", "prepare"], 7]
    assert sorted(notes.read_text().split()) == ["fetch", "prepare", "render", "render"]


@ANY_STORE
@pytest.mark.parametrize("kind", ["coroutine", "thread", "busy"])
async def test_a_step_over_its_time_fails_the_attempt(
    app: Mainspring, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "busy":  # it cannot end by itself, so its process is ended after the grace
        monkeypatch.setattr("mainspring.worker.step_clerk.GRACE", 0.1)
    async with working(app, child_processes=1):
        job = await children.slow_steps.enqueue(kind=kind)
        (found,) = await ended(app, job.id)
    check_timeout(found)


@ANY_STORE
async def test_a_plain_handler_in_a_child_is_ended_when_its_step_is_over_its_time(app: Mainspring) -> None:
    async with working(app, child_processes=1):
        job = await children.slow_sync.using(steps={"render": 0.2}).enqueue()
        (found,) = await ended(app, job.id)
    check_timeout(found)


def check_timeout(found: Any) -> None:
    assert (found.status, found.attempts, found.crashes) == (Status.DEAD_LETTER, 2, 0)
    assert found.failure.type == "StepTimeout"
    assert found.failure.message == "step 'render' ran longer than its timeout of 0.2 s"
    assert found.reason == "step render failed"


@ANY_STORE
async def test_a_coroutine_in_a_child_can_catch_the_timeout_of_its_step(app: Mainspring) -> None:
    async with working(app, child_processes=1):
        job = await children.slow_steps.enqueue(kind="caught")
        assert await job.result(20) == "StepTimeout: step 'render' ran longer than its timeout of 0.2 s"


@ANY_STORE
async def test_a_child_gets_the_errors_of_the_journal(app: Mainspring) -> None:
    async with working(app, child_processes=1):
        for twice, expected in [(True, "DuplicateStep"), (False, "UnplannedStep")]:
            job = await children.unplanned.using(steps=["prepare", "render"]).enqueue(twice=twice)
            (found,) = await ended(app, job.id)
            assert found.failure is not None
            assert found.failure.type == expected
