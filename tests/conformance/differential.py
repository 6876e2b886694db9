"""Run one random history on several stores, step by step, and compare all that can be read.

Every step makes the same call on each store and compares the answers, or the errors with their messages. At the end,
and whenever a step says so, it compares everything that the stores return: jobs, attempts, timelines, steps, the audit
log, statistics, halts, documents, the records that `mainspring copy` moves, and what the change feed says about each
job.

What may differ is removed or put in order by `shown` and `shown_records`, and only there. The contract also leaves open
which of several jobs with the same priority and due time is claimed first. So where there are such jobs, a claim takes
all that are due.

The steps call every method of the contract but three: `diagnose` describes each store's own files, tables and servers,
`sizes` may estimate, and `watching` returns nothing. Where a store has no transactions, `ack` takes the place of
`completion`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import partial
from itertools import count
from typing import Any, TypeVar

from hypothesis import strategies as st

from mainspring.clock import Millis, to_datetime
from mainspring.errors import ClaimLost, Failure, MainspringError
from mainspring.job import (
    CLAIMABLE,
    FOREVER,
    TRANSITIONS,
    UNTIL_WOKEN,
    Claim,
    Job,
    Move,
    NewJob,
    Outcome,
    ProgressReport,
    Save,
    Status,
    Step,
    TimelineEntry,
    end_of,
)
from mainspring.stores.documents import ABSENT, Bundle, By, Document, Key, Listing, Note, Write
from mainspring.stores.engine.failures import NOTES, note_of
from mainspring.stores.feed import EVERY_CHANGE, Cursor
from mainspring.stores.numbers import Grouping, NumbersQuery, Period, Span
from mainspring.stores.protocol import (
    Action,
    AuditEntry,
    AuditFilter,
    Claims,
    Completable,
    DueTask,
    Edit,
    Filter,
    Halt,
    StalledRun,
    Stats,
    Store,
    Takeover,
    Want,
    WorkerInfo,
)
from mainspring.stores.records import Kind, Record, kind_of
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import ignore

T = TypeVar("T")
Make = Callable[[ManualClock], Store]

COLLECTIONS = ("things", "other")
KEYS = [Key(collection, group, name) for collection in COLLECTIONS for group in ("", "g") for name in ("a", "ß")]
TEXTS = {"none": None, "empty": "{}", "short": '{"guest": {"id": 7}}', "long": f'["{"x" * 3000}"]'}  # JSON
FAILURES = {
    "none": None,
    "short": Failure("ValueError", "no", "trace", code="E-1"),
    "long": Failure("E", "a\0b", "t" * 20_000),
}

# -- what may differ ----------------------------------------------------------------------------------------

HIDDEN: Mapping[type, frozenset[str]] = {
    Claim: frozenset({"ref"}),  # only the store reads it
    Halt: frozenset({"number"}),  # only has to grow
    AuditEntry: frozenset({"operation"}),  # that of a halt is made up by the store
    WorkerInfo: frozenset({"seen_at", "started_at", "polling"}),  # real time; how the store wakes workers
    Stats: frozenset({"estimated", "measures"}),  # about the store itself
}
ORDERED: Mapping[type, Callable[[Any], Any]] = {  # lists of these have no order, or one that leaves ties open
    Claim: lambda claim: claim.id,
    Takeover: lambda takeover: takeover.job_id,
    Document: lambda document: document.key,
    DueTask: lambda line: (line.task, line.queue),
    Step: lambda step: (step.number, step.name),
    WorkerInfo: lambda info: info.id,
    Halt: lambda halt: halt.queue or "",
    TimelineEntry: lambda entry: (entry.at, entry.what, entry.detail, entry.actor),
    AuditEntry: lambda entry: (entry.at, entry.action, entry.actor, entry.reason, str(entry.detail)),
}


def shown(value: Any) -> Any:
    """Return a store's answer in the form in which it is compared."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hidden = HIDDEN.get(type(value), frozenset())
        fields = [each.name for each in dataclasses.fields(value) if each.name not in hidden]
        return {"is": type(value).__name__, **{name: shown(getattr(value, name)) for name in fields}}
    if isinstance(value, Mapping):
        return {shown(key): shown(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, set | frozenset):
        return sorted(map(shown, value), key=str)
    if isinstance(value, list | tuple):
        order = ORDERED.get(type(value[0])) if value else None
        return [shown(each) for each in (sorted(value, key=order) if order else value)]
    return str(value) if isinstance(value, datetime | Enum) else value


def shown_records(kind: Kind, records: Sequence[Record]) -> dict[str, Record]:
    """Return records by their keys. The audit entry of a halt has an operation that the store makes up."""
    if kind is Kind.DOCUMENTS:
        notes = [record for record in records if record["collection"] == NOTES]
        return {record["key"]: record for record in records if record not in notes} | added_up(notes)
    if kind is not Kind.AUDIT:
        return {record["key"]: record for record in records}
    made_up = {record["key"] for record in records if record["action"] in {"halt", "pause"}}
    kept = [{**record, "key": "", "operation": ""} if record["key"] in made_up else record for record in records]
    return {f"{record['key']} {record['at']}": record for record in kept}


def added_up(notes: Sequence[Record]) -> dict[str, Record]:
    """Return what the notes of failures say about each group. How many notes there are is left to the store."""
    found: dict[str, Record] = {}
    for note in map(note_of, sorted(record["data"] for record in notes)):
        group = found.setdefault(f"failures of {note.fingerprint}", {"count": 0, "recovered": False, "last": 0})
        last = max(group["last"], note.at)
        found[f"failures of {note.fingerprint}"] = {
            "count": group["count"] + note.count, "recovered": group["recovered"] or note.recovered, "last": last,
        }  # fmt: skip
    return found


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Return where two shown values differ, as lines of text."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = [*one, *(name for name in other if name not in one)]
        pairs = [(f"{path}.{name}", one.get(name, "(missing)"), other.get(name, "(missing)")) for name in names]
        return [line for where, left, right in pairs for line in differences(left, right, where)]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            line
            for number, (left, right) in enumerate(zip(one, other, strict=True))
            for line in differences(left, right, f"{path}[{number}]")
        ]
    return [] if one == other else [f"{path}: {one!r} != {other!r}"]


