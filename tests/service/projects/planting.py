"""Two projects over one service, and jobs of the first with a mark in every field."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mainspring import Mainspring
from mainspring.service import Scope, Tokens
from mainspring.worker import Worker
from tests.service.serving import Client, serving

MARK = "kestrel"  # in every field of the first project's jobs; no request of the second project has it
QUEUE, WORKER, TASK, TAG, KEY, TYPE, ERROR = "q-1", "w-1", "task_1", "tag-1", "key-1", "type-1", "Error1"
SCHEDULE = "schedule-1"
"""Names of the first project that the second one knows, and tries."""


@dataclass
class Two:
    """A service, and clients with the tokens of two projects and with one that sees everything."""

    app: Mainspring
    whole: Client
    a: Client
    b: Client

    async def run(self) -> None:
        await Worker(self.app).drain()

    async def pass_on(self) -> None:
        """Wait for the next millisecond: a bulk action is for jobs that were there before."""
        now = self.app.store.clock.now
        start = now()
        while now() <= start:  # noqa: ASYNC110 - a clock has no event
            await asyncio.sleep(0)


async def text_of(app: Mainspring, name: str, *scopes: str, **more: Any) -> str:
    _, text = await Tokens(app.store).create(name, scopes or tuple(Scope), actor="tester", **more)
    return text


@asynccontextmanager
async def two_projects(app: Mainspring) -> AsyncIterator[Two]:
    async with serving(app, tokens="required") as client:
        whole, a, b = [
            client.using(await text_of(app, name, project=project))
            for name, project in (("whole", None), ("of a", "a"), ("of b", "b"))
        ]
        yield Two(app, whole, a, b)


async def put(client: Client, task: str = "welcome", **more: Any) -> str:
    answer = await client.post("/v1/jobs", {"task": task, "payload": {"guest": "Ada"}, "allow_unknown": True, **more})
    assert answer.status == 201, answer
    job_id: str = answer.data["id"]
    return job_id


async def data(client: Client, method: str, path: str, body: Any = None) -> Any:
    answer = await client.send(method, path, body)
    assert answer.status < 300, answer
    return answer.data if answer.text else None


@dataclass
class Planted:
    """What the first project has, by the names of the parameters in the paths."""

    jobs: list[str]
    bulk: str
    batch: str
    lease: dict[str, Any]
    groups: list[str]  # the fingerprints of its failure groups
    names: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = {
            "job_id": self.jobs,
            "bulk_id": [self.bulk],
            "batch_id": [self.batch],
            "fingerprint": [*self.groups, *(name.removeprefix("a.") for name in self.groups)],
            "schedule_id": [SCHEDULE, f"p/a/{SCHEDULE}"],
            "queue": [QUEUE, f"p/a/{QUEUE}"],
            "worker": [WORKER, f"p.a.{WORKER}"],
            "kind": ["queue", "task", "limit"],
            "name": [f"p/a/{QUEUE}", QUEUE, "welcome"],
            "what": ["queue", "task", "tag", "error_type", "payload_key"],
        }


def marked(**more: Any) -> dict[str, Any]:
    return {
        "task": TASK,
        "payload": {f"{MARK}_key": MARK, "list": [MARK]},
        "queue": QUEUE,
        "target": {"type": TYPE, "id": MARK},
        "tags": [TAG, MARK],
        "headers": {"x-name": MARK},
        "steps": [f"{MARK} step"],
        **more,
    }


async def plant(two: Two) -> Planted:
    """Let the first project have jobs of all kinds, a bulk action, a batch, a schedule, a pause and settings."""
    a = two.a
    jobs = [await put(a, **marked(dedupe_key=KEY)), await put(a, **marked(queue=f"{MARK}-queue", task=f"{MARK}_task"))]
    failure = {"type": ERROR, "message": MARK, "traceback": MARK, "retry": False}
    for news in ({"done": {"result": MARK}}, {"failed": failure}, {"failed": {**failure, "type": MARK}}):
        jobs.append(await put(a, **marked()))
        lease = await leased(a, jobs[-1])
        step = {"step": {"name": f"{MARK} done", "output": MARK}}
        progress = {"progress": {"fraction": 0.5, "note": MARK}}
        for item in (step, progress, news):
            await data(a, "POST", "/v1/leases:report", {"worker": WORKER, "items": [{**lease, **item}]})
    jobs.append(await put(a, **marked(delay=3600)))
    await data(a, "POST", f"/v1/jobs/{jobs[-1]}:cancel", {"reason": MARK})
    jobs.append(await put(a, **marked()))
    running = await leased(a, jobs[-1])
    jobs.append(await put(a, **marked(delay=3600)))
    bulk = (await data(a, "POST", "/v1/bulk", {"action": "retry", "filter": {"tag": [TAG, MARK]}, "reason": MARK}))[
        "id"
    ]
    batch = await data(a, "POST", "/v1/batches", {"jobs": [{**marked(), "allow_unknown": True, "delay": 3600}]})
    jobs += batch["jobs"]
    jobs.append(await scheduled(a))
    for queue in (QUEUE, f"{MARK}-queue"):
        await data(a, "POST", f"/v1/queues/{queue}:pause", {"reason": MARK, "wait": 0})
    await data(a, "POST", "/v1/leases", {"worker": f"{MARK}-worker", "version": MARK})
    await data(a, "PATCH", f"/v1/settings/queue/{QUEUE}", {"timeout": 5, "reason": MARK})
    await two.run()  # the bulk action
    groups = [group["fingerprint"] for group in (await data(a, "GET", "/v1/failures"))["groups"]]
    return Planted(jobs, bulk, batch["id"], running, groups)


async def scheduled(client: Client) -> str:
    """Make a schedule, and trigger it; return its job."""
    given = {name: value for name, value in marked().items() if name not in {"headers", "steps"}}
    body = {"rule": "0 3 1 1 *", "job": {**given, "allow_unknown": True}, "reason": MARK}
    await data(client, "PUT", f"/v1/schedules/{SCHEDULE}", body)
    job_id: str = (await data(client, "POST", f"/v1/schedules/{SCHEDULE}:trigger", {"reason": MARK}))["job_id"]
    return job_id


async def leased(client: Client, job_id: str) -> dict[str, Any]:
    """Claim jobs until this one comes; return its id and token."""
    while True:
        claimed = await data(client, "POST", "/v1/leases", {"worker": WORKER, "limit": 1})
        (lease,) = claimed["jobs"]
        about = {"id": lease["id"], "token": lease["token"]}
        if lease["id"] == job_id:
            return about
        release = {"worker": WORKER, "items": [{**about, "snooze": {"delay": 3600}}]}
        await data(client, "POST", "/v1/leases:report", release)
