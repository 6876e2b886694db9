"""The parts of an application, connected: what its workers and tools use."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from mainspring.bulk.api import Bulk
from mainspring.bulk.timer import BulkFeature
from mainspring.code_version import checked, code_version
from mainspring.context import Context
from mainspring.errors import UnknownTask
from mainspring.events import Bus
from mainspring.feature import Features
from mainspring.features.batches import api as batches
from mainspring.features.batches.api import Batches
from mainspring.features.batches.feature import BatchesFeature
from mainspring.features.breakers.api import Breakers
from mainspring.features.breakers.feature import BreakersFeature
from mainspring.features.debounce.feature import DebounceFeature
from mainspring.features.delivery.feature import DeliveryFeature
from mainspring.features.dependencies.feature import DependenciesFeature
from mainspring.features.durable.feature import DurableFeature
from mainspring.features.expiry.feature import ExpiryFeature
from mainspring.features.failures.api import Failures
from mainspring.features.failures.feature import FailuresFeature
from mainspring.features.failures.storage import Groups
from mainspring.features.limits.api import Limits
from mainspring.features.limits.feature import LimitsFeature
from mainspring.features.limits.options import DeclaredLimits
from mainspring.features.recovery.feature import RecoveryFeature
from mainspring.features.settings.api import Settings
from mainspring.features.settings.feature import PausedTasksFeature
from mainspring.halt_check import HaltedOption, OutsideHalt
from mainspring.health import Contact
from mainspring.jobs import Jobs
from mainspring.live_settings import LiveSettings
from mainspring.middleware import Middleware
from mainspring.observer import Observers
from mainspring.options import DefaultOptions, Defaults
from mainspring.pipeline import Pipeline
from mainspring.services import Services
from mainspring.stores.protocol import Store
from mainspring.subscribers import Subscribers
from mainspring.task import Task, TaskServices
from mainspring.timers import Timers

if TYPE_CHECKING:
    from mainspring.features.people.api import People
    from mainspring.features.people.feature import PeopleFeature
    from mainspring.features.people.occasions import Occasions
    from mainspring.features.schedules.api import Schedules
    from mainspring.published import PublishedTasks


class RunningJobs(Protocol):
    """What tools may see of a worker of this process."""

    def queues(self) -> Counter[str]:
        """Return how many jobs of each queue run now."""


class Runtime:
    """All parts of one application, for workers, tools and extensions. Programs use what `Mainspring` shows of it."""

    internal_tasks = frozenset({batches.TASK})  # names of Mainspring's own tasks, which every worker knows

    def __init__(
        self, store: Store, defaults: DefaultOptions, halted: HaltedOption | None = None, version: str | None = None
    ) -> None:
        self._given_version = None if version is None else checked(version, "version")
        outside_halt = None if halted is None else OutsideHalt(halted)
        self.tasks: dict[str, Task[..., Any, Any]] = {}
        self.services = services = Services(store, tasks=self.tasks, outside_halt=outside_halt)
        self.live_runs: dict[str, RunningJobs] = {}  # of the workers in this process, by their ids
        self.extensions: dict[str, Any] = {}  # what tools keep with an application, by the names of their modules
        self.features = Features()
        self.live_settings = LiveSettings(services)
        self.pipeline = Pipeline(services, self.features, self.live_settings)
        if outside_halt is not None and outside_halt.check.reject_new:
            self.pipeline.refuse = outside_halt.refuse
        self.contact = Contact(services.store.url, services.bus)
        self.jobs = Jobs(services, self.pipeline)
        self.middleware = Middleware()
        self.observers = Observers()
        self.defaults = Defaults(defaults)
        self.breakers = Breakers(services)
        self.batches = Batches(services, self.pipeline, self.jobs.cancel_where)
        self.limits = Limits(services)
        groups = Groups(services)
        self.failures = Failures(services, groups, self.jobs.retry_where)
        self.subscribers = Subscribers(services)
        self.declared_limits = DeclaredLimits(self.tasks, on_first=lambda: self.features.use(limits))
        limits = LimitsFeature(services, self.declared_limits)
        self.settings = Settings(services, self.live_settings, self.declared_limits)
        debounce = DebounceFeature(services, self.pipeline)
        self.dependencies = DependenciesFeature(services)
        for feature in (
            DurableFeature(services),
            debounce,
            ExpiryFeature(services),
            # Before those that suspend jobs without a time. People are imported at first use.
            DeliveryFeature(services, lambda ids: self.people.hours(ids)),  # noqa: PLW0108
            self.dependencies,
            BreakersFeature(self.breakers),
            BatchesFeature(self.batches),
        ):
            self.features.add(feature)
        paused_tasks = PausedTasksFeature(services, self.live_settings, lambda: self.features.use(paused_tasks))
        self.features.add(paused_tasks, in_use=False)  # until a task is paused
        self.recovery = RecoveryFeature(services, self.breakers)
        self.features.add(self.recovery)
        self.features.add(FailuresFeature(groups))
        self.bulk = Bulk(services)
        self.features.add(BulkFeature(services, self.jobs))
        self.features.add(limits, in_use=False)  # until a limit is declared
        self.live_settings.listeners += [paused_tasks, limits]
        tools = self.jobs, self.defaults, self.middleware
        self.shared = TaskServices(
            services, self.pipeline, *tools, self.declared_limits, debounce, self.breakers, self.live_settings
        )

    async def close(self) -> None:
        await self.services.close()

    @cached_property
    def version(self) -> str:
        """Return the version of the user's code, which workers record with each run; empty if there is none."""
        return code_version(self._given_version)

    @property
    def store(self) -> Store:
        return self.services.store

    @store.setter
    def store(self, store: Store) -> None:
        self.services.store = store

    @property
    def bus(self) -> Bus:
        return self.services.bus

    @bus.setter
    def bus(self, bus: Bus) -> None:
        self.services.bus = bus

    @cached_property
    def schedules(self) -> Schedules:
        """Return the schedules. They are imported at first use, to keep imports fast for programs without schedules."""
        from mainspring.features.schedules.api import Schedules

        return Schedules(self.services, self.pipeline)

    @cached_property
    def timers(self) -> Timers:
        """Return the timers: what workers do when documents come due."""
        from mainspring.features.schedules.feature import SchedulesFeature

        self.features.add(SchedulesFeature(self.services, self.pipeline))
        return Timers(self.services, self.features)

    @cached_property
    def people(self) -> People:
        """Return the people. They are imported at first use, to keep imports fast for programs without people."""
        from mainspring.features.people.api import People

        return People(self.services, self.jobs.cancel_where, lambda: self.people_feature.kinds)

    @cached_property
    def people_feature(self) -> PeopleFeature:
        from mainspring.features.people.feature import PeopleFeature

        feature = PeopleFeature(self.services, self.pipeline, self.people)
        self.features.add(feature)
        return feature

    @cached_property
    def occasions(self) -> Occasions:
        from mainspring.features.people.occasions import Occasions

        return Occasions(self.services, self.people)

    @cached_property
    def published(self) -> PublishedTasks:
        """Return the tasks that workers have published. Most programs enqueue only their own."""
        from mainspring.published import PublishedTasks  # noqa: PLC0415 - as said

        return PublishedTasks(self.shared)

    # -- tasks --------------------------------------------------------------------------------

    def task_named(self, name: str) -> Task[..., Any, Any] | None:
        """Return the task for a worker: a registered one, or an internal one."""
        return self.tasks.get(name) or self.internal_task(name)

    def internal_task(self, name: str) -> Task[..., Any, Any] | None:
        """Return Mainspring's own task of this name, if there is one."""
        return self._batch_task if name == batches.TASK else None

    def find_task(self, name: str) -> Task[..., Any, Any]:
        try:
            return self.tasks[name]
        except KeyError:
            known = ", ".join(sorted(self.tasks)) or "none"
            msg = f"no task is named {name!r} here; known are: {known}"
            raise UnknownTask(msg) from None

    @cached_property
    def _batch_task(self) -> Task[..., Any, Any]:
        """Return the task of the job that waits for all jobs of a batch. Every worker knows it."""

        async def follow(
            ctx: Context,
            on_success: dict[str, Any] | None,
            on_failure: dict[str, Any] | None,
            on_finished: dict[str, Any] | None,
        ) -> dict[str, Any]:
            progress, jobs = await self.batches.follow(ctx.job_id, on_success, on_failure, on_finished)
            ctx.follow_up(*jobs)
            return progress.to_data()

        task: Task[..., Any, Any] = Task(self.shared, follow, batches.TASK, options={})
        task.is_internal = True
        return task
