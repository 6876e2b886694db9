"""Completing names that the newest jobs need not have, on every store."""

from __future__ import annotations

from mainspring import Mainspring
from mainspring.stores.protocol import Filter
from mainspring.testing import manual
from tests.features.conftest import START, NewApp


async def test_tasks_are_also_those_that_workers_have_published(new_app: NewApp) -> None:
    app, other = new_app(), new_app()

    @app.task
    async def mail() -> None: ...

    @app.task
    async def mail_all() -> None: ...

    @other.task
    async def mail_here() -> None: ...

    await app.published.publish(app.tasks.values(), "w1")
    assert await other.jobs.complete("task", "mail") == ["mail", "mail_all", "mail_here"]
    assert await other.jobs.complete("task", "mail_") == ["mail_all", "mail_here"]
    assert await other.jobs.complete("task", limit=1) == ["mail"]
    assert await other.jobs.within("p/acme/*").complete("task", "mail") == ["mail_here"]


async def test_types_of_errors_are_also_those_of_failure_groups(new_app: NewApp) -> None:
    app: Mainspring = new_app()

    @app.task(max_attempts=1)
    async def send() -> None:
        raise TimeoutError("away")

    async with manual(app, start=START) as kit:
        await send.enqueue()
        await kit.drain()
        await app.failures.list()
        await app.jobs.delete_where(Filter())
        assert await app.jobs.complete("error_type", "T") == ["TimeoutError"]
        assert await app.jobs.complete("error_type", "V") == []
