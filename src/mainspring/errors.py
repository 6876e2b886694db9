"""Everything Mainspring raises, as one tree.

    MainspringError
    ├── ConfigurationError        the program is set up wrongly; nothing was tried
    │   ├── UnknownTask           no task of that name is registered in this process
    │   ├── UnsupportedStore      the URL does not name an installed store
    │   ├── InvalidSchedule       a rule, time zone or policy is invalid (also a ValueError)
    │   │   └── UnknownTimeZone   no IANA time zone has that name
    │   ├── InvalidCursor         the cursor of a page or of a feed is not one, or is one of another list
    │   ├── UnsupportedCall       the handler's kind of run, or its store, does not support the call: no retry helps
    │   └── MissingExtra          an optional package is needed for this
    ├── InvalidPayload            the arguments do not fit the task (also a ValueError)
    ├── JobNotFound               no job has that id (also a LookupError)
    ├── BatchNotFound             no batch has that id (also a LookupError)
    ├── BulkNotFound              no bulk change has that id (also a LookupError)
    ├── CountMoved                a bulk change would change another number of jobs than expected; nothing was changed
    ├── BreakerNotFound           no circuit breaker has that name (also a LookupError)
    ├── FailureGroupNotFound      there is no such failure group (also a LookupError)
    ├── SubscriberNotFound        no durable subscriber of the change feed has that name (also a LookupError)
    ├── TokenNotFound             no token of the HTTP API has that id (also a LookupError)
    ├── ScheduleNotFound          there is no such schedule (also a LookupError)
    ├── PersonNotFound            there is no such person (also a LookupError)
    ├── InvalidPerson             fields of a person are invalid (also a ValueError)
    ├── IllegalMove               the job's status does not allow it
    ├── DedupeConflict            another live job holds the dedupe key
    ├── EditConflict              someone else has changed it since it was read; nothing was written
    ├── AlreadyDone               the change has its key from a request that was carried out before; nothing was changed
    ├── TakenOver                 another process has taken this work over, or it was cancelled; nothing was changed
    ├── SystemHalted              the system is halted and rejects new jobs
    ├── ClaimLost                 this run's claim was taken over; nothing it writes counts
    ├── JobFailed                 a job whose result was awaited did not complete
    ├── CannotStoreResult         the handler, or a step of it, returned something that is not JSON
    ├── StepsChanged              a durable function's steps differ from those that the job has recorded
    ├── DuplicateStep             a durable function uses one name for two of its steps, sleeps, waits or children
    ├── UnplannedStep             a durable function runs a step that is not in its job's plan
    ├── StepTimeout               a step took longer than its timeout (also a TimeoutError)
    ├── StepNotFound              the job has not done a step of that name (also a LookupError)
    ├── StepFailed                a step failed in an earlier run; the type of its error cannot be restored here
    ├── WorkerCrashed             the process that ran the job died
    ├── WorkerStuck               a worker stopped because too many of its slots were stuck; see exit_when_stuck
    ├── ChangesLost               the change feed no longer has what came after this cursor
    ├── CopyFailed                a store could not be copied to another; run the copy again to continue it
    ├── InvalidSignature          a received webhook is not signed with a known secret, or too old (also a ValueError)
    ├── RequestRefused            an outgoing HTTP request is not allowed, such as one to a private network
    ├── RequestFailed             an outgoing HTTP request got no answer, or one that says that it failed
    └── StoreError                the store could not do it
        ├── StoreUnavailable      the store cannot be reached for now; trying again later can help
        │   ├── StoreBusy         another process holds the database
        │   ├── StoreFull         the disk is full
        │   └── StoreVanished     the database file is gone or was replaced
        ├── StoreRefused          the server refuses the connection: wrong password, no such database
        ├── StoreReadOnly         the file or its directory cannot be written
        ├── StoreCorrupt          the file is damaged or is not a database
        └── StoreTooNew           a newer Mainspring wrote this database

A handler can end its own run by raising one of three exceptions that are not errors:
`Discard` (no retry), `Snooze` (run later, without using an attempt), `Cancel`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Failure:
    """The error with which an attempt failed."""

    type: str
    message: str
    traceback: str = ""
    fingerprint: str = field(default="", compare=False)  # of its failure group, see docs/failures.md
    place: str = field(default="", compare=False)  # `module:function` where it was raised; stored with the group only
    code: str | None = None  # what programs tell errors apart by, see `as_code`; None: it has none


LONGEST_CODE = 100  # characters


def as_code(value: object) -> str | None:
    """Return the code of an error: up to 100 printable characters, or a whole number as text; None for other values."""
    if isinstance(value, str):
        text = str.__str__(value)  # members of enums have other names
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**LONGEST_CODE:
        text = int.__repr__(value)
    else:
        return None
    return text if 0 < len(text) <= LONGEST_CODE and text.isprintable() else None


def check_code(value: object) -> str | None:
    """Return a code that was given on purpose; raise ConfigurationError if it is not one. None: there is none."""
    code = as_code(value)
    if code is None and value is not None:
        allowed = f"a text of 1 to {LONGEST_CODE} printable characters, or a whole number"
        shown = repr(value)[:120] if isinstance(value, str) else f"this {type(value).__name__}"  # it may be huge
        msg = f"{shown} is not the code of an error; give {allowed}"
        raise ConfigurationError(msg)
    return code


class MainspringError(Exception):
    """Something about a job could not be done."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").partition("\n")[0])


