"""Check and repair the tables for `mainspring doctor`."""

from __future__ import annotations

import psycopg

from mainspring.clock import Millis
from mainspring.stores.postgres import partitions, schema, server_checks
from mainspring.stores.postgres.maintenance import HOLDERS
from mainspring.stores.postgres.server_checks import ok
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.protocol import Finding, Severity
from mainspring.stores.tables import COUNT_JOBS, ODD_ROWS, odd_rows, status_name

REAL_COUNTS = COUNT_JOBS.format(jobs="{s}.jobs", archive="{s}.archive")
KEPT_COUNTS = "SELECT queue, status, sum(n)::bigint FROM {s}.counts GROUP BY queue, status"
ODD = ODD_ROWS.format(jobs="{s}.jobs", archive="{s}.archive")
TWICE = "SELECT count(*) FROM {s}.jobs JOIN {s}.archive USING (id)"
ORPHANS = """
FROM {s}.%s AS part WHERE NOT EXISTS (SELECT 1 FROM {s}.jobs WHERE id = part.job_id)
                      AND NOT EXISTS (SELECT 1 FROM {s}.archive WHERE id = part.job_id)
"""


HEARD = "SELECT id FROM {s}.workers WHERE seen_at > {now} - %(lease)s::bigint"


ONE_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


async def diagnose(transaction: Transaction, lease: Millis) -> list[Finding]:
    """Run all checks and return their findings, good ones included."""
    return [*await check_tables(transaction, lease), *await server_checks.check_all(transaction)]


async def check_tables(transaction: Transaction, lease: Millis) -> list[Finding]:
    """Check the tables in one snapshot. What workers commit between two reads would look like damage."""
    async with transaction.connection.transaction():
        await transaction.do(ONE_SNAPSHOT)
        return [
            await check_version(transaction),
            await check_counts(transaction),
            await check_doubles(transaction),
            odd_rows(await transaction.rows(ODD)),
            await check_orphans(transaction, "attempts"),
            await check_orphans(transaction, "steps"),
            await check_holders(transaction, lease),
            await check_partitions(transaction),
        ]


async def check_version(transaction: Transaction) -> Finding:
    server = await transaction.value("SHOW server_version")
    version = await transaction.value(schema.VERSION.replace("{schema}", "{s}"))
    latest = len(schema.scripts())
    if version < latest:
        message = f"PostgreSQL {server}, schema {version} of {latest}"
        return Finding(Severity.WARNING, "version", message, "run `mainspring migrate`")
    return ok("version", f"PostgreSQL {server}, psycopg {psycopg.__version__}, schema {version} of {latest}")


async def check_counts(transaction: Transaction) -> Finding:
    real = {(queue, status): n for queue, status, n in await transaction.rows(REAL_COUNTS)}
    kept = {(queue, status): n for queue, status, n in await transaction.rows(KEPT_COUNTS) if n}
    wrong = [key for key in real.keys() | kept.keys() if real.get(key, 0) != kept.get(key, 0)]
    if wrong:
        shown = ", ".join(
            f"{queue} {status_name(status)}: {kept.get((queue, status), 0)} kept, {real.get((queue, status), 0)} real"
            for queue, status in sorted(wrong)[:5]
        )
        return Finding(Severity.ERROR, "counts", shown, "run `mainspring doctor --repair`")
    return ok("counts", f"{sum(real.values())} jobs, kept numbers agree")


async def check_doubles(transaction: Transaction) -> Finding:
    number = await transaction.value(TWICE)
    if number:
        return Finding(Severity.ERROR, "doubles", f"{number} jobs are both live and finished", "please report this")
    return ok("doubles", "no job is both live and finished")


async def check_orphans(transaction: Transaction, table: str) -> Finding:
    number = await transaction.value(f"SELECT count(*) {ORPHANS % table}")
    if number:
        advice = "run `mainspring doctor --repair`"
        return Finding(Severity.WARNING, table, f"{number} rows belong to no job", advice)
    return ok(table, "every row belongs to a job")


async def check_holders(transaction: Transaction, lease: Millis) -> Finding:
    heard = {worker for (worker,) in await transaction.rows(HEARD, lease=lease)}
    unknown = [worker for (worker,) in await transaction.rows(HOLDERS) if worker not in heard]
    if unknown:
        advice = "start a worker: it takes them over"
        return Finding(Severity.WARNING, "claims", f"jobs are held by dead workers: {', '.join(unknown)}", advice)
    return ok("claims", f"every running job has a worker; workers alive: {len(heard)}")


STANDING = """
SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass('{s}.archive') AND c.relname IN ('archive_short', 'archive_forever')
"""


async def check_partitions(transaction: Transaction) -> Finding:
    """Check the two permanent partitions and overdue days. Partitions for days are created when a job needs them."""
    standing = {name for (name,) in await transaction.rows(STANDING)}
    if missing := sorted({"archive_short", "archive_forever"} - standing):
        shown = f"{' and '.join(missing)} of {transaction.dialect.schema}.archive not there: jobs cannot end"
        return Finding(Severity.ERROR, "partitions", shown, "attach or make them as migrations/0001_jobs.sql does")
    today = await transaction.value(partitions.TODAY)
    over = [day for day in await partitions.over(transaction) if day < today]
    if over:
        shown = f"days of expired jobs that were not dropped: {len(over)}"
        advice = "a worker drops them: is one running, and may it? While a dump or a report reads the archive it waits"
        return Finding(Severity.WARNING, "partitions", shown, advice)
    return ok("partitions", "none is missing, none overdue")


async def repair(transaction: Transaction) -> None:
    """Recount the jobs and delete rows that belong to no job."""
    await transaction.do("LOCK TABLE {s}.jobs IN SHARE ROW EXCLUSIVE MODE")
    await transaction.do("DELETE FROM {s}.counts")
    await transaction.do(f"INSERT INTO {{s}}.counts {REAL_COUNTS}")
    for table in ("attempts", "steps"):
        await transaction.do(f"DELETE FROM {{s}}.{table} WHERE job_id IN (SELECT job_id {ORPHANS % table})")
