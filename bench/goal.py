"""What we want to reach in each field, and whether a run did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.plan import STATISTICS
from bench.result import Results, ratio
from bench.roster import FLOOR, OURS

SHOWN_IN_FULL = 1000


@dataclass(frozen=True)
class Goal:
    """A figure that should be at least, exceed, or stay below, some number."""

    title: str
    figure: Callable[[Results], float | None]
    least: float | None = None
    above: float | None = None
    below: float | None = None
    unit: str = ""

    def reached(self, results: Results) -> bool | None:
        """None: not measured in this run."""
        figure = self.figure(results)
        if figure is None:
            return None
        if self.least is not None:
            return figure >= self.least
        return figure > self.above if self.above is not None else figure < (self.below or 0)

    def wanted(self) -> str:
        if self.least is not None:
            return f"≥ {_shown(self.least)}{self.unit}"
        return f"> {self.above:g}{self.unit}" if self.above is not None else f"< {self.below:g}{self.unit}"

    def got(self, results: Results) -> str:
        figure = self.figure(results)
        return "–" if figure is None else f"{_shown(figure)}{self.unit}"


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= SHOWN_IN_FULL else f"{figure:,.3g}"


def _figure(case: str, name: str) -> Callable[[Results], float | None]:
    def find(results: Results) -> float | None:
        value = results.get(case, name, OURS)
        return value.median if value else None

    return find


def _ratio(case: str, peer: str, *theirs: str, scale: float = 1) -> Callable[[Results], float | None]:
    """Our rate over theirs; over the best of theirs if several cases are given."""

    def find(results: Results) -> float | None:
        rounds = zip(*(results.values(name, "rate", peer) for name in theirs or (case,)), strict=False)
        best = [max(rates) for rates in rounds]
        found = ratio(results.values(case, "rate", OURS), best)
        return None if found is None else found * scale

    return find


def _fastest(case: str) -> Callable[[Results], float | None]:
    """Our rate over that of the fastest peer of each round; the floor is none."""

    def find(results: Results) -> float | None:
        theirs = [results.values(case, "rate", peer) for peer in results.peers if peer not in (OURS, FLOOR)]
        rounds = [max(rates) for rates in zip(*filter(None, theirs), strict=False)]
        return ratio(results.values(case, "rate", OURS), rounds)

    return find


def _share(case: str, of: str, scale: float = 100) -> Callable[[Results], float | None]:
    def find(results: Results) -> float | None:
        found = ratio(results.values(case, "rate", OURS), results.values(of, "rate", OURS))
        return None if found is None else found * scale

    return find


def _least_share(pattern: str, of: str) -> Callable[[Results], float | None]:
    """The worst of several cases; nothing unless all of them were measured."""

    def find(results: Results) -> float | None:
        shares = [_share(pattern.format(statistics), of)(results) for statistics in STATISTICS]
        return min((share for share in shares if share is not None), default=None) if None not in shares else None

    return find


LIMITS = [
    Goal("drain with a rate that is not reached, of none", _figure("limits-rate", "share"), least=90, unit=" %"),
    Goal("drain beside 100 k blocked, of none", _figure("limits-blocked", "share"), least=90, unit=" %"),
    Goal("a single job beside another's 100 k, 10 keys", _figure("fair-10", "worst"), below=2, unit=" service times"),
    Goal(
        "a single job beside another's 100 k, 10 k keys", _figure("fair-10k", "worst"), below=2, unit=" service times"
    ),
    Goal("fair drain with 10 k keys, of 10 keys", _share("fair-drain-10k", "fair-drain-10"), least=85, unit=" %"),
]

FEED = [
    Goal("drain with a reader of every change, of none", _figure("followed", "share"), least=90, unit=" %"),
    Goal("idle reader, share of one core", _figure("idle-reader", "percent"), below=0.1, unit=" %"),
]
SERVED_FEED = [
    *FEED,
    Goal("server of an idle reader, share of one core", _figure("idle-reader", "server"), below=0.1, unit=" %"),
]

SQLITE = [
    Goal("drain, one process, against huey", _ratio("drain-1", "huey"), least=10, unit=" ×"),
    Goal("drain, one process, against litequeue", _ratio("drain-1", "litequeue"), least=6, unit=" ×"),
    Goal("drain, one process, of the raw batched floor", _ratio("drain-1", FLOOR, scale=100), least=40, unit=" %"),
    Goal(
        "enqueue from 50 tasks, against huey's best",
        _ratio("enqueue-50", "huey", "enqueue", "enqueue-50"),
        least=10,
        unit=" ×",
    ),
    Goal("bulk enqueue, against litequeue", _ratio("enqueue-bulk", "litequeue"), least=2, unit=" ×"),
    Goal("start latency across processes, p50", _figure("latency", "p50"), below=1.5, unit=" ms"),
    Goal("start latency across processes, p99", _figure("latency", "p99"), below=10, unit=" ms"),
    Goal("lateness of scheduled jobs, p99", _figure("lateness", "p99"), below=10, unit=" ms"),
    Goal("idle worker, share of one core", _figure("idle", "percent"), below=0.5, unit=" %"),
    Goal(
        "drain with 10 M waiting, of the same with none",
        _share("drain-10m-waiting", "drain-empty"),
        least=85,
        unit=" %",
    ),
    *LIMITS,
]

HTTP = [
    Goal("enqueue by HTTP, 16 connections, of an empty route", _figure("http-share-16", "share"), least=60, unit=" %"),
    Goal("enqueue by HTTP, 64 connections, of an empty route", _figure("http-share-64", "share"), least=60, unit=" %"),
    Goal("bulk enqueue by HTTP, of the library's", _share("http-bulk", "enqueue-bulk"), least=50, unit=" %"),
    Goal("growth of memory in ten minutes, 200 live clients", _figure("live-memory", "growth"), below=5, unit=" %"),
]

OCCASIONS = [
    Goal("people imported from a CSV file", _figure("import", "rate"), least=15_000, unit="/s"),
    Goal("occasions fired, of 50 k people at one instant", _figure("burst", "rate"), least=10_000, unit="/s"),
]

POSTGRES = [
    Goal("drain, one process, against pgqueuer", _ratio("drain-1", "pgqueuer"), least=2, unit=" ×"),
    Goal("drain, one process, of the raw batched floor", _ratio("drain-1", FLOOR, scale=100), least=60, unit=" %"),
    Goal("drain, two processes against one", _share("drain-2", "drain-1", scale=1), above=1, unit=" ×"),
    Goal("drain in chunks of 1000, against pg-boss", _ratio("drain-chunks", "pg_boss"), least=1, unit=" ×"),
    Goal("bulk enqueue, against the fastest peer", _fastest("enqueue-bulk"), least=1, unit=" ×"),
    Goal("start latency across processes, p50", _figure("latency", "p50"), below=3, unit=" ms"),
    Goal("start latency across processes, p99", _figure("latency", "p99"), below=15, unit=" ms"),
    Goal("lateness of scheduled jobs, p99", _figure("lateness", "p99"), below=10, unit=" ms"),
    Goal("enqueue one by one while a worker listens, of alone", _figure("heard-1", "share"), least=90, unit=" %"),
    Goal("enqueue from 50 tasks while a worker listens, of alone", _figure("heard-50", "share"), least=90, unit=" %"),
    Goal(
        "drain before 200 k due, of a short queue, worst statistics",
        _least_share("drain-200k-due-{}", "drain-empty"),
        least=85,
        unit=" %",
    ),
    Goal(
        "drain beside 1 M waiting, of none, worst statistics",
        _least_share("drain-1m-waiting-{}", "drain-empty"),
        least=85,
        unit=" %",
    ),
    Goal(
        "drain beside 1 M finished, of none, worst statistics",
        _least_share("drain-1m-finished-{}", "drain-empty"),
        least=85,
        unit=" %",
    ),
    Goal("idle worker, share of one core", _figure("idle", "percent"), below=0.5, unit=" %"),
    Goal("idle server, share of one core", _figure("idle", "server"), below=0.5, unit=" %"),
    Goal("idle worker beside 1 M waiting", _figure("idle-stocked", "percent"), below=0.5, unit=" %"),
    Goal("idle server beside 1 M waiting", _figure("idle-stocked", "server"), below=0.5, unit=" %"),
    *LIMITS,
]
