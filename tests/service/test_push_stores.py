"""A pushed job from its enqueue to its callback, over several processes, on every store."""

from __future__ import annotations

from collections.abc import Callable

from mainspring import Mainspring, Status
from mainspring.testing.fakes import Answer, FakeEndpoint
from mainspring.webhooks import verify
from tests.features.conftest import new_app
from tests.service.pushing import serving

__all__ = ["new_app"]
NewApp = Callable[[], Mainspring]


async def test_a_job_is_pushed_by_one_process_and_ended_by_another(new_app: NewApp) -> None:
    async with FakeEndpoint() as endpoint:
        endpoint.reply(Answer(202), Answer(200))
        async with serving(new_app()) as first:
            given = {"url": f"{endpoint.url}/work", "secret": "default"}
            job_id = await first.enqueue("http", given, callback=f"{endpoint.url}/done")
            await first.run()
            assert (await first.job(job_id)).status is Status.SUSPENDED
        async with serving(new_app()) as second:
            token = endpoint.received[0].headers["x-mainspring-token"]
            status, _ = await second.post(f"/v1/jobs/{job_id}:complete", {"result": {"n": 1}}, token=token)
            assert status == 202
            await second.run()
            assert (await second.job(job_id)).result == {"n": 1}
            await second.run()
            texts = (await second.call("GET", "/v1/secrets/default"))[1]["texts"]
        assert [request.path for request in endpoint.received] == ["/work", "/done"]
        for request in endpoint.received:
            verify(request.body, request.headers, texts)
        assert endpoint.bodies[1]["result"] == {"n": 1}


async def test_a_cancelled_job_calls_back(new_app: NewApp) -> None:
    async with FakeEndpoint() as endpoint, serving(new_app()) as served:
        job_id = await served.enqueue("later", allow_unknown=True, failure_callback=endpoint.url, delay=60)
        await served.post(f"/v1/jobs/{job_id}:cancel", {"reason": "no use"})
        await served.run()
        (body,) = endpoint.bodies
        assert (body["job"]["id"], body["error"]) == (job_id, {"type": "Cancelled", "message": "no use"})
