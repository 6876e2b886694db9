"""Where commands write. Colours and progress bars appear only on a terminal; `--json` prints JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TextIO

from mainspring.cli import table
from mainspring.cli.progress import Progress
from mainspring.cli.shown import shown_data, shown_job
from mainspring.cli.table import Cell, Column, Styled
from mainspring.job import Job, Status
from mainspring.json_data import plain
from mainspring.redaction import Hide, Redaction

STYLES = {
    "heading": "1",
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}
STATUS_STYLES = {
    Status.PENDING: "cyan",
    Status.RUNNING: "blue",
    Status.RETRYING: "yellow",
    Status.SUSPENDED: "magenta",
    Status.COMPLETED: "green",
    Status.DEAD_LETTER: "red",
    Status.CANCELLED: "dim",
}


class Terminal:
    """Writes results to `out`, and notes, questions and errors to `err`."""

    def __init__(self, *, json_wanted: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.json = json_wanted
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self.redaction: Redaction | None = None  # of the application whose store a command has opened
        self._hides: list[Hide] = []

    # -- secrets ------------------------------------------------------------------------------

    def shown(self, job: Job) -> Job:
        """Return a job as it may be shown."""
        return job if self.redaction is None else shown_job(job, self.redaction)

    def about(self, job: Job) -> Job:
        """Return a job as it may be shown. From now on, its secrets are hidden in all texts."""
        if self.redaction is not None:
            self._hides.append(self.redaction.hide(job.payload, job.headers, job.task))
        return self.shown(job)

    def shown_data(self, data: Any) -> Any:
        """Return JSON data as it may be shown."""
        return data if self.redaction is None else shown_data(data, self.redaction, self.clean)

    def clean(self, text: str) -> str:
        if self.redaction is None:
            return text
        for hide in (*self._hides, self.redaction.text):
            text = hide(text)
        return text

    def _cell(self, cell: Cell) -> Cell:
        return replace(cell, text=self.clean(cell.text)) if isinstance(cell, Styled) else self.clean(cell)

    # -- results ------------------------------------------------------------------------------

    def emit(self, data: Any, *, indent: int | None = 2) -> None:
        """Print a result as JSON, for programs."""
        print(json.dumps(self.shown_data(plain(data)), indent=indent, ensure_ascii=False), file=self.out, flush=True)

    def say(self, text: str = "", style: str = "") -> None:
        """Print a result as text, for people."""
        print(self.paint(self.clean(text), style), file=self.out)

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, indent: str = "") -> None:
        width = None if self.width is None else self.width - len(indent)
        cells = ([self._cell(cell) for cell in row] for row in rows)
        for line in table.render(columns, cells, width, self.paint):
            print(indent + line, file=self.out)

    # -- beside them --------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Print a hint that is not part of the result."""
        print(self.paint(self.clean(text), "dim", self.err), file=self.err)

    def report(self, error: BaseException, text: str = "", **fields: str) -> None:
        """Print an error: as one line for people, or as JSON for programs, with these fields."""
        if self.json:
            told = self.clean(text or str(error))
            print(json.dumps({"error": told, "type": type(error).__name__, **fields}), file=self.err)
        else:
            self.complain(text or str(error))

    def complain(self, text: str) -> None:
        print(f"{self.paint('mainspring:', 'red', self.err)} {self.clean(text)}", file=self.err)

    def progress(self, label: str, total: int, *, lines: bool = False) -> Progress:
        """Return a progress bar. With `lines`, print a line now and then if no bar can be drawn."""
        visible = on_terminal(self.err)
        return Progress(label, total, self.err, visible=visible, colour=has_colour(self.err), lines=lines)

    def confirm(self, question: str) -> bool:
        """Ask a person. The question goes to `err`, so that it is visible when the result is redirected."""
        print(f"{question} [y/N] ", end="", file=self.err, flush=True)
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    # -- what it can do -----------------------------------------------------------------------

    @property
    def width(self) -> int | None:
        """The width of the terminal; None without a terminal, so that nothing is cut."""
        return shutil.get_terminal_size().columns if on_terminal(self.out) else None

    @property
    def interactive(self) -> bool:
        return on_terminal(sys.stdin) and on_terminal(self.err)

    def paint(self, text: str, style: str, stream: TextIO | None = None) -> str:
        if not style or not text or not has_colour(stream or self.out):
            return text
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def on_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colour(stream: TextIO) -> bool:
    """Return whether to use colours; NO_COLOR turns them off, see no-color.org."""
    return on_terminal(stream) and not os.environ.get("NO_COLOR")
