"""Live events while workers and service processes are killed: each client sees what the feed has, once and in order.

A quarter of the clients each follow everything by server-sent events, some kinds by them, everything over a WebSocket,
and some kinds over one.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial

import pytest

from mainspring.ids import new_id
from mainspring.job import NewJob
from mainspring.stores.connect import connect
from mainspring.stores.feed import EVERY_CHANGE, Cursor
from tests.chaos.conftest import Chaos, each_store
from tests.chaos.processes import Nursery, Process
from tests.chaos.programs.live import LAST, made
from tests.chaos.waiting import wait_until
from tests.chaos.workers import replace

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

CLIENTS = 200
SERVICES = 3
WORKERS = 2
LEAST_CHANGES = 50
CATCH_UP = 300  # seconds; all clients are one process, which parses everything 200 times
Seen = Sequence[Sequence[str]]  # id, kind and job of each change


@each_store
def test_clients_lose_repeat_and_reorder_nothing_whatever_is_killed(nursery: Nursery, chaos: Chaos) -> None:
    scene = Scene(nursery, chaos.rng())
    scene.play(chaos.size(8, 150))
    scene.check()


class Scene:
    """Workers and services that are replaced when they are killed, and clients that are not killed."""

    def __init__(self, nursery: Nursery, rng: random.Random) -> None:
        self.nursery, self.rng = nursery, rng
        self.start = asyncio.run(cursor_of_now(nursery))
        self.ports = free_ports(SERVICES)
        self.services = [self.service(place) for place in range(SERVICES)]
        for service in self.services:
            service.wait_for("serving")
        settings = {"ports": self.ports, "after": self.start, "number": CLIENTS, "seed": rng.randrange(2**32)}
        self.clients = nursery.start("live:follow", "clients", **settings)
        self.clients.wait_for("following")
        self.workers = [self.worker() for _ in range(WORKERS)]
        self.enqueuer = nursery.start("enqueue:mixture", seed=rng.randrange(2**32), pause=0.05, patient=True)

    def service(self, place: int) -> Process:
        return self.nursery.start("live:serve", port=self.ports[place])

    def worker(self) -> Process:
        return self.nursery.start("work:work", settings=self.nursery.database.watchful)

    def play(self, kills: int) -> None:
        for _ in range(kills):
            time.sleep(self.rng.uniform(0.1, 0.6))
            place = self.rng.randrange(SERVICES + WORKERS)
            if place < SERVICES:
                replace(self.services, place, partial(self.service, place))
            else:
                replace(self.workers, place - SERVICES, self.worker)
        wait_until(self.has_enough, lambda: f"{LEAST_CHANGES} changes", every=0.5)
        self.finish()

    def has_enough(self) -> bool:
        """Return whether there is something to see: on a busy machine, the enqueuer takes a while to start."""
        return len(asyncio.run(feed_since(self.nursery, self.start))) > LEAST_CHANGES

    def finish(self) -> None:
        """No new changes; all clients come to the end of the feed."""
        for process in (self.enqueuer, *self.workers):
            process.kill()
        wait_until(self.nursery.database.is_free, lambda: "the last transactions", every=0.05)
        asyncio.run(put_last(self.nursery))
        assert self.clients.wait(CATCH_UP) == 0, self.clients.said()

    def check(self) -> None:
        truth = asyncio.run(feed_since(self.nursery, self.start))
        seen: list[Seen] = json.loads((self.nursery.folder / "clients.json").read_text())
        kills = self.nursery.ledger.count("kill")
        print(f"{kills} kills, {len(truth)} changes, {CLIENTS} clients, {self.clients.lines()[-1]}")
        assert len(truth) > LEAST_CHANGES
        assert len(seen) == CLIENTS
        for number, events in enumerate(seen):
            wanted = truth_for(made(number).kinds, truth)
            assert Counter(event[0] for event in events) == Counter(change[0] for change in wanted), number
            assert by_job(events) == by_job(wanted), number


def truth_for(kinds: Sequence[str], truth: Seen) -> Seen:
    """Return the changes that a client with this filter should see."""
    return [change for change in truth if not kinds or change[1] in kinds]


def by_job(changes: Seen) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for _, kind, job_id in changes:
        if job_id != "None":
            found[job_id].append(kind)
    return dict(found)


def free_ports(number: int) -> list[int]:
    with_ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in with_ports]
    for each in with_ports:
        each.close()
    return ports


async def cursor_of_now(nursery: Nursery) -> str:
    store = connect(nursery.database.url)
    await store.open()
    try:
        return str((await store.changes()).cursor)
    finally:
        await store.close()


async def put_last(nursery: Nursery) -> None:
    store = connect(nursery.database.url)
    try:
        await store.insert([NewJob(id=new_id(), task="last", payload="{}", queue=LAST)])
    finally:
        await store.close()


async def feed_since(nursery: Nursery, cursor: str) -> Seen:
    """Return the feed as it is read directly."""
    store = connect(nursery.database.url)
    found: list[list[str]] = []
    try:
        while True:
            page = await store.changes(cursor)
            assert not page.reset
            changes = page.changes(EVERY_CHANGE, Cursor.parse(cursor))
            found += [[change.id, change.kind.value, str(change.job_id)] for change in changes]
            cursor = str(page.cursor)
            if not page.more and not page.entries:
                return found
    finally:
        await store.close()