class ConfigurationError(MainspringError):
    """The program is set up wrongly."""


class UnknownTask(ConfigurationError):
    """No task of that name is registered in this process.

    `nearest` are names of tasks that are similar, `known` those of all tasks.
    """

    def __init__(self, message: str | None = None, *, nearest: Iterable[str] = (), known: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.nearest = tuple(nearest)
        self.known = tuple(known)


class UnsupportedStore(ConfigurationError):
    """The URL does not name an installed store."""


class InvalidSchedule(ConfigurationError, ValueError):
    """The rule, time zone or policy of a schedule is invalid."""


class UnknownTimeZone(InvalidSchedule):
    """No IANA time zone has that name."""


class InvalidCursor(ConfigurationError):
    """The cursor is not one of this list. Pass the cursor of the previous page unchanged."""


class UnsupportedCall(ConfigurationError):
    """The handler's kind of run, or its store, does not support this call."""


class MissingExtra(ConfigurationError):
    """An optional package is needed for this."""


class InvalidPayload(MainspringError, ValueError):
    """The arguments do not fit the task."""


class JobNotFound(MainspringError, LookupError):
    """No job has that id."""


class IllegalMove(MainspringError):
    """The job's status does not allow it."""


class DedupeConflict(MainspringError):
    """Another live job holds the dedupe key."""


class EditConflict(MainspringError):
    """Someone else has changed it since you read it. Nothing was written; read it again."""


class SystemHalted(MainspringError):
    """The system is halted and rejects new jobs. Resume it, or halt it without reject_new."""


class ClaimLost(MainspringError):
    """This run's claim was taken over: nothing it writes counts any more."""


class JobFailed(MainspringError):
    """The job did not complete.

    `job_id` and `status` say which job it was and how it ended. `failure` has the type, message and traceback of its
    last error; it is None if there was no error, for example for a cancelled job.
    """

    def __init__(
        self, message: str | None = None, *, job_id: str = "", status: str = "", failure: Failure | None = None
    ) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.status = status
        self.failure = failure


class CannotStoreResult(MainspringError):
    """The handler returned something that is not JSON; the work itself was done."""


class StepsChanged(MainspringError):
    """The function's steps differ from those that this job has recorded."""


class DuplicateStep(MainspringError):
    """Two steps, sleeps, waits or children of one job have the same name."""


class UnplannedStep(MainspringError):
    """The function runs a step that is not in the plan of its job."""


class StepTimeout(MainspringError, TimeoutError):
    """A step took longer than its timeout."""

    @classmethod
    def of(cls, step: str, seconds: float) -> StepTimeout:
        return cls(f"step {step!r} ran longer than its timeout of {seconds:g} s")


class StepNotFound(MainspringError, LookupError):
    """The job has not done a step of that name."""


class StepFailed(MainspringError):
    """A step failed in an earlier run. The type of its error cannot be restored here."""


class WorkerCrashed(MainspringError):
    """The process that ran the job died."""


class WorkerStuck(MainspringError):
    """A worker stopped because too many of its slots were stuck."""


class ChangesLost(MainspringError):
    """The change feed no longer has what came after this cursor."""

    def __init__(self, after: str, cursor: str) -> None:
        super().__init__(
            f"the change feed no longer has what came after the cursor {after!r}: the cursor is too old, or of another "
            "store; read what you need from the jobs themselves, then go on from the `cursor` of this error"
        )
        self.after = after
        self.cursor = cursor  # of now


class CopyFailed(MainspringError):
    """The store could not be copied."""


class InvalidSignature(MainspringError, ValueError):
    """A received webhook is not signed with a known secret, or is too old."""


class RequestRefused(MainspringError):
    """An outgoing HTTP request is not allowed. No retry helps."""


class RequestFailed(MainspringError):
    """An outgoing HTTP request failed. `code` is the status of its answer, or a code that the receiver has given."""

    def __init__(self, message: str | None = None, *, code: str | int | None = None) -> None:
        super().__init__(message)
        self.code = check_code(code)


class BatchNotFound(MainspringError, LookupError):
    """There is no such batch."""


class BulkNotFound(MainspringError, LookupError):
    """No bulk change has that id."""


class CountMoved(MainspringError):
    """A bulk change would change another number of jobs than expected. Nothing was changed."""


class BreakerNotFound(MainspringError, LookupError):
    """No circuit breaker has that name."""


class FailureGroupNotFound(MainspringError, LookupError):
    """There is no such failure group."""


class ScheduleNotFound(MainspringError, LookupError):
    """There is no such schedule."""


class SubscriberNotFound(MainspringError, LookupError):
    """There is no such durable subscriber."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no subscriber named {name!r}; `mainspring subscribers list` shows all of them")


class TokenNotFound(MainspringError, LookupError):
    """There is no such token."""

    def __init__(self, token_id: str) -> None:
        super().__init__(
            f"there is no token {token_id!r}; `mainspring tokens list` and GET /v1/tokens show all of them"
        )


class PersonNotFound(MainspringError, LookupError):
    """There is no such person."""


class InvalidPerson(MainspringError, ValueError):
    """Fields of a person are invalid. `problems` lists each field and what is wrong with it."""

    def __init__(self, message: str | None = None, problems: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class AlreadyDone(MainspringError):
    """The change has its key from a request that was carried out before. Nothing was changed."""


class TakenOver(MainspringError):
    """Another process has taken this work over, or it was cancelled. Nothing was changed."""


class StoreError(MainspringError):
    """The store could not do it."""


class StoreUnavailable(StoreError):
    """The store cannot be reached for now."""


class StoreBusy(StoreUnavailable):
    """Another process holds the database."""


class StoreFull(StoreUnavailable):
    """The disk is full. Nothing was changed; free some space and try again."""


class StoreVanished(StoreUnavailable):
    """The database file is gone or was replaced. Put it back; it is then opened again."""


class StoreRefused(StoreError):
    """The database server refuses the connection, and trying again will not help."""


class StoreReadOnly(StoreError):
    """The database file or its directory cannot be written."""


class StoreCorrupt(StoreError):
    """The file is damaged or is not a database."""


class StoreTooNew(StoreError):
    """A newer Mainspring wrote this database. Upgrade this program."""


class RunEnd(Exception):
    """A handler raises this to choose how its run ends."""

    def __init__(self, reason: object = "") -> None:
        super().__init__(reason)
        self.reason = "" if reason is None else str(reason)  # handlers often pass the error they caught


class Discard(RunEnd):
    """Give up at once: the job becomes a dead letter, even if attempts are left.

    `code` is the code of the error, see `Failure.code`.
    """

    def __init__(self, reason: object = "", *, code: str | int | None = None) -> None:
        super().__init__(reason)
        self.code = check_code(code)


class Cancel(RunEnd):
    """End the job as cancelled."""


LONGEST_SNOOZE = timedelta(days=366_000)


class Snooze(RunEnd):
    """Run again after a delay; this run uses no attempt."""

    def __init__(self, delay: timedelta | float, reason: object = "") -> None:
        super().__init__(reason)
        try:
            self.delay = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        except (OverflowError, ValueError, TypeError):
            self.delay = timedelta.max
        if self.delay < timedelta(0):
            msg = f"Snooze({delay!r}): a job cannot run again before now; give 0 for at once"
            raise ConfigurationError(msg)
        if self.delay > LONGEST_SNOOZE:
            msg = "Snooze: the delay is a timedelta, or a number of seconds, of at most 1,000 years"
            raise ConfigurationError(msg)
