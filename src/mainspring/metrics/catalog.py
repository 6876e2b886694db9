"""Every metric: its name, its type, its labels and what it means. docs/service-metrics.md has the same tables.

The metrics in `PROCESS` are about one process, and those in `CLUSTER` are read from the store. So the latter are the
same on every process, and must not be added up: use `max by (…)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, which has a series for each combination of values of its labels."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


def counter(name: str, *labels: str, help: str) -> Metric:
    return Metric(f"mainspring_{name}", "counter", labels, help)


def gauge(name: str, *labels: str, help: str) -> Metric:
    return Metric(f"mainspring_{name}", "gauge", labels, help)


def histogram(name: str, *labels: str, help: str) -> Metric:
    return Metric(f"mainspring_{name}", "histogram", labels, help)


# -- about this process ---------------------------------------------------------------------------

ENQUEUED = counter(
    "enqueued_total", "queue", "task", "via",
    help="Jobs that this process has enqueued: via the app's code, the api, a job's handler or a timer.",
)  # fmt: skip
DEDUPLICATED = counter(
    "deduplicated_total", "queue", "task", help="Enqueues that found another job which holds their dedupe key."
)
STARTED = counter("jobs_started_total", "queue", "task", help="Runs that began.")
FINISHED = counter(
    "jobs_finished_total", "queue", "task", "outcome", help="Jobs that ended: completed, dead_letter or cancelled."
)
RETRIED = counter(
    "jobs_retried_total", "queue", "task", "reason",
    help="Runs that failed and are tried again, because of an error, a timeout or a crash.",
)  # fmt: skip
STALLED = counter(
    "jobs_stalled_total", "queue", "task", help="Runs that overran their timeout and grace, and were taken over."
)
DEFERRED = counter(
    "jobs_deferred_total", "queue", "task", "reason", help="Runs that did not end: snoozed, suspended or released."
)
DURATION = histogram(
    "job_duration_seconds", "queue", "task", help="How long runs took that succeeded or failed, in seconds."
)
WAIT = histogram("job_wait_seconds", "queue", help="How long jobs waited from when they were due until they started.")
RUNNING = gauge("job_running", "queue", help="Jobs that run in this process now.")
HEARTBEAT = gauge(
    "worker_heartbeat_timestamp_seconds",
    help="When a worker of this process last sent its heartbeat, as a Unix time.",
)
SCHEDULES_FIRED = counter("schedules_fired_total", "schedule", help="Occurrences of schedules that made a job.")
SCHEDULES_SKIPPED = counter(
    "schedules_skipped_total", "schedule", "reason", help="Occurrences of schedules that made no job."
)
OCCASIONS_FIRED = counter("occasions_fired_total", "kind", help="Occasions of people that made a job.")
OCCASIONS_SKIPPED = counter("occasions_skipped_total", "kind", "reason", help="Occasions of people that made no job.")
BREAKER_CALLS = counter(
    "breaker_calls_total", "name", "outcome",
    help="Calls through ctx.breaker: good, bad, or ignored if they say nothing about the service.",
)  # fmt: skip
BREAKER_SECONDS = histogram("breaker_call_seconds", "name", help="How long calls through ctx.breaker took, in seconds.")
DELIVERIES = counter(
    "deliveries_total", "channel", "outcome", help="Messages that were given to another system: sent or failed."
)
DELIVERY_SECONDS = histogram(
    "delivery_seconds", "channel", help="How long other systems took to accept or refuse a message, in seconds."
)
STORE_UP = gauge("store_up", help="1 if the store answers this process, otherwise 0.")
STORE_SECONDS = histogram("store_operation_seconds", "op", help="How long operations of the store took, in seconds.")
STORE_ERRORS = counter("store_errors_total", "op", help="Operations of the store that failed.")
STORE_CONNECTIONS = gauge(
    "store_connections", "state", help="Connections to the database: active, idle, or limit. Only PostgreSQL has them."
)
STORE_MEASURE = gauge(
    "store_measure", "measure",
    help="What the store's driver counts in this process. PostgreSQL and DynamoDB do; their pages explain the names.",
)  # fmt: skip
HTTP_SECONDS = histogram(
    "http_request_seconds", "route", "method", "status",
    help="How long requests took until the answer began, in seconds.",
)  # fmt: skip
SSE_CLIENTS = gauge("sse_clients", help="Clients that follow live events: server-sent events and WebSockets.")
FEED_LAG = gauge(
    "feed_lag_seconds", help="How old the newest change was when this process read it for its live clients."
)
BUILD = gauge("build_info", "version", help="Always 1. The label is the version of Mainspring.")

PROCESS = (
    ENQUEUED, DEDUPLICATED, STARTED, FINISHED, RETRIED, STALLED, DEFERRED, DURATION, WAIT, RUNNING, HEARTBEAT,
    SCHEDULES_FIRED, SCHEDULES_SKIPPED, OCCASIONS_FIRED, OCCASIONS_SKIPPED, BREAKER_CALLS, BREAKER_SECONDS,
    DELIVERIES, DELIVERY_SECONDS, STORE_UP, STORE_SECONDS, STORE_ERRORS, STORE_CONNECTIONS, STORE_MEASURE,
    HTTP_SECONDS, SSE_CLIENTS, FEED_LAG, BUILD,
)  # fmt: skip

# -- about all processes --------------------------------------------------------------------------

QUEUE_JOBS = gauge("queue_jobs", "queue", "status", help="Jobs of a queue in each status.")
QUEUE_DUE = gauge("queue_due", "queue", help="Jobs that could start now, counted up to 10,000.")
QUEUE_AGE = gauge(
    "queue_oldest_due_age_seconds", "queue", help="How long the oldest due job has waited; 0 if no job is due."
)
QUEUE_PAUSED = gauge("queue_paused", "queue", help="1 if the queue is paused, otherwise 0.")
HALTED = gauge("halted", help="1 if the whole system is halted, otherwise 0.")
DEAD_AGE = gauge(
    "dead_letter_oldest_age_seconds", "queue", help="How long ago the oldest dead letter failed; 0 if there is none."
)
DEAD_UNRESOLVED = gauge(
    "dead_letters_unresolved", "queue", "task",
    help="Dead letters in the 500 open failure groups that failed most recently; up to 1,000 are counted in each.",
)  # fmt: skip
JOBS_STALLED = gauge("stalled_jobs", help="Jobs that run longer than their timeout and grace, now.")
UNKNOWN_JOBS = gauge(
    "unknown_task_jobs", "task", help="Due jobs whose task no live worker of their queue knows, up to 10,000."
)
UNREADABLE_WORKERS = gauge(
    "unreadable_queue_workers", "queue",
    help="Live workers that could not decrypt jobs of the queue in the last minute.",
)  # fmt: skip
WORKERS = gauge("workers", "kind", help="Live workers: local ones run Python, remote ones use leases.")
SLOTS = gauge("worker_slots", "state", help="Slots of all live workers: all of them, and those that are stuck.")
LATENESS = gauge(
    "schedule_lateness_seconds", help="Seconds by which the most overdue schedule is late; 0 if none is late."
)
BREAKER_STATE = gauge("breaker_state", "name", help="0 if a circuit breaker is closed, 1 if half open, 2 if open.")
TODAY_JOBS = counter(
    "today_jobs_total", "queue", "event",
    help="What happened to jobs since 00:00 UTC: enqueued, started, completed, retried, dead, cancelled, stalled.",
)  # fmt: skip
TODAY_TASK_JOBS = counter(
    "today_task_jobs_total", "task", "event", help="The same as mainspring_today_jobs_total for each task."
)
TODAY_WAIT = histogram(
    "today_job_wait_seconds", "queue", help="How long jobs waited until they were claimed, since 00:00 UTC."
)
TODAY_DURATION = histogram(
    "today_job_duration_seconds", "task", help="How long runs took that succeeded or failed, since 00:00 UTC."
)

CLUSTER = (
    QUEUE_JOBS, QUEUE_DUE, QUEUE_AGE, QUEUE_PAUSED, HALTED, DEAD_AGE, DEAD_UNRESOLVED, JOBS_STALLED, UNKNOWN_JOBS,
    UNREADABLE_WORKERS,
    WORKERS, SLOTS, LATENESS, BREAKER_STATE, TODAY_JOBS, TODAY_TASK_JOBS, TODAY_WAIT, TODAY_DURATION,
)  # fmt: skip
