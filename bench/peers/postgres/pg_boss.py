# /// script
# requires-python = ">=3.11"
#
# [tool.bench]
# title = "pg-boss"
# packages = ["pg-boss@12.35.0", "pg@8.23.0"]
# finished = "kept, for its default retention"
# worker = """work with useListenNotify, burstWhenBatchFull and its shortest polls. \
# Its handler is called with a batch; here that calls one function per job"""
# drain_jobs = 100_000
# skip = ["heard-*"]
#
# [tool.bench.variants]
# "batchSize 1000, localConcurrency 2" = { batch = 1000, workers = 2 }
# "batchSize 5000, localConcurrency 2" = { batch = 5000, workers = 2 }
# ///
"""pg-boss: see node/pg_boss.mjs."""

from __future__ import annotations

from bench.peers.postgres._node import NodePeer


class PgBoss(NodePeer):
    script = "pg_boss.mjs"

    def in_chunks(self, size: int) -> None:
        self.settings = {**self.settings, "batch": size, "together": True}


peer = PgBoss
