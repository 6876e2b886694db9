"""Replays: a finished job once more, as a new job, from its beginning or from one of its steps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring import Context, Retention, Status
from mainspring.errors import IllegalMove, InvalidPayload, JobNotFound, StepNotFound
from mainspring.features.durable.replay import steps_before
from mainspring.features.durable.saved import record_of
from mainspring.job import Job, Step
from mainspring.testing.kit import Kit


class Film:
    """A task with a step, a child, a signal, a sleep and two more steps; and what its runs did."""

    def __init__(self, kit: Kit) -> None:
        self.kit, self.done, self.broken = kit, list[str](), set[str]()

        @kit.app.task
        async def subtitle(language: str) -> str:
            self.done.append(f"subtitle {language}")
            return f"in {language}"

        @kit.app.task(max_attempts=1, tags=["film"], priority="high", timeout=600)
        async def film(ctx: Context, name: str, cut: int = 1) -> list[Any]:
            first = await ctx.step("prepare", self.work, f"prepare {name}")
            texts = await ctx.gather(subtitle.prepare(language="fr"))
            signal = await ctx.wait_for("approved")
            await ctx.sleep(60, name="pause")
            await ctx.save_state("render", {"frames": cut})
            second = await ctx.step("render", self.work, f"render {cut}")
            await ctx.step("upload", self.work, f"upload {cut}")
            return [first, texts, signal and signal.payload, second]

        self.task = film.using(dedupe_key="film", dedupe_for="forever", target=("shelf", "7"))

    async def work(self, what: str) -> str:
        if what in self.broken:
            raise RuntimeError(what)
        self.done.append(what)
        return what

    async def finished(self) -> Job:
        """Run a job to its end."""
        handle = await self.task.enqueue(name="Alien")
        await self.run()
        return await handle.get()

    async def run(self) -> None:
        await self.kit.drain()
        await self.kit.app.signal("approved", "by Ana")
        await self.kit.drain()
        await self.kit.time.advance(minutes=2)

    async def replayed(self, job: Job, **options: Any) -> Job:
        """Replay a job and run the new one; return it, and forget what was done before."""
        self.done.clear()
        new_id = await self.kit.app.jobs.replay(job.id, **options)
        await self.run()
        return await self.kit.app.jobs.get(new_id)


@pytest.fixture
def film(kit: Kit) -> Film:
    return Film(kit)


async def test_a_completed_job_is_replayed_from_a_step(kit: Kit, film: Film) -> None:
    job = await film.finished()
    assert job.status is Status.COMPLETED
    steps = await kit.app.jobs.steps(job.id)
    new = await film.replayed(job, from_step="render")
    assert (new.status, film.done) == (Status.COMPLETED, ["render 1", "upload 1"])
    assert new.result == job.result == ["prepare Alien", ["in fr"], "by Ana", "render 1"]
    assert (new.replay_of, new.options["replay"]) == (job.id, {"of": job.id, "from_step": "render"})
    assert (await kit.app.jobs.get(job.id), await kit.app.jobs.steps(job.id)) == (job, steps)  # it stays as it is


async def test_what_came_after_the_step_does_not_leak(kit: Kit, film: Film) -> None:
    job = await film.finished()
    new_id = await kit.app.jobs.replay(job.id, from_step="pause")
    names = [step.name for step in await kit.app.store.steps(new_id)]
    assert names == ["prepare", "gather", "wait for approved"]  # not the sleep, nor the state saved of "render"
    film.done.clear()
    await kit.drain()
    assert (await kit.app.jobs.get(new_id)).status is Status.SUSPENDED  # it sleeps again
    assert film.done == []
    await kit.time.advance(minutes=2)
    assert film.done == ["render 1", "upload 1"]


async def test_children_after_the_step_are_spawned_again(film: Film) -> None:
    job = await film.finished()
    await film.replayed(job, from_step="prepare")
    assert film.done == ["prepare Alien", "subtitle fr", "render 1", "upload 1"]


async def test_a_replay_from_the_beginning_has_no_records(kit: Kit, film: Film) -> None:
    job = await film.finished()
    new_id = await kit.app.jobs.replay(job.id)
    assert await kit.app.store.steps(new_id) == []


async def test_a_replay_may_have_other_arguments(kit: Kit, film: Film) -> None:
    job = await film.finished()
    new = await film.replayed(job, from_step="render", payload={"name": "Aliens", "cut": 2})
    assert (new.payload, film.done) == ({"name": "Aliens", "cut": 2}, ["render 2", "upload 2"])
    with pytest.raises(InvalidPayload):
        await kit.app.jobs.replay(job.id, payload={"name": "Aliens", "cut": "director's"})


async def test_a_replay_has_the_options_of_its_job_but_no_dedupe_key(film: Film) -> None:
    job = await film.finished()
    new = await film.replayed(job, from_step="upload")
    assert job.dedupe_key == "film"
    for name in ("task", "queue", "priority", "tags", "target", "timeout", "max_attempts"):
        assert getattr(new, name) == getattr(job, name)
    assert (new.dedupe_key, new.token) == (None, 1)


async def test_dead_and_cancelled_jobs_are_replayed_too(kit: Kit, film: Film) -> None:
    film.broken.add("upload 1")
    dead = await film.finished()
    assert dead.status is Status.DEAD_LETTER
    film.broken.clear()
    new = await film.replayed(dead, from_step="upload")  # the step that failed, which is not recorded
    assert (new.status, film.done) == (Status.COMPLETED, ["upload 1"])
    await kit.app.jobs.retry(dead.id)
    await kit.app.jobs.cancel(dead.id)
    again = await film.replayed(await kit.app.jobs.get(dead.id), from_step="render")
    assert (again.status, film.done) == (Status.COMPLETED, ["render 1", "upload 1"])


async def test_a_replay_is_in_the_audit_log(kit: Kit, film: Film) -> None:
    job = await film.finished()
    new_id = await kit.app.jobs.replay(job.id, from_step="render", reason="bad frames", actor="ana")
    (entry,) = await kit.app.audit()
    assert (entry.actor, entry.action, entry.reason) == ("ana", "replay", "bad frames")
    assert entry.detail == {"job": new_id, "of": job.id, "from_step": "render", "edited": False}


async def test_what_cannot_be_replayed_says_why(kit: Kit, film: Film) -> None:
    handle = await film.task.enqueue(name="Alien")
    with pytest.raises(IllegalMove, match="is pending; only finished jobs"):
        await kit.app.jobs.replay(handle.id)
    await film.run()
    with pytest.raises(StepNotFound, match="has not done a step 'dub'; it has done: prepare, gather"):
        await kit.app.jobs.replay(handle.id, from_step="dub")
    with pytest.raises(JobNotFound):
        await kit.app.jobs.within("other").replay(handle.id)
    assert await kit.app.audit() == []


async def test_a_replay_can_be_replayed(film: Film) -> None:
    first = await film.finished()
    second = await film.replayed(first, from_step="render")
    third = await film.replayed(second, from_step="upload")
    assert (third.replay_of, film.done, third.result) == (second.id, ["upload 1"], first.result)


def test_states_go_with_their_steps() -> None:
    records = [Step("a", 1), record_of("a", 1, 1, 0), Step("b", 2), record_of("b", 2, 2, 0), record_of("c", 3, 3, 0)]
    assert [step.name[-1] for step in steps_before(records, "b")] == ["a", "a"]
    assert [step.name[-1] for step in steps_before(records, "c")] == ["a", "a", "b", "b"]  # "c" has failed
    assert steps_before(records, None) == ()


async def test_a_replay_keeps_how_long_its_job_is_kept(kit: Kit) -> None:
    @kit.app.task(retention=Retention(completed=timedelta(days=90)))
    async def work() -> None: ...

    handle = await work.enqueue()
    await kit.drain()
    new_id = await kit.app.jobs.replay(handle.id)
    await kit.drain()
    new = await kit.app.jobs.get(new_id)
    assert new.finished_at is not None
    assert new.expires_at == new.finished_at + timedelta(days=90)
