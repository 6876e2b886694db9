"""What a store refuses to keep, and that one odd row does not prevent reading the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from mainspring.errors import ConfigurationError, InvalidCursor
from mainspring.job import FOREVER, KEEP_FOREVER, UNTIL_WOKEN, Move, NewJob, Outcome, Save, Status, Step
from mainspring.stores.documents import Bundle, Key, Write
from mainspring.stores.protocol import Filter, Store
from mainspring.stores.records import Kind
from tests.conformance.scenario import new_job, put, running, status_of

NAMED = ("task", "queue", "dedupe_key", "target type", "target id", "tag")
UNKEEPABLE = {"nul": "a\0b", "megabyte": "x" * 1_000_000}
NUMBERS: dict[str, dict[str, int]] = {
    "run_at late": {"run_at": UNTIL_WOKEN + 1},
    "run_at early": {"run_at": -(10**14)},
    "delay": {"delay": 86_399_999_999_999_999},  # timedelta.max
    "timeout": {"timeout": 10**15},
    "negative timeout": {"timeout": -1},
    "dedupe_for": {"dedupe_key": "k", "dedupe_for": 10**15},  # type: ignore[dict-item] # one is a text
    "keep": {"keep": KEEP_FOREVER + 1},
    "keep_dead": {"keep_dead": -1},
    "no attempts": {"max_attempts": 0},
    "attempts": {"max_attempts": 2**31},
}
CHANGED: list[dict[str, Any]] = [
    {"id": "1"},
    {"id": "018F0000-0000-7000-8000-000000000000"},
    {"run_at": UNTIL_WOKEN + 1},
    {"delay": 0.5},
    {"timeout": "long"},
    {"priority": 4},
    {"priority": None},
    {"task": "x" * 1_000_000},
    {"queue": ""},
    {"queue": "\ud800"},
    {"tags": ("a\0",)},
    {"tags": (7,)},
    {"target": "guest"},
    {"waits_for": "a\0b"},
    {"options": "nonsense"},
    {"options": "[]"},
    {"payload": "\0"},
    {"payload": {"a": 1}},
]
LONG = 5000  # digits; Python reads 4,300


def named(place: str, text: str) -> dict[str, Any]:
    """A job's fields with the text at that place."""
    if place == "tag":
        return {"tags": ("fine", text)}
    if place.startswith("target"):
        return {"target": (text, "7") if place == "target type" else ("guest", text)}
    return {place: text}


async def reads(store: Store, *ids: str) -> None:
    """All that is read works, and finds all of these jobs."""
    assert {job.id for job in (await store.find(Filter(), limit=100)).jobs} == set(ids)
    assert {job.id for job in await store.get(ids)} == set(ids)
    assert await store.count(Filter()) == len(ids)
    await store.find(Filter(payload={"n": 1}))
    await store.stats()
    await store.diagnose()
    for job_id in ids:
        await store.timeline(job_id)
        await store.attempts(job_id)


