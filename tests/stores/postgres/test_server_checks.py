"""What `mainspring doctor` finds in the server around our tables, and what it advises."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from mainspring.stores.postgres import PostgresStore, server_checks
from mainspring.stores.protocol import Finding, Severity
from tests.postgres import Server, installed
from tests.stores.postgres.test_permissions import PAGE
from tests.worker.working import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not installed(), reason="no server that is ours to set up"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """As its makers deliver it, but for what else must be set before it starts."""
    server = Server(installed()[0], settings=("max_prepared_transactions=3",))
    server.start()
    yield server
    server.remove()


@pytest.fixture
async def store(server: Server, schema: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(server.dsn, schema_name=schema)
    await store.open()
    yield store
    await store.close()


def run(server: Server, *statements: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@contextmanager
def set_to(server: Server, **settings: str) -> Iterator[None]:
    run(server, *(f"ALTER SYSTEM SET {name} = '{value}'" for name, value in settings.items()))
    reload(server, settings)
    yield
    run(server, *(f"ALTER SYSTEM RESET {name}" for name in settings))
    reload(server, {})


def reload(server: Server, settings: dict[str, str]) -> None:
    """The postmaster gets a signal; connections made right afterwards may still have the old settings for a moment."""
    run(server, "SELECT pg_reload_conf()")
    changed = "SELECT count(*) FROM pg_settings WHERE sourcefile LIKE '%auto.conf' AND name <> 'max_connections'"
    for _ in range(1000):
        with psycopg.connect(server.dsn) as connection:
            if connection.execute(changed).fetchone() == (len(settings),):
                return
    pytest.fail("the server does not take its settings")


async def find(store: PostgresStore, check: str) -> Finding:
    return next(finding for finding in await store.diagnose() if finding.check == check)


# -- settings -------------------------------------------------------------------------------------


async def test_a_server_as_it_is_delivered_is_fine(store: PostgresStore) -> None:
    findings = await store.diagnose()
    assert {finding.severity for finding in findings} == {Severity.OK}
    told = {finding.check: finding.message for finding in findings}
    assert told["connection"].startswith("direct; ")
    assert told["durability"] == "what was acknowledged survives a crash of the server"
    assert told["transactions"] == "none has been open for long"
    assert told["dead rows"] == "0 dead rows and 0 live jobs, in 0 MB"


async def test_settings_that_can_lose_jobs_are_reported(store: PostgresStore, server: Server, schema: str) -> None:
    await store.close()  # connections keep what they began with, for a moment
    with set_to(server, fsync="off", full_page_writes="off", autovacuum="off"):
        durability, autovacuum = await find(store, "durability"), await find(store, "autovacuum")
        await store.close()
    assert durability.severity is autovacuum.severity is Severity.WARNING
    assert durability.message.startswith("fsync=off: a crash of the machine can destroy the database; full_page_writes")
    assert durability.advice.startswith("set fsync = on and full_page_writes = on")
    assert autovacuum.message.startswith("autovacuum off: dead rows stay")
    loose = PostgresStore(f"{server.dsn}&options=-c%20synchronous_commit%3Doff", schema_name=schema)
    finding = await find(loose, "durability")
    await loose.close()
    assert finding.message == f"synchronous_commit=off: {server_checks.RISKS['synchronous_commit']}"


async def test_a_table_that_is_not_vacuumed_is_reported(store: PostgresStore, server: Server, schema: str) -> None:
    run(server, f"ALTER TABLE {schema}.jobs SET (autovacuum_enabled = off)")
    finding = await find(store, "autovacuum")
    assert (finding.severity, finding.message) == (Severity.WARNING, "off for jobs")
    run(server, finding.advice)
    assert (await find(store, "autovacuum")).severity is Severity.OK


async def test_a_server_with_few_connections_left_is_reported(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_checks, "MAX_CONNECTION_USE", 0.0)
    finding = await find(store, "connection")
    assert finding.severity is Severity.WARNING
    assert finding.message.endswith("of the server's 200 connections are in use")


# -- what keeps dead rows -------------------------------------------------------------------------


async def test_a_long_snapshot_is_reported_with_its_process_and_age(
    store: PostgresStore, server: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_checks, "LONG_TRANSACTION", 0)
    with psycopg.connect(server.dsn, application_name="report") as report:
        report.execute("SELECT 1")  # it keeps nothing: its next statement sees what is there then
        assert (await find(store, "transactions")).severity is Severity.OK
        report.rollback()
        report.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        report.execute(f"SELECT count(*) FROM {schema}.jobs".encode())
        finding = await find(store, "transactions")
        pid = report.info.backend_pid
    assert finding.severity is Severity.WARNING
    who = f"process {pid} (report, user mainspring, idle in transaction)"
    assert finding.message == f"{who} is in a transaction for 0 s"
    assert f"SELECT pg_terminate_backend({pid})" in finding.advice
    assert server_checks.minutes(754) == "12 min"


async def test_a_forgotten_prepared_transaction_is_reported(
    store: PostgresStore, server: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_checks, "LONG_TRANSACTION", 0)
    run(server, "BEGIN", f"LOCK TABLE {schema}.audit IN SHARE MODE", "PREPARE TRANSACTION 'forgotten'")
    try:
        finding = await find(store, "prepared")
    finally:
        run(server, "ROLLBACK PREPARED 'forgotten'")
    assert finding.severity is Severity.WARNING
    assert finding.message == "transaction 'forgotten' of mainspring was prepared 0 s ago and has not ended"
    assert "ROLLBACK PREPARED 'forgotten'" in finding.advice


async def test_dead_rows_and_unused_space_are_reported(
    store: PostgresStore, server: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_checks, "MANY_DEAD_ROWS", 50)
    fill = f"""
        INSERT INTO {schema}.jobs
            (id, task, queue, priority, run_at, max_attempts, created_at, keep, keep_dead, payload)
        SELECT gen_random_uuid(), 'a', 'b', 2, 0, 1, 0, 0, 0, repeat('x', 1500) FROM generate_series(1, 100)
    """
    run(server, f"ALTER TABLE {schema}.jobs SET (autovacuum_enabled = off)", fill, f"DELETE FROM {schema}.jobs")

    async def dead() -> Finding | None:  # a writing process reports its statistics when it ends
        finding = await find(store, "dead rows")
        return finding if finding.severity is Severity.WARNING else None

    finding = await eventually(dead)
    assert finding.message.startswith("100 dead rows and 0 live jobs")
    assert f"then VACUUM {schema}.jobs" in finding.advice
    run(server, f"VACUUM (TRUNCATE off) {schema}.jobs")
    monkeypatch.setattr(server_checks, "LARGE_TABLE_BYTES", 100_000)
    finding = await find(store, "dead rows")
    assert "VACUUM (FULL)" in finding.advice
    run(server, f"VACUUM (FULL) {schema}.jobs")
    assert (await find(store, "dead rows")).severity is Severity.OK


async def test_a_user_without_the_right_to_see_other_transactions_gets_advice(
    store: PostgresStore, server: Server, schema: str
) -> None:
    run(server, f"CREATE ROLE {schema} LOGIN IN ROLE pg_read_all_data")
    limited = PostgresStore(make_conninfo(server.dsn, user=schema), schema_name=schema)
    with psycopg.connect(server.dsn):
        finding = await find(limited, "transactions")
    await limited.close()
    run(server, f"DROP ROLE {schema}")
    assert finding.severity is Severity.OK
    assert "are hidden: GRANT pg_read_all_stats to this user" in finding.message


# -- replication ----------------------------------------------------------------------------------


async def test_an_unused_replication_slot_is_reported(
    store: PostgresStore, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_checks, "LARGE_SLOT_BYTES", 0)
    run(server, "SELECT pg_create_physical_replication_slot('gone', true)", "SELECT pg_switch_wal()", "CHECKPOINT")
    finding = await find(store, "replication")
    assert finding.severity is Severity.WARNING
    assert finding.message.startswith("replication slot gone (not in use) keeps ")
    run(server, finding.advice.partition(": ")[2])
    assert (await find(store, "replication")).severity is Severity.OK


async def test_commits_that_wait_for_a_missing_standby_are_reported(store: PostgresStore, server: Server) -> None:
    with set_to(server, synchronous_standby_names="reserve"):
        await store.close()
        finding = await find(store, "replication")
        await store.close()
    assert finding.severity is Severity.ERROR
    assert "(synchronous_standby_names = reserve), and none is connected" in finding.message


# -- partitions -----------------------------------------------------------------------------------


async def test_missing_and_expired_partitions_are_reported(store: PostgresStore, server: Server, schema: str) -> None:
    run(server, f"ALTER TABLE {schema}.archive DETACH PARTITION {schema}.archive_forever")
    finding = await find(store, "partitions")
    assert finding.severity is Severity.ERROR
    assert finding.message == f"archive_forever of {schema}.archive not there: jobs cannot end"
    attach = f"ALTER TABLE {schema}.archive ATTACH PARTITION {schema}.archive_forever"
    run(server, f"{attach} FOR VALUES FROM (1000000) TO (MAXVALUE)")
    run(server, f"CREATE TABLE {schema}.archive_7 PARTITION OF {schema}.archive FOR VALUES FROM (7) TO (8)")
    finding = await find(store, "partitions")
    assert (finding.severity, finding.message) == (Severity.WARNING, "days of expired jobs that were not dropped: 1")
    await store.prune()
    assert (await find(store, "partitions")).severity is Severity.OK


async def test_every_check_is_documented(store: PostgresStore) -> None:
    for finding in await store.diagnose():
        assert f"| {finding.check} |" in PAGE