# -- what can happen ----------------------------------------------------------------------------------------

some = st.integers(0, 30)  # which of the present candidates, modulo their number
delays = st.sampled_from([0, 0, 0, 5_000, 40_000])
queues = st.sampled_from(["a", "b"])
halted = st.sampled_from(["a", None])
reasons = st.sampled_from(["", "because"])
workers = st.integers(0, 1)
new_jobs = st.fixed_dictionaries(
    {
        "task": st.sampled_from(["greet", "greet", "send"]),
        "queue": queues,
        "priority": st.integers(0, 3),
        "payload": st.sampled_from(["empty", "short", "long"]),
        "delay": delays,
        "max_attempts": st.integers(1, 3),
        "timeout": st.sampled_from([0, 0, 10_000]),
        "dedupe_key": st.sampled_from([None, None, "k1", "k2"]),
        "dedupe_for": st.sampled_from([None, None, 60_000, FOREVER]),
        "target": st.sampled_from([None, ("order", "7")]),
        "tags": st.sampled_from([(), ("vip",), ("vip", "new")]),
        "options": st.sampled_from([None, '{"x": 1}']),
        "waits_for": st.sampled_from([None, None, None, "bell", "job"]),
    }
)
bad_jobs = st.sampled_from(
    [
        {"queue": "q" * 300},
        {"task": "t\0"},
        {"dedupe_key": "k" * 2000},
        {"priority": 9},
        {"delay": -1},
        {"tags": ("a" * 2000,)},
    ]
)
few_jobs = st.lists(new_jobs, max_size=2)
FILTERS = (
    "one", "one", "one", "two", "status", "queue", "task", "tags", "target", "key", "payload", "worker", "error",
    "created", "due", "finished", "changed", "all",
)  # fmt: skip
filters = st.tuples(st.sampled_from(FILTERS), some)
outcomes = st.fixed_dictionaries(
    {
        "move": st.sampled_from([*sorted(TRANSITIONS[Status.RUNNING]), Move.DONE, Move.RETRY, Move.SUSPEND]),
        "delay": delays,
        "result": st.sampled_from(["none", "short", "long"]),
        "failure": st.sampled_from(["none", "short", "long"]),
        "reason": st.sampled_from(["", "because", "nul \0"]),
        "waits_for": st.sampled_from([None, "bell", "job"]),
        "blocked": st.booleans(),
    }
)
steps_of_jobs = st.lists(st.tuples(st.sampled_from(["one", "two"]), st.integers(1, 3)), max_size=2)
edits = st.fixed_dictionaries(
    {},
    optional={
        "payload": st.just('{"edited": true}'),
        "priority": st.integers(0, 3),
        "queue": queues,
        "delay": delays,
        "max_attempts": st.integers(1, 4),
        "from_step": st.sampled_from(["one", "none"]),
    },
)
writes = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(KEYS),
            "data": st.sampled_from(['{"n": 1}', '{"n": 2}', None]),
            "expected": st.sampled_from([None, None, "current", "current", ABSENT, "wrong"]),
            "due": st.sampled_from([None, 0, 20_000]),
            "expires": st.sampled_from([None, None, 30_000]),
        }
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda write: write["key"],
)
bundles = st.tuples(writes, st.lists(new_jobs, max_size=1), st.booleans())

