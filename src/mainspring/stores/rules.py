"""What becomes of a job, decided the same way in every store that keeps jobs in tables. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

from mainspring.clock import MIN_MILLIS, Millis, shown, to_millis
from mainspring.errors import ConfigurationError, IllegalMove
from mainspring.job import (
    FINISHED,
    FOREVER,
    KEEP_FOREVER,
    MAX_CRASHES,
    TRANSITIONS,
    UNTIL_WOKEN,
    FreshJobs,
    Move,
    NewJob,
    Outcome,
    Priority,
    Status,
)
from mainspring.json_text import from_json
from mainspring.names import LONGEST_KEY, LONGEST_NAME, unkeepable
from mainspring.stores.protocol import COPIER, EVERY_QUEUE, Halt, WorkerInfo

LEADS_TO = TRANSITIONS[Status.RUNNING]
COUNTS_AS_ATTEMPT = frozenset({Move.DONE, Move.RETRY, Move.DEAD, Move.CANCEL})
LONGEST_TRACEBACK = 16_384  # characters
LONGEST_MESSAGE = 4096  # of an error, or of a reason
CURSOR = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")  # the id of a page's last job
SMALLEST_SHARED_CLAIM = 4

# -- how a run ends -------------------------------------------------------------------------------------


def refuse_illegal(outcomes: Sequence[Outcome]) -> None:
    """Refuse outcomes that cannot be written: with a move that ends no run, or with follow-ups that cannot be kept."""
    for outcome in outcomes:
        if outcome.move not in LEADS_TO:
            msg = f"job {outcome.job_id}: {outcome.move} is no way for a run to end"
            raise IllegalMove(msg)
        if outcome.follow_ups:
            refuse_unkeepable(outcome.follow_ups)


def next_status(outcome: Outcome, *, cancel: bool, crashes: int) -> Status:
    """Where the outcome leads; a cancellation that came meanwhile is not lost, and the last crash is the end."""
    status = LEADS_TO[outcome.move]
    if outcome.move is Move.CRASH and crashes + 1 >= MAX_CRASHES:
        status = Status.DEAD_LETTER
    if cancel and status not in FINISHED:
        status = Status.CANCELLED
    return status


def next_time(outcome: Outcome, now: Millis) -> Millis:
    return min(now + outcome.delay, UNTIL_WOKEN)


def keeps_its_time(outcome: Outcome) -> bool:
    """It goes back to where it was in the queue, and is not put off."""
    return outcome.move in {Move.RELEASE, Move.CRASH} and not outcome.delay


def begins_anew(outcome: Outcome) -> bool:
    """It has come a stretch further, and the next one has the full budget of attempts and crashes."""
    return outcome.move is Move.SUSPEND and not outcome.blocked


def last_reason(outcome: Outcome, status: Status, *, asked: str | None) -> str:
    """Why the job ended so. What it once waited for is over.

    `asked` is why somebody asked for its end, if anybody did. Who asked and said why is right; who said nothing leaves
    it to a run that gave up by itself. Why a run wanted to be put off is no reason for its cancellation.
    """
    if asked is None or status is not Status.CANCELLED:
        return outcome.reason
    return asked or (outcome.reason if outcome.move is Move.CANCEL else "")


def recorded_as(outcome: Outcome, status: Status) -> Move | None:
    """How the run shows in the history; None: not at all. A snooze or release that led back is no attempt."""
    if outcome.move is Move.DONE:
        return None  # the job's own row says it
    if outcome.move in {Move.SNOOZE, Move.RELEASE, Move.SUSPEND} and status is not Status.CANCELLED:
        return None
    if outcome.move is Move.CRASH:
        return Move.CRASH
    if status is Status.CANCELLED:
        return Move.CANCEL
    return Move.DEAD if status is Status.DEAD_LETTER else outcome.move


def shorten(text: str, most: int = LONGEST_TRACEBACK) -> str:
    """At most about so many characters of it, from both ends: where a traceback began and where it broke.

    Error texts of megabytes would be written into several rows of one transaction, and hold up the acks of others.
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n  … shortened …\n{text[-half:]}"


