"""Records the examples of the OpenAPI document: a day of a hotel, a greeting service and a render farm.

`make examples` runs it. It sends real requests to a service in this process, and keeps what was sent and answered. Ids,
tokens and secrets are replaced, so that a new recording differs only where the API does.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mainspring import Context, Limit, Mainspring, Retry
from mainspring.service.examples import FILE
from mainspring.service.secrets import DeliveryTokens
from mainspring.service.tokens import Tokens
from mainspring.stores.documents import Bundle, Key, Write
from mainspring.stores.sqlite import MemoryStore
from mainspring.subscribers import COLLECTION as SUBSCRIBERS
from mainspring.testing.clock import ManualClock
from mainspring.worker import Worker
from tests.service.serving import Answer, Client, serving

PLACE = Path(__file__).parents[2] / "src" / "mainspring" / "service" / FILE
MONDAY = datetime(2027, 3, 1, 8, 0, tzinfo=UTC)
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
SECRETS = {
    re.compile(r"\bmsk_[A-Za-z0-9]{8,}_[A-Za-z0-9]+"): "msk_k3x9q2wd_…",
    re.compile(r"\bmsp_[\w.-]+"): "msp_4f7c_…",
    re.compile(r"\bwhsec_[A-Za-z0-9+/=]+"): "whsec_…",
}
TRACEBACKS = re.compile(r'Traceback \(most(?:[^"\\]|\\.)*')
SHOWN_TRACEBACK = json.dumps(
    'Traceback (most recent call last):\n  File "/srv/hotel/mail.py", line 31, in invoice\n    raise LookupError(msg)\n'
    "LookupError: the booking 118 has no address\n"
)[1:-1]
NOW = re.compile(rf"{datetime.now(UTC).date()}T[\d:.]+Z")  # by the clock of the machine
RANDOM = (
    ("POST /v1/tokens", "201", ("token", "id"), "k3x9q2wd"),
    ("GET /v1/sessions", "200", ("sessions", 0, "id"), "s8Vd2kQw41Lx"),
    ("POST /v1/tokens:rotate", "200", ("key",), "4f7c21ab"),
)
CURSOR = re.compile(r'("cursor": )"[^"]+"')


@dataclass
class Recorder:
    """Sends requests, and keeps them as examples of their operations."""

    client: Client
    kept: dict[str, Any] = field(default_factory=dict)

    async def send(self, operation: str, body: Any = None, *, query: str = "", token: str = "", **names: str) -> Any:
        """Send a request. `operation` is its method and the template of its path; `names` fill in the template."""
        method, template = operation.split(" ")
        headers = {name: names.pop(name) for name in ("accept", "content_type") if name in names}
        client = self.client.using(token) if token else self.client
        path = template.format(**names) + query
        found = await client.send(method, path, body, **headers)
        assert found.status < 300, f"{operation}: {found}"
        self._keep(operation, body, found, headers.get("content_type", ""))
        return found.data if found.headers.get("content-type") == "application/json" else found.text

    def _keep(self, operation: str, body: Any, found: Answer, content_type: str) -> None:
        about = self.kept.setdefault(operation, {})
        if content_type:
            about.setdefault("other_bodies", {}).setdefault(content_type, body.decode())
        elif body is not None:
            about.setdefault("body", body)
        media = found.headers.get("content-type", "").partition(";")[0]
        if found.text:
            data = found.data if media == "application/json" else found.text
            about.setdefault("answers", {}).setdefault(str(found.status), {}).setdefault(media, data)


def define(app: Mainspring) -> None:
    @app.task(queue="mail", retry=Retry(max_attempts=3, jitter_share=0.0))
    async def welcome(guest: str, room: str) -> str:
        """Send a guest the welcome letter."""
        if guest == "Nobody":
            msg = "no address of Nobody"
            raise LookupError(msg)
        return f"letter to {guest} in {room}"

    @app.task(queue="mail", retry=Retry(max_attempts=1))
    async def invoice(booking: str) -> str:
        """Send the invoice of a booking."""
        msg = f"the booking {booking} has no address"
        raise LookupError(msg)

    @app.task(queue="renders", limits=[Limit(2)])
    async def render(ctx: Context, scene: str, frame: int) -> str:
        """Render a frame of a scene."""
        await ctx.step("load", lambda: scene)
        ctx.progress(1.0, f"frame {frame}")
        return f"s3://renders/{scene}/{frame:04}.png"


@dataclass
class Day:
    """What happens, part by part."""

    app: Mainspring
    clock: ManualClock
    worker: Worker
    record: Recorder

    async def run(self) -> None:
        for part in (
            self.jobs, self.workers, self.failures, self.bulk_actions, self.batches, self.schedules, self.people,
            self.halts, self.tokens, self.overviews,
        ):  # fmt: skip
            self.clock.advance(60)
            await part()

    async def drain(self, seconds: float = 2.5) -> None:
        self.clock.advance(seconds)
        await self.worker.drain()

    # -- jobs -------------------------------------------------------------------------------------

    async def jobs(self) -> None:
        send = self.record.send
        ada = {"task": "welcome", "payload": {"guest": "Ada", "room": "12"}, "run_at": "2027-03-01T14:00:00+01:00",
               "dedupe_key": "welcome-booking-118", "target": {"type": "booking", "id": "118"}}  # fmt: skip
        job = (await send("POST /v1/jobs", ada))["id"]
        await send("POST /v1/jobs", ada)
        frames = [
            {"task": "render", "payload": {"scene": "harbour", "frame": number}, "tags": ["trailer"]}
            for number in (1, 2)
        ]
        wrong = {"task": "rendr", "payload": {"scene": "harbour", "frame": 3}}
        await send("POST /v1/jobs:bulk", {"jobs": [*frames, wrong]})
        await send("PATCH /v1/jobs/{job_id}", {"priority": "high", "reason": "early arrival"}, job_id=job)
        await send(
            "POST /v1/jobs/{job_id}:reschedule", {"run_at": "2027-03-01T12:30:00+01:00", "reason": "early arrival"},
            job_id=job,
        )  # fmt: skip
        await self.drain()
        rendered = (await self.app.jobs.find()).jobs[0].id
        await send("GET /v1/jobs", query="?tag=trailer&count=true&limit=1")
        await send("GET /v1/jobs", query="?tag=trailer&limit=1", accept="application/x-ndjson")
        await send("GET /v1/jobs", query="?tag=trailer&limit=1", accept="text/csv")
        await send("GET /v1/jobs/{job_id}", job_id=job)
        await send("GET /v1/jobs/{job_id}/detail", job_id=rendered)
        await send("POST /v1/jobs/{job_id}:cancel", {"reason": "the guest has cancelled"}, job_id=job)
        await send("POST /v1/jobs/{job_id}:retry", {"reason": "the guest comes after all"}, job_id=job)
        await self.pushed_jobs()
        await send("POST /v1/jobs/{job_id}:replay", {"reason": "the frame is too dark"}, job_id=rendered)
        await send("DELETE /v1/jobs/{job_id}", job_id=rendered)
        lines = b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)
        made = await send("POST /v1/jobs:bulk", lines, content_type="application/x-ndjson")
        for result in made["results"]:
            await self.app.jobs.delete(result["id"])  # the rest of the day goes on without them

    async def pushed_jobs(self) -> None:
        for action, body in (
            ("complete", {"result": {"rooms_cleaned": 14}}),
            ("fail", {"error": "the lift is out of order", "retry": True}),
        ):
            job = await self.app.enqueue("http", {"url": "https://housekeeping.example/jobs"}, delay=3600)
            token = await DeliveryTokens(self.app.store).make(job.id, 1)
            await self.record.send(f"POST /v1/jobs/{{job_id}}:{action}", body, job_id=job.id, token=token)
            await self.app.jobs.delete(job.id)  # before a worker sends the request

    async def workers(self) -> None:
        send = self.record.send
        for frame in (3, 4):
            await self.app.enqueue("render", {"scene": "harbour", "frame": frame}, queue="gpu")
        claim = {"worker": "gpu-7", "queues": ["gpu"], "tasks": ["render"], "limit": 1, "wait": 0}
        (lease,) = (await send("POST /v1/leases", claim))["jobs"]
        await send("POST /v1/leases", {**claim, "worker": "gpu-8"}, accept="text/tab-separated-values")
        item = {"id": lease["id"], "token": lease["token"], "done": {"result": "s3://renders/harbour/0003.png"}}
        await send("POST /v1/leases:report", {"worker": "gpu-7", "items": [item]})
        for order in ("quiet", "terminate", "continue"):
            await send(f"POST /v1/workers/{{worker}}:{order}", {"reason": "new graphics driver"}, worker="gpu-7")
        await send("POST /v1/leases:leave", {"worker": "gpu-7"})
        await send("GET /v1/workers")
        await send("GET /health/scheduler")

    # -- many jobs --------------------------------------------------------------------------------

    async def failures(self) -> None:
        send = self.record.send
        await self.app.enqueue("invoice", {"booking": "118"})
        await self.app.enqueue("welcome", {"guest": "Nobody", "room": "7"})
        await self.drain()
        await send("GET /v1/dead", query="?limit=1")
        await send("GET /v1/dead", query="?limit=1", accept="application/x-ndjson")
        await send("GET /v1/dead", query="?limit=1", accept="text/csv")
        groups = (await send("GET /v1/failures", query="?task=invoice&limit=1"))["groups"]
        group = groups[0]["fingerprint"]
        await send("GET /v1/failures/{fingerprint}", fingerprint=group)
        await send("POST /v1/failures/{fingerprint}:resolve", {"note": "address added"}, fingerprint=group)
        await send("POST /v1/failures/{fingerprint}:reopen", {"note": "still missing"}, fingerprint=group)
        await send("POST /v1/failures/{fingerprint}:mute", {"length": 3600, "note": "Bea mends it"}, fingerprint=group)
        await send("POST /v1/failures/{fingerprint}:unmute", {"note": "mended"}, fingerprint=group)
        await send("POST /v1/failures/{fingerprint}:retry", {"reason": "address added"}, fingerprint=group)
        await self.drain()

    async def bulk_actions(self) -> None:
        send = self.record.send
        for frame in range(5, 9):
            await self.app.enqueue("render", {"scene": "forest", "frame": frame}, delay=3600, tags=["draft"])
        self.clock.advance(1)
        drafts = {"action": "cancel", "filter": {"tag": ["draft"]}, "expect": 4, "canary": 1, "reason": "wrong camera"}
        bulk = (await send("POST /v1/bulk", drafts))["id"]
        await send("POST /v1/bulk", {**drafts, "dry_run": True})
        await self.app.runtime.timers.run_due()
        await send("GET /v1/bulk/{bulk_id}", bulk_id=bulk)
        await send("GET /v1/bulk/{bulk_id}/jobs", bulk_id=bulk)
        await send("POST /v1/bulk/{bulk_id}:continue", {"reason": "the canary looks good"}, bulk_id=bulk)
        await send("POST /v1/bulk/{bulk_id}:cancel", {"reason": "the camera was right"}, bulk_id=bulk)
        await send("GET /v1/bulk", query="?limit=1")
        await send("POST /v1/dead:purge", {"older_than": 2_592_000, "dry_run": True, "reason": "monthly"})

    async def batches(self) -> None:
        send = self.record.send
        frames = [{"task": "render", "payload": {"scene": "forest", "frame": frame}, "delay": 60} for frame in (1, 2)]
        body = {"jobs": frames, "on_success": {"task": "welcome", "payload": {"guest": "Bea", "room": "studio"}}}
        batch = (await send("POST /v1/batches", body))["id"]
        await send("GET /v1/batches", query="?limit=1")
        await send("GET /v1/batches/{batch_id}", batch_id=batch)
        await send("POST /v1/batches/{batch_id}:cancel", {"reason": "new camera", "dry_run": True}, batch_id=batch)
        await send("POST /v1/signals", {"key": "checked_in:118", "payload": {"room": "12"}})

    # -- schedules and people ---------------------------------------------------------------------

    async def schedules(self) -> None:
        send = self.record.send
        name = "night-audit"
        job = {"task": "welcome", "payload": {"guest": "night desk", "room": "lobby"}}
        body = {"rule": "30 2 * * *", "tz": "Europe/Berlin", "job": job, "reason": "audit before breakfast"}
        await send("PUT /v1/schedules/{schedule_id}", body, schedule_id=name)
        await send("PUT /v1/schedules/{schedule_id}", {**body, "rule": "0 3 * * *"}, schedule_id=name)
        await send("GET /v1/schedules/{schedule_id}", schedule_id=name)
        await send("GET /v1/schedules")
        await send("GET /v1/schedules/{schedule_id}/preview", schedule_id=name, query="?limit=2")
        self.clock.advance(86_400)
        await self.app.runtime.timers.run_due()
        await send("GET /v1/schedules/{schedule_id}/ledger", schedule_id=name)
        rule = {"rule": "30 2 * * *", "tz": "Europe/Berlin"}
        await send("POST /v1/schedules/{schedule_id}/diff", {**rule, "days": 2}, schedule_id=name)
        await send("POST /v1/schedules:preview", {**rule, "limit": 2, "reader": "Asia/Tokyo"})
        await send("POST /v1/schedules:simulate", {"ids": [name], "days": 2})
        until = {"until": "2027-03-09T00:00:00+01:00", "reason": "renovation"}
        await send("POST /v1/schedules/{schedule_id}:pause", until, schedule_id=name)
        await send("POST /v1/schedules/{schedule_id}:resume", {"reason": "done early"}, schedule_id=name)
        await send("POST /v1/schedules/{schedule_id}:trigger", {"reason": "once by hand"}, schedule_id=name)
        await send("DELETE /v1/schedules/{schedule_id}", schedule_id=name)

    async def people(self) -> None:
        send = self.record.send
        birthday = {"kind": "birthday", "date": "1990-03-09", "at": "09:00"}
        mei = {"first_name": "Mei", "last_name": "Tan", "email": "mei@example.com", "tz": "Pacific/Auckland",
               "locale": "en-NZ", "quiet": "22:00-08:00", "attributes": {"rooms": 2},
               "occasions": [birthday]}  # fmt: skip
        await send("PUT /v1/people/{person_id}", mei, person_id="mei")
        await send("PUT /v1/people/{person_id}", mei, person_id="mei")
        await send("PATCH /v1/people/{person_id}", {"tz": "Asia/Tokyo"}, person_id="mei")
        anniversary = {"date": "2019-03-12", "template": "anniversary"}
        await send("PUT /v1/people/{person_id}/occasions/{kind}", anniversary, person_id="mei", kind="first-stay")
        await send("GET /v1/people/{person_id}", person_id="mei")
        await send("GET /v1/people", query="?kind=birthday&limit=1")
        await send("GET /v1/people/{person_id}/occasions", person_id="mei")
        await send("GET /v1/occasions", query="?ahead=1209600")
        await send("DELETE /v1/people/{person_id}/occasions/{kind}", person_id="mei", kind="first-stay")
        await send("DELETE /v1/people/{person_id}", person_id="mei")
        john = {"firstName": "John", "lastName": "Doe", "birthday": "1990-12-30", "timezone": "America/New_York",
                "email": "john@example.com"}  # fmt: skip
        user = (await send("POST /user", john))["id"]
        await send("GET /user/{user_id}", user_id=user)
        await send("PUT /user/{user_id}", {"timezone": "Europe/Madrid"}, user_id=user)
        await send("DELETE /user/{user_id}", user_id=user)

    # -- the system -------------------------------------------------------------------------------

    async def halts(self) -> None:
        send = self.record.send
        await send("POST /v1/halt", {"reason": "restoring the database", "reject_new": True, "wait": 0.0})
        await send("GET /v1/halts")
        await send("POST /v1/resume", {"reason": "restored"})
        await send("POST /v1/queues/{queue}:pause", {"reason": "mail server moves", "wait": 0.0}, queue="mail")
        await send("GET /v1/queues")
        await send("GET /v1/queues/{queue}", queue="renders")
        await send("POST /v1/queues/{queue}:resume", {"reason": "moved"}, queue="mail")
        await send("POST /v1/breakers/{name}:open", {"reason": "provider is down", "open_for": 600}, name="smtp")
        await send("GET /v1/breakers/{name}", name="smtp")
        await send("GET /v1/breakers")
        await send("POST /v1/breakers/{name}:close", {"reason": "provider is back"}, name="smtp")
        values = {"limit": 4, "rate": {"count": 10, "per": 60}, "reason": "weekend"}
        await send("PATCH /v1/settings/{kind}/{name}", values, kind="task", name="render")
        await send("GET /v1/settings/{kind}/{name}", kind="task", name="render")
        await send("GET /v1/settings")
        await send("DELETE /v1/settings/{kind}/{name}", kind="task", name="render")

    async def tokens(self) -> None:
        send = self.record.send
        job = await self.app.enqueue("render", {"scene": "harbour", "frame": 9}, target=("order", "4711"), delay=60)
        body = {"name": "reception", "scopes": ["enqueue", "read"], "queues": ["mail"],
                "expires_at": "2028-01-01T00:00:00+01:00"}  # fmt: skip
        made = await send("POST /v1/tokens", body)
        tokens = Tokens(self.app.store)
        await tokens.find(made["text"])  # in another process
        await tokens.uses.flush()
        await send("GET /v1/tokens")
        public = (await send("POST /v1/tokens:public", {"jobs": [job.id], "ttl": 900.0, "result": True}))["text"]
        await send("GET /v1/public/jobs", token=public)
        await send("GET /v1/public/jobs/{job_id}", token=public, job_id=job.id)
        await send("POST /v1/tokens:rotate", {"reason": "yearly"})
        await self.sessions(made["text"])
        await send("DELETE /v1/tokens/{token_id}", token_id=made["token"]["id"])
        await send("POST /v1/secrets", {"name": "housekeeping"})
        await send("GET /v1/secrets")
        await send("GET /v1/secrets/{name}", name="housekeeping")
        await send("POST /v1/secrets/{name}:rotate", {}, name="housekeeping")
        await send("DELETE /v1/secrets/{name}", name="housekeeping")

    async def sessions(self, token: str) -> None:
        form = f"token={token}".encode()
        kind = {"content-type": "application/x-www-form-urlencoded", "origin": self.record.client.url}
        await self.record.client.send("POST", "/login", form, **kind)
        self.record.client.session.cookie_jar.clear()
        await self.record.send("GET /v1/sessions")

    async def overviews(self) -> None:
        send = self.record.send
        await self.drain()
        await send("GET /v1/tasks")
        await send("GET /v1/tasks/{name}", name="render")
        await send("GET /v1/limits")
        door = {"cursor": "1-2481", "owner": "web-1:4711:1", "failures": 0, "error": ""}
        await self.app.store.write([Bundle((Write(Key(SUBSCRIBERS, "", "door-codes"), json.dumps(door)),))])
        await send("GET /v1/subscribers")
        await send("GET /v1/audit", query="?limit=2")
        await send("GET /v1/numbers", query="?last=3600&step=hour")
        await send("GET /v1/stats")
        await send("GET /v1/complete/{what}", what="task", query="?prefix=re")
        await send("GET /health/live")
        await send("GET /health/ready")
        await send("GET /queue/stats", query="?limit=1")


async def record() -> str:
    """Return the examples of all operations, as JSON."""
    clock = ManualClock(MONDAY)
    app = Mainspring(MemoryStore(clock=clock), version="2027.3.0")
    define(app)
    async with app, serving(app) as client:
        worker = app.worker()
        await app.published.publish(app.tasks.values(), "web-1")
        day = Day(app, clock, worker, Recorder(client))
        await day.run()
        return anonymous(day.record.kept, worker.id)


def anonymous(kept: dict[str, Any], worker: str) -> str:
    """Return the recording with ids in the order of their appearance, and without what is special to this machine."""
    ordered = {operation: kept[operation] for operation in sorted(kept)}
    text = json.dumps(ordered, indent=1, ensure_ascii=False).replace(worker, "web-1")
    for operation, status, path, shown in RANDOM:
        value = kept[operation]["answers"][status]["application/json"]
        for name in path:
            value = value[name]
        text = text.replace(f'"{value}"', f'"{shown}"')
    names: dict[str, str] = {}
    for found in ID.findall(text):
        names.setdefault(found, f"01983d5c-7a10-7c3e-9b52-{len(names) + 1:012x}")
    text = ID.sub(lambda found: names[found[0]], text)
    for pattern, shown in SECRETS.items():
        text = pattern.sub(shown, text)
    text = NOW.sub("2027-03-01T08:02:00.000Z", TRACEBACKS.sub(lambda _: SHOWN_TRACEBACK, text))
    text = text.replace(__name__, "hotel.mail").replace("define.<locals>.", "")
    return CURSOR.sub(r'\1"WyJqb2JzIiwgIjAxOTgzZDVjIl0"', text)


def main() -> None:
    PLACE.write_text(asyncio.run(record()) + "\n", "utf-8")


if __name__ == "__main__":
    from tests.service import recording

    recording.main()  # under its own name, which is part of the fingerprints of failures
