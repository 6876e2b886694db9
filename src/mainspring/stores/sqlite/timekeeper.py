"""What time it is, as the processes of one machine agree: one small file beside the database.

`<database>-workers/clock` says how far the wall clock is from the time since the machine was started, as workers last
believed it. A process that starts while the clock is wrong finds out by it, and processes that see a jump at different
moments believe it at the same one. The time since the start means something only on the same machine, until it is
started again; `machine` says which that was.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from mainspring.clock import Clock, Millis, Reckoning, SteadyClock

READ_EVERY = 1.0  # seconds, while a jump is not believed yet
NAME = "clock"


@dataclass(frozen=True, slots=True)
class Agreed:
    machine: str  # empty: it could not be told
    at: Millis  # wall clock
    offset: Millis
    looked: Millis
    doubted_until: Millis = 0  # until when retention deletes nothing; `looked` and this are elapsed time


class Timekeeper:
    """Of one store."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._path = directory / NAME
        self._clock = clock
        self._read_at = float("-inf")
        if isinstance(clock, SteadyClock):
            clock.witness = self._offset

    def begin(self) -> None:
        """Go by what the other processes of this machine believe."""
        if isinstance(self._clock, SteadyClock) and (agreed := self._agreed()) is not None:
            self._clock.start_from(Reckoning(agreed.offset, agreed.looked))

    def keep(self, doubted_until: Millis) -> tuple[Millis | None, Millis]:
        """See `Timekeeping`."""
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
        """At once, so that nobody reads half of it. A disk that is full, or a directory that is gone, is no matter."""
        new = self._path.with_name(f"{NAME}.{os.getpid()}")
        with contextlib.suppress(OSError):
            new.write_text(json.dumps(asdict(agreed)), "utf-8")
            new.rename(self._path)


def this_machine() -> str:
    """Since it was last started, and with the clocks that this process sees. Empty: there is no telling."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    return ""
