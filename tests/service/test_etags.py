"""ETags of jobs and of settings, on each store: of two changes of what was read, one is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.errors import EditConflict
from mainspring.jobs import Jobs
from tests.service.conftest import define
from tests.service.serving import Answer, Client, serving
from tests.service.test_idempotency import SLOW, STORES

SETTINGS = "/v1/settings/task/welcome"
STALE = '"0-pending-0"'


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in STORES])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mainspring]:
    app = Mainspring(STORES[request.param](tmp_path))
    define(app)
    async with app:
        yield app


async def waiting(app: Mainspring) -> str:
    """Enqueue a job for later; return its path."""
    handle = await app.enqueue("welcome", {"guest": "Ada"}, delay=3_600)
    return f"/v1/jobs/{handle.id}"


async def tag_of(client: Client, path: str) -> str:
    return (await client.get(path)).headers["etag"]


def change_of(client: Client, path: str, action: str) -> Callable[[str], Coroutine[Any, Any, Answer]]:
    """Return a function that changes a job if it has the ETag given."""
    if action == "edit":
        return lambda tag: client.send("PATCH", path, {"priority": "high"}, if_match=tag)
    if action == "delete":
        return lambda tag: client.send("DELETE", path, if_match=tag)
    return lambda tag: client.post(f"{path}:{action}", if_match=tag)


@pytest.mark.parametrize("action", ["edit", "reschedule", "cancel", "retry", "delete"])
async def test_a_job_is_changed_only_as_it_was_read(app: Mainspring, client: Client, action: str) -> None:
    path = await waiting(app)
    if action == "retry":
        await client.post(f"{path}:cancel")
    before, change = await client.get(path), change_of(client, path, action)
    assert (await change(STALE)).code == "precondition_failed"
    assert (await client.get(path)).text == before.text
    changed = await change(f"{STALE}, {before.headers['etag']}")  # any of several
    assert changed.status in {200, 204}
    if action != "delete":
        assert changed.headers["etag"] == await tag_of(client, path) != before.headers["etag"]


async def test_a_job_shows_its_etag_everywhere(app: Mainspring, client: Client) -> None:
    path = await waiting(app)
    shown, detail, listed = await client.get(path), await client.get(f"{path}/detail"), await client.get("/v1/jobs")
    assert shown.headers["etag"] == detail.headers["etag"] == f'"{shown.data["revision"]}"'
    assert listed.data["jobs"][0]["revision"] == shown.data["revision"]


async def test_a_star_changes_a_job_however_it_is(app: Mainspring, client: Client) -> None:
    path = await waiting(app)
    assert (await client.post(f"{path}:cancel", if_match="*")).status == 200
    assert (await client.post("/v1/jobs/00000000-0000-7000-8000-000000000000:cancel", if_match="*")).status == 404


async def test_a_job_that_has_ended_since_is_not_of_the_wrong_status_but_changed(
    app: Mainspring, client: Client
) -> None:
    path = await waiting(app)
    tag = await tag_of(client, path)
    await client.post(f"{path}:cancel")
    assert (await client.send("PATCH", path, {"priority": "high"}, if_match=tag)).code == "precondition_failed"
    assert (await client.send("PATCH", path, {"priority": "high"})).code == "illegal_move"


async def test_of_two_racing_edits_one_wins(app: Mainspring, client: Client) -> None:
    path = await waiting(app)
    for _ in range(5):
        tag = await tag_of(client, path)
        edits = [{"payload": {"guest": guest}} for guest in ("Bob", "Cleo")]
        answers = await asyncio.gather(*(client.send("PATCH", path, edit, if_match=tag) for edit in edits))
        assert sorted(answer.status for answer in answers) == [200, 412]
        winner = next(answer for answer in answers if answer.status == 200)
        assert (await client.get(path)).data["payload"] == winner.data["payload"]


async def test_a_repeated_change_with_a_key_gets_its_first_answer(app: Mainspring, client: Client) -> None:
    """Although the job no longer has the ETag, by the effect of the first request."""
    path = await waiting(app)
    tag = await tag_of(client, path)
    first = await client.post(f"{path}:reschedule", {"delay": 60}, if_match=tag, idempotency_key="k1")
    again = await client.post(f"{path}:reschedule", {"delay": 60}, if_match=tag, idempotency_key="k1")
    assert (first.status, again.text, again.headers["etag"]) == (200, first.text, first.headers["etag"])


# -- values that are not shown ----------------------------------------------------------------------


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Payloads that another caller writes, each after the service has read a job and before it writes its edit."""
    payloads: list[Any] = []
    edit = Jobs.edit

    async def edit_after_others(jobs: Jobs, job_id: str, **given: Any) -> None:
        if payloads:
            await edit(jobs, job_id, payload=payloads.pop(0))
        await edit(jobs, job_id, **given)

    monkeypatch.setattr(Jobs, "edit", edit_after_others)
    return payloads


