"""Which process looks after which shard: rendezvous hashing, so that a process that comes or goes moves few of them.

It only keeps processes out of each other's way. What makes a claim safe is its conditional write.
"""

from __future__ import annotations

from collections.abc import Collection
from zlib import crc32


def owned(shard: int | str, process: str, processes: Collection[str]) -> bool:
    """Whether it is ours; all is, for one who knows of nobody else."""
    if process not in processes:
        return True
    return max(processes, key=lambda one: (crc32(f"{one}/{shard}".encode()), one)) == process
