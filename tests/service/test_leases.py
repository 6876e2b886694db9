"""Pull workers over HTTP: claims, reports, orders, and the workers in JavaScript and shell that we ship."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mainspring import Mainspring, Retry, Status
from mainspring.service import ServiceSettings, orders
from mainspring.service.program import Service
from mainspring.stores.documents import Key
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import by_silence
from tests.service.conftest import define
from tests.service.serving import SOON, Client, serving

WORKERS = Path(__file__).parents[2] / "examples" / "workers"
PATIENCE = 30.0  # seconds; only a failing test waits this long


async def enqueued(client: Client, task: str = "welcome", **payload: Any) -> str:
    body = {"task": task, "payload": payload or {"guest": "Ada"}, "allow_unknown": True}
    job_id: str = (await client.post("/v1/jobs", body)).data["id"]
    return job_id


async def claimed(client: Client, worker: str = "far", **more: Any) -> dict[str, Any]:
    answer = await client.post("/v1/leases", {"worker": worker, **more})
    assert answer.status == 200, answer
    data: dict[str, Any] = answer.data
    return data


async def reported(client: Client, *items: dict[str, Any], worker: str = "far") -> dict[str, Any]:
    answer = await client.post("/v1/leases:report", {"worker": worker, "items": list(items)})
    assert answer.status == 200, answer
    data: dict[str, Any] = answer.data
    return data


def about(lease: dict[str, Any], **news: Any) -> dict[str, Any]:
    return {"id": lease["id"], "token": lease["token"], **news}


# -- claims and reports -----------------------------------------------------------------------------


async def test_a_job_is_claimed_reported_about_and_completed(app: Mainspring, client: Client) -> None:
    job_id = await enqueued(client)
    (lease,) = (await claimed(client, queues=["mail"], limit=5))["jobs"]
    assert (lease["id"], lease["task"], lease["payload"], lease["attempt"]) == (job_id, "welcome", {"guest": "Ada"}, 1)
    told = await reported(
        client,
        about(lease, progress={"fraction": 0.5, "note": "half"}),
        about(lease, step={"name": "render", "output": {"frames": 3}}),
        about(lease),
    )
    assert [reply["reply"] for reply in told["replies"]] == ["ok", "ok", "ok"]
    assert [step.output for step in await app.leases.steps(job_id)] == [{"frames": 3}]
    told = await reported(client, about(lease, done={"result": "hi"}))
    assert told["replies"][0]["status"] == "completed"
    assert (await app.jobs.get(job_id)).result == "hi"


@pytest.mark.parametrize(
    ("news", "status"),
    [
        ({"failed": {"type": "Timeout", "message": "too slow"}}, Status.RETRYING),
        ({"failed": {"message": "no", "retry": False}}, Status.DEAD_LETTER),
        ({"snooze": {"delay": 60}}, Status.PENDING),
        ({"snooze": {"until": "2036-01-01T00:00:00Z"}}, Status.PENDING),
        ({"release": {}}, Status.PENDING),
        ({"cancelled": {"reason": "pointless"}}, Status.CANCELLED),
    ],
)
async def test_every_end_of_a_job_can_be_reported(
    app: Mainspring, client: Client, news: dict[str, Any], status: Status
) -> None:
    job_id = await enqueued(client)
    (lease,) = (await claimed(client))["jobs"]
    told = await reported(client, about(lease, **news))
    assert told["replies"][0]["reply"] == "ok"
    assert (await app.jobs.get(job_id)).status is status


async def test_a_failure_may_have_a_code(app: Mainspring, client: Client) -> None:
    job_id = await enqueued(client)
    (lease,) = (await claimed(client))["jobs"]
    await reported(client, about(lease, failed={"message": "no", "code": "E-7", "retry": False}))
    shown = (await client.get(f"/v1/jobs/{job_id}")).data
    assert shown["failure"]["code"] == "E-7"
    assert shown["failure"]["type"] == "Error"


@pytest.mark.parametrize("code", ["", "x" * 101, "a\nb", 7])
async def test_a_code_over_http_is_checked(client: Client, code: Any) -> None:
    await enqueued(client)
    (lease,) = (await claimed(client))["jobs"]
    items = [about(lease, failed={"message": "no", "code": code})]
    assert (await client.post("/v1/leases:report", {"worker": "far", "items": items})).status == 422


async def test_a_stale_token_changes_nothing(app: Mainspring, client: Client) -> None:
    job_id = await enqueued(client)
    (lease,) = (await claimed(client))["jobs"]
    await reported(client, about(lease, release={}))
    (newer,) = (await claimed(client, "other"))["jobs"]
    told = await reported(client, about(lease, done={"result": "late"}))
    assert told["replies"][0]["reply"] == "stale"
    assert (await app.jobs.get(job_id)).status is Status.RUNNING
    assert newer["token"] > lease["token"]


async def test_a_claim_waits_for_a_job(client: Client) -> None:
    waiting = asyncio.create_task(claimed(client, wait=SOON))
    await asyncio.sleep(0)
    job_id = await enqueued(client)
    assert [lease["id"] for lease in (await waiting)["jobs"]] == [job_id]


async def test_a_claim_waits_no_longer_than_the_service_allows(app: Mainspring) -> None:
    async with serving(app, max_wait=0.01) as client:
        assert (await claimed(client, wait=300))["jobs"] == []
        assert (await client.post("/v1/leases", {"worker": "far", "wait": 301})).code == "invalid_request"


async def until_claims_wait(app: Mainspring, number: int) -> None:
    async with asyncio.timeout(SOON):
        while len(app.leases._ears._ears) != number:  # noqa: ASYNC110 - nothing else shows that a call waits
            await asyncio.sleep(0.01)


async def test_a_claim_that_waits_does_not_hold_up_the_end_of_the_service(app: Mainspring) -> None:
    service = Service(app, ServiceSettings(port=0, worker=False))
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        serving = group.create_task(service.serve())
        client = Client(session, service.url)
        waiting = [group.create_task(claimed(client, worker, wait=SOON)) for worker in ("far", "near")]
        await until_claims_wait(app, 2)
        service.stop()
        for answer in await asyncio.gather(*waiting):
            assert (answer["jobs"], answer["pulse"]["known"]) == ([], True)
        await serving


async def test_a_caller_that_hangs_up_keeps_no_job(app: Mainspring, client: Client) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await claimed(client, wait=SOON)
    await until_claims_wait(app, 0)
    job_id = await enqueued(client)
    assert (await app.jobs.get(job_id)).status is Status.PENDING
    assert [lease["id"] for lease in (await claimed(client, "other"))["jobs"]] == [job_id]


async def test_cancellations_and_halts_come_with_the_answer(app: Mainspring, client: Client) -> None:
    job_id = await enqueued(client)
    (lease,) = (await claimed(client))["jobs"]
    await client.post(f"/v1/jobs/{job_id}:cancel", {"reason": "guest left"})
    await client.post("/v1/halt", {"reason": "audit", "wait": 0})
    told = await reported(client, about(lease))
    assert told["pulse"]["cancelled"] == {job_id: "guest left"}
    assert told["pulse"]["halted"] is True
    assert (await claimed(client))["jobs"] == []
    assert (await reported(client, about(lease, cancelled={})))["replies"][0]["status"] == "cancelled"
    assert (await app.jobs.get(job_id)).status is Status.CANCELLED


@pytest.mark.parametrize("order", ["quiet", "terminate"])
async def test_an_operator_can_order_a_worker_to_take_no_more(client: Client, order: str) -> None:
    await enqueued(client)
    assert (await client.post(f"/v1/workers/far:{order}")).data == {"worker": "far", "order": order}
    answer = await claimed(client)
    assert (answer["jobs"], answer["pulse"]["order"]) == ([], order)
    await client.post("/v1/workers/far:continue")
    assert len((await claimed(client))["jobs"]) == 1


@pytest.mark.parametrize("order", ["quiet", "terminate"])
async def test_an_order_ends_a_claim_that_waits(
    app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    looked, claim = asyncio.Event(), app.store.claim

    async def look(*args: Any, **more: Any) -> Any:
        found = await claim(*args, **more)
        looked.set()
        return found

    monkeypatch.setattr(app.store, "claim", look)
    waiting = asyncio.create_task(claimed(client, wait=SOON))
    await looked.wait()
    await client.post(f"/v1/workers/far:{order}")
    job_id = await enqueued(client)
    answer = await waiting
    assert (answer["jobs"], answer["pulse"]["order"]) == ([], order)
    assert (await app.jobs.get(job_id)).status is Status.PENDING


async def test_an_order_holds_as_long_as_the_worker_is_heard_of() -> None:
    """A process that was killed did not leave. Another one of its name takes jobs."""
    clock = ManualClock()
    app = Mainspring(MemoryStore(clock=clock))
    define(app)
    async with app, serving(app) as client:
        await enqueued(client)
        await client.post("/v1/workers/far:quiet")
        for _ in range(5):
            clock.advance(2 * app.store.lease)
            assert (await claimed(client))["pulse"]["order"] == "quiet"
        clock.advance(3 * app.store.lease)
        answer = await claimed(client)
        assert (len(answer["jobs"]), answer["pulse"]["order"]) == (1, None)


async def test_an_order_ends_when_the_worker_leaves(client: Client) -> None:
    await enqueued(client)
    await client.post("/v1/workers/far:terminate")
    assert (await client.post("/v1/leases:leave", {"worker": "far"})).data == {"left": True}
    answer = await claimed(client)
    assert (len(answer["jobs"]), answer["pulse"]["order"]) == (1, None)


async def test_a_claim_reads_the_order_once(app: Mainspring, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, documents = list[str](), app.store.documents

    async def counted(keys: Sequence[Key]) -> Any:
        asked.extend(key.collection for key in keys)
        return await documents(keys)

    monkeypatch.setattr(app.store, "documents", counted)
    await claimed(client)
    assert asked.count(orders.COLLECTION) == 1


async def test_a_shell_can_ask_for_lines(client: Client) -> None:
    job_id = await enqueued(client, guest="a\tb\nc")
    answer = await client.post("/v1/leases", {"worker": "sh"}, accept="text/tab-separated-values")
    assert answer.text == f'{job_id}\t1\t1\twelcome\t{{"guest": "a\\tb\\nc"}}\n'


@pytest.mark.parametrize(
    "item",
    [
        {"done": {}, "failed": {}},
        {"snooze": {}},
        {"snooze": {"delay": 1, "until": "2036-01-01T00:00:00Z"}},
        {"progress": {"fraction": 2}},
        {"finished": {}},
    ],
)
async def test_a_wrong_report_is_refused_as_a_whole(client: Client, item: dict[str, Any]) -> None:
    await enqueued(client)
    (lease,) = (await claimed(client))["jobs"]
    answer = await client.post("/v1/leases:report", {"worker": "far", "items": [about(lease, **item)]})
    assert answer.code == "invalid_request"


@pytest.fixture
async def on_postgres() -> AsyncIterator[Client]:
    from tests.postgres import RecycledStore

    async with Mainspring(RecycledStore()) as app, serving(app) as client:
        yield client


@pytest.mark.slow
async def test_a_report_cannot_fail_on_what_postgres_cannot_keep(on_postgres: Client) -> None:
    """A worker repeats a report that failed with 503, and would do so for ever."""
    first, second = await enqueued(on_postgres), await enqueued(on_postgres)
    leases = (await claimed(on_postgres, limit=2))["jobs"]
    about_first, about_second = sorted(leases, key=lambda lease: [first, second].index(lease["id"]))
    told = await reported(
        on_postgres,
        about(about_first, failed={"type": "a\0b", "message": "c\0d", "traceback": "e\0f"}),
        about(about_second, snooze={"delay": 1, "reason": "g\0h"}),
        {"id": "i\0j", "token": 2**63 - 1},
    )
    assert [reply["reply"] for reply in told["replies"]] == ["ok", "ok", "stale"]
    failure = (await on_postgres.get(f"/v1/jobs/{first}")).data["failure"]
    assert (failure["type"], failure["message"]) == ("a�b", "c�d")


REFUSED_CLAIMS = [
    ({"queues": ["a\0b"]}, "a queue has a control character"),
    ({"tasks": ["a\0b"]}, "a task has a control character"),
    ({"held": {"x": 2**63}}, "/held/x"),
    ({"held": {"x": -1}}, "/held/x"),
    ({"version": "a\0b"}, "version"),
]


@pytest.mark.parametrize(("body", "said"), REFUSED_CLAIMS)
async def test_a_claim_with_what_no_store_can_keep_is_refused(client: Client, body: dict[str, Any], said: str) -> None:
    answer = await client.post("/v1/leases", {"worker": "far", **body})
    assert answer.code == "invalid_request"
    assert said in answer.data["detail"]


@pytest.mark.parametrize("token", [-1, 2**63, True, 1.0])
async def test_a_token_that_no_claim_has_is_refused(client: Client, token: Any) -> None:
    answer = await client.post("/v1/leases:report", {"worker": "far", "items": [{"id": "x", "token": token}]})
    assert answer.code == "invalid_request"
    assert "/items/0/token" in answer.data["detail"]


async def test_a_lease_has_the_headers_of_its_job_and_the_steps_of_earlier_attempts(
    app: Mainspring, client: Client
) -> None:
    job = await app.enqueue("welcome", {"guest": "Ada"}, headers={"tenant": "north"})
    (lease,) = (await claimed(client))["jobs"]
    assert (lease["id"], lease["headers"], lease["steps"]) == (job.id, {"tenant": "north"}, [])
    told = await reported(client, about(lease, step={"name": "render", "output": {"frames": 7}}))
    assert told["replies"][0]["reply"] == "ok"
    await reported(client, about(lease, release={}))
    (again,) = (await claimed(client))["jobs"]
    (step,) = again["steps"]
    assert step.pop("finished_at") is not None
    assert step == {"name": "render", "state": "done", "kind": "step", "output": {"frames": 7}, "saved": None}


# -- the workers that we ship -----------------------------------------------------------------------


@contextlib.asynccontextmanager
async def running(*command: str, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that works for a service; it is ended whatever happens."""
    env = {**os.environ, "MAINSPRING_URL": url}
    program = await asyncio.create_subprocess_exec(*command, env=env, stderr=asyncio.subprocess.PIPE)
    try:
        yield program
    finally:
        with contextlib.suppress(ProcessLookupError):
            program.kill()
        await program.wait()


