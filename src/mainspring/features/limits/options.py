"""What a program declares: how many jobs may run at once, and how many may start in a period; and for which jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from mainspring.clock import duration, shown
from mainspring.errors import ConfigurationError, InvalidPayload
from mainspring.job import Claim
from mainspring.json_text import read_object
from mainspring.live_settings import Values
from mainspring.names import problem_of
from mainspring.queue_patterns import is_pattern
from mainspring.services import TaskInfo
from mainspring.stores.documents import Key

COLLECTION = "limits"
LONGEST_KEY = 200  # characters
LARGEST = 1_000_000_000  # size of a limit, and count of a rate

KeyFunction = Callable[[Any], str | int]
"""Maps a job's payload (its model, or an object with its arguments as attributes) to the key it counts for."""


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `size` jobs run at once, in all workers together: of a task or queue or, with a `key`, of each key."""

    size: int
    key: KeyFunction | None = None
    name: str | None = None  # all limits of one name are one limit, shared by the tasks and queues that declare it

    def __post_init__(self) -> None:
        check_number("Limit", "size", self.size)
        check_common(self)

    kind = "limit"

    def __str__(self) -> str:
        return f"{self.size} at once"


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` jobs start per period and, after a pause, up to `burst` at once."""

    count: int
    per: timedelta | float = 1.0  # seconds
    burst: int | None = None  # default: `count`
    key: KeyFunction | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        check_number("Rate", "count", self.count)
        per: Any = self.per
        if isinstance(per, bool) or not isinstance(per, (int, float, timedelta)) or duration(per) < 1:
            msg = f"Rate(per={self.per!r}): give a length of time of at least 1 ms, in seconds or as a timedelta"
            raise ConfigurationError(msg)
        if self.burst is not None:
            check_number("Rate", "burst", self.burst)
        check_common(self)

    kind = "rate"

    @property
    def per_milli(self) -> float:
        return self.count / duration(self.per)

    @property
    def most(self) -> int:
        """Return how many jobs may start at once."""
        return self.count if self.burst is None else self.burst

    def __str__(self) -> str:
        seconds = duration(self.per) / 1000
        return f"{self.count} per {'second' if seconds == 1 else f'{seconds:g} seconds'}"


@dataclass(frozen=True, slots=True)
class Fair:
    """Keys take turns, so that one with many jobs does not delay the others. `size` jobs of a key are ready or run."""

    key: KeyFunction
    size: int | None = None  # None: depends on the number of workers
    name: str | None = None
    queue: str = "default"  # the task's queue, whose workers count

    def __post_init__(self) -> None:
        if self.size is not None:
            check_number("Fair", "size", self.size)
        if not callable(self.key):
            msg = f"Fair(key={self.key!r}): a function of the payload, such as lambda p: p.tenant"
            raise ConfigurationError(msg)

    kind = "fair"

    def __str__(self) -> str:
        return "one after the other" if self.size is None else f"{self.size} at once"


AnyLimit = Limit | Rate | Fair


