"""The dashboard and the alert rules name metrics that exist, and Prometheus can evaluate them on a real scrape."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from mainspring.metrics import Metrics
from mainspring.metrics.catalog import CLUSTER, PROCESS
from mainspring.testing import ManualClock
from tests.metrics.story import NOON, make_app, tell
from tests.metrics.test_metrics import DOES_NOT_HAPPEN, OF_SOME_STORES, Page
from tests.programs import PROMETHEUS, PROMTOOL, Program, find
from tests.service.serving import Client, serving

PLACE = Path(str(files("mainspring"))) / "metrics"
METRIC = r"\bmainspring_[a-z_]+"
OF_CLUSTER = {metric.name for metric in CLUSTER}
MAY_BE_EMPTY = OF_SOME_STORES | DOES_NOT_HAPPEN
"""The story makes no sample of them: only PostgreSQL and DynamoDB have the first, the others do not happen in it."""

SOON = 60.0  # seconds; only a failing test waits this long


def panels() -> Iterator[dict[str, Any]]:
    yield from json.loads((PLACE / "grafana.json").read_text("utf-8"))["panels"]


def on_dashboard() -> list[str]:
    return [
        target["expr"].replace("$__rate_interval", "1m") for panel in panels() for target in panel.get("targets", ())
    ]


def in_alerts() -> list[str]:
    groups = yaml.safe_load((PLACE / "alerts.yml").read_text("utf-8"))["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


EXPRESSIONS = [*on_dashboard(), *in_alerts()]


def base(name: str) -> str:
    return re.sub("_(bucket|count|sum)$", "", name)


@asynccontextmanager
async def scraped() -> AsyncIterator[tuple[Client, Page]]:
    """A service after the story, and both of its pages."""
    clock = ManualClock(NOON)
    app = make_app(clock)
    async with app, serving(app) as client:
        await tell(app, clock)
        await client.get("/v1/queues")
        texts = [(await client.get(path)).text for path in ("/metrics", "/metrics/cluster")]
        yield client, Page("".join(texts).encode())


async def test_every_expression_names_only_metrics_of_a_scrape() -> None:
    async with scraped() as (_, page):
        names = {name for expression in EXPRESSIONS for name in re.findall(METRIC, expression)}
        scraped_names = {name for name, _ in page.samples}
    assert {name for name in names if base(name) not in MAY_BE_EMPTY} <= scraped_names
    assert {base(name) for name in names} <= {metric.name for metric in (*PROCESS, *CLUSTER)}


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {base(name) for expression in on_dashboard() for name in re.findall(METRIC, expression)}
    assert {metric.name for metric in (*PROCESS, *CLUSTER)} == shown


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_numbers_of_the_cluster_are_not_added_up_over_processes(expression: str) -> None:
    for found in re.finditer(METRIC, expression):
        if base(found[0]) in OF_CLUSTER:
            before = expression[: found.start()]
            assert re.search(r"(max( by \([a-z, ]+\))? ?\((rate\()?|absent\()$", before), expression


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_labels_of_expressions_are_those_of_the_metric(expression: str) -> None:
    known = {metric.name: {*metric.labels, "le"} for metric in (*PROCESS, *CLUSTER)}
    for name, matchers in re.findall(rf"({METRIC})\{{([^}}]*)\}}", expression):
        assert set(re.findall(r"(\w+)=", matchers)) <= known[base(name)]


def test_panels_have_titles_units_and_places_of_their_own() -> None:
    places: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & places, panel["title"]
        places |= cells
        assert panel["title"]
        assert panel["type"] == "row" or panel["fieldConfig"]["defaults"]["unit"]
    assert len({panel["id"] for panel in panels()}) == len(list(panels()))


# -- with Prometheus' own tools ------------------------------------------------------------------------


def tool(program: Program) -> str:
    found = find(program)
    if found is None:
        pytest.skip(program.missing)
    return found


@pytest.mark.slow
async def test_promtool_has_no_complaints_about_the_pages() -> None:
    promtool = tool(PROMTOOL)
    clock = ManualClock(NOON)
    app = make_app(clock)
    metrics = Metrics.of(app)
    async with app:
        await tell(app, clock)
        for text in (await metrics.of_process(), await metrics.of_cluster()):
            done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
            assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_promtool_understands_the_alert_rules() -> None:
    done = subprocess.run(
        [tool(PROMTOOL), "check", "rules", str(PLACE / "alerts.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@asynccontextmanager
async def prometheus(target: str, folder: Path) -> AsyncIterator[str]:
    """A real Prometheus that scrapes both pages of a service every second; yields its URL."""
    program, jobs = tool(PROMETHEUS), []
    for name, path in (("mainspring", "/metrics"), ("mainspring-cluster", "/metrics/cluster")):
        jobs.append({"job_name": name, "metrics_path": path, "static_configs": [{"targets": [target]}]})
    settings = {"global": {"scrape_interval": "1s"}, "rule_files": [str(PLACE / "alerts.yml")], "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    address = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}", stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://{address}"
    finally:
        process.kill()
        await process.wait()


async def evaluated(url: str, expression: str) -> list[Any] | None:
    """Return the result of an expression; None if Prometheus does not answer yet."""
    process = await asyncio.create_subprocess_exec(
        tool(PROMTOOL), "query", "instant", "--format=json", url, expression,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, said = await process.communicate()
    if process.returncode:
        assert b"connection refused" in said or b"Service Unavailable" in said, (expression, said)
        return None
    found: list[Any] = json.loads(out) or []
    return found


@pytest.mark.slow
async def test_prometheus_evaluates_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    tool(PROMTOOL)
    async with scraped() as (client, _), prometheus(client.url.removeprefix("http://"), tmp_path) as url:
        async with asyncio.timeout(SOON):
            while not await evaluated(url, "min(count_over_time(mainspring_halted[1m])) >= 3"):  # noqa: ASYNC110 - what is waited for happens in another process
                await asyncio.sleep(0.2)
        empty = [expression for expression in on_dashboard() if not await evaluated(url, expression)]
        for expression in in_alerts():
            assert await evaluated(url, expression) is not None
    assert [each for each in empty if not {base(name) for name in re.findall(METRIC, each)} & MAY_BE_EMPTY] == []