async def test_a_redacted_value_is_that_of_the_job_that_is_changed(app: Mainspring, others: list[Any]) -> None:
    """Between the read and the write, another caller has set a new password. The edit must not set the old one."""
    path = await secret_job(app)
    async with serving(app) as client:
        others.append({"password": "new", "level": 1})
        edited = await client.send("PATCH", path, {"payload": {"password": "[redacted]", "level": 2}})
        assert edited.status == 200
        assert (await app.jobs.get(path.rpartition("/")[2])).payload == {"password": "new", "level": 2}


async def test_a_redacted_value_with_an_etag_is_that_of_the_job_that_was_read(
    app: Mainspring, others: list[Any]
) -> None:
    path = await secret_job(app)
    async with serving(app) as client:
        tag = await tag_of(client, path)
        others.append({"password": "new", "level": 1})
        edit = {"payload": {"password": "[redacted]", "level": 2}}
        assert (await client.send("PATCH", path, edit, if_match=tag)).code == "precondition_failed"
        assert (await app.jobs.get(path.rpartition("/")[2])).payload == {"password": "new", "level": 1}


async def secret_job(app: Mainspring) -> str:
    handle = await app.enqueue("log_in", {"password": "old", "level": 0}, delay=3_600, allow_unknown=True)
    return f"/v1/jobs/{handle.id}"


# -- settings ---------------------------------------------------------------------------------------


async def test_settings_are_changed_only_as_they_were_read(app: Mainspring, client: Client) -> None:
    empty = await tag_of(client, SETTINGS)
    first = await client.send("PATCH", SETTINGS, {"limit": 1}, if_match=empty)
    assert first.headers["etag"] == await tag_of(client, SETTINGS) != empty
    assert (await client.send("PATCH", SETTINGS, {"limit": 2}, if_match=empty)).code == "precondition_failed"
    assert (await client.send("DELETE", SETTINGS, if_match=empty)).code == "precondition_failed"
    assert (await app.settings.get(task="welcome"))["limit"].value == 1
    assert (await client.send("DELETE", SETTINGS, if_match=first.headers["etag"])).data == {"cleared": True}
    assert await tag_of(client, SETTINGS) == empty
    with pytest.raises(EditConflict, match="task welcome"):
        await app.settings.clear(task="welcome", expect="other")  # also if there is nothing to clear


async def test_of_two_racing_changes_of_settings_one_wins(app: Mainspring, client: Client) -> None:
    for _ in range(5):
        tag = await tag_of(client, SETTINGS)
        answers = await asyncio.gather(
            *(client.send("PATCH", SETTINGS, {"limit": limit}, if_match=tag) for limit in (1, 2))
        )
        assert sorted(answer.status for answer in answers) == [200, 412]
        winner = next(answer for answer in answers if answer.status == 200)
        assert (await client.get(SETTINGS)).data == winner.data
