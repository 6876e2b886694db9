"""What we want to reach, and whether this run did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.result import Results, ratio
from bench.roster import FLOOR, OURS


@dataclass(frozen=True)
class Goal:
    """A figure that should be at least, or stay below, some number."""

    title: str
    figure: Callable[[Results], float | None]
    least: float | None = None
    below: float | None = None
    unit: str = ""

    def reached(self, results: Results) -> bool | None:
        """None: not measured in this run."""
        figure = self.figure(results)
        if figure is None:
            return None
        return figure >= self.least if self.least is not None else figure < (self.below or 0)

    def wanted(self) -> str:
        return f"≥ {self.least:g}{self.unit}" if self.least is not None else f"< {self.below:g}{self.unit}"

    def got(self, results: Results) -> str:
        figure = self.figure(results)
        return "–" if figure is None else f"{figure:,.3g}{self.unit}"


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


def _share(case: str, of: str) -> Callable[[Results], float | None]:
    def find(results: Results) -> float | None:
        found = ratio(results.values(case, "rate", OURS), results.values(of, "rate", OURS))
        return None if found is None else found * 100

    return find


GOALS = [
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
]
