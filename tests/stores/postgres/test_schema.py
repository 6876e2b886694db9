"""The tables are made once, documented for readers, and left alone by a program that is too old."""

from __future__ import annotations

import asyncio
import contextlib

import psycopg
import pytest

from mainspring.errors import ConfigurationError, StoreTooNew
from mainspring.job import Move
from mainspring.stores.postgres import PostgresStore, schema
from mainspring.stores.protocol import Severity
from tests.conformance.scenario import claim, end, put, running
from tests.stores.postgres.processes import start
from tests.stores.postgres.several import Stores
from tests.worker.working import eventually

PROGRAMS = 4
WAITING = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND wait_event = 'advisory'"
VERSIONS = "SELECT version FROM {s}.migrations ORDER BY version"
RELATIONS = """
SELECT relname FROM pg_class WHERE relnamespace = '{s}'::regnamespace AND relkind IN ('r', 'p', 'v')
    AND NOT relispartition AND obj_description(oid, 'pg_class') IS NULL
"""
COLUMNS = """
SELECT attname FROM pg_attribute WHERE attrelid = '{s}.jobs'::regclass AND attnum > 0
    AND col_description(attrelid, attnum) IS NULL
"""
OBVIOUS = {
    "task", "queue", "max_attempts", "worker", "claimed_at", "created_at", "dedupe_key", "target_type", "target_id",
    "tags", "reason", "progress", "note", "error_type", "error",
}  # fmt: skip


def latest() -> int:
    return len(schema.scripts())


# -- made once ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_programs_that_start_together_migrate_once(stores: Stores) -> None:
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(start("migrate", stores)) for _ in range(PROGRAMS)]
        for program in programs:
            assert program.stdout
            assert program.stdout.readline() == "ready\n"
        for program in programs:
            assert program.stdin
            program.stdin.write("\n")
            program.stdin.flush()
        said = sorted(program.communicate()[0] for program in programs)
    names = [name for _, name, _ in schema.scripts()]
    assert said == sorted([f"{names}\n", *["[]\n"] * (PROGRAMS - 1)])
    assert stores.ask(VERSIONS) == list(range(1, latest() + 1))


async def test_programs_that_open_together_migrate_once(stores: Stores) -> None:
    opened = await asyncio.gather(*(stores.another() for _ in range(PROGRAMS)))
    await asyncio.gather(*(put(store) for store in opened))
    assert len(await claim(opened[0])) == PROGRAMS
    assert stores.ask(VERSIONS) == list(range(1, latest() + 1))


async def test_a_migration_that_waited_sees_the_tables_made_meanwhile(stores: Stores) -> None:
    """A pooler's connection has made such tables before, and remembers which it did not find when it looked."""
    place = f"{stores.dsn}&application_name={stores.schema}"
    async with await psycopg.AsyncConnection.connect(place, autocommit=True) as slower:
        await schema.migrate(slower, f"{stores.schema}_before")
        assert await schema.version_of(slower, stores.schema) == 0
        with stores.connect() as quicker:
            quicker.execute(schema.LOCK, (f"{stores.schema} migrations",))
            migrating = asyncio.create_task(schema.migrate(slower, stores.schema))
            await eventually(lambda: stores.ask(WAITING, stores.schema))
            quicker.execute(schema.MADE.format(schema=stores.schema).encode())
        assert len(await migrating) == latest()


async def test_a_migration_that_fails_leaves_nothing_behind(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [*schema.scripts(), (latest() + 1, "9999_broken.sql", "SELECT 1 / 0")]
    with monkeypatch.context() as patch:
        patch.setattr(schema, "scripts", lambda: broken)
        with pytest.raises(Exception, match="division by zero"):
            await stores.another()
    assert stores.ask("SELECT to_regclass('{s}.jobs')") == [None]
    await put(await stores.another())


# -- or not at all --------------------------------------------------------------------------------


async def test_a_store_without_migrate_refuses_old_tables_with_advice(stores: Stores) -> None:
    with pytest.raises(ConfigurationError, match=r"version 0 of .*run `mainspring migrate`"):
        await stores.another(migrate=False)
    assert stores.ask("SELECT to_regnamespace('{s}')") == [None]
    store = PostgresStore(stores.dsn, schema_name=stores.schema, migrate=False)
    assert await store.migrate() == [name for _, name, _ in schema.scripts()]
    assert await store.migrate() == []
    await store.close()
    await put(await stores.another(migrate=False))


async def test_a_newer_schema_is_refused_and_left_alone(stores: Stores, store: PostgresStore) -> None:
    stores.ask("INSERT INTO {s}.migrations (version, name) VALUES (99, 'from the future')")
    for migrate in (True, False):
        with pytest.raises(StoreTooNew, match=r"version 99.*upgrade Mainspring"):
            await stores.another(migrate=migrate)
    with pytest.raises(StoreTooNew, match="version 99"):
        await store.migrate()


@pytest.mark.parametrize("name", ["", "Jobs", "my jobs", 'a"b', "a;drop", "1st", "x" * 52, "a.b", "ä", "jobs\n"])
def test_a_name_that_would_need_quotes_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the schema; use lower-case letters"):
        PostgresStore("postgresql:///", schema_name=name)


async def test_the_longest_schema_name_works(stores: Stores) -> None:
    stores.schema = stores.schema.ljust(51, "x")
    store = await stores.another()
    await end(store, await running(store, keep=10**9), Move.DONE)
    assert [finding for finding in await store.diagnose() if finding.severity is Severity.ERROR] == []


# -- understood -----------------------------------------------------------------------------------


async def test_every_table_says_what_it_is_for(stores: Stores, store: PostgresStore) -> None:
    assert stores.ask(RELATIONS) == []
    assert stores.ask("SELECT obj_description('{s}'::regnamespace, 'pg_namespace') IS NOT NULL") == [True]


async def test_every_column_of_jobs_that_is_not_obvious_has_a_comment(stores: Stores, store: PostgresStore) -> None:
    assert set(stores.ask(COLUMNS)) <= OBVIOUS
