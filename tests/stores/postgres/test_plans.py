"""What a job costs does not depend on how many others wait or have finished, whatever the planner was last told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from itertools import cycle, islice
from typing import Any

import psycopg
import pytest

from mainspring.errors import Failure
from mainspring.job import UNTIL_WOKEN, Claim, Move, Outcome, Save, Status, Step, end_of
from mainspring.stores.documents import Bundle, Key, Listing, Write
from mainspring.stores.postgres import PostgresStore, maintenance
from mainspring.stores.postgres.transaction import PLAN_FREELY, Dialect, Transaction
from mainspring.stores.protocol import Action, Edit, Filter, Want
from tests.conformance.scenario import BY, by_hand, claim, end, join, new_job, outcome, put, running
from tests.postgres import dsn, fresh_schema
from tests.stores.postgres.several import Stores, read_so_far
from tests.worker.working import eventually

pytestmark = pytest.mark.slow

WAITING, SUSPENDED, FINISHED = 60_000, 60_000, 50_000
BOOM = Failure("ValueError", "boom", "Traceback …")
TIMES = 8  # more than the five after which a statement is prepared, and may be planned for any values
MOST_PAGES = 250  # of 8 kB, for the work of ten jobs; the tables have thousands
UNSORTED = 512  # pages of new entries that a GIN index may have put off sorting in
FOLDING = 250  # for the numbers over time of a few jobs: each of some sixty lines is found by its key

LEFT_ALONE = """
ALTER TABLE {s}.jobs SET (autovacuum_enabled = off);
CREATE TABLE {s}.archive_30000 PARTITION OF {s}.archive FOR VALUES FROM (30000) TO (30001);
ALTER TABLE {s}.archive_30000 SET (autovacuum_enabled = off);
ALTER TABLE {s}.archive_short SET (autovacuum_enabled = off);
ALTER TABLE {s}.archive_forever SET (autovacuum_enabled = off);
ALTER TABLE {s}.attempts SET (autovacuum_enabled = off);
ALTER TABLE {s}.steps SET (autovacuum_enabled = off);
ALTER TABLE {s}.documents SET (autovacuum_enabled = off);
"""  # the pages that autovacuum reads would count as ours
MANY_WAIT = """
INSERT INTO {s}.jobs (id, task, queue, priority, run_at, max_attempts, created_at, keep, keep_dead, payload,
                      dedupe_key, target_type, target_id, tags)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n + %(from)s), 12, '0'))::uuid, 'greet',
       CASE WHEN n %% 3 = 0 THEN 'mail' ELSE 'default' END, n %% 4, 9000000000000 + n, 3, 0, 0, 0, '{}',
       'wait-' || (n + %(from)s), 'guest', (n + %(from)s)::text, '{old}'
FROM generate_series(1, %(number)s) AS n
"""
MANY_ARE_SUSPENDED = """
INSERT INTO {s}.jobs (id, task, queue, status, priority, run_at, max_attempts, created_at, keep, keep_dead, payload,
                      waits_for)
SELECT ('00000000-0002-7000-8000-' || lpad(to_hex(n + %(from)s), 12, '0'))::uuid, 'greet', 'default', 2, n %% 4,
       253402214400000, 3, 0, 0, 0, '{}',
       CASE WHEN n %% 2 = 0 THEN 'crowd' ELSE 'job:00000000-0003-7000-8000-' || lpad(to_hex(n + %(from)s), 12, '0') END
FROM generate_series(1, %(number)s) AS n
"""
THEIR_STEPS = """
INSERT INTO {s}.steps (job_id, name, number, kind, output, started_at, finished_at)
SELECT id, 'first', 1, 'step', '1', 1, 2 FROM {s}.jobs WHERE waits_for = 'crowd' ON CONFLICT DO NOTHING
"""
MANY_HAVE_FINISHED = """
INSERT INTO {s}.archive (id, task, queue, status, priority, run_at, attempts, max_attempts, crashes, token, started_at,
                         finished_at, expires_at, drop_day, timeout, created_at, keep, keep_dead, reason, payload,
                         target_type, target_id, tags)
SELECT ('00000000-0001-7000-8000-' || lpad(to_hex(n + %(from)s), 12, '0'))::uuid, 'greet', 'default',
       CASE WHEN n %% 50 = 0 THEN 5 ELSE 4 END, n %% 4, n, 1, 3, 0, 1, 1, 1, 9000000000000 + n,
       (ARRAY[0, 30000, 1000000])[n %% 3 + 1], 0, 0, 0, 0, '', '{}', 'guest', (n + %(from)s)::text, '{old}'
