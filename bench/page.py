"""docs/benchmarks.md and its drawings, written from results: a section per field.

A field that was not measured keeps the section that the page has.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bench import plot, table
from bench.field import FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bench.field import Field
    from bench.result import ReadResults, Results

PAGE = """\
<!-- Written by `python -m bench --write-docs`; edit bench/page.py instead. -->

# Benchmarks

This page compares Mainspring with its peers on one machine, on [SQLite](#sqlite), on [PostgreSQL](#postgresql) and by
[HTTP](#http). Each peer has the best settings that its documentation gives. The [occasions](#occasions) of people have
no peers; they are compared with bare SQL. The change feed ([SQLite](#change-feed-on-sqlite),
[PostgreSQL](#change-feed-on-postgresql)) and the [reads](#reads) of pages and operators have none either.

Every figure is the median of its rounds. Round brackets hold the lowest and the highest round. Square brackets say how
many times better Mainspring is (below 1: worse), as the median of the ratios of all rounds. In each round the peers
take turns, so that a slow minute affects all of them.

## On your machine

Absolute figures depend on the machine; ratios depend on it less. `make bench` measures everything on yours. To measure
one part:

{commands}

`--quick` tries everything out in a few minutes. `--write-docs` writes this page; a part that was never measured is
shown as not measured.

## What is measured

- The job does nothing; its payload is `{"n": 123456, "s": "a small payload, as most are: an id or two"}`.
- **enqueue**: durable jobs per second from one process: one by one, from 50 asyncio tasks (peers without asyncio are
  called from them one after the other, which is their fastest), and with the peer's own bulk call, 1000 jobs at once.
- **enqueue while a worker listens** (PostgreSQL): the same call with an idle worker that is to be told of new jobs, as
  a share of the rate without one. The worker's process is stopped (SIGSTOP), so that it stays idle and takes no time
  from the enqueuer by running them. Only for Mainspring, pgqueuer and procrastinate.
- **drain**: the peer's own worker, as a process of its own, empties a queue. From the moment when every worker process
  has its first job in hand until the last job has been acked.
- **drain in chunks** (PostgreSQL): the same with a handler that is called once for up to 1000 jobs. Only for
  Mainspring and pg-boss.
- **drain with a reader** (change feed): the drain while another process reads every change from the change feed, as a
  share of the drain without: eight pairs in turn, and the median of their shares.
- **idle reader** (change feed): processor time over 30 seconds of a process that waits for changes while there are
  none; of the server, the processes that serve the reader.
- **limits** (only ours): the drain with a rate that is never reached, and beside 100 k jobs that a limit blocks, as
  shares of the drain without; the two are measured one after the other.
- **fair** (only ours): one tenant has 100 k jobs of 50 ms; single jobs of others come along, one after the other. The
  longest that one of ten had to wait, in service times. **fair drain**: jobs that do nothing, of so many keys.
- **start latency**: one process enqueues a job every 5–20 ms, another runs it. From before the call to enqueue, so the
  commit is included, until the first line of the handler.
- **lateness**: jobs set for times within some seconds; from that time until the first line of the handler. A negative
  figure is a job that started early.
- **idle worker**, **idle server**: processor time over ten seconds or more with nothing due, children included; of the
  server, all of its processes. On SQLite beside 1 M jobs that wait for later, on PostgreSQL without and with them.
- **import** (occasions): 50,000 people from a CSV file into an empty store by `app.people.import_csv`, each with an
  e-mail address and a birthday. Beside it the same rows by bare SQL statements, which check and plan nothing.
- **burst** (occasions): all of them have their birthday at nine o'clock in one time zone, and an idle worker waits
  for it. From that instant until the last job was made (*fired*), and until the same worker has started the last of
  these jobs (*run*). The bare statements make the same rows and run no jobs.
- **enqueue by HTTP**: jobs per second, and the time of a request, for 1, 16 and 64 connections that each wait for one
  answer before the next request. The load comes from a process of its own. Beside it: an empty route of the same
  framework and server, and a FastAPI application that enqueues with Celery.
- **bulk enqueue by HTTP**: 1000 jobs per request, one request at a time; beside the library's own bulk call.
- **memory of the service**: `mainspring serve` enqueues and runs 20 jobs per second for ten minutes while 200 clients
  follow all events. Its growth is that of the last minute over the second one.
- **claim** (SQLite): one call of the store's claim, its commit included, in a process that does nothing else.

{sections}
"""
SECTION = """\
<!-- field {name} -->
## {title}

One run of

```
{command}
```

on {when}{quick}.

### {title}: goals

{goals}

### {title}: side by side

{drawing}{comparison}

{gaps}

{beside}### {title}: who takes part

{peers}

{ground}

### {title}: the machine

{machine}
<!-- end of field {name} -->"""
READS = """\
<!-- field reads -->
## Reads

How long the reads of pages and operators take with a million jobs: 200 k that wait and 800 k that have finished,
100 k entries of the audit log, 10,000 failure groups, and numbers for two years. One run of

```
{command}
```

on {when}. Each read was done five times by one process; the median of the store's time counts, with that of its client
library. The table has the slowest read of each group. The goal: every read takes less than {goal:.0f} ms.

{figures}

{slow}

### Reads: the machine

{machine}
<!-- end of field reads -->"""
UNMEASURED_READS = """\
<!-- field reads -->
## Reads

Not measured yet: `python -m bench.reads --write-docs`.
<!-- end of field reads -->"""
RATES = """\
![Rates on {title}, a bar per peer](benchmarks/{name}-rates.svg)

"""
BESIDE_OTHERS = """\
### {title}: beside other jobs

{words}

![Drain rate on {title} beside other jobs](benchmarks/{name}-backlog.svg)

{backlog}

"""
UNMEASURED = """\
<!-- field {name} -->
## {title}

Not measured yet: `python -m bench --field {name} --write-docs`.
<!-- end of field {name} -->"""
BESIDE = {
    "sqlite": """\
Jobs that wait for later, at mixed priorities, or that have finished should not slow down those that are due.""",
    "postgres": """\
Jobs that are due but not yet at their turn, that wait for later, or that have finished should not slow down those
whose turn it is, whatever the planner knows. Its statistics are fresh (ANALYZE after the tables were filled), stale
(ANALYZE of the empty tables, then filled) or absent; where they are stale or absent, autovacuum is off for these
tables. Each figure is measured in a new copy of the filled database; in square brackets, its share of the rate beside
nothing else. Before a backlog of due jobs it is the rate of the first 40 k jobs, without their first tenth; elsewhere
it is a drain of 40 k jobs.""",
}
GROUND = {
    "http": """\
All servers are uvicorn with the settings of `mainspring serve`, one process each, on the loopback address. The store is
a SQLite file on the file system of the project; the server of Redis is started for the run. The shares of the empty
route are measured in turn, in ten pairs of slices of 1.5 seconds; the median of the pairs counts.""",
    "occasions": "Both stores are SQLite files on the file system of the project.",
    "sqlite": "All stores are files on the file system of the project, none in memory.",
    "feed-sqlite": "The store is a file on the file system of the project. Worker and reader share the machine.",
    "feed-postgres": """\
The server is started for the run with its own defaults ({settings}), its data on the file system of the project.
Server, worker and reader share the machine.""",
    "postgres": """\
All of them use one server, started for the run with its own defaults ({settings}), its data on the file system of the
project; each measurement has a database of its own. They connect by TCP. Every job is one call of the handler, but
in the drain in chunks and for the raw loop, which calls none. What is written for Node is called and timed there.""",
}


def write(measured: Mapping[str, Results], docs: Path, reads: ReadResults | None = None) -> None:
    """The sections of the fields and reads that were measured; the others stay as they are."""
    path, drawings = docs / "benchmarks.md", docs / "benchmarks"
    drawings.mkdir(parents=True, exist_ok=True)
    before = path.read_text("utf-8") if path.exists() else ""
    sections = []
    for field in FIELDS.values():
        if results := measured.get(field.name):
            if field.stocks:
                (drawings / f"{field.name}-rates.svg").write_text(plot.bars(results), "utf-8")
                (drawings / f"{field.name}-backlog.svg").write_text(plot.backlog(results, field.stocks), "utf-8")
            sections.append(_section(field, results))
        else:
            sections.append(_section_of(field.name, before) or UNMEASURED.format(name=field.name, title=field.title))
    sections.append(_reads(reads) if reads else _section_of("reads", before) or UNMEASURED_READS)
    page = PAGE.replace("{sections}", "\n\n".join(sections)).replace("{commands}", _commands())
    path.write_text(page, "utf-8")


def _section_of(name: str, page: str) -> str:
    found = re.search(rf"<!-- field {name} -->.*<!-- end of field {name} -->", page, re.DOTALL)
    return found[0] if found else ""


def _commands() -> str:
    costs = [
        f"- `python -m bench --field {field.name}`: about {field.minutes} minutes and {field.gigabytes} GB of disk"
        for field in FIELDS.values()
    ]
    costs.append("- `python -m bench.reads`: about 3 minutes and 3 GB of disk")
    return "\n".join(costs)


def _section(field: Field, results: Results) -> str:
    return SECTION.format(
        name=field.name,
        title=field.title,
        when=results.when,
        command=results.command,
        quick=" (a quick one, for trying: these figures mean little)" if results.quick else "",
        goals=table.as_markdown(table.goals(field, results)),
        comparison=table.as_markdown(table.comparison(results)),
        drawing=RATES.format(name=field.name, title=field.title) if field.stocks else "",
        beside=_beside(field, results) if field.stocks else "",
        gaps=_gaps(results),
        peers=table.as_markdown(_peers(results)),
        ground=GROUND[field.name].format(settings=_settings(results)),
        machine=table.as_markdown(_machine(results)),
    )


def _reads(results: ReadResults) -> str:
    slow = table.slow_reads(results)
    return READS.format(
        command=results.command,
        when=results.when,
        goal=table.READ_GOAL,
        figures=table.as_markdown(table.reads(results)),
        slow="\n".join(["Slower than the goal:", "", *(f"- {read}" for read in slow)]) if slow else "All of them do.",
        machine=table.as_markdown([["", ""], *([name, value] for name, value in results.machine.items())]),
    )


def _beside(field: Field, results: Results) -> str:
    backlog = table.as_markdown(table.backlog(field, results))
    return BESIDE_OTHERS.format(name=field.name, title=field.title, words=BESIDE[field.name], backlog=backlog)


def _settings(results: Results) -> str:
    return ", ".join(f"`{name}` {value}" for name, value in results.server.items())


def _machine(results: Results) -> table.Table:
    syncs = ", ".join(table.number(syncs) for syncs in results.syncs)
    return [["", ""], *([name, value] for name, value in results.machine.items()), ["fdatasync/s, by round", syncs]]


def _peers(results: Results) -> table.Table:
    """A column that says nothing about anybody is left out."""
    header = ["", "version", "runs on", "durability", "finished jobs", "worker", "jobs drained"]
    rows = [
        [
            peer["title"],
            ", ".join(peer["versions"]) or "this one",
            peer["runs_on"],
            peer["durability"],
            peer["finished"],
            _worker(peer["worker"], peer.get("variant", ""), peer.get("tried", {})),
            table.number(peer["jobs"]),
        ]
        for peer in results.peers.values()
    ]
    told = [i for i in range(len(header)) if i == 0 or any(row[i] for row in rows)]
    return [[row[i] for i in told] for row in [header, *rows]]


def _worker(words: str, variant: str, tried: dict[str, float]) -> str:
    if not variant:
        return words
    if len(tried) == 1:
        return f"{words}; {variant}"
    rates = ", ".join(f"{name} ({table.number(rate)}/s)" for name, rate in tried.items())
    return f"{words}; {variant}, the fastest of {rates}"


def _gaps(results: Results) -> str:
    """Why a cell is empty, or a peer is not there at all."""
    lines = [
        f"- {results.peers[peer]['title']}, {case}: {_brief(reason)}"
        for case, gaps in results.gaps.items()
        for peer, reason in gaps.items()
        if peer in results.peers
    ]
    lines += [f"- {title} took no part: {_brief(reason)}" for title, reason in results.absent.items()]
    return "\n".join(["A dash is what a peer does not have, or what would mean nothing.", "", *lines]).strip()


def _brief(reason: str) -> str:
    """One line: the first of ours, or the last of a traceback."""
    lines = reason.strip().splitlines() or ["no reason given"]
    return lines[-1].strip() if "Traceback" in reason else lines[0].strip()
