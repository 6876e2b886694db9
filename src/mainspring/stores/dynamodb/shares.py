"""Which process serves which shard: rendezvous hashing, so that a process that joins or leaves moves few shards.

This only keeps processes from competing for the same jobs. Conditional writes make a claim safe.
"""

from __future__ import annotations

from collections.abc import Collection
from zlib import crc32


def owned(shard: int | str, process: str, processes: Collection[str]) -> bool:
    """Return whether the process serves the shard. A process that knows of no others serves all."""
    if process not in processes:
        return True
    return max(processes, key=lambda name: (crc32(f"{name}/{shard}".encode()), name)) == process
