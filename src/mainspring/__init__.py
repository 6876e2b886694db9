"""Mainspring runs jobs durably and on time.

from mainspring import Mainspring

app = Mainspring("sqlite:///jobs.db")

@app.task(queue="mail")
async def welcome(guest_id: str) -> None: ...

await welcome.using(delay=3600).enqueue(guest_id="g1")
"""

from mainspring.app import Mainspring
from mainspring.context import Context
from mainspring.errors import Cancel, Discard, MainspringError, Snooze
from mainspring.health import Health
from mainspring.job import Job, Priority, Status
from mainspring.occasions import Occasion, Person
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

__all__ = [
    "BusinessCalendar",
    "Cancel",
    "Context",
    "Cron",
    "Daily",
    "Discard",
    "Every",
    "Filter",
    "Health",
    "Job",
    "JobHandle",
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
    "Retention",
    "Retry",
    "Schedule",
    "Snooze",
    "Status",
    "Task",
    "Weekly",
    "Yearly",
]
