"""Each test runs pytest on files of its own, in forked processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
NOTE = """
import os, pathlib
def note(text):
    with (pathlib.Path(__file__).parent / "notes").open("a") as notes:
        notes.write(f"{os.getpid()} {text}\\n")
"""
CONFTEST = (
    NOTE
    + """
import pytest
@pytest.fixture(scope="session")
def server():
    note("start")
    yield
    note("stop")
"""
)


def run(directory: Path, files: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (directory / name).write_text(NOTE + text, "utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.fork_pool", "--processes", "2", "--rootdir", str(directory)]
    arguments = [*command, "-c", "/dev/null", "-p", "no:cacheprovider", *options, str(directory)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def notes(directory: Path) -> list[list[str]]:
    return [line.split(" ", 1) for line in (directory / "notes").read_text("utf-8").splitlines()]


def outcomes(ended: subprocess.CompletedProcess[str]) -> dict[str, int]:
    return {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", ended.stdout)}


def test_each_test_runs_once_and_a_file_in_one_process(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.parametrize('n', range(20))\ndef test_it(n):\n    note(f'{__name__} {n}')\n"
    ended = run(tmp_path, {f"test_{name}.py": text for name in "abcdef"})
    found = notes(tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert outcomes(ended) == {"passed": 120}
    assert sorted(what for _, what in found) == sorted(f"test_{name} {n}" for name in "abcdef" for n in range(20))
    assert len({(process, what.split()[0]) for process, what in found}) == 6


def test_a_failure_is_shown_with_its_values_and_output(tmp_path: Path) -> None:
    text = "def test_it():\n    print('seen before')\n    number = 3\n    assert number == 4\n"
    ended = run(tmp_path, {"test_a.py": text, "test_b.py": "def test_fine(): pass"})
    assert ended.returncode == 1
    assert outcomes(ended) == {"passed": 1, "failed": 1}
    assert "assert 3 == 4" in ended.stdout
    assert "seen before" in ended.stdout


def test_a_process_that_dies_fails_the_test_it_was_in(tmp_path: Path) -> None:
    dies = "def test_before(): pass\ndef test_dies(): os._exit(0)\ndef test_after(): pass\n"
    ended = run(tmp_path, {"test_a.py": dies, "test_b.py": "def test_fine(): pass"})
    assert ended.returncode == 1
    assert outcomes(ended) == {"passed": 2, "failed": 1}
    assert re.search(r"^process \d+ ended in this test$", ended.stdout, re.MULTILINE)
    assert re.search(r"^FAILED .*test_a.py::test_dies\b", ended.stdout, re.MULTILINE)


@pytest.mark.parametrize("error", ["RuntimeError", "KeyboardInterrupt"])
def test_an_error_of_a_hook_fails_the_run(tmp_path: Path, error: str) -> None:
    hook = (
        f"def pytest_runtest_logfinish(nodeid):\n    if 'test_a.py' in nodeid:\n        raise {error}('on purpose')\n"
    )
    text = "def test_it(): pass\ndef test_not_run(): pass\n"
    ended = run(tmp_path, {"conftest.py": hook, "test_a.py": text, "test_b.py": "def test_fine(): pass"})
    assert ended.returncode == 1
    assert outcomes(ended) == {"passed": 2, "failed": 1}
    assert re.search(r"^process \d+ ended in this test$", ended.stdout, re.MULTILINE)


def test_a_fixture_of_the_session_starts_and_stops_once_per_process(tmp_path: Path) -> None:
    text = "def test_one(server): note('use')\ndef test_two(server): note('use')\n"
    files = {"conftest.py": CONFTEST} | {f"test_{name}.py": text for name in "abcdef"}
    ended = run(tmp_path, files)
    assert ended.returncode == 0, ended.stdout
    by_process: dict[str, list[str]] = {}
    for process, what in notes(tmp_path):
        by_process.setdefault(process, []).append(what)
    for found in by_process.values():
        assert found == ["start", *["use"] * (len(found) - 2), "stop"]


def test_a_session_fixture_that_cannot_stop_fails_the_run(tmp_path: Path) -> None:
    conftest = CONFTEST.replace('note("stop")', "raise RuntimeError")
    ended = run(tmp_path, {"conftest.py": conftest, "test_a.py": "def test_it(server): pass"})
    assert ended.returncode == 1
    assert outcomes(ended) == {"passed": 1, "failed": 1}


def test_processes_share_no_output_and_no_directory(tmp_path: Path) -> None:
    text = """
import pytest
@pytest.mark.parametrize('n', range(50))
def test_it(n, capfd, tmp_path):
    os.write(1, b"x" * n)
    assert capfd.readouterr().out == "x" * n
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
"""
    ended = run(tmp_path, {f"test_{name}.py": text for name in "abcd"})
    assert outcomes(ended) == {"passed": 200}, ended.stdout


def test_the_first_failure_can_end_all_processes(tmp_path: Path) -> None:
    """Each file waits until the other has begun. The pipe holds the reports of fewer than a thousand tests."""
    meet = """
import pytest
def meet(other):
    directory = pathlib.Path(__file__).parent
    (directory / __name__).touch()
    while not (directory / other).exists():
        os.sched_yield()
"""
    fails = meet + "def test_it():\n    meet('test_b')\n    assert False\n"
    passes = meet + "@pytest.mark.parametrize('n', range(1000))\ndef test_it(n):\n    meet('test_a')\n"
    ended = run(tmp_path, {"test_a.py": fails, "test_b.py": passes}, "-x")
    assert ended.returncode == 1
    assert "stopping after 1 failures" in ended.stdout
    assert outcomes(ended)["failed"] == 1
    assert outcomes(ended).get("passed", 0) < 1000


def test_tests_that_cannot_be_collected_are_reported(tmp_path: Path) -> None:
    ended = run(tmp_path, {"test_a.py": "import missing_module", "test_b.py": "def test_fine(): pass"})
    assert ended.returncode == 2
    assert "missing_module" in ended.stdout
