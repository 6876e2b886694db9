"""Jobs that follow the end of another job, whatever ends it: its worker, another process, or a person.

A job names them in its options, under `on_end`. Each store asks `jobs_after` wherever a job ends, and inserts the jobs
in the commit that ends it. So they exist if and only if the job has ended. Programs hear of them by the change feed;
`JobCreated` is not emitted for them, because a process that cancels a job or takes it over has no run to report.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from mainspring.clock import to_datetime
from mainspring.job import FINISHED, NewJob, Status
from mainspring.stored_options import has_on_end, options_of
from mainspring.stores.engine.ack import Conclusion, JobState
from mainspring.stores.engine.on_end import restored

LONGEST_RESULT = 65_536  # bytes; a longer one is left out

End = tuple[JobState, Conclusion]


def jobs_after(ends: Iterable[End]) -> list[NewJob]:
    """Return the jobs that follow these ends. Most jobs have none, and their options are not parsed."""
    return [
        new
        for job, conclusion in ends
        if has_on_end(job.options) and conclusion.status in FINISHED
        for new in jobs_of(job, conclusion)
    ]


def jobs_of(job: JobState, conclusion: Conclusion) -> Iterable[NewJob]:
    options = options_of(job.options)
    on_end: Mapping[str, Any] = options.get("on_end", {})
    fields = on_end.get("completed" if conclusion.status is Status.COMPLETED else "failed")
    if fields is not None:
        yield restored(fields, end_of(job, conclusion), options.get("trace"))


def end_of(job: JobState, conclusion: Conclusion) -> str:
    """Return what is told about the end, as JSON: the job, and its result or its error."""
    finished_at = to_datetime(conclusion.finished_at or 0).isoformat(timespec="milliseconds")
    told = {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "status": conclusion.status.value,
        "attempts": conclusion.attempts,
        "max_attempts": job.max_attempts,
        "reason": conclusion.reason,
        "finished_at": finished_at.replace("+00:00", "Z"),
        "dedupe_key": job.dedupe_key,
        "target": None if job.target_type is None else {"type": job.target_type, "id": job.target_id},
    }
    how = result_of(conclusion) if conclusion.status is Status.COMPLETED else f'"error": {error_of(conclusion)}'
    return f'{{"job": {json.dumps(told)}, {how}}}'


def result_of(conclusion: Conclusion) -> str:
    """Return the member with the result: in the text that is stored, so that no other form of it can be larger."""
    if conclusion.result is not None and len(conclusion.result.encode("utf-8", "replace")) > LONGEST_RESULT:
        return '"result": null, "result_omitted": true'
    return f'"result": {conclusion.result or "null"}'


def error_of(conclusion: Conclusion) -> str:
    failure = conclusion.failure
    if failure is None:
        kind = "Cancelled" if conclusion.status is Status.CANCELLED else "Failed"
        return json.dumps({"type": kind, "message": conclusion.reason})
    about = {"type": failure.type, "message": failure.message, "code": failure.code}
    return json.dumps(about | {"fingerprint": failure.fingerprint})
