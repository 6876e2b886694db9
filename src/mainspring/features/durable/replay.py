"""A replay: a finished job once more, as a new job that keeps what was recorded before one of its steps."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from mainspring.encryption import FIELD
from mainspring.errors import ConfigurationError
from mainspring.features.durable.journal import KINDS_WITH_CHILDREN, calls_in, kind_of
from mainspring.ids import new_id
from mainspring.job import KEEP_FOREVER, Job, NewJob, Status, Step
from mainspring.stored_options import StoredOptions, options_of

KEPT_OPTIONS = (
    "retry", "isolation", "steps", "plan", "headers", "trace", "deliver", "breaker", "occurrence", "on_end",
)  # fmt: skip
"""The options of a job that its replay has too. The others are about its time, its dedupe key, and other jobs."""
SEALED_VALUE = re.compile(rf'"{re.escape(FIELD)}": ?"v1\.')


def is_replay(options: str | None) -> bool:
    """Return whether a job has records although it is new: most options are not even parsed."""
    return options is not None and '"replay"' in options and "replay" in options_of(options)


def steps_before(records: Sequence[Step], name: str | None) -> tuple[Step, ...]:
    """Return what was recorded before a step; nothing for None, and everything for a step that is not recorded.

    Children that were spawned before are still those of the first job: they are not cancelled with its replay.
    """
    calls = calls_in(records)
    last = max((step.number for step in calls), default=0)
    first = next((step.number for step in calls if step.name == name), last + 1)
    return () if name is None else tuple(disowned(step) for step in records if step.number < first)


def disowned(step: Step) -> Step:
    if kind_of(step) not in KINDS_WITH_CHILDREN:
        return step
    return replace(step, output=json.dumps({**json.loads(step.output or "{}"), "children": []}))


def replay_of(job: Job, from_step: str | None, payload: str | None) -> NewJob:
    """Return a new job that does the same as a finished one, now. It names the finished one, and has no dedupe key."""
    options = {name: job.options[name] for name in KEPT_OPTIONS if name in job.options}
    origin = cast("StoredOptions", {**options, "replay": {"of": job.id, "from_step": from_step}})
    return NewJob(
        new_id(),
        job.task,
        json.dumps(job.payload) if payload is None else payload,
        queue=job.queue,
        priority=job.priority,
        max_attempts=job.max_attempts,
        timeout=0 if job.timeout is None else round(job.timeout * 1000),
        target=job.target,
        tags=job.tags,
        options=json.dumps(origin),
        **retention_of(job),
    )


def refuse_sealed(new: NewJob, steps: Sequence[Step]) -> None:
    """Raise ConfigurationError if this process cannot decrypt a value. What is sealed belongs to the finished job."""
    texts = (new.payload, new.options or "", *(step.output or "" for step in steps))
    if any(SEALED_VALUE.search(text) for text in texts):
        msg = "the job is encrypted with a key that this process does not have; replay it in a process with that key"
        raise ConfigurationError(msg)


def retention_of(job: Job) -> dict[str, Any]:
    """Return how long the new job is kept, as far as the finished one shows it."""
    assert job.finished_at is not None  # noqa: S101 - the caller has looked
    kept = KEEP_FOREVER
    if job.expires_at is not None:
        kept = round((job.expires_at - job.finished_at).total_seconds() * 1000)
    return {"keep_dead" if job.status is Status.DEAD_LETTER else "keep": kept}
