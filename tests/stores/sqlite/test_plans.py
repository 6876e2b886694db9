"""What a job costs does not depend on how many others wait or have finished."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from mainspring.clock import to_datetime
from mainspring.job import UNTIL_WOKEN, Claim, Inserted, Move, NewJob, Save, Status, Step, end_of
from mainspring.stores.documents import Bundle, Key, Listing, Write
from mainspring.stores.protocol import Action, Edit, Filter, Store, Want
from mainspring.stores.sqlite import (
    SqliteStore,
    acks,
    claims,
    documents,
    insertion,
    maintenance,
    numbers,
    read,
    wakeups,
)
from mainspring.stores.sqlite import steps as durable
from mainspring.stores.sqlite.read import Conditions
from mainspring.stores.sqlite.rows import FINISHED, WEEK
from mainspring.stores.sqlite.transaction import _statement
from mainspring.stores.tables import SUSPENDED
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    BY,
    by_hand,
    claim,
    claim_one,
    crashed,
    end,
    join,
    new_job,
    outcome,
    put,
    put_many,
    running,
)
from tests.stores.sqlite.template import fresh_database

pytestmark = pytest.mark.slow

MANY_WAIT = """
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?)
INSERT INTO mainspring_jobs (id, task, queue, priority, run_at, max_attempts, created_at, keep, keep_dead, payload)
SELECT printf('wait-%012d', n), 'greet', iif(n % 3, 'default', 'mail'), n % 4, 9000000000000 + n, 3, 0, 0, 0, '{}'
FROM number
"""
MANY_ARE_SUSPENDED = f"""
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?)
INSERT INTO mainspring_jobs (id, task, queue, status, priority, run_at, max_attempts, created_at, keep, keep_dead,
                             payload, waits_for)
SELECT printf('nap-%012d', n), 'greet', 'default', {SUSPENDED}, n % 4, {UNTIL_WOKEN}, 3, 0, 0, 0, '{{}}',
       iif(n % 2, 'job:' || n, 'bell')
FROM number
"""
THEIR_STEPS = f"""
INSERT INTO mainspring_steps SELECT id, 'fetch', 1, 'step', NULL, 0, 0 FROM mainspring_jobs WHERE status = {SUSPENDED}
"""
MANY_HAVE_FINISHED = """
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?)
INSERT INTO mainspring_archive (id, task, queue, status, priority, run_at, attempts, max_attempts, crashes, token,
                                started_at, finished_at, expires_at, timeout, created_at, keep, keep_dead,
                                reason, tags, payload)
SELECT printf('done-%012d', n), 'greet', iif(n % 3, 'default', 'mail'), 4 + (n % 50 = 0), n % 4, n, 1, 3, 0, 1,
       8000000000000 + n, 8000000000000 + n, 8000000000000 + n + iif(n % 2, 604800000, 1000), 0, 0, 0, 0, '',
       '["old"]', '{}'
