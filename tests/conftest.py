"""What holds for every test."""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from _pytest.faulthandler import fault_handler_stderr_fd_key

pytest.register_assert_rewrite("tests.conformance")  # before it is imported: a failed assertion then shows its values

HERE = Path(__file__).parent
LONGEST = {
    "bench/test_reads.py", "chaos/test_durable.py", "chaos/test_feed.py", "chaos/test_halts.py",
    "chaos/test_kill.py", "chaos/test_live.py", "chaos/test_server.py", "chaos/test_subscribers.py",
    "cli/test_shown.py", "cli/test_supervisor.py", "examples/companion/test_story.py",
    "service/projects/test_every_operation.py", "service/test_contract.py", "service/test_keys.py",
    "service/test_program.py", "service/test_reasons.py", "stores/postgres/test_plans.py",
    "stores/test_differential.py", "testing/test_kit_docs.py",
}  # fmt: skip
NOT_TESTED = re.compile(r"(?<=NOT TESTED: )[^']+")  # tests/programs.py says it
ALL_SLOW = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.slow\b", re.MULTILINE)


RAM = Path("/dev/shm")
ENOUGH_RAM = 4 << 30  # bytes; containers often have 64 MB there


def pytest_configure(config: pytest.Config) -> None:
    """Prepare this process and, through the environment, the programs that tests start."""
    config.pluginmanager.register(HangTimer())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that starts us in the background makes us deaf to Ctrl-C, and so the programs that tests interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "TMPDIR" not in os.environ and is_usable(RAM):
        # Hundreds of tests make a database there, and no test cuts the power: fsync may cost nothing.
        os.environ["TMPDIR"] = tempfile.tempdir = str(RAM)


def is_usable(place: Path) -> bool:
    """Return whether tests can write to this file system, run programs from it, and have enough space there."""
    if not os.access(place, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize >= ENOUGH_RAM and not found.f_flag & os.ST_NOEXEC


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The quick gate does not even read what is slow as a whole: reading all tests takes 20 seconds more."""
    if config.getoption("markexpr") != "not slow":
        return None
    if collection_path == HERE / "stores" / "postgres":
        return True
    is_module = collection_path.suffix == ".py" and collection_path.is_file()
    return True if is_module and ALL_SLOW.search(collection_path.read_text("utf-8")) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what was not tested: a skipped test is one letter among thousands."""
    reports = terminalreporter.getreports("skipped")
    found = Counter(match[0] for each in reports if (match := NOT_TESTED.search(str(each.longrepr))))
    if found:
        terminalreporter.section("NOT TESTED", sep="!", yellow=True, bold=True)
        for reason, number in sorted(found.items()):
            terminalreporter.line(f"{reason} ({number} skipped)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: the last one is run by one process, while the others have nothing to do.

    Those with a few long tests are named; otherwise a file takes the longer, the more tests it has.
    """
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (str(item.path.relative_to(HERE)) not in LONGEST, -tests[item.path], item.path))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let no garbage collection look through thousands of collected tests: it finds nothing and takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)  # rare collections save an eighth of the tests' time
        gc.enable()


class HangTimer:
    """Prints the stack of every thread when a test hangs.

    pytest can do it (`faulthandler_timeout`), but starts a thread for each test, which takes longer than many tests do.
    This one starts a thread every ten seconds.
    """

    PRINT_AFTER = 120.0  # seconds
    SET_EVERY = 10.0

    def __init__(self) -> None:
        self._set_at = -self.SET_EVERY

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        now = time.monotonic()
        if now - self._set_at >= self.SET_EVERY:
            self._set_at = now
            faulthandler.dump_traceback_later(self.PRINT_AFTER, file=item.config.stash[fault_handler_stderr_fd_key])

    def pytest_exception_interact(self) -> None:
        self._set_at = -self.SET_EVERY  # pytest stops every such timer when a test fails

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self) -> None:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _logging_left_as_found() -> Iterator[None]:
    """A test that sets up structlog, as the command line does, sets it up for the whole process."""
    yield
    structlog.reset_defaults()
