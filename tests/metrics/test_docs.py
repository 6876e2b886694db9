"""docs/service-metrics.md lists the metrics as they are. After a change: `python -m tests.metrics.test_docs`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mainspring.metrics.catalog import CLUSTER, PROCESS, Metric

PAGE = Path(__file__).parents[2] / "docs" / "service-metrics.md"
TABLES = {"process": PROCESS, "cluster": CLUSTER}
BLOCK = r"<!-- {name} -->\n.*?<!-- end -->"


def table(name: str) -> str:
    rows = [row(metric) for metric in TABLES[name]]
    return "\n".join(
        [f"<!-- {name} -->", "| metric | type | labels | meaning |", "|---|---|---|---|", *rows, "<!-- end -->"]
    )


def row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


@pytest.mark.parametrize("name", TABLES)
def test_every_metric_is_documented_as_it_is(name: str) -> None:
    assert table(name) in PAGE.read_text("utf-8"), "run `python -m tests.metrics.test_docs`"


def test_the_page_names_no_metric_that_does_not_exist() -> None:
    known = {metric.name for metric in (*PROCESS, *CLUSTER)}
    named = set(re.findall(r"\bmainspring_[a-z_]+", PAGE.read_text("utf-8")))
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in named} <= known


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    for each in TABLES:
        text = re.sub(BLOCK.format(name=each), table(each).replace("\\", r"\\"), text, flags=re.DOTALL)
    PAGE.write_text(text, "utf-8")
