"""Two projects with the same names for everything: each works as if it were alone."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from mainspring import Context, Mainspring, Status
from mainspring.service import Tokens
from mainspring.service.secrets import Secrets
from mainspring.testing.fakes import Answer, FakeEndpoint
from mainspring.webhooks import verify
from mainspring.worker import Worker
from tests.service.projects.following import first_place, frames
from tests.service.projects.planting import Two, data, put, text_of, two_projects
from tests.service.serving import Client
from tests.service.serving import serving as plain_serving


async def queues(client: Client) -> set[str]:
    return {each["queue"] for each in (await data(client, "GET", "/v1/queues"))["queues"]}


async def listed(client: Client, query: str = "") -> set[str]:
    return {job["id"] for job in (await data(client, "GET", f"/v1/jobs{query}"))["jobs"]}


# -- schedules -----------------------------------------------------------------------------------------

NIGHTLY: dict[str, Any] = {"rule": "0 2 * * *", "job": {"task": "welcome", "payload": {"guest": "Ada"}}}


async def test_schedules_of_one_name_are_two(every_store: Mainspring) -> None:
    async with two_projects(every_store) as two:
        for client, project in ((two.a, "a"), (two.b, "b")):
            made = await client.send("PUT", "/v1/schedules/nightly", NIGHTLY, if_none_match="*")
            assert (made.status, made.data["id"], made.data["job"]["queue"]) == (
                201, f"p/{project}/nightly", f"p/{project}/mail",
            )  # fmt: skip
        await data(two.a, "POST", "/v1/schedules/nightly:pause", {"reason": "holiday"})
        assert [await states(client) for client in (two.a, two.b)] == [
            {"p/a/nightly": "paused"},
            {"p/b/nightly": "active"},
        ]
        job_id = (await data(two.b, "POST", "/v1/schedules/p/b/nightly:trigger", {}))["job_id"]
        assert (await listed(two.a), await listed(two.b)) == (set(), {job_id})
        assert len((await data(two.b, "GET", "/v1/schedules/nightly/ledger"))["entries"]) == 1
        assert (await data(two.a, "GET", "/v1/schedules/nightly/ledger"))["entries"] == []
        await data(two.a, "DELETE", "/v1/schedules/nightly")
        assert (await two.a.get("/v1/schedules/nightly")).status == 404
        assert await states(two.whole) == {"p/b/nightly": "active"}


async def states(client: Client) -> dict[str, str]:
    return {each["id"]: each["state"] for each in (await data(client, "GET", "/v1/schedules"))["schedules"]}


async def test_schedules_without_a_project_are_not_those_of_a_project(two: Two) -> None:
    await data(two.whole, "PUT", "/v1/schedules/nightly", NIGHTLY)
    assert await states(two.a) == {}
    assert (await two.a.get("/v1/schedules/nightly")).status == 404
    assert (await two.a.send("PUT", "/v1/schedules/nightly", NIGHTLY)).status == 201
    courses = (await data(two.a, "POST", "/v1/schedules:simulate", {"days": 1}))["schedules"]
    assert [course["id"] for course in courses] == ["p/a/nightly"]
    assert set(await states(two.whole)) == {"nightly", "p/a/nightly"}


async def test_a_schedule_of_a_project_fires_jobs_of_the_project_only(two: Two) -> None:
    foreign = {**NIGHTLY, "job": {**NIGHTLY["job"], "queue": "p/b/mail"}}
    assert (await two.a.send("PUT", "/v1/schedules/nightly", foreign)).code == "forbidden"
    refused = await two.whole.send("PUT", "/v1/schedules/p%2Fa%2Fnightly", foreign)
    assert (refused.status, refused.code) == (422, "invalid_request")


async def test_a_token_of_queues_has_no_schedules(app: Mainspring) -> None:
    async with two_projects(app) as two:
        for project in (None, "a"):
            client = two.whole.using(await text_of(app, f"mailer of {project}", project=project, queues=["mail"]))
            assert (await client.get("/v1/schedules")).code == "forbidden"
            assert (await client.send("PUT", "/v1/schedules/x", NIGHTLY)).code == "forbidden"


# -- enqueues -----------------------------------------------------------------------------------------


async def test_the_same_names_are_different_jobs(every_store: Mainspring) -> None:
    async with two_projects(every_store) as two:
        given: dict[str, Any] = {"dedupe_key": "k", "target": {"type": "order", "id": "7"}, "tags": ["x"]}
        ours, theirs = await put(two.a, **given), await put(two.b, **given)
        assert ours != theirs
        again = await two.a.post("/v1/jobs", {"task": "welcome", "payload": {"guest": "Ada"}, **given})
        assert (again.status, again.data) == (200, {"id": ours, "created": False})
        for query in (
            "",
            "?queue=mail",
            "?queue=p/a/mail",
            "?dedupe_key=k",
            "?tag=x",
            "?target_type=order&target_id=7",
        ):
            assert await listed(two.a, query) == {ours}, query
        assert await listed(two.b) == {theirs}
        assert await listed(two.whole) == {ours, theirs}
        await two.run()
        for client, job_id in ((two.a, ours), (two.b, theirs)):
            job = await data(client, "GET", f"/v1/jobs/{job_id}")
            assert (job["status"], job["result"]) == ("completed", "welcome, Ada")
            total = (await data(client, "GET", "/v1/numbers"))["total"]
            assert (total["enqueued"], total["completed"]) == (1, 1)
            assert (await data(client, "GET", "/queue/stats"))["queues"][job["queue"]]["completed"] == 1


async def failed_with(client: Client, guest: str) -> str:
    """Let a leased job fail; return its id."""
    job_id = await put(client)
    (lease,) = (await data(client, "POST", "/v1/leases", {"worker": "w", "limit": 1}))["jobs"]
    failure = {"type": "LookupError", "message": f"no guest '{guest}'", "traceback": guest, "retry": False}
    item = {"id": lease["id"], "token": lease["token"], "failed": failure}
    await data(client, "POST", "/v1/leases:report", {"worker": "w", "items": [item]})
    return job_id


async def test_the_same_error_is_a_failure_group_of_each_project(every_store: Mainspring) -> None:
    async with two_projects(every_store) as two:
        first, second, theirs = [
            await failed_with(client, guest) for client, guest in ((two.a, "Ada"), (two.a, "Al"), (two.b, "Bo"))
        ]
        (ours,) = (await data(two.a, "GET", "/v1/failures"))["groups"]
        (group,) = (await data(two.b, "GET", "/v1/failures"))["groups"]
        assert (group["count"], group["dead_in"], group["job_id"]) == (1, {"p/b/mail": 1}, theirs)
        assert (group["message"], ours["count"]) == ("no guest 'Bo'", 2)
        path = f"/v1/failures/{group['fingerprint']}"
        assert (await data(two.b, "GET", path))["traceback"] == "Bo"
        await data(two.b, "POST", f"{path}:resolve", {"note": "done"})
        assert (await data(two.b, "POST", f"{path}:retry"))["changed"] == 1
        assert (await data(two.a, "GET", f"/v1/failures/{ours['fingerprint']}")) | {"traceback": ""} == ours
        dead = {job["id"] for job in (await data(two.whole, "GET", "/v1/dead"))["jobs"]}
        assert dead == {first, second}
        assert len((await data(two.whole, "GET", "/v1/failures"))["groups"]) == 2


async def test_a_token_for_some_queues_gets_no_failure_groups(two: Two, app: Mainspring) -> None:
    tokens: list[dict[str, Any]] = [{"project": "a", "queues": ("mail",)}, {"queues": ("mail",)}]
    for number, more in enumerate(tokens):
        some = two.a.using(await text_of(app, f"some {number}", **more))
        assert (await some.get("/v1/failures")).code == "forbidden"


@pytest.mark.parametrize(
    ("queue", "kept"), [(None, "p/a/mail"), ("vip", "p/a/vip"), ("p/a/vip", "p/a/vip"), ("x/y", "p/a/x/y")]
)
async def test_a_job_goes_to_a_queue_of_the_project(two: Two, queue: str | None, kept: str) -> None:
    job_id = await put(two.a, queue=queue)
    assert (await data(two.a, "GET", f"/v1/jobs/{job_id}"))["queue"] == kept


@pytest.mark.parametrize("queue", ["p/b/mail", "p/a", "p/", "p/a/../b", "*", "p/a/*", "p/*"])
async def test_a_job_goes_to_no_other_queue(two: Two, queue: str) -> None:
    body = {"task": "welcome", "payload": {"guest": "Ada"}, "queue": queue}
    answer = await two.a.post("/v1/jobs", body)
    if answer.status == 201:
        assert (await data(two.a, "GET", f"/v1/jobs/{answer.data['id']}"))["queue"] == "p/a/../b"
        return
    assert answer.code in {"forbidden", "invalid_request"}
    many = await data(two.a, "POST", "/v1/jobs:bulk", {"jobs": [body, {**body, "queue": "vip"}]})
    assert [line["error"] and line["error"]["code"] for line in many["results"]] == [answer.code, None]


@pytest.mark.parametrize("headers", [{}, {"idempotency_key": "k"}], ids=["", "with a key"])
async def test_all_lines_of_a_bulk_enqueue_go_to_the_project(two: Two, headers: dict[str, str]) -> None:
    plain = {"task": "welcome", "payload": {"guest": "Ada"}}
    for _ in range(2):
        answer = await two.a.post(
            "/v1/jobs:bulk", {"jobs": [plain, plain, {**plain, "queue": "vip"}, plain]}, **headers
        )
        assert (answer.status, answer.data["failed"]) == (200, 0)
    assert await queues(two.whole) == {"p/a/mail", "p/a/vip"}


async def test_a_name_that_is_too_long_with_the_project_is_refused(two: Two) -> None:
    body = {"task": "welcome", "payload": {"guest": "Ada"}}
    assert (await two.a.post("/v1/jobs", {**body, "queue": "q" * 199})).code == "invalid_request"
    assert (await two.a.post("/v1/jobs", {**body, "dedupe_key": "k" * 499})).code == "invalid_request"


async def test_one_idempotency_key_is_two_in_two_projects(two: Two) -> None:
    body = {"task": "welcome", "payload": {"guest": "Ada"}}
    first = [await client.post("/v1/jobs", body, idempotency_key="same") for client in (two.a, two.b, two.a)]
    assert [answer.status for answer in first] == [201, 201, 201]
    assert first[0].data == first[2].data != first[1].data


async def test_a_job_is_edited_into_queues_of_the_project_only(two: Two) -> None:
    job_id = await put(two.a, delay=60)
    assert (await data(two.a, "PATCH", f"/v1/jobs/{job_id}", {"queue": "vip"}))["queue"] == "p/a/vip"
    assert (await two.a.send("PATCH", f"/v1/jobs/{job_id}", {"queue": "p/b/mail"})).code == "forbidden"


async def test_what_jobs_of_a_project_enqueue_is_the_projects(two: Two) -> None:
    @two.app.task
    async def parent(ctx: Context) -> None:
        await two.app.enqueue("welcome", {"guest": "child"}, dedupe_key="k")
        ctx.follow_up(two.app.tasks["welcome"].prepare(guest="next"))

    for client in (two.a, two.b):
        await put(client, "parent", payload={})
    await two.run()
    for client, queue in ((two.a, "p/a/mail"), (two.b, "p/b/mail")):
        jobs = (await data(client, "GET", "/v1/jobs?task=welcome"))["jobs"]
        assert {(job["queue"], job["status"]) for job in jobs} == {(queue, "completed")}
        assert {job["payload"]["guest"] for job in jobs} == {"child", "next"}


async def test_a_signal_reaches_jobs_of_its_project(every_store: Mainspring) -> None:
    @every_store.task
    async def order(ctx: Context) -> Any:
        signal = await ctx.wait_for("paid:7", timeout=3600)
        assert signal is not None
        return [signal.key, signal.payload]

    @every_store.task
    async def pay() -> None:
        await every_store.signal("paid:7", "by a job")

    async with two_projects(every_store) as two:
        ids = [await put(client, "order", payload={}) for client in (two.a, two.b, two.whole)]
        await two.run()
        await data(two.b, "POST", "/v1/signals", {"key": "paid:7", "payload": "by the API"})
        await put(two.a, "pay", payload={})
        await two.run()
        await two.run()
        results = [(await data(two.whole, "GET", f"/v1/jobs/{job_id}"))["result"] for job_id in ids]
        assert results == [["paid:7", "by a job"], ["paid:7", "by the API"], None]
        assert "'p/a/paid:7'" not in (await two.b.get(f"/v1/jobs/{ids[1]}/detail")).text


# -- operators ----------------------------------------------------------------------------------------


async def test_a_pause_stops_the_queue_of_one_project(two: Two) -> None:
    ours, theirs = await put(two.a), await put(two.b)
    await data(two.a, "POST", "/v1/queues/mail:pause", {"reason": "ours", "wait": 0})
    await two.run()
    statuses = [(await data(two.whole, "GET", f"/v1/jobs/{job_id}"))["status"] for job_id in (ours, theirs)]
    assert statuses == ["pending", "completed"]
    assert [halt["queue"] for halt in (await data(two.a, "GET", "/v1/halts"))["halts"]] == ["p/a/mail"]
    assert (await data(two.b, "GET", "/v1/halts"))["halts"] == []
    assert await data(two.b, "POST", "/v1/queues/mail:resume", {}) == {"resumed": False}
    assert await data(two.whole, "POST", "/v1/queues/p%2Fa%2Fmail:resume", {}) == {"resumed": True}


async def test_settings_are_those_of_the_projects_queues(two: Two) -> None:
    await data(two.a, "PATCH", "/v1/settings/queue/mail", {"timeout": 5})
    for client, timeout in ((two.a, 5.0), (two.b, None), (two.whole, None)):
        job_id = await put(client, delay=60)
        assert (await data(two.whole, "GET", f"/v1/jobs/{job_id}"))["timeout"] == timeout
    assert [each["name"] for each in (await data(two.a, "GET", "/v1/settings"))["settings"]] == ["p/a/mail"]
    assert (await data(two.b, "GET", "/v1/settings"))["settings"] == []
    assert (await two.a.send("PATCH", "/v1/settings/task/welcome", {"timeout": 5})).code == "forbidden"


async def test_stats_and_health_are_those_of_the_project(two: Two) -> None:
    await put(two.a)
    assert await queues(two.a) == {"p/a/mail"}
    assert await queues(two.b) == set()
    assert (await data(two.a, "GET", "/health/scheduler"))["stats"]["queueDepth"] == 1
    assert (await data(two.b, "GET", "/health/scheduler"))["stats"]["queueDepth"] == 0
    stats = await data(two.b, "GET", "/v1/stats")
    assert (stats["queues"], stats["due_tasks"], stats["workers"], stats["measures"]) == ([], [], [], {})


async def test_a_job_does_not_tell_of_workers_of_other_queues(two: Two) -> None:
    job_id = await put(two.a)
    await data(two.b, "POST", "/v1/leases", {"worker": "far", "queues": ["hidden"]})
    text = (await two.a.get(f"/v1/jobs/{job_id}/detail")).text
    assert "hidden" not in text
    assert "No worker is alive" in text


# -- pull workers -------------------------------------------------------------------------------------


async def test_workers_of_one_name_are_two(two: Two) -> None:
    ours, theirs = await put(two.a), await put(two.b)
    leases = []
    for client, job_id in ((two.a, ours), (two.b, theirs)):
        (lease,) = (await data(client, "POST", "/v1/leases", {"worker": "w1", "limit": 10}))["jobs"]
        assert lease["id"] == job_id
        leases.append({"id": lease["id"], "token": lease["token"]})
    report = {"worker": "w1", "items": [{**leases[0], "done": {"result": "stolen"}}]}
    (reply,) = (await data(two.b, "POST", "/v1/leases:report", report))["replies"]
    unknown = {"worker": "w1", "items": [{"id": "0" * 36, "token": 1, "done": {}}]}
    (none,) = (await data(two.b, "POST", "/v1/leases:report", unknown))["replies"]
    assert {**reply, "id": "", "token": 0} == {**none, "id": "", "token": 0}
    await data(two.b, "POST", "/v1/leases:leave", {"worker": "w1"})
    await data(two.b, "POST", "/v1/workers/w1:terminate", {})
    answer = await data(two.a, "POST", "/v1/leases:report", report)
    assert (answer["replies"][0]["reply"], answer["pulse"]["order"]) == ("ok", None)
    workers = (await data(two.a, "GET", "/v1/workers"))["workers"]
    assert [worker["id"] for worker in workers] == ["p.a.w1"]


async def test_a_job_that_another_project_holds_counts_as_lost(every_store: Mainspring) -> None:
    async with two_projects(every_store) as two:
        job_id = await put(two.a)
        (lease,) = (await data(two.a, "POST", "/v1/leases", {"worker": "w1"}))["jobs"]
        await data(two.a, "POST", f"/v1/jobs/{job_id}:cancel", {"reason": "hidden"})
        held = {job_id: lease["token"]}
        for worker in ("w1", "p.a.w1"):
            told = await data(two.b, "POST", "/v1/leases", {"worker": worker, "held": held})
            assert (told["pulse"]["lost"], told["pulse"]["cancelled"]) == ([job_id], {})
            item = {"id": job_id, "token": lease["token"]}
            told = await data(two.b, "POST", "/v1/leases:report", {"worker": worker, "items": [item]})
            assert (told["replies"][0]["reply"], told["pulse"]["cancelled"]) == ("stale", {})
        told = await data(two.a, "POST", "/v1/leases", {"worker": "w1", "held": held})
        assert (told["pulse"]["lost"], told["pulse"]["cancelled"]) == ([], {job_id: "hidden"})


async def test_a_worker_of_a_project_waits_for_its_own_jobs(two: Two) -> None:
    await put(two.b)
    claimed = await data(two.a, "POST", "/v1/leases", {"worker": "w1", "queues": ["*"], "wait": 0})
    assert claimed["jobs"] == []
    await put(two.a, queue="new")
    claimed = await data(two.a, "POST", "/v1/leases", {"worker": "w1", "queues": ["*"], "wait": 5})
    assert [lease["queue"] for lease in claimed["jobs"]] == ["p/a/new"]


# -- bulk actions and batches --------------------------------------------------------------------------


async def test_a_bulk_action_changes_jobs_of_its_project(two: Two) -> None:
    ours, theirs = await put(two.a, delay=60), await put(two.b, delay=60)
    await two.pass_on()
    asked = {"action": "cancel", "filter": {}, "expect": 1}
    action = await data(two.a, "POST", "/v1/bulk", asked)
    await two.run()
    assert (await data(two.a, "GET", f"/v1/bulk/{action['id']}"))["changed"] == 1
    assert (await two.b.get(f"/v1/bulk/{action['id']}")).code == "not_found"
    assert (await data(two.b, "GET", f"/v1/jobs/{theirs}"))["status"] == "pending"
    assert (await data(two.a, "GET", f"/v1/jobs/{ours}"))["status"] == "cancelled"


async def test_a_batch_and_what_follows_it_are_of_one_project(two: Two) -> None:
    job = {"task": "welcome", "payload": {"guest": "Ada"}}
    batch = await data(two.a, "POST", "/v1/batches", {"jobs": [job], "on_finished": {**job, "queue": "end"}})
    await two.run()
    await two.run()
    assert (await data(two.a, "GET", f"/v1/batches/{batch['id']}"))["completed"] == 1
    assert (await two.b.get(f"/v1/batches/{batch['id']}")).code == "not_found"
    assert (await data(two.b, "GET", "/v1/batches"))["batches"] == []
    assert await queues(two.whole) == {"p/a/mail", "p/a/end"}


# -- callbacks and secrets -----------------------------------------------------------------------------


async def test_a_pushed_job_of_a_project_is_completed(app: Mainspring) -> None:
    async with FakeEndpoint() as endpoint, plain_serving(app, outgoing_allow=("127.0.0.0/8",)) as client:
        endpoint.reply(Answer(202))
        a, b = [client.using(await text_of(app, name, project=name)) for name in ("a", "b")]
        job_id = await put(a, "http", payload={"url": endpoint.url})
        await Worker(app).drain()
        assert (await b.post(f"/v1/jobs/{job_id}:complete", {"result": "stolen"})).code == "not_found"
        assert (await a.post(f"/v1/jobs/{job_id}:complete", {"result": 7})).status == 202
        await Worker(app).drain()
        assert (await data(a, "GET", f"/v1/jobs/{job_id}"))["result"] == 7


async def test_a_callback_is_signed_with_the_secret_of_the_project(app: Mainspring) -> None:
    async with FakeEndpoint() as endpoint, plain_serving(app, outgoing_allow=("127.0.0.0/8",)) as client:
        a = client.using(await text_of(app, "of a", project="a"))
        body = {"task": "welcome", "payload": {"guest": "Ada"}, "callback": endpoint.url}
        assert "no secret 'p/a/default'" in (await a.post("/v1/jobs", body)).data["detail"]
        secret = await data(client, "POST", "/v1/secrets", {"name": "p/a/default"})
        job_id = (await data(a, "POST", "/v1/jobs", body))["id"]
        await Worker(app).drain()
        await Worker(app).drain()
        (request,) = endpoint.received
        verify(request.body, request.headers, secret["texts"])
        assert request.headers["x-mainspring-queue"] == "p/a/http"
        assert endpoint.bodies[0]["job"]["id"] == job_id
        assert (await data(client, "GET", "/v1/secrets/p%2Fa%2Fdefault"))["texts"] == secret["texts"]


# -- public tokens ---------------------------------------------------------------------------------------


async def test_a_public_token_shows_jobs_of_the_project_that_made_it(two: Two) -> None:
    target = {"type": "order", "id": "7"}
    ours, theirs = await put(two.a, target=target), await put(two.b, target=target)
    assert (await two.b.post("/v1/tokens:public", {"jobs": [ours]})).code == "not_found"
    made = await data(two.a, "POST", "/v1/tokens:public", {"target": target})
    page = two.a.using(made["text"])
    assert [job["id"] for job in (await data(page, "GET", "/v1/public/jobs"))["jobs"]] == [ours]
    assert (await page.get(f"/v1/public/jobs/{ours}")).status == 200
    assert (await page.get(f"/v1/public/jobs/{theirs}")).code == "forbidden"
    place = await first_place(two.whole)
    await data(two.b, "POST", f"/v1/jobs/{theirs}:cancel", {})
    await data(two.a, "POST", f"/v1/jobs/{ours}:cancel", {})
    shown = await frames(page, f"?last_event_id={quote(place)}", ours, "/v1/public/events")
    assert theirs not in shown


# -- tokens of queues ------------------------------------------------------------------------------------


async def test_a_token_of_queues_uses_these_queues_only(app: Mainspring) -> None:
    async with plain_serving(app) as client:
        mail = client.using(await text_of(app, "of mail", queues=["mail", "extra/*"]))
        ours, other = await put(mail), await put(client, queue="other")
        assert await listed(mail) == {ours}
        assert (await mail.get(f"/v1/jobs/{other}")).code == "not_found"
        assert (await mail.post("/v1/jobs", {"task": "fail", "payload": {"why": "x"}})).code == "forbidden"
        assert await put(mail, "fail", payload={"why": "x"}, queue="extra/1")
        assert (await mail.get("/v1/audit")).code == "forbidden"
        assert (await mail.post("/v1/signals", {"key": "k"})).code == "forbidden"
        claimed = await data(mail, "POST", "/v1/leases", {"worker": "w1", "limit": 10})
        assert {lease["queue"] for lease in claimed["jobs"]} == {"mail", "extra/1"}
        (shared,) = (await data(client, "POST", "/v1/leases", {"worker": "w1", "limit": 10}))["jobs"]
        await data(mail, "POST", "/v1/leases:leave", {"worker": "w1"})  # another worker of this name
        item = {"id": shared["id"], "token": shared["token"]}
        (reply,) = (await data(client, "POST", "/v1/leases:report", {"worker": "w1", "items": [item]}))["replies"]
        assert reply["reply"] == "ok"


async def test_a_batch_does_not_reach_jobs_of_other_queues_by_their_dedupe_keys(app: Mainspring) -> None:
    async with plain_serving(app) as client:
        mail = client.using(await text_of(app, "of mail", queues=["mail"]))
        holder = await put(client, queue="other", dedupe_key="k", delay=60)
        jobs = [{"task": "welcome", "payload": {"guest": "Ada"}, "dedupe_key": "k"}]
        batch = await data(mail, "POST", "/v1/batches", {"jobs": jobs})
        await data(mail, "POST", f"/v1/batches/{batch['id']}:cancel", {})
        assert (await data(client, "GET", f"/v1/jobs/{holder}"))["status"] == "pending"


async def test_a_token_of_some_queues_of_a_project(app: Mainspring) -> None:
    async with plain_serving(app) as client:
        vip = client.using(await text_of(app, "vip", project="a", queues=["vip"]))
        assert (await vip.post("/v1/jobs", {"task": "welcome", "payload": {"guest": "Ada"}})).code == "forbidden"
        job_id = await put(vip, queue="vip")
        a = client.using(await text_of(app, "of a", project="a"))
        other = await put(a)
        assert await listed(vip) == {job_id}
        assert await listed(a) == {job_id, other}


@pytest.mark.parametrize(
    "body",
    [
        {"project": "A"},
        {"project": "a/b"},
        {"project": ""},
        {"queues": ["*"]},
        {"queues": [""]},
        {"queues": ["a\u0000"]},
        {"project": "a", "queues": ["p/b/mail"]},
        {"project": "a", "queues": ["q" * 199]},
    ],
)
async def test_a_wrong_project_or_queue_of_a_token_is_refused(two: Two, body: dict[str, Any]) -> None:
    answer = await two.whole.post("/v1/tokens", {"name": "new", "scopes": ["read"], **body})
    assert answer.code == "invalid_request", answer


async def test_the_api_makes_tokens_of_projects(two: Two) -> None:
    given = {"name": "new", "scopes": ["read", "enqueue"], "project": "a", "queues": ["mail"]}
    made = await data(two.whole, "POST", "/v1/tokens", given)
    assert (made["token"]["project"], made["token"]["queues"]) == ("a", ["mail"])
    (found,) = [each for each in await Tokens(two.app.store).list() if each.name == "new"]
    assert found.within == ("p/a/mail",)
    assert (
        await two.a.using(made["text"]).post("/v1/jobs", {"task": "welcome", "payload": {"guest": "A"}})
    ).status == 201


async def test_a_token_of_a_project_cannot_make_tokens(two: Two) -> None:
    for body in ({}, {"project": "a"}, {"project": "b"}):
        answer = await two.a.post("/v1/tokens", {"name": "new", "scopes": ["admin"], **body})
        assert answer.code == "forbidden"


async def test_a_token_of_queues_uses_no_key_and_no_secret_of_a_project(app: Mainspring) -> None:
    async with plain_serving(app, tokens="required") as client:
        await Secrets(app.store).create("p/a/default", actor="tester")
        mail = client.using(await text_of(app, "of mail", queues=["mail", "http"]))
        job = {"task": "welcome", "payload": {"guest": "Ada"}, "queue": "mail"}
        assert (await mail.post("/v1/jobs", {**job, "dedupe_key": "p/a/order-7"})).code == "forbidden"
        callback = {"url": "https://example.com/", "secret": "p/a/default"}
        assert (await mail.post("/v1/jobs", {**job, "callback": callback})).code == "forbidden"
        request = {"task": "http", "payload": {"url": "https://example.com/", "secret": "p/a/default"}}
        pushed = (await mail.post("/v1/jobs", request)).data["id"]
        await Worker(app).drain()
        refused = await app.jobs.get(pushed)
        assert refused.status is Status.DEAD_LETTER
        assert refused.failure is not None
        assert "belongs to a project" in refused.failure.message


async def test_workers_of_different_queues_of_a_project_are_different(app: Mainspring) -> None:
    async with plain_serving(app, tokens="required") as client:
        vip = client.using(await text_of(app, "vip", project="a", queues=["vip"]))
        mail = client.using(await text_of(app, "mail", project="a", queues=["mail"]))
        job = {"task": "welcome", "payload": {"guest": "Ada"}, "queue": "vip"}
        job_id = (await vip.post("/v1/jobs", job)).data["id"]
        claimed = await data(vip, "POST", "/v1/leases", {"worker": "w1"})
        assert [each["id"] for each in claimed["jobs"]] == [job_id]
        await data(mail, "POST", "/v1/leases:leave", {"worker": "w1"})
        assert (await app.jobs.get(job_id)).status is Status.RUNNING