async def until(condition: Callable[[], Any], program: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while not await condition():  # noqa: ASYNC110 - the event is another process's
                await asyncio.sleep(0.02)
    except TimeoutError:
        program.kill()
        assert program.stderr is not None
        pytest.fail(f"waited in vain; the worker said: {(await program.stderr.read()).decode()}")


async def ended(app: Mainspring, job_id: str, program: asyncio.subprocess.Process) -> Any:
    async def is_ended() -> bool:
        return (await app.jobs.get(job_id)).finished

    await until(is_ended, program)
    return await app.jobs.get(job_id)


needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")


@needs_node
@pytest.mark.slow
async def test_the_worker_in_javascript_runs_jobs_and_stops_in_order(app: Mainspring) -> None:
    async with serving(app) as client, running("node", str(WORKERS / "worker.js"), url=client.url) as worker:
        job = await ended(app, await enqueued(client, "resize", photo="a.jpg"), worker)
        assert (job.status, job.result) == (Status.COMPLETED, {"photo": "a.jpg", "sizes": 4})
        worker.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            assert await worker.wait() == 0


FAILING = r"""
import { handlers, main, Snooze } from "WORKER";
handlers.long = () => { throw new Error("\u{1F600}".repeat(30_000) + "x".repeat(30_000)); };
handlers.cut = () => { throw new Error("x" + "\u{1F600}".repeat(30_000)); };
handlers.text = () => { throw "just a text"; };
handlers.number = () => 1n;
handlers.later = () => { throw new Snooze(NaN); };
await main();
"""


@needs_node
@pytest.mark.slow
async def test_the_worker_in_javascript_reports_every_failure(app: Mainspring, tmp_path: Path) -> None:
    program = tmp_path / "failing.mjs"
    program.write_text(FAILING.replace("WORKER", (WORKERS / "worker.js").as_uri()))
    wanted = {
        "long": "\U0001f600",
        "cut": "\ufffd",  # for half of the last character
        "text": "just a text",
        "number": "Do not know how to serialize a BigInt",
        "later": "its error could not be reported",
    }
    async with serving(app) as client, running("node", str(program), url=client.url) as worker:
        once = [{"task": name, "allow_unknown": True, "max_attempts": 1} for name in wanted]
        jobs = [(await client.post("/v1/jobs", body)).data["id"] for body in once]
        found = {name: await ended(app, job_id, worker) for name, job_id in zip(wanted, jobs, strict=True)}
    messages = {name: job.failure.message for name, job in found.items()}
    assert {name: message[-len(wanted[name]) :] for name, message in messages.items()} == wanted


STEPS = """
import { handlers, main } from "WORKER";
handlers.render = async (payload, { job, step }) => {
  const frames = await step("draw", () => payload.frames * job.attempt);
  if (job.attempt === 1) throw new Error("out of memory");
  const size = await step("pack", () => frames * 10);
  return { frames, size, tenant: job.headers.tenant };
};
await main();
"""


@needs_node
@pytest.mark.slow
async def test_the_worker_in_javascript_skips_steps_that_an_earlier_attempt_did(
    app: Mainspring, tmp_path: Path
) -> None:
    program = tmp_path / "steps.mjs"
    program.write_text(STEPS.replace("WORKER", (WORKERS / "worker.js").as_uri()))
    async with serving(app) as client, running("node", str(program), url=client.url) as worker:
        headers, retry = {"tenant": "north"}, Retry.fixed(0)
        job = await app.enqueue("render", {"frames": 7}, headers=headers, retry=retry, allow_unknown=True)
        found = await ended(app, job.id, worker)
    assert found.result == {"frames": 7, "size": 70, "tenant": "north"}  # the frames of the first attempt


@needs_node
@pytest.mark.slow
async def test_a_job_of_a_dead_pull_worker_goes_to_another_one(tmp_path: Path) -> None:
    clock = ManualClock()
    app = Mainspring(SqliteStore(tmp_path / "jobs.db", clock=clock))
    async with app, serving(app) as client:
        job_id = await enqueued(client, "resize", photo="a.jpg")
        (lease,) = (await claimed(client, "dead"))["jobs"]  # and is never heard of again
        assert lease["id"] == job_id
        await by_silence(app.store, clock, "dead")
        async with running("node", str(WORKERS / "worker.js"), url=client.url) as worker:
            job = await ended(app, job_id, worker)
    assert (job.status, job.crashes) == (Status.COMPLETED, 1)


def handler(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.slow
async def test_the_worker_in_shell_runs_jobs_and_reports_how_they_end(app: Mainspring, tmp_path: Path) -> None:
    handler(tmp_path, "shout", "tr a-z A-Z")
    handler(tmp_path, "say", 'printf "a \\"quoted\\" line\\nand \\\\ one more"')
    handler(tmp_path, "refuse", "echo 'no such photo' >&2; exit 65")
    handler(tmp_path, "stumble", "echo oops >&2; exit 1")
    handler(tmp_path, "later", "exit 75")
    handler(tmp_path, "babble", "echo '{not json'")
    handler(tmp_path, "bytes", "printf 'caf\\351 \\303' >&2; exit 65")
    handler(tmp_path, "long", "printf x >&2; yes é | tr -d '\\n' | head -c 60000 >&2; exit 65")
    handler(tmp_path, "novel", "yes é | tr -d '\\n' | head -c 60000")
    handler(tmp_path, "noise", "printf 'caf\\351'")
    async with serving(app) as client:
        jobs = {
            name: await enqueued(client, name, text="hi")
            for name in ("shout", "say", "refuse", "stumble", "later", "babble", "bytes", "long", "novel", "noise")
        }
        async with running("sh", str(WORKERS / "worker.sh"), str(tmp_path), url=client.url) as worker:

            async def all_tried() -> bool:
                return all(job.token and job.status is not Status.RUNNING for job in (await app.jobs.find()).jobs)

            await until(all_tried, worker)
            worker.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE):
                assert await worker.wait() == 0
        found = {name: await app.jobs.get(job_id) for name, job_id in jobs.items()}
    assert (found["shout"].status, found["shout"].result) == (Status.COMPLETED, {"TEXT": "HI"})
    assert found["say"].result == 'a "quoted" line\nand \\ one more'
    assert found["refuse"].status is Status.DEAD_LETTER
    assert found["refuse"].failure is not None
    assert found["refuse"].failure.message == "no such photo"
    assert found["stumble"].status is Status.RETRYING
    assert (found["later"].status, found["later"].attempts) == (Status.PENDING, 0)
    assert found["babble"].failure is not None
    assert found["babble"].failure.type == "BadResult"
    assert found["bytes"].failure is not None
    assert found["bytes"].failure.message == "caf "
    assert found["long"].failure is not None
    assert found["long"].failure.message.startswith("xéé")
    assert found["long"].failure.message.endswith("é")
    assert found["novel"].result == "é" * 30_000
    assert found["noise"].failure is not None
    assert found["noise"].failure.type == "BadResult"


class LosesFirstJob:
    """A proxy that breaks the connection instead of passing on the first answer to a claim that has a job."""

    def __init__(self, port: int, job_id: str) -> None:
        self.lost = False
        self._port, self._job = port, job_id.encode()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, to_service = await asyncio.open_connection("127.0.0.1", self._port)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(self._pass_on(reader, to_service), self._pass_on(upstream, writer, answers=True))
        for each in (writer, to_service):
            each.close()

    async def _pass_on(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, answers: bool = False) -> None:
        while data := await source.read(65536):
            if answers and not self.lost and self._job in data:
                self.lost = True
                raise ConnectionAbortedError
            to.write(data)
            await to.drain()
        to.close()


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["worker.sh", pytest.param("worker.js", marks=needs_node)])
async def test_a_worker_gets_the_job_of_an_answer_that_was_lost(app: Mainspring, tmp_path: Path, worker: str) -> None:
    handler(tmp_path, "resize", "cat")
    command = ("node", str(WORKERS / worker)) if worker.endswith("js") else ("sh", str(WORKERS / worker), str(tmp_path))
    async with serving(app) as client:
        job_id = await enqueued(client, "resize", photo="a.jpg")
        proxy = LosesFirstJob(int(client.url.rpartition(":")[2]), job_id)
        async with proxy.listening() as url, running(*command, url=url) as program:
            job = await ended(app, job_id, program)
    assert proxy.lost
    assert (job.status, job.attempts, job.crashes) == (Status.COMPLETED, 1, 0)


