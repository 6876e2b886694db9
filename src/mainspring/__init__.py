"""Mainspring runs jobs durably and on time.

from mainspring import Mainspring

app = Mainspring("sqlite:///jobs.db")

@app.task(queue="mail")
async def welcome(guest_id: str) -> None: ...

await welcome.using(delay=3600).enqueue(guest_id="g1")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mainspring.app import Mainspring
from mainspring.changes import ChangeStream
from mainspring.chunk import Item
from mainspring.context import Context
from mainspring.errors import (
    BatchNotFound,
    BreakerNotFound,
    Cancel,
    CannotStoreResult,
    ChangesLost,
    ClaimLost,
    ConfigurationError,
    DedupeConflict,
    Discard,
    Failure,
    FailureGroupNotFound,
    IllegalMove,
    InvalidPayload,
    InvalidPerson,
    InvalidSchedule,
    JobFailed,
    JobNotFound,
    MainspringError,
    MissingExtra,
    PersonNotFound,
    ScheduleNotFound,
    Snooze,
    StepFailed,
    StepNotFound,
    StepsChanged,
    StepTimeout,
    StoreError,
    StoreUnavailable,
    SystemHalted,
    UnknownTask,
    UnknownTimeZone,
    UnplannedStep,
    UnsupportedStore,
    WorkerStuck,
)
from mainspring.features.batches.api import BatchHandle
from mainspring.features.batches.rules import BatchProgress
from mainspring.features.breakers.options import Breaker
from mainspring.features.debounce.options import Debounce, Throttle
from mainspring.features.delivery.options import Window
from mainspring.features.durable.children import Child
from mainspring.features.durable.plan import StepPlan
from mainspring.features.durable.signals import Signal
from mainspring.features.failures.group import FailureGroup, GroupPage, GroupState
from mainspring.features.limits import Fair, Limit, Rate
from mainspring.features.recovery.options import Recover
from mainspring.halt_check import HaltCheck
from mainspring.halting import HaltResult
from mainspring.handle import JobHandle
from mainspring.health import Health
from mainspring.job import Job, NewJob, Priority, Status
from mainspring.middleware import EnqueueCall, RunCall
from mainspring.numbers import Numbers
from mainspring.options import Chunk, Retention
from mainspring.redaction import Redaction
from mainspring.retry import Retry
from mainspring.stores.feed import Change, ChangeFilter, ChangeKind
from mainspring.stores.protocol import Filter
from mainspring.subscribers import SubscriberState
from mainspring.task import Task

if TYPE_CHECKING:
    from mainspring.encryption import Keys
    from mainspring.features.people import Occasion, Person
    from mainspring.features.schedules.rules import (
        BusinessCalendar,
        Cron,
        Daily,
        Interval,
        Misfire,
        Monthly,
        Once,
        RRule,
        Schedule,
        SchedulePause,
        TzData,
        Weekly,
        Yearly,
        compare_schedules,
        preview_schedule,
        tzdata_version,
    )
    from mainspring.leases import Lease, Lessee
    from mainspring.worker import Worker

__all__ = [
    "BatchHandle",
    "BatchNotFound",
    "BatchProgress",
    "Breaker",
    "BreakerNotFound",
    "BusinessCalendar",
    "Cancel",
    "CannotStoreResult",
    "Change",
    "ChangeFilter",
    "ChangeKind",
    "ChangeStream",
    "ChangesLost",
    "Child",
    "Chunk",
    "ClaimLost",
    "ConfigurationError",
    "Context",
    "Cron",
    "Daily",
    "Debounce",
    "DedupeConflict",
    "Discard",
    "EnqueueCall",
    "Failure",
    "FailureGroup",
    "FailureGroupNotFound",
    "Fair",
    "Filter",
    "GroupPage",
    "GroupState",
    "HaltCheck",
    "HaltResult",
    "Health",
    "IllegalMove",
    "Interval",
    "InvalidPayload",
    "InvalidPerson",
    "InvalidSchedule",
    "Item",
    "Job",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "Keys",
    "Lease",
    "Lessee",
    "Limit",
    "Mainspring",
    "MainspringError",
    "Misfire",
    "MissingExtra",
    "Monthly",
    "NewJob",
    "Numbers",
    "Occasion",
    "Once",
    "Person",
    "PersonNotFound",
    "Priority",
    "RRule",
    "Rate",
    "Recover",
    "Redaction",
    "Retention",
    "Retry",
    "RunCall",
    "Schedule",
    "ScheduleNotFound",
    "SchedulePause",
    "Signal",
    "Snooze",
    "Status",
    "StepFailed",
    "StepNotFound",
    "StepPlan",
    "StepTimeout",
    "StepsChanged",
    "StoreError",
    "StoreUnavailable",
    "SubscriberState",
    "SystemHalted",
    "Task",
    "Throttle",
    "TzData",
    "UnknownTask",
    "UnknownTimeZone",
    "UnplannedStep",
    "UnsupportedStore",
    "Weekly",
    "Window",
    "Worker",
    "WorkerStuck",
    "Yearly",
    "compare_schedules",
    "preview_schedule",
    "tzdata_version",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


LAZY = {
    **dict.fromkeys(("Occasion", "Person"), "mainspring.features.people"),
    **dict.fromkeys(
        (
            "BusinessCalendar", "Cron", "Daily", "Interval", "Misfire", "Monthly", "Once", "RRule", "Schedule",
            "SchedulePause",
            "Weekly", "Yearly", "TzData", "compare_schedules", "preview_schedule", "tzdata_version",
        ),
        "mainspring.features.schedules.rules",
    ),
    "Keys": "mainspring.encryption",
    **dict.fromkeys(("Lease", "Lessee"), "mainspring.leases"),
    "Worker": "mainspring.worker",
}  # fmt: skip

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import at first use what most programs do not need, so that importing mainspring stays fast."""
        if name in LAZY:
            return getattr(import_module(LAZY[name]), name)
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
