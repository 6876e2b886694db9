"""What is below the caller's own connection: the driver's connection in an SQLAlchemy or Django object."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any


async def unwrap(given: Any) -> Any:
    """Return the driver's connection below an SQLAlchemy session or connection, or a Django connection.

    SQLAlchemy's is then in a transaction. Any other object is returned as it is.
    """
    if made_by("sqlalchemy", given):
        return await sqlalchemy_driver(given)
    if is_django(given):
        given.ensure_connection()
        return given.connection
    return given


def made_by(package: str, given: Any) -> bool:
    """Whether the object's class, or one that it extends (as SQLModel's Session does), is from this package."""
    return any(base.__module__.partition(".")[0] == package for base in type(given).__mro__)


def is_django(given: Any) -> bool:
    """A connection, or the proxy `django.db.connection`."""
    return hasattr(given, "ensure_connection")


async def sqlalchemy_driver(given: Any) -> Any:
    if is_asynchronous(given):
        return await asynchronous_driver(given)
    connection = given.connection() if hasattr(given, "get_bind") else given  # a session has one, or opens one
    if not hasattr(connection, "in_transaction"):  # an engine, perhaps
        return given
    if not connection.in_transaction():  # else its commit would believe that there is nothing to commit
        connection.begin()
    return connection.connection.driver_connection


def is_asynchronous(given: Any) -> bool:
    """Whether it is an AsyncConnection, an AsyncSession or a scoped one of these."""
    return hasattr(given, "get_raw_connection") or inspect.iscoroutinefunction(getattr(type(given), "connection", None))


async def asynchronous_driver(given: Any) -> Any:
    await asyncio.sleep(0)  # `enqueue_sync` cannot wait, and fails here, before anything is done
    connection = await given.connection() if hasattr(given, "get_bind") else given
    if not connection.in_transaction():
        await connection.begin()
    return (await connection.get_raw_connection()).driver_connection
