"""Connections of every library that can be lent to us, each to the application's own file.

Engines are without a pool, so that there is nothing to dispose of.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from tests.django_setup import add_database, set_up_django

INSERT = "INSERT INTO rooms VALUES (7)"

Lent = tuple[Any, Callable[[str], Any]]
"""What is given as `connection`, and a function that runs a statement with it."""


@contextmanager
def sqlite3_connection(path: Path) -> Iterator[Lent]:
    with closing(sqlite3.connect(path)) as connection:
        yield connection, connection.execute


@contextmanager
def sqlalchemy_connection(path: Path) -> Iterator[Lent]:
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with engine.connect() as connection:
        yield connection, connection.exec_driver_sql


@contextmanager
def sqlalchemy_connection_that_begins(path: Path) -> Iterator[Lent]:
    """As SQLAlchemy's documentation advises for transactions that include reads."""
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    with engine.connect() as connection:
        yield connection, connection.exec_driver_sql


class SessionOfAnotherPackage(Session):
    """As SQLModel has one."""


@contextmanager
def sqlalchemy_session(path: Path) -> Iterator[Lent]:
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with SessionOfAnotherPackage(engine) as session:
        yield session, lambda statement: session.connection().exec_driver_sql(statement)


@contextmanager
def sqlalchemy_scoped_session(path: Path) -> Iterator[Lent]:
    """As Flask-SQLAlchemy has one."""
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    session = scoped_session(sessionmaker(engine))
    try:
        yield session, lambda statement: session.connection().exec_driver_sql(statement)
    finally:
        session.remove()


@contextmanager
def django_connection(path: Path) -> Iterator[Lent]:
    connection = connect_django(path)
    connection.set_autocommit(False)
    try:
        yield connection, lambda statement: connection.cursor().execute(statement)
    finally:
        connection.close()


def connect_django(path: Path) -> Any:
    add_database("hotel", {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)})
    return set_up_django().db.connections["hotel"]


LENDERS = [
    sqlite3_connection, sqlalchemy_connection, sqlalchemy_connection_that_begins, sqlalchemy_session,
    sqlalchemy_scoped_session, django_connection,
]  # fmt: skip


@asynccontextmanager
async def aiosqlite_connection(path: Path) -> AsyncIterator[Lent]:
    async with aiosqlite.connect(path) as connection:
        yield connection, connection.execute


@asynccontextmanager
async def sqlalchemy_async_connection(path: Path) -> AsyncIterator[Lent]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
    async with engine.connect() as connection:
        yield connection, connection.exec_driver_sql


@asynccontextmanager
async def sqlalchemy_async_session(path: Path) -> AsyncIterator[Lent]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield session, lambda statement: execute_in(session, statement)


@asynccontextmanager
async def sqlalchemy_async_scoped_session(path: Path) -> AsyncIterator[Lent]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
    session = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    try:
        yield session, lambda statement: execute_in(session, statement)
    finally:
        await session.remove()


async def execute_in(session: Any, statement: str) -> None:
    await (await session.connection()).exec_driver_sql(statement)


ASYNC_LENDERS = [
    aiosqlite_connection, sqlalchemy_async_connection, sqlalchemy_async_session, sqlalchemy_async_scoped_session,
]  # fmt: skip
