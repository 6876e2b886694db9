"""Rules that every store shares: which jobs are valid, and which of them a claim takes. Pure functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

from mainspring.clock import MIN_MILLIS, Millis, shown, to_millis
from mainspring.errors import ConfigurationError
from mainspring.job import (
    FOREVER,
    KEEP_FOREVER,
    UNTIL_WOKEN,
    FreshJobs,
    NewJob,
    Priority,
    Status,
)
from mainspring.json_text import from_json
from mainspring.names import LONGEST_KEY, LONGEST_NAME, unkeepable
from mainspring.stores.columns import decoded
from mainspring.stores.protocol import COPIER, EVERY_QUEUE, Halt, WorkerInfo

LONGEST_TRACEBACK = 16_384  # characters
LONGEST_MESSAGE = 4096  # characters, of an error or a reason
CURSOR = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")  # the id of a page's last job
SMALLEST_SHARED_CLAIM = 4  # jobs; smaller claims are not divided among starving levels, see `shares`

# -- texts ----------------------------------------------------------------------------------------------


def shorten(text: str, most: int = LONGEST_TRACEBACK) -> str:
    """Cut a text to about `most` characters; keep both ends, where a traceback begins and where it fails.

    Error texts of megabytes would be written into several rows of one transaction, and delay the acks of other jobs.
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n  … shortened …\n{text[-half:]}"


# -- which jobs and pages are valid ----------------------------------------------------------------------

MAX_INT32 = 2**31 - 1  # the largest `integer` of PostgreSQL
SETTINGS = attrgetter(
    "task", "queue", "priority", "run_at", "delay", "timeout", "max_attempts", "keep", "keep_dead", "dedupe_for"
)
KEYS = attrgetter("dedupe_key", "target", "tags", "options", "waits_for")
ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
IS_ID, ARE_IDS = re.compile(ID).fullmatch, re.compile(rf"(?:{ID}(?: |\Z))*").fullmatch
NUMBER_TYPES = frozenset({int, bool, Priority, type(None)})  # that a job's numbers may have


def refuse_unkeepable(jobs: Iterable[NewJob]) -> None:
    """Raise if this or another store could not store or show one of the jobs, before any job is written.

    Enqueueing checks more strictly, see names.py. This check is for jobs that were changed after `prepare()`, for
    example with `dataclasses.replace`. A single job that cannot be read would break listings and claims for all others.
    Usually all jobs of an enqueue have the same settings, and often the same keys: repeated ones are checked only once.
    """
    if isinstance(jobs, FreshJobs):
        return
    jobs = list(jobs)
    refuse_strange_texts(jobs)
    settings_before = keys_before = None
    for job in jobs:
        settings, keys = SETTINGS(job), KEYS(job)
        if settings != settings_before:
            refuse_if(job, problem_of_settings)
        if keys != keys_before:
            refuse_if(job, problem_of_keys)
        settings_before, keys_before = settings, keys


def refuse_if(job: NewJob, problem_of: Callable[[NewJob], str | None]) -> None:
    try:
        problem = problem_of(job)
    except (TypeError, AttributeError, ValueError):
        problem = f"one of its fields has the wrong type: {shown(job)}; give only values that prepare() accepts"
    if problem:
        msg = f"job {shown(job.id)} cannot be kept: {problem}"
        raise ConfigurationError(msg)


def refuse_strange_texts(jobs: Sequence[NewJob]) -> None:
    """Check the payload and id of each job. All ids are matched at once, which is fast."""
    strange = [job for job in jobs if type(job.payload) is not str or "\0" in job.payload or type(job.id) is not str]
    if strange or not ARE_IDS(" ".join([job.id for job in jobs])):
        for job in jobs:
            refuse_if(job, problem_of_text)


def problem_of_text(job: NewJob) -> str | None:
    if not IS_ID(job.id):
        return "its id is not a UUID in lower case; leave it as prepare() made it"
    return (
        "its payload has a NUL character; give JSON, as json.dumps writes it" if job.payload.find("\0") >= 0 else None
    )


def problem_of_settings(job: NewJob) -> str | None:
    """Return why a store could not store the job; None if all can. Raises TypeError for some wrong types."""
    if not has_keepable_numbers(job):
        return f"a time, length or number is out of range: {shown(job)}"
    if not (is_name(job.task) and is_name(job.queue)):
        bad = (
            unkeepable(text, what, LONGEST_NAME) for text, what in ((job.task, "its task"), (job.queue, "its queue"))
        )
        return next(filter(None, bad), "its task or queue is empty, or has half of a surrogate pair")
    return None


