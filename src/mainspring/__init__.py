"""Mainspring runs jobs durably and on time.

from mainspring import Mainspring

app = Mainspring("sqlite:///jobs.db")

@app.task(queue="mail")
async def welcome(guest_id: str) -> None: ...

await welcome.using(delay=3600).enqueue(guest_id="g1")
"""

from typing import TYPE_CHECKING, Any

from mainspring.app import Mainspring
from mainspring.batched import Batch, Item
from mainspring.context import Context
from mainspring.durable.children import Child
from mainspring.durable.signals import Signal
from mainspring.errors import Cancel, Discard, MainspringError, Snooze
from mainspring.flow import Breaker, Debounce, Throttle, Window
from mainspring.flow.limits import Fair, Limit, Rate
from mainspring.health import Health
from mainspring.job import Job, Priority, Status
from mainspring.retry import Retry
from mainspring.schedule import (
    BusinessCalendar,
    Cron,
    Daily,
    Every,
    Misfire,
    Monthly,
    Once,
    Pause,
    RRule,
    Schedule,
    Weekly,
    Yearly,
)
from mainspring.stores.protocol import Filter
from mainspring.task import JobHandle, Retention, Task

if TYPE_CHECKING:
    from mainspring.occasions import Occasion, Person

__all__ = [
    "Batch",
    "Breaker",
    "BusinessCalendar",
    "Cancel",
    "Child",
    "Context",
    "Cron",
    "Daily",
    "Debounce",
    "Discard",
    "Every",
    "Fair",
    "Filter",
    "Health",
    "Item",
    "Job",
    "JobHandle",
    "Limit",
    "Mainspring",
    "MainspringError",
    "Misfire",
    "Monthly",
    "Occasion",
    "Once",
    "Pause",
    "Person",
    "Priority",
    "RRule",
    "Rate",
    "Retention",
    "Retry",
    "Schedule",
    "Signal",
    "Snooze",
    "Status",
    "Task",
    "Throttle",
    "Weekly",
    "Window",
    "Yearly",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """People are imported when first named: a program without any need not wait for them."""
        if name in {"Occasion", "Person"}:
            from mainspring import occasions  # noqa: PLC0415 - see above

            return getattr(occasions, name)
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
