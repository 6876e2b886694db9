from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from mainspring import Mainspring
from mainspring.testing import Kit, assert_enqueued, manual, refute_enqueued

app = Mainspring("memory://")


class Guest(BaseModel):
    name: str
    born: date


@app.task(queue="mail")
async def welcome(guest: Guest, template: str = "plain") -> None: ...


@app.task()
async def inspect(room: int) -> None: ...


ANA = Guest(name="ana", born=date(1990, 5, 1))
NOON = datetime(2030, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def kit() -> Iterator[Kit]:
    with manual(app, start=NOON) as kit:
        welcome.using(
            priority="high", delay=3600, dedupe_key="welcome:ana", tags=["vip", "new"], target=("guest", "ana")
        ).enqueue_sync(guest=ANA, template="long")
        yield kit


FITTING: list[dict[str, Any]] = [
    {},
    {"task": welcome},
    {"task": "welcome"},
    {"queue": "mail"},
    {"args": {"template": "long"}},
    {"args": {"guest": ANA}},
    {"args": {"guest": {"born": date(1990, 5, 1)}}},
    {"args": {}},
    {"priority": "high"},
    {"run_at": NOON + timedelta(hours=1)},
    {"run_at": NOON + timedelta(minutes=59), "tolerance": 60},
    {"dedupe_key": "welcome:ana"},
    {"tags": ["vip"]},
    {"target": ("guest", "ana")},
]
UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"task": inspect}, "another task"),
    ({"task": "unheard of"}, "another task"),
    ({"queue": "default"}, "queue is 'mail'"),
    ({"args": {"template": "short"}}, "template is 'long'"),
    ({"args": {"guest": {"name": "bob"}}}, r"guest\.name is 'ana'"),
    ({"args": {"gest": "ana"}}, "gest is missing"),
    ({"args": ANA}, "name is missing, born is missing"),
    ({"priority": "low"}, "priority is 'high'"),
    ({"run_at": NOON}, r"run_at is 2030-06-01 13:00:00"),
    ({"dedupe_key": "welcome:bob"}, "dedupe_key is 'welcome:ana'"),
    ({"tags": ["vip", "old"]}, r"tags are \['vip', 'new'\]"),
    ({"target": ("guest", "bob")}, r"target is \('guest', 'ana'\)"),
]


@pytest.mark.parametrize("like", FITTING, ids=str)
def test_a_job_that_fits_is_found_and_cannot_be_refuted(kit: Kit, like: dict[str, Any]) -> None:
    (job,) = assert_enqueued(kit, **like)
    assert job.task == "welcome"
    with pytest.raises(AssertionError, match="1 job was enqueued like"):
        refute_enqueued(kit, **like)


@pytest.mark.parametrize(("like", "difference"), UNFIT, ids=str)
def test_a_job_that_does_not_fit_is_refuted_and_its_difference_said(
    kit: Kit, like: dict[str, Any], difference: str
) -> None:
    refute_enqueued(kit, **like)
    with pytest.raises(AssertionError, match=f": {difference}"):
        assert_enqueued(kit, **like)


def test_the_failure_reads_well(kit: Kit) -> None:
    inspect.enqueue_sync(room=7)
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(kit, inspect, args={"room": 8}, queue="rooms", tags=["x"], run_at=NOON)
    assert str(caught.value) == (
        "no job was enqueued like inspect(room=8) queue='rooms' run_at=2030-06-01 12:00:00+00:00 tags=['x']\n"
        "enqueued:\n"
        "  inspect(room=7) queue='default' priority='normal' run_at=2030-06-01T12:00:00+00:00:"
        " room is 7, queue is 'default', tags are []\n"
        "  welcome(guest={'name': 'ana', 'born': '1990-05-01'}, template='long') queue='mail' priority='high'"
        " run_at=2030-06-01T13:00:00+00:00 dedupe_key='welcome:ana' target=('guest', 'ana') tags=('vip', 'new'):"
        " another task, queue is 'mail', run_at is 2030-06-01 13:00:00+00:00, tags are ['vip', 'new']"
    )


def test_the_closest_match_is_shown_first() -> None:
    with manual(app) as kit:
        inspect.enqueue_many_sync({"room": number} for number in range(30))
        with pytest.raises(AssertionError) as caught:
            assert_enqueued(kit, args={"room": 25}, queue="rooms")
        lines = str(caught.value).splitlines()
        assert lines[2].startswith("  inspect(room=25)")
        assert lines[-1] == "  and 10 more"


def test_a_count_must_be_met_exactly(kit: Kit) -> None:
    inspect.enqueue_many_sync([{"room": 1}, {"room": 2}])
    assert len(assert_enqueued(kit, inspect, count=2)) == 2
    assert assert_enqueued(kit, inspect, args={"room": 3}, count=0) == []
    with pytest.raises(AssertionError, match=r"3 should have been enqueued like inspect\(…\), but 2 jobs were"):
        assert_enqueued(kit, inspect, count=3)
    with pytest.raises(AssertionError, match=r"0 should have been enqueued like welcome\(…\), but 1 job was"):
        assert_enqueued(kit, welcome, count=0)


def test_assert_enqueued_fails_if_nothing_was_enqueued() -> None:
    with manual(app) as kit:
        refute_enqueued(kit)
        with pytest.raises(AssertionError, match="nothing was enqueued at all"):
            assert_enqueued(kit, welcome)


async def test_a_job_that_has_run_counts_as_enqueued(kit: Kit) -> None:
    await inspect.enqueue(room=1)
    await kit.drain()
    assert_enqueued(kit, inspect)


async def test_an_application_can_be_asked_on_whichever_store_it_has(tmp_path: Path) -> None:
    own = Mainspring(f"sqlite:///{tmp_path}/jobs.db")

    @own.task()
    async def note(text: str) -> None: ...

    async with own:
        refute_enqueued(own)
        await note.enqueue(text="x")
        assert_enqueued(own, note, args={"text": "x"})