@pytest.mark.slow
async def test_the_worker_in_shell_ends_if_its_claims_are_refused(tmp_path: Path) -> None:
    handler(tmp_path, "shout", "tr a-z A-Z")
    app = Mainspring("memory://")
    async with (
        app,
        serving(app, tokens="required") as client,
        running("sh", str(WORKERS / "worker.sh"), str(tmp_path), url=client.url) as worker,
        asyncio.timeout(PATIENCE),
    ):
        assert await worker.wait() == 1


LOGGED = """\
#!/bin/sh
case "$*" in */v1/leases) echo claim >>LOG ;; 1) echo pause >>LOG ;; esac
exec PROGRAM "$@"
"""


def logged(folder: Path, log: Path, name: str) -> None:
    """Put a program before the one of this name: it logs claims and pauses."""
    real = shutil.which(name)
    assert real is not None
    path = folder / name
    path.write_text(LOGGED.replace("LOG", str(log)).replace("PROGRAM", real))
    path.chmod(0o755)


QUIET = """
import { appendFileSync } from "node:fs";
import { main } from "WORKER";
const log = (what) => appendFileSync("LOG", `${what}\\n`);
const [call, wait] = [globalThis.fetch, globalThis.setTimeout];
globalThis.fetch = (url, options) => { if (url.endsWith("/v1/leases")) log("claim"); return call(url, options); };
globalThis.setTimeout = (done, time) => { if (time === 1000) log("pause"); return wait(done, time); };
await main();
"""


