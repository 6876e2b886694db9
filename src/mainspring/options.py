"""The options of jobs, each declared once: what `@app.task(…)` and `task.using(…)` accept, and what is stored of them.

A missing option means that the next level decides: `using(…)`, then the task, its queue (`app.queue`), the application.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, TypeVar

from mainspring.clock import Length, Millis, check_moment, delay_of, duration, shown
from mainspring.errors import ConfigurationError
from mainspring.features.breakers.options import check_name as check_breaker
from mainspring.features.debounce.options import Debounce, Throttle, check_key
from mainspring.features.delivery.options import AnyWindow, PersonWindow, Window
from mainspring.features.dependencies import options as dependencies
from mainspring.features.dependencies.options import After, OnFailed
from mainspring.features.durable.plan import Planned, StepPlan
from mainspring.features.expiry import options as expiry
from mainspring.features.limits.options import Fair, Limit, Rate
from mainspring.features.recovery.options import Recover
from mainspring.job import KEEP_FOREVER, Level, Priority, PriorityName
from mainspring.names import LONGEST_KEY, LONGEST_NAME, UNSEARCHABLE, problem_of
from mainspring.projects import plain_name
from mainspring.queue_patterns import is_pattern
from mainspring.retry import Retry, problem_of_attempts
from mainspring.trace import problem_of_trace

Isolation = Literal["auto", "process"]
Ack = Literal["grouped", "sync"]
Kept = Length | Literal["forever"]
MAX_CHUNK_SIZE = 10_000  # jobs
LONGEST_WAIT = timedelta(seconds=20)  # well below a store's stall_grace, because the waiting jobs count as running
LONGEST_KEPT = timedelta(days=365_000)  # anything longer means for ever: the last date that Python knows is in 9999


@dataclass(frozen=True, slots=True)
class Retention:
    """How long finished jobs stay readable: a timedelta, a number of seconds, or "forever"."""

    completed: Kept = timedelta(days=7)  # and cancelled ones
    dead: Kept = timedelta(days=30)

    def __post_init__(self) -> None:
        keep_of(self.completed, "completed")
        keep_of(self.dead, "dead")


def keep_of(length: Kept, what: str) -> Millis:
    """Return the milliseconds for a job's `keep` or `keep_dead`; KEEP_FOREVER from 1,000 years on."""
    if length == "forever":
        return KEEP_FOREVER
    seconds: Any = length.total_seconds() if isinstance(length, timedelta) else length
    if not isinstance(seconds, (int, float)):
        msg = f'Retention({what}={length!r}): give a timedelta, a number of seconds, or "forever"'
        raise ConfigurationError(msg)
    if not seconds >= 0:
        msg = f"Retention({what}={length!r}): give a length of 0 or more; 0 removes the job at once"
        raise ConfigurationError(msg)
    return KEEP_FOREVER if seconds >= LONGEST_KEPT.total_seconds() else duration(length)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Give the handler the payloads of up to `size` jobs at once: `@app.task(chunk=Chunk(size=100, wait=1.0))`."""

    size: int
    wait: Length = 1.0  # how long the first job waits for more; 0: run at once with the jobs that are there

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_CHUNK_SIZE:
            msg = f"a chunk has between 1 and {MAX_CHUNK_SIZE:,} jobs, not {self.size}"
            raise ConfigurationError(msg)
        if not 0 <= duration(self.wait) <= duration(LONGEST_WAIT):
            msg = (
                f"a chunk waits between 0 and {LONGEST_WAIT.total_seconds():g} seconds for more jobs, not {self.wait}:"
                " meanwhile no other worker can run the jobs that wait"
            )
            raise ConfigurationError(msg)

    @property
    def seconds(self) -> float:
        return duration(self.wait) / 1000


# -- what can be given ------------------------------------------------------------------------------------


class DefaultOptions(TypedDict, total=False):
    """Options of the application, which a queue, a task and an enqueue can override."""

    retry: Retry | None
    max_attempts: int | None
    timeout: Length | None
    retention: Retention | None


class QueueOptions(DefaultOptions, total=False):
    """Options of a queue, which a task and an enqueue can override."""

    priority: PriorityName | Priority | None


class JobOptions(QueueOptions, total=False):
    """Options of a task, which an enqueue can override."""

    queue: str | None
    isolation: Isolation | None  # "process": each job runs in its own process, which a timeout can really stop
    tags: Iterable[str] | None
    expires: Length | datetime | None  # the job is dropped if it has not started by then
    breaker: str | None  # the circuit breaker that must be closed
    deliver: AnyWindow | None  # the local hours within which the job may start


class TaskOptions(JobOptions, total=False):
    """The options of `@app.task(…)`."""

    name: str | None  # by which the store knows the task; default: the function's name
    ack: Ack
    version: int  # keeps an older function, for jobs under way, beside a newer one
    steps: Planned  # the steps of a durable function, declared in advance for its readers, perhaps with timeouts
    limits: Iterable[Limit | Rate] | Limit | Rate
    fair: Fair | None
    recover: Recover | None  # retries its dead letters by themselves


class EnqueueOptions(JobOptions, total=False):
    """The options of `task.using(…)`, for the enqueues that follow it."""

    run_at: datetime | None
    delay: Length | None
    dedupe_key: str | None
    dedupe_for: Literal["active", "forever"] | Length | None
    target: tuple[str, str] | None
    connection: Any  # your own database connection: the jobs belong to its transaction
    throttle: Throttle | None
    debounce: Debounce | None
    replace: str | None
    after: After | None
    on_failed: OnFailed | None
    headers: Mapping[str, str] | None
    steps: StepPlan | Planned | None  # the job's plan: its steps, perhaps with timeouts
    trace: Mapping[str, str] | None  # the trace context; empty: do not join the trace of the job that enqueues


ENQUEUE_OPTIONS = frozenset(EnqueueOptions.__annotations__)
OF_TASK_ONLY = frozenset(TaskOptions.__annotations__) - frozenset(JobOptions.__annotations__)


def checked(given: Mapping[str, Any]) -> EnqueueOptions:
    """Return the options without those that are None. Raise ConfigurationError if one is wrong."""
    options: EnqueueOptions = {name: value for name, value in given.items() if value is not None}  # type: ignore[assignment] # the caller's signature declares their types
    if not options:  # as for most enqueues
        return options
    if unknown := options.keys() - ENQUEUE_OPTIONS:
        raise ConfigurationError(problem_of_unknown(min(unknown)))
    if "tags" in options:
        options["tags"] = listed_tags(options["tags"])
    if (steps := options.get("steps")) is not None:
        options["steps"] = StepPlan.of(steps)
    if "after" in options:
        options["after"] = dependencies.listed(options["after"])
    for problem in problems_of(options):
        raise ConfigurationError(problem)
    return options


def checked_for_task(given: Mapping[str, Any]) -> EnqueueOptions:
    """Return the options of a task for its jobs. Raise ConfigurationError if one is wrong, or is for enqueues only."""
    if wrong := given.keys() - JobOptions.__annotations__.keys():
        name = min(wrong)
        what = f"it is for enqueues: task.using({name}=…)" if name in ENQUEUE_OPTIONS else problem_of_unknown(name)
        msg = f"@app.task({name}=…): {what}"
        raise ConfigurationError(msg)
    return checked(given)


def problem_of_unknown(name: str) -> str:
    if name in OF_TASK_ONLY:
        return f"{name} belongs to the task: write @app.task({name}=…)"
    near = difflib.get_close_matches(name, ENQUEUE_OPTIONS, 1)
    return f"there is no option {name!r}{f'; do you mean {near[0]!r}?' if near else ''}"


def listed_tags(tags: Any) -> Any:
    """Return the tags as a tuple: an iterator could be read only once. A single string is refused later."""
    if isinstance(tags, (str, tuple)):
        return tags
    if isinstance(tags, Iterable):
        return tuple(tags)
    msg = f"tags must be a list of strings, not {shown(tags)}"
    raise ConfigurationError(msg)


Under = TypeVar("Under", bound=Mapping[str, Any])


def over(given: Mapping[str, Any], under: Under) -> Under:
    """Return the options `given`, completed by the options `under` them."""
    merged: dict[str, Any] = {**under, **given}
    if "run_at" in given and "delay" not in given:
        merged.pop("delay", None)
    elif "delay" in given and "run_at" not in given:
        merged.pop("run_at", None)
    if "retry" in given and given.get("max_attempts") is None:
        merged["max_attempts"] = attempts_in(given) or attempts_in(under)
    return merged  # type: ignore[return-value] # the same TypedDict


def attempts_in(options: Mapping[str, Any]) -> int | None:
    """Return the number of attempts that the options ask for; None if they leave it to the next level."""
    retry: Retry | None = options.get("retry")
    return options.get("max_attempts") or (None if retry is None else retry.max_attempts)


class Defaults:
    """Options for jobs whose task and enqueue leave them unset: those of the queue, else those of the application.

    A project's queue `p/acme/mail` has the defaults of the queue `mail`, unless it has its own.
    """

    def __init__(self, given: DefaultOptions) -> None:
        self._app = checked(given)
        self._queues: dict[str, EnqueueOptions] = {}

    def set_queue(self, queue: str, given: QueueOptions, declared: Sequence[str]) -> None:
        """Set the options of a queue. `declared` are tasks of that queue which exist already."""
        options = checked(given)
        known = self._queues.get(queue)
        if known is not None and known != options:
            msg = f"the defaults of queue {queue!r} are set twice, and differ; set them in one place"
            raise ConfigurationError(msg)
        if known is None and declared:
            msg = (
                f"app.queue({queue!r}, …) comes after tasks of that queue: {', '.join(declared)}. Set a queue's"
                " defaults before its tasks, best right after Mainspring(…)"
            )
            raise ConfigurationError(msg)
        self._queues[queue] = options

    @property
    def declared(self) -> tuple[EnqueueOptions, Mapping[str, EnqueueOptions]]:
        """Return the options of the application, and those of its queues."""
        return self._app, self._queues

    def under(self, options: EnqueueOptions, set_for_queue: Mapping[str, Any] | None = None) -> EnqueueOptions:
        """Return the options, with the defaults of their queue and the application where they are unset.

        Defaults that are set for the queue at run time come before those of the code.
        """
        if set_for_queue:
            options = over(options, set_for_queue)  # type: ignore[assignment] # the same keys
        of_queue = self._of_queue(queue_of(options)) if self._queues else None
        if of_queue is not None:
            options = over(options, of_queue)
        return over(options, self._app) if self._app else options

    def _of_queue(self, queue: str) -> EnqueueOptions | None:
        own = self._queues.get(queue)
        return self._queues.get(plain_name(queue)) if own is None else own


def level_of(of_enqueue: object, of_task: object) -> Level:
    """Return which value of an option counts: that of the enqueue, of the task, or of a level below."""
    if of_enqueue is not None:
        return Level.ENQUEUE
    return Level.QUEUE if of_task is None else Level.TASK


def queue_of(options: JobOptions) -> str:
    return options.get("queue") or "default"


# -- what is wrong with them ------------------------------------------------------------------------------


def problems_of(options: EnqueueOptions) -> Iterator[str]:
    """Yield what is wrong with the options, so that mistakes show at the enqueue and not when the job runs."""
    yield from problems_of_names(options)
    yield from problems_of_times(options)
    yield from problems_of_running(options)
    yield from problems_of_features(options)


def problems_of_names(options: EnqueueOptions) -> Iterator[str]:
    """Yield what is wrong with names and keys, by the rules in names.py."""
    named: list[tuple[Any, str, int]] = []
    if options.get("queue") not in {None, "", "*"}:  # problems_of_running has a message for these
        named.append((options["queue"], "queue", LONGEST_NAME))
    if "dedupe_key" in options:
        named.append((options["dedupe_key"], "dedupe_key", LONGEST_KEY))
    if (target := options.get("target")) is not None:
        if not is_pair_of_strings(target):
            yield f"target must be a type and an id, two strings, not {shown(target)}"
            return
        named += [(target[0], "the target's type", LONGEST_NAME), (target[1], "its id", LONGEST_KEY)]
    tags = options.get("tags") or ()
    if isinstance(tags, str):
        yield f"tags must be a list of strings, not the string {shown(tags)}"
        return
    named += [(tag, "a tag", LONGEST_NAME) for tag in tags]
    for text, what, longest in named:
        if problem := problem_of(text, what, longest):
            yield problem


def is_pair_of_strings(value: Any) -> bool:
    return isinstance(value, tuple) and [type(part) for part in value] == [str, str]


def problems_of_times(options: EnqueueOptions) -> Iterator[str]:
    if (run_at := options.get("run_at")) is not None:
        check_moment(run_at, "run_at")
    if "run_at" in options and "delay" in options:
        yield "give run_at or delay, not both"
    if (delay := options.get("delay")) is not None:
        delay_of(delay)
    dedupe_for = options.get("dedupe_for")
    if dedupe_for is not None and "dedupe_key" not in options:
        yield "dedupe_for needs a dedupe_key"
    if isinstance(dedupe_for, str) and dedupe_for not in {"active", "forever"}:
        yield f'dedupe_for must be "active", "forever" or a length of time, not {dedupe_for!r}'
    if dedupe_for is not None and not isinstance(dedupe_for, str):
        delay_of(dedupe_for, "dedupe_for")


def problems_of_running(options: EnqueueOptions) -> Iterator[str]:
    queue = options.get("queue")
    if isinstance(queue, str) and (not queue or is_pattern(queue)):
        yield f"{queue!r} is not a name for a queue; give a name without a star at its end"
    if (priority := options.get("priority")) is not None and (problem := Priority.problem_of(priority)):
        yield problem
    if (headers := options.get("headers")) is not None and (problem := check_headers(headers)):
        yield problem
    if (trace := options.get("trace")) is not None and (problem := problem_of_trace(trace)):
        yield problem
    if (attempts := options.get("max_attempts")) is not None and (problem := problem_of_attempts(attempts)):
        yield problem
    if (timeout := options.get("timeout")) is not None and duration(timeout) <= 0:
        yield f"timeout is {timeout}; give at least a millisecond, or leave it out for no timeout"
    if (isolation := options.get("isolation")) not in {None, "auto", "process"}:
        yield f'isolation must be "auto" or "process", not {isolation!r}'


def check_headers(headers: Any) -> str | None:
    """Return what is wrong with a job's headers; None if nothing is."""
    if not isinstance(headers, Mapping):
        return f"headers must be a mapping of strings to strings, not {headers!r}"
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            return f"headers must be a mapping of strings to strings, but {name!r} has {value!r}"
        if UNSEARCHABLE.search(name + value):
            return f"header {name!a:.100} is {value!a:.100}; leave out NUL and halves of surrogate pairs"
    return None


