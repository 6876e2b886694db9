"""Publishing tasks and enqueuing them by name, on all stores."""

from __future__ import annotations

import pytest

from mainspring import InvalidPayload, UnknownTask
from tests.features.conftest import NewApp, new_app
from tests.worker.working import eventually

__all__ = ["new_app"]  # the fixture

TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}


async def test_a_program_without_the_task_enqueues_what_a_worker_runs(new_app: NewApp) -> None:
    studio, web = new_app(), new_app()

    @studio.task(queue="film", max_attempts=2)
    async def render(scene: int) -> int:
        return scene

    with pytest.raises(UnknownTask):
        await web.enqueue("render", {"scene": 7})
    async with studio.worker(id="w1"):

        async def names() -> list[str]:
            return [task.name for task in await web.published.list()]

        assert await eventually(names) == ["render"]
        with pytest.raises(InvalidPayload, match="scene"):
            await web.enqueue("render", {"scene": "seven"})
        handles = await web.enqueue_many("render", [{"scene": n} for n in range(3)], trace=TRACE)
        assert [await handle.result(timeout=20) for handle in handles] == [0, 1, 2]
        job = await handles[0].get()
    assert (job.queue, job.max_attempts, job.trace) == ("film", 2, TRACE)


async def test_only_what_changed_is_written(new_app: NewApp) -> None:
    studio, web = new_app(), new_app()
    for number in range(120):

        @studio.task(name=f"task {number:03}")
        async def work() -> None: ...

    tasks = list(studio.tasks.values())
    assert await studio.published.publish(tasks[:-1], "w1") == 119
    assert await web.published.publish(tasks, "w2") == 1
    found = await web.published.list()
    assert [task.name for task in found] == [task.name for task in tasks]
    assert {task.worker for task in found[:-1]} | {found[-1].worker} == {"w1", "w2"}
    await web.published.forget("task 000")
    assert len(await studio.published.list()) == 119