async def claims_between_orders(client: Client, app: Mainspring, log: Path, worker: Any) -> None:
    """Order the only worker to be quiet, and see that it pauses after each claim; then let it go on, and end."""

    async def has_joined() -> bool:
        return bool((await client.get("/v1/workers")).data["workers"])

    await until(has_joined, worker)
    (info,) = (await client.get("/v1/workers")).data["workers"]
    await client.post(f"/v1/workers/{info['id']}:quiet")
    before = len(log.read_text().splitlines())

    async def has_claimed_often() -> bool:
        return log.read_text().splitlines()[before:].count("claim") >= 3

    await until(has_claimed_often, worker)
    after = log.read_text().splitlines()[before:]
    assert not any(pair == ("claim", "claim") for pair in pairwise(after)), after
    job_id = await enqueued(client, "resize", photo="a.jpg")
    await client.post(f"/v1/workers/{info['id']}:continue")
    assert (await ended(app, job_id, worker)).status is Status.COMPLETED


@pytest.mark.slow
async def test_the_worker_in_shell_pauses_while_it_is_ordered_to_be_quiet(app: Mainspring, tmp_path: Path) -> None:
    handlers, programs, log = tmp_path / "handlers", tmp_path / "programs", tmp_path / "log"
    for folder in (handlers, programs):
        folder.mkdir()
    handler(handlers, "resize", "cat")
    for name in ("curl", "sleep"):
        logged(programs, log, name)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    command = ("env", f"PATH={path}", "sh", str(WORKERS / "worker.sh"), str(handlers))
    async with serving(app) as client, running(*command, url=client.url) as worker:
        await claims_between_orders(client, app, log, worker)


@needs_node
@pytest.mark.slow
async def test_the_worker_in_javascript_pauses_while_it_is_ordered_to_be_quiet(app: Mainspring, tmp_path: Path) -> None:
    program, log = tmp_path / "quiet.mjs", tmp_path / "log"
    program.write_text(QUIET.replace("WORKER", (WORKERS / "worker.js").as_uri()).replace("LOG", str(log)))
    async with serving(app) as client, running("node", str(program), url=client.url) as worker:
        await claims_between_orders(client, app, log, worker)
