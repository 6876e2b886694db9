"""Everything Mainspring raises, as one tree.

    MainspringError
    ├── ConfigurationError        the program is set up wrongly; nothing was tried
    │   ├── UnknownTask           no task of that name is registered in this process
    │   ├── UnsupportedStore      the URL names no store that is installed
    │   ├── InvalidSchedule       a rule, zone or policy that cannot be (also a ValueError)
    │   │   └── UnknownZone       no IANA time zone has that name
    │   ├── UnsupportedCall       a handler asks for what its kind of run, or its store, never has: no retry helps
    │   └── MissingExtra          an optional package is needed for this
    ├── InvalidPayload            the arguments do not fit the task (also a ValueError)
    ├── JobNotFound               no job has that id (also a LookupError)
    ├── BatchNotFound             no batch has that id (also a LookupError)
    ├── BreakerNotFound           no circuit breaker has that name (also a LookupError)
    ├── ScheduleNotFound          there is no such schedule (also a LookupError)
    ├── PersonNotFound            there is no such person (also a LookupError)
    ├── InvalidPerson             a person that cannot be (also a ValueError)
    ├── IllegalMove               the job's status does not allow it
    ├── DedupeConflict            another live job holds the dedupe key
    ├── SystemHalted              the system is halted and refuses new jobs
    ├── ClaimLost                 this run's claim was taken over; nothing it writes counts
    ├── JobFailed                 a job whose result was awaited did not complete
    ├── CannotStoreResult         the handler, or a step of it, returned something that is not JSON
    ├── StepsChanged              a durable function asks for other steps than the one that began the job
    ├── DuplicateStep             a durable function asks for two things under one name
    ├── StepNotFound              the job has no such step behind it (also a LookupError)
    ├── StepFailed                a step failed in an earlier run, by an error that is not known here any more
    ├── WorkerCrashed             the process that ran the job died
    ├── WorkerStuck               a worker stopped because too many of its slots were stuck; see exit_when_stuck
    ├── CopyFailed                a store could not be copied to another; what was copied stays, and can be gone on with
    └── StoreError                the store could not do it
        ├── StoreUnavailable      for now: trying again later can help
        │   ├── StoreBusy         someone else holds the database
        │   ├── StoreFull         no room on the disk
        │   └── StoreVanished     the database file is gone or was replaced
        ├── StoreRefused          the server does not let us in: wrong password, no such database
        ├── StoreReadOnly         the file or its directory cannot be written
        ├── StoreCorrupt          the file is damaged or is no database
        └── StoreTooNew           a newer Mainspring wrote this database

A handler ends its own job by raising one of three wishes (not errors):
`Discard` (no retry), `Snooze` (again later, no attempt burnt), `Cancel`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.job import Failure


class MainspringError(Exception):
    """Something about a job could not be done."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").partition("\n")[0])


class ConfigurationError(MainspringError):
    """The program is set up wrongly."""


class UnknownTask(ConfigurationError):
    """No task of that name is registered in this process."""


class UnsupportedStore(ConfigurationError):
    """The URL names no store that is installed."""


class InvalidSchedule(ConfigurationError, ValueError):
    """The rule, zone or policy of a schedule cannot be."""


class UnknownZone(InvalidSchedule):
    """No IANA time zone has that name."""


class UnsupportedCall(ConfigurationError):
    """The handler asks for something that cannot be had where it runs."""


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


class SystemHalted(MainspringError):
    """The system is halted and refuses new jobs. Resume it, or halt with accept=True."""


class ClaimLost(MainspringError):
    """This run's claim was taken over: nothing it writes counts any more."""


class JobFailed(MainspringError):
    """The job did not complete.

    `job_id` and `status` say which job and how it ended. `failure` has the type, message and traceback of its last
    error; None if it had none: a job that was cancelled, say.
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
    """The function asks for other steps than the one that began this job."""


class DuplicateStep(MainspringError):
    """Two things in one job have the same name."""


class StepNotFound(MainspringError, LookupError):
    """The job has no such step behind it."""


class StepFailed(MainspringError):
    """A step failed in an earlier run, by an error that is not known here any more."""


class WorkerCrashed(MainspringError):
    """The process that ran the job died."""


class WorkerStuck(MainspringError):
    """A worker stopped because too many of its slots were stuck."""


class CopyFailed(MainspringError):
    """The store could not be copied."""


class BatchNotFound(MainspringError, LookupError):
    """There is no such batch."""


class BreakerNotFound(MainspringError, LookupError):
    """No circuit breaker has that name."""


class ScheduleNotFound(MainspringError, LookupError):
    """There is no such schedule."""


class PersonNotFound(MainspringError, LookupError):
    """There is no such person."""


class InvalidPerson(MainspringError, ValueError):
    """A person that cannot be. `problems` are the fields and what is wrong with them."""

    def __init__(self, message: str | None = None, problems: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class StoreError(MainspringError):
    """The store could not do it."""


class StoreUnavailable(StoreError):
    """The store cannot be reached for now."""


class StoreBusy(StoreUnavailable):
    """Another process holds the database."""


class StoreFull(StoreUnavailable):
    """There is no room left on the disk. Nothing was changed; free some room and try again."""


class StoreVanished(StoreUnavailable):
    """The database file is gone or was replaced. Put it back; it will be opened again."""


class StoreRefused(StoreError):
    """The database server does not let us in, and trying again will not help."""


class StoreReadOnly(StoreError):
    """The database file or its directory cannot be written."""


class StoreCorrupt(StoreError):
    """The file is damaged or is not a database."""


class StoreTooNew(StoreError):
    """A newer Mainspring wrote this database. Upgrade this program."""


class Wish(Exception):
    """Raised by a handler to end its run in a way of its choosing."""

    def __init__(self, reason: object = "") -> None:
        super().__init__(reason)
        self.reason = "" if reason is None else str(reason)  # often it is the error that was caught


class Discard(Wish):
    """Give up at once: the job becomes a dead letter whatever attempts are left."""


class Cancel(Wish):
    """End the job as cancelled."""


LONGEST_SNOOZE = timedelta(days=366_000)


class Snooze(Wish):
    """Run again after a delay; this run burns no attempt."""

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
