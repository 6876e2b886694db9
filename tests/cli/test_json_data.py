from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone

from mainspring.errors import Failure
from mainspring.job import Counts, Job, Priority, Status
from mainspring.json_data import plain
from mainspring.stores.protocol import Filter, Stats, WorkerInfo
from tests.cli.conftest import Shop


def test_times_are_iso_8601_in_utc() -> None:
    moment = datetime(2026, 5, 1, 9, 30, 0, 123_456, tzinfo=timezone(timedelta(hours=2)))
    assert plain(moment) == "2026-05-01T07:30:00.123Z"


def test_a_job_has_all_its_fields(shop: Shop) -> None:
    job_id = shop.enqueue(target=("guest", "g7"), tags=["vip"], priority="high")
    data = plain(shop.app.run(shop.app.jobs.get(job_id)))
    derived = {"start_by", "timeout_at", "after", "revision", "replay_of"}
    assert set(data) == {field.name for field in fields(Job)} | derived
    assert [data[name] for name in ("start_by", "timeout_at", "after", "replay_of")] == [None] * 4
    assert (data["priority"], data["status"], data["target"], data["tags"]) == (
        "high", "pending", {"type": "guest", "id": "g7"}, ["vip"],
    )  # fmt: skip


def test_whatever_else_comes_along() -> None:
    assert plain(Priority.LOW) == "low"
    assert plain([Status.RETRYING, {Status.RETRYING: (1, None)}]) == ["retrying", {"retrying": [1, None]}]
    told = {"type": "E", "message": "m", "traceback": "", "fingerprint": "f", "place": "shop.py in send", "code": None}
    assert plain(Failure("E", "m", "", "f", "shop.py in send")) == told
    assert plain(timedelta(minutes=1)) == 60
    assert plain(Filter(ids=("a",)))["ids"] == ["a"]


def test_stats_have_a_row_per_queue_with_every_status() -> None:
    oldest = datetime(2026, 5, 1, tzinfo=UTC)
    counts = Counts("mail", {Status.PENDING: 3})
    workers = [WorkerInfo("w1", "h", 1, ("*",), stuck=3), WorkerInfo("w2", "h", 2, ("*",), stuck=4, alive=False)]
    stats = Stats(
        queues=[counts], due={"mail": 2}, oldest_due={"mail": oldest}, workers=workers, halts=[],
        oldest_dead={"mail": oldest}, stalled=5,
    )  # fmt: skip
    data = plain(stats)
    assert (data["stalled"], data["stuck"]) == (5, 3)
    assert data["queues"] == [
        {
            "queue": "mail", "pending": 3, "running": 0, "retrying": 0, "suspended": 0, "completed": 0,
            "dead_letter": 0, "cancelled": 0, "due": 2, "oldest_due": "2026-05-01T00:00:00.000Z",
            "oldest_dead": "2026-05-01T00:00:00.000Z",
        }
    ]  # fmt: skip
