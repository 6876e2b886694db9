"""Reads the ends of executions from Mainspring's change feed.

The queue records each end of a run in the commit that ends it, whichever process does that. So the feed also has the
runs that raised, that overran their timeout, and whose process was killed.
"""

from __future__ import annotations

from uuid import UUID

from examples.petitions.application.ports import Execution, ExecutionOutcome
from mainspring import Change, ChangeFilter, ChangeKind
from mainspring.errors import WorkerCrashed

NOT_BEGUN = "given back before it was begun"
OUTCOMES = {
    ChangeKind.COMPLETED: ExecutionOutcome.COMPLETED,
    ChangeKind.RETRYING: ExecutionOutcome.FAILED,
    ChangeKind.DEAD_LETTERED: ExecutionOutcome.FAILED,
    ChangeKind.RELEASED: ExecutionOutcome.INTERRUPTED,
    ChangeKind.CANCELLED: ExecutionOutcome.CANCELLED,
}
ENDS = ChangeFilter(kinds=tuple(OUTCOMES))  # not `stalled`: one of these follows it, for the same run


def execution_of(change: Change) -> Execution | None:
    """Return the execution that a change has ended; None if the job was not executed."""
    data = change.data
    if change.job_id is None or not was_executed(change):
        return None
    error_type = data.get("error_type")
    return Execution(
        key=change.id,
        job_id=UUID(change.job_id),
        job_type=str(change.task),
        outcome=ExecutionOutcome.KILLED if error_type == WorkerCrashed.__name__ else OUTCOMES[change.kind],
        ended_at=change.at,
        error_type=error_type,
        reason=data.get("error") or data.get("reason"),
    )


def was_executed(change: Change) -> bool:
    """Return False for jobs that ended while they waited, and for those that were given back before they were begun."""
    if change.kind is ChangeKind.COMPLETED:
        return True
    return change.data.get("worker") is not None and change.data.get("reason") != NOT_BEGUN
