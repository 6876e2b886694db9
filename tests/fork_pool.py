"""Run test files in several processes that share one collection: `pytest -p tests.fork_pool --processes 3`.

Collecting all tests takes 10 to 35 seconds of processor time. So one process collects them and then forks. Each child
runs one file after the other and sends its reports to the parent, which prints them.
"""

from __future__ import annotations

import os
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import pytest
from _pytest.capture import CaptureManager
from _pytest.tmpdir import TempPathFactory

Location = tuple[str, int | None, str]
PLACE_BYTES = 2  # a pipe takes 65,536 bytes at once: enough for the places of 32,768 files


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, help="run test files in this many forked processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in children. A child returns from here too, and pytest ends it like any other process."""
    options = session.config.option
    if options.processes < 2 or options.collectonly or session.testsfailed:
        return None
    files = [list(items) for _, items in groupby(session.items, key=lambda item: item.path)]
    queue = queue_of(len(files))
    temporary_files(session.config).getbasetemp()  # all children have their directories in this one
    children: list[Child] = []
    for number in range(options.processes):
        reports, sender = Pipe(duplex=False)
        session.config.get_terminal_writer().flush()  # otherwise the child would print it again
        process = os.fork()
        if process == 0:
            for end in [reports, *(child.reports for child in children)]:
                end.close()  # only the parent listens: when it stops, sending fails
            become_child(session, number, sender)
            run_files(session, files, queue)
            return True
        sender.close()
        children.append(Child(process, reports))
    follow(session, children)
    return True


def queue_of(length: int) -> int:
    """Return a pipe that holds the places of all files. Each read takes one of them, in whichever process."""
    queue, end = os.pipe()
    os.write(end, b"".join(place.to_bytes(PLACE_BYTES, "big") for place in range(length)))
    os.close(end)
    return queue


def temporary_files(config: pytest.Config) -> TempPathFactory:
    return cast("TempPathFactory", config._tmp_path_factory)  # type: ignore[attr-defined]


# -- a child --------------------------------------------------------------------------------------


def become_child(session: pytest.Session, number: int, parent: Connection) -> None:
    """Share no directory, no captured output and no terminal with the other processes."""
    config, plugins = session.config, session.config.pluginmanager
    config.workerinput = {}  # type: ignore[attr-defined]  # plugins see by it that caches and reports are the parent's
    plugins.unregister(name="terminalreporter")
    plugins.register(Reporter(session, parent))
    capture = cast("CaptureManager", plugins.getplugin("capturemanager"))
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    factory = temporary_files(config)
    factory._basetemp = factory.mktemp(f"process-{number}", numbered=False)


class Reporter:
    """Sends to the parent what happens to tests."""

    def __init__(self, session: pytest.Session, parent: Connection) -> None:
        self._session = session
        self._parent = parent

    def pytest_runtest_logstart(self, nodeid: str, location: Location) -> None:
        self._send((nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._session.config
        self._send(config.hook.pytest_report_to_serializable(config=config, report=report))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Say that all is done, unless an interrupt or an error of pytest itself has left tests out."""
        if exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            self._send(None)

    def _send(self, message: tuple[str, Location] | dict[str, Any] | None) -> None:
        try:
            self._parent.send(message)
        except BrokenPipeError:
            self._session.shouldstop = "the parent does not listen any more"


def run_files(session: pytest.Session, files: list[list[pytest.Item]], queue: int) -> None:
    """Run files from the queue until it is empty."""
    while place := os.read(queue, PLACE_BYTES):
        items = files[int.from_bytes(place, "big")]
        # After the last test of a file comes the session: its fixtures stay, those of the file and its directories end.
        for item, following in zip(items, [*items[1:], cast("pytest.Item", session)], strict=True):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail or session.shouldstop:
                return


# -- the parent -----------------------------------------------------------------------------------


class Child:
    """A child, as the parent knows it."""

    def __init__(self, process: int, reports: Connection) -> None:
        self.process = process
        self.reports = reports
        self.test: tuple[str, Location] = ("(before its first test)", ("", None, ""))  # which it began last


def follow(session: pytest.Session, children: list[Child]) -> None:
    """Pass on what the children report until all of them have ended. Without a listener, a child ends early."""
    running = {child.reports: child for child in children}
    try:
        while running:
            for reports in wait(list(running)):
                child = running[cast("Connection", reports)]
                if not pass_on(session.config, child):
                    del running[child.reports]
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
    finally:
        for child in children:
            child.reports.close()
        for child in children:
            os.waitpid(child.process, 0)


def pass_on(config: pytest.Config, child: Child) -> bool:
    """Pass on one message of a child. Return whether more can follow."""
    try:
        message = child.reports.recv()
    except EOFError:
        config.hook.pytest_runtest_logreport(report=death(child))
        return False
    if isinstance(message, dict):
        report = config.hook.pytest_report_from_serializable(config=config, data=message)
        config.hook.pytest_runtest_logreport(report=report)
    elif message is not None:
        child.test = message
    return message is not None


def death(child: Child) -> pytest.TestReport:
    """Return the report of a test in which the process ended. The other tests of its file do not run."""
    nodeid, location = child.test
    return pytest.TestReport(nodeid, location, {}, "failed", f"process {child.process} ended in this test", "call")
