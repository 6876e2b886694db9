"""Error reports: to Sentry or, without one, to the log."""

from __future__ import annotations

import logging

import sentry_sdk

from mainspring import Mainspring
from mainspring.events import JobDeadLettered, JobRetrying
from mainspring.sentry import instrument

log = logging.getLogger(__name__)


def report_errors(app: Mainspring, dsn: str) -> None:
    """Report each failed run with its job's payload and traceback. Runs that a crash ended are reported too."""
    if dsn:
        sentry_sdk.init(
            dsn, auto_enabling_integrations=False
        )  # to import all frameworks that are installed takes seconds
        instrument(app, failures="each", queues=False)
        return

    @app.on(JobRetrying, JobDeadLettered)
    async def log_error(event: JobRetrying | JobDeadLettered) -> None:
        """Mainspring has logged the error already; this adds the payload and the traceback."""
        job = await app.jobs.get_or_none(event.job_id)
        payload = None if job is None else job.payload
        traceback = event.failure.traceback if event.failure else ""
        log.error("%s %s failed with payload %s\n%s", event.task, event.job_id, payload, traceback)
