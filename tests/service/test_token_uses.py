"""When tokens were used last: on every store, beside revocations, and never in the way of a request."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mainspring import Mainspring
from mainspring.cli import main
from mainspring.errors import StoreUnavailable
from mainspring.service import PublicTokens, ServiceSettings, Tokens
from mainspring.service.program import Service
from mainspring.service.token_uses import COLLECTION, MINUTE, RETENTION
from mainspring.stores.documents import Key, Listing, Write, current_once, using_key
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from mainspring.testing.clock import ManualClock
from tests.service.serving import Client, serving

NOON = datetime(2027, 3, 1, 12, 0, 17, tzinfo=UTC)
PATIENCE = 30.0  # seconds; only a failing test waits this long


def postgres_store(clock: ManualClock, _: Path) -> Store:
    from tests.postgres import RecycledStore

    return RecycledStore(clock=clock)


def dynamodb_store(clock: ManualClock, _: Path) -> Store:
    from tests.dynamodb import FreshStore

    return FreshStore(clock=clock)


STORES: dict[str, Callable[[ManualClock, Path], Store]] = {
    "memory": lambda clock, _: MemoryStore(clock=clock),
    "sqlite": lambda clock, folder: SqliteStore(folder / "jobs.db", clock=clock),
    "postgres": postgres_store,
    "dynamodb": dynamodb_store,
}
KINDS = [kind if kind == "memory" else pytest.param(kind, marks=pytest.mark.slow) for kind in STORES]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture(params=["memory"])
async def app(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Mainspring]:
    async with Mainspring(STORES[request.param](clock, tmp_path)) as app:
        yield app


on_every_store = pytest.mark.parametrize("app", KINDS, indirect=True)


async def made(app: Mainspring, *scopes: str) -> tuple[str, str]:
    """Create a token; return its id and its text."""
    token, text = await Tokens(app.store).create("ci", scopes or ("read",), actor="tester")
    return token.id, text


async def use(tokens: Tokens, text: str) -> None:
    assert await tokens.find(text) is not None
    await tokens.uses.flush()


async def last_used(app: Mainspring, token_id: str) -> datetime | None:
    return {token.id: token.last_used for token in await Tokens(app.store).list()}[token_id]


def counting(monkeypatch: pytest.MonkeyPatch, store: Store) -> list[Any]:
    """Return the bundles that the store is given to write from now on."""
    bundles: list[Any] = []
    write = store.write

    async def counted(given: Any) -> Any:
        bundles.extend(given)
        return await write(given)

    monkeypatch.setattr(store, "write", counted)
    return bundles


# -- on every store -----------------------------------------------------------------------------------


@on_every_store
async def test_a_use_is_known_to_the_minute(app: Mainspring, clock: ManualClock) -> None:
    (token_id, text), (other_id, _) = await made(app), await made(app)
    tokens = Tokens(app.store)
    assert await last_used(app, token_id) is None
    await use(tokens, text)
    assert await last_used(app, token_id) == NOON.replace(second=0)
    clock.advance(120)
    assert await last_used(app, token_id) == NOON.replace(second=0)
    await use(tokens, text)
    assert await last_used(app, token_id) == NOON.replace(minute=2, second=0)
    page, _ = await tokens.page(10)
    assert {token.id: token.last_used is not None for token in page} == {token_id: True, other_id: False}


@on_every_store
async def test_processes_write_the_same_minute_once_and_never_an_earlier_one(
    app: Mainspring, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_id, text = await made(app)
    slow, fast = Tokens(app.store), [Tokens(app.store) for _ in range(3)]
    bundles = counting(monkeypatch, app.store)
    for tokens in fast:
        await use(tokens, text)
    assert len(bundles) == 1
    await slow.find(text)
    slow.uses._waiting[token_id] = slow.uses._waiting[token_id] - 5 * MINUTE  # it was paused before it could write
    await slow.uses.flush()
    assert await last_used(app, token_id) == NOON.replace(second=0)
    clock.advance(60)
    await asyncio.gather(*(use(tokens, text) for tokens in fast))
    assert await last_used(app, token_id) == NOON.replace(minute=1, second=0)


@on_every_store
async def test_a_use_changes_neither_the_token_nor_the_audit_log_nor_the_feed(
    app: Mainspring, clock: ManualClock
) -> None:
    _, text = await made(app)
    tokens = Tokens(app.store)
    (before,), audit = await app.store.browse(Listing("tokens")), await app.audit()
    place = str((await app.store.changes()).cursor)
    for _ in range(5):
        await use(tokens, text)
        clock.advance(60)
    (after,) = await app.store.browse(Listing("tokens"))
    assert (after.version, after.data) == (before.version, before.data)
    assert await app.audit() == audit
    page = await app.store.changes(place)
    assert not page.entries
    assert not page.reset


@on_every_store
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_token_that_is_revoked_during_its_use_stays_revoked(
    app: Mainspring, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    token_id, text = await made(app)
    tokens, write = Tokens(app.store), app.store.write
    if not is_first:
        await use(tokens, text)
        clock.advance(60)

    async def revoke_and_write(bundles: Any) -> Any:
        monkeypatch.setattr(app.store, "write", write)
        await Tokens(app.store).revoke(token_id, actor="tester")  # by another process
        return await write(bundles)

    assert await tokens.find(text) is not None
    monkeypatch.setattr(app.store, "write", revoke_and_write)
    await tokens.uses.flush()
    assert await Tokens(app.store).list() == []
    assert await Tokens(app.store).find(text) is None
    documents = await app.store.browse(Listing(COLLECTION))
    assert len(documents) == is_first  # the first use could not know of the revocation; its document expires
    assert all(document.expires_at is not None for document in documents)


@on_every_store
async def test_the_use_of_a_token_goes_with_it(app: Mainspring) -> None:
    token_id, text = await made(app)
    tokens = Tokens(app.store)
    await use(tokens, text)
    assert len(await app.store.browse(Listing(COLLECTION))) == 1
    await Tokens(app.store).revoke(token_id, actor="tester")  # by another process, while this one still trusts it
    tokens.uses.note(token_id)
    await tokens.uses.flush()
    assert await app.store.browse(Listing(COLLECTION)) == []


# -- what counts as a use ------------------------------------------------------------------------------


async def test_uses_are_written_once_a_minute_however_many_there_are(
    app: Mainspring, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, one), (_, two) = await made(app), await made(app)
    tokens, bundles = Tokens(app.store), counting(monkeypatch, app.store)
    for _ in range(3):
        for _ in range(12):
            await asyncio.gather(*(use(tokens, text) for text in (one, two) * 5))
            clock.advance(5)
    assert len(bundles) <= 2 * 4  # three minutes from 12:00:17 on are in four minutes of the clock
    assert len(bundles) >= 2 * 3


async def test_wrong_expired_and_revoked_tokens_are_not_used(app: Mainspring, clock: ManualClock) -> None:
    _, text = await Tokens(app.store).create("short", ["read"], actor="tester", expires_at=NOON + timedelta(seconds=30))
    tokens = Tokens(app.store)
    await tokens.find(f"{text[:-1]}{'a' if text[-1] != 'a' else 'b'}")
    clock.advance(60)
    assert await tokens.find(text) is None
    await tokens.uses.flush()
    assert await app.store.browse(Listing(COLLECTION)) == []


async def test_sessions_and_public_tokens_are_uses_of_their_token(app: Mainspring, clock: ManualClock) -> None:
    token_id, _ = await made(app)
    tokens = Tokens(app.store)
    _, cookie = await tokens.sessions.create(token_id, actor="ana", address="")
    assert await tokens.of_session(cookie) is not None
    await tokens.uses.flush()
    assert await last_used(app, token_id) == NOON.replace(second=0)
    _, public = await PublicTokens(tokens).create(jobs=("x",), issuer=token_id)
    clock.advance(60)
    assert await PublicTokens(tokens).find(public) is not None
    await tokens.uses.flush()
    assert await last_used(app, token_id) == NOON.replace(minute=1, second=0)


async def test_a_token_that_was_not_used_for_400_days_is_unused(app: Mainspring, clock: ManualClock) -> None:
    token_id, text = await made(app)
    await use(Tokens(app.store), text)
    clock.advance(RETENTION / 1000 - 60)
    assert await last_used(app, token_id) is not None
    clock.advance(120)
    assert await last_used(app, token_id) is None


# -- over HTTP and on the command line -------------------------------------------------------------------


async def test_the_list_says_when_each_token_was_used(app: Mainspring, clock: ManualClock) -> None:
    (admin_id, admin), (ci_id, ci), (idle_id, _) = await made(app, "admin"), await made(app), await made(app)
    async with serving(app, tokens="required") as client:
        await client.using(ci).get("/v1/jobs")
        clock.advance(60)
        await client.using(admin).get("/v1/tokens")
    async with serving(app, tokens="required") as client:  # the first one has written what it knew
        tokens = (await client.using(admin).get("/v1/tokens")).data["tokens"]
    assert {token["id"]: token["last_used"] for token in tokens} == {
        admin_id: "2027-03-01T12:01:00.000Z",
        ci_id: "2027-03-01T12:00:00.000Z",
        idle_id: None,
    }


async def test_the_service_writes_uses_before_it_ends(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    token_id, text = await made(app)
    may_write, write = asyncio.Event(), app.store.write

    async def late(bundles: Any) -> Any:
        await may_write.wait()
        return await write(bundles)

    service = Service(app, ServiceSettings(port=0, worker=False, tokens="required"))
    running = asyncio.create_task(service.serve())
    async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session:
        monkeypatch.setattr(app.store, "write", late)
        assert (await Client(session, service.url, text).get("/v1/jobs")).status == 200
        service.stop()
        asyncio.get_running_loop().call_soon(may_write.set)
        await running
    assert await last_used(app, token_id) == NOON.replace(second=0)


def test_the_command_lists_uses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = f"sqlite:///{tmp_path / 'jobs.db'}"

    async def prepare() -> None:
        async with Mainspring(SqliteStore(tmp_path / "jobs.db")) as app:
            (_, used), _ = await made(app), await made(app)
            await use(Tokens(app.store), used)

    asyncio.run(prepare())
    assert main(["tokens", "list", "--store", store, "--json"]) == 0
    found = [token["last_used"] for token in json.loads(capsys.readouterr().out)["tokens"]]
    assert sorted(map(type, found), key=str) == [type(None), str]
    assert main(["tokens", "list", "--store", store]) == 0
    out = capsys.readouterr().out
    assert "LAST USED" in out
    assert next(time for time in found if time is not None) in out
    assert "not in 400 days" in out


# -- never in the way --------------------------------------------------------------------------------------


async def test_no_request_waits_for_the_write_of_its_use(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = await made(app)
    may_write = asyncio.Event()

    async def hang(bundles: Any) -> Any:
        await may_write.wait()
        return await write(bundles)

    async with asyncio.timeout(PATIENCE), serving(app, tokens="required") as client:
        write = app.store.write
        monkeypatch.setattr(app.store, "write", hang)
        for _ in range(5):
            assert (await client.using(text).get("/v1/jobs")).status == 200
        assert await app.store.browse(Listing(COLLECTION)) == []
        may_write.set()
    assert len(await app.store.browse(Listing(COLLECTION))) == 1


@pytest.mark.parametrize("error", [StoreUnavailable("away"), RuntimeError("odd")])
async def test_a_use_that_cannot_be_written_fails_no_request_and_is_followed_by_the_next(
    app: Mainspring, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    token_id, text = await made(app)
    tokens = Tokens(app.store)

    async def fail(_: Any) -> Any:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(app.store, "write", fail)
        await use(tokens, text)
    assert await last_used(app, token_id) is None
    clock.advance(60)
    await use(tokens, text)
    assert await last_used(app, token_id) == NOON.replace(minute=1, second=0)


async def test_the_end_does_not_wait_for_a_store_that_hangs(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = await made(app)
    tokens = Tokens(app.store)
    monkeypatch.setattr("mainspring.service.token_uses.FLUSH_SECONDS", 0.0)

    async def hang(_: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(app.store, "write", hang)
    async with asyncio.timeout(PATIENCE):
        await use(tokens, text)
    writing = tokens.uses._writing
    assert writing is not None
    with contextlib.suppress(asyncio.CancelledError):
        await writing
    assert writing.cancelled()


async def test_a_use_is_not_part_of_the_request_that_was_first(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text = await made(app)
    tokens, seen, write = Tokens(app.store), [], app.store.write

    async def look(bundles: Any) -> Any:
        seen.append(current_once())
        return await write(bundles)

    monkeypatch.setattr(app.store, "write", look)
    with using_key(lambda _: Write(Key("idempotency", "", "k1"), "{}")):
        await use(tokens, text)
    assert seen == [None]
