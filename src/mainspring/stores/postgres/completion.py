"""A handler's own transaction, which ends with its job's outcome: both are committed, or neither."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import psycopg

from mainspring.errors import ClaimLost
from mainspring.job import Outcome
from mainspring.stores.postgres.borrowed import Awaitable as Clothed
from mainspring.stores.postgres.borrowed import run_at_once
from mainspring.stores.postgres.endings import ack
from mainspring.stores.postgres.links import CONNECT_TIMEOUT, KEEPALIVES, Links, explained
from mainspring.stores.postgres.notices import tell
from mainspring.stores.postgres.transaction import Dialect, Transaction


class PostgresCompletion:
    """`with` in threads, `async with` on the loop; entering gives a psycopg connection in a transaction."""

    def __init__(self, links: Links, dialect: Dialect, outcome: Callable[[], Outcome]) -> None:
        self._links = links
        self._dialect = dialect
        self._outcome = outcome
        self._connection: Any = None

    # -- on the loop ----------------------------------------------------------------------------------

    async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
        connection = await self._links.connect()
        await connection.set_autocommit(False)
        self._connection = connection
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection, self._connection = self._connection, None
        try:
            with explained():
                if error is None:
                    transaction = Transaction(connection, self._dialect)
                    await self._write(transaction)
                    await connection.commit()
                    await tell(transaction)
                    await connection.commit()
        finally:
            await connection.close()  # which rolls back what was not committed

    # -- in threads -----------------------------------------------------------------------------------

    def __enter__(self) -> psycopg.Connection[Any]:
        with explained():
            self._connection = psycopg.connect(self._links.dsn, connect_timeout=CONNECT_TIMEOUT, **KEEPALIVES)
        return self._connection  # type: ignore[no-any-return]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection, self._connection = self._connection, None
        try:
            with explained():
                if error is None:
                    clothed: Any = Clothed(connection)
                    transaction = Transaction(clothed, self._dialect)
                    run_at_once(self._write(transaction))
                    connection.commit()
                    run_at_once(tell(transaction))
                    connection.commit()
        finally:
            connection.close()

    async def _write(self, transaction: Transaction) -> None:
        if await ack(transaction, [self._outcome()]) == [None]:
            raise ClaimLost
        await transaction.write_counts()
