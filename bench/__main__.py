"""`python -m bench`: the whole plan in one run, as a table with ratios."""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from bench import machine, page, plan, roster, table
from bench.result import Results
from bench.run import Run

HERE = Path(__file__).parent
LATEST = HERE / "results" / "latest.json"
WORK = HERE / ".work"
DOCS = HERE.parent / "docs"


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started and filled is cleaned up
    results = Results.load(LATEST) if options.no_run else measure(options)
    show(results)
    if options.write_docs:
        page.write(results, DOCS)
        say(f"wrote {DOCS / 'benchmarks.md'}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="only these measurements, such as drain-1 or 'claim-*'"
    )
    parser.add_argument("--peers", nargs="+", default=[], metavar="PEER", help="only these peers")
    parser.add_argument("--rounds", type=int, default=5, help="at most so many rounds")
    parser.add_argument("--quick", action="store_true", help="small counts, to try it out")
    parser.add_argument("--write-docs", action="store_true", help="write docs/benchmarks.md and its drawings")
    parser.add_argument("--no-run", action="store_true", help="use the results of the last run")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> Results:
    cases = plan.choose(options.only)
    entries = [entry for entry in roster.read(options.peers) if can_play(entry)]
    WORK.mkdir(exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="run-", dir=WORK))
    try:
        results = Results(
            f"{datetime.now(UTC):%Y-%m-%d}",
            shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
            options.quick,
            machine.describe(work),
            peers=describe(entries),
        )
        Run(entries, results, work, say, quick=options.quick, most_rounds=options.rounds).play(cases)
    finally:
        shutil.rmtree(work)
    results.save(LATEST)
    return results


def can_play(entry: roster.Entry) -> bool:
    if entry.missing:
        say(f"skipping {entry.name}: {entry.missing}")
        return False
    try:
        roster.make_environment(entry, say)
    except roster.NoInterpreter as reason:
        say(f"skipping {entry.name}: {reason}")
        return False
    return True


def describe(entries: list[roster.Entry]) -> dict[str, dict[str, object]]:
    return {
        entry.name: {
            "title": entry.title,
            "durability": entry.durability,
            "worker": entry.worker,
            "dependencies": list(entry.dependencies),
            "python": entry.python_version,
        }
        for entry in entries
    }


def show(results: Results) -> None:
    for shown in (table.comparison(results), table.backlog(results), table.goals(results)):
        if len(shown) > 1:
            print(f"\n{table.as_text(shown)}")
    syncs = ", ".join(map(table.number, results.syncs))
    print(f"\nfdatasync/s, round by round: {syncs} (if they differ much, the machine had other things to do)")


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
