"""Caps on the values of labels."""

from __future__ import annotations

from mainspring.metrics.labels import MAX_PLACES, MAX_QUEUES, MAX_TASKS, OTHER, capped_places


def test_pairs_of_queue_and_task_are_shown_as_they_are() -> None:
    assert capped_places({("mail", "greet"): 2, ("sms", "greet"): 1}) == {("mail", "greet"): 2, ("sms", "greet"): 1}
    assert capped_places({}) == {}


def test_the_queues_and_tasks_beyond_the_cap_share_a_name() -> None:
    queues = capped_places({(f"queue{number:04}", "greet"): 1 for number in range(MAX_QUEUES + 5)})
    assert len(queues) == MAX_QUEUES + 1
    assert queues[OTHER, "greet"] == 5
    tasks = capped_places({("mail", f"task{number:04}"): 1 for number in range(MAX_TASKS + 5)})
    assert len(tasks) == MAX_TASKS + 1
    assert tasks["mail", OTHER] == 5


def test_no_more_pairs_are_shown_than_the_cap() -> None:
    pairs = {(f"queue{queue:03}", f"task{task:03}"): 1 for queue in range(50) for task in range(50)}
    shown = capped_places(pairs)
    assert len(shown) == MAX_PLACES + 1
    assert sum(shown.values()) == 2500
