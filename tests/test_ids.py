from __future__ import annotations

import os
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from mainspring import ids
from mainspring.ids import new_id


def milliseconds(job_id: str) -> int:
    return uuid.UUID(job_id).int >> 80


def test_an_id_is_a_uuid_of_version_7() -> None:
    job_id = new_id()
    parsed = uuid.UUID(job_id)
    assert str(parsed) == job_id
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)


def test_an_id_tells_when_it_was_made() -> None:
    before = time.time_ns() // 1_000_000
    made = milliseconds(new_id())
    assert before <= made <= time.time_ns() // 1_000_000 + 1


def test_ids_sort_in_the_order_they_were_made() -> None:
    made = [new_id() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_still_sort_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_id()
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000)
    assert before < new_id() < new_id()


def test_ids_made_within_one_tick_of_the_clock_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns() + 1_000_000_000
    monkeypatch.setattr(ids, "_last", 0)
    monkeypatch.setattr(time, "time_ns", lambda: now)
    made = [new_id() for _ in range(5000)]
    assert made == sorted(set(made))


def test_ids_of_several_threads_are_unique() -> None:
    start = threading.Barrier(4)

    def make(_: int) -> list[str]:
        start.wait()
        return [new_id() for _ in range(2000)]

    with ThreadPoolExecutor(4) as threads:
        made = [job_id for each in threads.map(make, range(4)) for job_id in each]
    assert len(set(made)) == len(made)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_makes_ids_of_its_own() -> None:
    receiver, sender = os.pipe()
    if (child := os.fork()) == 0:
        os.write(sender, new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs, ours = os.read(receiver, 100).decode(), new_id()
    os.close(receiver)
    os.close(sender)
    assert theirs.rpartition("-")[2] != ours.rpartition("-")[2]