def problem_of_keys(job: NewJob) -> str | None:
    """Return what is wrong with the job's keys, or None. Short ASCII texts, the usual case, take one check together."""
    if job.options is not None and not isinstance(from_json(job.options), dict):
        return f"its options are not a JSON object: {shown(job.options)}"
    together = "".join([job.dedupe_key or "", job.waits_for or "", *(job.target or ()), *job.tags])
    if len(together) <= LONGEST_NAME and together.isascii() and "\0" not in together and len(job.target or "no") == 2:
        return None
    kind, target = job.target or ("", "")
    awaited = job.waits_for or ""
    keys = ((job.dedupe_key, "its dedupe key"), (target, "its target's id"))
    names = ((kind, "its target's type"), *((tag, "a tag of it") for tag in job.tags))
    problems = (
        *(unkeepable(text or "", what) for text, what in keys),
        *(unkeepable(text, what, LONGEST_NAME) for text, what in names),
        *(None if is_text(text or "") else f"{what} has half of a surrogate pair" for text, what in (*keys, *names)),
        f"the key that it waits for has more than {LONGEST_KEY} characters, or a NUL character: {shown(awaited)}"
        if "\0" in awaited or len(awaited) > LONGEST_KEY
        else None,
    )
    return next(filter(None, problems), None)


@lru_cache(maxsize=4096)
def is_name(text: str) -> bool:
    return bool(text) and is_text(text) and unkeepable(text, "it", LONGEST_NAME) is None


