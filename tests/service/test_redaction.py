"""A planted secret appears nowhere: in no answer of the API, no event, no download and no line of the log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from mainspring import Context, Mainspring, Redaction, Retry
from mainspring.job import Job
from mainspring.log_redaction import RedactingFormatter
from mainspring.service import Tokens
from mainspring.stores.protocol import Filter
from mainspring.testing.fakes import FakeEndpoint
from tests.service.event_client import Served
from tests.service.event_client import serving as serving_events
from tests.service.pushing import LOOPBACK
from tests.service.serving import Answer, Client, api_of, serving

CANARY = "canary-7Qz!x/4"  # has characters that URLs, JSON and regular expressions escape
HEADERS = {"authorization": f"Bearer {CANARY}", "trace": "ok"}


def define(app: Mainspring) -> None:
    @app.task(retry=Retry(max_attempts=1))
    async def fail(password: str) -> None:
        try:
            raise KeyError(password)
        except KeyError as error:
            error.add_note(f"note {password}")
            msg = f"cannot log in with {password!r}"
            raise ValueError(msg) from error

    @app.task(retry=Retry(max_attempts=1))
    def fail_in_a_thread(password: str) -> None:
        raise ExceptionGroup(password, [ValueError(password), KeyError(f"{password}!")])

    @app.task
    async def work(ctx: Context, token: str) -> dict[str, Any]:
        logging.getLogger("shop").warning("logging in with %s", token)
        ctx.progress(0.5, f"trying {token}")
        await ctx.step("exchange", lambda: {"refresh_token": token, "plain": "ok"})
        signal = await ctx.wait_for("approved")
        assert signal is not None
        assert signal.payload == {"secret": CANARY}
        return {"access_token": token, "plain": "fine"}

    @app.task
    async def charge(account: dict[str, Any]) -> dict[str, Any]:
        """Takes a value that only a rule of the application hides, and returns it."""
        return {"account": account}


@pytest.fixture
async def app() -> AsyncIterator[Mainspring]:
    app = Mainspring("memory://", redact=Redaction(tasks={"charge": ("/account/number",)}))
    define(app)
    async with app:
        yield app


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The log of the process, as `mainspring serve` writes it."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(RedactingFormatter(logging.Formatter("%(levelname)s %(message)s")))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield out
    root.removeHandler(handler)
    root.setLevel(level)


async def plant(client: Client) -> dict[str, str]:
    """Bring the secret into everything that the API takes; return the ids of the jobs."""
    ids: dict[str, str] = {}

    async def enqueue(name: str, body: dict[str, Any]) -> None:
        answer = await client.post("/v1/jobs", body)
        assert answer.status == 201, answer
        ids[name] = answer.data["id"]

    for task in ("fail", "fail_in_a_thread"):
        await enqueue(task, {"task": task, "payload": {"password": CANARY}, "headers": HEADERS})
    about = {"dedupe_key": f"key {CANARY}", "tags": [f"tag {CANARY}"]}
    await enqueue("work", {"task": "work", "payload": {"token": CANARY}, "headers": HEADERS, **about})
    await enqueue("later", {"task": "charge", "payload": {"account": {"number": CANARY}}, "delay": 9_000})
    job = {"task": "fail", "payload": {"password": CANARY}}
    put = await client.send("PUT", "/v1/schedules/nightly", {"rule": "daily 02:00", "tz": "UTC", "job": job})
    assert put.status == 201, put
    assert CANARY not in put.text
    person = {"tz": "UTC", "attributes": {"password": CANARY}}
    assert (await client.send("PUT", "/v1/people/ada", person)).status == 201
    signal = await client.post("/v1/signals", {"key": "approved", "payload": {"secret": CANARY}})
    assert signal.status == 201
    assert CANARY not in signal.text
    return ids


async def finish(app: Mainspring, ids: dict[str, str]) -> None:
    await app.worker().drain()
    states = {name: (await app.jobs.get(job_id)).status.value for name, job_id in ids.items()}
    assert states == {"fail": "dead_letter", "fail_in_a_thread": "dead_letter", "work": "completed", "later": "pending"}


async def operate(client: Client, ids: dict[str, str]) -> list[Answer]:
    """Change things by hand, so that the audit log and the timelines have the secret too."""
    reason = f"password={CANARY}"
    later = f"/v1/jobs/{ids['later']}"
    bulk = {"action": "cancel", "filter": {"payload": [f"password={json.dumps(CANARY)}"]}, "reason": reason}
    return [
        await client.send("PATCH", later, {"payload": {"account": {"number": f"{CANARY}2"}}, "reason": reason}),
        await client.post(f"/v1/jobs/{ids['fail']}:retry", {"reason": reason}),
        await client.post("/v1/bulk", bulk),
        await client.post("/v1/halt", {"reason": reason, "wait": 0}),
        await client.post("/v1/resume"),
        await client.post("/v1/breakers/mail:open", {"reason": reason}),
        await client.post("/v1/jobs", {"task": "fail", "payload": {"password": [CANARY], "token": CANARY}}),
        await client.post("/v1/jobs", {"task": "fail", "payload": CANARY}),
        await client.post(
            "/v1/jobs", {"task": "unknown", "payload": {"password": CANARY}, "headers": {"password": CANARY}}
        ),
    ]


async def every_get(app: Mainspring, client: Client, ids: dict[str, str]) -> dict[str, Answer]:
    """Ask for every GET of the OpenAPI document, for each job."""
    groups = (await client.get("/v1/failures")).data["groups"]
    bulks = (await client.get("/v1/bulk")).data["actions"]
    known = {
        "fingerprint": groups[0]["fingerprint"], "bulk_id": bulks[0]["id"], "schedule_id": "nightly", "name": "mail",
        "person_id": "ada",
        "what": "payload_key", "queue": "default",
    }  # fmt: skip
    found: dict[str, Answer] = {}
    for path, methods in api_of(app).openapi()["paths"].items():
        if "get" not in methods or path == "/v1/events":
            continue
        for job_id in ids.values() if "{job_id}" in path else ("",):
            names = re.findall(r"\{(\w+)", path)
            place = path
            for name in names:
                place = re.sub(rf"\{{{name}[^}}]*\}}", known.get(name, job_id or "unknown"), place)
            found[place] = await client.get(place)
    for accept in ("application/x-ndjson", "text/csv"):
        found[accept] = await client.get("/v1/jobs", accept=accept)
        found[f"dead {accept}"] = await client.get("/v1/dead", accept=accept)
    return found


async def test_the_secret_is_in_no_answer_and_no_line_of_the_log(app: Mainspring, lines: io.StringIO) -> None:
    async with serving(app) as client:
        ids = await plant(client)
        await finish(app, ids)
        changes = await operate(client, ids)
        found = await every_get(app, client, ids)
    answers = {**found, **{f"change {number}": answer for number, answer in enumerate(changes)}}
    leaks = [name for name, answer in answers.items() if forms_in(answer.text + str(answer.headers))]
    assert {name: answers[name].text for name in leaks} == {}
    assert not forms_in(lines.getvalue())
    assert "logging in with [redacted]" in lines.getvalue()
    seen = [name for name, answer in found.items() if "[redacted]" in answer.text]
    assert len(seen) >= 12, seen  # the secret was really there
    failed = {name for name, answer in answers.items() if answer.status >= 500}
    assert failed <= {"/health/scheduler", "/health/ready"}  # they say that no worker runs


def forms_in(text: str) -> list[str]:
    """Return the forms of the secret that are in a text: as it is, and as URLs and JSON write it."""
    return [form for form in (CANARY, "canary-7Qz%21x%2F4", "canary-7Qz", "7Qz!x") if form in text]


async def test_the_secret_is_in_no_event(app: Mainspring) -> None:
    async with serving_events(app) as served:
        stream, socket = await served.events(), await served.socket()
        ids = await plant(Client(served.http, served.url))
        await finish(app, ids)
        await operate(Client(served.http, served.url), ids)
        seen = await everything(served, stream, socket, await app.enqueue("charge", {"account": {}}))
    assert "ValueError" in seen
    assert "trying [redacted]" in seen
    assert not forms_in(seen)


async def everything(served: Served, stream: Any, socket: Any, last: Any) -> str:
    """Return all events up to the creation of the last job, of both kinds of stream."""
    del served
    texts: list[str] = []
    async with asyncio.timeout(30):
        while (event := await stream.next()).job != last.id:
            texts.append(json.dumps(event.data))
        while last.id not in (text := await socket.receive_str()):
            texts.append(text)
    return "\n".join(texts)


async def test_the_store_has_no_secret_in_texts_about_failures(app: Mainspring) -> None:
    """Texts are cleaned before they are stored: groups, events and other systems get them from there."""
    async with serving(app) as client:
        ids = await plant(client)
        await finish(app, ids)
    for name in ("fail", "fail_in_a_thread", "work"):
        job = await app.jobs.get(ids[name])
        assert not forms_in(f"{job.failure} {job.progress} {job.reason}")
        assert not forms_in(str(await app.jobs.attempts(ids[name])))
        assert CANARY in json.dumps(job.payload)
    assert not forms_in(str((await app.failures.list()).groups))


# -- what others get ----------------------------------------------------------------------------------


async def test_callbacks_public_tokens_and_metrics_show_no_secret(app: Mainspring, lines: io.StringIO) -> None:
    async with FakeEndpoint() as endpoint, serving(app, outgoing_allow=LOOPBACK) as client:
        callback = {"url": endpoint.url, "headers": {"x-api-key": CANARY}}
        job_id = await enqueued(client, "charge", {"account": {"number": CANARY}}, callback=callback)
        request = {"url": endpoint.url, "headers": {"authorization": f"Bearer {CANARY}"}, "body": {"password": CANARY}}
        pushed = await enqueued(client, "http", request)
        token = (await client.post("/v1/tokens:public", {"jobs": [job_id, pushed], "result": True})).data["text"]
        await app.worker().drain()
        public = client.using(token)
        answers = [await public.get("/v1/public/jobs"), await public.get(f"/v1/public/jobs/{job_id}")]
        answers += [await client.get(path) for path in ("/metrics", "/metrics/cluster", "/v1/jobs", "/v1/docs")]
        ids = [job["id"] for job in answers[4].data["jobs"]]
        answers += [await client.get(f"/v1/jobs/{each}/detail") for each in ids]
    assert len(ids) == 3  # with the callback
    assert [answer.text for answer in answers if answer.status != 200 or forms_in(answer.text)] == []
    assert answers[1].data["result"] == {"account": {"number": "[redacted]"}}
    assert not forms_in(lines.getvalue())
    sent = sorted(json.dumps(body) for body in endpoint.bodies)  # the receivers get what they are meant to get
    assert [CANARY in text for text in sent] == [True, True]


async def test_the_error_that_a_callback_tells_has_no_secret(app: Mainspring) -> None:
    async with FakeEndpoint() as endpoint, serving(app, outgoing_allow=LOOPBACK) as client:
        await enqueued(client, "fail", {"password": CANARY}, callback=endpoint.url)
        await app.worker().drain()
    (body,) = endpoint.bodies
    assert body["error"]["message"] == "cannot log in with '[redacted]'"


async def test_answers_that_are_kept_for_idempotency_keys_have_no_secret(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = app.store.write

    async def noting(bundles: Any) -> Any:
        written.extend(each.data or "" for bundle in bundles for each in bundle.writes)
        return await write(bundles)

    monkeypatch.setattr(app.store, "write", noting)
    handle = await app.enqueue("charge", {"account": {"number": CANARY}}, delay=9_000)
    lines = {"jobs": [{"task": "fail", "payload": {"password": [CANARY], CANARY: 1}}, {"task": "charge"}]}
    async with serving(app) as client:
        for path, body in ((f"/v1/jobs/{handle.id}:reschedule", {"delay": 60}), ("/v1/jobs:bulk", lines)):
            first = await client.post(path, body, idempotency_key="k1")
            again = await client.post(path, body, idempotency_key="k1")
            assert (first.status, first.text) == (again.status, again.text)
            assert again.headers["idempotent-replayed"] == "true"
            assert not forms_in(first.text)
    assert [text for text in written if forms_in(text)] == []
    assert "[redacted]" in "".join(written)


async def enqueued(client: Client, task: str, payload: Any, **more: Any) -> str:
    answer = await client.post("/v1/jobs", {"task": task, "payload": payload, **more})
    assert answer.status == 201, answer
    return str(answer.data["id"])


# -- reading in the clear ---------------------------------------------------------------------------


async def token_of(app: Mainspring, scope: str) -> str:
    _, text = await Tokens(app.store).create(scope, [scope], actor="tester")
    return text


async def secret_job(app: Mainspring) -> Job:
    handle = await app.enqueue("fail", {"password": CANARY}, delay=9_000)
    return await app.jobs.get(handle.id)


async def test_only_an_admin_may_reveal_a_job_and_it_is_noted(app: Mainspring) -> None:
    job = await secret_job(app)
    async with serving(app, tokens="required") as client:
        operator, admin = client.using(await token_of(app, "operate")), client.using(await token_of(app, "admin"))
        reader = client.using(await token_of(app, "read"))
        for path in (f"/v1/jobs/{job.id}", f"/v1/jobs/{job.id}/detail"):
            assert (await reader.get(f"{path}?reveal=true")).code == "forbidden"
            assert (await operator.get(f"{path}?reveal=true")).code == "forbidden"
            assert CANARY not in (await admin.get(path)).text
            assert CANARY in (await admin.get(f"{path}?reveal=true&reason=ticket+7")).text
        assert (await admin.get("/v1/jobs/nope?reveal=true")).code == "not_found"
        noted = [(entry.actor, entry.reason, entry.detail) for entry in await app.audit(action="job.reveal")]
        assert noted == [("token admin", "ticket 7", {"job": job.id})] * 2


async def test_an_admin_of_a_project_reveals_jobs_of_this_project_only(app: Mainspring) -> None:
    other = await secret_job(app)
    own = await app.enqueue("fail", {"password": CANARY}, queue="p/acme/default", delay=9_000)
    _, text = await Tokens(app.store).create("acme", ["admin"], project="acme", actor="tester")
    async with serving(app, tokens="required") as client:
        admin = client.using(text)
        assert CANARY in (await admin.get(f"/v1/jobs/{own.id}?reveal=true")).text
        assert (await admin.get(f"/v1/jobs/{other.id}?reveal=true")).code == "not_found"
        edit = {"payload": {"password": "[redacted]"}}
        assert (await admin.send("PATCH", f"/v1/jobs/{other.id}", edit)).code == "not_found"
    assert [entry.detail["job"] for entry in await app.audit(action="job.reveal")] == [own.id]


async def test_secrets_are_not_sent_to_another_address_by_who_cannot_see_them(app: Mainspring) -> None:
    secret = {"authorization": f"Bearer {CANARY}"}
    async with serving(app, tokens="required") as client:
        operator, admin = client.using(await token_of(app, "operate")), client.using(await token_of(app, "admin"))
        job = await app.enqueue("http", {"url": "https://example.com/a", "headers": secret}, delay=9_000)
        shown = {"authorization": "[redacted]"}
        elsewhere = {"payload": {"url": "https://evil.example/", "headers": shown}}
        same = {"payload": {"url": "https://example.com/a", "headers": shown, "body": 1}}
        assert (await operator.send("PATCH", f"/v1/jobs/{job.id}", elsewhere)).code == "forbidden"
        assert (await operator.send("PATCH", f"/v1/jobs/{job.id}", same)).status == 200
        assert (await app.jobs.get(job.id)).payload["headers"] == secret
        assert (await admin.send("PATCH", f"/v1/jobs/{job.id}", elsewhere)).status == 200


async def test_secrets_cannot_be_guessed_by_a_filter(app: Mainspring) -> None:
    await secret_job(app)
    async with serving(app, tokens="required") as client:
        reader, admin = client.using(await token_of(app, "read")), client.using(await token_of(app, "admin"))
        for path in ("password", "account.number"):
            query = f"payload={path}%3D%22x%22"
            assert (await reader.get(f"/v1/jobs?{query}")).code == "forbidden"
            assert (await reader.get(f"/v1/dead?{query}")).code == "forbidden"
            assert (await reader.get(f"/v1/jobs?{query}", accept="text/csv")).code == "forbidden"
            assert (await admin.get(f"/v1/jobs?{query}")).status == 200
        assert (await reader.get("/v1/jobs?payload=user%3D1")).status == 200


# -- writing back what was shown ------------------------------------------------------------------------


async def test_an_edit_keeps_values_that_were_not_shown(app: Mainspring) -> None:
    handle = await app.enqueue("charge", {"account": {"number": CANARY, "name": "Ada"}}, delay=9_000)
    async with serving(app) as client:
        path = f"/v1/jobs/{handle.id}"
        payload = (await client.get(path)).data["payload"]
        assert payload == {"account": {"number": "[redacted]", "name": "Ada"}}
        payload["account"]["name"] = "Bob"
        edited = await client.send("PATCH", path, {"payload": payload})
        assert edited.data["payload"] == payload
        assert (await app.jobs.get(handle.id)).payload == {"account": {"number": CANARY, "name": "Bob"}}
        wrong = {"account": {"other": "[redacted]"}}
        refused = await client.send("PATCH", path, {"payload": wrong})
        assert refused.code == "invalid_payload"
        assert "/account/other" in refused.data["detail"]


async def test_a_schedule_keeps_values_that_were_not_shown(app: Mainspring) -> None:
    job = {"task": "fail", "payload": {"password": CANARY}}
    async with serving(app) as client:
        path = "/v1/schedules/nightly"
        assert (await client.send("PUT", path, {"rule": "daily 02:00", "job": job})).status == 201
        shown = (await client.get(path)).data["job"]["payload"]
        assert shown == {"password": "[redacted]"}
        again = {"rule": "daily 03:00", "job": {"task": "fail", "payload": shown}}
        assert (await client.send("PUT", path, again)).status == 200
        assert json.loads((await app.schedules.get("nightly")).prepared().payload) == {"password": CANARY}
        assert (await client.send("PUT", "/v1/schedules/other", again)).code == "invalid_payload"


async def test_a_person_keeps_values_that_were_not_shown(app: Mainspring) -> None:
    person = {"tz": "UTC", "attributes": {"password": CANARY, "level": 1}}
    async with serving(app) as client:
        path = "/v1/people/ada"
        assert (await client.send("PUT", path, person)).status == 201
        shown = (await client.get(path)).data["attributes"]
        assert shown == {"password": "[redacted]", "level": 1}
        for method in ("PUT", "PATCH"):
            answer = await client.send(method, path, {"tz": "UTC", "attributes": {**shown, "level": 2}})
            assert answer.data["attributes"] == {"password": "[redacted]", "level": 2}
            assert (await app.people.get("ada")).attributes == {"password": CANARY, "level": 2}
        wrong = {"tz": "UTC", "attributes": {"other": "[redacted]"}}
        assert (await client.send("PUT", path, wrong)).code == "invalid_payload"


async def test_a_new_job_cannot_get_the_mark_as_its_secret(app: Mainspring) -> None:
    async with serving(app) as client:
        body = {"task": "fail", "payload": {"password": "[redacted]"}}
        refused = await client.post("/v1/jobs", body)
        assert refused.code == "invalid_payload"
        assert "/password" in refused.data["detail"]
        assert (await client.post("/v1/jobs:bulk", {"jobs": [body]})).code == "invalid_payload"
        assert (await client.post("/v1/batches", {"jobs": [body]})).code == "invalid_payload"
        plain = {"task": "charge", "payload": {"account": {}}}
        assert (await client.post("/v1/batches", {"jobs": [plain], "on_finished": body})).code == "invalid_payload"
        named = {"task": "charge", "payload": {"account": {"note": "[redacted]"}}}  # not a secret place
        assert (await client.post("/v1/jobs", named)).status == 201
        assert await app.jobs.count(Filter(tasks=("fail",))) == 0


async def test_settings_of_the_service_add_rules(app: Mainspring) -> None:
    handle = await app.enqueue("charge", {"account": {"iban": "DE1", "number": "5", "ok": 1}})
    settings: dict[str, Any] = {"redact": ("iban",), "redact_tasks": {"charge": ("/account/ok",)}}
    async with serving(app, **settings) as client:
        shown = (await client.get(f"/v1/jobs/{handle.id}")).data["payload"]["account"]
    assert shown == {"iban": "[redacted]", "number": "[redacted]", "ok": "[redacted]"}


async def test_events_keep_to_the_rules_of_the_settings(app: Mainspring) -> None:
    async with serving_events(app, redact=("iban",)) as served:
        stream = await served.events()
        job = await app.enqueue("charge", {"account": {}}, delay=9_000)
        await app.jobs.cancel(job.id, reason="iban=DE1234567")
        while (event := await stream.next()).event != "cancelled":
            pass
    assert "DE1234567" not in str(event.data)
    assert "[redacted]" in str(event.data)


async def test_a_leased_job_has_its_real_payload_and_its_texts_are_cleaned(app: Mainspring) -> None:
    job = await secret_job(app)
    await app.jobs.reschedule(job.id)
    async with serving(app) as client:
        (lease,) = (await client.post("/v1/leases", {"worker": "w1"})).data["jobs"]
        assert lease["payload"] == {"password": CANARY}
        about = {"id": lease["id"], "token": lease["token"]}
        news: list[dict[str, Any]] = [
            {"progress": {"fraction": 0.5, "note": f"at {CANARY}"}},
            {"failed": {"message": f"no {CANARY}"}},
        ]
        for item in news:
            answer = await client.post("/v1/leases:report", {"worker": "w1", "items": [{**about, **item}]})
            assert answer.data["replies"][0]["reply"] == "ok"
    stored = await app.jobs.get(job.id)
    assert stored.failure is not None
    assert stored.failure.message == "no [redacted]"
    assert stored.progress is not None
    assert stored.progress.note == "at [redacted]"
