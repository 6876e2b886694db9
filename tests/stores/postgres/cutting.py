"""A server behind a line that is cut at the worst moment: just before a message, or just before its answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tests.stores.postgres.several import Stores

PORT = 5432


class Line:
    """Between a store and its server."""

    def __init__(self, server: Path, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self.before: bytes | None = None  # a message with this does not get through
        self.after: bytes | None = None  # an answer with this does not get back
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def dsn(self) -> str:
        return f"postgresql://mainspring@/postgres?host={self._directory}&port={PORT}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._server)
        for passing_on in (self._pass_on(reader, back, writer, "before"), self._pass_on(there, writer, back, "after")):
            task = asyncio.create_task(passing_on)
            self._open[task] = back
            task.add_done_callback(self._open.pop)

    async def close(self) -> None:
        for writer in self._open.values():
            writer.close()
        await asyncio.gather(*self._open)

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, other: asyncio.StreamWriter, cut: str
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                mark = getattr(self, cut)
                if mark is not None and mark in data:
                    setattr(self, cut, None)  # once
                    break
                target.write(data)
                await target.drain()
        target.close()
        other.close()


@contextlib.asynccontextmanager
async def cut_line(stores: Stores, directory: Path) -> AsyncIterator[Line]:
    server = Path(stores.dsn.partition("host=")[2]) / f".s.PGSQL.{PORT}"
    line = Line(server, directory)
    async with await asyncio.start_unix_server(line.serve, directory / f".s.PGSQL.{PORT}"):
        yield line
        await line.close()
