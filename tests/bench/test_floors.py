"""The raw floors write our tables themselves, so a change of the tables may break them unnoticed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.peer import PLACE

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def measure(place: Path, peer: str, measurement: str, **arguments: Any) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.measure", peer, measurement, json.dumps(arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), PLACE: str(place)}
    with subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            printed, _ = process.communicate(timeout=90)
        finally:
            process.kill()
    assert process.returncode == 0
    figures: dict[str, float] = json.loads(printed.splitlines()[-1])
    return figures


def test_the_raw_floor_of_jobs_drains(tmp_path: Path) -> None:
    assert measure(tmp_path, "sqlite.floor", "drain", jobs=100, workers=1, timeout=60)["rate"] > 0


def test_the_raw_floor_of_occasions_fires(tmp_path: Path) -> None:
    assert measure(tmp_path, "occasions.floor", "burst", people=50, timeout=60)["rate"] > 0
