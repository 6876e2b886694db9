"""When a worker publishes its tasks."""

from __future__ import annotations

from pathlib import Path

from mainspring import Mainspring
from mainspring.errors import UnknownTask
from tests.worker.working import eventually, working


async def test_tasks_are_known_to_other_programs_soon_after_the_start(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    ran: list[int] = []
    app, other = Mainspring(url), Mainspring(url)

    @app.task
    async def notify(number: int) -> None:
        ran.append(number)

    async def enqueued() -> bool:
        try:
            await other.enqueue("notify", {"number": 7})
        except UnknownTask as error:
            assert "right after they have started" in str(error)  # noqa: PT017 - it need not be raised
            return False
        return True

    async with app, other, working(app):
        await eventually(enqueued, within=1.5)
        await eventually(lambda: ran == [7])