FROM number
"""
MANY_DOCUMENTS = """
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?)
INSERT INTO mainspring_documents
SELECT 'things', 'g' || n % 3, n, n, 9000000000000 + n, 9000000000000 + n, '{}' FROM number
"""
THEIR_TAGS = "INSERT INTO mainspring_tags SELECT 'old', id FROM mainspring_archive"


def fill(path: Path, waiting: int, finished: int) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(MANY_WAIT, (waiting,))
        connection.execute(MANY_ARE_SUSPENDED, (waiting,))
        connection.execute(THEIR_STEPS)
        connection.execute(MANY_HAVE_FINISHED, (finished,))
        connection.execute(MANY_DOCUMENTS, (waiting,))
        connection.execute(THEIR_TAGS)


def analyze(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ANALYZE")


def unknown() -> Path:
    path = fresh_database()
    fill(path, 20_000, 20_000)
    return path


def fresh() -> Path:
    path = unknown()
    analyze(path)
    return path


def stale() -> Path:
    """Statistics from when the tables were almost empty, as if they had never been updated since."""
    path = fresh_database()
    with closing(sqlite3.connect(path)) as connection:
        fill(path, 10, 10)
        analyze(path)
        with connection:
            for table in ("jobs", "archive", "steps", "tags", "documents"):
                connection.execute(f"DELETE FROM mainspring_{table}")
    fill(path, 20_000, 20_000)
    return path


@pytest.fixture(scope="module", params=[unknown, fresh, stale], ids=["no statistics", "fresh", "stale"])
def full(request: pytest.FixtureRequest) -> Path:
    """A database with many jobs for later and many finished ones, and what SQLite knows of them."""
    make: Callable[[], Path] = request.param
    return make()


# -- plans ----------------------------------------------------------------------------------------


def plan(path: Path, statement: str, parameters: Any = None) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        values = any_parameters(statement) if parameters is None else parameters
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


def any_parameters(statement: str) -> Any:
    if names := re.findall(r":([a-z_]+)", statement):
        return dict.fromkeys(names)
    numbered = [int(number) for number in re.findall(r"\?(\d+)", statement)]
    return [None] * max(numbered, default=statement.count("?"))


BY_ID = "mainspring_jobs USING INDEX sqlite_autoindex_mainspring_jobs_1 (id=?)"
BY_ROW = "mainspring_jobs USING INTEGER PRIMARY KEY (rowid=?)"
AS_GOOD = (
    "INDEX sqlite_autoindex_mainspring_jobs_1 (id=? AND rowid=?)",
    "INTEGER PRIMARY KEY (rowid=?)",
)  # one row either way
LEVEL = "mainspring_jobs USING INDEX mainspring_jobs_waiting (queue=? AND priority=?"

SUSPECT = "mainspring_jobs USING INDEX mainspring_jobs_suspect (queue=?"
TO_WAKE = "mainspring_jobs USING INDEX mainspring_jobs_to_wake"
ASIDE = "mainspring_jobs USING INDEX mainspring_jobs_aside (queue=?"
HEADS = [f"{SUSPECT})", f"{ASIDE})", *[f"{LEVEL})"] * 4]

EXPIRING = [
    "mainspring_archive USING INDEX mainspring_archive_week (finished_at<?)",
    "mainspring_archive USING INDEX mainspring_archive_expiry (expires_at<?)",
]

INTENDED = {
    "INSERT": (_statement(insertion.INSERT, 16, 16), ["mainspring_archive USING PRIMARY KEY (id=?)"]),
    "INSERT_SUSPENDED": (
        _statement(insertion.INSERT_SUSPENDED, 16, 17),
        ["mainspring_archive USING PRIMARY KEY (id=?)"],
    ),
    "LIVE_HOLDER": (
        insertion.LIVE_HOLDER,
        ["mainspring_jobs USING INDEX mainspring_jobs_dedupe (task=? AND dedupe_key=?)"],
    ),
    "HOLDERS": (
        _statement(insertion.HOLDERS, 16, 2),
        [
            "mainspring_jobs USING INDEX mainspring_jobs_dedupe (task=? AND dedupe_key=?)",
            "mainspring_dedupe USING PRIMARY KEY (task=? AND dedupe_key=?)",
        ],
    ),
    "KNOWN": (
        _statement(insertion.KNOWN, 16, 1),
        [
            "mainspring_jobs USING COVERING INDEX sqlite_autoindex_mainspring_jobs_1 (id=?)",
            "mainspring_archive USING PRIMARY KEY (id=?)",
        ],
    ),
    "SOME_UNEXPECTED": (
        _statement(documents.SOME_UNEXPECTED, 16, 4),
        ["mainspring_documents USING PRIMARY KEY (collection=? AND grp=? AND id=?)"],
    ),
    "HEADS_OF": (_statement(claims.HEADS_OF, 2, 1), HEADS),
    "PICK": (claims.PICK, [f"{LEVEL} AND run_at<?)", BY_ROW]),
    "PICK_WITH_ASIDE": (
        claims.PICK_WITH_ASIDE,
        [
            f"{LEVEL} AND run_at<?)",
            "own USING INTEGER PRIMARY KEY (rowid=?)",
            f"{ASIDE} AND task=? AND priority=? AND run_at<?)",
            BY_ROW,
        ],
    ),
    "PICK_SUSPECT": (claims.PICK_SUSPECT, [f"{SUSPECT} AND task=? AND run_at<?)", BY_ROW]),
    "PUT_ASIDE": (claims.PUT_ASIDE, [BY_ROW, f"{LEVEL} AND run_at<?)"]),
    "SUSPECTS": (claims.SUSPECTS, [f"{SUSPECT})", f"{SUSPECT} AND task>?)", f"{SUSPECT} AND task=?)"]),
    "SET_ASIDE": (
        claims.SET_ASIDE,
        [f"{ASIDE})", f"{ASIDE} AND task>?)", *[f"{ASIDE} AND task=? AND priority=?)"] * 2],
    ),
    "TAKE": (claims.TAKE, [BY_ROW]),
    "HELD": (_statement(acks.HELD, 16, 2), [BY_ID]),
    "RESCHEDULE": (_statement(acks.RESCHEDULE, 16, 12), [BY_ROW]),
    "ARCHIVE": (_statement(acks.ARCHIVE, 16, 13), [BY_ROW]),
    "ARCHIVE_COMPLETED": (_statement(acks.ARCHIVE_COMPLETED, 16, 5), [BY_ROW]),
    "REMOVE": (acks.REMOVE, [BY_ROW]),
    "WAITING_FOR": (_statement(wakeups.WAITING_FOR, 16, 1), [f"{TO_WAKE} (waits_for=?)"]),
    "ANY_WAITER_FOR_AN_END": (wakeups.ANY_WAITER_FOR_AN_END, [f"{TO_WAKE} (waits_for>? AND waits_for<?)"]),
    "WAITING_FOR_ENDS": (
        wakeups.WAITING_FOR_ENDS,
        [TO_WAKE.replace("mainspring_jobs", "waiter", 1) + " (waits_for=?)"],
    ),
    "WAKE": (wakeups.WAKE, [BY_ROW]),
    "OF_JOB": (durable.OF_JOB, ["mainspring_steps USING PRIMARY KEY (job_id=?)"]),
    "LOST": (maintenance.LOST, [BY_ID]),
    "TO_CANCEL": (maintenance.TO_CANCEL, ["mainspring_jobs USING INDEX mainspring_jobs_running (worker=?)"]),
    "HELD_BY": (maintenance.HELD_BY, ["mainspring_jobs USING INDEX mainspring_jobs_running (worker=?)"]),
    "EXPIRED": (maintenance.EXPIRED, EXPIRING),
    "SOMETHING_EXPIRED": (maintenance.SOMETHING_EXPIRED, EXPIRING),
    "DUE": (read.DUE, [f"{LEVEL} AND run_at<?)"] * 4),
    "TASKS_DUE": (read.TASKS_DUE, [f"{LEVEL} AND run_at<?)"] * 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", INTENDED)
def test_the_statements_of_a_jobs_way_use_the_intended_index(full: Path, name: str) -> None:
    statement, intended = INTENDED[name]
    steps = [
        step.replace("COVERING INDEX mainspring_jobs", "INDEX mainspring_jobs").replace(*AS_GOOD)
        for step in plan(full, statement)
    ]
    searches = [step for step in steps if step.startswith("SEARCH") and "payloads" not in step]
    assert [f"SEARCH {search}" for search in intended] == searches[: len(intended)]


BY_WEEK = "mainspring_archive USING INDEX mainspring_archive_week"
BY_END = "mainspring_archive USING INDEX mainspring_archive_finished"
MOMENT = to_datetime(8_000_000_000_000)


@pytest.mark.parametrize(
    ("where", "bounds"),
    [
        (Filter(finished_after=MOMENT), "(finished_at>?)"),
        (Filter(changed_after=MOMENT), "(finished_at>?)"),
        (Filter(finished_after=MOMENT, changed_after=MOMENT, tasks=("greet",)), "(finished_at>?)"),
        (Filter(finished_before=MOMENT), "(finished_at<?)"),
        (Filter(finished_after=MOMENT, finished_before=MOMENT), "(finished_at>? AND finished_at<?)"),
    ],
)
def test_filters_by_the_end_use_both_indexes_of_ends(full: Path, where: Filter, bounds: str) -> None:
    conditions = Conditions(where, FINISHED)
    steps = plan(full, f"SELECT * FROM {FINISHED} WHERE {conditions} LIMIT 10", conditions.values)
    assert [step for step in steps if step.startswith("SEARCH")] == [
        f"SEARCH {BY_WEEK} {bounds}",
        f"SEARCH {BY_END} {bounds}",
    ]


@pytest.mark.parametrize("most", [1, 20_000, 50_000])
async def test_jobs_are_counted_by_their_end_however_many_there_are(
    full: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(read, "MOST_BY_END", most)
    store = SqliteStore(full)
    after, before = to_datetime(8_000_000_000_001), to_datetime(8_000_000_000_101)
    assert await store.count(Filter(finished_after=after)) == 20_000
    assert await store.count(Filter(finished_after=after, finished_before=before, tasks=("greet",))) == 100
    await store.close()


def test_jobs_that_are_kept_as_usual_are_in_one_index_of_ends(full: Path) -> None:
    """The conditions of the indexes name the default of `keep`."""
    assert NewJob(id="", task="", payload="").keep == WEEK
    with closing(sqlite3.connect(full)) as connection:
        statement = "SELECT sql FROM sqlite_master WHERE name LIKE 'mainspring_archive_%' AND sql LIKE '%expires_at%'"
        assert [f"finished_at + {WEEK}" in sql for (sql,) in connection.execute(statement)] == [True] * 3


class Recorder(sqlite3.Cursor):
    def execute(self, statement: str, parameters: Any = (), /) -> Self:
        if re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", statement):
            recorded[statement] = parameters
        return super().execute(statement, parameters)


class Recording(sqlite3.Connection):
    def cursor(self, *_: Any) -> Recorder:  # type: ignore[override]
        return super().cursor(Recorder)

    def execute(self, statement: str, parameters: Any = (), /) -> Recorder:
        return self.cursor().execute(statement, parameters)


recorded: dict[str, Any] = {}

SCANS_OF_FEW_ROWS = re.compile(
    r"SCAN mainspring_jobs USING (COVERING )?INDEX mainspring_jobs_running$"  # as many as run
    r"|SCAN \d+ CONSTANT ROWS?|SCAN CONSTANT ROW|VIRTUAL TABLE|SCAN \(subquery-\d+\)|SCAN \(join-\d+\)"
    r"|SCAN (ended|going|outcome|queues|waiting|suspect|aside|line|level|mainspring_halts)\b"
    r"|SCAN (mainspring_counts|mainspring_feed|mainspring_workers)\b"
)


ADDS_UP_FEW_ENTRIES = {numbers.NOT_FOLDED}  # up to FOLD_EVERY; they are sorted


async def test_nothing_that_a_store_does_all_day_reads_a_whole_table_or_sorts(
    full: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    recorded.clear()
    monkeypatch.setattr("sqlite3.connect", partial(sqlite3.connect, factory=Recording))
    store = SqliteStore(full, clock=clock)
    await a_day(store, clock)
    await store.close()
    monkeypatch.undo()
    assert len(recorded) > 40
    bad = {
        statement: steps
        for statement, parameters in recorded.items()
        if statement not in ADDS_UP_FEW_ENTRIES
        and (steps := [step for step in plan(full, statement, parameters) if is_costly(step)])
    }
    assert bad == {}


def is_costly(step: str) -> bool:
    return ("TEMP B-TREE" in step and "(DISTINCT)" not in step) or (
        step.startswith("SCAN") and not SCANS_OF_FEW_ROWS.search(step)
    )


LONG = f'"{"x" * 2000}"'


async def a_day(store: SqliteStore, clock: ManualClock) -> None:
    """All that happens again and again, or to single jobs by hand."""
    await join(store, "w1")
    for move in sorted(set(Move) - {Move.CLAIM, Move.EDIT, Move.MANUAL_RETRY, Move.WAKE}):
        held = await running(store, tags=("a", "b"), dedupe_key=move, dedupe_for=1000, payload=LONG, keep=0)
        await end(store, held, move, follow_ups=(new_job(queue="other"),))
        await by_hand(store, Action.CANCEL, held.id)
        await by_hand(store, Action.RETRY, held.id)
        await by_hand(store, Action.DELETE, held.id)
    await a_day_of_durable_functions(store)
    await put_many(store, 20, queue="other")
    await store.ack([outcome(held, Move.DONE) for held in await claim(store, 20, queue="*")])
    await end(store, await running(store, keep=0, tags=("c",)), Move.DONE)
    suspect = await crashed(store)
    await store.heartbeat("w1", {suspect: 1})
    await claim_one(store, solo=True)
    await store.change(Action.EDIT, Filter(ids=(await put(store),)), BY, edit=Edit(priority=0))
    clock.advance(10)
    await store.reap()
    await store.leave("w1")
    while await store.prune():
        pass
    await store.get([suspect])
    await store.stats()
    await store.attempts(suspect)
    await store.halts()
    await a_day_of_documents(store, clock.now())


async def a_day_of_durable_functions(store: Store) -> None:
    child, parent = await running(store, keep=0), await running(store)
    await store.save([Save(parent.id, parent.token, (Step("fetch", 1), Step("render", 2)), (new_job(queue="other"),))])
    await end(store, parent, Move.SUSPEND, waits_for=end_of(child.id), delay=UNTIL_WOKEN, steps=(Step("wait", 3),))
    await end(store, child, Move.DONE)
    await end(store, await claim_one(store), Move.SUSPEND, waits_for="door", delay=UNTIL_WOKEN)
    assert await store.wake({"door": 1, "bell": 0, "window": 1}) == {"door": 1, "bell": 0, "window": 0}
    await end(store, await claim_one(store), Move.DEAD)
    await store.change(Action.RETRY, Filter(ids=(parent.id,)), BY, edit=Edit(from_step="render"))
    assert [step.name for step in await store.steps(parent.id)] == ["fetch"]
    await end(store, await claim_one(store), Move.DONE)


async def a_day_of_documents(store: Store, now: int) -> None:
    await store.write(
        [
            Bundle((Write(Key("things", f"{n % 3}", f"{n}"), "{}", due_at=now + n, expires_at=now + n),), (new_job(),))
            for n in range(9)
        ]
    )
    seen = Bundle((Write(Key("things", "", "b"), "{}", expected=""),), (new_job(dedupe_key="b"),))
    assert await store.write([seen]) == [[Inserted(seen.jobs[0].id, created=True)]]
    assert await store.write([seen, Bundle((Write(Key("things", "", "b"), "{}", expected=""),))])
    await store.write([Bundle((Write(Key("things", "", "a"), None),))])
    await store.documents([Key("things", "0", "3"), Key("things", "", "a")])
    await store.due("things")
    await store.prune()
    for group in (None, "1"):
        for after in (None, ("1", "1")):
            for backwards in (False, True):
                await store.browse(Listing("things", group, after, backwards=backwards))


# -- steps ----------------------------------------------------------------------------------------

Steps = Callable[[SqliteStore], Coroutine[Any, Any, Any]]


@contextmanager
def counted(store: SqliteStore) -> Iterator[list[int]]:
    """How many instructions SQLite's machine runs on the writer's connection."""
    assert store._threads
    connection = store._threads.writer._write_connection._connection
    assert connection
    steps = [0]

    def count() -> int:
        steps[0] += 1
        return 0

    connection.set_progress_handler(count, 1)
    yield steps
    connection.set_progress_handler(None, 1)


async def ten_due(store: SqliteStore) -> list[Claim]:
    return (await store.claim("w1", [Want("default", 10)])).jobs


async def costs(path: Path) -> dict[str, int]:
    """Instructions for each part of the way of ten jobs."""
    store = SqliteStore(path, clock=ManualClock())
    await end(store, await running(store), Move.DONE)
    new = [new_job(priority=n % 4) for n in range(10)]
    claims: list[Sequence[Claim]] = []

    async def claim_and_keep(queue: str) -> None:
        claims.append((await store.claim("w1", [Want(queue, 5)])).jobs)

    work = {
        "insert": lambda: store.insert(new),
        "claim": lambda: claim_and_keep("default"),
        "claim from any queue": lambda: claim_and_keep("*"),
        "fruitless claim": lambda: claim_and_keep("default"),
        "fruitless solo claim": lambda: store.claim("w1", [Want("*", 1)], solo=True),
        "save": lambda: store.save([Save(job.id, job.token, (Step("fetch", 1),), ref=job.ref) for job in claims[0]]),
        "ack": lambda: store.ack([outcome(held, Move.DONE) for held in claims[0]]),
        "ack of failures": lambda: store.ack([outcome(held, Move.RETRY) for held in claims[1]]),
        "wake": lambda: store.wake({"bell": 5, "door": 5, "window": 1}),
        "cancel": lambda: by_hand(store, Action.CANCEL, claims[1][0].id),
        "delete": lambda: by_hand(store, Action.DELETE, claims[1][0].id),
    }
    steps = {name: await count_steps(store, call) for name, call in work.items()}
    assert [len(taken) for taken in claims] == [5, 5, 0]
    assert (await store.get([claims[0][0].id]))[0].status is Status.COMPLETED
    await store.close()
    return steps


async def count_steps(store: SqliteStore, work: Callable[[], Coroutine[Any, Any, Any]]) -> int:
    with counted(store) as steps:
        await work()
    return steps[0]


@pytest.mark.slow
async def test_a_jobs_way_costs_the_same_however_many_wait_or_have_finished() -> None:
    few, many = fresh_database(), fresh_database()
    fill(few, 100, 0)
    fill(many, 50_000, 50_000)
    with_few, with_many = await costs(few), await costs(many)
    assert with_few.keys() == with_many.keys()
    for work, steps in with_few.items():
        assert with_many[work] == pytest.approx(steps, rel=0.2), work


# -- unknown tasks --------------------------------------------------------------------------------

MANY_ARE_UNKNOWN = """
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?)
INSERT INTO mainspring_jobs (id, task, queue, priority, run_at, max_attempts, created_at, keep, keep_dead, payload)
SELECT printf('strange-%012d', n), 'strange', 'default', n % 4, n, 3, 0, 0, 0, '{}' FROM number
"""
KNOWN = frozenset({"greet"})


async def behind_unknown(number: int) -> dict[str, int]:
    """Instructions for claims of a worker in whose way there were so many due jobs of an unknown task."""
    path = fresh_database()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(MANY_ARE_UNKNOWN, (number,))
    store = SqliteStore(path, clock=ManualClock())
    asked = 1
    while (await store.claim("w1", [Want("default", 10)], tasks=KNOWN)).next_due is not None:
        asked += 1
    assert asked <= number / claims.MAX_SET_ASIDE + 2
    await put(store, priority=3)
    assert len(await claim(store, tasks=KNOWN)) == 1  # after which claims are the writer's, where steps are counted
    await put_many(store, 5)
    work = {
        "claim": lambda: claim(store, tasks=KNOWN),
        "claim of what was set aside": lambda: claim(store, 5, tasks=frozenset({"strange"})),
        "fruitless claim": lambda: claim(store, tasks=KNOWN),
    }
    steps = {name: await count_steps(store, call) for name, call in work.items()}
    await store.close()
    return steps


async def test_a_claim_costs_the_same_however_many_jobs_of_unknown_tasks_are_due() -> None:
    few, many = await behind_unknown(100), await behind_unknown(20_000)
    assert min(few.values()) > 0
    for work, steps in few.items():
        assert many[work] == pytest.approx(steps, rel=0.2), work