FROM generate_series(1, %(number)s) AS n
"""
MANY_DOCUMENTS = """
INSERT INTO {s}.documents (collection, grp, id, version, due_at, expires_at, data)
SELECT 'things', 'g' || n %% 3, n + %(from)s, n, 9000000000000 + n, 9000000000000 + n, '{}'
FROM generate_series(1, %(number)s) AS n
"""
THEIR_FAILURES = """
INSERT INTO {s}.attempts (job_id, number, worker, started_at, finished_at, move)
SELECT id, 1, 'w1', 1, 2, 'retry' FROM {s}.archive ON CONFLICT DO NOTHING
"""
THEIR_NUMBERS = """
INSERT INTO {s}.counts SELECT queue, status, count(*) FROM {s}.jobs GROUP BY queue, status
UNION ALL SELECT queue, status, count(*) FROM {s}.archive GROUP BY queue, status
"""
ANALYZE = "ANALYZE {s}.jobs, {s}.archive, {s}.documents, {s}.attempts, {s}.steps, {s}.counts, {s}.dedupe"
SMALL = ("halts", "workers", "migrations", "counts")  # as many rows as there are queues or workers, or a few hundred


def fill(stores: Stores, waiting: int, suspended: int, finished: int, start: int = 0) -> None:
    with stores.connect() as connection:
        several = (
            (MANY_WAIT, waiting),
            (MANY_ARE_SUSPENDED, suspended),
            (MANY_HAVE_FINISHED, finished),
            (MANY_DOCUMENTS, waiting),
        )
        for statement, number in several:
            parameters = {"from": start, "number": number}
            connection.execute(statement.replace("{s}", stores.schema).encode(), parameters)
        for statement in (THEIR_FAILURES, THEIR_STEPS):
            connection.execute(statement.replace("{s}", stores.schema).encode())


def unknown(stores: Stores) -> None:
    fill(stores, WAITING, SUSPENDED, FINISHED)


def fresh(stores: Stores) -> None:
    fill(stores, WAITING, SUSPENDED, FINISHED)
    stores.ask(ANALYZE)


def stale(stores: Stores) -> None:
    """Statistics from when the tables were almost empty, as if they had never been updated since."""
    fill(stores, 10, 10, 10)
    stores.ask(ANALYZE)
    fill(stores, WAITING, SUSPENDED, FINISHED, start=10)


def empty(stores: Stores) -> None:
    stores.ask(ANALYZE)
    fill(stores, WAITING, SUSPENDED, FINISHED)


@pytest.fixture(scope="module", params=[unknown, fresh, stale, empty], ids=lambda param: param.__name__)
def full(request: pytest.FixtureRequest) -> Iterator[Stores]:
    """A database with many jobs for later and many finished ones, and what the planner knows of them."""
    stores = Stores(dsn(), fresh_schema())
    asyncio.run(make(stores))
    stores.ask(LEFT_ALONE)
    request.param(stores)
    stores.ask(THEIR_NUMBERS)
    yield stores
    stores.ask("DROP SCHEMA {s} CASCADE")


async def make(stores: Stores) -> None:
    await stores.another()
    await stores.close()


# -- the work -------------------------------------------------------------------------------------

Held = list[Claim]
Work = Callable[[PostgresStore, Held], Awaitable[Any]]
AN_OLD_ONE, A_WAITING_ONE = "00000000-0001-7000-8000-000000000100", "00000000-0000-7000-8000-000000000100"


async def insert(store: PostgresStore, held: Held) -> None:
    await store.insert([new_job(priority=n % 4, tags=("new",)) for n in range(10)])


async def insert_with_keys(store: PostgresStore, held: Held) -> None:
    await store.insert([new_job(dedupe_key=f"{n}", dedupe_for=60_000, delay=10**9) for n in range(3)])


async def claim_some(store: PostgresStore, held: Held) -> None:
    taken = await claim(store, 5)
    assert len(taken) == 5
    held += taken


async def claim_from_any_queue(store: PostgresStore, held: Held) -> None:
    taken = (await store.claim("w1", [Want("*", 5)])).jobs
    assert len(taken) == 5
    held += taken


async def ack(store: PostgresStore, held: Held) -> None:
    assert None not in await store.ack([outcome(held.pop(), Move.DONE) for _ in range(5)])


async def ack_failures(store: PostgresStore, held: Held) -> None:
    assert None not in await store.ack([outcome(held.pop(), Move.RETRY, delay=10**9) for _ in range(3)])


async def ack_the_dead(store: PostgresStore, held: Held) -> None:
    assert None not in await store.ack([outcome(held.pop(), Move.DEAD) for _ in range(2)])


async def suspend(store: PostgresStore, held: Held) -> None:
    for waits_for in ("crowd", "job:" + new_job().id, end_of(await put(store, delay=10**9))):
        assert await end(store, held.pop(), Move.SUSPEND, waits_for=waits_for, delay=UNTIL_WOKEN) is Status.SUSPENDED


async def wake(store: PostgresStore, held: Held) -> None:
    assert await store.wake({"crowd": 2, "nobody": 3}) == {"crowd": 2, "nobody": 0}


async def ack_with_waiting_job(store: PostgresStore, held: Held) -> None:
    await store.insert([new_job(waits_for=end_of(held[-1].id))])
    assert await store.ack([outcome(held.pop(), Move.DONE)]) == [Status.COMPLETED]
    assert len(await claim(store, 1)) == 1


async def insert_suspended(store: PostgresStore, held: Held) -> None:
    await store.insert([new_job(waits_for="crowd") for _ in range(5)])


async def save(store: PostgresStore, held: Held) -> None:
    claimed = held[0]
    steps = tuple(Step(f"{n}", n) for n in range(5))
    assert None not in await store.save([Save(claimed.id, claimed.token, steps, (new_job(delay=10**9),))])
    assert None not in await store.save([Save(claimed.id, claimed.token, steps)])
    assert len(await store.steps(claimed.id)) == 5


async def heartbeat(store: PostgresStore, held: Held) -> None:
    assert not (await store.heartbeat("w1", {job.id: job.token for job in held[:5]})).lost


async def prune_expired(store: PostgresStore, held: Held) -> None:
    await end(store, await running(store, keep=0, queue="short"), Move.DONE)
    assert await store.prune() >= 1


async def edit(store: PostgresStore, held: Held) -> None:
    await store.change(Action.EDIT, Filter(ids=(await put(store, delay=10**9),)), BY, edit=Edit(priority=0))


async def cancel(store: PostgresStore, held: Held) -> None:
    assert (await by_hand(store, Action.CANCEL, await put(store, delay=10**9))).ids


async def write_documents(store: PostgresStore, held: Held) -> None:
    assert None not in await store.write([Bundle((Write(Key("things", "new", f"{n}"), "{}"),)) for n in range(10)])
    await store.write([Bundle((Write(Key("things", "new", "0"), None),))])


async def found(store: PostgresStore, number: int, **fields: Any) -> None:
    page = await store.find(Filter(**fields))
    assert len(page.jobs) == number


WORK: Mapping[str, Work] = {
    "insert": insert,
    "insert with keys": insert_with_keys,
    "claim": claim_some,
    "insert more": insert,
    "claim from any queue": claim_from_any_queue,
    "fruitless claim": lambda store, _: store.claim("w1", [Want("nothing", 5), Want("mail", 5)]),
    "fruitless solo claim": lambda store, _: store.claim("w1", [Want("*", 1)], solo=True),
    "suspend": suspend,
    "insert suspended": insert_suspended,
    "wake": wake,
    "claim woken jobs": claim_from_any_queue,
    "save steps": save,
    "heartbeat": heartbeat,
    "ack a job that another waits for": ack_with_waiting_job,
    "ack": ack,
    "ack of failures": ack_failures,
    "ack of dead letters": ack_the_dead,
    "reap": lambda store, _: store.reap(),
    "prune": lambda store, _: store.prune(),
    "prune expired": prune_expired,
    "edit": edit,
    "cancel": cancel,
    "delete": lambda store, held: by_hand(store, Action.DELETE, AN_OLD_ONE),
    "stats": lambda store, _: store.stats(),
    "get": lambda store, _: store.get([AN_OLD_ONE, A_WAITING_ONE]),
    "attempts": lambda store, _: store.attempts(A_WAITING_ONE),
    "timeline": lambda store, _: store.timeline(A_WAITING_ONE),
    "find by id": lambda store, _: found(store, 1, ids=(A_WAITING_ONE,)),
    "find by target": lambda store, _: found(store, 2, target_type="guest", target_id="77"),
    "find by target in vain": lambda store, _: found(store, 0, target_type="guest", target_id="nobody"),
    "find by tag in vain": lambda store, _: found(store, 0, tags=("nothing",)),
    "find by key": lambda store, _: found(store, 1, dedupe_key="wait-77"),
    "find dead letters": lambda store, _: found(store, 50, statuses=(Status.DEAD_LETTER,)),
    "find the newest": lambda store, _: found(store, 50),
    "write documents": write_documents,
    "read documents": lambda store, _: store.documents([Key("things", "g1", "1"), Key("things", "", "a")]),
    "due documents": lambda store, _: store.due("things"),
    "browse a collection": lambda store, _: store.browse(Listing("things", None, ("g1", "1"))),
    "browse a group backwards": lambda store, _: store.browse(Listing("things", "g1", ("g1", "5"), backwards=True)),
}


# -- pages ----------------------------------------------------------------------------------------


async def costs(stores: Stores, work: Work, held: Held) -> tuple[float, dict[str, int]]:
    """Pages per time, and the tables that were read from end to end. The server counts when a connection ends."""
    before = read_so_far(stores)
    store = await stores.another()
    for _ in range(TIMES):
        await work(store, held)
    await store.close()
    await eventually(lambda: not stores.backends())
    after = read_so_far(stores)
    pages = sum(after[name][0] - before.get(name, (0, 0))[0] for name in after) / TIMES
    scanned = {name: rows - before.get(name, (0, 0))[1] for name, (_, rows) in after.items() if name not in SMALL}
    return pages, {name: rows for name, rows in scanned.items() if rows > 1000}


async def test_everyday_work_reads_a_bounded_number_of_pages(full: Stores) -> None:
    store = await full.another()
    await join(store, "w1")
    await store.close()
    held: Held = []
    costly = {}
    for name, work in WORK.items():
        pages, scanned = await costs(full, work, held)
        if pages > MOST_PAGES + UNSORTED * ("tag" in name) + FOLDING * ("prune" in name) or scanned:
            costly[name] = pages, scanned
    assert costly == {}


# -- plans ----------------------------------------------------------------------------------------

BIG = ("jobs", "steps", "documents", "archive", "archive_short", "archive_forever", "archive_30000")
INTENDED = {"jobs_waiting", "jobs_suspect", "jobs_running", "jobs_pkey", "jobs_dedupe", "jobs_target", "jobs_tags"}


@pytest.fixture
async def recorded(full: Stores, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Every statement of all that work, with its parameters."""
    statements: dict[str, Any] = {}

    class Recording(Transaction):
        async def rows(self, template: str, **parameters: Any) -> list[tuple[Any, ...]]:
            statements[template] = parameters
            return await super().rows(template, **parameters)

        async def do(self, template: str, **parameters: Any) -> int:
            statements[template] = parameters
            return await super().do(template, **parameters)

    monkeypatch.setattr("mainspring.stores.postgres.store.Transaction", Recording)
    store = await full.another()
    await join(store, "w1")
    held: Held = []
    for work in WORK.values():
        await work(store, held)
    await store.leave("w1")
    await store.close()
    return statements


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


