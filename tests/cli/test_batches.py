"""`mainspring batches …`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.cli import main
from mainspring.cli.exits import Exit


def test_how_far_a_batch_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
