"""Leases: failures have fingerprints, and runs the version of the lessee's code."""

from __future__ import annotations

import pytest

from mainspring import Failure, Mainspring
from mainspring.errors import ConfigurationError


async def test_a_lessee_records_its_version_or_that_of_the_application() -> None:
    app = Mainspring("memory://", version="app-1")

    @app.task(max_attempts=3)
    async def label() -> None: ...

    async with app:
        job = await label.enqueue()
        async with app.leases.lessee("printer", version="own-2") as own, app.leases.lessee("other") as other:
            (lease,) = await own.claim()
            assert {worker.version for worker in (await app.store.stats()).workers} == {"own-2", "app-1"}
            await lease.release()
            assert (await job.get()).version == "own-2"
            (lease,) = await other.claim()
            await lease.complete()
        assert (await job.get()).version == "app-1"


async def test_a_lessee_may_say_where_it_failed() -> None:
    app = Mainspring("memory://")

    @app.task(max_attempts=1)
    async def label(number: int) -> None: ...

    async with app:
        await label.enqueue_many([{"number": number} for number in range(3)])
        async with app.leases.lessee("printer") as lessee:
            for number, place in enumerate(("printer:feed", "printer:feed", "printer:cut")):
                (lease,) = await lessee.claim()
                await lease.fail(Failure("PrinterError", f"jam {number}", place=place))
        groups = (await app.failures.list()).groups
        assert sorted((group.place, group.count) for group in groups) == [("printer:cut", 1), ("printer:feed", 2)]


async def test_a_bad_version_is_refused() -> None:
    app = Mainspring("memory://")
    async with app:
        with pytest.raises(ConfigurationError, match="version must be up to 64"):
            await app.leases.join("printer", version="x" * 65)