STEPS: dict[str, tuple[int, tuple[st.SearchStrategy[Any], ...]]] = {  # method: its weight and its arguments
    "insert": (5, (st.lists(new_jobs, min_size=1, max_size=3),)),
    "insert_again": (1, (some,)),
    "insert_bad": (1, (bad_jobs,)),
    "claim": (6, (workers, st.sampled_from(["a", "b", "*", "*"]), st.integers(1, 5))),
    "claim_known": (2, (workers, st.sampled_from(["a", "*"]), st.sampled_from(["greet", "send"]))),
    "claim_suspect": (3, (workers, st.sampled_from(["a", "b", "*", "*"]))),
    "ack": (10, (some, outcomes, few_jobs, steps_of_jobs, st.booleans())),
    "complete": (2, (some, outcomes, few_jobs, steps_of_jobs)),
    "ack_stale": (2, (some, outcomes)),
    "ack_illegal": (1, (some,)),
    "report": (1, (some, st.sampled_from([0.0, 0.25, 1.0]))),
    "save": (3, (some, steps_of_jobs, few_jobs)),
    "wake": (2, (st.integers(-1, 2),)),
    "heartbeat": (1, (workers, st.integers(0, 2))),
    "die": (2, (workers,)),
    "leave": (1, (workers,)),
    "tick": (3, (st.sampled_from([1, 30, 60]), st.sampled_from([0, 5_000, None]))),
    "prune": (1, ()),
    "change": (8, (st.sampled_from(Action), filters, edits, reasons, st.sampled_from(["", "", "dry", "unaudited"]))),
    "halt": (2, (halted, st.sampled_from([None, 20, -1]), st.booleans())),
    "resume": (3, (halted,)),
    "confirm": (1, (workers, some)),
    "write": (4, (st.lists(bundles, min_size=1, max_size=2),)),
    "browse": (1, (st.sampled_from(COLLECTIONS), st.sampled_from([None, "", "g"]), st.integers(1, 3), st.booleans())),
    "due": (1, (st.sampled_from(COLLECTIONS), st.sampled_from([0, 20_000]))),
    "find": (2, (filters, st.integers(1, 3))),
    "restore": (1, (some,)),
    "ask_for_starts": (1, ()),
    "look": (1, ()),
}
steps = st.sampled_from([name for name, (weight, _) in STEPS.items() for _ in range(weight)]).flatmap(
    lambda name: st.tuples(st.just(name), *STEPS[name][1])
)
beginnings = st.lists(new_jobs, min_size=3, max_size=6)


