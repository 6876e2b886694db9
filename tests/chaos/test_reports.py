"""The report of a failed test of a long run is written at once, before the run is over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.processes import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

RUN = """
import os
from pathlib import Path
import pytest

REPORTS = Path(os.environ["MAINSPRING_CHAOS_REPORTS"])

@pytest.mark.parametrize("what", ["a/b c"])
def test_that_fails(what, tmp_path):
    print("MAINSPRING_CHAOS_SEED=7")
    assert what == "planted"

@pytest.fixture
def broken():
    raise OSError("no server")

def test_whose_fixture_fails(broken): ...

def test_that_looks_meanwhile(tmp_path):
    failed, unprepared = sorted(REPORTS.iterdir(), key=lambda path: path.name.endswith("-setup.txt"))
    for text in ("MAINSPRING_CHAOS_SEED=7", "planted", f"{tmp_path.parent}/test_that_fails"):
        assert text in failed.read_text()
    assert "no server" in unprepared.read_text()
"""


def test_a_report_is_kept_as_soon_as_its_test_has_failed(tmp_path: Path) -> None:
    module, reports = tmp_path / "test_run.py", tmp_path / "reports"
    module.write_text(RUN)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = {
        **os.environ,
        "MAINSPRING_CHAOS": "long",
        "MAINSPRING_CHAOS_REPORTS": str(reports),
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    options = ["-p", "tests.chaos.reports", "-p", "no:cacheprovider", "-q", f"--basetemp={tmp_path / 'base'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(module)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "1 failed, 1 passed, 1 error" in done.stdout, done.stdout
    assert done.stdout.count(f"failed: {reports}/") == 2, done.stdout
