"""Where the data of one peer is while it is measured: a directory and, on PostgreSQL, a database."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peer import DATABASE, PLACE, SERVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.plan import Stock
    from bench.server import Server


class NoGround(Exception):
    """The database could not be made, filled, copied or dropped; the message is the server's."""


@dataclass(frozen=True)
class Ground:
    place: Path
    environment: dict[str, str]
    database: str = ""


class Files:
    """For SQLite. A store that was filled is used again as it is; its measurements leave nothing behind but history."""

    def __init__(self, work: Path) -> None:
        self._work = work

    def make(self, name: str) -> Ground:
        place = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._work))
        return Ground(place, {PLACE: str(place)})

    def remove(self, ground: Ground) -> None:
        shutil.rmtree(ground.place)

    def fill(self, ground: Ground, stock: Stock, create: Callable[[], None], fill: Callable[[], None]) -> None:
        """`create` makes the tables, `fill` the jobs."""
        fill()

    @contextmanager
    def again(self, ground: Ground) -> Iterator[Ground]:
        """A store that was filled, for one more measurement."""
        yield ground


class Databases(Files):
    """For PostgreSQL. Each measurement beside a stock gets a copy of it, as it was filled.

    So it meets the same rows and the same statistics, and no dead rows of the rounds before.
    """

    def __init__(self, work: Path, server: Server) -> None:
        super().__init__(work)
        self._server = server
        self._numbers = itertools.count()

    def make(self, name: str) -> Ground:
        ground = self._ground(name)
        self._server.create(ground.database)
        return ground

    def remove(self, ground: Ground) -> None:
        self._server.drop(ground.database)
        super().remove(ground)

    def fill(self, ground: Ground, stock: Stock, create: Callable[[], None], fill: Callable[[], None]) -> None:
        frozen = stock.statistics in ("stale", "absent")
        if frozen:
            create()
            self._server.freeze_statistics(ground.database)
        if stock.statistics == "stale":
            self._server.analyze(ground.database)  # of empty tables
        fill()
        if frozen:
            self._server.freeze_statistics(
                ground.database
            )  # of tables that are made only when there is something in them
        if stock.statistics == "fresh":
            self._server.analyze(ground.database)

    @contextmanager
    def again(self, ground: Ground) -> Iterator[Ground]:
        copy = self._ground("copy")
        self._server.create(copy.database, template=ground.database)
        try:
            yield copy
        finally:
            self.remove(copy)

    def _ground(self, name: str) -> Ground:
        made = super().make(name)
        database = f"bench_{next(self._numbers)}"
        known = {DATABASE: self._server.url(database), SERVER: str(self._server.pid)}
        return Ground(made.place, made.environment | known, database)