def histories(length: int) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Return histories that begin with a few jobs: most of those that start empty never get far."""
    begin = beginnings.map(lambda batch: [("insert", batch), ("claim", 0, "*", 2), ("claim", 1, "*", 2)])
    rest = st.lists(steps, min_size=length // 2, max_size=length)
    return st.builds(lambda first, then: [*first, *then], begin, rest)


# -- running a history --------------------------------------------------------------------------------------


@dataclass
class Held:
    """A claim, as each store gave it out."""

    id: str
    worker: str
    claims: dict[str, Claim]


async def compare(makers: Mapping[str, Make], history: Sequence[tuple[Any, ...]]) -> None:
    """Run the history on a new store of each kind; raise AssertionError at the first difference."""
    comparison = Comparison(makers)
    try:
        await comparison.run(history)
    finally:
        await comparison.close()


class Comparison:
    def __init__(self, makers: Mapping[str, Make]) -> None:
        self.clock = ManualClock()
        self.stores = {name: make(self.clock) for name, make in makers.items()}
        self.first = next(iter(self.stores))
        self.numbers = count(1)
        self.jobs: dict[str, NewJob] = {}  # all that were ever inserted
        self.held: list[Held] = []
        self.lost: list[Held] = []
        self.halts: list[dict[str, Halt]] = []
        self.workers = ["w0", "w1"]
        self.feeds: dict[str, str] = {}  # cursors of the beginnings

    async def run(self, history: Sequence[tuple[Any, ...]]) -> None:
        await asyncio.gather(*(store.open() for store in self.stores.values()))
        self.feeds = {name: await cursor_of(store) for name, store in self.stores.items()}
        for worker in self.workers:
            await self.join(worker)
        for name, *arguments in history:
            self.clock.advance(0.05)  # so that the jobs of earlier steps are due, at different times
            try:
                await getattr(self, name)(*arguments)
            except AssertionError as error:
                error.add_note(f"in step {name}{tuple(arguments)!r} of {history!r}")
                raise
        await self.look()

    async def close(self) -> None:
        await asyncio.gather(*(store.close() for store in self.stores.values()))

    async def ask(self, call: Callable[[str, Store], Awaitable[T]]) -> dict[str, T]:
        """Make a call on every store and compare the answers. Return them; nothing if all raised the same error."""
        names = list(self.stores)
        given = await asyncio.gather(*(answer_of(call, name, self.stores[name]) for name in names))
        expected = shown(given[0])
        for name, answer in zip(names[1:], given[1:], strict=True):
            found = differences(expected, shown(answer))
            assert not found, "\n".join([f"{self.first} != {name}", *found])
        return {name: answer for name, answer in zip(names, given, strict=True) if not isinstance(answer, Raised)}

    async def ask_first(self, call: Callable[[str, Store], Awaitable[T]]) -> T | None:
        """Make a call on every store and compare the answers; return the first store's."""
        return (await self.ask(call)).get(self.first)

    # -- making things ----------------------------------------------------------------------

    def new_id(self) -> str:
        now, number = self.clock.now(), next(self.numbers)
        return f"{now >> 16:08x}-{now & 0xFFFF:04x}-7{number:03x}-8000-000000000000"

    def new_job(self, spec: Mapping[str, Any]) -> NewJob:
        """Make a job that is due at a time of its own, even among the jobs of one step."""
        delay, waits_for = spec["delay"] + len(self.jobs) % 50, spec["waits_for"]
        fields: dict[str, Any] = {**spec, "delay": delay, "payload": TEXTS[spec["payload"]]}
        job = NewJob(id=self.new_id(), keep=120_000, keep_dead=240_000, **fields)
        if waits_for is not None:
            job = replace(job, waits_for=self.key_of(waits_for), run_at=UNTIL_WOKEN, delay=0)
        self.jobs[job.id] = job
        return job

    def key_of(self, waits_for: str | None) -> str | None:
        if waits_for != "job":
            return waits_for
        return end_of(list(self.jobs)[-1]) if self.jobs else None

    def steps(self, given: Sequence[tuple[str, int]]) -> tuple[Step, ...]:
        now = self.clock.now()
        named = dict(given)
        return tuple(Step(name, number, output='{"o": 1}', finished_at=now) for name, number in named.items())

    def pick(self, which: int) -> str:
        return list(self.jobs)[which % len(self.jobs)]

    def by(self, reason: str = "", *, audited: bool = True) -> By:
        return By("ana", reason, operation=f"operation {next(self.numbers):04}", audited=audited)

    def filter(self, kind: str, which: int) -> Filter:
        now, statuses = to_datetime(self.clock.now()), list(Status)
        found: dict[str, dict[str, Any]] = {
            "one": {"ids": (self.pick(which),)},
            "two": {"ids": (self.pick(which), self.pick(which + 1), "019d0000-0000-7000-8000-000000000000")},
            "status": {"statuses": (statuses[which % len(statuses)], Status.PENDING)},
            "queue": {"queues": ("b",)},
            "task": {"tasks": ("send",)},
            "tags": {"tags": ("vip", "new")},
            "target": {"target_type": "order", "target_id": "7"},
            "key": {"dedupe_key": "k1"},
            "payload": {"payload": {"guest.id": 7}},
            "worker": {"worker": self.workers[0]},
            "error": {"error_type": "ValueError"},
            "created": {"created_before": now, "statuses": (statuses[which % len(statuses)],)},
            "due": {"due_before": now, "queues": ("a",)},
            "finished": {"finished_before": now, "tasks": ("greet",)},
            "changed": {"changed_before": now},
            "all": {},
        }
        return Filter(**found[kind])

    # -- jobs -------------------------------------------------------------------------------

    async def insert(self, specs: Sequence[Mapping[str, Any]]) -> None:
        jobs = [self.new_job(spec) for spec in specs]
        await self.ask(lambda _, store: store.insert(jobs))

    async def insert_again(self, which: int) -> None:
        job = self.jobs[self.pick(which)]
        await self.ask(lambda _, store: store.insert([job]))

    async def insert_bad(self, wrong: Mapping[str, Any]) -> None:
        job = replace(NewJob(self.new_id(), "greet", "{}"), **wrong)
        await self.ask(lambda _, store: store.insert([job]))

    async def claim(self, worker: int, queue: str, limit: int) -> None:
        """Claim jobs. Which of those at the same place come first is open, so claim them all."""
        ties = await self.has_ties(lambda job: job.priority, suspects=False)
        await self.take(worker, [Want(queue, 100 if ties else limit)])

    async def claim_known(self, worker: int, queue: str, task: str) -> None:
        await self.take(worker, [Want(queue, 100)], tasks=frozenset({task}))

    async def claim_suspect(self, worker: int, queue: str) -> None:
        """Claim a suspect, unless it is open which one that is."""
        if not await self.has_ties(lambda _: None, suspects=True):
            await self.take(worker, [Want(queue, 1)], solo=True)

    async def has_ties(self, level: Callable[[Job], Any], *, suspects: bool) -> bool:
        """Return whether two jobs of one level are due at the same time."""
        now = to_datetime(self.clock.now())
        waiting = await self.stores[self.first].find(Filter(statuses=tuple(CLAIMABLE)), limit=1000)
        due = [job for job in waiting.jobs if job.run_at <= now and (job.crashes > 0) == suspects]
        return any(number > 1 for number in Counter((level(job), job.run_at) for job in due).values())

    async def take(self, worker: int, wants: list[Want], **how: Any) -> None:
        name = self.workers[worker]
        answers: dict[str, Claims] = await self.ask(lambda _, store: store.claim(name, wants, **how))
        for job_id in [claim.id for claim in answers[self.first].jobs]:
            claims = {
                store: next(claim for claim in answer.jobs if claim.id == job_id) for store, answer in answers.items()
            }
            self.held.append(Held(job_id, name, claims))

    async def ack(
        self,
        which: int,
        given: Mapping[str, Any],
        jobs: Sequence[Mapping[str, Any]],
        steps_: Sequence[tuple[str, int]],
        with_ref: bool,
    ) -> None:
        if not self.held:
            return
        held = self.held.pop(which % len(self.held))
        extra = {"follow_ups": tuple(map(self.new_job, jobs)), "steps": self.steps(steps_)}
        await self.ask(lambda name, store: store.ack([self.outcome(held, name, given, with_ref, **extra)]))
        self.lost.append(held)

    async def complete(
        self,
        which: int,
        given: Mapping[str, Any],
        jobs: Sequence[Mapping[str, Any]],
        steps_: Sequence[tuple[str, int]],
    ) -> None:
        """Complete a job in a transaction of its handler, which may have lost its claim."""
        every = [*self.held, *self.lost[-2:]]
        if every:
            held, done = every[which % len(every)], {**given, "move": Move.DONE}
            extra: dict[str, Any] = {"follow_ups": tuple(map(self.new_job, jobs)), "steps": self.steps(steps_)}
            await self.ask(lambda name, store: completed(store, self.outcome(held, name, done, **extra)))
            self.held, self.lost = [other for other in self.held if other is not held], [*self.lost, held]

    def outcome(self, held: Held, name: str, given: Mapping[str, Any], with_ref: bool = True, **extra: Any) -> Outcome:
        claim, now = held.claims[name], self.clock.now()
        delay, waits_for = given["delay"], None
        if given["move"] is Move.SUSPEND:
            waits_for = self.key_of(given["waits_for"])
            delay = delay if waits_for is None else UNTIL_WOKEN
        fails = given["move"] in {Move.RETRY, Move.DEAD, Move.CRASH, Move.CANCEL}
        failure = FAILURES[given["failure"]] if fails else None
        fields = {**given, "result": TEXTS[given["result"]], "failure": failure, **extra}
        fields |= {"delay": delay, "waits_for": waits_for, "started_at": now - 5, "finished_at": now}
        return Outcome(held.id, claim.token, ref=claim.ref if with_ref else None, **fields)

    async def ack_stale(self, which: int, given: Mapping[str, Any]) -> None:
        """Let a worker that lost its claim ack, beside one that has not."""
        if self.lost:
            lost, held = self.lost[which % len(self.lost)], self.held[:1]
            self.held, self.lost = self.held[1:], [*self.lost, *held]
            await self.ask(lambda name, store: store.ack([self.outcome(each, name, given) for each in (lost, *held)]))

    async def ack_illegal(self, which: int) -> None:
        if self.held:
            held = self.held[which % len(self.held)]
            await self.ask(lambda name, store: store.ack([Outcome(held.id, held.claims[name].token, Move.EDIT)]))

    async def report(self, which: int, fraction: float) -> None:
        every = [*self.held, *self.lost]
        if every:
            held = every[which % len(every)]
            await self.ask(
                lambda name, store: store.report([ProgressReport(held.id, held.claims[name].token, fraction, "half\0")])
            )

    async def save(self, which: int, given: Sequence[tuple[str, int]], specs: Sequence[Mapping[str, Any]]) -> None:
        every = [*self.held, *self.lost[-2:]]
        if every:
            held, jobs, made = every[which % len(every)], tuple(map(self.new_job, specs)), self.steps(given)
            await self.ask(
                lambda name, store: store.save(
                    [Save(held.id, held.claims[name].token, made, jobs, held.claims[name].ref)]
                )
            )

    async def wake(self, number: int) -> None:
        await self.ask(lambda _, store: store.wake({"bell": number, "none": 1}))

    # -- workers ----------------------------------------------------------------------------

    async def join(self, worker: str) -> None:
        info = WorkerInfo(worker, "host", 1, ("*",), tasks=("greet",), concurrency=2)
        await self.ask(lambda _, store: store.join(info, ignore))

    async def heartbeat(self, worker: int, stuck: int) -> None:
        mine = [held for held in [*self.lost[-2:], *self.held] if held.worker == self.workers[worker]]
        await self.ask(
            lambda name, store: store.heartbeat(
                self.workers[worker], {held.id: held.claims[name].token for held in mine}, stuck=stuck
            )
        )

    async def die(self, worker: int) -> None:
        """Let a worker die, as one that sends no heartbeat; another one takes its place."""
        dead, other = self.workers[worker], self.workers[1 - worker]
        await self.reap()
        self.clock.advance(31)
        await self.ask(lambda _, store: store.heartbeat(other, {}))
        await self.reap()
        self.workers[worker] = f"{dead}'"
        await self.join(self.workers[worker])

    async def leave(self, worker: int) -> None:
        gone = self.workers[worker]
        await self.ask(lambda _, store: store.leave(gone))
        self.lost += [held for held in self.held if held.worker == gone]
        self.held = [held for held in self.held if held.worker != gone]
        await self.join(gone)

    async def tick(self, seconds: int, delay: Millis | None) -> None:
        """Let time pass while all workers live, perhaps so much that jobs with a timeout stall."""
        await self.reap()
        self.clock.advance(seconds)
        for worker in self.workers:
            await self.ask(lambda _, store, worker=worker: store.heartbeat(worker, {}))  # type: ignore[misc]
        await self.reap(lambda _: delay)

    async def reap(self, after_stall: Callable[[StalledRun], Millis | None] = lambda _: 0) -> None:
        reaped = (await self.ask(lambda _, store: store.reap(after_stall)))[self.first]
        taken = {takeover.job_id for takeover in reaped.takeovers}
        self.lost += [held for held in self.held if held.id in taken]
        self.held = [held for held in self.held if held.id not in taken]

    async def prune(self) -> None:
        """Prune, and compare nothing yet: each store counts its own rows, for example those of dedupe keys."""
        await asyncio.gather(*(store.prune() for store in self.stores.values()))

    # -- by hand ----------------------------------------------------------------------------

    async def change(
        self,
        action: Action,
        which: tuple[str, int],
        edit: Mapping[str, Any],
        reason: str,
        how: str,
    ) -> None:
        where, by = self.filter(*which), self.by(reason, audited=how != "unaudited")
        given = Edit(**edit) if edit and action in {Action.EDIT, Action.RETRY} else None
        cursor: str | None = None
        while True:
            after = cursor
            changed = await self.ask_first(
                lambda _, store, after=after: store.change(  # type: ignore[misc]
                    action, where, by, edit=given, limit=3, cursor=after, dry_run=how == "dry"
                )
            )
            if changed is None or (cursor := changed.cursor) is None:
                return

    async def halt(self, queue: str | None, seconds: int | None, accept: bool) -> None:
        now = self.clock.now()
        until = None if seconds is None else to_datetime(now + seconds * 1000)
        halt = Halt("ana", "drill", to_datetime(now), until, queue, accept)
        if answers := await self.ask(lambda _, store: store.halt(halt)):
            self.halts.append(answers)

    async def resume(self, queue: str | None) -> None:
        by = self.by("over")
        await self.ask(lambda _, store: store.resume(by, queue))

    async def confirm(self, worker: int, which: int) -> None:
        if self.halts:
            halts = self.halts[which % len(self.halts)]
            await self.ask(lambda name, store: store.unconfirmed(halts[name]))
            await self.ask(lambda name, store: store.confirm(self.workers[worker], halts[name].number))
            await self.ask(lambda name, store: store.unconfirmed(halts[name]))

    # -- documents --------------------------------------------------------------------------

    async def write(self, given: Sequence[tuple[list[dict[str, Any]], list[dict[str, Any]], bool]]) -> None:
        found = await self.ask_first(lambda _, store: store.documents(KEYS))
        versions = {document.key: document.version for document in found or ()}
        made = [self.bundle(writes_, jobs, noted, versions) for writes_, jobs, noted in given]
        await self.ask(lambda _, store: store.write(made))

    def bundle(
        self,
        given: Sequence[Mapping[str, Any]],
        jobs: Sequence[Mapping[str, Any]],
        noted: bool,
        versions: Mapping[Key, str],
    ) -> Bundle:
        note = Note(self.by("noted"), "thing.change", {"n": 1}) if noted else None
        return Bundle(tuple(self.write_of(each, versions) for each in given), tuple(map(self.new_job, jobs)), note)

    def write_of(self, given: Mapping[str, Any], versions: Mapping[Key, str]) -> Write:
        now, number = self.clock.now(), next(self.numbers)
        key, expected = given["key"], given["expected"]
        return Write(
            key,
            given["data"],
            versions.get(key, ABSENT) if expected == "current" else expected,
            None if given["due"] is None else now + given["due"] + number,
            None if given["expires"] is None else now + given["expires"],
            f"v{number}",
        )

    async def browse(self, collection: str, group: str | None, limit: int, backwards: bool) -> None:
        after: tuple[str, str] | None = None
        while True:
            listing = Listing(collection, group, after, limit, backwards)
            page = await self.ask_first(lambda _, store, listing=listing: store.browse(listing))  # type: ignore[misc]
            if not page:
                return
            after = page[-1].key.group, page[-1].key.id

    async def due(self, collection: str, ahead: Millis) -> None:
        await self.ask(lambda _, store: store.due(collection, 2, ahead=ahead))

    # -- reading ----------------------------------------------------------------------------

    async def find(self, which: tuple[str, int], limit: int) -> None:
        where = self.filter(*which)
        cursor: str | None = None
        while True:
            after = cursor
            page = await self.ask_first(
                lambda _, store, after=after: store.find(where, limit=limit, cursor=after)  # type: ignore[misc]
            )
            if page is None or (cursor := page.cursor) is None:
                break
        await self.ask(lambda _, store: store.count(where))

    async def restore(self, which: int) -> None:
        """Delete a job, and load the record of it that was read before."""
        job_id = self.pick(which)
        found = await self.ask_first(lambda _, store: store.get([job_id]))
        if not found or found[0].status is Status.RUNNING:
            return
        kind = kind_of(found[0].status)
        records: dict[str, list[Record]] = await self.ask(lambda _, store: store.look_up(kind, [job_id]))
        by = self.by()
        await self.ask(lambda _, store: store.change(Action.DELETE, Filter(ids=(job_id,)), by))
        await self.ask(lambda name, store: store.load(kind, records[name]))

    async def ask_for_starts(self) -> None:
        """Have the change feed name the jobs that are claimed from now on."""
        for store in self.stores.values():
            await store.changes(starts=True)

    async def look(self) -> None:
        """Compare everything that the stores return."""
        await self.ask(lambda _, store: everything(store, list(self.jobs)))
        if all(self.feeds.values()):
            await self.ask(lambda name, store: changes_of_jobs(store, self.feeds[name]))