def is_text(text: str) -> bool:
    """Return whether it can be written as UTF-8. Halves of surrogate pairs cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def has_keepable_numbers(job: NewJob) -> bool:
    given = job.run_at, job.delay, job.timeout, job.dedupe_for, job.keep, job.keep_dead, job.max_attempts, job.priority
    return (
        NUMBER_TYPES.issuperset(map(type, given))
        and (job.run_at is None or MIN_MILLIS <= job.run_at <= UNTIL_WOKEN)
        and -UNTIL_WOKEN <= job.delay <= UNTIL_WOKEN
        and 0 <= job.timeout <= UNTIL_WOKEN
        and (job.dedupe_for is None or FOREVER <= job.dedupe_for <= UNTIL_WOKEN)
        and 0 <= job.keep <= KEEP_FOREVER
        and 0 <= job.keep_dead <= KEEP_FOREVER
        and 1 <= job.max_attempts <= MAX_INT32
        and Priority.URGENT <= job.priority <= Priority.LOW
    )


def check_page(limit: Any, cursor: Any) -> None:
    """Raise if these are not the size and the cursor of a page."""
    if not isinstance(limit, int) or not 1 <= limit <= MAX_INT32:
        msg = f"limit is {shown(limit)}; give a whole number of at least 1"
        raise ConfigurationError(msg)
    if cursor is not None and not (isinstance(cursor, str) and CURSOR.fullmatch(cursor)):
        msg = f"{shown(cursor)} is not a cursor; pass the previous page's cursor unchanged, or None for the first page"
        raise ConfigurationError(msg)


# -- how a job begins -------------------------------------------------------------------------------------


def first_status(job: NewJob) -> Status:
    return Status.PENDING if job.waits_for is None else Status.SUSPENDED


def first_time(job: NewJob) -> Millis | None:
    """Return when the job is due; None: after its delay from now.

    A job that waits for a key and has neither a time nor a delay waits until it is woken.
    """
    if job.run_at is None and job.waits_for is not None and not job.delay:
        return UNTIL_WOKEN
    return job.run_at


def rounds_by_key(jobs: Iterable[NewJob]) -> list[list[int]]:
    """Return the indexes of jobs with a dedupe key, in rounds: the first job of each key, then the second of each, …

    Jobs with different keys can be inserted together. The second job of a key must be inserted after the first.
    """
    rounds: list[list[int]] = []
    seen: Counter[tuple[str, str]] = Counter()
    for place, job in enumerate(jobs):
        if job.dedupe_key is not None:
            key = job.task, job.dedupe_key
            if seen[key] == len(rounds):
                rounds.append([])
            rounds[seen[key]].append(place)
            seen[key] += 1
    return rounds


# -- which jobs a claim takes -----------------------------------------------------------------------------


@dataclass(slots=True)
class Level:
    """One priority of one queue, and when its first job is or was due."""

    priority: int
    queue: str
    head: Millis
    aside: tuple[str, ...] = ()  # tasks, known to the worker, with jobs of this level that were set aside


@dataclass(slots=True)
class Head:
    """The first waiting jobs of a queue."""

    queue: str
    levels: list[Level]  # including jobs that were set aside
    suspects: dict[str, Millis]  # task -> when its first suspect is or was due
    unknown: set[str]  # tasks of due jobs that must be left to other workers


Aside = Sequence[tuple[str, int, Millis]]  # task, priority, and due time of the first job that was set aside


def head_of(
    queue: str,
    heads: Sequence[Millis | None],
    suspects: Mapping[str, Millis],
    aside: Aside,
    *,
    tasks: Collection[str] | None,
    now: Millis,
) -> Head:
    """Return what a worker that knows `tasks` (None: any) may claim from a queue.

    `heads` has one entry per priority: when its first job is due, None if it has no job.
    """
    levels = {number: Level(number, queue, head) for number, head in enumerate(heads) if head is not None}
    unknown = {task for task, head in suspects.items() if head <= now and not knows(tasks, task)}
    for task, priority, head in aside:
        if knows(tasks, task):
            level = levels.setdefault(priority, Level(priority, queue, head))
            level.head, level.aside = min(level.head, head), (*level.aside, task)
        elif head <= now:
            unknown.add(task)
    own = {task: head for task, head in suspects.items() if knows(tasks, task)}
    return Head(queue, [levels[priority] for priority in sorted(levels)], own, unknown)


def knows(tasks: Collection[str] | None, task: str) -> bool:
    return tasks is None or task in tasks


def shares(levels: Sequence[Level], limit: int, *, now: Millis, patience: Millis, turn: int) -> list[tuple[Level, int]]:
    """Return the levels to claim from, in order, each with the maximum number of jobs.

    Levels are served by priority. But a lower priority whose first job has waited longer than `patience` first gets a
    quarter of the claim; of claims below SMALLEST_SHARED_CLAIM jobs it gets every fourth one completely. A larger share
    would let an old backlog of low priority delay urgent jobs.
    """
    due = sorted((level for level in levels if level.head <= now), key=lambda level: (level.priority, level.head))
    by_priority = [(level, limit) for level in due]
    starving = [level for level in heads_by_priority(due)[1:] if now - level.head > patience]
    if not starving:
        return by_priority
    if limit >= SMALLEST_SHARED_CLAIM:
        return [(level, limit // SMALLEST_SHARED_CLAIM) for level in starving] + by_priority
    rounds, is_theirs = turn // SMALLEST_SHARED_CLAIM, turn % SMALLEST_SHARED_CLAIM == 0
    return [(starving[rounds % len(starving)], limit), *by_priority] if is_theirs else by_priority


def heads_by_priority(due: Sequence[Level]) -> list[Level]:
    """Return the longest waiting level of each priority."""
    first: dict[int, Level] = {}
    for level in due:
        first.setdefault(level.priority, level)
    return list(first.values())


# -- halts ------------------------------------------------------------------------------


def serves(worker: WorkerInfo, halt: Halt) -> bool:
    """Return whether the worker serves a queue that the halt stops."""
    return halt.queue is None or not {halt.queue, EVERY_QUEUE}.isdisjoint(worker.queues)


def ends(halts: Iterable[Halt], queues: Collection[str | None]) -> list[Millis]:
    """Return when the pauses of these queues (None: the halt of the system) end by themselves."""
    relevant = (halt for halt in halts if halt.queue in queues or EVERY_QUEUE in queues)
    return [to_millis(halt.until) for halt in relevant if halt.until is not None]


def combined(before: Halt | None, new: Halt) -> Halt:
    """Merge a new halt with the one in force: keep both actors and reasons, the later end and the stricter `accept`.

    The halts of `mainspring copy` replace others and are replaced by them, because they record its progress.
    """
    if before is None or COPIER in {before.actor, new.actor}:
        return new
    endless = before.until is None or new.until is None
    return replace(
        new,
        actor=joined(", ", before.actor, new.actor),
        reason=joined("; ", before.reason, new.reason),
        since=before.since,
        until=None if endless else max(filter(None, (before.until, new.until))),
        accept=before.accept and new.accept,
    )


def joined(separator: str, old: str, new: str) -> str:
    return old if not new or new in old.split(separator) else separator.join(filter(None, (old, new)))


def earliest(times: Iterable[Millis]) -> Millis | None:
    """Return the earliest time; None if there is none, or every job waits to be woken."""
    return min((moment for moment in times if moment < UNTIL_WOKEN), default=None)


# -- filters by payload ---------------------------------------------------------------------------


def carries(payload: str, wanted: Mapping[str, Any]) -> bool:
    if not wanted:
        return True
    data = decoded(payload)
    return all(equal(at_path(data, path.split(".")), value) for path, value in wanted.items())


def at_path(data: Any, path: list[str]) -> Any:
    """Return the value at the end of the path, or an object that equals nothing."""
    for name in path:
        if not isinstance(data, dict) or name not in data:
            return object()
        data = data[name]
    return data


def equal(found: Any, wanted: Any) -> bool:
    """Compare as JSON values, where true is not 1."""
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)
