"""Reports runs to Sentry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import sentry_sdk
from sentry_sdk.scope import use_isolation_scope

from mainspring.app import Mainspring
from mainspring.job import Claim, Job, Status
from mainspring.json_text import to_json
from mainspring.middleware import EnqueueCall
from mainspring.observer import Execution, Observer, RunEnd
from mainspring.sentry.cleaning import OF_JOBS, AtWork, about, hook_in
from mainspring.sentry.crons import CheckIns, Crons
from mainspring.sentry.failures import FailedRun, Redact, event_of
from mainspring.sentry.queues import is_failure, processing, publishing
from mainspring.stores.protocol import Takeover
from mainspring.trace import trace_of

if TYPE_CHECKING:
    from sentry_sdk.scope import Scope

MODULE = "mainspring.sentry"
MOST_SCOPES = 1000  # of failed runs whose end is not written yet

Failures = Literal["final", "each"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of a failed run until its end is written: the user's tags and breadcrumbs, and its trace."""

    scope: Scope
    trace: dict[str, Any]
    at_work: AtWork  # the exception of a chunk may have secrets of all its jobs


class Sentry(Observer):
    """Reports the runs of one application."""

    def __init__(
        self,
        app: Mainspring,
        *,
        failures: Failures = "final",
        redact: Redact | None = None,
        local_variables: bool = False,
        queues: bool = True,
        crons: Crons | None = None,
        child: dict[str, Any] | None = None,
    ) -> None:
        self._failures = failures
        self._app = app
        self._redact = redact
        self._local_variables = local_variables
        self._queues = queues
        self._check_ins = None if crons is None else CheckIns(app, crons)
        self._kept: dict[tuple[str, int], Kept] = {}
        self.child = (MODULE, child or {})

    # -- enqueues -----------------------------------------------------------------------------------

    def publish(self, call: EnqueueCall) -> Iterator[None]:
        """Make a span around an enqueue, and give its context to the jobs. This is middleware."""
        with publishing(call) if is_active() else nullcontext():
            yield

    # -- runs ---------------------------------------------------------------------------------------

    async def before(self, execution: Execution) -> bool:
        return self._check_ins is not None and is_active() and await self._check_ins.start(execution.claims)

    async def leased(self, claims: Sequence[Claim]) -> None:
        if self._check_ins is not None and is_active():
            await self._check_ins.start(claims)

    @contextmanager
    def around(self, execution: Execution) -> Iterator[None]:
        if not is_active():
            yield
            return
        hook_in()
        with sentry_sdk.isolation_scope() as scope, about(execution.claims) as here:
            describe(scope, execution.claim, is_chunk=execution.is_chunk)
            with self._traced(execution):
                yield
                trace = sentry_sdk.get_current_scope().get_trace_context()
            self._keep(execution, Kept(scope, trace, here))

    def _traced(self, execution: Execution) -> AbstractContextManager[None]:
        return processing(execution) if self._queues else nullcontext()

    def _keep(self, execution: Execution, kept: Kept) -> None:
        for result in execution.results:
            if is_failure(result.outcome):
                self._kept[result.claim.id, result.claim.token] = kept
        while len(self._kept) > MOST_SCOPES:
            del self._kept[next(iter(self._kept))]

    # -- ends ---------------------------------------------------------------------------------------

    def ended(self, end: RunEnd) -> None:
        kept = self._kept.pop((end.claim.id, end.claim.token), None)
        if end.status is None or not is_active():
            return
        if end.status is Status.DEAD_LETTER or (self._failures == "each" and is_failure(end.outcome)):
            self._report(FailedRun.of_end(end), kept)
        if self._check_ins is not None:
            self._check_ins.finish(end.claim.id, end.claim.options, end.status)

    def taken_over(self, job: Job, takeover: Takeover) -> None:
        if not is_active():
            return
        if takeover.status is Status.DEAD_LETTER or self._failures == "each":
            self._report(FailedRun.of_takeover(job, takeover), None)
        if self._check_ins is not None:
            self._check_ins.finish(job.id, to_json(job.options) if job.options else None, takeover.status)

    def _report(self, run: FailedRun, kept: Kept | None) -> None:
        event, hint = event_of(run, self._app.redaction, self._redact, local_variables=self._local_variables)
        with use_isolation_scope(kept.scope) if kept is not None else new_scope(run):
            if kept is not None:
                event["contexts"]["trace"] = kept.trace
                hint = {**hint, OF_JOBS: kept.at_work.jobs}
            sentry_sdk.capture_event(event, hint)


def is_active() -> bool:
    """Return whether the program has set up Sentry."""
    return sentry_sdk.get_client().is_active()


def describe(scope: Scope, claim: Claim, *, is_chunk: bool = False) -> None:
    """Give what the handler itself reports to Sentry the same tags."""
    scope.clear_breadcrumbs()
    scope.set_transaction_name(claim.task, source="task")
    tags = {"task": claim.task, "queue": claim.queue}
    scope.set_tags(tags if is_chunk else {**tags, "attempt": str(claim.attempt), "job_id": claim.id})


@contextmanager
def new_scope(run: FailedRun) -> Iterator[Scope]:
    """Return a scope for a run that was not in this process: in the trace of its job."""
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        scope.generate_propagation_context(dict(trace_of(run.options)))
        yield scope
