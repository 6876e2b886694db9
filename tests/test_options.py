from __future__ import annotations

from dataclasses import replace
from typing import Any, assert_type

import pytest
from pydantic import BaseModel

from mainspring import (
    Chunk,
    ConfigurationError,
    InvalidPayload,
    JobHandle,
    JobNotFound,
    Mainspring,
    Priority,
    Retention,
    Retry,
)
from mainspring.testing import manual

DAY = 24 * 3600 * 1000


def new_app(**options: Any) -> Mainspring:
    return Mainspring("memory://", **options)


# -- defaults of the application and of queues ----------------------------------------------------


def test_the_application_sets_what_holds_for_all_tasks() -> None:
    app = new_app(retry=Retry(max_attempts=7), timeout=30, retention=Retention(completed=DAY / 1000))

    @app.task()
    async def render() -> None: ...

    job = render.prepare()
    assert (job.max_attempts, job.timeout, job.keep) == (7, 30_000, DAY)
    assert job.options is None  # or each job would carry the policy, and be slower for it


def test_a_number_of_attempts_can_be_set_alone() -> None:
    app = new_app(max_attempts=9)

    @app.task()
    async def render() -> None: ...

    assert render.prepare().max_attempts == 9
    assert render.retry_in("default") == Retry(max_attempts=9)


def test_enqueue_goes_before_task_before_queue_before_application() -> None:
    app = new_app(timeout=1, retry=Retry(max_attempts=1))
    app.queue("media", timeout=2, priority="low")

    @app.task(queue="mail")
    async def welcome() -> None: ...

    @app.task(queue="media")
    async def render() -> None: ...

    @app.task(queue="media", timeout=3, priority="high")
    async def encode() -> None: ...

    assert welcome.prepare().timeout == 1000
    assert (render.prepare().timeout, render.prepare().priority) == (2000, Priority.LOW)
    assert (encode.prepare().timeout, encode.prepare().priority) == (3000, Priority.HIGH)
    assert encode.using(timeout=4, priority="urgent").prepare().timeout == 4000
    assert encode.using(timeout=4, priority="urgent").prepare().priority is Priority.URGENT
    assert {job.max_attempts for job in (welcome.prepare(), render.prepare(), encode.prepare())} == {1}


def test_a_job_that_is_sent_to_another_queue_has_the_defaults_of_that_one() -> None:
    app = new_app()
    app.queue("slow", timeout=600, retry=Retry.fixed(30, max_attempts=4))

    @app.task()
    async def render() -> None: ...

    assert (render.prepare().timeout, render.prepare().max_attempts) == (0, 3)
    slow = render.using(queue="slow").prepare()
    assert (slow.timeout, slow.max_attempts, slow.options) == (600_000, 4, None)


@pytest.mark.parametrize(
    ("of_app", "of_queue", "of_task", "of_job", "attempts"),
    [
        ({"retry": Retry(max_attempts=5)}, {"max_attempts": 4}, {}, {}, 4),
        ({"max_attempts": 4}, {"retry": Retry(max_attempts=5)}, {}, {}, 5),
        ({}, {"max_attempts": 4}, {"retry": Retry(max_attempts=5)}, {}, 5),
        ({}, {"retry": Retry(max_attempts=5)}, {"max_attempts": 4}, {}, 4),
        ({}, {"retry": Retry(max_attempts=5)}, {}, {"max_attempts": 2}, 2),
        ({"max_attempts": 9}, {"max_attempts": 8}, {"max_attempts": 7}, {"retry": Retry(max_attempts=6)}, 6),
        ({}, {}, {}, {}, 3),
    ],
)
def test_a_policy_brings_its_own_number_of_attempts(
    of_app: dict[str, Any], of_queue: dict[str, Any], of_task: dict[str, Any], of_job: dict[str, Any], attempts: int
) -> None:
    app = new_app(**of_app)
    app.queue("media", **of_queue)

    async def function() -> None: ...

    render = app.task(queue="media", **of_task)(function)
    assert render.using(**of_job).prepare().max_attempts == attempts


async def test_the_worker_retries_by_the_policy_of_the_queue() -> None:
    app = new_app(retry=Retry.fixed(1000, jitter_share=0))
    app.queue("media", retry=Retry.delays(7))

    @app.task()
    async def fail() -> None:
        raise LookupError

    async with manual(app) as kit:
        await fail.enqueue()
        await fail.using(queue="media").enqueue()
        await kit.drain()
        waits = {job.queue: (job.run_at - kit.time.now()).total_seconds() for job in kit.jobs()}
    assert waits == {"default": 1000, "media": 7}


