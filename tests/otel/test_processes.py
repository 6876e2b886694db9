"""One trace across processes: one enqueues, workers run, child processes call handlers, and workers are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring.trace import EXAMPLE
from tests.cli.waiting import wait_until

pytestmark = pytest.mark.slow  # real processes

TRACED = """
import json, os, time
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult

from mainspring import Mainspring
from mainspring.otel import instrument


class Lines(SpanExporter):
    def export(self, spans):
        with Path("spans.jsonl").open("a") as file:
            for span in spans:
                own = span.get_span_context()
                file.write(json.dumps({
                    "name": span.name, "trace": own.trace_id, "id": own.span_id, "pid": os.getpid(),
                    "parent": None if span.parent is None else span.parent.span_id, **span.attributes,
                }) + "\\n")
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Lines(), schedule_delay_millis=50))
trace.set_tracer_provider(provider)
app = Mainspring("sqlite:///jobs.db")
instrument(app)


@app.task()
async def work() -> int:
    return os.getpid()


@app.task(isolation="process")
def apart() -> int:
    with trace.get_tracer("user").start_as_current_span("inside"):
        work.enqueue_sync()
    return os.getpid()


@app.task(isolation="process", max_attempts=1)
async def dies() -> None:
    os._exit(7)


@app.task()
def hang() -> None:
    with Path("began").open("a") as file:
        file.write("x")
    while not Path("released").exists():
        time.sleep(0.01)
"""


class Traced:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.started: list[subprocess.Popen[bytes]] = []
        (path / "traced.py").write_text(TRACED)

    def enqueue(self, task: str) -> None:
        program = f"import traced; traced.{task}.using(trace={{'traceparent': {EXAMPLE!r}}}).enqueue_sync()"
        subprocess.run([sys.executable, "-c", program], cwd=self.path, check=True)

    def work(self) -> subprocess.Popen[bytes]:
        with (self.path / "log").open("ab") as log:
            command = [sys.executable, "-m", "mainspring", "worker", "traced:app"]
            self.started.append(subprocess.Popen(command, cwd=self.path, stderr=log))
        return self.started[-1]

    def spans(self, name: str = "") -> list[dict[str, Any]]:
        file = self.path / "spans.jsonl"
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [span for span in found if not name or span["name"] == name]

    def wait_for(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        shown = self.path / "log"
        wait_until(lambda: len(self.spans(name)) >= count, lambda: f"{name}: {self.spans()} {shown.read_text()}")
        return self.spans(name)

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    traced = Traced(tmp_path)
    yield traced
    traced.end()


def test_an_enqueue_and_its_run_in_another_process_are_one_trace(traced: Traced) -> None:
    traced.enqueue("work")
    worker = traced.work()
    (ran,), (sent,) = traced.wait_for("process work"), traced.spans("send default")
    assert ran["trace"] == sent["trace"] == int(EXAMPLE.split("-")[1], 16)
    assert (sent["parent"], ran["parent"]) == (int(EXAMPLE.split("-")[2], 16), sent["id"])
    assert ran["pid"] == worker.pid != sent["pid"]


def test_spans_of_a_child_process_belong_to_the_span_of_its_run(traced: Traced) -> None:
    traced.enqueue("apart")
    worker = traced.work()
    (ran,), (inside,) = traced.wait_for("process apart"), traced.wait_for("inside")
    (leaf,) = traced.wait_for("process work")
    (sent,) = [span for span in traced.spans("send default") if span["id"] == leaf["parent"]]
    assert (ran["pid"], inside["parent"], sent["parent"]) == (worker.pid, ran["id"], inside["id"])
    assert inside["pid"] == sent["pid"] not in {worker.pid, os.getpid()}


def test_a_child_process_that_dies_leaves_a_span(traced: Traced) -> None:
    traced.enqueue("dies")
    traced.work()
    ran = traced.wait_for("process dies")[0]
    assert (ran["mainspring.outcome"], ran["error.type"]) == ("crash", "WorkerCrashed")


def test_a_worker_that_is_killed_leaves_a_span_by_the_worker_that_takes_over(traced: Traced) -> None:
    traced.enqueue("hang")
    first = traced.work()
    began = traced.path / "began"
    wait_until(lambda: began.exists() and began.read_text() == "x", lambda: "the job begins")
    first.kill()
    first.wait()
    second = traced.work()
    wait_until(lambda: began.read_text() == "xx", lambda: "the job begins again")
    (traced.path / "released").touch()
    spans = traced.wait_for("process hang", 2)
    again, lost = sorted(spans, key=lambda span: "mainspring.taken_over" in span)  # either may be exported first
    (sent,) = traced.spans("send default")
    assert [(span["parent"], span["trace"], span["pid"]) for span in (lost, again)] == [
        (sent["id"], sent["trace"], second.pid)
    ] * 2
    assert (lost["mainspring.outcome"], lost["mainspring.taken_over"]) == ("crash", True)
    assert lost["mainspring.worker"] != again["mainspring.worker"]
    assert (again["mainspring.outcome"], again["mainspring.crashes"]) == ("completed", 1)


PLAIN = """
import os
from opentelemetry import trace
from mainspring import Mainspring

app = Mainspring("sqlite:///jobs.db")


@app.task(isolation="process", queue="apart")
def apart() -> None:
    with trace.get_tracer("user").start_as_current_span("inside"):
        pass
"""


def test_a_setting_turns_traces_on_without_code(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    program = f"import plain; plain.apart.using(trace={{'traceparent': {EXAMPLE!r}}}).enqueue_sync()"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    environment = {**os.environ, "MAINSPRING_OTEL": "true", "OTEL_TRACES_EXPORTER": "console"}
    command = [sys.executable, "-m", "mainspring", "worker", "plain:app", "--log-completions"]
    out = tmp_path / "out"
    with (
        out.open("wb") as file,
        subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=file, stderr=file) as worker,
    ):
        wait_until(lambda: "job_completed" in out.read_text(), out.read_text)
        wait_until(lambda: '"name": "inside"' in out.read_text(), out.read_text)
        worker.terminate()
        assert worker.wait(30) == 0
    assert '"name": "process apart"' in out.read_text()
    assert out.read_text().count(f'"trace_id": "0x{EXAMPLE[3:35]}"') >= 2
