"""Records: the JSON data that `mainspring copy` moves from one store to another. All stores use the same format.

Every record has a `key`, a text that is unique within its kind. Times and lengths are milliseconds; None means that
there is none, or that it never comes. A job's record has the columns of `columns.JOB`, and three lists. Its `status` is
a name, `priority` a number and `tags` a list; `payload`, `options` and `result` are JSON texts. The lists are:

- `runs`, each with the fields of `RUN` in that order: all runs except the successful one. A completed job's own fields
  describe that one;
- `steps`, each with the fields of `STEP` in that order;
- `by_hand`, pairs of operation and action: the entries of the audit log about this job.

To add a kind, add it to `Kind` in the order of copying, and tell each store where it keeps these records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mainspring.job import FINISHED, Status

Record = dict[str, Any]


class Kind(StrEnum):
    """The kinds of records, in the order of copying: records that others refer to come first."""

    AUDIT = "audit"  # changes by hand
    PAUSES = "pauses"  # of queues; the halt of the whole system belongs to its store and is not copied
    KEYS = "keys"  # dedupe keys that outlive their job
    DOCUMENTS = "documents"  # schedules and other data besides jobs, see documents.py
    LIVE = "live"  # jobs that wait, run or are suspended
    DEAD = "dead"  # dead letters
    HISTORY = "history"  # completed and cancelled jobs


JOBS = frozenset({Kind.LIVE, Kind.DEAD, Kind.HISTORY})


def kind_of(status: Status) -> Kind:
    if status is Status.DEAD_LETTER:
        return Kind.DEAD
    return Kind.HISTORY if status in FINISHED else Kind.LIVE


RUN = ("number", "worker", "started_at", "finished_at", "move", "error_type", "error", "error_code", "traceback",
       "fingerprint", "version")  # fmt: skip

STEP = ("name", "number", "kind", "output", "started_at", "finished_at")

AUDIT = ("operation", "action", "at", "actor", "reason", "detail", "n")
PAUSE = ("queue", "actor", "reason", "since", "until", "accept")
KEY = ("task", "dedupe_key", "job_id", "expires_at")
DOCUMENT = ("collection", "grp", "id", "version", "due_at", "expires_at", "data")


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Some records of one kind. Only `cursor` tells whether there are more, not the number of records."""

    records: list[Record]
    cursor: str | None  # where the next page begins; None: this was the last


def make_key(*parts: str) -> str:
    """Return the key of a record that is identified by several columns."""
    return json.dumps(parts, ensure_ascii=False)


def split_key(key: str) -> list[str]:
    parts: list[str] = json.loads(key)
    return parts


def job_record(
    values: Mapping[str, Any], runs: list[list[Any]], steps: list[list[Any]], by_hand: list[list[str]]
) -> Record:
    """Make a job's record from the columns in `columns.JOB`."""
    plain = {"status": Status(values["status"]).value, "tags": list(values["tags"])}
    return {"key": values["id"], **values, **plain, "runs": runs, "steps": steps, "by_hand": by_hand}
