"""The settings of a worker, in one frozen object."""

from __future__ import annotations

import os
import secrets
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypedDict, Unpack

from mainspring.errors import ConfigurationError
from mainspring.queue_patterns import is_part_of, is_pattern
from mainspring.stores.protocol import EVERY_QUEUE


@dataclass(frozen=True, slots=True)
class Subscription:
    """One queue from which a worker takes jobs."""

    queue: str
    weight: int = 1  # the queue's share of the claims, unless the order is strict
    concurrency: int | None = None  # at most this many of its jobs run at once in this worker

    def __post_init__(self) -> None:
        if not self.queue or self.weight < 1 or (self.concurrency is not None and self.concurrency < 1):
            msg = f"{self}: a queue needs a name, and its weight and concurrency are at least 1"
            raise ConfigurationError(msg)


Queues = str | Iterable[str | Subscription] | Mapping[str, int]


def subscriptions(queues: Queues, concurrency: Mapping[str, int] | None = None) -> tuple[Subscription, ...]:
    """Return the subscriptions for `"*"`, `["mail", "default"]`, `{"mail": 3, "default": 1}` (weights) or a mix."""
    limits = dict(concurrency or {})
    if isinstance(queues, str):
        queues = [queues]
    given: Iterable[Subscription]
    if isinstance(queues, Mapping):
        given = [Subscription(name, weight) for name, weight in queues.items()]
    else:
        given = [queue if isinstance(queue, Subscription) else Subscription(queue) for queue in queues]
    made = tuple(Subscription(s.queue, s.weight, limits.pop(s.queue, s.concurrency)) for s in given)
    if limits:
        msg = f"queue_concurrency names queues that the worker does not take from: {', '.join(limits)}"
        raise ConfigurationError(msg)
    if not made:
        msg = 'a worker needs at least one queue; "*" is all of them'
        raise ConfigurationError(msg)
    refuse_contradictions(made)
    return made


def refuse_contradictions(made: tuple[Subscription, ...]) -> None:
    names = [subscription.queue for subscription in made]
    if twice := [name for name, number in Counter(names).items() if number > 1]:
        msg = f"a worker takes from each queue once; named twice: {', '.join(twice)}"
        raise ConfigurationError(msg)
    for pattern in filter(is_pattern, names):
        others = (s for s in made if s.concurrency is not None and s.queue != pattern)
        if limited := [s.queue for s in others if is_part_of(s.queue, pattern)]:
            taken = ", ".join(limited)
            msg = f'"{pattern}" also takes from {taken}, whose limit would not hold: name the other queues instead'
            raise ConfigurationError(msg)


def refuse_share(exit_when_stuck: float | None) -> None:
    if exit_when_stuck is not None and not 0 < exit_when_stuck <= 1:
        msg = (
            f"exit_when_stuck is {exit_when_stuck!r}, but it is a share of the slots: give a number above 0 and up to"
            " 1, such as 0.5, or None to go on however many are stuck"
        )
        raise ConfigurationError(msg)


def new_worker_id() -> str:
    """Return an id that is unique per start and readable in logs: machine, process, and a few random letters."""
    host = "".join(c if c.isalnum() else "-" for c in socket.gethostname())[:24]
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


class WorkerOptions(TypedDict, total=False):
    """The keyword arguments of `Worker(app, …)` and `app.worker(…)`; `WorkerSettings` says what each one means."""

    queues: Queues
    queue_concurrency: Mapping[str, int]  # per queue: at most this many of its jobs run at once in this worker
    strict: bool
    concurrency: int
    child_processes: int
    prefetch: int
    ack_delay: float
    grace: float
    heartbeat_interval: float
    maintenance_interval: float
    audit_days: float
    exit_when_stuck: float | None
    log_completions: bool
    schedules: bool
    id: str


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Everything that can be set about a worker."""

    queues: tuple[Subscription, ...] = (Subscription(EVERY_QUEUE),)
    strict: bool = False  # take from a later queue only when the earlier ones are empty
    concurrency: int = 100  # jobs at once: coroutines, threads and processes together
    child_processes: int = field(default_factory=lambda: os.cpu_count() or 1)  # for isolation="process"
    prefetch: int = 2000  # at most this many jobs are claimed ahead; fewer if jobs finish slowly
    ack_delay: float = 0.005  # seconds a finished job may wait for others to be written with it
    grace: float = 30.0  # seconds that running jobs get to finish when the worker stops
    heartbeat_interval: float = 1.0  # seconds
    maintenance_interval: float = 1.0  # seconds between checks for dead workers and stalled jobs
    audit_days: float = 400.0  # after which entries of the audit log are deleted
    log_completions: bool = False  # log each job that completes at info rather than debug
    schedules: bool = True  # fire schedules and occasions; False: other workers do
    exit_when_stuck: float | None = None  # hand back the jobs and exit when this share of the slots is stuck
    id: str = field(default_factory=new_worker_id)

    def __post_init__(self) -> None:
        refuse_share(self.exit_when_stuck)
        if not 0 < self.audit_days < 1_000_000:
            msg = f"audit_days is {self.audit_days!r}; give the days for which the audit log is kept, such as 400"
            raise ConfigurationError(msg)
        if self.concurrency < 1 or self.child_processes < 1 or self.prefetch < 0:
            msg = "concurrency and child_processes are at least 1, prefetch at least 0"
            raise ConfigurationError(msg)
        if min(self.ack_delay, self.grace) < 0 or min(self.heartbeat_interval, self.maintenance_interval) <= 0:
            msg = (
                "ack_delay and grace must not be negative; heartbeat_interval and maintenance_interval must be positive"
            )
            raise ConfigurationError(msg)
        refuse_contradictions(self.queues)

    @classmethod
    def of(cls, **options: Unpack[WorkerOptions]) -> Self:
        if unknown := options.keys() - WorkerOptions.__annotations__.keys():
            known = ", ".join(WorkerOptions.__annotations__)
            msg = f"a worker has no setting named {', '.join(sorted(unknown))}; its settings are {known}"
            raise ConfigurationError(msg)
        rest: dict[str, Any] = dict(options)
        queues = subscriptions(rest.pop("queues", EVERY_QUEUE), rest.pop("queue_concurrency", None))
        return cls(queues=queues, **rest)