def test_invalid_defaults_are_refused_with_the_reason() -> None:
    with pytest.raises(ConfigurationError, match=r"retry must be a Retry\(…\), not 5"):
        new_app(retry=5)
    with pytest.raises(ConfigurationError, match="timeout is -1"):
        new_app().queue("media", timeout=-1)
    with pytest.raises(ConfigurationError, match="'hgih' is not a priority"):
        new_app().queue("media", priority="hgih")  # type: ignore[arg-type]


def test_the_defaults_of_a_queue_are_set_once_and_before_its_tasks() -> None:
    app = new_app()
    app.queue("media", timeout=5)

    @app.task(queue="media")
    async def render() -> None: ...

    app.queue("media", timeout=5)  # the same again, as a module that is loaded twice does
    with pytest.raises(ConfigurationError, match="queue 'media' are set twice, and differ"):
        app.queue("media", timeout=6)

    @app.task()
    async def welcome() -> None: ...

    with pytest.raises(ConfigurationError, match=r"comes after tasks of that queue: welcome\. Set a queue's defaults"):
        app.queue("default", timeout=5)


# -- options per item -----------------------------------------------------------------------------


async def test_each_item_of_many_may_have_its_own_options() -> None:
    app = new_app()

    @app.task(tags=["hotel"])
    async def welcome(guest: str) -> str:
        return guest

    async with manual(app) as kit:
        handles = await welcome.enqueue_many(
            [{"guest": "ana"}, welcome.using(delay=60, priority="low").prepare(guest="bo"), welcome.prepare("cy")]
        )
        assert_type(handles, list[JobHandle[str]])
        jobs = [await handle.get() for handle in handles]
        assert [job.payload["guest"] for job in jobs] == ["ana", "bo", "cy"]
        assert [(job.run_at - kit.time.now()).seconds for job in jobs] == [0, 60, 0]
        assert [job.priority for job in jobs] == [Priority.NORMAL, Priority.LOW, Priority.NORMAL]
        assert {job.tags for job in jobs} == {("hotel",)}
        with pytest.raises(InvalidPayload):
            welcome.prepare(gest="di")  # type: ignore[call-arg] # a type checker sees it


def test_items_with_options_can_be_enqueued_without_a_loop() -> None:
    app = new_app()

    @app.task()
    def welcome(guest: str) -> None: ...

    with manual(app) as kit:
        welcome.enqueue_many_sync([welcome.using(tags=["vip"]).prepare("ana"), {"guest": "bo"}])
        assert {job.payload["guest"]: job.tags for job in kit.jobs()} == {"ana": ("vip",), "bo": ()}


async def test_prepared_items_of_a_chunk_task() -> None:
    app = new_app()

    class Doc(BaseModel):
        id: int

    @app.task(chunk=Chunk(size=10, wait=0))
    async def index(docs: list[Doc]) -> None: ...

    async with manual(app) as kit:
        handles = await index.enqueue_many([Doc(id=1), index.using(delay=60).prepare(Doc(id=2))])
        jobs = [await handle.get() for handle in handles]
        assert [(job.payload["id"], (job.run_at - kit.time.now()).seconds) for job in jobs] == [(1, 0), (2, 60)]


async def test_a_job_that_does_not_belong_among_the_items_is_refused_and_none_is_enqueued() -> None:
    app = new_app()

    @app.task()
    async def welcome(guest: str) -> None: ...

    @app.task()
    async def goodbye(guest: str) -> None: ...

    async with manual(app) as kit:
        with pytest.raises(ConfigurationError, match="number 2 of the payloads is a job of task 'goodbye'"):
            await welcome.enqueue_many([{"guest": "ana"}, goodbye.prepare("bo")])
        with pytest.raises(
            ConfigurationError, match=r"number 1 .* give options to each item, welcome.using\(…\).prepare"
        ):
            await welcome.using(delay=5).enqueue_many([welcome.prepare("bo")])
        with pytest.raises(InvalidPayload, match="number 2 of the payloads"):
            await welcome.enqueue_many([welcome.prepare("bo"), {"gest": "ana"}])
        unknown = replace(welcome.prepare("bo"), options='{"after": {"jobs": ["nonsense"]}}')
        with pytest.raises(JobNotFound, match="nonsense"):
            await welcome.enqueue_many([unknown])
        assert kit.jobs() == []
