"""How often an address may fail to log in: five times a minute, and less and less often after that."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from mainspring.service.problems import Problem

FREE_FAILURES = 5
WINDOW = 60.0  # seconds; failures are forgotten after so long without another, and after the wait that they caused
LONGEST_WAIT = 3600.0
MOST_ADDRESSES = 10_000  # that a process remembers; beyond that, the oldest is forgotten


@dataclass(slots=True)
class Record:
    failures: int = 0
    last_at: float = 0.0
    free_at: float = 0.0  # no attempt before then


class LoginLimit:
    """The failed logins of this process."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._records: dict[str, Record] = {}

    def check(self, address: str) -> None:
        """Raise Problem if the address has to wait."""
        record = self._records.get(group_of(address))
        wait = 0.0 if record is None else record.free_at - self._now()
        if wait > 0:
            seconds = math.ceil(wait)
            msg = f"too many logins from {address} have failed; try again in {seconds} seconds"
            raise Problem("too_many_logins", msg, retry_after=seconds)

    def fail(self, address: str) -> None:
        """Note a failure. From the fifth on, each doubles the wait."""
        now, group = self._now(), group_of(address)
        record = self._records.pop(group, Record())
        if now - max(record.last_at, record.free_at) >= WINDOW:
            record = Record()
        record.failures += 1
        record.last_at = now
        if record.failures >= FREE_FAILURES:
            doublings = min(record.failures - FREE_FAILURES, 10)
            record.free_at = now + min(WINDOW * 2**doublings, LONGEST_WAIT)
        self._records[group] = record
        if len(self._records) > MOST_ADDRESSES:
            del self._records[next(iter(self._records))]

    def forget(self, address: str) -> None:
        """Forget the failures of an address: a login has succeeded."""
        self._records.pop(group_of(address), None)


def group_of(address: str) -> str:
    """Return what counts as one address: of IPv6, a customer has a whole /64."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
    return address
