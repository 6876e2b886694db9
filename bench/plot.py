"""Drawings as SVG, made by hand so that nothing need be installed; readable on white and on black."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from bench.plan import STATISTICS
from bench.roster import OURS
from bench.table import number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.plan import Stock
    from bench.result import Results

WIDTH = 720
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .title { font-weight: 600; font-size: 15px; }
  .small { font-size: 11px; fill: #656d76; }
  .ours { fill: #0969da; } .theirs { fill: #8c959f; } .floor { fill: #bf8700; }
  .line { fill: none; stroke: #0969da; stroke-width: 2; }
  .theirs-line .line { stroke: #8c959f; } .floor-line .line { stroke: #bf8700; }
  .rule { stroke: #d0d7de; stroke-width: 1; } .spread { stroke: #1f2328; stroke-width: 1; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #8d96a0; }
    .ours { fill: #4493f8; } .theirs { fill: #6e7681; } .floor { fill: #d29922; }
    .line { stroke: #4493f8; } .rule { stroke: #30363d; } .spread { stroke: #e6edf3; }
  }
"""
KINDS = {OURS: "ours", "floor": "floor"}

# -- bars: drain and enqueue rates of all peers --------------------------------------------------
GROUPS = {
    "drain-1": "Drain, one worker process",
    "drain-2": "Drain, two worker processes",
    "enqueue-50": "Enqueue from 50 tasks",
    "enqueue-bulk": "Enqueue in bulk",
}
LABEL, BAR, GAP, ROOM = 150, 18, 6, 110


def bars(results: Results) -> str:
    """Jobs per second, a bar per peer: linear from nought, so that lengths can be compared."""
    rows = [(case, peer) for case in GROUPS for peer in results.peers if results.get(case, "rate", peer)]
    most = max((value.high for case, peer in rows if (value := results.get(case, "rate", peer))), default=1.0)
    scale = (WIDTH - LABEL - ROOM) / most
    parts, y, group = [], 10, ""
    for case, peer in rows:
        if case != group:
            group, y = case, y + 30
            parts.append(_text(10, y - 8, f"{GROUPS[case]}, jobs per second", "title"))
        parts.append(_bar(results, case, peer, y, scale))
        y += BAR + GAP
    return _drawing(y + 10, parts)


def _bar(results: Results, case: str, peer: str, y: int, scale: float) -> str:
    value = results.get(case, "rate", peer)
    if value is None:
        return ""
    middle, end = y + BAR / 2, LABEL + value.median * scale
    low, high = LABEL + value.low * scale, LABEL + value.high * scale
    return "\n".join(
        [
            _text(LABEL - 8, middle + 4, results.peers[peer]["title"], anchor="end"),
            f'<path class="{KINDS.get(peer, "theirs")}" d="M{LABEL} {y}H{end:.1f}v{BAR}H{LABEL}z"/>',
            f'<path class="spread" d="M{low:.1f} {middle}H{high:.1f}"/>',
            _text(max(end, high) + 6, middle + 4, number(value.median)),
        ]
    )


# -- dots: our drain rate beside other jobs; a line joins those with ever more of the same ---------
MIDDLE = STATISTICS[1]  # a stock's title stands once, below the middle one of its dots
HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 260, 50, 40, 70, 40


@dataclass(frozen=True)
class Point:
    x: float
    label: str
    detail: str
    joined: bool  # by the line
    rate: float
    low: float
    high: float


def backlog(results: Results, stocks: Sequence[Stock]) -> str:
    """Drain rate beside each stock of other jobs."""
    points = _points(results, stocks)
    most = max((point.high for point in points), default=1.0) * 1.1
    parts = [_text(10, 24, "Mainspring: drain, jobs per second, beside other jobs in the store", "title"), _rules(most)]
    corners = " ".join(f"{point.x:.1f},{_y(point.rate, most):.1f}" for point in points if point.joined)
    parts.append(f'<polyline class="line" points="{corners}"/>')
    parts.extend(_dot(point, most) for point in points)
    return _drawing(HEIGHT, parts)


def _points(results: Results, stocks: Sequence[Stock]) -> list[Point]:
    step = (WIDTH - LEFT - RIGHT - 80) / (len(stocks) - 1)
    served = any(stock.statistics for stock in stocks)
    found = [(i, stock, results.get(f"drain-{stock.name}", "rate", OURS)) for i, stock in enumerate(stocks)]
    return [
        Point(
            LEFT + 40 + i * step,
            stock.title if stock.statistics in ("", MIDDLE) else "",
            stock.statistics,
            not stock.finished and not served,
            value.median,
            value.low,
            value.high,
        )
        for i, stock, value in found
        if value
    ]


def _dot(point: Point, most: float) -> str:
    y = _y(point.rate, most)
    return "\n".join(
        [
            f'<path class="spread" d="M{point.x:.1f} {_y(point.low, most):.1f}V{_y(point.high, most):.1f}"/>',
            f'<circle class="ours" cx="{point.x:.1f}" cy="{y:.1f}" r="4"/>',
            _text(point.x + 6, y + 18, number(point.rate), "small" if point.detail else ""),
            _text(point.x, HEIGHT - BOTTOM + 16, point.detail, "small", anchor="middle"),
            _text(point.x, HEIGHT - BOTTOM + (32 if point.detail else 18), point.label, anchor="middle"),
        ]
    )


def _rules(most: float) -> str:
    marks = [most / 1.1 * share for share in (0, 0.5, 1)]
    lines = [f'<path class="rule" d="M{LEFT} {_y(mark, most):.1f}H{WIDTH - RIGHT}"/>' for mark in marks]
    return "\n".join([*lines, *(_text(LEFT - 6, _y(mark, most) + 4, number(mark), "small", "end") for mark in marks)])


def _y(rate: float, most: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - rate / most)


# -- lines: something of several processes over time --------------------------------------------------
SERIES = ("ours", "theirs", "floor")


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Draw a line for each series of (seconds, value), from nought, so that growth is not exaggerated."""
    most = max((value for points in series.values() for _, value in points), default=1.0) * 1.1
    end = max((second for points in series.values() for second, _ in points), default=1.0) or 1.0
    parts = [_text(10, 24, title, "title"), _rules(most)]
    for kind, (name, points) in zip(SERIES, series.items(), strict=False):
        corners = [(LEFT + (WIDTH - LEFT - RIGHT - 60) * second / end, _y(value, most)) for second, value in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        parts.append(f'<g class="{kind}-line"><polyline class="line" points="{path}"/></g>')
        parts.append(_text(corners[-1][0] + 6, corners[-1][1] + 4, name, "small"))
    parts.extend(
        _text(LEFT + (WIDTH - LEFT - RIGHT - 60) * share, HEIGHT - BOTTOM + 18, f"{end * share / 60:.1f} min", "small")
        for share in (0, 0.5, 1)
    )
    return _drawing(HEIGHT, parts)


# -- parts -------------------------------------------------------------------------------------
def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    if not words:
        return ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _drawing(height: float, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img">'
    return "\n".join([head, f"<style>{STYLE}</style>", *filter(None, parts), "</svg>", ""])
