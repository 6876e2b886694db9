"""Check the server around the tables: which settings, and which other clients, can harm Mainspring."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from psycopg.errors import InsufficientPrivilege

from mainspring.stores.postgres.pool import is_pooled
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import Finding, Severity

Check = Callable[[Transaction], Awaitable[Finding]]

LONG_TRANSACTION = 60  # seconds that a transaction may be open before it is reported
MANY_DEAD_ROWS = 20_000  # in the table of live jobs, where autovacuum starts at 2,000
LARGE_TABLE_BYTES, BYTES_PER_JOB = 64 << 20, 50_000
LARGE_INDEX_BYTES, INDEX_BYTES_PER_ROW = 16 << 20, 1000
LARGE_SLOT_BYTES = 1 << 30  # of the server's log, kept by a replication slot
MAX_CONNECTION_USE = 0.9  # share of the server's connections
MAX_NOTICE_USE = 0.25  # share of the server's queue of notifications


def ok(check: str, message: str) -> Finding:
    return Finding(Severity.OK, check, message)


def warning(check: str, message: str, advice: str) -> Finding:
    return Finding(Severity.WARNING, check, message, advice)


async def check_all(transaction: Transaction) -> list[Finding]:
    checks: tuple[tuple[str, Check], ...] = (
        ("connection", check_connection),
        ("durability", check_durability),
        ("replication", check_replication),
        ("autovacuum", check_autovacuum),
        ("dead rows", check_dead_rows),
        ("indexes", check_indexes),
        ("transactions", check_transactions),
        ("prepared", check_prepared),
        ("notices", check_notices),
    )
    return [await checked(transaction, name, check) for name, check in checks]


async def checked(transaction: Transaction, name: str, check: Check) -> Finding:
    try:
        return await check(transaction)
    except InsufficientPrivilege as error:
        return ok(name, f"not visible to this user: {error.diag.message_primary}")


# -- connection and durability ---------------------------------------------------------------------------

USED = """
SELECT count(*), current_setting('max_connections')::integer FROM pg_stat_activity WHERE usesysid IS NOT NULL
"""
SETTINGS = "SELECT name, setting FROM pg_settings WHERE name = ANY(%(names)s)"
RISKS = {
    "fsync": "a crash of the machine can destroy the database",
    "full_page_writes": "a crash of the machine can destroy pages of the database",
    "synchronous_commit": "a crash of the server can lose the last moments of what was acknowledged",
}


async def check_connection(transaction: Transaction) -> Finding:
    how = "through a pooler" if await is_pooled(transaction.connection) else "direct"
    used, most = (await transaction.rows(USED))[0]
    shown = f"{how}; {used} of the server's {most} connections are in use"
    if used > most * MAX_CONNECTION_USE:
        return warning("connection", shown, "raise max_connections, run fewer workers, or put PgBouncer in between")
    return ok("connection", shown)


async def turned_off(transaction: Transaction, *names: str) -> list[str]:
    """Return those of the settings that are off."""
    found = dict(await transaction.rows(SETTINGS, names=list(names)))
    return [name for name in names if found.get(name) == "off"]


def turn_on(names: list[str]) -> str:
    return f"set {' and '.join(f'{name} = on' for name in names)}: in postgresql.conf, or for this database and user"


async def check_durability(transaction: Transaction) -> Finding:
    if off := await turned_off(transaction, *RISKS):
        shown = "; ".join(f"{name}=off: {RISKS[name]}" for name in off)
        return warning("durability", shown, turn_on(off))
    return ok("durability", "what was acknowledged survives a crash of the server")


# -- replication ------------------------------------------------------------------------------------------

STANDBYS = """
SELECT pg_is_in_recovery(), current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication)
"""
SLOTS = """
SELECT slot_name, active, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint AS kept
FROM pg_replication_slots WHERE restart_lsn IS NOT NULL ORDER BY kept DESC LIMIT 1
"""


async def check_replication(transaction: Transaction) -> Finding:
    is_standby, names, standbys = (await transaction.rows(STANDBYS))[0]
    if is_standby:
        advice = "point the URL at the primary; with several hosts write target_session_attrs=read-write"
        return Finding(Severity.ERROR, "replication", "this server is a standby, and does not accept writes", advice)
    if names and not standbys:
        shown = f"every commit waits for a standby (synchronous_standby_names = {names}), and none is connected"
        return Finding(Severity.ERROR, "replication", shown, "start the standby, or clear synchronous_standby_names")
    slot = await transaction.row(SLOTS)
    if slot and slot[2] > LARGE_SLOT_BYTES:
        name, active, kept = slot
        shown = f"replication slot {name} ({'' if active else 'not '}in use) keeps {kept >> 20} MB of the server's log"
        advice = f"the disk fills up. If its reader is gone: SELECT pg_drop_replication_slot('{name}')"
        return warning("replication", shown, advice)
    return ok("replication", f"standbys: {standbys}; no slot keeps much of the log")


# -- dead rows, and the transactions that keep them -------------------------------------------------------

NOT_VACUUMED = """
SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('{s}')
    AND reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off']
"""
ROWS = """
SELECT (SELECT count(*) FROM {s}.jobs), coalesce(pg_stat_get_dead_tuples(to_regclass('{s}.jobs')), 0),
       pg_relation_size(to_regclass('{s}.jobs'))