async def completed(store: Store, outcome: Outcome) -> bool:
    """Write an outcome in a transaction, or by an ack if the store has none; return whether the claim was held."""
    if not store.transactional:
        return await store.ack([outcome]) != [None]
    try:
        async with store.completion(lambda: outcome):
            pass
    except ClaimLost:
        return False
    return True


EVERY_NUMBER = partial(NumbersQuery, tuple(Span(period, 0, 1 << 52) for period in Period))


async def everything(store: Store, ids: Sequence[str]) -> dict[str, Any]:
    jobs: dict[str, Job] = {job.id: job for job in (await store.find(Filter(), limit=1000)).jobs}
    return {
        "jobs": jobs,
        "of jobs": {job_id: await all_about(store, job_id) for job_id in ids},
        "got": sorted(job.id for job in await store.get(list(ids))),
        "tags": {job_id: sorted(tags) for job_id, tags in (await store.tags(list(ids))).items()},
        "number": await store.count(Filter()),
        "capped": [await store.count_up_to(Filter(tasks=("send",)), cap) for cap in (1, 1000)],
        "dead letters": [await store.dead_letters(await fingerprints(store), cap) for cap in (1, 1000)],
        "values": {what: await store.complete(what, "") for what in (Completable.TASK, Completable.TAG)},
        "audit": await store.audit(limit=1000),
        "stats": await store.stats(),
        "halts": await store.halts(),
        "documents": [await store.browse(Listing(collection)) for collection in COLLECTIONS],
        "records": {kind: await records_of(store, kind) for kind in Kind},
        "under way": await store.under_way(),
        "numbers": {by: await every_number(store, by) for by in ("queue", "task")},
    }


