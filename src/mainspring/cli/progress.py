"""A progress bar on standard error. Without a terminal there is no bar, or a line every few seconds."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self, TextIO

from mainspring.humanize import show_length

REDRAW = 0.1  # seconds
LINE_EVERY = 10.0  # seconds
WIDTH = 28
FULL, HALF, EMPTY = "━", "╸", "─"


class Progress:
    """Used as `with terminal.progress("cancelling", total) as bar: bar.reach(done)`."""

    def __init__(
        self, label: str, total: int, stream: TextIO, *, visible: bool, colour: bool, lines: bool = False
    ) -> None:
        self._label = label
        self._total = max(total, 1)
        self._stream = stream
        self._visible = visible
        self._colour = colour
        self._lines = lines and not visible
        self._begun = time.monotonic()
        self._drawn = 0.0
        self._done = 0

    def __enter__(self) -> Self:
        self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._visible:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()

    def reach(self, done: int) -> None:
        self._done = done
        if time.monotonic() - self._drawn >= (LINE_EVERY if self._lines else REDRAW):
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self._visible:
            self._stream.write(f"\r\x1b[2K{self._line()}")
            self._stream.flush()
        elif self._lines and self._done:
            self._stream.write(f"{self._label} {self._numbers().strip()}\n")
            self._stream.flush()

    def _line(self) -> str:
        return f"{self._label} {draw_bar(self._fraction(), colour=self._colour)} {self._numbers()}"

    def _fraction(self) -> float:
        return min(self._done / self._total, 1.0)

    def _numbers(self) -> str:
        fraction = self._fraction()
        return f"{fraction:4.0%}  {self._done:,} of {self._total:,}{self._pace(fraction)}"

    def _pace(self, fraction: float) -> str:
        took = time.monotonic() - self._begun
        if not self._done or took < 0.5:
            return ""
        left = f", {show_length(took / fraction - took)} left" if fraction < 1 else ""
        return f"  {self._done / took:,.0f}/s{left}"


def draw_bar(fraction: float, *, colour: bool, width: int = WIDTH) -> str:
    halves = round(max(0.0, min(fraction, 1.0)) * width * 2)
    full = FULL * (halves // 2) + HALF * (halves % 2)
    rest = EMPTY * (width - len(full))
    return f"\x1b[32m{full}\x1b[0;2m{rest}\x1b[0m" if colour else full + rest
