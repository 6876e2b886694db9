"""`make run` as a new user meets it: the demo as a program, curl, and the worker in shell that we ship."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring.testing.fakes import FakeEndpoint

WORKER = Path(__file__).parents[1] / "examples" / "workers" / "worker.sh"
PATIENCE = 60.0  # seconds; only a failing test waits this long
CURL = shutil.which("curl")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CURL is None, reason="curl IS NOT INSTALLED: nothing here tries `make run` as a user does"),
]


class Demo:
    """The demo on a free port, which its greeting tells, and curl."""

    def __init__(self, folder: Path) -> None:
        env = {**os.environ, "PORT": "0", "MAINSPRING_OUTGOING_ALLOW": "127.0.0.0/8"}
        env["PYTHONPATH"] = os.pathsep.join(str(Path(path).absolute()) for path in sys.path if path)
        command = [sys.executable, "-m", "mainspring.demo"]
        self.log = (folder / "demo.log").open("w+")
        self.process = subprocess.Popen(command, cwd=folder, env=env, stdout=self.log, stderr=subprocess.STDOUT)
        self.url = ""

    def start(self) -> None:
        self.url = self.wait_for(lambda: self.said().partition("Mainspring serves ")[2].partition(" ")[0])
        self.wait_for(lambda: self.curl("/health/live", check=False))

    def said(self) -> str:
        return Path(self.log.name).read_text()

    def wait_for(self, look: Any) -> Any:
        """Return what `look` returns once that is true."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if found := look():
                return found
            assert self.process.poll() is None, self.said()
            time.sleep(0.05)
        pytest.fail(f"waited in vain; the demo said: {self.said()[-3000:]}")

    def curl(self, path: str, body: dict[str, Any] | None = None, *, check: bool = True) -> Any:
        sent = [] if body is None else ["-H", "content-type: application/json", "-d", json.dumps(body)]
        done = subprocess.run([str(CURL), "-sS", *sent, f"{self.url}{path}"], check=False, capture_output=True)
        assert done.returncode == 0 or not check, done
        return json.loads(done.stdout) if done.stdout else None

    def enqueue(self, task: str, payload: dict[str, Any], **more: Any) -> str:
        answer = self.curl("/v1/jobs", {"task": task, "payload": payload, **more})
        assert answer["created"], answer
        return str(answer["id"])

    def completed(self, job_id: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            job: dict[str, Any] = self.curl(f"/v1/jobs/{job_id}")
            assert job["status"] not in {"dead_letter", "cancelled"}, job
            return job if job["status"] == "completed" else None

        found: dict[str, Any] = self.wait_for(look)
        return found


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(tmp_path)
    try:
        demo.start()
        yield demo
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(PATIENCE) == 0, demo.said()
        assert "Stopped. Nothing is lost" in demo.said()
    finally:
        demo.process.kill()
        demo.process.wait()
        demo.log.close()


def test_a_job_enqueued_by_curl_is_completed_by_the_worker_in_shell(demo: Demo, tmp_path: Path) -> None:
    handlers = tmp_path / "handlers"
    handlers.mkdir()
    (handlers / "shout").write_text("#!/bin/sh\ntr a-z A-Z\n")
    (handlers / "shout").chmod(0o755)
    job_id = demo.enqueue("shout", {"text": "hi"}, allow_unknown=True)
    worker = subprocess.Popen([str(WORKER), str(handlers)], env={**os.environ, "MAINSPRING_URL": demo.url})
    try:
        assert demo.completed(job_id)["result"] == {"TEXT": "HI"}
        worker.terminate()
        assert worker.wait(PATIENCE) == 0
    finally:
        worker.kill()
        worker.wait()


def test_the_demo_runs_jobs_of_every_queue_and_delivers_callbacks(demo: Demo) -> None:
    elsewhere = demo.enqueue("welcome", {"guest": "you"}, queue="a-queue-of-mine")
    assert demo.completed(elsewhere)["result"] == "welcomed you"
    with FakeEndpoint() as endpoint:
        request = {"url": f"{endpoint.url}/work", "body": {"scene": 7}}
        job_id = demo.enqueue("http", request, callback={"url": f"{endpoint.url}/done"})
        assert demo.completed(job_id)["result"] == {"ok": True}
        demo.wait_for(lambda: len(endpoint.bodies) == 2)
        sent, told = endpoint.bodies
    assert sent == {"scene": 7}
    assert (told["job"]["id"], told["result"]) == (job_id, {"ok": True})
