"""Signing keys and sessions on every store, with several processes at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.service import PublicTokens, Tokens
from mainspring.service.sessions import TOUCH_AFTER
from tests.service.test_events import KINDS, STORES


@pytest.fixture(params=KINDS)
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mainspring]:
    async with Mainspring(STORES[request.param](tmp_path)) as app:
        yield app


async def test_processes_share_signing_keys(app: Mainspring) -> None:
    processes = [Tokens(app.store) for _ in range(8)]
    made = await asyncio.gather(*(PublicTokens(tokens).create(jobs=("x",)) for tokens in processes))
    assert len({text.split("_")[1] for _, text in made}) == 1
    await asyncio.gather(*(tokens.signing_keys.rotate(actor="ana") for tokens in processes[:3]))
    for _, text in made:
        assert await PublicTokens(Tokens(app.store)).find(text) is not None
    await processes[0].signing_keys.rotate(actor="ana", forget=True)
    assert await PublicTokens(Tokens(app.store)).find(made[0][1]) is None


async def test_processes_share_sessions(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    session, cookie = await Tokens(app.store).sessions.create("token", actor="ana", address="127.0.0.1")
    found = await Tokens(app.store).sessions.find(cookie)
    assert found == session
    assert await Tokens(app.store).sessions.find(f"{session.id}_{'x' * 43}") is None
    later = app.store.clock.now() + TOUCH_AFTER
    monkeypatch.setattr(app.store.clock, "now", lambda: later)
    used = await asyncio.gather(*(Tokens(app.store).sessions.find(cookie) for _ in range(5)))
    assert {each and each.seen_at for each in used} == {later}
    assert [each.seen_at for each in await Tokens(app.store).sessions.list()] == [later]
    ended = await Tokens(app.store).sessions.end(session.id, actor="ana")
    assert (ended, await Tokens(app.store).sessions.find(cookie)) == (True, None)
    assert not await Tokens(app.store).sessions.end(session.id, actor="ana")
