"""The exit codes, which scripts can rely on, and which error leads to which code."""

from __future__ import annotations

from enum import IntEnum

from mainspring.errors import (
    BatchNotFound,
    BreakerNotFound,
    ConfigurationError,
    FailureGroupNotFound,
    JobNotFound,
    MainspringError,
    PersonNotFound,
    ScheduleNotFound,
    StepNotFound,
    StoreError,
    SubscriberNotFound,
    TokenNotFound,
)


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    STORE = 4
    STUCK = 5
    INTERRUPTED = 130


MEANINGS = {
    Exit.OK: "done",
    Exit.FAILED: "the operation failed or is not allowed; for doctor: it found an error",
    Exit.USAGE: "wrong usage: unknown option, bad value, no such application",
    Exit.NOT_FOUND: "there is no such job, step, batch, person, schedule, circuit breaker, subscriber or token",
    Exit.STORE: "the store cannot be used: missing, locked, full, damaged, refuses the connection",
    Exit.STUCK: "a worker handed back its jobs because its slots are stuck; start it again",
    Exit.INTERRUPTED: "interrupted with Ctrl-C",
}


class UsageError(ConfigurationError):
    """The command line is wrong."""

    def __init__(self, message: str, command: str = "mainspring") -> None:
        super().__init__(message)
        self.command = command


class StoreMissing(StoreError):
    """There is no such store. Reading does not create it: an empty store would look like lost jobs."""


def exit_code_of(error: MainspringError) -> Exit:
    match error:
        case ConfigurationError():
            return Exit.USAGE
        case BatchNotFound() | BreakerNotFound() | FailureGroupNotFound() | JobNotFound() | PersonNotFound():
            return Exit.NOT_FOUND
        case ScheduleNotFound() | StepNotFound() | SubscriberNotFound() | TokenNotFound():
            return Exit.NOT_FOUND
        case StoreError():
            return Exit.STORE
    return Exit.FAILED
