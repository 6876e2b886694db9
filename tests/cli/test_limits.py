"""`mainspring limits`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mainspring import Limit, Mainspring, Rate
from mainspring.cli import main
from mainspring.features.limits.coordinator import LimitCoordinator
from mainspring.features.limits.options import Ticket
from mainspring.features.limits.rules import Acquire, Wait

MAIL = Ticket(Limit(2, key=str, name="mail"), "acme")
SEND = Ticket(Rate(10, per=1, burst=5, name="send"), "")


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = Mainspring(url)

    async def use() -> None:
        async with app:
            await LimitCoordinator(app.store).settle([Acquire("job-1", 1, (MAIL, SEND)), Acquire("job-2", 1, (MAIL,))])
            await LimitCoordinator(app.store).settle([Wait((MAIL,))])

    app.run(use())
    app.run(app.close())
    return url


def test_limits_are_listed_with_the_jobs_that_hold_them(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["limits", "--store", store]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["LIMIT", "KIND", "KEY"]
    assert [line.split()[:2] for line in lines] == [["mail", "limit"], ["send", "rate"]]
    assert "job-1 job-2" in lines[0]
    assert "yes" in lines[0]


def test_one_limit_as_json(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["limits", "mail", "--waiting", "--json", "--store", store]) == 0
    (found,) = json.loads(capsys.readouterr().out)["limits"]
    assert found == {
        "kind": "limit", "name": "mail", "key": "acme", "waits_for": "limit:mail=acme", "waiting": True, "size": 2,
        "jobs": ["job-1", "job-2"], "tokens": None, "per_second": None, "ready": 0,
    }  # fmt: skip
    assert main(["limits", "other", "--json", "--store", store]) == 0
    assert json.loads(capsys.readouterr().out) == {"limits": []}


def test_a_list_of_none_says_so(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["limits", "nope", "--store", store]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "no limit named 'nope' is in use\n")
    assert main(["limits", "send", "--waiting", "--store", store]) == 0
    assert capsys.readouterr().err == "no limit named 'send' keeps jobs waiting\n"
