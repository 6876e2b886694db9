"""New jobs: which of them can be stored, and how a job begins."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

from mainspring.clock import MIN_MILLIS, Millis, shown
from mainspring.errors import ConfigurationError
from mainspring.job import FOREVER, KEEP_FOREVER, UNTIL_WOKEN, FreshJobs, NewJob, Priority, Status
from mainspring.json_text import from_json
from mainspring.names import LONGEST_KEY, LONGEST_NAME, unkeepable
from mainspring.stored_options import has_on_end
from mainspring.stores.columns import PLAIN
from mainspring.stores.engine.on_end import problem_of_on_end

MAX_INT32 = 2**31 - 1  # the largest `integer` of PostgreSQL
SETTINGS = attrgetter(
    "task", "queue", "priority", "run_at", "delay", "timeout", "max_attempts", "keep", "keep_dead", "dedupe_for"
)
KEYS = attrgetter("dedupe_key", "target", "tags", "options", "waits_for")
ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
IS_ID, ARE_IDS = re.compile(ID).fullmatch, re.compile(rf"(?:{ID}(?: |\Z))*").fullmatch
NUMBER_TYPES = frozenset({int, bool, Priority, type(None)})  # that a job's numbers may have


def created(job: NewJob, now: Millis) -> dict[str, Any]:
    """Return the columns of a job that is inserted now."""
    run_at = first_time(job)
    target_type, target_id = job.target or (None, None)
    return {
        **{name: getattr(job, name) for name in PLAIN},
        "priority": int(job.priority),
        "payload": job.payload,
        "tags": list(job.tags),
        "target_type": target_type,
        "target_id": target_id,
        "created_at": now,
        "status": first_status(job),
        "run_at": now + job.delay if run_at is None else run_at,
        "waits_for": job.waits_for,
        "attempts": 0,
        "crashes": 0,
        "token": 0,
    }


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


# -- which jobs can be stored ----------------------------------------------------------------------


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
    if has_on_end(job.options) and (problem := problem_of_on_end(job.options or "{}")):
        return problem
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
