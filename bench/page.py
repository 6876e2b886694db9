"""docs/benchmarks.md and its drawings, written from results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import plot, table

if TYPE_CHECKING:
    from pathlib import Path

    from bench.result import Results

PAGE = """\
<!-- Written by `python -m bench --write-docs`; edit bench/page.py instead. -->

# Benchmarks

One run of

```
{command}
```

on {when}{quick} (`make bench` measures everything; what this run left out is shown as not measured).
Every figure is the median of its rounds, with the lowest and highest in brackets; in square brackets, how many times
better Mainspring is (below 1: worse), as the median of the rounds' own ratios. In each round the peers take turns, so
that a slow minute is shared by all.

## Goals

{goals}

## Side by side

![Rates, a bar per peer](benchmarks/rates.svg)

{comparison}

{gaps}

## Beside other jobs

Jobs that wait for later, at mixed priorities, or that have finished should not slow down those that are due.

![Drain rate against the number of other jobs](benchmarks/backlog.svg)

{backlog}

## What is measured

- The job does nothing; its payload is `{{"n": 123456, "s": "a small payload, as most are: an id or two"}}`.
- **enqueue**: durable jobs per second from one process: one by one, from 50 asyncio tasks (peers without asyncio are
  called from them one after the other, which is their fastest), and with the peer's own bulk call.
- **drain**: the peer's own worker, as a process of its own, empties a queue. From the moment when every worker process
  has its first job in hand until the last job has been acked.
- **start latency**: one process enqueues a job every 5–20 ms, another runs it. From before the call to enqueue, so the
  commit is included, until the first line of the handler.
- **lateness**: 300 jobs set for times within 5 s; from that time until the first line of the handler. A negative figure
  is a job that started early.
- **idle worker**: processor time over 10 s with 1 M jobs waiting for later, its children included.
- **claim**: one call of the store's claim, its commit included, in a process that does nothing else.

All stores are files on the file system of the project, none in memory.

## Who takes part

{peers}

## The machine

{machine}

Absolute figures belong to this machine; take the ratios. To measure on yours: `make bench` (about {minutes} minutes
and 10 GB of disk; `python -m bench --quick` tries everything out in a few).
"""
MINUTES = 25


def write(results: Results, docs: Path) -> None:
    drawings = docs / "benchmarks"
    drawings.mkdir(parents=True, exist_ok=True)
    (drawings / "rates.svg").write_text(plot.bars(results), "utf-8")
    (drawings / "backlog.svg").write_text(plot.backlog(results), "utf-8")
    (docs / "benchmarks.md").write_text(_page(results), "utf-8")


def _page(results: Results) -> str:
    return PAGE.format(
        when=results.when,
        command=results.command,
        quick=" (a quick one, for trying: these figures mean little)" if results.quick else "",
        minutes=MINUTES,
        goals=table.as_markdown(table.goals(results)),
        comparison=table.as_markdown(table.comparison(results)),
        backlog=table.as_markdown(table.backlog(results)),
        gaps=_gaps(results),
        peers=table.as_markdown(_peers(results)),
        machine=table.as_markdown(_machine(results)),
    )


def _machine(results: Results) -> table.Table:
    syncs = ", ".join(table.number(syncs) for syncs in results.syncs)
    return [["", ""], *([name, value] for name, value in results.machine.items()), ["fdatasync/s, by round", syncs]]


def _peers(results: Results) -> table.Table:
    header = ["", "version", "Python", "durability", "worker"]
    rows = [
        [
            peer["title"],
            ", ".join(peer["dependencies"]) or "this one",
            peer["python"],
            peer["durability"],
            _worker(peer["worker"], peer.get("variant", ""), peer.get("tried", {})),
        ]
        for peer in results.peers.values()
    ]
    return [header, *rows]


def _worker(words: str, variant: str, tried: dict[str, float]) -> str:
    if not variant:
        return words
    rates = ", ".join(f"{name} ({table.number(rate)}/s)" for name, rate in tried.items())
    return f"{words}; {variant}, the fastest of {rates}"


def _gaps(results: Results) -> str:
    """Why a cell is empty."""
    lines = [
        f"- {results.peers[peer]['title']}, {case}: {reason.splitlines()[0]}"
        for case, gaps in results.gaps.items()
        for peer, reason in gaps.items()
    ]
    return "\n".join(["A dash is what a peer does not have, or what would mean nothing.", "", *lines])
