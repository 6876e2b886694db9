"""The ledger: what the processes of a test say they did, written beside the store and never read by it.

Each line is one `write` to a file opened for appending. Its stamp is CLOCK_MONOTONIC, which all processes share.

    ack        an enqueue returned this id
    start      a handler began, under this token
    end, fail  it came to its end; it raised or was stopped
    done       the worker was told that the store has it as completed
    kill       the killer is about to kill this process
    stop       it is about to be stopped, for longer than the lease: from then on its claims may be another's

A process can be killed in the middle of a line. Such a line does not end in `;` and counts as not written.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LINE = re.compile(r"(ack|start|end|fail|done|kill|stop|note) (\S+) (\d+) (\S+) (\d+);")
NOBODY = "-"


class Pen:
    """One process's way to write into the ledger."""

    def __init__(self, path: Path, who: str) -> None:
        self._who = who
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, kind: str, job_id: str = NOBODY, token: int = 0, *, at: int | None = None, who: str = "") -> None:
        stamp = time.monotonic_ns() if at is None else at
        os.write(self._file, f"\n{kind} {job_id} {token} {who or self._who} {stamp};\n".encode())

    def close(self) -> None:
        os.close(self._file)


@dataclass(frozen=True, slots=True)
class Entry:
    kind: str
    job_id: str
    token: int
    who: str
    at: int  # nanoseconds


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a handler. `over` is when the job may be run again at the earliest."""

    job_id: str
    token: int
    who: str
    start: int
    end: int | None  # it came to its end: only the death of its process excuses another run
    fail: int | None
    killed: int | None  # its process
    stopped: int | None = None  # its process, for the first time since

    @property
    def over(self) -> float:
        return min((at for at in (self.fail, self.killed, self.stopped) if at is not None), default=float("inf"))


class Ledger:
    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = sorted(entries, key=lambda entry: entry.at)
        self.acknowledged = {entry.job_id for entry in self.of("ack")}
        self.deaths = {entry.who: entry.at for entry in self.of("kill")}
        self.stops = self._moments("stop", of="who")
        self.done = self._moments("done")
        self.late: list[Entry] = []  # starts of zombies
        self.runs = self._runs()

    @classmethod
    def read(cls, path: Path, *, since: int = 0) -> Ledger:
        """All of it, or what was written after so many bytes."""
        if not path.exists():
            return cls([])
        with path.open("rb") as file:
            file.seek(since)
            lines = file.read().decode("ascii", errors="replace").splitlines()
        found = (LINE.fullmatch(line) for line in lines)
        return cls(Entry(m[1], m[2], int(m[3]), m[4], int(m[5])) for m in found if m is not None)

    def of(self, *kinds: str, who: str = "") -> list[Entry]:
        return [entry for entry in self.entries if entry.kind in kinds and (not who or entry.who == who)]

    def count(self, kind: str) -> int:
        return len(self.of(kind))

    def repeated(self, who: str) -> list[Run]:
        """Runs of this process that came to their end, and had to be done again."""
        return [run for runs in self.runs.values() for run, _ in pairs(runs) if run.who == who and run.end is not None]

    def _moments(self, kind: str, of: str = "job_id") -> dict[str, list[int]]:
        moments = defaultdict(list)
        for entry in self.of(kind):
            moments[getattr(entry, of)].append(entry.at)
        return moments

    def _runs(self) -> dict[str, list[Run]]:
        """Per job, in the order in which they began."""
        ends = {(entry.job_id, entry.token, entry.who): entry for entry in self.of("end", "fail")}
        runs: dict[str, list[Run]] = defaultdict(list)
        for entry in self.of("start"):
            if self._is_late(entry, runs[entry.job_id]):
                self.late.append(entry)
                continue
            last = ends.get((entry.job_id, entry.token, entry.who))
            end = last.at if last is not None and last.kind == "end" else None
            fail = last.at if last is not None and last.kind == "fail" else None
            killed = self.deaths.get(entry.who)
            stopped = next((at for at in self.stops.get(entry.who, ()) if at > entry.at), None)
            runs[entry.job_id].append(Run(entry.job_id, entry.token, entry.who, entry.at, end, fail, killed, stopped))
        return runs

    def _is_late(self, start: Entry, before: Sequence[Run]) -> bool:
        """It was stopped when it had claimed the job, and starts it before it hears that another has it by now."""
        stopped = any(at < start.at for at in self.stops.get(start.who, ()))
        return stopped and any(run.token > start.token for run in before)

    # -- what must never be -------------------------------------------------------------------

    def problems(self, statuses: Mapping[str, str]) -> list[str]:
        """Everything that contradicts the promises; `statuses` is what the store says of each job at the end."""
        return [
            *self.lost(statuses),
            *self.overlaps(),
            *self.tokens_that_do_not_grow(),
            *self.completed_twice(),
            *self.run_after_completion(),
            *self.completed_by_another(),
        ]

    def lost(self, statuses: Mapping[str, str]) -> Iterator[str]:
        for job_id in sorted(self.acknowledged):
            if (status := statuses.get(job_id, "missing")) != "completed":
                yield f"{job_id} was acknowledged and is {status}"

    def overlaps(self) -> Iterator[str]:
        """A second run that began before the first failed, or before its process was killed or stopped."""
        for first, second in self._pairs():
            if second.start < first.over:
                whose = f"{first.who} ({first.token})"
                yield f"{first.job_id} was run by {second.who} ({second.token}) while {whose} had it"

    def tokens_that_do_not_grow(self) -> Iterator[str]:
        for first, second in self._pairs():
            if second.token <= first.token:
                yield f"{first.job_id} was run under token {first.token} and then under {second.token}"

    def completed_twice(self) -> Iterator[str]:
        for job_id, moments in self.done.items():
            if len(moments) > 1:
                yield f"{job_id} was completed {len(moments)} times"

    def run_after_completion(self) -> Iterator[str]:
        for job_id, runs in self.runs.items():
            for run in runs:
                if job_id in self.done and run.start > self.done[job_id][0]:
                    yield f"{job_id} was run by {run.who} although it was completed"

    def completed_by_another(self) -> Iterator[str]:
        """A zombie's word counted, although a later run had the job."""
        for entry in self.of("done"):
            begun = [run for run in self.runs.get(entry.job_id, ()) if run.start <= entry.at]
            if begun and begun[-1].who != entry.who:
                yield f"{entry.job_id} was completed by {entry.who} while {begun[-1].who} had it"

    def _pairs(self) -> Iterator[tuple[Run, Run]]:
        for runs in self.runs.values():
            yield from pairs(runs)


def pairs(runs: list[Run]) -> Iterator[tuple[Run, Run]]:
    return itertools.pairwise(runs)


def tally(runs: Iterable[Any]) -> dict[int, int]:
    """How many jobs were run how often."""
    return dict(sorted(Counter(len(each) for each in runs).items()))
