from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.cli import bench
from mainspring.errors import StoreFull
from mainspring.worker import Worker
from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SINGLES", 5)
    monkeypatch.setattr(bench, "STARTS", 5)
    monkeypatch.setattr(bench, "JOBS_PER_CALL", 10)


def test_it_measures_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    outcome = run("bench", "--jobs", "25", "--directory", str(tmp_path))
    assert outcome.code == 0
    assert [line.split()[0] for line in outcome.out.splitlines()] == [
        "MEASURE",
        "enqueue,",
        "enqueue,",
        "run",
        "start,",
        "start,",
    ]
    assert "make bench" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_json_output_has_the_measures(run: Run) -> None:
    data = run("bench", "--jobs", "25", "--json").data
    assert data["jobs"] == 25
    assert min(data[name] for name in ("enqueue_single", "enqueue_bulk", "run", "start_p50", "start_p99")) > 0


@pytest.mark.parametrize(("jobs", "reached"), [(25, [10, 20, 25]), (20, [10, 20]), (3, [3])])
def test_the_steps_reach_every_job(jobs: int, reached: list[int]) -> None:
    assert list(bench.steps(jobs)) == reached


def test_bad_values_are_usage_errors(run: Run) -> None:
    assert run("bench", "--jobs", "0").code == 2
    outcome = run("bench", "--directory", "/nowhere/at/all", "--jobs", "1")
    assert (outcome.code, "there is no directory /nowhere/at/all" in outcome.err) == (2, True)


def test_a_worker_that_fails_ends_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_worker: Worker) -> None:
        msg = "no room left"
        raise StoreFull(msg)

    monkeypatch.setattr(Worker, "serve", fail)
    outcome = run("bench", "--jobs", "25")
    assert (outcome.code, outcome.err) == (4, "mainspring: no room left\n")
