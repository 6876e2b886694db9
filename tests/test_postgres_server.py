"""The tests' own PostgreSQL server leaves nothing behind, however the tests end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
from pathlib import Path
from tests.postgres import Server, installed
server = Server(installed()[0])
server.start()
print(server.directory, (server.data / "postmaster.pid").read_text().split()[0], flush=True)
input()
"""
ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif("MAINSPRING_TEST_PG" in os.environ, reason="that server is not ours")
def test_a_server_ends_with_the_tests_that_are_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        directory, pid = process.stdout.readline().split()
        assert Path(f"/proc/{pid}").exists()
        process.kill()
    end = time.monotonic() + 30
    while Path(directory).exists() or Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end, f"{directory} or process {pid} is still there"
        time.sleep(0.05)