async def every_number(store: Store, by: Grouping) -> list[tuple[int, str, list[tuple[int, int]]]]:
    figures = await store.numbers(EVERY_NUMBER(by=by))
    return sorted((figure.start, figure.group, sorted(figure.counts.items())) for figure in figures)


async def fingerprints(store: Store) -> list[str]:
    dead = Filter(statuses=(Status.DEAD_LETTER,))
    return sorted({job.fingerprint or "" for job in (await store.find(dead, limit=1000)).jobs})


async def all_about(store: Store, job_id: str) -> list[Any]:
    by_hand = await store.audit(AuditFilter(job=job_id))
    return [await store.attempts(job_id), await store.timeline(job_id), await store.steps(job_id), by_hand]


async def cursor_of(store: Store) -> str:
    return str((await store.changes()).cursor)


async def changes_of_jobs(store: Store, after: str) -> dict[str, list[Any]]:
    """Return what the feed tells about each job, in order. Changes of different jobs have no order."""
    found: dict[str, list[Any]] = {}
    while True:
        page = await store.changes(after)
        assert not page.reset
        for change in page.changes(EVERY_CHANGE, Cursor.parse(after)):
            if change.job_id is not None:
                told = change.at, change.kind, change.task, change.queue, change.target, change.data
                found.setdefault(change.job_id, []).append(told)
        after = str(page.cursor)
        if not page.entries:
            return found


async def records_of(store: Store, kind: Kind) -> dict[str, Record]:
    chunk = await store.dump(kind)
    records = chunk.records
    while chunk.cursor is not None:
        chunk = await store.dump(kind, after=chunk.cursor)
        records += chunk.records
    return shown_records(kind, records)


@dataclass(frozen=True)
class Raised:
    """An error that a store raised."""

    type: str
    message: str


async def answer_of(call: Callable[[str, Store], Awaitable[T]], name: str, store: Store) -> T | Raised:
    try:
        return await call(name, store)
    except MainspringError as error:
        return Raised(type(error).__name__, str(error).replace(store.url, "(url)"))
