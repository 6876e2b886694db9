from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.ground import Databases, Files
from bench.peer import DATABASE, PLACE, SERVER
from bench.plan import Stock


class Recorder:
    """Stands for the server: it notes what it is asked for."""

    pid = 4711

    def __init__(self) -> None:
        self.asked: list[str] = []

    def url(self, database: str) -> str:
        return f"postgresql:///{database}"

    def create(self, database: str, template: str | None = None) -> None:
        self.asked.append(f"create {database}{f' from {template}' if template else ''}")

    def drop(self, database: str) -> None:
        self.asked.append(f"drop {database}")

    def freeze_statistics(self, database: str) -> None:
        self.asked.append("freeze")

    def analyze(self, database: str) -> None:
        self.asked.append("analyze")


def databases(place: Path) -> tuple[Databases, Recorder]:
    server: Any = Recorder()
    return Databases(place, server), server


@pytest.mark.parametrize(
    ("statistics", "steps"),
    [
        ("", ["fill"]),
        ("fresh", ["fill", "analyze"]),
        ("stale", ["tables", "freeze", "analyze", "fill", "freeze"]),
        ("absent", ["tables", "freeze", "fill", "freeze"]),
    ],
)
def test_a_stock_is_analyzed_as_its_statistics_setting_says(statistics: str, steps: list[str], tmp_path: Path) -> None:
    grounds, server = databases(tmp_path)
    ground = grounds.make("ours")
    server.asked.clear()
    stock = Stock(waiting=1000, statistics=statistics)
    grounds.fill(ground, stock, lambda: server.asked.append("tables"), lambda: server.asked.append("fill"))
    assert server.asked == steps


def test_each_measurement_beside_a_stock_has_a_copy_of_it(tmp_path: Path) -> None:
    grounds, server = databases(tmp_path)
    ground = grounds.make("ours")
    with grounds.again(ground) as copy:
        known = {PLACE: str(copy.place), DATABASE: f"postgresql:///{copy.database}", SERVER: "4711"}
        assert copy.environment == known
    assert server.asked == [
        f"create {ground.database}",
        f"create {copy.database} from {ground.database}",
        f"drop {copy.database}",
    ]
    assert not copy.place.exists()
    assert ground.place.exists()


def test_a_sqlite_file_that_was_filled_is_used_again(tmp_path: Path) -> None:
    grounds = Files(tmp_path)
    ground = grounds.make("ours")
    with grounds.again(ground) as again:
        assert again is ground
    grounds.remove(ground)
    assert not ground.place.exists()