def check_number(owner: str, field: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        msg = f"{owner}({field}={shown(value)}): give a whole number from 1 to {LARGEST:,}; to stop a queue, pause it"
        raise ConfigurationError(msg)


def check_common(limit: Limit | Rate) -> None:
    owner = type(limit).__name__
    if limit.key is not None and not callable(limit.key):
        msg = f"{owner}(key={limit.key!r}): a function of the payload, such as lambda p: p.customer"
        raise ConfigurationError(msg)
    name: Any = limit.name
    if name is not None and (not isinstance(name, str) or not name):
        msg = f"{owner}(name={limit.name!r}): a name is a string that is not empty"
        raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a job needs to start: a slot or token of one limit, for one key."""

    limit: AnyLimit  # with its full name
    key: str  # empty if the limit has no keys
    document: Key = field(init=False)

    def __post_init__(self) -> None:
        document = Key(COLLECTION, f"{self.limit.kind}:{self.limit.name}", self.key)
        object.__setattr__(self, "document", document)

    @property
    def wait_key(self) -> str:
        return wait_key(self.document)

    def __str__(self) -> str:
        whose = f" for {self.key}" if self.key else ""
        return f"{self.limit.kind} of {self.limit.name}{whose}: {self.limit}"


def ticket_for(limit: AnyLimit, view: Callable[[], Any], task: str) -> Ticket:
    """Return the ticket for a job with this payload. Raise InvalidPayload if the key function has no key for it."""
    return Ticket(limit, "" if limit.key is None else key_of(limit.key, view(), task))


def wait_key(document: Key) -> str:
    """Return the key that jobs blocked by this limit wait for."""
    return f"{document.group}={document.id}" if document.id else document.group


def key_of(function: Callable[[Any], Any], payload: Any, task: str) -> str:
    try:
        key = function(payload)
    except Exception as error:
        msg = f"task {task!r}: the key function of its limit raised {type(error).__name__}: {error}"
        raise InvalidPayload(msg) from error
    text = shown(key) if isinstance(key, int) and not isinstance(key, bool) else key
    if problem := problem_of(text, "the key", LONGEST_KEY):
        wanted = f"a key is a number or a string of 1 to {LONGEST_KEY} characters"
        msg = f"task {task!r}: the key function of its limit gave {shown(key)}; {wanted} ({problem})"
        raise InvalidPayload(msg)
    return str(text)


def named(owner: str, limits: Iterable[AnyLimit]) -> tuple[AnyLimit, ...]:
    """Return the limits of one task or queue, each with the name by which all processes know it."""
    made = tuple(replace(checked(owner, limit), name=limit.name or owner) for limit in limits)
    for problem in clashes(owner, made):
        raise ConfigurationError(problem)
    return made


def checked(owner: str, limit: Any) -> AnyLimit:
    if not isinstance(limit, (Limit, Rate, Fair)):
        msg = f"limits of {owner!r}: a list of Limit(…) and Rate(…), not {limit!r}"
        raise ConfigurationError(msg)
    return limit


def clashes(owner: str, made: Iterable[AnyLimit]) -> Iterator[str]:
    seen = set()
    for limit in made:
        if "=" in (limit.name or ""):
            yield f"limits of {owner!r}: there is a '=' in the name {limit.name!r}; give another with name=…"
        same = limit.kind, limit.name, limit.key is None
        if same in seen:
            yield f"limits of {owner!r}: two of them are named {limit.name!r}; tell them apart with name=…"
        seen.add(same)


# -- the limits of all tasks and queues --------------------------------------------------------------------

Declared = tuple[AnyLimit, ...]  # the limits of one task or queue


class DeclaredLimits:
    """The limits of an application by task and queue, and which of them a job needs."""

    def __init__(self, tasks: Mapping[str, TaskInfo], on_first: Callable[[], None]) -> None:
        self._tasks = tasks
        self._set: Mapping[str, Values] = {}  # numbers that are set at run time, by the names of limits
        self._current: dict[tuple[str, str, bool], AnyLimit] | None = None  # see `current`
        self._on_first = on_first  # called when the first limit is declared or set
        self._in_use = False
        self._of_task: dict[str, Declared] = {}
        self._of_queue: dict[str, Declared] = {}
        self.fair: dict[str, Declared] = {}  # of fair tasks
        self._only_rates: dict[tuple[str, str], tuple[Ticket, ...]] = {}  # by task and queue, see `only_rates`
        self.keyed = False  # whether any limit has keys

    # -- declaring ----------------------------------------------------------------------------------

    def of_task(self, task: str, limits: Iterable[Limit | Rate]) -> None:
        self._of_task[task] = (*self._declare(self._of_task, task, named(task, limits)), *self.fair.get(task, ()))

    def of_fair_task(self, task: str, fair: Fair, queue: str) -> None:
        """Make a task fair, besides its limits: its jobs become ready in turn, then the limits let them start."""
        others = [limit for limit in self._of_task.get(task, ()) if not isinstance(limit, Fair)]
        if not isinstance(fair, Fair):
            msg = f"task {task!r}: fair is Fair(key=lambda p: p.tenant), not {fair!r}"
            raise ConfigurationError(msg)
        self.fair[task] = named(task, [replace(fair, queue=queue)])
        self._of_task[task] = (*others, *self._declare(self._of_task, task, self.fair[task]))

    def of_queue(self, queue: str, limits: Iterable[Limit | Rate]) -> None:
        if not queue or is_pattern(queue):
            msg = f"{queue!r} is not a name for a queue; give the name of a single queue"
            raise ConfigurationError(msg)
        self._of_queue[queue] = self._declare(self._of_queue, queue, named(f"queue {queue}", limits))

    def _declare(self, owners: Mapping[str, Declared], owner: str, made: Declared) -> Declared:
        kept = {name: own for name, own in owners.items() if name != owner}  # an owner may declare its limits again
        others = [kept, self._of_queue if owners is self._of_task else self._of_task]
        for other in (limit for own in others for limits in own.values() for limit in limits):
            for limit in made:
                if is_same(limit, other) and numbers(limit) != numbers(other):
                    what = f"the {limit.kind} named {limit.name!r}"
                    msg = f"{what} is declared as {other} and as {limit}: one name is one limit"
                    raise ConfigurationError(msg)
        self._use()
        self.keyed = self.keyed or any(limit.key is not None for limit in made)
        return made

    def _use(self) -> None:
        if not self._in_use:
            self._in_use = True
            self._on_first()
        self._only_rates.clear()

    # -- numbers that are set at run time -------------------------------------------------------------

    def set_numbers(self, numbers: Mapping[str, Values]) -> None:
        """Use these numbers instead of those in the code, by the names of limits."""
        self._set = numbers
        self._current = {}
        if numbers:
            self._use()
        self._only_rates.clear()

    def current(self, limit: AnyLimit) -> AnyLimit:
        """Return the limit with the number that counts now. Requests under way still have the old one."""
        if self._current is None:  # no number was ever set
            return limit
        kind = limit.kind, limit.name or "", limit.key is None
        if kind not in self._current:
            known = (each for each in self.known_as(kind[1]) if (each.kind, each.key is None) == (kind[0], kind[2]))
            self._current[kind] = next(known, limit)
        return self._current[kind]

    def declares(self, name: str) -> bool:
        """Return whether the code declares a limit or rate of this name."""
        return any(
            limit.name == name for own in (self._of_task, self._of_queue) for all_ in own.values() for limit in all_
        )

    def known_as(self, name: str, numbers: Mapping[str, Values] | None = None) -> Declared:
        """Return the limits and rates of this name: those that the code declares, and those that are set.

        By default, these have the numbers that are set now.
        """
        declared = (*self._of_task.values(), *self._of_queue.values())
        own = tuple(limit for limits in declared for limit in limits if limit.name == name)
        return adjusted(own, self._set if numbers is None else numbers, [name])

    def lowered(self, before: Mapping[str, Values], after: Mapping[str, Values]) -> set[str]:
        """Return the names of limits and rates that are new, or let fewer jobs start, by the numbers that are set."""
        names = (name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        return {name for name in names if is_lower(self.known_as(name, after), self.known_as(name, before))}

    # -- what a job needs ---------------------------------------------------------------------------

    def concerns(self, task: str, queue: str) -> bool:
        if self._set and (task in self._set or f"queue {queue}" in self._set):
            return True
        return task in self._of_task or queue in self._of_queue

    def tickets(self, claim: Claim) -> tuple[Ticket, ...]:
        """Return what a job needs; nothing if its task does not accept its payload, as it will not start."""
        rates = self._only_rates.get((claim.task, claim.queue))
        try:
            return rates or self._tickets(claim.task, claim.queue, claim.payload)
        except BadPayload:
            return ()

    def check(self, task: str, queue: str, payload: str) -> None:
        """Raise InvalidPayload if a key function has no key for the payload, so that the enqueue fails, not the job."""
        self._tickets(task, queue, payload)

    def only_rates(self, task: str, queue: str) -> tuple[Ticket, ...]:
        """Return what jobs of this task in this queue need, if that is only rates without keys; else nothing."""
        tickets = self._only_rates.get((task, queue))
        if tickets is None:
            wanted = self._limits_of(task, queue)
            simple = all(isinstance(limit, Rate) and limit.key is None for limit in wanted)
            tickets = once_each(Ticket(limit, "") for limit in wanted if simple)
            self._only_rates[task, queue] = tickets
        return tickets

    def _tickets(self, task: str, queue: str, payload: str) -> tuple[Ticket, ...]:
        def view() -> Any:
            if task not in self._tasks:  # its jobs run in other programs
                return SimpleNamespace(**read_object(payload))
            try:
                return self._tasks[task].payload.view(payload)
            except InvalidPayload as error:
                raise BadPayload(str(error)) from error

        return once_each(ticket_for(limit, view, task) for limit in self._limits_of(task, queue))

    def _limits_of(self, task: str, queue: str) -> Declared:
        declared = (*self._of_task.get(task, ()), *self._of_queue.get(queue, ()))
        return adjusted(declared, self._set, [task, f"queue {queue}"]) if self._set else declared

    def names(self, task: str, queue: str) -> set[str]:
        """Return the names of the limits and rates of these jobs."""
        return {limit.name or "" for limit in self._limits_of(task, queue)}

    # -- fair tasks ---------------------------------------------------------------------------------

    def fair_tasks(self, name: str) -> tuple[str, ...]:
        """Return the fair tasks of this program whose limit has this name."""
        return tuple(task for task, limits in self.fair.items() if any(limit.name == name for limit in limits))

    def turn(self, task: str, payload: str) -> Ticket:
        """Return what a job of a fair task needs to become ready: the turn of its key."""
        (fair,) = self.fair[task]
        return ticket_for(fair, lambda: self._tasks[task].payload.view(payload), task)


def adjusted(declared: Declared, numbers: Mapping[str, Values], owners: Iterable[str]) -> Declared:
    """Return the limits with the numbers that are set, and those that are only set, for these owners."""
    made = [with_number(limit, numbers.get(limit.name or ""), declared) for limit in declared]
    for owner in owners:
        for limit in limits_in(numbers.get(owner), owner):
            if not any((limit.kind, limit.name) == (other.kind, other.name) for other in made):
                made.append(limit)
    return tuple(made)


def with_number(limit: AnyLimit, values: Values | None, declared: Declared) -> AnyLimit:
    """Return the limit with the number that is set. Of two limits of one name, it is for the one without keys."""
    kept = limit.key is not None and any(
        (other.kind, other.name, other.key) == (limit.kind, limit.name, None) for other in declared
    )
    found = [] if kept else [new for new in limits_in(values, limit.name or "") if new.kind == limit.kind]
    return replace(found[0], key=limit.key) if found else limit


def limits_in(values: Values | None, name: str) -> list[Limit | Rate]:
    """Return the limit and the rate that are set under this name, without keys."""
    made: list[Limit | Rate] = []
    if values is not None and values.limit is not None:
        made.append(Limit(values.limit, name=name))
    if values is not None and (rate := values.rate) is not None:
        made.append(Rate(rate.count, per=rate.per / 1000, burst=rate.burst, name=name))
    return made


class BadPayload(InvalidPayload):
    """The task does not accept the payload; the key function is not at fault."""


def once_each(tickets: Iterable[Ticket]) -> tuple[Ticket, ...]:
    """Return the tickets without repeats: a task and its queue may declare the same limit."""
    return tuple({ticket.document: ticket for ticket in tickets}.values())


def is_same(limit: AnyLimit, other: AnyLimit) -> bool:
    keyed = limit.key is not None, other.key is not None
    return (limit.name, limit.kind) == (other.name, other.kind) and keyed[0] == keyed[1]


def numbers(limit: AnyLimit) -> tuple[float, ...]:
    if isinstance(limit, Rate):
        return limit.per_milli, limit.most
    return (limit.size,) if isinstance(limit, Limit) else (limit.size or 0,)


def is_lower(after: Declared, before: Declared) -> bool:
    """Return whether one of these limits and rates is new, or lets fewer jobs start than before."""
    return any(allows_less(limit, [other for other in before if is_same(limit, other)]) for limit in after)


def allows_less(limit: AnyLimit, before: Sequence[AnyLimit]) -> bool:
    return not before or any(new < old for new, old in zip(numbers(limit), numbers(before[0]), strict=True))
