from __future__ import annotations

from xml.etree import ElementTree as ET

from bench import plot
from bench.soak import verdict
from bench.soak.load import Events
from bench.soak.samples import Sample, early_and_late


def samples(*megabytes: float, files: int = 20, minutes: float = 10) -> list[Sample]:
    step = minutes * 60 / len(megabytes)
    return [Sample((i + 1) * step, value, files, 4) for i, value in enumerate(megabytes)]


def test_the_first_tenth_is_not_compared() -> None:
    assert early_and_late([1.0, *[50.0] * 18, 60.0]) == (50.0, 55.0)


def test_a_job_that_did_not_complete_is_named() -> None:
    assert list(verdict.jobs({"a", "b"}, {"a"}, ["a"])) == ["job b was acknowledged but did not complete"]


def test_a_job_that_the_store_completed_without_its_handler_is_named() -> None:
    assert list(verdict.jobs({"a"}, {"a"}, [])) == ["job a is completed in the store, but its handler never ended"]


def test_a_job_that_ended_twice_is_named() -> None:
    assert list(verdict.jobs({"a"}, {"a"}, ["a", "a"])) == ["job a ended twice although no process died"]


def test_growing_memory_is_a_problem_and_steady_memory_is_not() -> None:
    growing = samples(*(50.0 + 5 * i for i in range(20)))
    assert list(verdict.processes({"service": growing, "worker": samples(*[70.0] * 20)})) == [
        "service: memory grew from 62 to 142 MB"
    ]


def test_open_files_that_grow_are_a_problem() -> None:
    taken = [Sample(i * 60.0, 50.0, 20 + i, 4) for i in range(1, 21)]
    assert list(verdict.processes({"service": taken})) == ["service: open files grew from 24 to 40"]


def test_growth_is_not_judged_in_a_short_run() -> None:
    assert not list(verdict.processes({"service": samples(50.0, 60.0, 70.0, 80.0, minutes=1)}))


def test_events_that_are_missing_doubled_or_out_of_order_are_problems() -> None:
    events = Events()
    events.seen.update(
        {
            "good": ["created", "retrying", "completed"],
            "late": ["completed", "created"],
            "twice": ["created", "completed", "completed"],
        }
    )
    assert list(events.problems({"good", "late", "twice", "lost"})) == [
        "the events of job late are completed, created",
        "the events of job lost are missing",
        "the events of job twice are created, completed, completed",
    ]


def test_many_problems_are_shortened() -> None:
    shown = verdict.first_of(f"problem {i}" for i in range(8))
    assert shown[-2:] == ["problem 4", "… and 3 more like this"]


def test_the_drawing_has_a_line_for_each_process() -> None:
    drawn = plot.lines("Memory", {"service": [(0, 1.0), (60, 2.0)], "worker": [(0, 1.0), (60, 1.0)]})
    tree = ET.fromstring(drawn)  # noqa: S314 - it was drawn here
    assert len(tree.findall(".//{http://www.w3.org/2000/svg}polyline")) == 2