async def test_no_statement_of_it_is_planned_to_read_a_big_table_from_end_to_end(
    full: Stores, recorded: dict[str, Any]
) -> None:
    dialect = Dialect(full.schema, None)
    used: set[str] = set()
    bad: dict[str, list[str]] = {}
    with full.connect() as connection:
        for template, parameters in recorded.items():
            if template.split()[0] not in {"SELECT", "WITH", "INSERT", "UPDATE", "DELETE"}:
                continue
            ((plan,),) = explain(
                connection,
                dialect.statement(template),
                parameters,
                template == maintenance.EXPIRED or "documents" in template,
            )
            all_nodes = list(nodes(plan[0]["Plan"]))
            used |= {node["Index Name"] for node in all_nodes if "Index Name" in node}
            scans = [node["Relation Name"] for node in all_nodes if node["Node Type"] == "Seq Scan"]
            if costly := [name for name in scans if name in BIG]:
                bad[template] = costly
    assert bad == {}
    assert INTENDED - used <= {"jobs_suspect"}  # of which there are none
    assert len(recorded) > 40


def explain(connection: psycopg.Connection[Any], statement: str, parameters: Any, bound: bool) -> Any:
    with connection.transaction(force_rollback=True):
        if bound:
            connection.execute(PLAN_FREELY.encode(), {"freely": "off"})
        return connection.execute(f"EXPLAIN (FORMAT JSON) {statement}".encode(), parameters).fetchall()


