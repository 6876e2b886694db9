"""A long run writes the report of a failed test as soon as it has failed: the rest of the run may take an hour."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest

LONG = os.environ.get("MAINSPRING_CHAOS") == "long"
FOLDER = Path(os.environ.get("MAINSPRING_CHAOS_REPORTS") or Path(__file__).parents[2] / ".cache" / "chaos")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if LONG and report.failed:
        path = keep(report, item)
        reporter = item.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"{item.nodeid} failed: {path}", red=True)
    return report


def keep(report: pytest.TestReport, item: pytest.Item) -> Path:
    """Of setup, call and teardown each has a file of its own."""
    now = datetime.now(UTC)
    name = re.sub(r"[^\w.\[\]-]+", "-", item.nodeid.rpartition("/")[2])[:150]
    path = FOLDER / f"{now:%Y-%m-%dT%H%M%S}-{name}-{report.when}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(said(report, item, now)), "utf-8", "backslashreplace")
    return path


def said(report: pytest.TestReport, item: pytest.Item, now: datetime) -> Generator[str]:
    yield f"{item.nodeid}, {report.when}: failed after {report.duration:.1f} s, at {now:%Y-%m-%d %H:%M:%S} UTC"
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    yield f"its files, as long as pytest keeps them: {folder}" if folder else ""
    yield report.longreprtext
    for title, content in report.sections:
        yield f"\n--- {title} ---\n{content}"
