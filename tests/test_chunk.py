"""Chunk tasks as their callers see them."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from mainspring import Chunk, Context, Item, JobHandle, Mainspring, Retry
from mainspring.chunk import ChunkTask
from mainspring.errors import ConfigurationError, InvalidPayload
from mainspring.testing import inline, manual

app = Mainspring("memory://")


class Doc(BaseModel):
    id: int
    text: str = ""


class Row(TypedDict):
    id: int
    name: str


@dataclass
class Point:
    x: int
    y: int = 0


@app.task(chunk=Chunk(100), queue="search")
async def index(docs: list[Doc]) -> None:
    assert all(isinstance(doc, Doc) for doc in docs)


@app.task(chunk=Chunk(size=10, wait=timedelta(seconds=2)))
def sums(points: Sequence[Point]) -> list[int]:
    return [point.x + point.y for point in points]


@app.task(chunk=Chunk(10))
async def halves(numbers: list[int]) -> list[int | BaseException]:
    return [ValueError(f"{n} is odd") if n % 2 else n // 2 for n in numbers]


@app.task(chunk=Chunk(10))
async def insert(items: list[Item[Row]]) -> None:
    for item in items:
        if item.payload["id"] < 0:
            item.fail(ValueError("negative"))
        else:
            item.done({"attempt": item.attempt, "name": item.payload["name"]})


async def test_one_item_is_enqueued_and_its_type_is_known() -> None:
    with manual(app) as kit:
        handle = await index.enqueue(Doc(id=1))
        assert_type(handle, JobHandle[None])
        assert_type(index, ChunkTask[Doc, None, Awaitable[None]])
        assert_type(await halves.enqueue(4), JobHandle[int])
        assert_type(await sums.using(delay=1).enqueue(Point(1)), JobHandle[int])
        await insert.enqueue({"id": 1, "name": "ana"})
        await index.enqueue_many([Doc(id=2), Doc(id=3)])
        assert [job.payload for job in kit.jobs(index)] == [{"id": n, "text": ""} for n in (1, 2, 3)]
        assert [job.payload for job in kit.jobs(halves)] == [4]
        assert [job.payload for job in kit.jobs(sums)] == [{"x": 1, "y": 0}]
        assert {job.queue for job in kit.jobs(index)} == {"search"}


async def test_each_job_has_its_own_result() -> None:
    with manual(app) as kit:
        handles = await sums.enqueue_many([Point(1, 2), Point(3, 4)])
        bare = [await halves.enqueue(8), await halves.enqueue(6)]
        row = await insert.enqueue({"id": 1, "name": "ana"})
        await kit.drain(raise_errors=True)
        assert [await handle.result() for handle in handles] == [3, 7]
        assert [await handle.result() for handle in bare] == [4, 3]
        assert await row.result() == {"attempt": 1, "name": "ana"}


async def test_it_stays_a_function_of_a_list() -> None:
    assert await index([Doc(id=1)]) is None  # type: ignore[func-returns-value]
    assert sums([Point(1, 2)]) == [3]
    good, bad = Item.detached(Row(id=1, name="a"), attempts=2), Item.detached(Row(id=-1, name="b"))
    await insert([good, bad])
    assert good.result == {"attempt": 3, "name": "a"}
    assert isinstance(bad.error, ValueError)
    await insert([Row(id=1, name="a")])


async def test_inline_runs_what_was_enqueued_together_in_one_chunk() -> None:
    sizes: list[int] = []
    own = Mainspring("memory://")

    @own.task(chunk=Chunk(10))
    async def work(numbers: list[int]) -> None:
        sizes.append(len(numbers))

    with inline(own):
        await work.enqueue(1)
        await work.enqueue_many([1, 2, 3])
    assert sizes == [1, 3]


@pytest.mark.parametrize("payload", [{"id": "many"}, {}, 7, [{"id": 1}], {"id": 1, "more": [1]}])
async def test_a_bad_payload_is_refused_at_once(payload: Any) -> None:
    with manual(app), pytest.raises(InvalidPayload, match=r"insert"):
        await insert.enqueue(payload)


async def test_one_payload_per_job() -> None:
    with manual(app), pytest.raises(InvalidPayload, match="one payload per job"):
        await index.enqueue(Doc(id=1), Doc(id=2))  # type: ignore[call-arg]


def test_functions_that_cannot_handle_chunks_are_refused() -> None:
    own = Mainspring("memory://")

    def two(docs: list[Doc], more: int) -> None: ...
    def none() -> None: ...
    def single(doc: Doc) -> None: ...
    def context(docs: list[Doc], ctx: Context) -> None: ...
    def scalar(docs: list[Doc]) -> int:
        return len(docs)

    def fine(docs: list[Doc]) -> None: ...

    decorate: Any = own.task(chunk=Chunk(2))
    for function, reason in [
        (two, "one argument, the list"),
        (none, "one argument, the list"),
        (single, "one argument, the list"),
        (context, "item.ctx"),
        (scalar, "returns nothing, or a list"),
    ]:
        with pytest.raises(ConfigurationError, match=reason):
            decorate(function)
    with pytest.raises(ConfigurationError, match='isolation="process"'):
        own.task(chunk=Chunk(2), isolation="process")(fine)
    with pytest.raises(ConfigurationError, match="leave out chunk or steps"):
        own.task(chunk=Chunk(2), steps=["a"])(fine)
    with pytest.raises(ConfigurationError, match="not 5"):
        own.task(chunk=5)(fine)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match='isolation="process"'):
        index.using(isolation="process")


@pytest.mark.parametrize(
    ("size", "wait", "reason"),
    [(0, 1, "between 1 and"), (10_001, 1, "between 1 and"), (1, -1, "between 0 and 20"), (1, 21, "no other worker")],
)
def test_invalid_chunks_are_refused(size: int, wait: float, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        Chunk(size, wait)


def test_an_item_fails_with_an_exception() -> None:
    with pytest.raises(TypeError, match="exception"):
        Item.detached(1).fail("broken")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="attempt"):
        _ = Item.detached(1, attempt=2).ctx  # type: ignore[call-arg]


def test_options_are_those_of_any_task() -> None:
    own = Mainspring("memory://")

    @own.task(chunk=Chunk(5), name="other", retry=Retry(max_attempts=7), timeout=3, tags=["t"])
    def work(numbers: list[int]) -> None: ...

    job = work.prepare(1)
    assert (job.task, job.max_attempts, job.timeout, job.tags) == ("other", 7, 3000, ("t",))
