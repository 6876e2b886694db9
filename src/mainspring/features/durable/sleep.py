"""Sleeps. The end is recorded in one commit with the suspension, and is reached by the store's clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from mainspring.clock import Length, Millis, delay_of, duration, to_millis
from mainspring.errors import ConfigurationError
from mainspring.features.durable.run import DurableRun
from mainspring.features.durable.suspension import Wait
from mainspring.job import UNTIL_WOKEN

Until = Callable[[Millis], Millis]
"""Returns the end of a sleep that begins now. It is called once per sleep; later runs read the recorded end."""


async def sleep(run: DurableRun, until: Until, name: str | None) -> None:
    branch = run.branch()
    name = run.journal.called(name) if name else run.journal.name_sleep(main=branch is None)
    asked = await run.ask(name, "sleep", branch)
    now = run.now()
    if asked.record is not None:
        end = int(json.loads(asked.record.output or "0"))
        if now < end and not run.journal.is_behind(asked):
            await run.suspend(Wait(end, None))
        return
    end = until(now)
    step = asked.step(json.dumps(end), now)
    if now >= end:
        await run.save(step)
    else:
        await run.suspend(Wait(end, step))


def after(length: Length) -> Until:
    """Return an `Until` of this length. A negative length is only refused when the sleep begins.

    A later run may compute a negative length for a sleep that is over, and must not fail.
    """
    duration(length)
    return lambda now: checked(now + delay_of(length, "the length of a sleep"))


def at(moment: datetime, tz: str | None, fold: Literal["first", "second"]) -> Until:
    """Return an `Until` for a moment. A wall time that clocks skip moves as in a schedule: 02:30 becomes 03:30."""
    if tz is None and moment.tzinfo is None:
        msg = f'sleep_until({moment!r}): it has no time zone; add tz="Europe/London", or give an aware datetime'
        raise ConfigurationError(msg)
    if tz is None:
        instant = to_millis(moment)
    elif moment.tzinfo is not None:
        msg = f"sleep_until({moment!r}, tz={tz!r}): it has a time zone already; give a naive datetime, or leave out tz"
        raise ConfigurationError(msg)
    else:
        from mainspring.features.schedules.rules.tz import PACKAGED  # noqa: PLC0415 - slow to import, and only needed for wall times

        (found,) = PACKAGED.get(tz).resolve(moment, "shift", fold)
        instant = to_millis(found.utc.replace(tzinfo=UTC))
    return lambda _now: checked(instant)


def checked(moment: Millis) -> Millis:
    if moment >= UNTIL_WOKEN:
        msg = "a sleep cannot end after the year 9999; give an earlier end"
        raise ConfigurationError(msg)
    return moment
