"""Metrics for Prometheus: of one process, and of all processes by way of the store. They need `mainspring[metrics]`.

`Metrics.of(app)` begins to count. The service then shows them at `/metrics` and `/metrics/cluster`; `MetricsServer`
does the same for a process without the service.
"""

from mainspring.metrics.metrics import CONTENT_TYPE, Metrics
from mainspring.metrics.server import MetricsServer

__all__ = ["CONTENT_TYPE", "Metrics", "MetricsServer"]
