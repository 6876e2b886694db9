"""A handler's transaction that also writes its job's outcome: both are committed, or neither."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any

import psycopg

from mainspring.errors import ClaimLost, ConfigurationError
from mainspring.job import Outcome
from mainspring.portal import run_at_once
from mainspring.stores.foreign_connection import ENDED_INSIDE, NEEDS_ASYNC_WITH, is_asynchronous, own_transaction
from mainspring.stores.postgres import partitions
from mainspring.stores.postgres.acks import ack
from mainspring.stores.postgres.errors import explained
from mainspring.stores.postgres.foreign_connection import AsyncAdapter, BareTransaction, operable
from mainspring.stores.postgres.listen import tell, tell_with_commit
from mainspring.stores.postgres.pool import Pool
from mainspring.stores.postgres.transaction import Dialect, Transaction


class PostgresCompletion:
    """Use `with` in threads and `async with` on the event loop. Entering returns a psycopg connection."""

    def __init__(self, pool: Pool, dialect: Dialect, outcome: Callable[[], Outcome]) -> None:
        self._pool = pool
        self._dialect = dialect
        self._outcome = outcome
        self._connection: Any = None
        self._block: Any = None  # psycopg rejects commit() and rollback() within it

    # -- on the loop ----------------------------------------------------------------------------------

    async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
        connection = await self._pool.connect()
        self._connection, self._block = connection, connection.transaction()
        try:
            with explained():
                await self._block.__aenter__()
        except BaseException:  # for example the handler's timeout: nothing else would close the connection
            await connection.close()
            raise
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection, self._connection = self._connection, None
        try:
            with explained():
                if error is None:
                    refuse_ended(connection)
                    transaction = await self._write(connection)
                    await self._block.__aexit__(None, None, None)
                    with contextlib.suppress(psycopg.Error):  # committed already; a worker not notified will poll
                        await tell(transaction)
        finally:
            await connection.close()  # this rolls back a transaction that is not committed

    # -- in threads -----------------------------------------------------------------------------------

    def __enter__(self) -> psycopg.Connection[Any]:
        self._connection = connection = self._pool.connect_here()
        self._block = connection.transaction()
        try:
            with explained():
                self._block.__enter__()
        except BaseException:
            connection.close()
            raise
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection, self._connection = self._connection, None
        try:
            with explained():
                if error is None:
                    refuse_ended(connection)
                    transaction = run_at_once(self._write(AsyncAdapter(connection)))
                    self._block.__exit__(None, None, None)
                    with contextlib.suppress(psycopg.Error):
                        run_at_once(tell(transaction))
        finally:
            connection.close()

    async def _write(self, connection: Any) -> Transaction:
        return await write_outcome(connection, self._dialect, self._outcome())


class ForeignCompletion:
    """The same as PostgresCompletion, on the caller's own connection. Entering returns the connection it was given."""

    def __init__(self, given: Any, dialect: Dialect, outcome: Callable[[], Outcome]) -> None:
        self._given = given
        self._dialect = dialect
        self._outcome = outcome
        self._own = own_transaction(given, BareTransaction)
        self._driver: Any = None
        self._connection: Any = None

    async def __aenter__(self) -> Any:
        """Begin the transaction. At the end, its savepoint shows whether the transaction is still the same."""
        try:
            with explained():
                self._driver = await self._own.begin()
                self._connection = operable(self._driver, self._given)
                await self._connection.execute("SAVEPOINT mainspring_job")
        except BaseException:
            await self._own.roll_back()
            raise
        return self._given

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._own.roll_back()
            return
        try:
            with explained():
                await self._commit()
        except BaseException:
            await self._own.roll_back()
            raise

    async def _commit(self) -> None:
        await self._refuse_ended()
        transaction = await write_outcome(self._connection, self._dialect, self._outcome())
        await tell_with_commit(transaction)
        await self._own.commit()

    async def _refuse_ended(self) -> None:
        if self._driver.closed and not self._driver.broken:  # SQLAlchemy may close it after its commit
            raise ConfigurationError(ENDED_INSIDE)
        try:
            await self._connection.execute("RELEASE SAVEPOINT mainspring_job")
        except (psycopg.errors.InvalidSavepointSpecification, psycopg.errors.NoActiveSqlTransaction) as error:
            raise ConfigurationError(ENDED_INSIDE) from error

    def __enter__(self) -> Any:
        if isinstance(self._given, psycopg.AsyncConnection) or is_asynchronous(self._given):
            raise TypeError(NEEDS_ASYNC_WITH)
        return run_at_once(self.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_at_once(self.__aexit__(kind, error, trace))


async def write_outcome(connection: Any, dialect: Dialect, outcome: Outcome) -> Transaction:
    """Write the outcome into the caller's transaction and return what to announce.

    If the archive has no partition for the day yet, create it in this transaction. No other transaction can, while
    this one holds its locks.
    """
    transaction = Transaction(connection, dialect)
    await transaction.do("SAVEPOINT mainspring")
    try:
        await write(transaction, outcome)
    except psycopg.errors.CheckViolation as error:
        day = partitions.missing(error)
        if day is None:
            raise
        transaction = Transaction(connection, dialect)
        await transaction.do("ROLLBACK TO mainspring")
        await partitions.make(transaction, {day})
        await write(transaction, outcome)
    return transaction


async def write(transaction: Transaction, outcome: Outcome) -> None:
    if await ack(transaction, [outcome]) == [None]:
        raise ClaimLost
    await transaction.write_counts()


def refuse_ended(connection: Any) -> None:
    if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        msg = "the transaction of ctx.transaction() has ended already: do not commit or roll back inside it"
        raise ConfigurationError(msg)
