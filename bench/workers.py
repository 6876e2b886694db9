"""The worker processes of a peer: started, watched and ended by the measuring process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bench.peer import PLACE, SERVER, SETTINGS
from bench.tally import SAMPLES, WORKERS, Tally

if TYPE_CHECKING:
    from bench.peer import Peer

POLL_SECONDS = 0.002
STOP_SECONDS = 15.0


class WorkerDied(Exception):
    """A worker process ended by itself; the message is the end of its log."""


class TooSlow(Exception):
    """The jobs were not run in time; the message is the end of the worker's log."""


@dataclass
class Workers:
    peer: Peer
    size: int = 1
    samples: int = 0
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    tallies: dict[Path, Tally] = field(default_factory=dict)

    async def __aenter__(self) -> Self:
        for old in self.peer.place.glob("tally-*"):
            old.unlink()
        self.processes = [self._start(i) for i in range(self.size)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        for pid in self._pids():
            os.kill(pid, number)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        env = os.environ | {
            PLACE: str(self.peer.place),
            SETTINGS: json.dumps(dict(self.peer.settings)),
            WORKERS: str(self.size),
            SAMPLES: str(self.samples),
        }
        with self._log(number).open("wb") as log:
            return subprocess.Popen(
                self.peer.worker(), env=env, cwd=self.peer.place, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _log(self, number: int) -> Path:
        return self.peer.place / f"worker-{number}.log"

    # -- what the handlers counted ------------------------------------------------------------
    async def run(self, jobs: int, timeout: float) -> None:
        """Wait until that many jobs were started in all, and none is left unfinished."""
        await self.start(jobs, timeout)
        await self.settle(timeout)

    async def start(self, jobs: int, timeout: float) -> None:
        """Wait until that many jobs were started in all."""
        deadline = time.monotonic() + timeout
        while self.count < jobs:
            await self._pause(deadline)

    async def settle(self, timeout: float) -> None:
        """Wait until no job that was due is left unfinished."""
        deadline = time.monotonic() + timeout
        while not await self.peer.settled():
            await self._pause(deadline)

    async def _pause(self, deadline: float) -> None:
        if any(process.poll() is not None for process in self.processes):
            raise WorkerDied(self._last_words())
        if time.monotonic() > deadline:
            raise TooSlow(f"{self.count} jobs were run; {self._last_words()}")
        await asyncio.sleep(POLL_SECONDS)

    def _last_words(self) -> str:
        return "\n".join(self._log(i).read_text(errors="replace")[-1500:] for i in range(self.size))

    @property
    def count(self) -> int:
        self._find_tallies()
        return sum(tally.count for tally in self.tallies.values())

    @property
    def first(self) -> int:
        return min(tally.first for tally in self.tallies.values())

    @property
    def last(self) -> int:
        return max(tally.last for tally in self.tallies.values())

    def lags(self) -> list[int]:
        return [lag for tally in self.tallies.values() for lag in tally.lags()]

    def _find_tallies(self) -> None:
        for path in self.peer.place.glob("tally-*"):
            if path not in self.tallies and path.stat().st_size:
                self.tallies[path] = Tally(path, self.samples)

    # -- what the kernel counted --------------------------------------------------------------
    def cpu_seconds(self) -> float:
        """Processor time of all workers and their children so far."""
        return sum(map(cpu_seconds, self._pids()))

    def peak_megabytes(self) -> float:
        return sum(_peak_megabytes(pid) for pid in self._pids())

    def _pids(self) -> list[int]:
        pids = [process.pid for process in self.processes]
        for pid in pids:  # grows while we walk
            pids.extend(_children(pid))
        return pids


def server_cpu_seconds() -> float:
    """Processor time of the database's server so far: of those of its processes that live, and of those that ended."""
    if not (living := server_processes()):
        return 0.0
    ended = sum(map(int, Path(f"/proc/{living[0]}/stat").read_text().rpartition(")")[2].split()[13:15]))
    return sum(map(cpu_seconds, living)) + ended / os.sysconf("SC_CLK_TCK")


def server_processes() -> list[int]:
    """The processes of the database's server, the first of which has started the others; none if there is no server."""
    pid = int(os.environ.get(SERVER, "0"))
    return [pid, *_children(pid)] if pid else []


def _children(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


def cpu_seconds(pid: int) -> float:
    """From schedstat, in nanoseconds: the ticks in `stat` are as long as all that an idle worker uses in a second."""
    try:
        threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    except OSError:  # it has just ended
        return 0.0
    return sum(int(thread.split()[0]) for thread in threads) / 1e9


def _peak_megabytes(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
