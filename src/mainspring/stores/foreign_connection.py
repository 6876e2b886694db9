"""Find the driver's connection inside the caller's SQLAlchemy or Django object, and run transactions on it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Protocol

from mainspring.errors import ConfigurationError

NOT_OUTERMOST = (
    "the connection given to ctx.transaction() is in a transaction already; commit or roll back first, and let "
    "ctx.transaction() begin it"
)
NEEDS_ASYNC_WITH = "an asynchronous connection needs a coroutine and `async with ctx.transaction(…)`"
ENDED_INSIDE = "ctx.transaction() commits at its end, with the job's outcome; do not commit or roll back inside it"


async def unwrap(given: Any) -> Any:
    """Return the driver's connection inside an SQLAlchemy session or connection, or a Django connection.

    This begins a transaction on SQLAlchemy objects that are in none. Any other object is returned unchanged.
    """
    if made_by("sqlalchemy", given):
        return await sqlalchemy_driver(given)
    if is_django(given):
        given.ensure_connection()
        return given.connection
    return given


def made_by(package: str, given: Any) -> bool:
    """Return whether the object's class, or a base class (as of SQLModel's Session), is from this package."""
    return any(base.__module__.partition(".")[0] == package for base in type(given).__mro__)


def is_django(given: Any) -> bool:
    """Return whether it is a Django connection, or the proxy `django.db.connection`."""
    return hasattr(given, "ensure_connection")


def unscoped(given: Any) -> Any:
    """Return the current session of a scoped session, as in Flask-SQLAlchemy; any other object unchanged."""
    return given.registry() if hasattr(given, "registry") else given


async def sqlalchemy_driver(given: Any) -> Any:
    if is_asynchronous(given):
        return await asynchronous_driver(given)
    connection = given.connection() if hasattr(given, "get_bind") else given  # a session opens one if it has none
    if not hasattr(connection, "in_transaction"):  # an engine, perhaps
        return given
    if not connection.in_transaction():  # otherwise its commit() would find nothing to commit
        connection.begin()
    return connection.connection.driver_connection


def is_asynchronous(given: Any) -> bool:
    """Return whether it is an AsyncConnection, an AsyncSession or an async scoped session of SQLAlchemy."""
    kind = type(given)
    return made_by("sqlalchemy", given) and (
        hasattr(kind, "run_sync") or inspect.iscoroutinefunction(getattr(kind, "connection", None))
    )


async def asynchronous_driver(given: Any) -> Any:
    await asyncio.sleep(0)  # `enqueue_sync` cannot await: it fails here, before anything is done
    connection = await given.connection() if hasattr(given, "get_bind") else given
    if not connection.in_transaction():
        await connection.begin()
    return (await connection.get_raw_connection()).driver_connection


# -- transactions that Mainspring begins and ends --------------------------------------------------------------------


class OwnTransaction(Protocol):
    """A transaction on the caller's object. The object's own library begins and ends it, so that its state is right."""

    async def begin(self) -> Any:
        """Begin the transaction and return the driver's connection."""

    async def commit(self) -> None: ...
    async def roll_back(self) -> None: ...


class SqlalchemyTransaction:
    """A transaction on an SQLAlchemy session or connection.

    Changes that the caller made earlier in this transaction are committed together with the job's outcome.
    """

    def __init__(self, given: Any) -> None:
        self._given = given

    async def begin(self) -> Any:
        return await unwrap(self._given)

    async def commit(self) -> None:
        await finished(self._given.commit())

    async def roll_back(self) -> None:
        await finished(self._given.rollback())


class DjangoTransaction:
    """An atomic block of Django. Django forbids commits inside it; atomic blocks nested in it are savepoints."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._atomic: Any = None

    async def begin(self) -> Any:
        from django.db.transaction import atomic  # type: ignore[import-untyped]  # noqa: PLC0415 - optional; the caller uses it

        if self._given.in_atomic_block or not self._given.get_autocommit():
            raise ConfigurationError(NOT_OUTERMOST)
        block = atomic(using=self._given.alias)
        block.__enter__()
        self._atomic = block
        return self._given.connection

    async def commit(self) -> None:
        block, self._atomic = self._atomic, None
        block.__exit__(None, None, None)

    async def roll_back(self) -> None:
        block, self._atomic = self._atomic, None
        if block is not None:  # None: it failed to begin or to commit, and has rolled back by itself
            block.__exit__(Undone, Undone(), None)


def own_transaction(given: Any, bare: Callable[[Any], OwnTransaction]) -> OwnTransaction:
    """Return the transaction for the caller's object. `bare` makes it for a connection of the driver itself."""
    if made_by("sqlalchemy", given):
        return SqlalchemyTransaction(given)
    return DjangoTransaction(given) if is_django(given) else bare(given)


class Undone(Exception):
    """Passed to `__exit__` to make a block roll back. It is never raised."""


async def finished(work: Any) -> None:
    """Await the result if the library is asynchronous."""
    if inspect.isawaitable(work):
        await work
