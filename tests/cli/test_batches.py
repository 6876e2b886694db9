"""`mainspring batches …`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.cli import main
from mainspring.cli.exits import Exit
from mainspring.job import Status
from tests.cli.conftest import Run, Shop

pytestmark = pytest.mark.slow


def test_show_says_how_far_a_batch_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = Mainspring(url)

    @app.task()
    async def work() -> None: ...

    batch = app.run(app.batch([work.prepare(), work.using(delay=3600).prepare()]))
    app.run(app.worker().drain())
    app.run(app.close())
    assert main(["batches", "show", batch.id, "--store", url]) == Exit.OK
    assert " 50%  1 of 2: 1 completed, 1 to come" in capsys.readouterr().out
    assert main(["batches", "show", batch.id, "--json", "--store", url]) == Exit.OK
    told = json.loads(capsys.readouterr().out)["batch"]
    assert (told["total"], told["done"], told["fraction"], told["finished"]) == (2, 1, 0.5, False)
    assert main(["batches", "show", "nothing", "--store", url]) == Exit.NOT_FOUND
    assert "there is no batch nothing" in capsys.readouterr().err


def test_batches_are_listed_and_cancelled(run: Run, shop: Shop) -> None:
    first = shop.app.run(shop.app.batch([shop.welcome.prepare(guest="ann"), shop.welcome.prepare(guest="bad")]))
    shop.work()
    later = [shop.nightly.using(delay=3600).prepare(day=day) for day in ("monday", "tuesday", "friday")]
    second = shop.app.run(shop.app.batch(later, on_failure=shop.welcome.prepare(guest="boss")))
    store = "--store", shop.url

    header, *rows = run("batches", "list", *store).out.splitlines()
    assert header.split() == ["ID", "STATE", "CREATED", "JOBS", "ENDED"]
    assert [row.split()[:2] for row in rows] == [[second.id, "running"], [first.id, "finished"]]
    assert rows[1].endswith("2  1 completed, 1 dead")
    page = run("batches", "list", "--limit", "1", *store)
    assert f"more: mainspring batches list --limit 1 --store {shop.url} --cursor {second.id}" in page.err
    told = run("batches", "list", "--cursor", second.id, "--json", *store).data
    assert [(batch["id"], batch["ended"]["failed"]) for batch in told["batches"]] == [(first.id, 1)]
    assert told["cursor"] is None

    refused = run("batches", "cancel", second.id, *store)
    assert (refused.code, "cancel 3 jobs; add --yes" in refused.err) == (Exit.USAGE, True)
    assert run("batches", "cancel", second.id, "--dry-run", *store).out == "3 jobs would be cancelled\n"
    assert run("batches", "cancel", second.id, "--yes", "--reason", "no use", *store).out == "3 jobs cancelled\n"
    shop.work()
    assert shop.count(tasks=("welcome",), statuses=(Status.COMPLETED,)) == 2  # ann, and what follows
    again = run("batches", "cancel", second.id, "--json", *store)
    assert (again.code, again.data["changed"], again.data["requested"]) == (Exit.OK, 0, 0)
    assert run("batches", "cancel", "nothing", *store).code == Exit.NOT_FOUND


def test_an_empty_list_says_so_beside_the_result(run: Run, shop: Shop) -> None:
    outcome = run("batches", "list", "--store", shop.url)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "no batches\n")
