from __future__ import annotations

import pytest

from bench.field import FIELDS
from bench.goal import Goal
from bench.result import Results
from tests.bench.results import case_of, record, results_of

POSTGRES = FIELDS["postgres"]


def goal(title: str) -> Goal:
    return next(goal for goal in POSTGRES.goals if goal.title.startswith(title))


@pytest.mark.parametrize("name", FIELDS)
def test_a_run_of_everything_decides_every_goal(name: str) -> None:
    results = results_of(name)
    assert all(goal.reached(results) is not None for goal in FIELDS[name].goals)


@pytest.mark.parametrize("name", FIELDS)
def test_a_run_of_nothing_decides_none(name: str) -> None:
    results = Results("2026-01-02", "python -m bench", quick=False, machine={})
    assert all(goal.reached(results) is None for goal in FIELDS[name].goals)


def test_the_worst_statistics_count() -> None:
    results = results_of("postgres")
    wanted = goal("drain beside 1 M waiting")
    assert wanted.reached(results) is True
    results.rounds["drain-1m-waiting-stale"].clear()
    assert wanted.reached(results) is None  # a part of it is no answer
    record(results, case_of(POSTGRES, "drain-1m-waiting-stale"), "mainspring", share=0.8)
    assert wanted.reached(results) is False
    assert wanted.got(results) == "80 %"


def test_goals_compare_with_the_fastest_peer_of_each_round_and_not_with_the_floor() -> None:
    results = results_of("postgres")
    wanted = goal("bulk enqueue")
    assert wanted.figure(results) == 2
    bulk = results.rounds["enqueue-bulk"]
    bulk["floor"] = [{"rate": 1e9}] * 3
    assert wanted.figure(results) == 2
    bulk["pg_boss"] = [{"rate": 180_000.0}] * 3
    assert wanted.figure(results) == 0.5
    assert wanted.reached(results) is False


def test_two_processes_must_be_faster_than_one_not_as_fast() -> None:
    assert goal("drain, two processes").reached(results_of("postgres")) is False
