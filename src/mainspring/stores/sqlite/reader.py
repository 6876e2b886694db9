"""Threads that read. With write-ahead logging, they never wait for the writer."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from mainspring.stores.sqlite.connection import DatabaseFile, FileConnection
from mainspring.stores.sqlite.transaction import roll_back

P = ParamSpec("P")
R = TypeVar("R")

READERS = 2


class Reader:
    """A few threads, each with its own connection."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="mainspring-reader")
        self._local = threading.local()
        self._file_connections: list[FileConnection] = []

    async def run(
        self, function: Callable[Concatenate[sqlite3.Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call the function with a connection, inside one read transaction: it sees a consistent snapshot."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: self._read(function, *args, **kwargs))

    def close(self) -> None:
        self._pool.shutdown()
        for file_connection in self._file_connections:
            file_connection.close()

    def _read(self, function: Callable[Concatenate[sqlite3.Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        with self._file_connection().use() as connection:
            connection.execute("BEGIN")
            try:
                return function(connection, *args, **kwargs)
            finally:
                roll_back(connection)

    def _file_connection(self) -> FileConnection:
        file_connection: FileConnection | None = getattr(self._local, "file_connection", None)
        if file_connection is None:
            file_connection = self._local.file_connection = FileConnection(self._file)
            self._file_connections.append(file_connection)
        return file_connection
