"""Workers that serve a durable subscriber, and may die at a chosen moment."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mainspring import Mainspring
from mainspring.cli import logs
from mainspring.stores.feed import Change, ChangeFilter, ChangeKind
from mainspring.subscribers import Service, Timing
from mainspring.worker import Worker

MOMENTS = ("before the action", "after the action", "after the save")


def serve(folder: str, who: str, lease: float, die: str = "", number: int = 0) -> int:
    """Until SIGTERM. Each call of the function is a line of the file `actions`, which the store knows nothing about.

    With `die`, the process kills itself at that moment of the change of this number.
    """
    logs.set_up("info", as_json=True, final=True)
    app = Mainspring(os.environ["CHAOS_DATABASE"])
    app.subscribers.timing = Timing(lease=lease, sign_of_life=lease / 5, first_pause=0.05, outage_pause=0.05)
    file = os.open(Path(folder) / "actions", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    fate = Fate(die, number)
    save = Service._save_after_action

    @app.subscriber("mailer", where=ChangeFilter(kinds=(ChangeKind.CREATED,)))
    def act(change: Change) -> None:
        fate.count += 1
        fate.meet("before the action")
        os.write(file, f"{change.id} {change.job_id} {who}\n".encode())

    async def save_or_die(service: Service) -> None:
        fate.meet("after the action")
        await save(service)
        fate.meet("after the save")

    Service._save_after_action = save_or_die  # type: ignore[method-assign, assignment]
    return Worker(app, id=who, queues=["none"]).run()


class Fate:
    def __init__(self, die: str, number: int) -> None:
        self.die, self.number, self.count = die, number, 0

    def meet(self, moment: str) -> None:
        if moment == self.die and self.count == self.number:
            os.kill(os.getpid(), signal.SIGKILL)
