"""Reads with a million jobs: how they are measured and shown. A small store stands in for the large one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench import page, reads, table
from bench.result import ReadResults

FIGURES = {
    "SQLite": {"jobs by due: all, ascending": 3.0, "jobs by due: a tag, ascending": 7.04, "audit log: a job": 0.4},
    "PostgreSQL": {"jobs by due: all, ascending": 120.0, "jobs by due: a tag, ascending": 5.0, "audit log: a job": 0.6},
}


def results() -> ReadResults:
    return ReadResults("2026-01-02", "python -m bench.reads --write-docs", {"processor": "2 cores"}, FIGURES)


def written(docs: Path) -> str:
    return (docs / "benchmarks.md").read_text("utf-8")


def test_every_read_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "GROUPS", 20)
    monkeypatch.setattr(reads, "BULK_CHANGES", 3)
    monkeypatch.setitem(
        reads.NUMBERS, "periods", "periods(period, length, kept) AS (VALUES (0, 60000, 5), (1, 3600000, 5))"
    )
    path = tmp_path / "jobs.db"
    asyncio.run(reads.create(f"sqlite:///{path}"))
    reads.fill_sqlite(path, waiting=2000, finished=2000)
    figures = asyncio.run(reads.measure(f"sqlite:///{path}"))
    groups = {name.partition(": ")[0] for name in figures}
    assert groups == {
        "jobs by created", "jobs by due", "jobs by finished", "jobs by duration", "jobs by attempts", "stats",
        "count up to 10,000", "completion", "audit log", "numbers", "failure groups", "bulk changes",
    }  # fmt: skip
    without_a_read = {
        "bulk changes: count to cancel, dead letters", "bulk changes: count to retry, waiting jobs that are due",
    }  # fmt: skip
    assert {name for name, figure in figures.items() if figure <= 0} == without_a_read


def test_a_line_shows_the_slowest_read_of_each_group() -> None:
    assert table.reads(results()) == [
        ["the slowest of", "SQLite, ms", "PostgreSQL, ms"],
        ["jobs by due", "7.0 (a tag, ascending)", "120.0 (all, ascending)"],
        ["audit log", "0.4 (a job)", "0.6 (a job)"],
    ]


def test_the_page_names_reads_that_miss_the_goal(tmp_path: Path) -> None:
    page.write({}, tmp_path, results())
    assert "- jobs by due: all, ascending on PostgreSQL: 120.0 ms" in written(tmp_path)
    assert "on 2026-01-02" in written(tmp_path)


def test_reads_that_are_not_measured_again_stay_on_the_page(tmp_path: Path) -> None:
    page.write({}, tmp_path)
    assert "Not measured yet: `python -m bench.reads --write-docs`" in written(tmp_path)
    page.write({}, tmp_path, results())
    before = written(tmp_path)
    page.write({}, tmp_path)
    assert written(tmp_path) == before


def test_results_are_kept(tmp_path: Path) -> None:
    results().save(tmp_path / "results" / "reads.json")
    assert ReadResults.load(tmp_path / "results" / "reads.json") == results()
