# /// script
# requires-python = ">=3.11"
#
# [tool.bench]
# title = "graphile-worker"
# packages = ["graphile-worker@0.18.0", "pg@8.23.0"]
# finished = "deleted; it cannot keep them"
# worker = "run with the preset of its performance page: concurrentJobs 24, completeJobBatchDelay 0, a local queue"
# drain_jobs = 100_000
# skip = ["heard-*"]
#
# [tool.bench.variants]
# "localQueue 500, as there" = { local = 500 }
# "localQueue 5000" = { local = 5000 }
# ///
"""graphile-worker: see node/graphile_worker.mjs."""

from __future__ import annotations

from bench.peers.postgres._node import NodePeer


class GraphileWorker(NodePeer):
    script = "graphile_worker.mjs"


peer = GraphileWorker