# -- many that run --------------------------------------------------------------------------------

RUNNING, ENDED, ACKS = 4_000, 100, 8
READ_BY_INDEX = """
SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = '{s}' AND relname IN ('jobs', 'attempts')
"""
NEW_STATISTICS = "VACUUM ANALYZE {s}.jobs, {s}.attempts"

Moves = tuple[Move, ...]
UNFINISHED = (Move.RETRY, Move.SNOOZE, Move.RELEASE, Move.SUSPEND, Move.CRASH)
MIXED = (*UNFINISHED, Move.DEAD, Move.CANCEL, Move.DONE)


def endings(held: Held, moves: Moves, number: int) -> list[Outcome]:
    """End as many of each kind; jobs that go on are put off."""
    chosen = islice(cycle(moves), number)
    return [outcome(held.pop(), move, delay=10**9 if move in UNFINISHED else 0, failure=BOOM) for move in chosen]


async def none_ran(stores: Stores, store: PostgresStore, moves: Moves) -> None:
    """The planner takes the index of running jobs for the shortest."""
    await store.insert([new_job() for _ in range(RUNNING)])
    stores.ask(NEW_STATISTICS)


async def none_were_there(stores: Stores, store: PostgresStore, moves: Moves) -> None:
    """So say the plans that were made then, and are kept by the connection."""
    stores.ask(NEW_STATISTICS)
    for _ in range(TIMES):
        await store.insert([new_job() for _ in moves])
        assert None not in await store.ack(endings(await claim(store, len(moves)), moves, len(moves)))
    await store.insert([new_job() for _ in range(RUNNING)])


