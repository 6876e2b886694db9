"""`python -m bench.against COMMIT…`: this code and earlier commits of it, measured in turn in one run.

Each round measures all of them, and the next round in the opposite order, so that a slow minute is shared. What counts
is the ratio of two figures of one round. Each side runs with the benchmark programs of its own commit.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from bench import plan, roster, table
from bench.__main__ import WORK, say
from bench.field import FIELDS, Field
from bench.ground import Databases, Files
from bench.run import ROOT, measure
from bench.server import Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.table import Line

CASES = ["enqueue", "enqueue-50", "enqueue-bulk", "drain-1", "latency"]
FIELD_NAMES = ["sqlite", "postgres"]
NEW = "new"


@dataclasses.dataclass
class Contest:
    """One field: both sides measured in turn."""

    field: Field
    grounds: Files
    sides: dict[str, Path]  # the folder of each side's code
    quick: bool = False
    figures: dict[tuple[str, str], list[dict[str, float]]] = dataclasses.field(default_factory=dict)  # by case and side

    def play(self, cases: Sequence[plan.Case], rounds: int) -> None:
        for number in range(rounds):
            for case in cases:
                for side in list(self.sides)[:: -1 if number % 2 else 1]:
                    self._play(case, side, number)

    def _play(self, case: plan.Case, side: str, number: int) -> None:
        entry = next(entry for entry in roster.read(self.field.peers) if entry.name == roster.OURS)
        ground = self.grounds.make(side)
        try:
            arguments = case.arguments_for(entry, quick=self.quick)
            taken = measure(entry, case.measurement, arguments, ground, _modules(self.sides[side]))
        finally:
            self.grounds.remove(ground)
        self.figures.setdefault((case.name, side), []).append(taken)
        say(f"round {number + 1}  {self.field.name:8} {case.name:12} {side:8} {_line(taken)}")

    def tables(self) -> Iterator[table.Table]:
        """For each old commit a line per figure: the medians, and the median and quartiles of the ratios in pairs."""
        for old in self.sides:
            if old != NEW:
                lines = (line for line in table.LINES if (line.case, NEW) in self.figures)
                yield [["", old, NEW, "better by, %", "quartiles"], *(self._row(line, old) for line in lines)]

    def _row(self, line: Line, old: str) -> list[str]:
        before, after = ([each[line.figure] for each in self.figures[line.case, side]] for side in (old, NEW))
        gains = [((b / a if line.more_is_better else a / b) - 1) * 100 for a, b in zip(before, after, strict=True)]
        low, middle, high = quantiles(gains, n=4, method="inclusive") if len(gains) > 1 else gains * 3
        medians = [_number(median(before)), _number(median(after))]
        return [line.title, *medians, f"{middle:+.1f}", f"{low:+.1f} to {high:+.1f}"]


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is cleaned up
    WORK.mkdir(exist_ok=True)
    with ExitStack() as cleanup:
        work = Path(tempfile.mkdtemp(prefix="against-", dir=options.work or WORK))
        cleanup.callback(shutil.rmtree, work)
        sides = {commit: extract(commit, work / f"code-{commit}") for commit in options.commits} | {NEW: ROOT}
        contests = [contest(FIELDS[name], work, sides, options, cleanup) for name in options.field]
        for each in contests:
            each.play(plan.choose(each.field.plan, options.only), options.rounds)
    for each in contests:
        for shown in each.tables():
            print(f"\n{each.field.title}, {options.rounds} rounds\n\n{table.as_text(shown)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.against", description=__doc__)
    parser.add_argument("commits", nargs="+", metavar="COMMIT", help="the old code")
    parser.add_argument("--field", nargs="+", choices=FIELD_NAMES, default=FIELD_NAMES, help="only these fields")
    parser.add_argument("--only", nargs="+", default=CASES, metavar="NAME", help="these measurements instead")
    parser.add_argument("--rounds", type=int, default=8, help="how often each side is measured")
    parser.add_argument("--quick", action="store_true", help="small counts, to try it out")
    parser.add_argument("--work", type=Path, help="where the data is, such as a file system in memory")
    return parser.parse_args()


def contest(
    chosen: Field, work: Path, sides: dict[str, Path], options: argparse.Namespace, cleanup: ExitStack
) -> Contest:
    grounds = Files(work)
    if chosen.served:
        server = Server(work / "server")
        cleanup.callback(server.stop)
        server.start()
        grounds = Databases(work, server)
    return Contest(chosen, grounds, sides, options.quick)


def extract(commit: str, folder: Path) -> Path:
    """The code of that commit, in a folder of its own."""
    packed = folder.with_suffix(".tar")
    try:
        subprocess.run(["git", "archive", "-o", str(packed), commit], cwd=ROOT, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise SystemExit(f"{commit} cannot be taken out of git here: is it a commit of this repository?") from None
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _modules(root: Path) -> tuple[Path, Path]:
    return root, root / "src"


def _line(figures: dict[str, Any]) -> str:
    return "  ".join(f"{name} {_number(value)}" for name, value in figures.items())


def _number(value: float) -> str:
    return f"{value:,.{0 if value >= 100 else 2}f}"


if __name__ == "__main__":
    main()
