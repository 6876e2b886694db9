"""`mainspring keys`: making keys, listing those in use, and changing to a new one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring import Keys, Mainspring
from mainspring.encryption import key_in, new_key
from mainspring.stores.encrypted import bare
from mainspring.stores.records import Kind
from tests.cli.conftest import Run

pytest.importorskip("cryptography")
pytestmark = pytest.mark.slow

OLD, NEW = new_key(), new_key()
JOBS = 1_500
KEYS = "MAINSPRING_ENCRYPTION_KEYS"
Fill = Callable[[], str]


@pytest.fixture
def fill(tmp_path: Path) -> Fill:
    """Makes a store whose jobs are encrypted with the old key; returns its URL."""

    def call() -> str:
        url = f"sqlite:///{tmp_path}/jobs.db"
        app = Mainspring(url, encryption=Keys({"old": OLD}))

        @app.task
        def later(number: int) -> None: ...

        app.run(later.using(delay=9_000).enqueue_many({"number": number} for number in range(JOBS)))
        app.run(app.close())
        return url

    return call


def keys_in_use(url: str) -> set[str | None]:
    app = Mainspring(url)

    async def read() -> set[str | None]:
        found: set[str | None] = set()
        cursor: str | None = None
        while True:
            page = await bare(app.store).dump(Kind.LIVE, after=cursor)
            found |= {key_in(record["payload"]) for record in page.records}
            if (cursor := page.cursor) is None:
                return found

    found = app.run(read())
    app.run(app.close())
    return found


def test_a_generated_key_can_be_used(run: Run) -> None:
    text = run("keys", "generate", "2027-01").out.strip()
    assert Keys.parse(text, "test").ids == ("2027-01",)
    assert run("keys", "generate", "a b").code != 0


def test_the_keys_of_a_store_are_listed(run: Run, fill: Fill) -> None:
    url = fill()
    assert run("keys", "list", "--store", url).out == "old\n"  # also without the key
    assert run("doctor", "--store", url).code != 0
    assert "keys are missing: old" in run("doctor", "--store", url).out


def test_rotation_needs_the_old_key_too(run: Run, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    url = fill()
    monkeypatch.setenv(KEYS, f"new:{NEW}")
    outcome = run("keys", "rotate", "--store", url)
    assert outcome.code != 0
    assert "encrypted with the key old" in outcome.err
    assert NEW not in outcome.err + outcome.out
    monkeypatch.delenv(KEYS)
    assert "no keys to rotate" in run("keys", "rotate", "--store", url).err


def test_a_rotation_that_is_killed_is_finished_by_the_next_one(
    run: Run, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fill()
    monkeypatch.setenv(KEYS, f"new:{NEW},old:{OLD}")
    command = [sys.executable, "-m", "mainspring", "keys", "rotate", "--store", url]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    ) as program:
        assert program.stderr is not None
        assert "examined" in program.stderr.readline()
        os.kill(program.pid, signal.SIGKILL)
    assert keys_in_use(url) == {"old", "new"}
    outcome = run("keys", "rotate", "--store", url, "--json")
    assert outcome.code == 0
    assert outcome.data["removed"] == ["old"]
    assert 0 < outcome.data["resealed"] < JOBS
    assert keys_in_use(url) == {"new"}
    monkeypatch.setenv(KEYS, f"new:{NEW}")
    assert run("keys", "list", "--store", url).out == "new  (active)\n"
    app = Mainspring(url)
    jobs = app.run(app.jobs.find(limit=500)).jobs
    assert all(isinstance(job.payload["number"], int) for job in jobs)
    app.run(app.close())
