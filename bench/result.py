"""The figures of a run in one field, as they are kept in bench/results/<field>.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Value:
    """What the rounds of a measurement came to."""

    median: float
    low: float
    high: float


def ratio(one: list[float], other: list[float]) -> float | None:
    """The median of the rounds' own ratios: what slows a whole round down does not change it."""
    ratios = [a / b for a, b in zip(one, other, strict=False)]
    return median(ratios) if ratios else None


@dataclass
class Results:
    when: str
    command: str  # that made them: a page must not claim more than was run
    quick: bool
    machine: dict[str, str]
    syncs: list[float] = field(default_factory=list)  # fdatasync per second at the start of each round
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    rounds: dict[str, dict[str, list[dict[str, float]]]] = field(default_factory=dict)  # case -> peer -> figures
    absent: dict[str, str] = field(default_factory=dict)  # title -> why it took no part
    server: dict[str, str] = field(default_factory=dict)  # its settings, where there is one
    gaps: dict[str, dict[str, str]] = field(default_factory=dict)  # case -> peer -> why there are none

    def add(self, case: str, peer: str, figures: dict[str, float]) -> None:
        self.rounds.setdefault(case, {}).setdefault(peer, []).append(figures)

    def leave_out(self, case: str, peer: str, reason: str) -> None:
        self.gaps.setdefault(case, {})[peer] = reason

    def exclude(self, peer: str, reason: str) -> None:
        """It took part in nothing."""
        self.absent[self.peers.pop(peer)["title"]] = reason

    def left_out(self, case: str, peer: str) -> bool:
        return peer in self.gaps.get(case, {})

    def get(self, case: str, figure: str, peer: str) -> Value | None:
        values = self.values(case, figure, peer)
        return Value(median(values), min(values), max(values)) if values else None

    def values(self, case: str, figure: str, peer: str) -> list[float]:
        """Round by round."""
        return [figures[figure] for figures in self.rounds.get(case, {}).get(peer, []) if figure in figures]

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")

    @classmethod
    def load(cls, path: Path) -> Results:
        return cls(**json.loads(path.read_text("utf-8")))


@dataclass
class ReadResults:
    """How long reads take with a million jobs, as kept in bench/results/reads.json."""

    when: str
    command: str
    machine: dict[str, str]
    figures: dict[str, dict[str, float]] = field(default_factory=dict)  # store -> read -> milliseconds

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")

    @classmethod
    def load(cls, path: Path) -> ReadResults:
        return cls(**json.loads(path.read_text("utf-8")))
