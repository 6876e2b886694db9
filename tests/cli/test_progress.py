from __future__ import annotations

import io
import time

import pytest

from mainspring.cli import progress
from mainspring.cli.progress import Progress, draw_bar


def test_no_bar_is_drawn_without_a_terminal() -> None:
    stream = io.StringIO()
    with Progress("work:", 10, stream, visible=False, colour=False) as bar:
        bar.reach(5)
    assert stream.getvalue() == ""


def test_a_line_now_and_then_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stream = io.StringIO()
    with Progress("work:", 1000, stream, visible=False, colour=False, lines=True) as bar:
        for done in range(0, 1000, 50):
            now += 1
            bar.reach(done)
    assert stream.getvalue().splitlines() == [
        "work: 45%  450 of 1,000  45/s, 12 s left",
        "work: 95%  950 of 1,000  48/s, 1.1 s left",
    ]


def test_it_draws_and_removes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REDRAW", 0)
    stream = io.StringIO()
    with Progress("work:", 1000, stream, visible=True, colour=False) as bar:
        bar.reach(500)
    drawn = stream.getvalue().split("\r\x1b[2K")
    assert drawn[1] == f"work: {'─' * 28}   0%  0 of 1,000"
    assert drawn[2] == f"work: {'━' * 14}{'─' * 14}  50%  500 of 1,000"
    assert drawn[-1] == ""


def test_it_is_not_drawn_more_often_than_one_can_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REDRAW", 3600)
    stream = io.StringIO()
    with Progress("work:", 1000, stream, visible=True, colour=False) as bar:
        for done in range(1000):
            bar.reach(done)
    assert stream.getvalue().count("work:") == 1


def test_the_pace_is_told_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stream = io.StringIO()
    with Progress("work:", 1000, stream, visible=True, colour=False) as bar:
        now += 2.0
        bar.reach(250)
    assert "250 of 1,000  125/s, 6 s left" in stream.getvalue()


@pytest.mark.parametrize(("fraction", "drawn"), [(0, "────"), (0.5, "━━──"), (0.625, "━━╸─"), (1, "━━━━"), (7, "━━━━")])
def test_a_bar_is_drawn_up_to_its_fraction(fraction: float, drawn: str) -> None:
    assert draw_bar(fraction, colour=False, width=4) == drawn


def test_a_bar_in_colour_is_green() -> None:
    assert draw_bar(0.5, colour=True, width=2) == "\x1b[32m━\x1b[0;2m─\x1b[0m"
