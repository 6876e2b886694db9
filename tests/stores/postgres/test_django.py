"""A shop on Django: orders and their jobs come together or not at all. Its code is what docs/postgres.md prints."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.job import Status
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.protocol import Filter, Wake
from tests.postgres import dsn
from tests.stores.postgres import django_project
from tests.stores.postgres.django_project import set_up_django
from tests.stores.postgres.several import Stores, listening
from tests.stores.postgres.test_permissions import PAGE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("MAINSPRING_TEST_PG" in os.environ, reason="we only know where our own server is"),
]
(CODE,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "transaction.atomic" in code]


@pytest.fixture
def app(schema: str) -> Iterator[Mainspring]:
    app = Mainspring(PostgresStore(dsn(), schema_name=schema))
    app.run(app.store.open())
    yield app
    app.run(app.close())


@pytest.fixture
def order_model(schema: str) -> Iterator[Any]:
    django = set_up_django()
    from django.db import models  # type: ignore[import-untyped]

    meta = type("Meta", (), {"app_label": schema, "db_table": f"{schema}_orders"})
    fields = {"item": models.CharField(max_length=20), "Meta": meta, "__module__": __name__}
    model: Any = type("Order", (models.Model,), fields)
    with django.db.connection.schema_editor() as editor:
        editor.create_model(model)
    yield model
    with django.db.connection.schema_editor() as editor:
        editor.delete_model(model)
    django.db.connection.close()


@pytest.fixture
def shop(app: Mainspring, order_model: Any, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the page prints, behind two addresses."""
    from django.urls import clear_url_caches, path  # type: ignore[import-untyped]

    names: dict[str, Any] = {"__name__": "shop", "app": app, "Order": order_model}
    exec(compile(CODE, "docs/postgres.md", "exec"), names)  # noqa: S102 - our own page
    urls = [path("place", names["place"]), path("place-async", names["place_async"])]
    monkeypatch.setattr(django_project, "urlpatterns", urls)
    clear_url_caches()
    return SimpleNamespace(**{name: value for name, value in names.items() if name != "__builtins__"})


def jobs(app: Mainspring) -> list[int]:
    """The orders that are to be shipped, as far as others can see."""
    return sorted(job.payload["order"] for job in app.run(app.store.find(Filter())).jobs)


def test_an_order_and_its_job_come_together_and_a_worker_finds_both(app: Mainspring, shop: SimpleNamespace) -> None:
    from django.test import Client  # type: ignore[import-untyped]

    order = Client().post("/place", {"item": "lamp"}).json()["order"]
    assert jobs(app) == [order]
    app.run(app.worker().drain())
    (job,) = app.run(app.store.find(Filter())).jobs
    assert (job.status, job.result) == (Status.COMPLETED, "lamp")


def test_an_asynchronous_view_can_enqueue(app: Mainspring, shop: SimpleNamespace) -> None:
    from asgiref.sync import async_to_sync
    from django.test import AsyncClient

    answer = async_to_sync(AsyncClient().post)("/place-async", {"item": "desk"})
    assert jobs(app) == [answer.json()["order"]]


def test_a_rollback_takes_both_back(app: Mainspring, shop: SimpleNamespace) -> None:
    from django.test import RequestFactory

    request = RequestFactory().post("/place", {"item": "lamp"})

    def fail() -> None:
        with shop.transaction.atomic():
            shop.place(request)
            assert shop.Order.objects.count() == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (shop.Order.objects.count(), jobs(app)) == (0, [])
    with shop.transaction.atomic():
        with pytest.raises(ZeroDivisionError):
            fail()  # now a savepoint
        shop.ship.using(connection=shop.connection).enqueue_sync(order=7)
    assert (shop.Order.objects.count(), jobs(app)) == (0, [7])


def test_a_worker_is_woken_by_the_commit_and_not_before(app: Mainspring, shop: SimpleNamespace, schema: str) -> None:
    stores = Stores(dsn(), schema)
    assert isinstance(app.store, PostgresStore)
    ear = app.run(listening(stores, app.store))
    with shop.transaction.atomic():
        shop.ship.using(connection=shop.connection).enqueue_sync(order=7)
        assert app.run(ear.so_far()) == []
    assert app.run(ear.so_far()) == [Wake.JOBS]


def test_on_commit_can_enqueue_without_a_connection(app: Mainspring, shop: SimpleNamespace) -> None:
    with shop.transaction.atomic():
        shop.transaction.on_commit(lambda: shop.ship.enqueue_sync(order=7))
        assert jobs(app) == []
    assert jobs(app) == [7]


def test_django_refuses_its_connection_on_the_event_loop(app: Mainspring, shop: SimpleNamespace) -> None:
    from django.core.exceptions import SynchronousOnlyOperation  # type: ignore[import-untyped]

    with pytest.raises(SynchronousOnlyOperation, match="use a thread or sync_to_async"):
        app.run(shop.ship.using(connection=shop.connection).enqueue(order=7))
    assert jobs(app) == []
