# /// script
# requires-python = ">=3.12"
# dependencies = ["litequeue==0.14"]
#
# [tool.bench]
# title = "litequeue, FULL"
# durability = "WAL, synchronous=FULL set on its connection: as durable as the others"
# worker = "a loop of pop and done; it has no worker of its own"
# drain_jobs = 20_000
# ///
"""litequeue made as durable as the others."""

from __future__ import annotations

from bench.peer import here
from bench.peers.sqlite.litequeue import LiteQueue


class DurableLiteQueue(LiteQueue):
    synchronous = "FULL"


peer = DurableLiteQueue

if __name__ == "__main__":
    peer(*here()).work()