# -- what can be kept, and asked for ----------------------------------------------------------------------

MOST_ATTEMPTS = 2**31 - 1  # what an integer of PostgreSQL holds
SETTINGS = attrgetter(
    "task", "queue", "priority", "run_at", "delay", "timeout", "max_attempts", "keep", "keep_dead", "dedupe_for"
)
KEYS = attrgetter("dedupe_key", "target", "tags", "options", "waits_for")
ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
IS_ID, ARE_IDS = re.compile(ID).fullmatch, re.compile(rf"(?:{ID}(?: |\Z))*").fullmatch
WHOLE = frozenset({int, bool, Priority, type(None)})  # types of the numbers that a job has


def refuse_unkeepable(jobs: Iterable[NewJob]) -> None:
    """Refuse jobs that this or another store could not keep or show, before any is written.

    The rule for programs is stricter, see names.py: this is about what was prepared and changed afterwards, as with
    `dataclasses.replace`. One job that cannot be read would break listings and claims for all others. As a rule all
    jobs of an enqueue have the same settings, and often the same keys: only those of the first are looked at.
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
        problem = f"a field of it has a value of the wrong type: {shown(job)}; change it only to what prepare() takes"
    if problem:
        msg = f"job {shown(job.id)} cannot be kept: {problem}"
        raise ConfigurationError(msg)


def refuse_strange_texts(jobs: Sequence[NewJob]) -> None:
    """Look at what each job has of its own: at the ids of all together, which is quick."""
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
    """Return why some store could not keep the job; None: all of them can. Raises TypeError for some wrong types."""
    if not has_keepable_numbers(job):
        return f"a time, length or number is out of range: {shown(job)}"
    if not (is_name(job.task) and is_name(job.queue)):
        bad = (
            unkeepable(text, what, LONGEST_NAME) for text, what in ((job.task, "its task"), (job.queue, "its queue"))
        )
        return next(filter(None, bad), "its task or queue is empty, or has half of a surrogate pair")
    return None


def problem_of_keys(job: NewJob) -> str | None:
    """Look at all together first: they are plain and short as a rule."""
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
    """Whether it can be written as UTF-8: halves of surrogate pairs cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def has_keepable_numbers(job: NewJob) -> bool:
    given = job.run_at, job.delay, job.timeout, job.dedupe_for, job.keep, job.keep_dead, job.max_attempts, job.priority
    return (
        WHOLE.issuperset(map(type, given))
        and (job.run_at is None or MIN_MILLIS <= job.run_at <= UNTIL_WOKEN)
        and -UNTIL_WOKEN <= job.delay <= UNTIL_WOKEN
        and 0 <= job.timeout <= UNTIL_WOKEN
        and (job.dedupe_for is None or FOREVER <= job.dedupe_for <= UNTIL_WOKEN)
        and 0 <= job.keep <= KEEP_FOREVER
        and 0 <= job.keep_dead <= KEEP_FOREVER
        and 1 <= job.max_attempts <= MOST_ATTEMPTS
        and Priority.URGENT <= job.priority <= Priority.LOW
    )


def check_page(limit: Any, cursor: Any) -> None:
    """Refuse what is not a size or a cursor of a page."""
    if not isinstance(limit, int) or not 1 <= limit <= MOST_ATTEMPTS:
        msg = f"limit is {shown(limit)}; a page has at least 1 job"
        raise ConfigurationError(msg)
    if cursor is not None and not (isinstance(cursor, str) and CURSOR.fullmatch(cursor)):
        msg = f"{shown(cursor)} is not a cursor; give that of the page before as it is, or None for the first page"
        raise ConfigurationError(msg)


# -- how a job begins -------------------------------------------------------------------------------------


def first_status(job: NewJob) -> Status:
    return Status.PENDING if job.waits_for is None else Status.SUSPENDED


def first_time(job: NewJob) -> Millis | None:
    """When it is due; None: its delay from now. Who waits for a key and says no time waits for as long as it takes."""
    if job.run_at is None and job.waits_for is not None and not job.delay:
        return UNTIL_WOKEN
    return job.run_at