class BoundTests:
    # -- names --------------------------------------------------------------------------------

    @pytest.mark.parametrize("place", NAMED)
    @pytest.mark.parametrize("text", UNKEEPABLE.values(), ids=UNKEEPABLE)
    async def test_a_name_that_some_store_cannot_keep_is_refused(self, store: Store, place: str, text: str) -> None:
        with pytest.raises(ConfigurationError):
            await store.insert([new_job(), new_job(**named(place, text))])
        assert await store.count(Filter()) == 0

    @pytest.mark.parametrize("letter", ["x", "ü", "あ", "👩"])
    async def test_the_longest_names_are_kept_and_found(self, store: Store, letter: str) -> None:
        name, key = letter * 200, letter * min(500, 1500 // len(letter.encode()))
        job = {"task": name, "queue": name, "dedupe_key": key, "target": (name, key), "tags": (name,)}
        job_id = await put(store, **job)
        wanted = Filter(tasks=(name,), queues=(name,), dedupe_key=key, target_type=name, target_id=key, tags=(name,))
        (found,) = (await store.find(wanted)).jobs
        assert (found.id, found.task, found.dedupe_key, found.target) == (job_id, name, key, (name, key))

    async def test_other_scripts_spaces_and_joined_emoji_are_names(self, store: Store) -> None:
        for text in ("größe", "имя", "全角　空白", "👨‍👩‍👧", "a b", 'it\'s "x"', "a\\b", "$.x", "%s"):
            job_id = await put(store, task=text, queue=text, dedupe_key=text, target=(text, text), tags=(text,))
            (found,) = (await store.find(Filter(queues=(text,), tags=(text,), target_id=text))).jobs
            assert (found.id, found.task, found.tags) == (job_id, text, (text,))

    # -- numbers ------------------------------------------------------------------------------

    @pytest.mark.parametrize("fields", NUMBERS.values(), ids=NUMBERS)
    async def test_a_time_or_number_that_cannot_be_shown_is_refused(self, store: Store, fields: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError):
            await store.insert([new_job(), new_job(**fields)])
        assert await store.count(Filter()) == 0

    async def test_the_longest_times_are_kept(self, store: Store) -> None:
        long = 365_000 * 86_400_000  # 1,000 years
        fields = {"timeout": long, "keep": KEEP_FOREVER, "keep_dead": KEEP_FOREVER, "dedupe_for": FOREVER}
        late = await put(store, run_at=UNTIL_WOKEN - 1, dedupe_key="a", **fields)
        put_off = await put(store, delay=long, dedupe_key="b", **{**fields, "dedupe_for": long})
        await reads(store, late, put_off)

    # -- what was changed after it was prepared -----------------------------------------------

    async def test_a_job_that_cannot_be_kept_is_refused_wherever_it_comes_from(self, store: Store) -> None:
        """One such row would break listings, or the claims of workers, for all others."""
        held, key = await running(store), Key("things", "", "a")
        routes: list[Callable[[NewJob], Awaitable[object]]] = [
            lambda bad: store.insert([new_job(), bad]),
            lambda bad: store.ack([Outcome(held.id, held.token, Move.DONE, follow_ups=(new_job(), bad))]),
            lambda bad: store.save([Save(held.id, held.token, (Step("a", 1),), (bad,))]),
            lambda bad: store.write([Bundle((Write(key, "{}"),), (bad,))]),
        ]
        for fields in CHANGED:
            for route in routes:
                with pytest.raises(ConfigurationError, match="cannot be kept"):
                    await route(replace(new_job(), **fields))
        await reads(store, held.id)
        assert (await store.steps(held.id), await store.documents([key])) == ([], [])
        assert await status_of(store, held.id) is Status.RUNNING

    # -- reading ------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "payload",
        [f'{{"n": {"1" * LONG}}}', f'{{"n": {"[" * LONG}1{"]" * LONG}}}', "nonsense", '{"n": NaN}'],
        ids=["digits", "depth", "no JSON", "NaN"],
    )
    async def test_a_payload_that_cannot_be_read_hides_nothing(self, store: Store, payload: str) -> None:
        """As an older version, or a program of one's own, may have written it."""
        odd, fine = await put(store, payload=payload), await put(store, payload='{"n": 1}')
        await reads(store, odd, fine)
        assert [job.id for job in (await store.find(Filter(payload={"n": 1}))).jobs] == [fine]
        (job,) = await store.get([odd])
        may_be_read = "NaN" in payload or "[[" in payload  # how deep Python reads JSON depends on its version
        assert job.payload == payload or may_be_read

    @pytest.mark.parametrize("moment", [10**15, -(10**15), 2**62], ids=["late", "early", "very late"])
    async def test_a_time_that_cannot_be_shown_hides_nothing(self, store: Store, moment: int) -> None:
        odd, fine = await put(store), await put(store)
        records = (await store.dump(Kind.LIVE)).records
        (record,) = [exported for exported in records if exported["id"] == odd]
        other = new_job().id
        await store.load(Kind.LIVE, [{**record, "key": other, "id": other, "run_at": moment, "created_at": moment}])
        await reads(store, odd, fine, other)

    async def test_a_page_of_no_possible_size_is_refused(self, store: Store) -> None:
        await put(store)
        for limit in (0, -1, True, 2**31):
            with pytest.raises(ConfigurationError, match=r"limit is .*; give a whole number from 1 to 2,147,483,647"):
                await store.find(Filter(), limit=limit)
            with pytest.raises(ConfigurationError, match=r"cap is .*; give a whole number from 1 to 2,147,483,647"):
                await store.count_up_to(Filter(), limit)

    @pytest.mark.parametrize("cursor", ["", "x", "'; DROP TABLE jobs", "0" * 36, "\0", "\ud800"])
    async def test_an_invalid_cursor_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(InvalidCursor, match="not a cursor"):
            await store.find(Filter(), cursor=cursor)
