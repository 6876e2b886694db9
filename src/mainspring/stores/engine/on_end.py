"""The option `on_end` of a job: prepared jobs, as JSON, that are inserted when the job ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mainspring.ids import new_id
from mainspring.job import NewJob
from mainspring.stored_options import options_of

LONGEST_FOLLOW_UP = 65_536  # characters; with a result, it must fit into an item of DynamoDB
NOT_KEPT = frozenset({"id", "run_at", "dedupe_key", "dedupe_for", "waits_for", "timeout_level", "attempts_level"})
"""Fields of a prepared job that a job cannot pass on: it may end more than once, at any time."""


def following(job: NewJob) -> dict[str, Any]:
    """Return a prepared job in the form in which the option `on_end` has it."""
    return {name: value for name, value in asdict(job).items() if name not in NOT_KEPT}


def restored(fields: Mapping[str, Any], end: str, trace: Mapping[str, str] | None) -> NewJob:
    """Return the job with the end, which is JSON, as `body` in its payload, and in the trace of the job that ended."""
    request = {**json.loads(fields["payload"]), "body": None}
    payload = json.dumps(request, separators=(",", ":")).removesuffix("null}")  # as encryption.py begins what is sealed
    options = fields["options"]
    if trace:
        options = json.dumps({**options_of(options), "trace": trace})
    target = None if fields["target"] is None else (fields["target"][0], fields["target"][1])
    changes = {"payload": f"{payload}{end}}}", "tags": tuple(fields["tags"]), "target": target, "options": options}
    return NewJob(**{**fields, **changes, "id": new_id()})


def problem_of_on_end(options: str) -> str | None:
    """Return why these options could not be followed at the job's end, when it would be too late; None if they can."""
    on_end: Any = options_of(options).get("on_end", {})
    try:
        for name, fields in on_end.items():
            if name not in {"completed", "failed"}:
                return f"its option on_end has {name!r}; give completed and failed"
            restored(fields, "{}", None)
            if len(json.dumps(fields)) > LONGEST_FOLLOW_UP:
                return f"a job of its option on_end has more than {LONGEST_FOLLOW_UP:,} characters"
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return "its option on_end is not made of prepared jobs; make it with `following`"
    return None
