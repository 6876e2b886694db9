"""Failed runs as events of Sentry."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import sentry_sdk
from sentry_sdk.scrubber import EventScrubber
from sentry_sdk.utils import event_from_exception

from mainspring.errors import Failure
from mainspring.fingerprint import leaf_of
from mainspring.job import Job, Move, Status
from mainspring.json_text import from_json, to_json
from mainspring.log import get_log
from mainspring.observer import RunEnd
from mainspring.redaction import Redaction
from mainspring.sentry.cleaning import OF_JOBS, Secretive
from mainspring.stored_options import options_of
from mainspring.stores.protocol import Takeover
from mainspring.worker.failures import attached_failure

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint

log = get_log("mainspring.sentry")

Redact = Callable[[Any], Any]

MAX_PAYLOAD_CHARS = 50_000  # of JSON; Sentry refuses events of more than 1 MB
EVENT_IDS = uuid.UUID("0a4be8f0-54a6-4b2b-8d3c-6dbb9c1ad5b7")  # the namespace of our event ids
FRAME = re.compile(r'(?m)^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$(?:\n    (?P<code>.+)$)?')
LIBRARIES = ("/site-packages/", "/dist-packages/", "/mainspring/")
MECHANISM = {"type": "mainspring", "handled": False}


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed, in this process or in another one."""

    key: str  # identifies the run: the claim has a token, and a job that was taken over has its counts
    job_id: str
    task: str
    queue: str
    attempt: int
    max_attempts: int
    crashes: int
    worker: str
    payload: str  # JSON
    options: str | None
    is_final: bool  # the job gave up
    failure: Failure | None
    reason: str = ""
    error: BaseException | None = None

    @classmethod
    def of_end(cls, end: RunEnd) -> FailedRun:
        claim = end.claim
        return cls(
            f"{claim.id} {claim.token}", claim.id, claim.task, claim.queue, claim.attempt, claim.max_attempts,
            claim.crashes + (end.outcome.move is Move.CRASH), end.worker, claim.payload, claim.options,
            end.status is Status.DEAD_LETTER, end.outcome.failure, end.outcome.reason, end.error,
        )  # fmt: skip

    @classmethod
    def of_takeover(cls, job: Job, takeover: Takeover) -> FailedRun:
        return cls(
            f"{job.id} taken over {takeover.attempts} {takeover.crashes}", job.id, job.task, takeover.queue,
            max(1, takeover.attempts), job.max_attempts, takeover.crashes, takeover.worker, to_json(job.payload),
            to_json(job.options) if job.options else None, takeover.status is Status.DEAD_LETTER, takeover.failure,
            takeover.cause.value,
        )  # fmt: skip

    @property
    def event_id(self) -> str:
        """The same for each try to report this run, so that Sentry recognises a repeat."""
        return uuid.uuid5(EVENT_IDS, self.key).hex

    @property
    def schedule(self) -> str | None:
        occurrence = options_of(self.options).get("occurrence")
        return None if occurrence is None else occurrence["schedule"]


def event_of(
    run: FailedRun, redaction: Redaction, redact: Redact | None, *, local_variables: bool
) -> tuple[Event, Hint]:
    """Return the event of a failed run, and what Sentry's event processors may look at.

    The payload is cleaned by the rules of the application, unless `redact` does that. cleaning.py cleans the rest.
    """
    exception, hint = exception_of(run, local_variables=local_variables)
    event: Any = {
        "event_id": run.event_id,
        "level": "error" if run.is_final else "warning",
        "logger": "mainspring",
        "platform": "python",
        "transaction": run.task,
        "fingerprint": [run.task, fingerprint_of(run)],
        "tags": tags_of(run),
        "contexts": {"job": context_of(run)},
        "extra": {"payload": shown_payload(run.payload, redact or partial(scrubbed, redaction, run.task))},
        **exception,
    }
    if not hint and run.failure is not None and run.failure.traceback:  # perhaps of a program in another language
        event["extra"]["traceback"] = run.failure.traceback
    return event, {**hint, OF_JOBS: (Secretive.of(run.task, run.payload, run.options),)}


def fingerprint_of(run: FailedRun) -> str:
    if run.failure is None:
        return run.reason or "dead letter"
    return run.failure.fingerprint or run.failure.type


def tags_of(run: FailedRun) -> dict[str, str]:
    tags = {"task": run.task, "queue": run.queue, "attempt": str(run.attempt), "job_id": run.job_id}
    tags["outcome"] = "dead_letter" if run.is_final else "retry"
    return tags if run.schedule is None else {**tags, "schedule": run.schedule}


def context_of(run: FailedRun) -> dict[str, Any]:
    return {
        "type": "job",
        "id": run.job_id,
        "task": run.task,
        "queue": run.queue,
        "attempt": run.attempt,
        "max_attempts": run.max_attempts,
        "crashes": run.crashes,
        "worker": run.worker,
        "reason": run.reason,
    }


# -- the exception ------------------------------------------------------------------------------------


def exception_of(run: FailedRun, *, local_variables: bool) -> tuple[dict[str, Any], Hint]:
    """Return the exception: as it was raised here, with its causes; or else from what the store has of it."""
    failure, error = run.failure, run.error
    if failure is None:
        return {"message": f"{run.task} {run.reason or 'gave up'}"}, {}
    if error is not None and was_raised_here(error, failure):
        options = {**sentry_sdk.get_client().options, "include_local_variables": local_variables}
        event, hint = event_from_exception(error, options, MECHANISM)
        return {"exception": event["exception"]}, hint
    value: dict[str, Any] = {"type": failure.type, "value": failure.message, "mechanism": MECHANISM}
    if frames := frames_of(failure.traceback):
        value["stacktrace"] = {"frames": frames}
    return {"exception": {"values": [value]}}, {}


def was_raised_here(error: BaseException, failure: Failure) -> bool:
    """Return whether the exception is the one that the handler raised: one of a child process or a lease is not."""
    if error.__traceback__ is None or attached_failure(error) is not None:
        return False
    return type(leaf_of(error)).__name__ == failure.type


def frames_of(traceback: str) -> list[dict[str, Any]]:
    """Return the frames of a traceback as Sentry shows them, the innermost last; of several, those of the last one."""
    last = traceback.rpartition("Traceback (most recent call last):")[2]
    return [
        {
            "filename": found["file"],
            "lineno": int(found["line"]),
            "function": found["function"],
            "context_line": found["code"],
            "in_app": not any(place in found["file"] for place in LIBRARIES),
        }
        for found in FRAME.finditer(last)
    ]


# -- the payload --------------------------------------------------------------------------------------


def shown_payload(payload: str, redact: Redact) -> Any:
    """Return the payload without its secrets. If they cannot be removed, the payload is left out."""
    if len(payload) > MAX_PAYLOAD_CHARS:
        return f"<{len(payload):,} characters of JSON>"
    try:
        return redact(from_json(payload))
    except Exception as error:  # noqa: BLE001 - the function is the user's
        log.warning("redaction_failed", error=f"{type(error).__name__}: {error}")
        return "<left out: its redaction failed>"


def scrubbed(redaction: Redaction, task: str, payload: Any) -> Any:
    """Return the payload without what the application's rules or Sentry's own list of names call secret."""
    scrubber = EventScrubber(recursive=True)
    around = {"payload": redaction.value(payload, task)}
    scrubber.scrub_dict(around)
    scrubber.scrub_list(around["payload"])
    return around["payload"]
