from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress

import pytest

from mainspring.cli.table import Column
from mainspring.cli.terminal import Terminal
from tests.cli.conftest import Shop

pytestmark = pytest.mark.slow  # real processes


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _a_usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_colours_only_on_a_terminal() -> None:
    assert Terminal(out=Screen()).paint("x", "red") == "\x1b[31mx\x1b[0m"
    assert Terminal(out=io.StringIO()).paint("x", "red") == "x"


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert Terminal(out=Screen()).paint("x", "red") == "x"


def test_an_empty_no_color_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    assert Terminal(out=Screen()).paint("x", "red") != "x"


def test_a_dumb_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert Terminal(out=Screen()).paint("x", "red") == "x"
    assert Terminal(out=Screen()).width is None


def test_tables_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen()
    Terminal(out=screen).table((Column("NOTE", least=4),), [("x" * 50,)], indent="  ")
    assert screen.getvalue().splitlines()[1] == f"  {'x' * 17}…"


@pytest.mark.parametrize(
    ("answer", "meant"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_only_yes_is_yes(answer: str, meant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    err = io.StringIO()
    assert Terminal(err=err).confirm("Delete all?") is meant
    assert err.getvalue() == "Delete all? [y/N] "


# -- a real one -----------------------------------------------------------------------------------


def on_screen(argv: list[str], *, typed: str = "", columns: int = 100) -> tuple[int, str]:
    """Run a command with a terminal as its standard streams."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "mainspring", *argv]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    os.write(master, typed.encode())
    shown = b""
    with suppress(OSError):  # how the end of a terminal is told
        while chunk := os.read(master, 65536):
            shown += chunk
    os.close(master)
    return process.wait(), shown.decode()


def test_a_list_on_a_real_terminal(shop: Shop) -> None:
    for _ in range(3):
        shop.bury()
    code, shown = on_screen(["dead", "list", "--store", shop.url], columns=70)
    assert code == 0
    assert "\x1b[1mID\x1b[0m" in shown
    assert max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in shown.splitlines()) <= 70


def test_a_change_of_many_is_asked_for(shop: Shop) -> None:
    ids = [shop.enqueue_later() for _ in range(3)]
    argv = ["jobs", "cancel", "--all-matching", "--store", shop.url]
    code, shown = on_screen(argv, typed="n\n")
    assert code == 1
    assert "Cancel 3 jobs? [y/N]" in shown
    assert "nothing was changed" in shown
    code, shown = on_screen(argv, typed="y\n")
    assert code == 0
    assert "3 jobs cancelled" in shown
    assert {shop.status(job_id) for job_id in ids} == {"cancelled"}
