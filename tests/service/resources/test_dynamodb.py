"""What is different on DynamoDB, and a walk through resources that write documents."""

from __future__ import annotations

import pytest

from mainspring import Mainspring
from mainspring.stores.protocol import Store
from mainspring.testing.clock import ManualClock
from tests.dynamodb import FreshStore
from tests.service.resources.client import Client

pytestmark = pytest.mark.slow


@pytest.fixture
def store(clock: ManualClock) -> Store:
    return FreshStore(clock=clock)


async def test_a_bulk_action_lists_its_jobs(app: Mainspring, client: Client, clock: ManualClock) -> None:
    job = await app.tasks["greet"].using(delay=60).enqueue(name="Ada")
    clock.advance(1)
    started = await client.post("/v1/bulk", {"action": "cancel", "filter": {"task": ["greet"]}}, status=202)
    await app.runtime.timers.run_due()
    done = await client.get(f"/v1/bulk/{started['id']}")
    assert (done["state"], done["changed"]) == ("done", 1)
    (affected,) = (await client.get(f"/v1/bulk/{started['id']}/jobs"))["jobs"]
    assert (affected["id"], affected["job"]["status"]) == (job.id, "cancelled")
    assert await client.problem("GET", f"/v1/jobs?operation={started['id']}") == (422, "invalid_request")


async def test_an_edit_of_what_others_have_changed_is_refused(client: Client) -> None:
    job = {"task": "greet", "payload": {"name": "Ada"}}
    for path, first, second in (
        ("/v1/schedules/a", {"rule": "every 1h", "job": job}, {"rule": "every 2h", "job": job}),
        ("/v1/people/a", {"tz": "UTC"}, {"tz": "Asia/Tokyo"}),
    ):
        tag = (await client.send("PUT", path, first)).headers["ETag"]
        assert (await client.send("PUT", path, second, If_Match=tag)).status == 200
        assert await client.problem("PUT", path, first, If_Match=tag) == (412, "precondition_failed")
