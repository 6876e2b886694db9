"""Sleep: until when is recorded together with the suspension, and by the store's clock it is over."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from mainspring.clock import Length, Millis, delay_of, duration, to_millis
from mainspring.durable.run import DurableRun
from mainspring.durable.suspension import Wait
from mainspring.errors import ConfigurationError
from mainspring.job import UNTIL_WOKEN

Until = Callable[[Millis], Millis]
"""The end of a sleep that begins now. It is asked once; a run that comes back finds the answer recorded."""


async def sleep(run: DurableRun, until: Until, name: str | None) -> None:
    asker = run.asker()
    name = run.journal.called(name) if name else run.journal.name_sleep(main=asker is None)
    asked = await run.ask(name, "sleep", asker)
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
    """Only a sleep that begins has to have a length: a run that comes back may find less than nothing left of it."""
    duration(length)
    return lambda now: checked(now + delay_of(length, "the length of a sleep"))


def at(moment: datetime, tz: str | None, fold: Literal["first", "second"]) -> Until:
    """A wall time that clocks skip is read as in a schedule: 02:30 becomes 03:30."""
    if tz is None and moment.tzinfo is None:
        msg = f'sleep_until({moment!r}): say where that is, tz="Europe/London", or give a time that has a zone'
        raise ConfigurationError(msg)
    if tz is None:
        instant = to_millis(moment)
    elif moment.tzinfo is not None:
        msg = f"sleep_until({moment!r}, tz={tz!r}): it has a zone already; give a wall time with tz, or leave that out"
        raise ConfigurationError(msg)
    else:
        from mainspring.schedule.zones import PACKAGED  # noqa: PLC0415 - a program without wall times need not wait for it

        (found,) = PACKAGED.get(tz).resolve(moment, "shift", fold)
        instant = to_millis(found.utc.replace(tzinfo=UTC))
    return lambda _now: checked(instant)


def checked(moment: Millis) -> Millis:
    if moment >= UNTIL_WOKEN:
        msg = "nobody can sleep beyond the year 9999"
        raise ConfigurationError(msg)
    return moment
