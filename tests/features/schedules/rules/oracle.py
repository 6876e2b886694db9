"""A second opinion on time zones: the C library's `localtime`, reading the same files. Run as a program of its own.

Prints, as JSON and per time zone, each change of its offset from 2000 to 2040: [instant, offset before, after, walls].
Walls are wall times around it, each with the instants at which clocks show it. All are whole seconds, walls as if UTC.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from pathlib import Path

BEGIN, END = 946_684_800, 2_240_524_800  # 2000-01-01, 2041-01-01
STEP = 16 * 86_400
AROUND = (-86_400, -1, 0, 900, 3599)


def offset(instant: int) -> int:
    return time.localtime(instant).tm_gmtoff


def listed(content: bytes) -> list[int]:
    """The transitions that the file names; changes that last less than a scan's step are only found here."""
    counts = struct.unpack(">6l", content[20:44])
    first = 44 + counts[3] * 5 + counts[4] * 6 + counts[5] + counts[2] * 8 + counts[1] + counts[0]
    (many,) = struct.unpack(">l", content[first + 32 : first + 36])
    return list(struct.unpack(f">{many}q", content[first + 44 : first + 44 + 8 * many]))


def changes(content: bytes) -> list[tuple[int, int, int]]:
    known = sorted({*range(BEGIN, END, STEP), END, *(t for t in listed(content) if BEGIN < t < END)})
    offsets = [offset(instant) for instant in known]
    found = [pinpoint(known[i], known[i + 1]) for i in range(len(known) - 1) if offsets[i] != offsets[i + 1]]
    return [(t, offset(t - 1), offset(t)) for t in found]


def pinpoint(low: int, high: int) -> int:
    after = offset(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if offset(middle) == after else (middle, high)
    return high


def walls(t: int, before: int, after: int) -> list[tuple[int, list[int]]]:
    edges = (t + before, t + after)
    return [(wall, shown(wall, before, after)) for wall in sorted({e + d for e in edges for d in AROUND})]


def shown(wall: int, *offsets: int) -> list[int]:
    instants = sorted({wall - seconds for seconds in offsets})  # no other offset is near: another test sees to that
    return [instant for instant in instants if instant + offset(instant) == wall]


def main() -> None:
    root, answers, seen = Path(os.environ["TZDIR"]), {}, set()
    for key in sys.stdin.read().split():
        content = (root / key).read_bytes()
        if content in seen:  # another name of a time zone that was there already
            continue
        seen.add(content)
        os.environ["TZ"] = key
        time.tzset()
        answers[key] = [(*change, walls(*change)) for change in changes(content)]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
