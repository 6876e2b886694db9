"""Plays the plan: round by round, and in each round peer beside peer, so that a slow minute is shared by all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.ground import NoGround
from bench.machine import syncs_per_second
from bench.peer import PACKAGES, SETTINGS
from bench.plan import Case, Stock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.ground import Files, Ground
    from bench.result import Results
    from bench.roster import Entry

ROOT = Path(__file__).parents[1]
PATIENCE = 900.0
"""Seconds for one process, ten million jobs filled in included."""
TRIALS, TRIAL_SHARE = 2, 4


class NoFigures(Exception):
    """The peer cannot do it, or the measuring process failed; the message says which."""


@dataclass
class Run:
    entries: Sequence[Entry]
    results: Results
    work: Path  # on the file system of the project: a file system in memory would make every commit free
    grounds: Files
    say: Callable[[str], None]
    quick: bool = False
    most_rounds: int = 5
    stocks: dict[tuple[str, Stock], Ground] = field(default_factory=dict)

    def play(self, plan: Sequence[Case]) -> None:
        self.entries = [entry for entry in self.entries if self._choose_variant(entry)]
        for number in range(min(self.most_rounds, max(case.rounds for case in plan))):
            self.results.syncs.append(syncs_per_second(self.work))
            for case in plan:
                if number < case.rounds:
                    self._play_round(case, number)

    def _play_round(self, case: Case, number: int) -> None:
        for entry in self.entries:
            if case.takes(entry) and not self.results.left_out(case.name, entry.name):
                self._play_case(case, entry, number)

    def _play_case(self, case: Case, entry: Entry, number: int) -> None:
        arguments = case.arguments_for(entry, quick=self.quick)
        try:
            if case.stock is None:
                figures = self._alone(entry, case.measurement, arguments)
            else:
                with self.grounds.again(self._stocked(entry, case.stock)) as ground:
                    figures = self._measure(entry, case.measurement, arguments, ground)
        except (NoFigures, NoGround) as reason:
            self.results.leave_out(case.name, entry.name, str(reason))
            self.say(f"round {number + 1}  {case.name:22} {entry.name:16} {reason}")
        else:
            self.results.add(case.name, entry.name, figures)
            self.say(f"round {number + 1}  {case.name:22} {entry.name:16} {_line(figures)}")

    def _choose_variant(self, entry: Entry) -> bool:
        """Each peer is measured with those of its settings that drain fastest here. Whether any works at all."""
        rates: dict[str, float] = {}
        failed = ""
        for variant in [*entry.variants] * (1 if self.quick else TRIALS):
            entry.variant = variant
            try:
                figures = self._alone(
                    entry, "drain", {"jobs": entry.drain_jobs // TRIAL_SHARE, "workers": 1, "timeout": PATIENCE / 2}
                )
            except (NoFigures, NoGround) as reason:
                failed = str(reason)
                self.say(f"trial    {entry.name} {variant}: {failed}")
            else:
                rates[variant] = max(figures["rate"], rates.get(variant, 0))
                self.say(f"trial    {entry.name} {variant}: {_line(figures)}")
        if failed and not rates:
            self.results.exclude(entry.name, failed)
            return False
        entry.variant = max(rates, key=lambda name: rates[name], default="")
        self.results.peers[entry.name]["variant"] = entry.variant
        self.results.peers[entry.name]["tried"] = rates
        return True

    # -- processes ----------------------------------------------------------------------------
    def _alone(self, entry: Entry, measurement: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """In an empty store of its own."""
        ground = self.grounds.make(entry.name)
        try:
            return self._measure(entry, measurement, arguments, ground)
        finally:
            self.grounds.remove(ground)

    def _stocked(self, entry: Entry, stock: Stock) -> Ground:
        """The store with that stock; filled when it is first wanted."""
        if (entry.name, stock) not in self.stocks:
            ground = self.grounds.make(f"{entry.name}-{stock.name}")
            jobs = stock.jobs(quick=self.quick)
            self.say(f"filling  {entry.name}: {stock.name}")
            begin = time.perf_counter()
            self.grounds.fill(
                ground,
                stock,
                create=lambda: self._prepare(entry, {}, ground),
                fill=lambda: self._prepare(entry, jobs, ground),
            )
            self.say(f"         took {time.perf_counter() - begin:.0f} s")
            self.stocks[entry.name, stock] = ground
        return self.stocks[entry.name, stock]

    def _prepare(self, entry: Entry, jobs: dict[str, int], ground: Ground) -> None:
        self._measure(entry, "prepare", jobs | {"timeout": PATIENCE / 2}, ground)

    def _measure(self, entry: Entry, measurement: str, arguments: dict[str, Any], ground: Ground) -> dict[str, Any]:
        return measure(entry, measurement, arguments, ground)


def measure(
    entry: Entry,
    measurement: str,
    arguments: dict[str, Any],
    ground: Ground,
    modules: Sequence[Path] = (ROOT,),
) -> dict[str, Any]:
    """The figures of one measurement, taken by a process that imports `bench` from the first of these folders."""
    name = f"{entry.field}.{entry.name}"
    paths = os.pathsep.join(map(str, modules))
    process = subprocess.Popen(
        [entry.python, "-m", "bench.measure", name, measurement, json.dumps(arguments)],
        cwd=ground.place,
        env={
            **os.environ,
            **ground.environment,
            "PYTHONPATH": paths,
            SETTINGS: json.dumps(entry.settings),
            PACKAGES: str(entry.home),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=PATIENCE)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)  # with the workers it has started
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise NoFigures(f"failed: nothing after {PATIENCE:.0f} s") from None
        raise
    if process.returncode:
        raise NoFigures(f"failed: {errors.strip()[-1500:]}")
    figures: dict[str, Any] = json.loads(out.splitlines()[-1])
    if "unsupported" in figures:
        raise NoFigures(f"no {figures['unsupported']}")
    return figures


def _line(figures: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:,.{0 if value >= 100 else 3}f}" for name, value in figures.items())
