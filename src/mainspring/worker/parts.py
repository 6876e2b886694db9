"""Makes the parts of a worker and connects them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainspring.runtime import Runtime
from mainspring.stores.protocol import Wake
from mainspring.worker.acker import Acker, AfterAck
from mainspring.worker.admission import Admission
from mainspring.worker.contexts import Contexts
from mainspring.worker.executor import Executor
from mainspring.worker.gate import Gate
from mainspring.worker.intake import Intake
from mainspring.worker.maintenance import Maintenance
from mainspring.worker.membership import Heartbeat, Membership
from mainspring.worker.observation import observed
from mainspring.worker.outage import Outage
from mainspring.worker.progress import Progress
from mainspring.worker.publication import Publication
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.slots import Runs, SlotPool
from mainspring.worker.stuck import StuckSlots
from mainspring.worker.threads import Threads
from mainspring.worker.unknown_tasks import UnknownTasks
from mainspring.worker.unreadable_jobs import Unreadable


class Parts:
    """The parts of one worker, for the running event loop.

    Jobs pass them from the bottom of this constructor to its top: each part is given those that it passes jobs on to.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: WorkerSettings,
        stopping: asyncio.Event,
        on_wake: Callable[[Wake], None],
        make_executor: Callable[..., Executor] = Executor,
    ) -> None:
        store, worker = runtime.store, settings.id
        self.outage = outage = Outage(worker, runtime.contact)

        self.after_ack = AfterAck(runtime, worker, log_completions=settings.log_completions)
        self.progress = Progress(runtime, worker)
        self.acker = Acker(
            runtime.pipeline, self.after_ack, outage, delay=settings.ack_delay, write_progress=self.progress.write_last
        )
        stuck = StuckSlots(worker, store.stall_grace / 1000)
        self.runs = Runs(runtime, worker, self.acker, self.after_ack, stuck)
        self.heartbeat = Heartbeat(store, worker, self.runs, outage, interval=settings.heartbeat_interval)
        self.gate = Gate(runtime, worker, self.runs, self.heartbeat, outage)

        threads = Threads()
        contexts = Contexts(runtime, worker, self.progress, threads)
        self.executor = make_executor(
            contexts,
            self.gate,
            runtime.middleware,
            threads,
            processes=settings.child_processes,
            clock=store.clock,
            observers=runtime.observers,
        )
        runner = observed(self.executor, runtime.observers, self.gate, worker)
        self.slots = SlotPool(settings.concurrency, self.runs, self.gate, runner)
        self.unreadable = Unreadable(runtime, worker)
        self.admission = Admission(
            runtime, self.gate, self.runs, self.slots, after_ack=self.after_ack, unreadable=self.unreadable
        )
        self.membership = Membership(runtime, settings, outage, on_wake)
        self.unknown_tasks = UnknownTasks(runtime, worker, outage)
        self.intake = Intake(
            runtime, settings, self.gate, self.runs, self.admission,
            membership=self.membership, unknown=self.unknown_tasks, outage=outage,
        )  # fmt: skip
        self.gate.resumed = self.intake.wake
        self.publication = Publication(runtime, worker)
        keep_audit = int(settings.audit_days * 86_400_000)
        self.maintenance = Maintenance(runtime, worker, self.after_ack, self.heartbeat, stopping, keep_audit=keep_audit)
