"""Turn the server's errors into Mainspring's: which may pass by themselves, which will not, and what to do."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import errors

from mainspring.errors import StoreBusy, StoreError, StoreFull, StoreReadOnly, StoreRefused, StoreUnavailable

KINDS: tuple[tuple[tuple[type[psycopg.Error], ...], type[StoreError], str, str], ...] = (
    ((errors.DiskFull, errors.OutOfMemory), StoreFull, "the database server has no room left", ""),
    (
        (errors.ReadOnlySqlTransaction,),
        StoreReadOnly,
        "the database does not accept writes; is it a standby?",
        "with several hosts, write target_session_attrs=read-write",
    ),
    (
        (errors.InsufficientPrivilege,),
        StoreReadOnly,
        "this database user may not do that",
        "docs/postgres.md lists the rights that each user needs",
    ),
    (
        (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure),
        StoreBusy,
        "another transaction was in the way",
        "",
    ),
    (
        (errors.ProgramLimitExceeded,),
        StoreError,
        "a key or a name is too long for an index",
        "keep the keys and names of jobs, steps and documents below 2,000 bytes",
    ),
    ((errors.IdleInTransactionSessionTimeout,), StoreUnavailable, "the server gave up waiting for this client", ""),
    (
        (errors.UndefinedTable, errors.UndefinedFunction, errors.InvalidSchemaName),
        StoreError,
        "Mainspring's tables do not exist, or are not up to date; run `mainspring migrate`",
        "",
    ),
    (
        (errors.DuplicatePreparedStatement, errors.InvalidSqlStatementName),
        StoreError,
        "the pooler in between does not keep prepared statements",
        "write prepare=off after the question mark of the URL",
    ),
)
"""Errors on an open connection: their classes, the error to raise, its message, and advice to put after the server's
message."""

PERMANENT = (
    (r'database "[^"]*" does not exist|no such database', "create it, or correct the database's name in the URL"),
    (r"password authentication failed|no such user|auth failed", "correct the user or the password"),
    (r"no password supplied", "give one: in the URL, as PGPASSWORD, or in ~/.pgpass"),
    (r'role "[^"]*" does not exist|not permitted to log in', "create the user, or correct its name in the URL"),
    (
        r"(ident|peer|gssapi|ldap|pam|certificate|radius) authentication failed",
        "pg_hba.conf decides which users may log in, and how",
    ),
    (r"no pg_hba\.conf entry|pg_hba\.conf rejects", "pg_hba.conf on the server must allow this connection"),
    (r"permission denied for database", "GRANT CONNECT ON DATABASE … TO this user"),
    (r"does not support SSL|certificate verify failed|root certificate file", "correct sslmode and sslrootcert"),
    (r"invalid (sslmode|target_session_attrs|channel_binding|gssencmode) value", "correct it in the URL"),
    (r"unsupported startup parameter", "the pooler does not accept this setting: leave it out of the URL"),
)
TEMPORARY = (
    (
        r"too many clients|connection slots are reserved|too many connections",
        "raise max_connections, run fewer workers, or put PgBouncer in between",
    ),
    (r"failed to resolve host|could not translate host name", "is the host's name right?"),
)
"""Errors of failed connection attempts, for which libpq gives no error code. They are recognised by the server's
message, which works if that is in English."""


CLOSING_ERRORS = (errors.AdminShutdown, errors.CrashShutdown, errors.IdleInTransactionSessionTimeout)
"""Errors after which the server closes the connection."""


class ConnectionLost(StoreUnavailable):
    """The connection to the database broke. The server may well answer on another one."""


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raise psycopg's errors as Mainspring's."""
    try:
        yield
    except psycopg.Error as error:
        raise explain(error) from error


def explain_on(connection: psycopg.AsyncConnection[Any], error: psycopg.Error) -> StoreError:
    """Explain an error of an open connection. `ConnectionLost` tells the caller to try a new connection at once."""
    if not is_lost(connection, error):
        return explain(error)
    words = " ".join(str(error).split()) or type(error).__name__
    return ConnectionLost(f"the connection to the database was lost: {words}")


def is_lost(connection: psycopg.AsyncConnection[Any], error: psycopg.Error) -> bool:
    """Return whether the connection broke. A closing error may be read before psycopg notices that it is closed."""
    if isinstance(error, CLOSING_ERRORS):
        return True
    return connection.closed and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))


def explain(error: psycopg.Error) -> StoreError:
    words = " ".join(str(error).split()) or type(error).__name__
    for kinds, told_as, message, advice in KINDS:
        if isinstance(error, kinds):
            return told_as(f"{message}: {words}{f'; {advice}' if advice else ''}")
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return explain_failed_connection(str(error), words)
    return StoreError(words)


def explain_failed_connection(message: str, words: str) -> StoreError:
    """Explain a failed connection attempt. With several hosts, one that may come back is reason enough to wait."""
    tries = [line for line in message.splitlines() if line.startswith("- host:")] or [message]
    found = [advice_on(attempt, PERMANENT) for attempt in tries]
    if all(found):
        return StoreRefused(f"the database does not accept these connection settings: {words}; {found[0]}")
    advice = advice_on(message, TEMPORARY)
    return StoreUnavailable(f"the database cannot be reached: {words}{f'; {advice}' if advice else ''}")


def advice_on(message: str, known: tuple[tuple[str, str], ...]) -> str:
    return next((advice for pattern, advice in known if re.search(pattern, message, re.IGNORECASE)), "")