def rounds_by_key(jobs: Iterable[NewJob]) -> list[list[int]]:
    """Return the places of the jobs with a dedupe key, in rounds: the first job of each key, then the second of each, …

    Jobs of different keys can be inserted together. The second job of a key has to find the first.
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


# -- who is called ----------------------------------------------------------------------------------------


def refuse_negative(keys: Mapping[str, int]) -> None:
    """To a database a negative limit is an error, or none at all: then it would wake everybody."""
    for key, number in keys.items():
        if number < 0:
            msg = f"wake: {number} is no number of jobs to call for {key!r}; it is 0 or more"
            raise ConfigurationError(msg)


# -- which jobs a claim takes -----------------------------------------------------------------------------


@dataclass(slots=True)
class Level:
    """One priority of one queue, and since when (or from when) its first job is due."""

    priority: int
    queue: str
    head: Millis
    aside: tuple[str, ...] = ()  # known tasks with jobs of this level that were set aside


@dataclass(slots=True)
class Head:
    """The first waiting jobs of a queue."""

    queue: str
    levels: list[Level]  # of the line for all tasks, and of what was set aside
    suspects: dict[str, Millis]  # task -> since when, or from when, its first suspect is due
    unknown: set[str]  # tasks of jobs that are due and must be left to other workers


Aside = Sequence[tuple[str, int, Millis]]  # task, priority, and when the first job that was set aside is due


def head_of(
    queue: str,
    heads: Sequence[Millis | None],
    suspects: Mapping[str, Millis],
    aside: Aside,
    *,
    tasks: Collection[str] | None,
    now: Millis,
) -> Head:
    """What a worker that knows `tasks` (None: any) may take of a queue; `heads` has one entry per priority."""
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
    """Which levels to take from, in order, and how many of each at most.

    By priority; but a priority whose head has waited beyond the patience gets a quarter of the room first (a small
    claim: every fourth time all of it). Not more, or an old backlog of low priority would hold up what is urgent.
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
    """Of each priority the queue that has waited longest."""
    first: dict[int, Level] = {}
    for level in due:
        first.setdefault(level.priority, level)
    return list(first.values())


# -- when nothing is due ------------------------------------------------------------------------------


def serves(worker: WorkerInfo, halt: Halt) -> bool:
    """Whether the worker takes jobs from what is halted."""
    return halt.queue is None or not {halt.queue, EVERY_QUEUE}.isdisjoint(worker.queues)


def ends(halts: Iterable[Halt], queues: Collection[str | None]) -> list[Millis]:
    """When the pauses of these queues (None: the halt of the system) are over by themselves."""
    ours = (halt for halt in halts if halt.queue in queues or EVERY_QUEUE in queues)
    return [to_millis(halt.until) for halt in ours if halt.until is not None]


def combined(before: Halt | None, new: Halt) -> Halt:
    """A halt on top of one that stands: both reasons and actors are kept; the longer and the stricter holds.

    The halts of a copy replace others and are replaced by them: they are its record of how far it has come.
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
    """None: whatever there is waits to be woken."""
    return min((moment for moment in times if moment < UNTIL_WOKEN), default=None)


# -- filters by payload ---------------------------------------------------------------------------


def decoded(text: str) -> Any:
    """Return the value of a JSON text; or the text itself, if it cannot be read.

    A payload that was written by hand or by an older version may have integers of thousands of digits, or be no JSON.
    One such row must not keep all others from being listed.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def carries(payload: str, wanted: Mapping[str, Any]) -> bool:
    if not wanted:
        return True
    data = decoded(payload)
    return all(equal(at_path(data, path.split(".")), value) for path, value in wanted.items())


def at_path(data: Any, path: list[str]) -> Any:
    """The value at the end of the path, or an object that equals nothing."""
    for name in path:
        if not isinstance(data, dict) or name not in data:
            return object()
        data = data[name]
    return data


def equal(found: Any, wanted: Any) -> bool:
    """As JSON values: there true is not 1."""
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)
