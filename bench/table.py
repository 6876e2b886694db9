"""The figures as tables of text: rows of cells, for the terminal and for Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.plan import STATISTICS
from bench.result import ReadResults, Results, Value, ratio
from bench.roster import OURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.field import Field
    from bench.plan import Stock

DASH = "–"
MARKS = {True: "reached", False: "not reached", None: "not measured"}

Table = list[list[str]]


@dataclass(frozen=True)
class Line:
    """One line of the comparison."""

    title: str
    case: str
    figure: str
    more_is_better: bool = True
    compared: bool = True  # with ours, in brackets


LINES = [
    Line("enqueue one by one, jobs/s", "enqueue", "rate"),
    Line("enqueue from 50 tasks, jobs/s", "enqueue-50", "rate"),
    Line("enqueue in bulk of 1000, jobs/s", "enqueue-bulk", "rate"),
    Line("enqueue one by one while a worker listens, % of alone", "heard-1", "share", compared=False),
    Line("enqueue from 50 tasks while a worker listens, % of alone", "heard-50", "share", compared=False),
    Line("drain, 1 process, jobs/s", "drain-1", "rate"),
    Line("drain, 2 processes, jobs/s", "drain-2", "rate"),
    Line("drain in chunks of 1000, 1 process, jobs/s", "drain-chunks", "rate"),
    Line("start latency p50, ms", "latency", "p50", more_is_better=False),
    Line("start latency p99, ms", "latency", "p99", more_is_better=False),
    Line("lateness p50, ms", "lateness", "p50", more_is_better=False),
    Line("lateness p99, ms", "lateness", "p99", more_is_better=False),
    Line("idle worker, % of a core", "idle", "percent", more_is_better=False),
    Line("idle server, % of a core", "idle", "server", more_is_better=False),
    Line("idle worker beside 1 M waiting, % of a core", "idle-stocked", "percent", more_is_better=False),
    Line("idle server beside 1 M waiting, % of a core", "idle-stocked", "server", more_is_better=False),
    Line("drain with a reader of every change, % of none", "followed", "share", compared=False),
    Line("idle reader, % of a core", "idle-reader", "percent", compared=False),
    Line("the same, server, % of a core", "idle-reader", "server", compared=False),
    Line("drain with a rate that is not reached, % of none", "limits-rate", "share", compared=False),
    Line("drain beside 100 k blocked, % of none", "limits-blocked", "share", compared=False),
    Line("fair: another's single job beside 100 k, 10 keys, service times", "fair-10", "worst", compared=False),
    Line("fair: the same with 10 k keys", "fair-10k", "worst", compared=False),
    Line("fair drain, 10 keys, jobs/s", "fair-drain-10", "rate"),
    Line("fair drain, 10 k keys, jobs/s", "fair-drain-10k", "rate"),
    *(
        line
        for connections in (1, 16, 64)
        for line in (
            Line(f"enqueue by HTTP, {connections} connections, jobs/s", f"http-{connections}", "rate"),
            Line("the same, p50, ms", f"http-{connections}", "p50", more_is_better=False),
            Line("the same, p99, ms", f"http-{connections}", "p99", more_is_better=False),
        )
    ),
    *(
        Line(
            f"enqueue by HTTP, {connections} connections, % of an empty route",
            f"http-share-{connections}",
            "share",
            compared=False,
        )
        for connections in (16, 64)
    ),
    Line("bulk enqueue by HTTP, 1000 jobs per request, jobs/s", "http-bulk", "rate"),
    Line("memory of the service after ten minutes, MB", "live-memory", "megabytes", compared=False),
    Line("growth of it, %", "live-memory", "growth", compared=False),
    Line("import of people from a CSV file, people/s", "import", "rate"),
    Line("burst: 50 k people at one instant, fired/s", "burst", "rate"),
    Line("burst: jobs of it that have run, jobs/s", "burst", "ran", compared=False),
    Line("burst: until the last job has run, s", "burst", "last", compared=False),
    Line("worker's peak memory, MB", "drain-1", "megabytes", more_is_better=False),
]

BESIDE = [
    Line("drain, 1 process, jobs/s", "drain", "rate"),
    Line("claim of 1 job, ms", "claim-1", "milliseconds"),
    Line("claim of 100 jobs, ms", "claim-100", "milliseconds"),
]


def comparison(results: Results) -> Table:
    """A line per figure, a column per peer; in brackets how many times better we are."""
    peers = list(results.peers)
    rows = [[line.title, *(_compared(results, line, peer) for peer in peers)] for line in LINES]
    header = ["", *(results.peers[peer]["title"] for peer in peers)]
    return [header, *(row for row in rows if set(row[1:]) != {DASH})]


def backlog(field: Field, results: Results) -> Table:
    if not field.stocks:
        return []
    return _by_statistics(field, results) if field.served else _by_stock(field, results)


def _by_stock(field: Field, results: Results) -> Table:
    """A line per figure and peer, a column per stock of other jobs."""
    rows = [
        [f"{described['title']}: {line.title}", *(_beside(results, line, stock.name, peer) for stock in field.stocks)]
        for peer, described in results.peers.items()
        for line in BESIDE
    ]
    return [["", *(stock.title for stock in field.stocks)], *(row for row in rows if set(row[1:]) != {DASH})]


def _by_statistics(field: Field, results: Results) -> Table:
    """A line per peer and state of the statistics, a column per stock."""
    rows = [
        [
            f"{described['title']}, {statistics}",
            *(_shared(results, stock, peer) for stock in field.stocks if stock.statistics in ("", statistics)),
        ]
        for peer, described in results.peers.items()
        for statistics in STATISTICS
    ]
    header = ["drain, 1 process, jobs/s; statistics"]
    header += [stock.title for stock in field.stocks if stock.statistics in ("", STATISTICS[0])]
    return [header, *(row for row in rows if set(row[1:]) != {DASH})]


def goals(field: Field, results: Results) -> Table:
    rows = [[goal.title, goal.wanted(), goal.got(results), MARKS[goal.reached(results)]] for goal in field.goals]
    return [["goal", "wanted", "measured", ""], *rows]


def _shared(results: Results, stock: Stock, peer: str) -> str:
    """The rate and, in square brackets, what share it is of the rate beside nothing else."""
    case = f"drain-{stock.name}"
    value = results.get(case, "rate", peer)
    if value is None:
        return DASH
    share = ratio(results.values(case, "rate", peer), results.values("drain-empty", "rate", peer))
    if share is None or stock.name == "empty":
        return _with_spread(value)
    return f"{_with_spread(value)} [{share * 100:.0f} %]"


def _compared(results: Results, line: Line, peer: str) -> str:
    value = results.get(line.case, line.figure, peer)
    if value is None:
        return DASH
    if peer == OURS or not line.compared:
        return _with_spread(value)
    ours, theirs = (results.values(line.case, line.figure, name) for name in (OURS, peer))
    better = ratio(ours, theirs) if line.more_is_better else ratio(theirs, ours)
    if better is None:
        return _with_spread(value)
    return f"{_with_spread(value)} [{better:.2g}×]" if better < 10 else f"{_with_spread(value)} [{better:,.0f}×]"


def _beside(results: Results, line: Line, stock: str, peer: str) -> str:
    value = results.get(f"{line.case}-{stock}", line.figure, peer)
    return DASH if value is None else _with_spread(value)


def _with_spread(value: Value) -> str:
    return f"{number(value.median)} ({number(value.low)}–{number(value.high)})"


def number(value: float) -> str:
    """Three digits that count: 41.2 k, 953, 1.24, 0.031."""
    if abs(value) >= 10_000:
        return f"{value / 1000:.3g} k"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def as_text(table: Table) -> str:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return "\n".join(_text_row(row, widths) for row in table)


def _text_row(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
    return "  ".join([row[0].ljust(widths[0]), *cells[1:]])


def as_markdown(table: Table) -> str:
    header, *rows = table
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows])


# -- reads with a million jobs --------------------------------------------------------------------------
READ_GOAL = 100.0  # milliseconds


def reads(results: ReadResults) -> Table:
    """A line per group of reads: the slowest of it on each store, and which one that is."""
    groups = dict.fromkeys(name.partition(": ")[0] for figures in results.figures.values() for name in figures)
    rows = [[group, *(_slowest(figures, group) for figures in results.figures.values())] for group in groups]
    return [["the slowest of", *(f"{store}, ms" for store in results.figures)], *rows]


def all_reads(results: ReadResults) -> Table:
    names = dict.fromkeys(name for figures in results.figures.values() for name in figures)
    rows = [[name, *(_milliseconds(figures.get(name)) for figures in results.figures.values())] for name in names]
    return [["read", *(f"{store}, ms" for store in results.figures)], *rows]


def slow_reads(results: ReadResults) -> list[str]:
    return [
        f"{name} on {store}: {_milliseconds(figure)} ms"
        for store, figures in results.figures.items()
        for name, figure in figures.items()
        if figure >= READ_GOAL
    ]


def _slowest(figures: dict[str, float], group: str) -> str:
    mine = {name.partition(": ")[2]: figure for name, figure in figures.items() if name.partition(": ")[0] == group}
    if not mine:
        return DASH
    name = max(mine, key=lambda name: mine[name])
    return f"{_milliseconds(mine[name])} ({name})"


def _milliseconds(figure: float | None) -> str:
    return DASH if figure is None else f"{figure:.1f}"
