"""A pooler in transaction mode, as strict as one can be: each transaction of a client gets another connection."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

PORT = 6432
SSL, GSS, CANCEL = 80877103, 80877104, 80877102  # what may come in place of a startup message
READY, STATUS, KEY = b"Z", b"S", b"K"
HOW_MANY = 3  # connections to the server

numbers = itertools.count(1)


@dataclass(eq=False)
class Backend:
    """One connection to the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    settings: bytes = b""  # what the server said about itself, message by message
    key: bytes = b""


@dataclass(eq=False)
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    backend: Backend | None = None  # while a transaction lasts
    answering: asyncio.Task[None] | None = None
    owed: int = 0  # answers that the server has not finished
    key: bytes = field(default_factory=lambda: struct.pack("!II", 1 << 30 | next(numbers), os.getpid()))


class Pooler:
    """Knows of the protocol where a message ends, and where a transaction does."""

    def __init__(self, server: Path, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self._free: asyncio.Queue[Backend] = asyncio.Queue()  # the one that was used last comes last
        self._backends: set[Backend] = set()
        self._clients: dict[bytes, Client] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self.transactions = 0

    @property
    def dsn(self) -> str:
        return f"postgresql://mainspring@/postgres?host={self._directory}&port={PORT}"

    async def start(self) -> None:
        for _ in range(HOW_MANY):
            await self._connect()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(Client(reader, writer)))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        for backend in self._backends:
            backend.writer.close()

    # -- the server -------------------------------------------------------------------------------

    async def _connect(self) -> None:
        backend = Backend(*await asyncio.open_unix_connection(self._server))
        words = b"user\0mainspring\0database\0postgres\0application_name\0pooler\0\0"
        backend.writer.write(struct.pack("!II", len(words) + 8, 3 << 16) + words)
        kind = b""
        while kind != READY:
            kind, message = await read_message(backend.reader)
            if kind == STATUS:
                backend.settings += message
            elif kind == KEY:
                backend.key = message[5:]
        self._backends.add(backend)
        self._free.put_nowait(backend)

    async def _forget(self, backend: Backend) -> None:
        """Whose client is gone in the middle of a transaction."""
        backend.writer.close()
        self._backends.discard(backend)
        await self._connect()

    # -- a client ---------------------------------------------------------------------------------

    async def _serve(self, client: Client) -> None:
        try:
            if await self._greet(client):
                self._clients[client.key] = client
                while True:
                    kind, message = await read_message(client.reader)
                    if kind == b"X":
                        break
                    await self._pass_on(client, kind, message)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._clients.pop(client.key, None)
            client.writer.close()
            if client.answering is not None:
                client.answering.cancel()
        if client.backend is not None:
            await self._forget(client.backend)

    async def _greet(self, client: Client) -> bool:
        while True:
            (length,) = struct.unpack("!I", await client.reader.readexactly(4))
            words = await client.reader.readexactly(length - 4)
            (version,) = struct.unpack("!I", words[:4])
            if version == CANCEL:
                await self._cancel(words[4:])
                return False
            if version not in {SSL, GSS}:
                break
            client.writer.write(b"N")
        settings = next(iter(self._backends)).settings
        client.writer.write(
            message_of(b"R", bytes(4)) + settings + message_of(KEY, client.key) + message_of(READY, b"I")
        )
        return True

    async def _cancel(self, key: bytes) -> None:
        backend = self._clients[key].backend if key in self._clients else None
        if backend is not None:
            _, writer = await asyncio.open_unix_connection(self._server)
            writer.write(struct.pack("!II", 8 + len(backend.key), CANCEL) + backend.key)
            await writer.drain()
            writer.close()

    async def _pass_on(self, client: Client, kind: bytes, message: bytes) -> None:
        if client.backend is None:
            client.backend = await self._free.get()
            client.answering = asyncio.create_task(self._answer(client, client.backend))
        client.owed += kind in b"QSF"
        client.backend.writer.write(message)
        await client.backend.writer.drain()

    async def _answer(self, client: Client, backend: Backend) -> None:
        """Until the server says that no transaction is open, and owes nothing more."""
        while True:
            kind, message = await read_message(backend.reader)
            if kind == READY:
                client.owed -= 1
                if client.owed == 0 and message[5:] == b"I":
                    client.backend = client.answering = None
                    self._free.put_nowait(backend)
                    self.transactions += 1
                    client.writer.write(message)
                    return
            client.writer.write(message)
            await client.writer.drain()


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Its kind, and the whole of it."""
    head = await reader.readexactly(5)
    (length,) = struct.unpack("!I", head[1:])
    return head[:1], head + await reader.readexactly(length - 4)


def message_of(kind: bytes, words: bytes) -> bytes:
    return kind + struct.pack("!I", len(words) + 4) + words


@contextlib.asynccontextmanager
async def pooled(dsn: str, directory: Path) -> AsyncIterator[Pooler]:
    pooler = Pooler(Path(dsn.partition("host=")[2]) / ".s.PGSQL.5432", directory)
    await pooler.start()
    async with await asyncio.start_unix_server(pooler.accept, directory / f".s.PGSQL.{PORT}"):
        try:
            yield pooler
        finally:
            await pooler.close()
