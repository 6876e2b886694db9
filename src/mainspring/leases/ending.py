"""What becomes of a leased job when its lessee reports the end: the same as after a run in a worker."""

from __future__ import annotations

import json
from typing import Any, cast

from mainspring.clock import Millis, to_millis
from mainspring.errors import CannotStoreResult, Failure, RunEnd
from mainspring.job import Claim, Job, Move, Outcome
from mainspring.json_text import problem_of_json, read_object, to_json
from mainspring.leases.items import Cancelled, Complete, Fail, Item, Release, Snooze
from mainspring.names import showable
from mainspring.redaction import DEFAULT, Hide, Redaction
from mainspring.retry import Retry
from mainspring.task import Task
from mainspring.worker.failures import as_failure
from mainspring.worker.run import Dumped, Run, by_run_end, completed, failed, outcome


class LeaseFailed(Exception):
    """Stands for an error that a lessee has reported."""


def claim_of(job: Job) -> Claim:
    """Return the claim under which a job runs, for a process that has not made it."""
    return Claim(
        job.id, job.token, job.task, job.queue, to_json(job.payload), job.priority, job.attempts, job.max_attempts,
        job.crashes, round((job.timeout or 0) * 1000), to_millis(job.run_at), to_millis(job.created_at),
        job.dedupe_key, job.target, job.tags, to_json(job.options) if job.options else None,
        job.fingerprint,
    )  # fmt: skip


class LeasedRun(Run):
    """The run of a leased job, for the parts of the worker that decide and write how it ends."""

    passed = False  # its features have let it pass, and must be told when it ends

    def __init__(self, claim: Claim, task: Task[..., Any, Any] | None) -> None:
        super().__init__(claim, cast("Task[..., Any, Any]", task), 0.0)
        self.is_known = task is not None  # False: only other programs know the task
        self.rules = DEFAULT

    @property
    def redaction(self) -> Redaction:
        return self.rules

    @classmethod
    def of(cls, job: Job, task: Task[..., Any, Any] | None, rules: Redaction = DEFAULT) -> LeasedRun:
        run = cls(claim_of(job), task)
        run.rules = rules
        run.passed = True
        run.called = True
        run.started_at = to_millis(job.started_at) if job.started_at else 0
        return run

    @property
    def retry(self) -> Retry:
        """Return the job's own policy, or else that of its task; the default one if the task is not known here."""
        own = read_object(self.claim.options).get("retry")
        return super().retry if own or self.is_known else Retry()


def outcome_of(run: LeasedRun, item: Item, now: Millis) -> Outcome:
    """Return what the item makes of the job.

    Raise CannotStoreResult if its result is not fit to be stored.
    """
    if isinstance(item, Complete):
        return completed(run, now, result_of(run, item.result))
    if isinstance(item, Fail):
        return outcome_of_failure(run, item, now)
    if isinstance(item, Snooze):
        return outcome(run, Move.SNOOZE, now, delay=item.delay_from(now), reason=showable(item.reason))
    if isinstance(item, Release):
        return outcome(run, Move.RELEASE, now, reason=run.hide(showable(item.reason or "its lessee gave it back")))
    assert isinstance(item, Cancelled)  # noqa: S101 - all endings are above
    return outcome(run, Move.CANCEL, now, reason=showable(item.reason))


def result_of(run: LeasedRun, value: Any) -> Dumped | None:
    """Return the result as JSON: in the form that the task returns if it is known here, else as it is."""
    if value is None:
        return None
    if not run.is_known:
        return Dumped(text_of(value, f"the result of task {run.claim.task!r}"))
    try:
        return Dumped(run.task.payload.dump_result(value))
    except CannotStoreResult:
        return Dumped(run.task.payload.dump_result(typed(run.task, value)))


def typed(task: Task[..., Any, Any], value: Any) -> Any:
    """Return plain data as the type that the task returns: another program knows only the JSON of a model."""
    try:
        return task.payload.load_result(value)
    except (ValueError, TypeError) as error:
        msg = f"the result of task {task.name!r} does not fit its return type or JSON: {error}"
        raise CannotStoreResult(msg) from error


def text_of(value: Any, what: str) -> str:
    """Return a value as JSON text; raise CannotStoreResult if that is not possible."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"{what} is not JSON: {error}"
        raise CannotStoreResult(msg) from error
    if problem := problem_of_json(text, value):
        msg = f"{what} cannot be stored: {problem}"
        raise CannotStoreResult(msg)
    return text


def outcome_of_failure(run: LeasedRun, item: Fail, now: Millis) -> Outcome:
    if isinstance(item.error, RunEnd):  # as if a handler had raised it
        return by_run_end(run, item.error, now)
    run.error = error = error_of(item.error, retry_of(run), run.hide)
    ended = failed(run, error, now)
    if not item.retry and ended.move is Move.RETRY:
        return outcome(run, Move.DEAD, now, failure=ended.failure, reason="its lessee gave up")
    return ended


def retry_of(run: LeasedRun) -> Retry:
    """Return the retry policy, or the default one if the stored one cannot be read."""
    try:
        return run.retry
    except Exception:  # noqa: BLE001 - `failed` reports a policy that fails
        return Retry()


def error_of(error: str | Failure | BaseException, retry: Retry, hide: Hide | None = None) -> BaseException:
    """Return an exception for the retry policy and the features, which carries what is stored of the error."""
    if isinstance(error, BaseException):
        return error
    given = error if isinstance(error, Failure) else Failure("LeaseFailed", error)
    failure = as_failure(given, hide)
    made = exception_named(failure.type, retry, failure.message)
    made.mainspring_failure = failure  # type: ignore[attr-defined] # see `failure_of`
    return made


def exception_named(name: str, retry: Retry, message: str) -> BaseException:
    """Return an exception of the policy's own type of this name, so that its rules `only` and `never` apply."""
    for kind in (*retry.never, *retry.only):
        if kind.__name__ == name:
            try:
                return kind.__new__(kind, message)
            except Exception:  # noqa: BLE001 - a type with its own idea of how it is made
                break
    return LeaseFailed(message)
