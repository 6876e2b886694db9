"""What is stored with a job, as JSON, for its worker and for the features.

Each feature has its own key. A job that lacks a key does not concern that feature, or has what its task declares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypedDict, Unpack, cast

from mainspring.job import NewJob
from mainspring.json_text import read_object


class AfterOption(TypedDict):
    """The jobs that come before a job, and what happens if one of them does not complete."""

    jobs: list[str]
    on_failed: str


class ParentOption(TypedDict):
    """The durable function that spawned a job."""

    id: str
    cancel: bool  # whether cancelling the parent cancels this job


class OccurrenceOption(TypedDict):
    """The time of a schedule that a job is for."""

    schedule: str
    nominal: str
    utc: str


class PutOffOption(TypedDict):
    """Why a job is later than asked for."""

    until: int
    reason: str


class ReplayOption(TypedDict):
    """The job that a job replays, and the step from which on it runs again."""

    of: str
    from_step: str | None  # None: from its beginning


class OnEndOption(TypedDict, total=False):
    """The jobs that follow a job's end, each as the fields of a `NewJob`; see stores/engine/ends.py."""

    completed: Mapping[str, Any]  # if the job completes
    failed: Mapping[str, Any]  # if it ends in another way


class StoredOptions(TypedDict, total=False):
    """The options that are stored with a job."""

    retry: Mapping[str, Any]  # this enqueue's own policy
    isolation: str
    steps: tuple[str, ...]  # of a durable function, declared in advance
    plan: list[list[Any]]  # of a durable function: the steps that the enqueue asked for, each with its timeout or None
    headers: Mapping[str, str]
    trace: Mapping[str, str]  # the trace context; empty: the job does not join the trace of the job that enqueues it
    paused: bool  # never stored: the settings that pause a task are documents
    newest: str  # debounce: the key under which only the newest job runs
    start_by: int | Mapping[str, Any]  # expiry
    after: AfterOption  # dependencies
    deliver: Mapping[str, Any] | None  # delivery; None: the hours that the task declares
    put_off: PutOffOption  # delivery
    breaker: str
    limits: str  # limits: the key for which a job of a fair task is counted already
    parent: ParentOption  # durable
    batch: Mapping[str, Any]  # batches: the batch that this job follows
    members_of: int  # batches: the number of jobs that this job waits for
    occurrence: OccurrenceOption  # schedules
    on_end: OnEndOption
    replay: ReplayOption  # durable


def options_of(text: str | None) -> StoredOptions:
    return cast("StoredOptions", read_object(text))


def has_on_end(options: str | None) -> bool:
    """Return whether jobs may follow the job's end: whether it has such an option, or a text that looks like one."""
    return options is not None and '"on_end"' in options


def with_options(job: NewJob, **changes: Unpack[StoredOptions]) -> NewJob:
    return replace(job, options=json.dumps({**options_of(job.options), **changes}))
