"""Real processes for a test: started quickly, signalled safely, ended whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.chaos.ledger import Ledger, Pen
from tests.chaos.waiting import DEADLINE, wait_until

ROOT = Path(__file__).parents[2]


@dataclass(eq=False)
class Process:
    """One started program."""

    nursery: Nursery
    who: str
    pid: int
    log: Path

    def send(self, number: int) -> int:
        """Send a signal; the moment (CLOCK_MONOTONIC, nanoseconds) just before."""
        at: int = self.nursery.ask("send", who=self.who, number=number)
        return at

    def kill(self) -> None:
        """SIGKILL, and into the ledger with it."""
        if self.code is None:
            at = self.send(signal.SIGKILL)
            if self.wait() == -signal.SIGKILL:
                self.nursery.pen.write("kill", at=at, who=self.who)

    @property
    def code(self) -> int | None:
        code: int | None = self.nursery.ask("look", who=self.who)
        return code

    def wait(self, seconds: float = DEADLINE) -> int:
        wait_until(lambda: self.code is not None, lambda: f"the end of {self.who}:\n{self.said()}", seconds=seconds)
        code = self.code
        assert code is not None
        return code

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
    """The folder of one test: its database, its ledger, its processes and their logs."""

    folder: Path
    place: str = "."  # of the database, within the folder
    wrapper: Sequence[str] = ()  # a command that runs the nursery, such as unshare
    started: list[Process] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.pen = Pen(self.folder / "ledger", "test")
        command = [*self.wrapper, sys.executable, "-m", "tests.chaos.programs.nursery"]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "CHAOS_DATABASE": str(self.database)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        """The nursery kills its children when its input ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(DEADLINE)
        finally:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdout, self._process.stderr):
                assert stream is not None
                stream.close()

    @property
    def database(self) -> Path:
        return self.folder / self.place / "jobs.db"

    @property
    def ledger(self) -> Ledger:
        return Ledger.read(self.folder / "ledger")

    def start(self, program: str, who: str = "", **args: Any) -> Process:
        """Run a function of `tests.chaos.programs`: `start("work:drain", …)`."""
        name = who or f"{program.partition(':')[0]}-{len(self.started)}"
        log = self.folder / f"{name}.log"
        arguments = {"folder": str(self.folder), "who": name, **args}
        pid = self.ask("start", who=name, program=f"tests.chaos.programs.{program}", log=str(log), args=arguments)
        process = Process(self, name, pid, log)
        self.started.append(process)
        return process

    def run(self, program: str, **args: Any) -> None:
        """Start it and wait until it has ended well."""
        process = self.start(program, **args)
        assert process.wait() == 0, process.said()

    def ask(self, order: str, **about: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"order": order, **about}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            assert self._process.stderr is not None
            msg = f"the nursery is gone: {self._process.stderr.read()}"
            raise AssertionError(msg)
        return json.loads(answer)
