"""The keys of all items, and how a job's item is read and written.

There is one table with the keys PK and SK, and two sparse indexes: `places` (place, rank) and `targets` (target, SK).

    a job by its id                 GetItem PK=job#<shard>, SK=<id>; the shard is a hash of the id
    all jobs in the order of age    Query each PK=job#<shard>, merged by id
    jobs that wait in a queue       places: place=wait#<queue>#<shard>, rank=<priority>#<scheduled_for>#<id>;
                                        a job that only waits to be woken has no place
    suspects and set-aside jobs     places: place=apart#<queue>,
        of a queue                      rank=<suspect or aside>#<task>#<priority>#<scheduled_for>#<id>
    jobs that a worker runs         places: place=run#<worker>, rank=<id>
    dead letters, cancelled jobs    places: place=<status>#<shard>, rank=<id>
    jobs about a target             targets: target=<type>#<id>
    jobs of a failure group         Query each PK=failed#<fingerprint>#<shard>, SK=<id>
    the holder of a dedupe key      GetItem PK=key#<task>#<key>, SK=key
    a job's runs, its steps, and    Query PK=history#<id>, SK=run#<token>, step#<name> or
        manual operations on it         hand#<operation>#<action>
    jobs that wait for a key        Query PK=waits#<key>, SK=<priority>#<id>#<token>
    ends whose wake-up is pending   Query each PK=wakeups#<part>, SK=<id>
    jobs whose steps are to be      places: place=over#<part>, rank=<moment>#<id>
        removed
    halts and pauses                GetItem PK=halts#<copy>, SK=halts: an attribute each
    workers                         Query each PK=workers#<part>, SK=<worker>
    all queues ever used            Query PK=queues, SK=<queue>
    counts                          Query each PK=counts#<slot>, SK=<queue>#<day of expiry>
    numbers over time               Query each PK=numbers#<period>#<slot>, SK=<start>#<queue>#<task>
    the audit log, newest first     Query PK=audit, SK=<moment>#<operation>#<action>
    changed jobs, for the feed      Query each PK=hints#<part>, SK=<hint>
    the change feed                 Query PK=feed, SK=<number>
    version and number of shards    GetItem PK=system, SK=table

A job is one item. A claim and the end of a run change only that item, under a condition, and the service moves its
entry in `places` along. So no job can be in a queue without existing, or be due without being in its queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any
from zlib import compress, crc32, decompress

from mainspring.clock import Millis, to_datetime, to_millis
from mainspring.errors import Failure
from mainspring.job import CLAIMABLE, UNTIL_WOKEN, Attempt, Claim, Job, Move, NewJob, Status
from mainspring.stores import columns
from mainspring.stores.dynamodb.client import Item
from mainspring.stores.dynamodb.values import Row
from mainspring.stores.engine.ack import STATE_COLUMNS, JobState
from mainspring.stores.engine.creation import created
from mainspring.stores.numbers import BUCKETS, Measure
from mainspring.stores.tables import NEVER

PLACES, TARGETS = "places", "targets"  # the indexes
COMPRESS_FROM = 16 * 1024  # characters; longer payloads and results are compressed
MAX_NAME_BYTES = 1500  # of a dedupe key or target in a key; longer names are hashed
MAX_TASK_BYTES = 800  # of a task's name in a rank; longer names are hashed
SUSPECT, ASIDE = "suspect", "aside"  # kinds of jobs that are kept apart from the others of their queue

WORDS = {status: "in_progress" if status is Status.RUNNING else status.value for status in Status}
"""The status as it is stored in the table."""
STATUSES = {word: status for status, word in WORDS.items()}
LISTED = frozenset({Status.DEAD_LETTER, Status.CANCELLED})
"""Rare statuses that users ask for. Jobs in them have a place of their own in the index."""

# -- times ----------------------------------------------------------------------------------------------


def stamp(moment: Millis) -> str:
    """Return UTC as ISO 8601 with milliseconds: readable, and sorted as text it is sorted by time."""
    return f"{to_datetime(moment).isoformat(timespec='milliseconds')[:-6]}Z"


def unstamp(text: str) -> Millis:
    return to_millis(datetime.fromisoformat(text))


def moment_of(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def ttl(moment: Millis | None) -> int | None:
    """Return the time for the service's expiry: whole seconds, rounded up, so that nothing expires early."""
    return None if moment is None or moment >= NEVER else -(-moment // 1000)


# -- keys -----------------------------------------------------------------------------------------------


def shard_of(job_id: str, shards: int) -> int:
    return crc32(job_id.encode()) % shards


def key(partition: str, sort: str) -> Item:
    return {"PK": {"S": partition}, "SK": {"S": sort}}


def bucket(shard: int) -> str:
    return f"job#{shard:03d}"


def job_key(job_id: str, shards: int) -> Item:
    return key(bucket(shard_of(job_id, shards)), job_id)


def history(job_id: str) -> str:
    return f"history#{job_id}"


def joined(first: str, second: str) -> str:
    """Join two names into one that no other two names produce."""
    return short(f"{first.replace('%', '%25').replace('#', '%23')}#{second}")


def short(name: str, longest: int = MAX_NAME_BYTES) -> str:
    """Replace a long name by its hash, because a partition key has at most 2 KB and a sort key 1 KB."""
    return name if len(name.encode()) <= longest else f"sha256#{sha256(name.encode()).hexdigest()}"


def dedupe_key(task: str, name: str) -> Item:
    return key(f"key#{joined(task, name)}", "key")


def target_key(kind: str, target_id: str) -> str:
    return joined(kind, target_id)


def waiting_place(queue: str, shard: int) -> str:
    return f"wait#{queue}#{shard:03d}"


def apart_place(queue: str) -> str:
    """Return the place of jobs that are found by their task: suspects, and jobs that were set aside."""
    return f"apart#{queue}"


def running_place(worker: str) -> str:
    return f"run#{worker}"


def listed_place(status: Status, shard: int) -> str:
    return f"{WORDS[status]}#{shard:03d}"


def rank_of(priority: int, scheduled_for: str, job_id: str) -> str:
    return f"{priority}#{scheduled_for}#{job_id}"


def line_of(kind: str, task: str) -> str:
    """Return how the ranks of one kind and task begin in `apart_place`. A sort key has at most 1 KB."""
    name = task.replace("%", "%25").replace("#", "%23")
    return f"{kind}#{name if len(name.encode()) <= MAX_TASK_BYTES else sha256(name.encode()).hexdigest()}"


def place_waiting(row: Row, shards: int) -> dict[str, str]:
    """Return where a job waits. Suspects wait apart from the others."""
    rank = rank_of(row["priority"], row["scheduled_for"], row["SK"])
    if row.get("crashes", 0) > 0:
        return {"place": apart_place(row["queue"]), "rank": f"{line_of(SUSPECT, row['job_type'])}#{rank}"}
    return {"place": waiting_place(row["queue"], shard_of(row["SK"], shards)), "rank": rank}


def place_of(row: Row, status: Status, shards: int) -> dict[str, str | None]:
    """Return a job's place in the index while it does not run.

    Completed jobs, and jobs that only wait to be woken, have none.
    """
    if status in CLAIMABLE and row["scheduled_for"] < stamp(UNTIL_WOKEN):
        return {**place_waiting(row, shards)}
    if status in LISTED:
        return {"place": listed_place(status, shard_of(row["SK"], shards)), "rank": row["SK"]}
    return {"place": None, "rank": None}


# -- long texts -----------------------------------------------------------------------------------------


def text(name: str, value: str | None) -> dict[str, str | bytes | None]:
    """Return the attributes of a payload or result. Long ones are compressed: the service charges by the kilobyte."""
    if value is None or len(value) < COMPRESS_FROM:
        return {name: value, f"{name}_zlib": None}
    return {name: None, f"{name}_zlib": compress(value.encode())}


def text_of(name: str, row: Row) -> str | None:
    packed = row.get(f"{name}_zlib")
    value: str | None = row.get(name) if packed is None else decompress(packed).decode()
    return value


def payload_of(row: Row) -> str:
    return text_of("payload", row) or "null"


# -- columns ----------------------------------------------------------------------------------------------

ATTRIBUTES = {
    "id": "SK", "task": "job_type", "run_at": "scheduled_for", "worker": "locked_by", "claimed_at": "started_at",
    "finished_at": "completed_at", "cancel": "cancel_requested", "error": "last_error",
}  # fmt: skip
"""The columns of a job whose attributes have other names."""

TIMES = frozenset({"run_at", "created_at", "claimed_at", "changed_at", "started_at", "finished_at", "expires_at"})
LONG = frozenset({"payload", "result"})  # texts that may be compressed
OPTIONAL = frozenset({"timeout", "reason", "tags", "cancel", "started_at", "changed_at"})
"""Columns that are not stored if they are empty, so that small items stay small."""
ABSENT: Mapping[str, Any] = {
    "timeout": 0, "reason": "", "tags": (), "cancel": False, "claimed_at": 0, "changed_at": 0, "payload": "null",
}  # fmt: skip
"""The values of columns that are not stored; None if not listed."""


def number_name(measure: Measure, bucket: int) -> str:
    """Return the attribute for one of the numbers over time."""
    return f"n_{measure.name.lower()}_{bucket}"


NUMBERS = {number_name(measure, bucket): (measure, bucket) for measure in Measure for bucket in range(BUCKETS)}

ATTRIBUTE_NAMES = frozenset(ATTRIBUTES.get(name, name) for name in (*columns.JOB, "claimed_at")) - {"SK"} | {
    "acked", "action", "actor", "at", "awaited", "beat", "buried", "claim", "confirmed", "count", "data",
    "data_zlib", "dedupe_version", "detail", "entry", "expiry", "halt", "info", "job_pk", "job_sk", "jobs", "journal",
    "kept_job", "kept_until", "kind", "lock_expires_at", "move", "name", "number", "operation", "output", "output_zlib",
    "payload_zlib", "place", "process", "rank", "recording", "result_zlib", "seen_at", "shards", "steps", "stuck",
    "target", "told", "traceback", "version", "woken",
} | {status.value for status in Status} | NUMBERS.keys()  # fmt: skip
"""All attributes of Mainspring's items, without those that the table knows itself (keys and expiry)."""


def to_attributes(columns: Mapping[str, Any]) -> Row:
    """Return the attributes for these columns of a job. Those that are None are to be removed."""
    row: Row = {}
    for name, value in columns.items():
        if name in LONG:
            row |= text(name, value)
        else:
            row[ATTRIBUTES.get(name, name)] = to_attribute(name, value)
    if "expires_at" in columns:
        row["ttl"] = ttl(columns["expires_at"])
    return row


def to_attribute(name: str, value: Any) -> Any:
    if value is None or (name in OPTIONAL and not value):
        return None
    if name in TIMES:
        return None if name == "expires_at" and value >= NEVER else stamp(value)
    return WORDS[value] if name == "status" else value


def column(name: str, row: Row) -> Any:
    """Return the value of a column in a job's item."""
    value = text_of(name, row) if name in LONG else row.get(ATTRIBUTES.get(name, name))
    if value is None:
        return ABSENT.get(name)
    if name in TIMES:
        return unstamp(value)
    return STATUSES[value] if name == "status" else value


# -- a job's item ---------------------------------------------------------------------------------------


def new_row(job: NewJob, now: Millis, shards: int) -> Row:
    return to_row(created(job, now), shards)


def to_row(columns: Mapping[str, Any], shards: int) -> Row:
    """Return the item of a job that does not run, from its columns, with its places in the indexes."""
    target = (columns["target_type"], columns["target_id"])
    row = {
        "PK": bucket(shard_of(columns["id"], shards)),
        **to_attributes(columns),
        "target": None if target[0] is None else target_key(*target),
    }
    return row | place_of(row, columns["status"], shards)


def status_of(row: Row) -> Status:
    return STATUSES[row["status"]]


def state_of(row: Row) -> JobState:
    """Return the state by which the engine decides about a job. Its `ref` is the item."""
    cancel_reason = column("reason", row) if column("cancel", row) else None
    state = [column(name, row) for name in STATE_COLUMNS[:-2]]
    return JobState(*[*state, updated_at(row), cancel_reason, status_of(row), row])


def updated_at(row: Row) -> Millis:
    """Return when a job changed last, see columns.updated_at."""
    names = ("created_at", "started_at", "finished_at", "changed_at")
    return columns.updated_at({name: column(name, row) for name in names})


def failure_of(row: Row) -> Failure | None:
    kind = row.get("error_type")
    return (
        None
        if kind is None
        else Failure(
            kind,
            row.get("last_error", ""),
            row.get("traceback", ""),
            row.get("fingerprint", ""),
            code=row.get("error_code"),
        )
    )


def to_job(row: Row) -> Job:
    return columns.to_job({name: column(name, row) for name in columns.JOB}, row.get("traceback", ""))


def to_claim(row: Row) -> Claim:
    values = {name: column(name, row) for name in columns.CLAIMED}
    target = columns.target_of(values.pop("target_type"), values.pop("target_id"))
    return Claim(**values | {"tags": tuple(values["tags"])}, target=target, ref=row)


def to_attempt(number: int, row: Row) -> Attempt:
    return Attempt(
        number=number,
        worker=row.get("locked_by", ""),
        started_at=datetime.fromisoformat(row["started_at"]),
        finished_at=datetime.fromisoformat(row["completed_at"]),
        move=Move(row.get("move", Move.DONE)),
        failure=failure_of(row),
        version=row.get("version", ""),
    )
