"""Companion with its table on a real DynamoDB server, and with fakes of Slack and Sentry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import botocore.session  # type: ignore[import-untyped]
import pytest
import sentry_sdk

from examples.companion.application import Companion, make
from examples.companion.memory import User
from examples.companion.settings import Settings
from examples.dynamodb_server import REGION
from mainspring.testing.fakes import FakeSentry, FakeSlack
from tests.dynamodb import endpoint, fresh_name

ANA = User("ana", "U1", "C-ana", "Ana", "Europe/Lisbon")
BO = User("bo", "U2", "C-bo", "Bo", "Asia/Tokyo", summary_at="07:30")


@dataclass
class World:
    """Companion and everything around it."""

    companion: Companion
    settings: Settings
    slack: FakeSlack
    sentry: FakeSentry
    client: Any = field(repr=False)

    def items(self) -> list[dict[str, Any]]:
        """Return all items of the table, whoever wrote them."""
        pages = self.client.get_paginator("scan").paginate(TableName=self.settings.table, ConsistentRead=True)
        return [item for page in pages for item in page["Items"]]

    def own_items(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the application's own items by their keys."""
        found = ((item["PK"]["S"], item["SK"]["S"], item) for item in self.items())
        return {(pk, sk): item for pk, sk, item in found if not pk.startswith("jobs/")}

    def job_item(self, job_id: str) -> dict[str, Any]:
        (found,) = (
            item for item in self.items() if item["PK"]["S"].startswith("jobs/job#") and item["SK"]["S"] == job_id
        )
        return found

    def delete_item(self, item: dict[str, Any]) -> None:
        """Delete an item without Mainspring, as another program or an operator could."""
        self.client.delete_item(TableName=self.settings.table, Key={name: item[name] for name in ("PK", "SK")})


NewWorld = Callable[..., World]


@pytest.fixture
def new_world() -> Iterator[NewWorld]:
    """Make a world; keyword arguments are settings."""
    with FakeSlack() as slack, FakeSentry() as sentry:
        client = botocore.session.get_session().create_client("dynamodb", region_name=REGION, endpoint_url=endpoint())

        def new(query: str = "", **given: Any) -> World:
            store = f"dynamodb://{fresh_name()}?region={REGION}&endpoint={endpoint()}&prefix=jobs/&migrate=on&shards=2"
            fakes = {"slack_url": slack.url, "slack_token": slack.token, "sentry_dsn": sentry.dsn}
            settings = Settings(**{"store": store + query, **fakes, **given})
            world = World(make(settings), settings, slack, sentry, client)
            world.companion.memory.create_table()
            for user in (ANA, BO):
                world.companion.memory.put_user(user)
                slack.add_user(user.slack_id, user.name, user.tz)
            return world

        yield new
        sentry_sdk.get_global_scope().set_client(None)


@pytest.fixture
def world(new_world: NewWorld) -> World:
    return new_world()
