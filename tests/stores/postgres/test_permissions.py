"""What docs/postgres.md says about users and their rights, as it is printed there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from mainspring import Debounce, Fair, Mainspring, Retention, Throttle
from mainspring.errors import StoreReadOnly
from mainspring.job import Status, end_of
from mainspring.stores.connect import POSTGRES_SETTINGS
from mainspring.stores.postgres import PostgresStore
from mainspring.task import Task
from tests.conformance.scenario import new_job
from tests.postgres import dsn, fresh_schema

pytestmark = pytest.mark.slow  # a real server

PAGE = (Path(__file__).parents[3] / "docs" / "postgres.md").read_text("utf-8")
(STATEMENTS,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
USERS = ("shop_owner", "shop_worker", "shop_web")


class Shop:
    """A database of its own, and users whose names no other test has."""

    def __init__(self) -> None:
        self.name = fresh_schema()
        self.owner, self.worker, self.web = (user.replace("shop", self.name) for user in USERS)
        before, after = STATEMENTS.replace("shop", self.name).split(f"-- after mainspring migrate, as {self.owner}")
        run(dsn(), f"CREATE DATABASE {self.name}")
        run(self.dsn_of(None), *before.split("\n"))
        self.grants = after

    def dsn_of(self, user: str | None) -> str:
        named = {"dbname": self.name} if user is None else {"dbname": self.name, "user": user}
        return make_conninfo("", **{**conninfo_to_dict(dsn()), **named})

    def open(self, user: str) -> tuple[Mainspring, Task[..., Any, Any]]:
        app = Mainspring(PostgresStore(self.dsn_of(user), migrate=False))

        @app.task(retention=Retention(completed=timedelta(days=3)))
        async def greet(name: str) -> None: ...

        @app.task(name="in_turn", fair=Fair(lambda p: p.name, size=1))
        async def in_turn(name: str) -> None: ...

        return app, greet

    def remove(self) -> None:
        run(dsn(), f"DROP DATABASE {self.name} WITH (FORCE)", *(f"DROP ROLE {u}" for u in self.users()))

    def users(self) -> tuple[str, ...]:
        return self.worker, self.web, self.owner


def run(place: str, *statements: str) -> None:
    with psycopg.connect(place, autocommit=True) as connection:
        for statement in statements:
            if statement.strip():
                connection.execute(statement.encode())


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()
    yield shop
    shop.remove()


async def test_the_rights_that_are_printed_are_enough(shop: Shop) -> None:
    owner = PostgresStore(shop.dsn_of(shop.owner))
    await owner.migrate()
    await owner.close()
    run(shop.dsn_of(shop.owner), shop.grants)
    web, greet = shop.open(shop.web)
    in_turn = web.tasks["in_turn"]
    job = await greet.enqueue(name="Ada")
    await greet.using(dedupe_key="b", dedupe_for=60).enqueue(name="Ben")
    await web.store.insert([new_job(waits_for=end_of(job.id)), new_job(waits_for="bell")])
    assert await web.store.wake({"bell": 1}) == {"bell": 1}
    await web.signal("paid:1", {"sum": 7})
    for name in ("Cleo", "Dan"):
        await greet.using(throttle=Throttle("t", per=60)).enqueue(name=name)
        await greet.using(debounce=Debounce("d", wait=60)).enqueue(name=name)
        await greet.using(replace="r").enqueue(name=name)
    await in_turn.enqueue_many([{"name": "Eva"}] * 3)
    await web.batch([greet.prepare(name="Fay")])
    with pytest.raises(StoreReadOnly):
        await web.jobs.cancel(job.id)
    working, _ = shop.open(shop.worker)
    await working.worker().drain()
    await working.store.prune()
    assert (await web.jobs.get(job.id)).status is Status.COMPLETED
    await working.close()
    await web.close()


def test_every_setting_is_documented() -> None:
    for setting in {*POSTGRES_SETTINGS, "lease", "stall_grace"}:
        assert f"| `{setting}` |" in PAGE
