"""The examples of docs/leases.md work as printed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from mainspring import Status, StoreUnavailable

PAGE = (Path(__file__).parents[2] / "docs" / "leases.md").read_text("utf-8")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n# own_worker\.py\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"__name__": "own_worker"}
    exec(code, names)  # noqa: S102 - our own documentation
    return names


async def test_the_worker_of_the_page_does_its_jobs(
    program: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    app, stop = program["app"], asyncio.Event()
    working = asyncio.create_task(program["work"](stop))
    handle = await program["print_labels"].enqueue(order=7, copies=2)
    job = await handle.wait(timeout=20)
    stop.set()
    await working
    assert (job.status, job.result) == (Status.COMPLETED, 2)
    assert [step.name for step in await handle.steps()] == ["copy 1", "copy 2"]
    assert capsys.readouterr().out.count("label of order 7") == 2
    await app.close()


async def test_the_worker_of_the_page_stops_when_its_job_is_cancelled(program: dict[str, Any]) -> None:
    app, stop = program["app"], asyncio.Event()
    handle = await program["print_labels"].enqueue(order=7, copies=5)

    async def cancel(_: int) -> None:
        await handle.cancel(reason="wrong order")

    program["print_one"] = cancel
    working = asyncio.create_task(program["work"](stop))
    job = await handle.wait(timeout=20)
    stop.set()
    await working
    assert (job.status, job.reason) == (Status.CANCELLED, "wrong order")
    await app.close()


async def test_the_worker_of_the_page_outlives_an_outage_of_the_store(
    program: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store does not answer after the claim, after the first copy, and when the job is completed."""
    program["RETRY_DELAY"] = 0.001
    app, stop, faults = program["app"], asyncio.Event(), dict.fromkeys(("claim", "save", "ack"), 1)

    def failing(name: str) -> Any:
        call = getattr(app.store, name)

        async def fail_first(*arguments: Any, **options: Any) -> Any:
            answer = await call(*arguments, **options)
            if answer and faults[name]:
                faults[name] -= 1
                raise StoreUnavailable("it answers too late")
            return answer

        return fail_first

    for name in faults:
        monkeypatch.setattr(app.store, name, failing(name))
    handle = await program["print_labels"].enqueue(order=7, copies=2)
    working = asyncio.create_task(program["work"](stop))
    job = await handle.wait(timeout=20)
    stop.set()
    await working
    assert (job.status, job.result, job.attempts) == (Status.COMPLETED, 2, 1)
    assert not any(faults.values())
    assert capsys.readouterr().out.count("label of order 7") == 2
    await app.close()


@pytest.mark.parametrize("moment", ["while it claims", "while it works"])
async def test_the_worker_of_the_page_stops_during_an_outage_of_the_store(
    program: dict[str, Any], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    program["RETRY_DELAY"] = 0.001
    app, stop, outage, repeated = program["app"], asyncio.Event(), asyncio.Event(), asyncio.Event()
    refused: list[str] = []

    def failing(name: str) -> Any:
        call = getattr(app.store, name)

        async def fail_during_outage(*arguments: Any, **options: Any) -> Any:
            if name == "claim" and moment == "while it claims":
                outage.set()
            if not outage.is_set():
                return await call(*arguments, **options)
            refused.append(name)
            if len(refused) > 5:
                repeated.set()
            raise StoreUnavailable("it does not answer")

        return fail_during_outage

    async def lose_the_store(_: int) -> None:
        outage.set()

    for name in ("join", "leave", "heartbeat", "claim", "find"):
        monkeypatch.setattr(app.store, name, failing(name))
    program["print_one"] = lose_the_store
    handle = await program["print_labels"].enqueue(order=7, copies=2)
    working = asyncio.create_task(program["work"](stop))
    async with asyncio.timeout(20):
        await repeated.wait()
    assert not working.done()
    stop.set()
    await asyncio.wait([working], timeout=20)
    assert working.done()
    with pytest.raises(StoreUnavailable):
        await working
    job = await handle.get()
    assert (job.status, job.attempts) == (Status.RUNNING if moment == "while it works" else Status.PENDING, 0)
    outage.clear()
    await app.close()


def test_every_reply_and_field_of_the_pulse_is_on_the_page() -> None:
    from mainspring.leases import Lease, Pulse, Reply

    for name in (*Reply, *Pulse.__dataclass_fields__, *Lease.__dataclass_fields__):
        assert f"`{name}`" in PAGE or name.startswith("_")
