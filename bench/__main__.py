"""`python -m bench`: the whole plan of each field in one run, as tables with ratios."""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bench import machine, page, plan, roster, table
from bench.field import FIELDS, Field
from bench.ground import Databases, Files
from bench.result import ReadResults, Results
from bench.run import Run
from bench.server import NoServer, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
RESULTS = HERE / "results"
WORK = HERE / ".work"
DOCS = HERE.parent / "docs"
BEGIN = time.monotonic()


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started and filled is cleaned up
    fields = [FIELDS[name] for name in options.field or FIELDS]
    if not options.no_run:
        measure_all(fields, options)
    measured = {field.name: Results.load(path) for field in fields if (path := kept(field)).exists()}
    if not measured:
        raise SystemExit("no results are kept here: run it without --no-run")
    for name, results in measured.items():
        show(FIELDS[name], results)
    if options.write_docs:
        path = kept_reads()
        page.write(measured, DOCS, ReadResults.load(path) if path.exists() else None)
        say(f"wrote {DOCS / 'benchmarks.md'}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--field", nargs="+", choices=FIELDS, default=[], help="only these fields")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="only these measurements, such as drain-1 or 'claim-*'"
    )
    parser.add_argument("--peers", nargs="+", default=[], metavar="PEER", help="only these peers")
    parser.add_argument("--rounds", type=int, default=5, help="at most so many rounds")
    parser.add_argument("--quick", action="store_true", help="small counts, to try it out")
    parser.add_argument("--write-docs", action="store_true", help="write docs/benchmarks.md and its drawings")
    parser.add_argument("--no-run", action="store_true", help="use the results of the last run")
    return parser.parse_args()


def measure_all(fields: list[Field], options: argparse.Namespace) -> None:
    """Each field by itself: its results are kept as soon as they are there."""
    cases = {field.name: plan.choose(field.plan, options.only) for field in fields}
    if not any(cases.values()):
        names = dict.fromkeys(case.name for field in fields for case in field.plan)
        raise SystemExit(f"no such measurement; there are {', '.join(names)}")
    entries = {field.name: roster.read(field.peers) for field in fields}
    names = dict.fromkeys(entry.name for found in entries.values() for entry in found)
    if unknown := set(options.peers) - set(names):
        raise SystemExit(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    for field in fields:
        chosen = participants(entries[field.name], cases[field.name], options.peers)
        if chosen:
            measure(field, cases[field.name], chosen, options).save(kept(field))


def participants(entries: list[roster.Entry], cases: list[plan.Case], names: list[str]) -> list[roster.Entry]:
    """The peers, of these names if any are given, that some case measures."""
    named = [entry for entry in entries if not names or entry.name in names]
    return [entry for entry in named if any(case.takes(entry) for case in cases)]


def measure(field: Field, cases: list[plan.Case], entries: list[roster.Entry], options: argparse.Namespace) -> Results:
    say(f"{field.title}: {len(cases)} measurements of {len(entries)} peers")
    absent = {entry.title: reason for entry in entries if (reason := hindrance(entry))}
    entries = [entry for entry in entries if entry.title not in absent]
    WORK.mkdir(exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="run-", dir=WORK))
    try:
        results = Results(
            f"{datetime.now(UTC):%Y-%m-%d}",
            shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
            options.quick,
            machine.describe(work, sqlite=not field.served),
            peers=describe(entries),
            absent=absent,
        )
        with grounds(field, work, results) as places:
            Run(entries, results, work, places, say, quick=options.quick, most_rounds=options.rounds).play(cases)
    finally:
        shutil.rmtree(work)
    return results


@contextmanager
def grounds(field: Field, work: Path, results: Results) -> Iterator[Files]:
    if not field.served:
        yield Files(work)
        return
    try:
        server = Server(work / "server")
        server.start()
    except NoServer as reason:
        raise SystemExit(f"{field.title} cannot be measured: {reason}") from None
    try:
        results.server = server.settings()
        yield Databases(work, server)
    finally:
        server.stop()


def kept(field: Field) -> Path:
    return RESULTS / f"{field.name}.json"


def kept_reads() -> Path:
    return RESULTS / "reads.json"


def hindrance(entry: roster.Entry) -> str:
    """What keeps a peer from taking part; nothing if it can."""
    try:
        roster.make_environment(entry, say)
    except roster.CannotTakePart as reason:
        say(f"skipping {entry.name}: {reason}")
        return str(reason)
    return ""


def describe(entries: list[roster.Entry]) -> dict[str, dict[str, object]]:
    return {
        entry.name: {
            "title": entry.title,
            "durability": entry.durability,
            "finished": entry.finished,
            "worker": entry.worker,
            "versions": entry.versions,
            "runs_on": entry.runs_on,
            "jobs": entry.drain_jobs,
        }
        for entry in entries
    }


def show(field: Field, results: Results) -> None:
    print(f"\n{field.title}, {results.when}{' (quick)' if results.quick else ''}")
    for shown in (table.comparison(results), table.backlog(field, results), table.goals(field, results)):
        if len(shown) > 1:
            print(f"\n{table.as_text(shown)}")
    for title, reason in results.absent.items():
        print(f"\n{title} took no part: {reason}")
    syncs = ", ".join(map(table.number, results.syncs))
    print(f"\nfdatasync/s, round by round: {syncs} (if they differ much, the machine had other things to do)")


def say(words: str) -> None:
    """With the minutes since the start: a whole run takes half an hour."""
    minutes, seconds = divmod(int(time.monotonic() - BEGIN), 60)
    print(f"{minutes:3}:{seconds:02}  {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
