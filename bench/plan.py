"""What is measured: the whole plan, in the order in which it is played and shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.roster import Entry

MILLION = 1_000_000
QUICK = 4  # a quick run drains this many times fewer jobs
QUICK_STOCK = 20  # and has this many times fewer in stock
TIMEOUT = 120.0


@dataclass(frozen=True)
class Stock:
    """Jobs that are in the store beforehand and take no part. Filled once, used by all rounds."""

    waiting: int = 0
    finished: int = 0

    @property
    def name(self) -> str:
        if not (self.waiting or self.finished):
            return "empty"
        return f"{(self.waiting or self.finished) // MILLION}m-{'waiting' if self.waiting else 'finished'}"

    @property
    def title(self) -> str:
        if not (self.waiting or self.finished):
            return "nothing else"
        return f"{(self.waiting or self.finished) // MILLION} M {'waiting' if self.waiting else 'finished'}"


@dataclass(frozen=True)
class Case:
    """One measurement with its arguments."""

    name: str
    measurement: str
    arguments: dict[str, Any]
    quick: dict[str, Any] = field(default_factory=dict)  # arguments of a quick run
    stock: Stock | None = None
    rounds: int = 3

    def takes(self, entry: Entry) -> bool:
        """Peers say how large a backlog they are tried with; not all of them could fill ten million in a day."""
        if any(fnmatch(self.name, pattern) for pattern in entry.skip):
            return False
        if self.stock is None:
            return True
        return entry.backlog > 0 and self.stock.waiting <= entry.backlog and self.stock.finished <= entry.history

    def arguments_for(self, entry: Entry, *, quick: bool) -> dict[str, Any]:
        arguments = self.arguments | (self.quick if quick else {})
        if self.measurement == "drain":
            jobs = min(arguments.pop("most", entry.drain_jobs), entry.drain_jobs)
            arguments["jobs"] = jobs // QUICK if quick else jobs
        return arguments


STOCKS = (Stock(), Stock(waiting=MILLION), Stock(waiting=10 * MILLION), Stock(finished=MILLION))


def _beside(stock: Stock) -> list[Case]:
    """What must not change however many other jobs there are."""
    return [
        Case(f"drain-{stock.name}", "drain", {"most": 50_000, "workers": 1, "timeout": TIMEOUT}, stock=stock, rounds=5),
        Case(f"claim-1-{stock.name}", "claim", {"claims": 200, "limit": 1}, stock=stock, rounds=5),
        Case(f"claim-100-{stock.name}", "claim", {"claims": 100, "limit": 100}, {"claims": 10}, stock=stock, rounds=5),
    ]


PLAN: list[Case] = [
    Case("enqueue", "enqueue", {"seconds": 3}, {"seconds": 0.5}),
    Case("enqueue-50", "enqueue_concurrently", {"seconds": 3, "tasks": 50}, {"seconds": 0.5}),
    Case("enqueue-bulk", "enqueue_in_bulk", {"seconds": 3, "batch": 1000}, {"seconds": 0.5}),
    Case("drain-1", "drain", {"workers": 1, "timeout": TIMEOUT}),
    Case("drain-2", "drain", {"workers": 2, "timeout": TIMEOUT}),
    Case("latency", "latency", {"jobs": 600, "timeout": TIMEOUT}, {"jobs": 100}),
    Case("lateness", "lateness", {"jobs": 300, "seconds": 5, "timeout": TIMEOUT}, {"jobs": 50, "seconds": 1}),
    Case("idle", "idle", {"seconds": 10, "timeout": TIMEOUT}, {"seconds": 2}, stock=STOCKS[1]),
    *(case for stock in STOCKS for case in _beside(stock)),
]


def choose(names: list[str]) -> list[Case]:
    """The cases that these names or patterns match; all if there are none."""
    chosen = [case for case in PLAN if not names or any(fnmatch(case.name, name) for name in names)]
    if not chosen:
        raise SystemExit(f"no such measurement; there are {', '.join(case.name for case in PLAN)}")
    return chosen
