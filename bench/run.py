"""Plays the plan: round by round, and in each round peer beside peer, so that a slow minute is shared by all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.machine import syncs_per_second
from bench.peer import PLACE, SETTINGS
from bench.plan import QUICK_STOCK, Case, Stock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    say: Callable[[str], None]
    quick: bool = False
    most_rounds: int = 5
    stocks: dict[tuple[str, Stock], Path] = field(default_factory=dict)

    def play(self, plan: Sequence[Case]) -> None:
        for entry in self.entries:
            self._choose_variant(entry)
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
                figures = self._measure(entry, case.measurement, arguments, self._stocked(entry, case.stock))
        except NoFigures as reason:
            self.results.leave_out(case.name, entry.name, str(reason))
            self.say(f"round {number + 1}  {case.name:22} {entry.name:16} {reason}")
        else:
            self.results.add(case.name, entry.name, figures)
            self.say(f"round {number + 1}  {case.name:22} {entry.name:16} {_line(figures)}")

    def _choose_variant(self, entry: Entry) -> None:
        """Each peer is measured with those of its settings that drain fastest here."""
        rates: dict[str, float] = {}
        jobs = entry.drain_jobs // TRIAL_SHARE
        for variant in [*entry.variants] * (1 if self.quick else TRIALS):
            entry.variant = variant
            figures = self._alone(entry, "drain", {"jobs": jobs, "workers": 1, "timeout": PATIENCE / 2})
            rates[variant] = max(figures["rate"], rates.get(variant, 0))
            self.say(f"trial    {entry.name} {variant}: {_line(figures)}")
        entry.variant = max(rates, key=lambda name: rates[name], default="")
        self.results.peers[entry.name]["variant"] = entry.variant
        self.results.peers[entry.name]["tried"] = rates

    # -- processes ----------------------------------------------------------------------------
    def _alone(self, entry: Entry, measurement: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """In an empty store of its own."""
        place = Path(tempfile.mkdtemp(prefix=f"{entry.name}-", dir=self.work))
        try:
            return self._measure(entry, measurement, arguments, place)
        finally:
            shutil.rmtree(place)

    def _stocked(self, entry: Entry, stock: Stock) -> Path:
        """The store with that stock; filled when it is first wanted."""
        if (entry.name, stock) not in self.stocks:
            place = Path(tempfile.mkdtemp(prefix=f"{entry.name}-{stock.name}-", dir=self.work))
            share = QUICK_STOCK if self.quick else 1
            numbers = {"waiting": stock.waiting // share, "finished": stock.finished // share}
            self.say(f"filling  {entry.name} with {stock.title}")
            figures = self._measure(entry, "prepare", numbers | {"timeout": PATIENCE / 2}, place)
            self.say(f"         took {figures['seconds']:.0f} s")
            self.stocks[entry.name, stock] = place
        return self.stocks[entry.name, stock]

    def _measure(self, entry: Entry, measurement: str, arguments: dict[str, Any], place: Path) -> dict[str, Any]:
        command = [entry.python, "-m", "bench.measure", entry.name, measurement, json.dumps(arguments)]
        env = os.environ | {"PYTHONPATH": str(ROOT), PLACE: str(place), SETTINGS: json.dumps(entry.settings)}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, cwd=place, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
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