TYPES_OF_OPTIONS: dict[str, tuple[type, ...]] = {
    "retry": (Retry,),
    "retention": (Retention,),
    "throttle": (Throttle,),
    "debounce": (Debounce,),
    "deliver": (Window, PersonWindow),
}
UNDER_A_KEY = ("dedupe_key", "throttle", "debounce", "replace")


def problems_of_features(options: EnqueueOptions) -> Iterator[str]:
    for name, kinds in TYPES_OF_OPTIONS.items():
        if name in options and not isinstance(options[name], kinds):  # type: ignore[literal-required] # one of the keys
            yield f"{name} must be a {kinds[0].__name__}(…), not {options[name]!r}"  # type: ignore[literal-required]
            return
    given = [name for name in UNDER_A_KEY if name in options]
    if len(given) > 1:
        yield f"give only one of {' and '.join(sorted(given))}: each says what happens to a second job under a key"
    if "debounce" in options and ("run_at" in options or "delay" in options):
        yield "debounce says when the job is due; leave out run_at and delay"
    if {"debounce", "replace"} & set(given) and "connection" in options:
        yield "debounce and replace change a waiting job, and cannot do that in your transaction; leave out connection"
    if (replace := options.get("replace")) is not None:
        check_key(replace, "replace")
    if (breaker := options.get("breaker")) is not None:
        check_breaker(breaker)
    if (expires := options.get("expires")) is not None and (problem := expiry.problem_of(expires)):
        yield problem
    if problem := dependencies.problem_of(options.get("after"), options.get("on_failed")):
        yield problem
