"""A planted secret is in nothing that a command prints, as text or as JSON, unless a person asks for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mainspring import Person
from mainspring.app import Mainspring
from mainspring.cli import loading
from mainspring.stores.protocol import Filter
from tests.cli.conftest import Run

CANARY = "canary7Qzx4"
SHOP = """
from mainspring import Context, Mainspring, Redaction, Retry

app = Mainspring("sqlite:///shop.db", redact=Redaction(rules=("iban",), tasks={"charge": ("/card/number",)}))


@app.task(retry=Retry(max_attempts=1))
async def fail(password: str) -> None:
    raise ValueError(f"cannot use {password}")


@app.task
async def charge(ctx: Context, card: dict[str, str]) -> dict[str, object]:
    await ctx.step("exchange", lambda: {"refresh_token": card["number"]})
    return {"card": card}
"""
REASON = f"iban={CANARY}"


@pytest.fixture
def ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A store with the secret in every place that a command reads; the ids of its jobs."""
    (tmp_path / "planted.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "planted", raising=False)
    app = loading.load("planted:app")
    return asyncio.run(plant(app))


async def plant(app: Mainspring) -> dict[str, str]:
    card, headers = {"card": {"number": CANARY}}, {"authorization": f"Bearer {CANARY}"}
    async with app:
        failed = await app.enqueue("fail", {"password": CANARY}, headers=headers)
        charged = await app.enqueue("charge", card, headers=headers)
        await app.worker().drain()
        about: dict[str, Any] = {"dedupe_key": f"key {CANARY}", "tags": [f"tag {CANARY}"], "target": ("card", CANARY)}
        later = await app.enqueue("charge", card, delay=9_000, **about)
        await app.jobs.edit(later.id, payload={"card": {"number": CANARY, "name": "bo"}}, reason=REASON)
        await app.schedules.put("nightly", "daily 02:00", await app.prepare("charge", card), tz="UTC")
        await app.schedules.pause("nightly", reason=REASON)
        await app.people.put(Person(id="ada", tz="UTC", attributes={"iban": CANARY}))
        await app.pause("mail", REASON, wait=0)
        await app.halt(REASON, wait=0)
        await app.settings.set(task="charge", limit=3, reason=REASON)
        await app.breakers.open("bank", reason=REASON)
        bulk = await app.bulk.start("cancel", Filter(payload={"iban": CANARY}), reason=REASON)
        group = (await app.failures.list()).groups[0].fingerprint
        await app.failures.resolve(group, note=REASON)
    return {"failed": failed.id, "charged": charged.id, "later": later.id, "bulk": bulk.id, "group": group}


READING = (
    "jobs list", "jobs show {failed}", "jobs show {charged}", "jobs show {later}", "jobs why {later}", "dead list",
    "dead show {failed}", "failures list --state resolved", "failures show {group}", "schedules list",
    "schedules show nightly", "schedules ledger nightly", "people list", "people show ada", "bulk list",
    "bulk show {bulk}", "breakers list", "settings list", "stats", "audit", "tasks list", "limits list", "workers",
    "doctor", "subscribers list", "batches list", "jobs reschedule {later} --in 2h", "enqueue charge {{}} --in 1h",
)  # fmt: skip


def test_no_command_prints_the_secret(run: Run, ids: dict[str, str]) -> None:
    found = {}
    for command in READING:
        for more in ([], ["--json"]):
            argv = [word.format(**ids) for word in command.split()]
            outcome = run(*argv, "--app", "planted:app", *more)
            found[f"{command} {more}"] = outcome.out + outcome.err
            assert "Traceback" not in outcome.err
    assert {name: text for name, text in found.items() if CANARY in text} == {}
    shown = [name for name, text in found.items() if "[redacted]" in text]
    assert len(shown) >= 30, shown  # the secret was really there


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_person_can_ask_for_it(run: Run, ids: dict[str, str], more: list[str]) -> None:
    for command in (["jobs", "list"], ["jobs", "show", ids["later"]], ["schedules", "show", "nightly"]):
        assert CANARY in run(*command, "--app", "planted:app", "--unredacted", *more).out


def test_with_a_store_alone_the_default_rules_hold(run: Run, ids: dict[str, str]) -> None:
    store = "sqlite:///shop.db"
    assert CANARY not in run("jobs", "show", ids["failed"], "--store", store, "--json").out
    assert CANARY in run("jobs", "show", ids["later"], "--store", store, "--json").out  # the application's own rule


def test_an_edit_keeps_what_was_not_shown(run: Run, ids: dict[str, str]) -> None:
    edited = '{"card": {"number": "[redacted]", "name": "ada"}}'
    assert run("jobs", "edit", ids["later"], "--payload", edited, "--app", "planted:app").code == 0
    shown = run("jobs", "show", ids["later"], "--app", "planted:app", "--json", "--unredacted").data
    assert shown["job"]["payload"] == {"card": {"number": CANARY, "name": "ada"}}
