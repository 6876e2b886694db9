"""Lets the processes of one machine agree on the time, by one small file next to the database.

`<database>-workers/clock` holds the last trusted difference between the wall clock and the time since the machine was
started. From it, a process that starts while the wall clock is wrong notices that; and processes that see a jump of the
clock at different moments start to trust it at the same moment. The time since the start is meaningful only on the same
machine and until its next restart: `machine` identifies both.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from mainspring.clock import Clock, Millis, Reckoning, SteadyClock

READ_EVERY = 1.0  # seconds, while a jump of the clock is not trusted yet
NAME = "clock"


@dataclass(frozen=True, slots=True)
class Agreed:
    machine: str  # empty: unknown
    at: Millis  # wall clock
    offset: Millis
    looked: Millis
    doubted_until: Millis = 0  # until when retention deletes nothing; like `looked`, elapsed time


class Timekeeper:
    """Reads and writes the clock file of one store."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._path = directory / NAME
        self._clock = clock
        self._read_at = float("-inf")
        if isinstance(clock, SteadyClock):
            clock.witness = self._offset

    def begin(self) -> None:
        """Start with the time that the other processes of this machine trust."""
        if isinstance(self._clock, SteadyClock) and (agreed := self._agreed()) is not None:
            self._clock.start_from(Reckoning(agreed.offset, agreed.looked))

    def keep(self, doubted_until: Millis) -> tuple[Millis | None, Millis]:
        """Record the time and return what was recorded before, see `Timekeeping.keep_time`."""
        before, clock, machine = self._read(), self._clock, this_machine()
        doubt = before.doubted_until if before is not None and machine and before.machine == machine else 0
        if isinstance(clock, SteadyClock) and clock.departure is None:
            said = clock.reckoning
            self._write(Agreed(machine, clock.now(), said.offset, said.looked, max(doubt, doubted_until)))
        return None if before is None else before.at, doubt

    def _offset(self) -> Millis | None:
        now = self._clock.monotonic()
        if now - self._read_at < READ_EVERY:
            return None
        self._read_at = now
        agreed = self._agreed()
        return None if agreed is None else agreed.offset

    def _agreed(self) -> Agreed | None:
        agreed = self._read()
        return agreed if agreed is not None and agreed.machine and agreed.machine == this_machine() else None

    def _read(self) -> Agreed | None:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return Agreed(**json.loads(self._path.read_text("utf-8")))
        return None

    def _write(self, agreed: Agreed) -> None:
        """Replace the file atomically, so that no process reads half of it.

        Errors are ignored, for example a full disk or a missing directory: the file is only a help.
        """
        new = self._path.with_name(f"{NAME}.{os.getpid()}")
        with contextlib.suppress(OSError):
            new.write_text(json.dumps(asdict(agreed)), "utf-8")
            new.rename(self._path)


def this_machine() -> str:
    """Return an id of this machine since its last start, and of the clocks that this process sees; "" if unknown."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    return ""
