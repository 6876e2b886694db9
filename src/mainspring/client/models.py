"""What the service answers. The names are those of the OpenAPI document."""

from __future__ import annotations

from pydantic import Field

from mainspring.service.answers.audit import AuditPage, AuditView
from mainspring.service.answers.batches import BatchCancelled, BatchPage, BatchSummaryView, BatchView, NewBatchView
from mainspring.service.answers.breakers import BreakerList, BreakerView
from mainspring.service.answers.bulk import AffectedPage, AffectedView, BulkPage, BulkView
from mainspring.service.answers.completion import EndedView
from mainspring.service.answers.dead import ChangedView, DeadPage
from mainspring.service.answers.failures import GroupPage, GroupView, RetriedView
from mainspring.service.answers.leases import ClaimView, LeaseView, LeftView, PulseView, ReplyView, ReportView
from mainspring.service.answers.limits import LimitList, LimitView, SubscriberList, SubscriberView
from mainspring.service.answers.live_settings import ClearedView, SettingList, SettingView
from mainspring.service.answers.numbers import CompletionsView, NumbersView, StatsView
from mainspring.service.answers.orders import OrderView
from mainspring.service.answers.people import PeoplePage, PersonOccasions, PersonView, UpcomingList, UpcomingView
from mainspring.service.answers.probes import QueueStats, SchedulerHealth
from mainspring.service.answers.public_tokens import PublicTokenView, RotatedView
from mainspring.service.answers.secrets import SecretList, SecretTextView, SecretView
from mainspring.service.answers.sessions import SessionList, SessionView
from mainspring.service.answers.signals import SignalView
from mainspring.service.answers.users import UserView
from mainspring.service.schedule_views import (
    DiffView,
    LedgerView,
    PreviewView,
    ScheduleList,
    ScheduleView,
    SimulationView,
    TriggeredView,
)
from mainspring.service.views import (
    BulkEnqueued,
    BulkResult,
    CancelledView,
    EnqueuedView,
    HaltedView,
    HaltList,
    HaltView,
    HealthView,
    JobDetail,
    JobPage,
    JobView,
    NewTokenView,
    QueueDetail,
    QueueList,
    QueueView,
    ResumedView,
    TaskDetail,
    TaskList,
    TaskView,
    TokenList,
    TokenView,
    WorkerList,
    WorkerView,
)


class Schedule(ScheduleView):
    """A schedule, with the ETag of its answer."""

    etag: str = Field(default="", description="give it as if_match to change only what you have read")


class Person(PersonView):
    """A person, with the ETag of its answer."""

    etag: str = Field(default="", description="give it as if_match to change only what you have read")


class User(UserView):
    """A user, with the ETag of its answer."""

    etag: str = Field(default="", description="give it as if_match to change only what you have read")


class OwnerSettings(SettingList):
    """The changed settings of a task, a queue or a limit, with the ETag of their answer."""

    etag: str = Field(default="", description="give it as if_match to change only what you have read")


__all__ = [
    "AffectedPage",
    "AffectedView",
    "AuditPage",
    "AuditView",
    "BatchCancelled",
    "BatchPage",
    "BatchSummaryView",
    "BatchView",
    "BreakerList",
    "BreakerView",
    "BulkEnqueued",
    "BulkPage",
    "BulkResult",
    "BulkView",
    "CancelledView",
    "ChangedView",
    "ClaimView",
    "ClearedView",
    "CompletionsView",
    "DeadPage",
    "DiffView",
    "EndedView",
    "EnqueuedView",
    "GroupPage",
    "GroupView",
    "HaltList",
    "HaltView",
    "HaltedView",
    "HealthView",
    "JobDetail",
    "JobPage",
    "JobView",
    "LeaseView",
    "LedgerView",
    "LeftView",
    "LimitList",
    "LimitView",
    "NewBatchView",
    "NewTokenView",
    "NumbersView",
    "OrderView",
    "OwnerSettings",
    "PeoplePage",
    "Person",
    "PersonOccasions",
    "PersonView",
    "PreviewView",
    "PublicTokenView",
    "PulseView",
    "QueueDetail",
    "QueueList",
    "QueueStats",
    "QueueView",
    "ReplyView",
    "ReportView",
    "ResumedView",
    "RetriedView",
    "RotatedView",
    "Schedule",
    "ScheduleList",
    "ScheduleView",
    "SchedulerHealth",
    "SecretList",
    "SecretTextView",
    "SecretView",
    "SessionList",
    "SessionView",
    "SettingList",
    "SettingView",
    "SignalView",
    "SimulationView",
    "StatsView",
    "SubscriberList",
    "SubscriberView",
    "TaskDetail",
    "TaskList",
    "TaskView",
    "TokenList",
    "TokenView",
    "TriggeredView",
    "UpcomingList",
    "UpcomingView",
    "User",
    "UserView",
    "WorkerList",
    "WorkerView",
]
