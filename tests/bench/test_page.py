from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench import page
from bench.field import FIELDS
from tests.bench.results import results_of


def written(docs: Path) -> str:
    return (docs / "benchmarks.md").read_text("utf-8")


def section(text: str, name: str) -> str:
    found = re.search(rf"<!-- field {name} -->.*<!-- end of field {name} -->", text, re.DOTALL)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("name", FIELDS)
def test_a_section_says_how_it_was_measured(name: str, tmp_path: Path) -> None:
    page.write({name: results_of(name)}, tmp_path)
    text = section(written(tmp_path), name)
    assert f"python -m bench --field {name}" in text
    assert "2026-01-02" in text
    assert "2 cores" in text
    assert "mainspring==1.0" in text
    assert "batches of 100, the fastest of batches of 10 (900/s), batches of 100 (9,000/s)" in text
    assert "not measured" not in text


@pytest.mark.parametrize("name", FIELDS)
def test_every_goal_is_shown_with_what_became_of_it(name: str, tmp_path: Path) -> None:
    page.write({name: results_of(name)}, tmp_path)
    text = section(written(tmp_path), name)
    for goal in FIELDS[name].goals:
        assert re.search(rf"\| {re.escape(goal.title)} \|.*(reached|not reached) \|", text)


def test_a_store_that_was_not_measured_keeps_its_section(tmp_path: Path) -> None:
    page.write({"sqlite": results_of("sqlite")}, tmp_path)
    before = written(tmp_path)
    assert "Not measured yet" in section(before, "postgres")
    page.write({"postgres": results_of("postgres")}, tmp_path)
    after = written(tmp_path)
    assert section(after, "sqlite") == section(before, "sqlite")
    assert "Not measured yet" not in section(after, "postgres")
    assert "Not measured yet" in section(after, "occasions")
    assert "`fsync` on" in section(after, "postgres")


def test_the_page_is_the_same_however_often_it_is_written(tmp_path: Path) -> None:
    measured = {name: results_of(name) for name in FIELDS}
    page.write(measured, tmp_path)
    first = written(tmp_path)
    page.write({}, tmp_path)
    assert written(tmp_path) == first


def test_the_planners_statistics_are_side_by_side(tmp_path: Path) -> None:
    page.write({"postgres": results_of("postgres")}, tmp_path)
    text = section(written(tmp_path), "postgres")
    assert "| nothing else | 200 k due | 1 M waiting | 1 M finished |" in text
    for statistics in ("fresh", "stale", "absent"):
        assert re.search(rf"\| Mainspring, {statistics} \| 30 k .*29 k .*\[97 %\] .*\[100 %\] .*\[100 %\] \|", text)


def test_a_missing_peer_is_named_with_the_reason(tmp_path: Path) -> None:
    results = results_of("postgres")
    results.absent["graphile-worker"] = "Node is not installed here"
    results.leave_out("enqueue-bulk", "pg_boss", "no bulk enqueue")
    results.leave_out(
        "latency", "pgqueuer", "failed: Traceback (most recent call last):\n  File x\nValueError: no such key"
    )
    results.exclude("floor", "failed: a port was taken")
    page.write({"postgres": results}, tmp_path)
    text = section(written(tmp_path), "postgres")
    assert "- graphile-worker took no part: Node is not installed here" in text
    assert "- Pg_Boss, enqueue-bulk: no bulk enqueue" in text
    assert "- Pgqueuer, latency: ValueError: no such key" in text
    assert "- Floor took no part: failed: a port was taken" in text
    assert "| Floor |" not in text


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.stocks])
def test_the_drawings_show_every_peer_and_every_stock(name: str, tmp_path: Path) -> None:
    page.write({name: results_of(name)}, tmp_path)
    rates, backlog = (
        "".join(ET.parse(tmp_path / "benchmarks" / f"{name}-{drawing}.svg").getroot().itertext())  # noqa: S314 - ours
        for drawing in ("rates", "backlog")
    )
    assert all(title in rates for title in ("Mainspring", "Floor"))
    assert all(stock.title in backlog for stock in FIELDS[name].stocks)


def test_occasions_have_a_section_without_drawings(tmp_path: Path) -> None:
    page.write({"occasions": results_of("occasions")}, tmp_path)
    text = section(written(tmp_path), "occasions")
    assert "| occasions fired, of 50 k people at one instant | ≥ 10,000/s | 11,000/s | reached |" in text
    assert "| people imported from a CSV file | ≥ 15,000/s | 16,000/s | reached |" in text
    assert "svg" not in text
    assert "beside other jobs" not in text