"""
INDEXES = """
SELECT name, size, number FROM (
    SELECT index.relname AS name, pg_relation_size(index.oid) AS size,
           greatest(index.reltuples, pg_stat_get_live_tuples(indrelid), 0)::bigint AS number
    FROM pg_index JOIN pg_class AS index ON index.oid = indexrelid
    WHERE index.relnamespace = to_regnamespace('{s}') AND index.relkind = 'i') AS indexes
WHERE size > %(large)s AND size > number * %(per_row)s ORDER BY size DESC
"""
OPEN = """
SELECT pid, coalesce(nullif(application_name, ''), 'no name'), usename, state,
       extract(epoch FROM clock_timestamp() - xact_start)::bigint
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    AND coalesce(backend_xmin, backend_xid) IS NOT NULL
    AND xact_start < clock_timestamp() - make_interval(secs => %(long)s)
ORDER BY xact_start
"""
HIDDEN = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = '<insufficient privilege>'
"""
PREPARED = """
SELECT gid, owner, extract(epoch FROM clock_timestamp() - prepared)::bigint FROM pg_prepared_xacts
WHERE database = current_database() AND prepared < clock_timestamp() - make_interval(secs => %(long)s) ORDER BY prepared
"""


async def check_autovacuum(transaction: Transaction) -> Finding:
    if off := await turned_off(transaction, "autovacuum", "track_counts"):
        shown = f"{' and '.join(off)} off: dead rows stay, and claims become slower and slower"
        return warning("autovacuum", shown, turn_on(off))
    if tables := sorted(name for (name,) in await transaction.rows(NOT_VACUUMED)):
        schema = transaction.dialect.schema
        advice = f"ALTER TABLE {schema}.{tables[0]} RESET (autovacuum_enabled)"
        return warning("autovacuum", f"off for {', '.join(tables)}", advice)
    return ok("autovacuum", "on")


async def check_dead_rows(transaction: Transaction) -> Finding:
    live, dead, size = (await transaction.rows(ROWS))[0]
    table = f"{transaction.dialect.schema}.jobs"
    shown = f"{dead:,} dead rows and {live:,} live jobs, in {size >> 20} MB"
    if dead > MANY_DEAD_ROWS and dead > 2 * live:
        advice = f"see `transactions` and `prepared` for what keeps them, then VACUUM {table}"
        return warning("dead rows", shown, advice)
    if size > LARGE_TABLE_BYTES and size > BYTES_PER_JOB * max(live, 1):
        advice = f"VACUUM (FULL) {table} gives the room back; it locks the table, so pause the workers"
        return warning("dead rows", shown, advice)
    return ok("dead rows", shown)


async def check_indexes(transaction: Transaction) -> Finding:
    """Check for bloated indexes. Vacuum frees pages of an index for new rows, but never makes the index smaller."""
    rows = await transaction.rows(INDEXES, large=LARGE_INDEX_BYTES, per_row=INDEX_BYTES_PER_ROW)
    if not rows:
        return ok("indexes", "none is much larger than its rows need")
    sizes = ", ".join(f"{name} ({size >> 20} MB for {number:,} rows)" for name, size, number in rows[:3])
    shown = f"much larger than their rows need: {sizes}{f', and {len(rows) - 3} more' if len(rows) > 3 else ''}"
    commands = "; ".join(f"REINDEX INDEX CONCURRENTLY {transaction.dialect.schema}.{name}" for name, _, _ in rows)
    advice = f"new jobs will use the space again. To free it now, without blocking anything: {commands}"
    return warning("indexes", shown, advice)


async def check_transactions(transaction: Transaction) -> Finding:
    found = await transaction.rows(OPEN, long=LONG_TRANSACTION)
    if found:
        pid, application, user, state, seconds = found[0]
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        shown = f"process {pid} ({application}, user {user}, {state}) is in a transaction for {minutes(seconds)}{more}"
        advice = f"it keeps dead rows from being removed. To end it: SELECT pg_terminate_backend({pid})"
        return warning("transactions", shown, advice)
    hidden = await transaction.value(HIDDEN)
    unseen = f"; {hidden} processes are hidden: GRANT pg_read_all_stats to this user" if hidden else ""
    return ok("transactions", f"none has been open for long{unseen}")


async def check_prepared(transaction: Transaction) -> Finding:
    found = await transaction.rows(PREPARED, long=LONG_TRANSACTION)
    if found:
        gid, owner, seconds = found[0]
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        shown = f"transaction '{gid}' of {owner} was prepared {minutes(seconds)} ago and has not ended{more}"
        advice = f"it keeps dead rows from being removed: COMMIT PREPARED '{gid}' or ROLLBACK PREPARED '{gid}'"
        return warning("prepared", shown, advice)
    return ok("prepared", "no prepared transaction is left over")


def minutes(seconds: int) -> str:
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"


# -- notices ----------------------------------------------------------------------------------------------


async def check_notices(transaction: Transaction) -> Finding:
    share: Any = await transaction.value("SELECT pg_notification_queue_usage()")
    shown = f"{share:.0%} of the room for notices is used"
    if share > MAX_NOTICE_USE:
        advice = "a client listens in a transaction that never ends; once the queue is full, commits that notify fail"
        return warning("notices", shown, advice)
    return ok("notices", shown)
