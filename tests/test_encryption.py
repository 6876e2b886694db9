"""Payloads and results are encrypted at rest, on every store, and nobody notices who has the key."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import pickle
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mainspring import Context, Mainspring, Retry
from mainspring.cli.doctor import check_readable
from mainspring.encryption import Keys, Unreadable, is_sealed, key_in
from mainspring.errors import ConfigurationError, JobFailed
from mainspring.health import State
from mainspring.job import Job, Status
from mainspring.key_rotation import Rotation, rotate
from mainspring.service.program import Service
from mainspring.service.settings import ServiceSettings
from mainspring.stored_options import with_options
from mainspring.stores.documents import Bundle, Key, Write
from mainspring.stores.encrypted import bare, encrypted, key_findings, keys_of, needed_keys
from mainspring.stores.engine.on_end import following
from mainspring.stores.protocol import Completable, Filter, Immediate, Rewrite, Severity, Store
from mainspring.stores.records import Kind
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from mainspring.testing.clock import ManualClock
from tests.shared import Make

pytest.importorskip("cryptography")

CANARY = "canary-7Qz!x"
OLD, NEW = (base64.b64encode(bytes([first] * 32)).decode() for first in b"on")  # the same in each process


# -- keys -------------------------------------------------------------------------------------------


def test_a_sealed_value_opens_only_for_what_it_is_about() -> None:
    keys = Keys({"a": OLD})
    sealed = keys.seal_json('{"x": "ü"}', "job-1", "payload")
    assert is_sealed(sealed)
    assert key_in(sealed) == "a"
    assert json.loads(sealed)
    assert keys.open_json(sealed, "job-1", "payload") == '{"x": "ü"}'
    for about in (("job-2", "payload"), ("job-1", "result"), ("job-1pay", "load")):
        with pytest.raises(Unreadable):
            keys.open_json(sealed, *about)


def test_a_value_that_is_cut_does_not_open() -> None:
    """One such row must not stop the claims and lists of all others."""
    with pytest.raises(Unreadable):
        Keys({"a": OLD}).open_json('{"$encrypted":"v1.a.AAAAA"}', "job-1", "payload")


def test_a_changed_value_does_not_open() -> None:
    keys = Keys({"a": OLD})
    sealed = keys.seal("x", "1")
    for place in (-1, -9, 8):
        wrong = sealed[:place] + ("A" if sealed[place] != "A" else "B") + (sealed[place + 1 :] if place != -1 else "")
        with pytest.raises(Unreadable):
            keys.open(wrong, "1")


def test_two_seals_of_one_text_differ() -> None:
    keys = Keys({"a": OLD})
    assert keys.seal("x") != keys.seal("x")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "at least one key"),
        ({"a": "short"}, "not base64|bytes"),
        ({"a": "AAAA"}, "3 bytes, not 32"),
        ({"a b": OLD}, "cannot be the id"),
    ],
)
def test_a_wrong_key_is_refused_and_never_shown(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        Keys(given)
    assert OLD not in str(caught.value)


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Keys.from_environment() is None
    monkeypatch.setenv("MAINSPRING_ENCRYPTION_KEYS", f"new:{NEW}, old:{OLD}")
    keys = keys_of(Mainspring("memory://").store)
    assert keys is not None
    assert (keys.ids, keys.active) == (("new", "old"), "new")
    monkeypatch.delenv("MAINSPRING_ENCRYPTION_KEYS")
    file = tmp_path / "keys"
    file.write_text(f"old:{OLD}\nnew:{NEW}\n")
    monkeypatch.setenv("MAINSPRING_ENCRYPTION_KEYS_FILE", str(file))
    keys = Keys.from_environment()
    assert keys is not None
    assert keys.active == "old"
    monkeypatch.setenv("MAINSPRING_ENCRYPTION_KEYS_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="cannot read the keys"):
        Keys.from_environment()


@pytest.mark.parametrize("text", [f"old{OLD}", f"a:{OLD},a:{NEW}"])
def test_a_wrong_list_of_keys_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Keys.parse(text, "THERE")
    assert OLD not in str(caught.value).replace(f"old{OLD}", OLD if "id" in str(caught.value) else "")


def test_keys_do_not_leave_the_process_by_accident() -> None:
    keys = Keys({"a": OLD})
    assert OLD not in repr(keys)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(keys)


# -- applications -------------------------------------------------------------------------------------


def define(app: Mainspring) -> None:
    @app.task(retry=Retry(max_attempts=1))
    async def fail(text: str) -> None:
        try:
            raise KeyError(text)
        except KeyError as error:
            raise ValueError(f"cannot use {text!r}") from error

    @app.task
    async def work(ctx: Context, text: str) -> dict[str, Any]:
        ctx.progress(0.5, f"at {text}")
        assert ctx.headers == {"who": CANARY}
        found = await ctx.step("look", lambda: {"found": text})
        signal = await ctx.wait_for("go")
        assert signal is not None
        ctx.follow_up(later.prepare(text=text))
        return {"found": found, "signal": signal.payload}

    @app.task
    async def later(text: str) -> str:
        return text

    @app.task(queue="calls")
    async def tell(url: str, body: Any = None) -> Any:
        """Like a callback: follows the end of another job, and gets what is told of it."""
        return {"url": url, **body}


def postgres_store(_: Path) -> Make:
    from mainspring.stores.postgres import PostgresStore
    from tests.postgres import dsn, fresh_schema

    schema = fresh_schema()
    return lambda: PostgresStore(dsn(), schema_name=schema)


def dynamodb_store(_: Path) -> Make:
    from mainspring.stores.dynamodb import DynamoStore
    from tests.dynamodb import client, fresh_name

    name = fresh_name()
    return lambda: DynamoStore(name, client=client(), shards=2, prune=True, migrate=True)


def memory_store(_: Path) -> Make:
    store = MemoryStore()
    return lambda: store


MAKERS: dict[str, Callable[[Path], Make]] = {
    "memory": memory_store,
    "sqlite": lambda folder: lambda: SqliteStore(folder / "jobs.db"),
    "postgres": postgres_store,
    "dynamodb": dynamodb_store,
}


@pytest.fixture(params=["memory", *(pytest.param(name, marks=pytest.mark.slow) for name in [*MAKERS][1:])])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    return MAKERS[request.param](tmp_path)


def app_over(make: Make, *keys: tuple[str, str]) -> Mainspring:
    app = Mainspring(make(), encryption=Keys(dict(keys)) if keys else None)
    define(app)
    return app


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def app(make: Make) -> AsyncIterator[Mainspring]:
    app = app_over(make, ("old", OLD))
    async with app:
        yield app


async def fill(app: Mainspring) -> dict[str, str]:
    """Bring the secret into everything; return the ids of the jobs."""
    names = {
        "fail": await app.tasks["fail"].enqueue(text=CANARY),
        "work": await app.tasks["work"].using(headers={"who": CANARY}).enqueue(text=CANARY),
        "waiting": await app.tasks["later"].using(delay=9_000).enqueue(text=CANARY),
        "long": await app.tasks["later"].using(delay=9_000).enqueue(text=CANARY + "x" * 40_000),
    }
    await app.schedules.put("nightly", "0 2 * * *", app.tasks["later"].prepare(text=CANARY))
    await app.worker().drain()
    await app.signal("go", {"secret": CANARY})
    await app.worker().drain()
    await app.jobs.edit(names["waiting"].id, payload={"text": f"{CANARY}2"})
    return {name: handle.id for name, handle in names.items()}


async def followed(app: Mainspring, task: str, **options: Any) -> str:
    """Enqueue a job with another one that follows its end; return its id."""
    call = following(app.tasks["tell"].prepare(url=f"http://{CANARY}"))
    job = app.tasks[task].using(**options).prepare(text=CANARY)
    await app.runtime.pipeline.insert([with_options(job, on_end={"completed": call, "failed": call})])
    return job.id


async def calls(app: Mainspring) -> dict[str, Job]:
    """Return the jobs that followed, by the id of the job whose end they tell."""
    found = (await app.jobs.find(Filter(tasks=("tell",)))).jobs
    return {job.payload["body"]["job"]["id"]: job for job in found}


async def raw_text(store: Store, folder: Path) -> str:
    """Return everything that is stored, as it is stored."""
    parts: list[Any] = []
    for kind in Kind:
        cursor: str | None = None
        while True:
            page = await store.dump(kind, after=cursor, limit=100)
            parts.append(page.records)
            if (cursor := page.cursor) is None:
                break
    if hasattr(store, "schema"):
        parts.append(await dumped_tables(store))
    if hasattr(store, "table"):
        parts.append(await scanned_items(store))
    files = b"".join(file.read_bytes() for file in folder.glob("jobs.db*") if file.is_file())
    return repr(parts) + files.decode("latin-1")


async def dumped_tables(store: Any) -> list[Any]:
    import psycopg

    async with await psycopg.AsyncConnection.connect(store._dsn if hasattr(store, "_dsn") else store._pool.dsn) as db:
        names = await db.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_type = 'BASE TABLE'",
            [store.schema],
        )
        return [
            await (await db.execute(f'SELECT t::text FROM "{store.schema}"."{name}" t'.encode())).fetchall()
            for (name,) in await names.fetchall()
        ]


async def scanned_items(store: Any) -> list[Any]:
    from mainspring.stores.dynamodb.values import unpack

    answer = await store.client.call("Scan", {"TableName": store.table.name})
    rows = [unpack(item) for item in answer["Items"]]
    import zlib

    return [
        {name: zlib.decompress(value) if name.endswith("_zlib") else value for name, value in row.items()}
        for row in rows
    ]


async def test_handlers_and_readers_see_everything_and_the_store_nothing(
    app: Mainspring, make: Make, tmp_path: Path
) -> None:
    ids = await fill(app)
    work, fail = await app.jobs.get(ids["work"]), await app.jobs.get(ids["fail"])
    assert (work.status, fail.status) == (Status.COMPLETED, Status.DEAD_LETTER)
    assert work.payload == {"text": CANARY}
    assert work.headers == {"who": CANARY}
    assert work.result == {"found": {"found": CANARY}, "signal": {"secret": CANARY}}
    assert (await app.jobs.steps(work.id))[0].output == {"found": CANARY}
    follow_up = (await app.jobs.find(Filter(tasks=("later",), statuses=(Status.COMPLETED,)))).jobs[0]
    assert (follow_up.payload, follow_up.result) == ({"text": CANARY}, CANARY)
    assert (await app.jobs.get(ids["waiting"])).payload == {"text": f"{CANARY}2"}
    assert len((await app.jobs.get(ids["long"])).payload["text"]) > 40_000
    assert json.loads((await app.schedules.get("nightly")).prepared().payload) == {"text": CANARY}
    assert CANARY in str((await app.audit(action="edit"))[0].detail)
    assert fail.failure is not None
    assert fail.failure.message == "cannot use '[redacted]'"
    with pytest.raises(JobFailed):
        await app.tasks["fail"].handle(fail.id).result(timeout=30)
    stored = await raw_text(bare(app.store), tmp_path)
    assert "work" in stored
    assert [stored[max(0, at.start() - 300) : at.end()] for at in re.finditer(CANARY, stored)] == []
    assert OLD not in stored


async def test_a_replay_is_encrypted_anew(app: Mainspring, make: Make, tmp_path: Path) -> None:
    work = (await fill(app))["work"]
    new_id = await app.jobs.replay(work, from_step="wait for go")
    assert (await app.jobs.get(new_id)).headers == {"who": CANARY}
    assert [step.output for step in await app.jobs.steps(new_id)] == [{"found": CANARY}]
    await app.worker().drain()
    new, old = await app.jobs.get(new_id), await app.jobs.get(work)
    assert (new.status, new.result) == (Status.COMPLETED, old.result)
    assert CANARY not in await raw_text(bare(app.store), tmp_path)


async def test_a_process_without_the_key_replays_nothing(make: Make) -> None:
    app = app_over(make, ("old", OLD))
    async with app:
        work = (await fill(app))["work"]
    keyless = app_over(make)
    async with keyless:
        with pytest.raises(ConfigurationError, match="replay it in a process with that key"):
            await keyless.jobs.replay(work, from_step="look")
        assert await keyless.audit(action="replay") == []


# -- jobs that follow an end --------------------------------------------------------------------------


async def test_a_job_that_follows_an_end_gets_the_result_and_the_store_reads_nothing(
    app: Mainspring, tmp_path: Path
) -> None:
    done, failed = await followed(app, "later"), await followed(app, "fail")
    cancelled = await followed(app, "later", delay=9_000)
    await app.jobs.cancel(cancelled, reason="not needed")
    await app.worker().drain()
    found = await calls(app)
    assert {job.status for job in found.values()} == {Status.COMPLETED}
    assert all(job.payload["url"] == f"http://{CANARY}" for job in found.values())
    assert (found[done].payload["body"]["result"], found[done].result["result"]) == (CANARY, CANARY)
    assert found[done].result["url"] == f"http://{CANARY}"
    assert found[failed].result["error"]["message"] == "cannot use '[redacted]'"
    assert found[cancelled].result["error"]["message"] == "not needed"
    assert (await app.jobs.get(done)).options["on_end"]["completed"]["payload"] == f'{{"url":"http://{CANARY}"}}'
    stored = await raw_text(bare(app.store), tmp_path)
    assert [stored[max(0, at.start() - 300) : at.end()] for at in re.finditer(CANARY, stored)] == []


async def test_rotation_moves_jobs_that_follow_an_end_too(make: Make, tmp_path: Path) -> None:
    async with app_over(make, ("old", OLD)) as app:
        waiting, done = await followed(app, "later", delay=9_000), await followed(app, "later")
        await app.worker(queues=["default"]).drain()
    if "memory" in app.store.url:
        pytest.skip("a store in memory ends with its application")
    async with app_over(make, ("new", NEW), ("old", OLD)) as app:
        assert (await rotate(app.store)).unreadable == set()
        assert (await rotate(app.store)).resealed == 0
    async with app_over(make, ("new", NEW)) as app:
        await app.jobs.reschedule(waiting)
        await app.worker().drain()
        found = await calls(app)
        assert [found[job_id].result["result"] for job_id in (waiting, done)] == [CANARY, CANARY]
        assert CANARY not in await raw_text(bare(app.store), tmp_path)


async def test_a_call_from_before_encryption_tells_no_result_that_it_cannot_read() -> None:
    store = MemoryStore()
    async with app_over(lambda: store) as app, app_over(lambda: store, ("old", OLD)) as later:
        job_id = await followed(app, "later")
        await later.worker().drain()
        told = (await calls(later))[job_id].result
    assert (told["url"], told["result"], told["result_omitted"]) == (f"http://{CANARY}", None, True)


async def test_a_result_cannot_be_sent_elsewhere_by_changing_what_is_stored() -> None:
    store = MemoryStore()
    async with app_over(lambda: store, ("old", OLD)) as app:
        one, other = await followed(app, "later"), await followed(app, "later")
        await app.worker(queues=["default"]).drain()
        found = {
            job.payload["body"]["job"]["id"]: job
            for job in await store.get([c.id for c in (await calls(app)).values()])
        }
        own, foreign = found[one].payload, found[other].payload
        forged = [
            {**own, "body": {**own["body"], "result": foreign["body"]["result"]}},
            {**own, "body": foreign["body"]},
            {"url": "http://elsewhere", "body": own["body"]},
        ]
        jobs = [replace(app.tasks["tell"].prepare(url=""), payload=json.dumps(each)) for each in forged]
        await store.insert(jobs)
        seen = [(await app.jobs.get(job.id)).payload for job in jobs]
        await app.worker().drain()
    assert CANARY not in str(seen)
    assert seen[2]["body"]["result"] is None


async def test_headers_of_a_job_that_follows_are_refused_rather_than_stored() -> None:
    async with app_over(MemoryStore, ("old", OLD)) as app:
        call = following(app.tasks["tell"].using(headers={"who": CANARY}).prepare(url=""))
        job = with_options(app.tasks["later"].prepare(text=""), on_end={"completed": call})
        with pytest.raises(ConfigurationError, match="on_end has headers"):
            await app.runtime.pipeline.insert([job])


async def test_rotation_moves_everything_to_the_new_key(make: Make, tmp_path: Path) -> None:
    async with app_over(make, ("old", OLD)) as app:
        ids = await fill(app)
    if "memory" in app.store.url:
        pytest.skip("a store in memory ends with its application")
    async with app_over(make, ("new", NEW), ("old", OLD)) as app:
        seen: list[int] = []
        done = await rotate(app.store, lambda rotation: seen.append(rotation.resealed))
        assert (done.unreadable, done.removed) == (set(), ["old"])
        assert done.resealed >= 8
        assert seen == sorted(seen)
        assert (await rotate(app.store)).resealed == 0
    async with app_over(make, ("new", NEW)) as app:
        assert (await app.jobs.get(ids["work"])).result["found"] == {"found": CANARY}
        assert (await app.jobs.get(ids["work"])).headers == {"who": CANARY}
        assert (await app.jobs.steps(ids["work"]))[0].output == {"found": CANARY}
        await app.jobs.reschedule(ids["waiting"])
        await app.worker().drain()
        assert (await app.jobs.get(ids["waiting"])).result == f"{CANARY}2"
        assert json.loads((await app.schedules.get("nightly")).prepared().payload) == {"text": CANARY}
        assert CANARY not in await raw_text(bare(app.store), tmp_path)


async def test_rotation_encrypts_what_was_stored_before_encryption(make: Make) -> None:
    store = make()
    app = Mainspring(store)
    define(app)
    async with app:
        job_id = (await app.tasks["later"].using(delay=9_000).enqueue(text=CANARY)).id
        sealed = encrypted(store, Keys({"new": NEW}))
        assert (await sealed.get([job_id]))[0].payload == {"text": CANARY}
        done = await rotate(sealed)
        assert done.resealed == 1
        assert CANARY not in str(await store.get([job_id]))
        assert (await sealed.get([job_id]))[0].payload == {"text": CANARY}


async def test_a_rotation_that_is_killed_loses_nothing(app: Mainspring) -> None:
    ids = [(await app.tasks["later"].using(delay=9_000).enqueue(text=f"{CANARY}{n}")).id for n in range(5)]
    both = encrypted(bare(app.store), Keys({"new": NEW, "old": OLD}))
    written = bare(both).rewrite
    with pytest.MonkeyPatch.context() as patch:

        async def dies(texts: list[Rewrite]) -> int:
            await written(texts[:2])
            raise asyncio.CancelledError

        patch.setattr(bare(both), "rewrite", dies)
        with pytest.raises(asyncio.CancelledError):
            await rotate(both)
    keys = [key_in(record["payload"]) for record in (await bare(both).dump(Kind.LIVE)).records]
    assert sorted(map(str, keys)) == ["new", "new", "old", "old", "old"]
    assert {"old", "new"} <= (await needed_keys(bare(both))).keys()
    assert [job.payload["text"] for job in await both.get(ids)]  # both kinds are readable
    assert (await rotate(both)).resealed == 3
    assert {job.payload["text"] for job in await both.get(ids)} == {f"{CANARY}{n}" for n in range(5)}


async def test_a_value_that_changes_during_rotation_is_kept(app: Mainspring) -> None:
    """The old text is compared: a rotation that has read a payload before an edit must not bring it back."""
    job_id = (await app.tasks["later"].using(delay=9_000).enqueue(text="first")).id
    both = encrypted(bare(app.store), Keys({"new": NEW, "old": OLD}))
    written = bare(both).rewrite
    with pytest.MonkeyPatch.context() as patch:

        async def late(texts: list[Rewrite]) -> int:
            patch.undo()
            await app.jobs.edit(job_id, payload={"text": "second"})
            return await written(texts)

        patch.setattr(bare(both), "rewrite", late)
        await rotate(both)
    assert (await both.get([job_id]))[0].payload == {"text": "second"}
    assert key_in((await bare(both).dump(Kind.LIVE)).records[0]["payload"]) == "new"


async def test_values_of_a_missing_key_are_reported(app: Mainspring) -> None:
    await app.tasks["later"].using(delay=9_000).enqueue(text=CANARY)
    await bare(app.store).write([Bundle((Write(Key("encryption", "", "old"), None),))])  # the check would refuse
    done = await rotate(encrypted(bare(app.store), Keys({"new": NEW})))
    assert (done.unreadable, done.resealed, done.removed) == ({"old"}, 0, [])


async def test_rotation_without_keys_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="no keys to rotate"):
        await rotate(MemoryStore())
    assert Rotation().resealed == 0


# -- without the key ----------------------------------------------------------------------------------


async def test_a_worker_without_the_key_does_not_start(app: Mainspring) -> None:
    await app.tasks["later"].enqueue(text=CANARY)
    for keys, why in ((None, "has no keys"), (Keys({"new": NEW}), "has only new")):
        other = Mainspring(bare(app.store), encryption=keys)
        define(other)
        with pytest.raises(ConfigurationError, match=f"key old, and this process {why}"):
            await other.worker().drain()


async def test_a_service_without_the_key_does_not_start(app: Mainspring) -> None:
    """Even without a worker: it would show what is encrypted, and store new jobs in the clear."""
    await app.tasks["later"].enqueue(text=CANARY)
    service = Service(Mainspring(bare(app.store)), ServiceSettings(port=0, worker=False))
    with closing(service._socket), pytest.raises(ConfigurationError, match="key old, and this process has no keys"):
        await service.serve()


async def test_another_key_with_the_same_id_is_refused(app: Mainspring) -> None:
    other = Mainspring(bare(app.store), encryption=Keys({"old": NEW}))
    with pytest.raises(ConfigurationError, match="is not the one with which this store was encrypted"):
        await other.store.open()


async def test_a_running_worker_without_the_key_gives_jobs_back(make: Make) -> None:
    """It was there before encryption: it must neither run such a job nor make it a dead letter."""
    plain = Mainspring(make())
    define(plain)
    async with plain:
        sealing = Mainspring(bare(plain.store), encryption=Keys({"old": OLD}))
        define(sealing)
        out = io.StringIO()
        handler = logging.StreamHandler(out)
        logging.getLogger("mainspring.worker").addHandler(handler)
        async with plain.worker().draining() as run_due:
            await sealing.store.open()
            job_id = (await sealing.tasks["later"].enqueue(text=CANARY)).id
            await run_due()
            await run_due()
        logging.getLogger("mainspring.worker").removeHandler(handler)
        job = await sealing.jobs.get(job_id)
        assert (job.status, job.attempts, job.crashes) == (Status.PENDING, 0, 0)
        assert job.reason == "its worker cannot decrypt it"
        assert "job_unreadable" in out.getvalue()
        await sealing.jobs.reschedule(job_id)
        await sealing.worker().drain()
        assert (await sealing.jobs.get(job_id)).result == CANARY


async def test_health_names_the_key_that_workers_lack_until_they_have_it(make: Make) -> None:
    """The worker was there before the key. The process that is asked about health is another one."""
    plain, other = app_over(make), app_over(make)
    async with plain, other:
        sealing = Mainspring(bare(make()), encryption=Keys({"new": NEW}))
        define(sealing)
        async with plain.worker(id="vm-1").draining() as run_due:
            job_id = (await sealing.tasks["later"].enqueue(text=CANARY)).id
            await run_due()
            health = await other.health()
            assert health.state is State.DEGRADED
            (problem,) = health.problems
            assert problem == (
                "jobs of queue default cannot be decrypted without key new, which these workers lack: vm-1. Add the key"
                " to their MAINSPRING_ENCRYPTION_KEYS and restart them"
            )
            (report,) = health.unreadable
            assert (report.queue, report.key, report.worker, report.has_key) == ("default", "new", "vm-1", False)
            assert report.job_id == job_id
            assert [finding.check for finding in check_readable(health)] == ["unreadable"]
            await other.pause("default")
            assert (await other.health()).unreadable == ()
            await other.resume("default")
        async with sealing.worker(id="vm-2").draining():
            health = await other.health()
            assert (health.state, health.unreadable, health.workers) == (State.OK, (), 1)
        await sealing.close()


async def test_health_forgets_jobs_that_others_have_run(clock: ManualClock) -> None:
    """A worker without the key stays, but does not meet such jobs any more."""
    plain = Mainspring(MemoryStore(clock=clock))
    define(plain)
    sealing = Mainspring(plain.store, encryption=Keys({"new": NEW}))
    define(sealing)
    async with plain, plain.worker(id="vm-1").draining() as run_due:
        await sealing.tasks["later"].enqueue(text=CANARY)
        for _ in range(4):  # the job comes back every ten seconds, and is reported again
            await run_due()
            clock.advance(20)
            assert (await plain.health()).state is State.DEGRADED
        await sealing.worker(id="vm-2").drain()
        clock.advance(60)
        assert (await plain.health()).state is State.OK


async def test_health_names_what_lessees_cannot_get(clock: ManualClock) -> None:
    """The service opens jobs for them, and had no key when it started."""
    plain = Mainspring(MemoryStore(clock=clock))
    sealing = Mainspring(plain.store, encryption=Keys({"new": NEW}))
    define(sealing)
    async with plain:
        lessee = await plain.leases.join("node", id="node-1")
        await sealing.tasks["later"].enqueue(text=CANARY)
        assert (await plain.leases.claim(lessee.id)).leases == ()
        health = await plain.health()
        assert [(jobs.worker, jobs.key) for jobs in health.unreadable] == [("node-1", "new")]
        await lessee.leave()
        assert (await plain.health()).unreadable == ()


async def test_health_says_that_a_stored_value_was_changed(app: Mainspring) -> None:
    """The worker has the key, so a key would not help."""
    one = (await app.tasks["later"].enqueue(text="one")).id
    two = (await app.tasks["later"].using(delay=9_000).enqueue(text="two")).id
    texts = {record["id"]: record["payload"] for record in (await bare(app.store).dump(Kind.LIVE)).records}
    await bare(app.store).rewrite([Rewrite(one, "payload", texts[one], texts[two])])
    async with app.worker(id="vm-1").draining() as run_due:
        await run_due()
        (problem,) = (await app.health()).problems
        assert problem == (
            f"job {one} of queue default cannot be decrypted with key old, which worker vm-1 has: what is stored was"
            " changed. Restore it from a backup, or cancel the job"
        )


async def test_a_value_that_was_moved_to_another_job_is_not_run(app: Mainspring) -> None:
    one = (await app.tasks["later"].using(delay=9_000).enqueue(text="one")).id
    two = (await app.tasks["later"].using(delay=9_000).enqueue(text="two")).id
    texts = {record["id"]: record["payload"] for record in (await bare(app.store).dump(Kind.LIVE)).records}
    await bare(app.store).rewrite([Rewrite(one, "payload", texts[one], texts[two])])
    await app.jobs.reschedule(one)
    await app.worker().drain()
    job = await app.jobs.get(one)
    assert (job.status, job.result) == (Status.PENDING, None)
    assert "$encrypted" in job.payload


# -- what does not work with encryption -------------------------------------------------------------------


async def test_searches_by_payload_are_refused(app: Mainspring) -> None:
    where = Filter(payload={"text": CANARY})
    for search in (
        app.jobs.find(where),
        app.jobs.count(where),
        app.jobs.count(where, cap=5),
        app.jobs.cancel_where(where),
    ):
        with pytest.raises(ConfigurationError, match="payloads are encrypted"):
            await search
    with pytest.raises(ConfigurationError, match="payloads are encrypted"):
        await app.store.complete(Completable.PAYLOAD_KEY, "")
    with pytest.raises(ConfigurationError, match="payloads are encrypted"):
        await app.bulk.start("cancel", where)


async def test_the_doctor_says_which_keys_are_in_use(app: Mainspring) -> None:
    assert [finding.severity for finding in await key_findings(app.store)] == [Severity.OK]
    both = encrypted(bare(app.store), Keys({"new": NEW, "old": OLD}))
    await both.open()
    (finding,) = await key_findings(both)
    assert (finding.severity, finding.message) == (Severity.WARNING, "in use: new, old; active: new")
    (finding,) = await key_findings(bare(app.store))
    assert finding.severity is Severity.ERROR


async def test_what_is_written_stays_as_it_is_for_its_writer(app: Mainspring) -> None:
    """The store gets a copy: events and logs after a write still need what was given."""
    job = app.tasks["later"].prepare(text="again")
    before = replace(job)
    await app.store.insert([job])
    assert job == before


def test_jobs_of_code_without_an_event_loop_are_encrypted_too(tmp_path: Path) -> None:
    app = app_over(lambda: SqliteStore(tmp_path / "jobs.db"), ("old", OLD))
    job_id = app.tasks["later"].enqueue_sync(text=CANARY).id
    assert isinstance(app.store, Immediate)
    assert app.run(app.jobs.get(job_id)).payload == {"text": CANARY}
    assert CANARY not in app.run(raw_text(bare(app.store), tmp_path))
    app.run(app.close())


async def test_a_job_that_ends_in_a_transaction_is_encrypted(tmp_path: Path) -> None:
    app = app_over(lambda: SqliteStore(tmp_path / "jobs.db"), ("old", OLD))

    @app.task
    async def pay(ctx: Context, text: str) -> None:
        async with ctx.transaction():
            ctx.set_result({"paid": text})
            ctx.follow_up(app.tasks["later"].prepare(text=text))

    async with app:
        job_id = (await pay.enqueue(text=CANARY)).id
        await app.worker().drain()
        assert (await app.jobs.get(job_id)).result == {"paid": CANARY}
        assert (await app.jobs.find(Filter(tasks=("later",)))).jobs[0].result == CANARY
        assert CANARY not in await raw_text(bare(app.store), tmp_path)


async def test_a_job_in_the_transaction_of_the_caller_is_encrypted(tmp_path: Path) -> None:
    app = app_over(lambda: SqliteStore(tmp_path / "jobs.db"), ("old", OLD))
    async with app:
        connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        handle = app.tasks["later"].using(connection=connection).enqueue_sync(text=CANARY)
        connection.execute("COMMIT")
        connection.close()
        assert (await app.jobs.get(handle.id)).payload == {"text": CANARY}
        assert CANARY not in await raw_text(bare(app.store), tmp_path)


@pytest.mark.parametrize("is_batch", [False, True])
async def test_batches_and_children_work(is_batch: bool) -> None:
    app = app_over(MemoryStore, ("old", OLD))

    @app.task
    async def parent(ctx: Context) -> str:
        (result,) = await ctx.gather(await ctx.spawn(app.tasks["later"], text=CANARY))
        return str(result)

    async with app:
        later = app.tasks["later"]
        if is_batch:
            await app.batch([later.prepare(text="1")], on_success=later.prepare(text=CANARY))
        else:
            await parent.enqueue()
        await app.worker().drain()
        results = [job.result for job in (await app.jobs.find()).jobs]
        assert CANARY in results
        assert {job.status for job in (await app.jobs.find()).jobs} == {Status.COMPLETED}
