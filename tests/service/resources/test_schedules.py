"""Schedules over HTTP."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring import Mainspring, Priority, Retry
from mainspring.testing.clock import ManualClock
from tests.service.resources.client import Answer, Client

JOB = {"task": "greet", "payload": {"name": "Ada"}}
NIGHTLY: dict[str, Any] = {"rule": "30 2 * * *", "tz": "Europe/Berlin", "job": JOB}
PATH = "/v1/schedules/nightly"


@pytest.fixture
async def nightly(client: Client) -> Answer:
    answer = await client.send("PUT", PATH, NIGHTLY)
    assert answer.status == 201, answer.text
    return answer


async def test_a_schedule_is_created_shown_and_listed(client: Client, nightly: Answer) -> None:
    shown = await client.get(PATH)
    assert shown == nightly.data
    assert {name: shown["job"][name] for name in JOB} == JOB
    assert (shown["state"], shown["owner"]) == ("active", None)
    assert shown["next"]["local"].endswith(("02:30:00+01:00", "02:30:00+02:00"))
    assert (await client.get("/v1/schedules"))["schedules"] == [shown]


async def test_a_schedule_is_replaced_as_a_whole(client: Client, nightly: Answer) -> None:
    body = {**NIGHTLY, "overlap": "skip", "misfire": {"mode": "all", "max_fires": 5}, "jitter": "30s"}
    first = await client.send("PUT", PATH, body)
    assert first.status == 200
    assert first.data["schedule"]["misfire"] == {"mode": "all", "max_fires": 5}
    second = await client.send("PUT", PATH, {"rule": first.data["schedule"]["rule"], "job": JOB, "reason": "simpler"})
    assert (second.data["schedule"]["overlap"], second.data["schedule"]["tz"]) == ("allow", "UTC")


EVERY_OPTION = {
    "task": "greet", "payload": {"name": "Ada"}, "queue": "slow", "priority": "high", "timeout": 90, "max_attempts": 7,
    "retry": {"delays": None, "base": 5, "max_delay": 50, "factor": 3, "jitter_share": 0.5},
    "target": {"type": "guest", "id": "7"}, "tags": ["vip"],
}  # fmt: skip
RULE: dict[str, Any] = {
    "tz": "Europe/Berlin", "overlap": "skip", "jitter": "30s", "start": "2026-01-01T00:00:00",
    "misfire": {"mode": "all", "max_fires": 5, "grace": "2h"},
}  # fmt: skip


@pytest.mark.parametrize("job", [JOB, EVERY_OPTION, {**EVERY_OPTION, "retry": {"delays": [1, 5]}}])
async def test_what_is_read_can_be_put_back(app: Mainspring, client: Client, job: dict[str, Any]) -> None:
    await client.send("PUT", PATH, {"rule": "30 2 * * *", "job": job, **RULE})
    await client.post(f"{PATH}:pause", {"until": "2999-01-01T00:00:00Z"})
    read = await client.send("GET", PATH)
    body = {**read.data["schedule"], "job": read.data["job"]}
    again = await client.send("PUT", PATH, body, If_Match=read.headers["ETag"])
    assert (again.status, again.headers["ETag"], again.data) == (200, read.headers["ETag"], read.data)


async def test_the_job_of_a_schedule_keeps_all_options_that_are_put_back(app: Mainspring, client: Client) -> None:
    await client.send("PUT", PATH, {**NIGHTLY, "job": EVERY_OPTION})
    read = await client.get(PATH)
    assert read["job"] == EVERY_OPTION
    await client.send("PUT", PATH, {**NIGHTLY, "rule": "0 3 * * *", "job": read["job"]})
    job = await app.jobs.get((await client.post(f"{PATH}:trigger", status=201))["job_id"])
    assert (job.queue, job.priority, job.timeout, job.max_attempts) == ("slow", Priority.HIGH, 90, 7)
    assert (job.target, job.tags) == (("guest", "7"), ("vip",))
    policy = Retry(max_attempts=None, base=5, max_delay=50, factor=3, jitter_share=0.5)
    assert Retry.from_data(dict(job.options["retry"])) == policy


async def test_the_number_of_attempts_of_a_task_does_not_become_the_schedules_own(
    app: Mainspring, client: Client, nightly: Answer
) -> None:
    assert nightly.data["job"]["max_attempts"] is None
    await client.send("PUT", PATH, {**NIGHTLY, "job": nightly.data["job"]})
    await app.settings.set(task="greet", max_attempts=9)
    job = await app.jobs.get((await client.post(f"{PATH}:trigger", status=201))["job_id"])
    assert job.max_attempts == 9


async def test_a_change_of_what_others_have_changed_is_refused(
    app: Mainspring, client: Client, nightly: Answer
) -> None:
    tag = nightly.headers["ETag"]
    changed = await client.send("PUT", PATH, {**NIGHTLY, "rule": "0 3 * * *"}, If_Match=tag)
    assert changed.status == 200
    assert changed.headers["ETag"] != tag
    stale = {**NIGHTLY, "rule": "0 4 * * *"}
    assert await client.problem("PUT", PATH, stale, If_Match=tag) == (412, "precondition_failed")
    assert (await client.get(PATH))["schedule"] == changed.data["schedule"]
    assert (await client.send("PUT", PATH, stale, If_Match=f'"other", {changed.headers["ETag"]}')).status == 200
    assert (await client.send("PUT", PATH, NIGHTLY, If_Match="*")).status == 200


async def test_a_schedule_that_must_not_exist_is_only_created(client: Client, nightly: Answer) -> None:
    assert await client.problem("PUT", PATH, NIGHTLY, If_None_Match="*") == (412, "precondition_failed")
    assert (await client.send("PUT", "/v1/schedules/new", NIGHTLY, If_None_Match="*")).status == 201
    assert await client.problem("PUT", "/v1/schedules/none", NIGHTLY, If_Match="*") == (412, "precondition_failed")
    assert await client.problem("PUT", PATH, NIGHTLY, If_None_Match='"x"') == (422, "invalid_request")


async def test_a_fire_does_not_change_the_etag(
    app: Mainspring, client: Client, nightly: Answer, clock: ManualClock
) -> None:
    clock.advance(2 * 86_400)
    await app.runtime.timers.run_due()
    shown = await client.send("GET", PATH)
    assert shown.data["fires"] == 1
    assert shown.data["last_status"] == "pending"
    assert shown.headers["ETag"] == nightly.headers["ETag"]
    ledger = await client.get(f"{PATH}/ledger")
    assert {entry["job_id"] for entry in ledger["entries"]} >= {shown.data["last_job"]}


async def test_a_schedule_is_paused_and_resumed(client: Client, nightly: Answer) -> None:
    paused = await client.post(f"{PATH}:pause", {"until": "2999-01-01T00:00:00Z", "reason": "storm"})
    assert (paused["state"], paused["paused"]["until"]) == ("paused", "2999-01-01T00:00:00.000Z")
    resumed = await client.post(f"{PATH}:resume")
    assert (resumed["state"], resumed["paused"]) == ("active", None)


async def test_a_schedule_is_triggered(app: Mainspring, client: Client, nightly: Answer) -> None:
    triggered = await client.post(f"{PATH}:trigger", {"reason": "now"}, status=201)
    assert (await app.jobs.get(triggered["job_id"])).payload == {"name": "Ada"}
    ledger = await client.get(f"{PATH}/ledger")
    assert [(entry["became"], entry["job_id"]) for entry in ledger["entries"]] == [("triggered", triggered["job_id"])]


async def test_a_ledger_comes_in_pages(client: Client, nightly: Answer, clock: ManualClock) -> None:
    for _ in range(3):
        await client.post(f"{PATH}:trigger", status=201)
        clock.advance(1)
    first = await client.get(f"{PATH}/ledger?limit=2")
    second = await client.get(f"{PATH}/ledger?limit=2&before={first['before']}")
    assert [len(page["entries"]) for page in (first, second)] == [2, 1]
    assert second["before"] is None


async def test_a_schedule_is_deleted(client: Client, nightly: Answer) -> None:
    assert await client.problem("DELETE", PATH, If_Match='"other"') == (412, "precondition_failed")
    assert (await client.send("DELETE", f"{PATH}?reason=old", If_Match=nightly.headers["ETag"])).status == 204
    for method, path in (("GET", PATH), ("DELETE", PATH), ("GET", f"{PATH}/ledger"), ("GET", f"{PATH}/preview")):
        assert await client.problem(method, path) == (404, "not_found")
    (entry,) = (await client.get("/v1/audit?action=schedule.delete"))["entries"]
    assert (entry["reason"], entry["actor"]) == ("old", "local")


async def test_coming_times_are_previewed(client: Client, nightly: Answer) -> None:
    preview = await client.get(f"{PATH}/preview?limit=3&reader=Asia/Tokyo")
    assert preview["tz"] == "Europe/Berlin"
    assert [row["nominal"][11:16] for row in preview["coming"]] == ["02:30"] * 3
    assert preview["coming"][0]["reader"].endswith("+09:00")
    tried = await client.post("/v1/schedules:preview", {"rule": "every 90s", "limit": 2})
    assert len(tried["coming"]) == 2


async def test_a_proposed_change_is_compared(client: Client, nightly: Answer) -> None:
    body = {"rule": "30 2 * * 1-5", "tz": "Europe/Berlin", "days": 28, "limit": 3}
    diff = await client.post(f"{PATH}/diff", body)
    assert (diff["added"], diff["removed"], len(diff["changes"])) == (0, 8, 3)
    assert {change["kind"] for change in diff["changes"]} == {"removed"}
    assert (await client.get(PATH))["schedule"] == nightly.data["schedule"]


async def test_schedules_are_simulated(app: Mainspring, client: Client, nightly: Answer) -> None:
    await client.send("PUT", "/v1/schedules/hourly", {"rule": "0 * * * *", "job": JOB})
    both = await client.post("/v1/schedules:simulate", {"days": 7})
    assert {course["id"]: course["fires"] for course in both["schedules"]} == {"hourly": 7 * 24 - 1, "nightly": 7}
    assert sum(both["days"].values()) == 7 * 25 - 1
    one = await client.post("/v1/schedules:simulate", {"days": 1, "ids": ["nightly"]})
    assert [course["id"] for course in one["schedules"]] == ["nightly"]
    assert await client.problem("POST", "/v1/schedules:simulate", {"ids": ["none"]}) == (404, "not_found")


async def test_a_simulation_of_too_many_times_is_refused(client: Client) -> None:
    await client.send("PUT", "/v1/schedules/often", {"rule": "every 10s", "job": JOB})
    answer = await client.send("POST", "/v1/schedules:simulate", {"days": 365})
    assert (answer.status, "up to 11 days" in answer.data["detail"]) == (422, True)
    answer = await client.send("POST", "/v1/schedules/often/diff", {"rule": "every 20s", "days": 365})
    assert answer.status == 422


async def test_a_schedule_of_the_code_is_not_replaced(app: Mainspring, client: Client) -> None:
    @app.every(timedelta(hours=1))
    def tick() -> None: ...

    await app.schedules.reconcile()
    shown = await client.get("/v1/schedules/tick")
    assert shown["owner"] is not None
    assert await client.problem("PUT", "/v1/schedules/tick", NIGHTLY) == (422, "invalid_request")
    assert await client.problem("DELETE", "/v1/schedules/tick") == (422, "invalid_request")


async def test_an_id_may_have_slashes_and_colons(client: Client) -> None:
    path = "/v1/schedules/team/a:report%20one"
    assert (await client.send("PUT", path, NIGHTLY)).data["id"] == "team/a:report one"
    assert (await client.post(f"{path}:pause"))["state"] == "paused"
    assert (await client.get(f"{path}/preview"))["coming"] == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"rule": "every banana"}, "invalid_request"),
        ({"rule": {"kind": "banana"}}, "invalid_request"),
        ({"rule": ""}, "invalid_request"),
        ({"tz": "Mars/Base"}, "invalid_request"),
        ({"gap": "jump"}, "invalid_request"),
        ({"jitter": "long"}, "invalid_request"),
        ({"start": "soon"}, "invalid_request"),
        ({"start": "2027-01-02", "end": "2027-01-01"}, "invalid_request"),
        ({"misfire": {"mode": "later"}}, "invalid_request"),
        ({"colour": "red"}, "invalid_request"),
        ({"job": {"task": "great"}}, "unknown_task"),
        ({"job": {"task": "greet", "payload": {"name": 7}}}, "invalid_payload"),
        ({"job": {"task": "greet", "payload": {"name": "Ada"}, "delay": 7}}, "invalid_request"),
    ],
)
async def test_a_wrong_schedule_is_refused(client: Client, change: dict[str, Any], code: str) -> None:
    assert await client.problem("PUT", PATH, {**NIGHTLY, **change}) == (422, code)
    assert (await client.get("/v1/schedules"))["schedules"] == []


async def test_a_wrong_id_is_refused(client: Client) -> None:
    assert await client.problem("PUT", "/v1/schedules/a%00b", NIGHTLY) == (422, "invalid_request")
    assert await client.problem("GET", "/v1/schedules/a%0Ab") == (404, "not_found")


@pytest.mark.parametrize("action", [":pause", ":resume", ":trigger"])
async def test_an_unknown_schedule_is_not_found(client: Client, action: str) -> None:
    assert await client.problem("POST", f"{PATH}{action}") == (404, "not_found")
