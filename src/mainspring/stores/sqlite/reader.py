"""Threads that read. Write-ahead logging lets them go on whatever the writer does."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from mainspring.errors import StoreVanished
from mainspring.stores.sqlite.file import DatabaseFile

P = ParamSpec("P")
R = TypeVar("R")

READERS = 2


class Reader:
    """A connection per thread, opened anew when the file was replaced."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="mainspring-reader")
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []

    async def run(
        self, function: Callable[Concatenate[sqlite3.Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call the function with a connection, all of it in one snapshot."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: self._read(function, *args, **kwargs))

    def close(self) -> None:
        self._pool.shutdown()
        for connection in self._opened:
            connection.close()

    def _read(self, function: Callable[Concatenate[sqlite3.Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        with self._file.errors():
            connection = self._connection()
            connection.execute("BEGIN")
            try:
                return function(connection, *args, **kwargs)
            finally:
                connection.execute("ROLLBACK")

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        try:
            self._file.check_identity()
        except StoreVanished:
            self._file.reopen()
            connection = None
        if connection is None:
            connection = self._local.connection = self._file.connect(readonly=True)
            self._opened.append(connection)
        return connection
