"""Made-up results: what a run of each field might have left."""

from __future__ import annotations

from typing import Any

from bench.field import FIELDS, Field
from bench.plan import Case
from bench.result import Results

FIGURES = {
    "enqueue": {"rate": 1000.0},
    "enqueue_concurrently": {"rate": 20_000.0},
    "enqueue_in_bulk": {"rate": 90_000.0},
    "enqueue_heard": {"rate": 950.0, "unheard": 1000.0, "share": 95.0},
    "drain": {"rate": 30_000.0, "megabytes": 60.0},
    "drain_in_chunks": {"rate": 40_000.0, "megabytes": 60.0},
    "drain_backlog": {"rate": 29_000.0, "megabytes": 60.0},
    "latency": {"p50": 2.0, "p99": 9.0, "max": 11.0, "min": 1.0},
    "lateness": {"p50": 3.0, "p99": 8.0, "max": 9.0, "min": -1.0},
    "idle": {"percent": 0.2, "server": 0.4, "megabytes": 60.0},
    "idle_reader": {"percent": 0.05, "server": 0.02},
    "drain_followed": {"rate": 29_000.0, "alone": 30_000.0, "share": 97.0},
    "drain_rated": {"rate": 29_000.0, "free": 30_000.0, "share": 97.0},
    "drain_beside_blocked": {"rate": 30_000.0, "free": 30_000.0, "share": 100.0},
    "drain_fairly": {"rate": 9_000.0, "megabytes": 60.0},
    "fairness": {"worst": 1.4, "median": 1.1},
    "import_people": {"rate": 16_000.0},
    "burst": {"rate": 11_000.0, "ran": 8_000.0, "last": 6.2},
    "http_enqueue": {"rate": 2_500.0, "p50": 6.0, "p99": 12.0},
    "http_share": {"share": 65.0},
    "http_bulk": {"rate": 40_000.0},
    "live_memory": {"growth": 1.0, "megabytes": 120.0, "least_received": 900.0},
    "claim": {"milliseconds": 0.5, "worst": 1.0},
}
RIVALS = {"http": ("celery",), "sqlite": ("huey", "litequeue"), "postgres": ("pgqueuer", "pg_boss")}


def results_of(name: str) -> Results:
    """Every case of the field, three rounds each; the peers are half as fast as we are."""
    field = FIELDS[name]
    names = ("mainspring", *RIVALS.get(name, ()), "floor")
    results = Results("2026-01-02", f"python -m bench --field {name}", quick=False, machine={"processor": "2 cores"})
    results.syncs = [4000.0, 4100.0]
    results.server = {"server_version": "18.6", "fsync": "on"} if field.served else {}
    results.peers = {peer: described(peer) for peer in names}
    for case in field.plan:
        for peer in names:
            record(results, case, peer)
    return results


def described(peer: str) -> dict[str, Any]:
    return {
        "title": peer.title(),
        "durability": "",
        "finished": "kept",
        "worker": f"{peer} work",
        "versions": [f"{peer}==1.0"],
        "runs_on": "Python 3.11",
        "jobs": 50_000,
        "variant": "batches of 100",
        "tried": {"batches of 10": 900.0, "batches of 100": 9000.0},
    }


def record(results: Results, case: Case, peer: str, share: float = 1.0) -> None:
    times = share if peer == "mainspring" else share / 2
    for _ in range(3):
        results.add(case.name, peer, {name: value * times for name, value in FIGURES[case.measurement].items()})


def case_of(field: Field, name: str) -> Case:
    return next(case for case in field.plan if case.name == name)
