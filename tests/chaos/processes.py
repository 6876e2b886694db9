"""Real processes for a test: started quickly, signalled safely, ended whatever happens."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.chaos.database import Database, PostgresDatabase, SqliteDatabase
from tests.chaos.ledger import Ledger, Pen
from tests.chaos.waiting import DEADLINE, wait_until

ROOT = Path(__file__).parents[2]


class Forks:
    """The process that the others are forked from; see programs/forks.py."""

    def __init__(self, *wrapper: str) -> None:
        """`wrapper` is a command that runs it, such as unshare."""
        self._process = subprocess.Popen(
            [*wrapper, sys.executable, "-m", "tests.chaos.programs.forks"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """At the end of its input it kills what it has started, and ends."""
        try:
            self._process.communicate(timeout=DEADLINE)
        finally:
            self._process.kill()
            self._process.wait()

    def ask(self, order: str, **about: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"order": order, **about}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            assert self._process.stderr is not None
            msg = f"the process to fork from is gone: {self._process.stderr.read()}"
            raise AssertionError(msg)
        return json.loads(answer)


@dataclass(eq=False)
class Process:
    """One started program."""

    nursery: Nursery
    who: str
    pid: int
    log: Path
    ended: int | None = None  # with this code; from then on its pid may be another's

    def send(self, number: int) -> int:
        """Send a signal; the moment (CLOCK_MONOTONIC, nanoseconds) just before."""
        at: int = self.nursery.forks.ask("send", pid=self.pid, number=number)
        return at

    def kill(self) -> None:
        """SIGKILL, and into the ledger with it."""
        if self.code is None:
            at = self.send(signal.SIGKILL)
            if self.wait() == -signal.SIGKILL:
                self.nursery.pen.write("kill", at=at, who=self.who)

    @contextmanager
    def stopped(self, *, between_writes: bool = False) -> Iterator[None]:
        """SIGSTOP, and SIGCONT in the end; into the ledger with it, as a worker that may lose its claims.

        It is written down when the process has come to a stop: a handler may begin until then.
        """
        self.stop(between_writes=between_writes)
        self.nursery.pen.write("stop", who=self.who)
        yield
        self.send(signal.SIGCONT)

    def stop(self, *, between_writes: bool = False) -> None:
        """SIGSTOP. `between_writes`: in a moment when it holds no lock for which others would wait until it goes on."""
        self._stop()
        while between_writes and not self.nursery.database.is_free():
            self.send(signal.SIGCONT)
            self._stop()

    def _stop(self) -> None:
        self.send(signal.SIGSTOP)
        wait_until(self._is_stopped, lambda: f"{self.who} to stop")

    def _is_stopped(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    @property
    def code(self) -> int | None:
        if self.ended is None:
            self.ended = self.nursery.forks.ask("look", pid=self.pid)
        return self.ended

    def wait(self, seconds: float = DEADLINE) -> int:
        wait_until(lambda: self.code is not None, lambda: f"the end of {self.who}:\n{self.said()}", seconds=seconds)
        assert self.ended is not None
        return self.ended

    def said(self) -> str:
        """The end of its log, to be shown."""
        return self._log()[-5000:]

    def lines(self) -> list[str]:
        return self._log().splitlines()

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until its log has this text."""
        wait_until(
            lambda: self._log().count(text) >= times or self._must_live(text),
            lambda: f"{text!r} of {self.who}:\n{self.said()}",
        )

    def _log(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _must_live(self, text: str) -> bool:
        assert self.code is None, f"{self.who} ended with {self.code} before it said {text!r}:\n{self.said()}"
        return False


@dataclass
class Nursery:
    """The folder of one test: its ledger, its processes and their logs, and the database that they share."""

    forks: Forks
    folder: Path
    database: Database
    started: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pen = Pen(self.folder / "ledger", "test")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            process.kill()
        self.pen.close()

    @property
    def sqlite(self) -> SqliteDatabase:
        assert isinstance(self.database, SqliteDatabase)
        return self.database

    @property
    def postgres(self) -> PostgresDatabase:
        assert isinstance(self.database, PostgresDatabase)
        return self.database

    def ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The database, in plain SQL."""
        return self.database.ask(statement, *parameters)

    def wait_until_all_is_finished(self) -> None:
        left = self.database.unfinished
        wait_until(lambda: not left(), lambda: f"the end of {left()}", seconds=300, every=0.05)

    @property
    def ledger(self) -> Ledger:
        return self.ledger_since(0)

    def ledger_since(self, size: int) -> Ledger:
        return Ledger.read(self.folder / "ledger", since=size)

    def ledger_size(self) -> int:
        """In bytes: how far things are, without reading it all."""
        return (self.folder / "ledger").stat().st_size

    def start(self, program: str, who: str = "", **args: Any) -> Process:
        """Run a function of `tests.chaos.programs`: `start("work:work", …)`."""
        name = who or f"{program.partition(':')[0]}-{len(self.started)}"
        log = self.folder / f"{name}.log"
        pid = self.forks.ask(
            "start",
            program=f"tests.chaos.programs.{program}",
            log=str(log),
            database=self.database.url,
            args={"folder": str(self.folder), "who": name, **args},
        )
        self.started.append(Process(self, name, pid, log))
        return self.started[-1]

    def run(self, program: str, **args: Any) -> None:
        """Start it and wait until it has ended well."""
        process = self.start(program, **args)
        assert process.wait() == 0, process.said()
