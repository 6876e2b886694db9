"""What is measured in each field: the whole plan, in the order in which it is played and shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.roster import Entry

MILLION = 1_000_000
QUICK = 4  # a quick run drains this many times fewer jobs, and has so many fewer behind them
QUICK_STOCK = 20  # of others it has this many times fewer in stock
TIMEOUT = 120.0


@dataclass(frozen=True)
class Stock:
    """Jobs that are in the store beforehand and take no part. Filled once, used by all rounds."""

    waiting: int = 0  # for later
    finished: int = 0
    due: int = 0  # behind those whose drain is measured
    statistics: str = ""  # what the planner knows: `fresh`, `stale` (of empty tables), `absent`

    @property
    def name(self) -> str:
        number, kind = self._kind
        if not number:
            return "empty"
        return "-".join(filter(None, [_short(number, ""), kind, self.statistics])).lower()

    @property
    def title(self) -> str:
        number, kind = self._kind
        return f"{_short(number, ' ')} {kind}" if number else "nothing else"

    def jobs(self, *, quick: bool) -> dict[str, int]:
        """How many of each kind are filled in."""
        fewer, fewer_due = (QUICK_STOCK, QUICK) if quick else (1, 1)
        return {"waiting": self.waiting // fewer, "finished": self.finished // fewer, "due": self.due // fewer_due}

    @property
    def _kind(self) -> tuple[int, str]:
        kinds = {"waiting": self.waiting, "finished": self.finished, "due": self.due}
        return next(((number, kind) for kind, number in kinds.items() if number), (0, ""))


def _short(number: int, space: str) -> str:
    return f"{number // MILLION}{space}M" if number >= MILLION else f"{number // 1000}{space}k"


@dataclass(frozen=True)
class Case:
    """One measurement with its arguments."""

    name: str
    measurement: str
    arguments: dict[str, Any]
    quick: dict[str, Any] = field(default_factory=dict)  # arguments of a quick run
    stock: Stock | None = None
    rounds: int = 3
    peers: tuple[str, ...] = ()  # only these; none: all

    def takes(self, entry: Entry) -> bool:
        """Peers say how large a backlog they are tried with; not all of them could fill ten million in a day."""
        if any(fnmatch(self.name, pattern) for pattern in entry.skip):
            return False
        if self.peers and entry.name not in self.peers:
            return False
        if self.stock is None:
            return True
        most = max(self.stock.waiting, self.stock.due)
        return entry.backlog > 0 and most <= entry.backlog and self.stock.finished <= entry.history

    def arguments_for(self, entry: Entry, *, quick: bool) -> dict[str, Any]:
        arguments = self.arguments | (self.quick if quick else {})
        if self.measurement in ("drain", "drain_backlog", "drain_in_chunks"):
            jobs = min(arguments.pop("most", entry.drain_jobs), entry.drain_jobs)
            arguments["jobs"] = jobs // QUICK if quick else jobs
        return arguments


# -- SQLite ------------------------------------------------------------------------------------
STOCKS = (Stock(), Stock(waiting=MILLION), Stock(waiting=10 * MILLION), Stock(finished=MILLION))


def _beside(stock: Stock) -> list[Case]:
    """What must not change however many other jobs there are."""
    return [
        Case(f"drain-{stock.name}", "drain", {"most": 50_000, "workers": 1, "timeout": TIMEOUT}, stock=stock, rounds=5),
        Case(f"claim-1-{stock.name}", "claim", {"claims": 200, "limit": 1}, stock=stock, rounds=5),
        Case(f"claim-100-{stock.name}", "claim", {"claims": 100, "limit": 100}, {"claims": 10}, stock=stock, rounds=5),
    ]


SQLITE: list[Case] = [
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

# -- PostgreSQL: twice as many peers, so each figure gets less time -----------------------------
STATISTICS = ("fresh", "stale", "absent")
WAITING = Stock(waiting=MILLION, statistics="fresh")
SERVED = tuple(
    Stock(**{kind: number}, statistics=statistics)
    for kind, number in (("due", 200_000), ("waiting", MILLION), ("finished", MILLION))
    for statistics in STATISTICS
)


def _drain_beside(stock: Stock) -> Case:
    measurement = "drain_backlog" if stock.due else "drain"
    arguments = {"most": 40_000, "workers": 1, "timeout": TIMEOUT}
    return Case(f"drain-{stock.name}", measurement, arguments, stock=stock)


def _heard(tasks: int) -> Case:
    arguments = {"seconds": 1.5, "tasks": tasks, "timeout": TIMEOUT}
    return Case(f"heard-{tasks}", "enqueue_heard", arguments, {"seconds": 0.5})


POSTGRES: list[Case] = [
    Case("enqueue", "enqueue", {"seconds": 1}, {"seconds": 0.5}),
    Case("enqueue-50", "enqueue_concurrently", {"seconds": 1, "tasks": 50}, {"seconds": 0.5}),
    Case("enqueue-bulk", "enqueue_in_bulk", {"seconds": 1, "batch": 1000}, {"seconds": 0.5}),
    _heard(1),
    _heard(50),
    Case("drain-1", "drain", {"workers": 1, "timeout": TIMEOUT}),
    Case("drain-2", "drain", {"workers": 2, "timeout": TIMEOUT}, rounds=2),
    Case(
        "drain-chunks",
        "drain_in_chunks",
        {"size": 1000, "workers": 1, "timeout": TIMEOUT},
        peers=("mainspring", "pg_boss"),
    ),
    Case("latency", "latency", {"jobs": 300, "timeout": TIMEOUT}, {"jobs": 100}, rounds=2),
    Case("lateness", "lateness", {"jobs": 200, "seconds": 3, "timeout": TIMEOUT}, {"jobs": 50, "seconds": 1}, rounds=2),
    Case("idle", "idle", {"seconds": 12, "timeout": TIMEOUT}, {"seconds": 2}, rounds=1),
    Case("idle-stocked", "idle", {"seconds": 12, "timeout": TIMEOUT}, {"seconds": 2}, stock=WAITING, rounds=1),
    *(_drain_beside(stock) for stock in (Stock(), *SERVED)),
]


# -- limits and the change feed: only ours, on both --------------------------------------------------


def _ours(jobs: int, rounds: int) -> list[Case]:
    """What limits cost that are not reached, and what fairness gives."""
    ours: dict[str, Any] = {"peers": ("mainspring",), "rounds": rounds}
    few, wait = {"jobs": jobs // QUICK}, {"timeout": TIMEOUT}
    blocked, backlog = {"blocked": 100_000}, {"backlog": 100_000, "probes": 10}
    return [
        Case("limits-rate", "drain_rated", {"jobs": jobs, **wait}, few, **ours),
        Case(
            "limits-blocked",
            "drain_beside_blocked",
            {"jobs": jobs, **blocked, **wait},
            few | {"blocked": 10_000},
            **ours,
        ),
        *(
            Case(f"fair-{name}", "fairness", {"keys": keys, **backlog, **wait}, {"backlog": 10_000}, **ours)
            for name, keys in KEYS.items()
        ),
        *(
            Case(f"fair-drain-{name}", "drain_fairly", {"jobs": jobs // 2, "keys": keys, **wait}, few, **ours)
            for name, keys in KEYS.items()
        ),
    ]


KEYS = {"10": 10, "10k": 10_000}
SQLITE += _ours(40_000, 3)
POSTGRES += _ours(40_000, 3)

FEED: list[Case] = [
    Case("followed", "drain_followed", {"jobs": 80_000, "timeout": TIMEOUT}, {"jobs": 10_000}, peers=("mainspring",)),
    Case(
        "idle-reader",
        "idle_reader",
        {"seconds": 30, "timeout": TIMEOUT},
        {"seconds": 2},
        rounds=1,
        peers=("mainspring",),
    ),
]


# -- occasions: only ours, on SQLite, beside raw statements ---------------------------------------------
OCCASIONS: list[Case] = [
    Case("import", "import_people", {"people": 50_000}, {"people": 10_000}),
    Case("burst", "burst", {"people": 50_000, "timeout": TIMEOUT}, {"people": 10_000}),
]


# -- HTTP: a service on SQLite, beside an empty route and another queue behind the same framework --------------
HTTP: list[Case] = [
    *(
        Case(f"http-{connections}", "http_enqueue", {"seconds": 4, "connections": connections}, {"seconds": 1})
        for connections in (1, 16, 64)
    ),
    *(
        Case(
            f"http-share-{connections}",
            "http_share",
            {"seconds": 1.5, "connections": connections},
            {"seconds": 0.2},
            peers=("mainspring",),
        )
        for connections in (16, 64)
    ),
    Case("http-bulk", "http_bulk", {"seconds": 4, "batch": 1000}, {"seconds": 1}, peers=("mainspring",)),
    Case("enqueue-bulk", "enqueue_in_bulk", {"seconds": 4, "batch": 1000}, {"seconds": 1}, peers=("mainspring",)),
    Case(
        "live-memory",
        "live_memory",
        {"seconds": 600, "clients": 200},
        {"seconds": 20},
        rounds=1,
        peers=("mainspring",),
    ),
]


def choose(plan: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """The cases that these names or patterns match; all if there are none."""
    return [case for case in plan if not names or any(fnmatch(case.name, name) for name in names)]
