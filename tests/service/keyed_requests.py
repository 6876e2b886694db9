"""For each POST of the API: a request that has an effect, and what the effect of requests was."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from mainspring import Mainspring
from mainspring.features.durable.signals import COLLECTION as SIGNALS
from mainspring.ids import new_id
from mainspring.job import Status
from mainspring.service.secrets import DeliveryTokens
from mainspring.stores.documents import Listing
from mainspring.stores.protocol import Filter
from tests.service.serving import Client

WELCOME = {"task": "welcome", "payload": {"guest": "Ada"}}
PERSON = {"firstName": "Ada", "birthday": "1990-12-30", "timezone": "Europe/London"}
RULE = {"rule": "0 9 * * *"}
COUNTED = (SIGNALS, "people", "batches", "webhook_secrets", "tokens", "worker_orders", "bulk")
NO_EFFECT = {
    "/v1/tokens:public",
    "/v1/schedules:preview",
    "/v1/schedules:simulate",
    "/v1/schedules/{schedule_id}/diff",
}


@dataclass
class Keyed:
    """A request, and one to the same path with another body that would be accepted too."""

    path: str
    body: dict[str, Any] = field(default_factory=lambda: {"reason": "one"})
    other: dict[str, Any] = field(default_factory=lambda: {"reason": "other"})
    token: str | None = None
    undo: Callable[[], Awaitable[Any]] | None = None


async def effects(app: Mainspring) -> Counter[str]:
    """Count all that a request could leave behind."""
    entries = await app.audit(limit=1000)
    found = Counter({"entries": len(entries), "changed jobs": sum(entry.count for entry in entries)})
    found["jobs"] = await app.jobs.count(Filter())
    found["running"] = await app.jobs.count(Filter(statuses=(Status.RUNNING,)))
    for collection in COUNTED:
        found[collection] = len(await app.store.browse(Listing(collection, limit=1000)))
    return found


# -- jobs -----------------------------------------------------------------------------------------


async def enqueue(_: Mainspring) -> Keyed:
    return Keyed("/v1/jobs", WELCOME, {**WELCOME, "delay": 5})


async def enqueue_many(_: Mainspring) -> Keyed:
    return Keyed("/v1/jobs:bulk", {"jobs": [WELCOME, WELCOME]}, {"jobs": [WELCOME]})


async def waiting_job(app: Mainspring, **options: Any) -> str:
    """A job that no worker runs now."""
    return (await app.enqueue("welcome", {"guest": "Ada"}, delay=timedelta(hours=1), **options)).id


def on_waiting_job(action: str, **more: Any) -> Callable[[Mainspring], Awaitable[Keyed]]:
    async def make(app: Mainspring) -> Keyed:
        return Keyed(f"/v1/jobs/{await waiting_job(app)}:{action}", {"reason": "one", **more}, {"reason": "x", **more})

    return make


async def dead_letter(app: Mainspring) -> str:
    """The only dead letter."""
    await app.worker().drain()
    await app.jobs.delete_where(app.jobs.dead())
    job_id = (await app.enqueue("fail", {"why": "broken"})).id
    await app.worker().drain()
    return job_id


async def retry(app: Mainspring) -> Keyed:
    return Keyed(f"/v1/jobs/{await dead_letter(app)}:retry")


async def replay(app: Mainspring) -> Keyed:
    return Keyed(f"/v1/jobs/{await dead_letter(app)}:replay")


def end_push(action: str, body: dict[str, Any], other: dict[str, Any]) -> Callable[[Mainspring], Awaitable[Keyed]]:
    async def make(app: Mainspring) -> Keyed:
        job_id = (await app.enqueue("http", {"url": "http://example.com"}, delay=timedelta(hours=1))).id
        return Keyed(f"/v1/jobs/{job_id}:{action}", body, other, await DeliveryTokens(app.store).make(job_id, 1))

    return make


async def purge(app: Mainspring) -> Keyed:
    await dead_letter(app)
    return Keyed("/v1/dead:purge", {"older_than": 0}, {"older_than": 1})


# -- halts, queues and workers ----------------------------------------------------------------------


async def halt(app: Mainspring) -> Keyed:
    return Keyed("/v1/halt", {"wait": 0.0}, {"wait": 0.1}, undo=app.resume)


async def resume(app: Mainspring) -> Keyed:
    await app.halt("test", wait=0)
    return Keyed("/v1/resume")


async def pause_queue(app: Mainspring) -> Keyed:
    return Keyed("/v1/queues/mail:pause", {"wait": 0.0}, {"wait": 0.1}, undo=lambda: app.resume("mail"))


async def resume_queue(app: Mainspring) -> Keyed:
    await app.pause("mail", wait=0)
    return Keyed("/v1/queues/mail:resume")


def order(name: str) -> Callable[[Mainspring], Awaitable[Keyed]]:
    async def make(_: Mainspring) -> Keyed:
        return Keyed(f"/v1/workers/w-{new_id()}:{name}")

    return make


# -- tokens and secrets -----------------------------------------------------------------------------


async def create_token(_: Mainspring) -> Keyed:
    return Keyed("/v1/tokens", {"name": "ci", "scopes": ["read"]}, {"name": "ci", "scopes": ["enqueue"]})


async def create_public_token(app: Mainspring) -> Keyed:
    job = await app.enqueue("welcome", {"guest": "Ada"})
    return Keyed("/v1/tokens:public", {"jobs": [job.id]}, {"jobs": [job.id], "result": True})


async def rotate_signing_key(_: Mainspring) -> Keyed:
    return Keyed("/v1/tokens:rotate")


async def create_secret(_: Mainspring) -> Keyed:
    name = f"s{new_id()}"
    return Keyed("/v1/secrets", {"name": name}, {"name": f"{name}x"})


async def rotate_secret(app: Mainspring) -> Keyed:
    from mainspring.service.secrets import Secrets
    from mainspring.webhooks import new_secret

    name = f"s{new_id()}"
    await Secrets(app.store).create(name, actor="test")
    return Keyed(f"/v1/secrets/{name}:rotate", {}, {"secret": new_secret()})


# -- failures and bulk actions ------------------------------------------------------------------------


def on_group(action: str, before: str = "", name: str = "note") -> Callable[[Mainspring], Awaitable[Keyed]]:
    async def make(app: Mainspring) -> Keyed:
        failure = (await app.jobs.get(await dead_letter(app))).failure
        assert failure is not None
        fingerprint = failure.fingerprint
        if before:
            await getattr(app.failures, before)(fingerprint)
        return Keyed(f"/v1/failures/{fingerprint}:{action}", {name: "one"}, {name: "other"})

    return make


async def start_bulk(app: Mainspring) -> Keyed:
    tag = new_id()
    await waiting_job(app, tags=[tag])
    body = {"action": "cancel", "filter": {"tag": [tag]}}
    return Keyed("/v1/bulk", body, {**body, "reason": "other"})


async def cancel_bulk(app: Mainspring) -> Keyed:
    tag = new_id()
    await waiting_job(app, tags=[tag])
    change = await app.bulk.start("cancel", Filter(tags=(tag,)))
    return Keyed(f"/v1/bulk/{change.id}:cancel")


async def continue_bulk(app: Mainspring) -> Keyed:
    tag = new_id()
    newest = [await waiting_job(app, tags=[tag]) for _ in range(2)][-1]
    created_at = (await app.jobs.get(newest)).created_at
    while app.now() <= created_at:  # noqa: ASYNC110 - it changes the jobs of earlier milliseconds
        await asyncio.sleep(0.001)
    change = await app.bulk.start("cancel", Filter(tags=(tag,)), canary=1)
    await app.runtime.timers.run_due()
    return Keyed(f"/v1/bulk/{change.id}:continue")


# -- schedules, breakers, batches ---------------------------------------------------------------------


async def schedule(app: Mainspring) -> str:
    name = f"s-{new_id()}"
    await app.schedules.put(name, "0 9 * * *", await app.prepare("welcome", {"guest": "Ada"}))
    return name


async def preview(_: Mainspring) -> Keyed:
    return Keyed("/v1/schedules:preview", RULE, {**RULE, "limit": 3})


async def simulate(_: Mainspring) -> Keyed:
    return Keyed("/v1/schedules:simulate", {"days": 1}, {"days": 2})


async def diff(app: Mainspring) -> Keyed:
    return Keyed(f"/v1/schedules/{await schedule(app)}/diff", RULE, {**RULE, "days": 3})


def on_schedule(action: str) -> Callable[[Mainspring], Awaitable[Keyed]]:
    async def make(app: Mainspring) -> Keyed:
        name = await schedule(app)
        if action == "resume":
            await app.schedules.pause(name)
        return Keyed(f"/v1/schedules/{name}:{action}")

    return make


async def open_breaker(_: Mainspring) -> Keyed:
    return Keyed(f"/v1/breakers/b{new_id()}:open")


async def close_breaker(app: Mainspring) -> Keyed:
    name = f"b{new_id()}"
    await app.breakers.open(name)
    return Keyed(f"/v1/breakers/{name}:close")


async def create_batch(_: Mainspring) -> Keyed:
    return Keyed("/v1/batches", {"jobs": [WELCOME, WELCOME]}, {"jobs": [WELCOME]})


async def cancel_batch(app: Mainspring) -> Keyed:
    job = await app.prepare("welcome", {"guest": "Ada"}, delay=timedelta(hours=1))
    return Keyed(f"/v1/batches/{(await app.batch([job])).id}:cancel")


# -- the rest -------------------------------------------------------------------------------------


async def signal(_: Mainspring) -> Keyed:
    return Keyed("/v1/signals", {"key": "bell"}, {"key": "bell", "payload": 1})


async def create_user(_: Mainspring) -> Keyed:
    return Keyed("/user", PERSON, {**PERSON, "firstName": "Bea"})


async def due_jobs(app: Mainspring, number: int) -> str:
    """A queue of its own with jobs that are due."""
    queue = f"q-{new_id()}"
    for _ in range(number):
        await app.enqueue("welcome", {"guest": "Ada"}, queue=queue)
    return queue


async def claim(app: Mainspring) -> Keyed:
    worker = f"w-{new_id()}"
    body = {"worker": worker, "queues": [await due_jobs(app, 5)], "limit": 2}
    return Keyed("/v1/leases", body, {**body, "limit": 1}, undo=lambda: app.leases.leave(worker))


async def report(app: Mainspring) -> Keyed:
    worker, queue = f"w-{new_id()}", await due_jobs(app, 1)
    (lease,) = (await app.leases.claim(worker, queues=queue)).leases
    item = {"id": lease.id, "token": lease.token, "done": {"result": "welcome"}}
    return Keyed("/v1/leases:report", {"worker": worker, "items": [item]}, {"worker": worker, "items": []})


async def leave(app: Mainspring) -> Keyed:
    worker = f"w-{new_id()}"
    await app.leases.claim(worker, queues=await due_jobs(app, 1))
    return Keyed("/v1/leases:leave", {"worker": worker}, {"worker": f"{worker}x"})


REQUESTS: dict[str, Callable[[Mainspring], Awaitable[Keyed]]] = {
    "/v1/jobs": enqueue,
    "/v1/jobs:bulk": enqueue_many,
    "/v1/jobs/{job_id}:cancel": on_waiting_job("cancel"),
    "/v1/jobs/{job_id}:retry": retry,
    "/v1/jobs/{job_id}:replay": replay,
    "/v1/jobs/{job_id}:reschedule": on_waiting_job("reschedule", delay=7200),
    "/v1/jobs/{job_id}:complete": end_push("complete", {"result": 1}, {"result": 2}),
    "/v1/jobs/{job_id}:fail": end_push("fail", {"error": "one"}, {"error": "other"}),
    "/v1/halt": halt,
    "/v1/resume": resume,
    "/v1/queues/{queue}:pause": pause_queue,
    "/v1/queues/{queue}:resume": resume_queue,
    "/v1/workers/{worker}:quiet": order("quiet"),
    "/v1/workers/{worker}:terminate": order("terminate"),
    "/v1/workers/{worker}:continue": order("continue"),
    "/v1/tokens": create_token,
    "/v1/tokens:public": create_public_token,
    "/v1/tokens:rotate": rotate_signing_key,
    "/v1/secrets": create_secret,
    "/v1/secrets/{name}:rotate": rotate_secret,
    "/v1/dead:purge": purge,
    "/v1/failures/{fingerprint}:resolve": on_group("resolve"),
    "/v1/failures/{fingerprint}:mute": on_group("mute"),
    "/v1/failures/{fingerprint}:unmute": on_group("unmute", "mute"),
    "/v1/failures/{fingerprint}:reopen": on_group("reopen", "resolve"),
    "/v1/failures/{fingerprint}:retry": on_group("retry", name="reason"),
    "/v1/bulk": start_bulk,
    "/v1/bulk/{bulk_id}:cancel": cancel_bulk,
    "/v1/bulk/{bulk_id}:continue": continue_bulk,
    "/v1/schedules:preview": preview,
    "/v1/schedules:simulate": simulate,
    "/v1/schedules/{schedule_id}/diff": diff,
    "/v1/schedules/{schedule_id}:pause": on_schedule("pause"),
    "/v1/schedules/{schedule_id}:resume": on_schedule("resume"),
    "/v1/schedules/{schedule_id}:trigger": on_schedule("trigger"),
    "/v1/breakers/{name}:open": open_breaker,
    "/v1/breakers/{name}:close": close_breaker,
    "/v1/batches": create_batch,
    "/v1/batches/{batch_id}:cancel": cancel_batch,
    "/v1/signals": signal,
    "/user": create_user,
    "/v1/leases": claim,
    "/v1/leases:report": report,
    "/v1/leases:leave": leave,
}


async def send(client: Client, keyed: Keyed, key: str | None = None, body: dict[str, Any] | None = None) -> Any:
    headers = {} if key is None else {"idempotency_key": key}
    using = client if keyed.token is None else client.using(keyed.token)
    return await using.post(keyed.path, keyed.body if body is None else body, **headers)