@pytest.mark.parametrize("told", [none_ran, none_were_there])
@pytest.mark.parametrize("moves", [(Move.DONE,), (Move.RETRY,), MIXED], ids=["done", "retry", "mixed"])
async def test_an_ack_reads_the_jobs_that_it_ends_and_no_others(
    stores: Stores, told: Callable[[Stores, PostgresStore, Moves], Awaitable[None]], moves: Moves
) -> None:
    store = await stores.another()
    stores.ask(LEFT_ALONE)
    await join(store, "w1")
    await told(stores, store, moves)
    held = await claim(store, RUNNING)
    before, scanned_before = read_by_index(stores), read_in_a_row(stores)
    for _ in range(ACKS):
        assert None not in await store.ack(endings(held, moves, ENDED))
    await store.close()
    await eventually(lambda: not stores.backends())
    after, scanned = read_by_index(stores), read_in_a_row(stores)
    assert scanned == scanned_before
    assert after["jobs_running"] == before["jobs_running"]
    assert after["jobs_pkey"] - before["jobs_pkey"] < 4 * ACKS * ENDED + RUNNING
    assert after["attempts_pkey"] - before["attempts_pkey"] <= ACKS * ENDED


def read_by_index(stores: Stores) -> dict[str, int]:
    with stores.connect() as connection:
        return dict(connection.execute(READ_BY_INDEX.replace("{s}", stores.schema).encode()).fetchall())


def read_in_a_row(stores: Stores) -> dict[str, int]:
    """Rows of tables that were read from end to end."""
    return {name: rows for name, (_, rows) in read_so_far(stores).items() if name in {"jobs", "attempts"}}


# -- unknown tasks --------------------------------------------------------------------------------

MANY_ARE_UNKNOWN = """
INSERT INTO {s}.jobs (id, task, queue, priority, run_at, max_attempts, created_at, keep, keep_dead, payload)
SELECT ('00000000-0005-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'strange', 'default', n %% 4, n, 3, 0, 0, 0, '{}'
FROM generate_series(1, 20000) AS n
"""
KNOWN = frozenset({"greet"})


@pytest.fixture
async def strange() -> AsyncIterator[Stores]:
    """A database whose queue begins with many due jobs of an unknown task, in every priority."""
    stores = Stores(dsn(), fresh_schema())
    await make(stores)
    stores.ask(LEFT_ALONE)
    stores.ask(MANY_ARE_UNKNOWN)
    yield stores
    stores.ask("DROP SCHEMA {s} CASCADE")


async def claim_known(store: PostgresStore, held: Held) -> None:
    await put(store, priority=3)
    assert [job.task for job in await claim(store, tasks=KNOWN)] == ["greet"]


async def claim_strange(store: PostgresStore, held: Held) -> None:
    assert len(await claim(store, 5, tasks=frozenset({"strange"}))) == 5


async def test_a_claim_reads_no_jobs_of_unknown_tasks_once_they_were_set_aside(strange: Stores) -> None:
    store = await strange.another()
    await join(store, "w1")
    last, fruitless = await put(store, priority=3), 0
    while not (found := await claim(store, tasks=KNOWN)):
        fruitless += 1
    await store.close()
    assert [job.id for job in found] == [last]
    assert fruitless < 5
    strange.ask("VACUUM {s}.jobs")
    costly = {}
    for work in (claim_known, claim_strange):
        pages, scanned = await costs(strange, work, [])
        if pages > MOST_PAGES or scanned:
            costly[work.__name__] = pages, scanned
    assert costly == {}
