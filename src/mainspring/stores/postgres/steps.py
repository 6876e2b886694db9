"""Store the steps that durable functions have completed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mainspring.job import Inserted, Save, Step
from mainspring.stores.postgres import arrays
from mainspring.stores.postgres.insertion import LOCK_JOBS, insert_jobs
from mainspring.stores.postgres.rows import is_id
from mainspring.stores.postgres.transaction import Transaction
from mainspring.stores.tables import RUNNING

COLUMNS = "job_id, name, number, kind, output, started_at, finished_at"
GIVEN = f"""
unnest(%(ids)s::uuid[], %(names)s::text[], %(numbers)s::integer[], %(kinds)s::text[], %(outputs)s::text[],
       %(began)s::bigint[], %(ended)s::bigint[], %(tokens)s::bigint[]) AS given({COLUMNS}, token)
"""
REPLACE = """
ON CONFLICT (job_id, name) DO UPDATE SET number = excluded.number, kind = excluded.kind, output = excluded.output,
                                         started_at = excluded.started_at, finished_at = excluded.finished_at
"""
PUT = f"INSERT INTO {{s}}.steps ({COLUMNS}) SELECT {COLUMNS} FROM {GIVEN} {REPLACE}"
SAVE = f"""
WITH held AS MATERIALIZED (
    SELECT j.id, j.token FROM {{s}}.jobs AS j
    JOIN unnest(%(held)s::uuid[], %(held_as)s::bigint[]) AS run(id, token) ON j.id = run.id AND j.token = run.token
    WHERE status + 0 = {RUNNING} ORDER BY j.id FOR NO KEY UPDATE OF j
), put AS (
    INSERT INTO {{s}}.steps ({COLUMNS})
    SELECT {", ".join(f"given.{name}" for name in COLUMNS.split(", "))} FROM {GIVEN}
    JOIN held ON held.id = given.job_id AND held.token = given.token {REPLACE}
)
SELECT id::text, token FROM held
"""
OF_JOB = """
SELECT name, number, kind, output, started_at, finished_at FROM {s}.steps WHERE job_id = %(id)s ORDER BY number
"""
FORGET = """
DELETE FROM {s}.steps USING {s}.steps AS first
WHERE steps.job_id = ANY(%(ids)s::uuid[]) AND first.job_id = steps.job_id AND first.name = %(name)s
  AND steps.number >= first.number
"""

NEVER_CLAIMED = "SELECT id::text FROM {s}.jobs WHERE token = 0 AND id = ANY(%(ids)s::uuid[])"

Run = tuple[str, int]  # a job's id and the token of its claim


async def save(transaction: Transaction, saves: Sequence[Save]) -> list[list[Inserted] | None]:
    """Save steps and insert jobs for runs that still hold their claim; return None for the others.

    This is the fence. Only a job that runs under exactly this token is saved for. Its row stays locked until the
    commit, so no other worker can take it over meanwhile.
    """
    known = [save for save in saves if is_id(save.job_id)]
    runs = {(save.job_id, save.token) for save in known}
    rows = await transaction.rows(
        SAVE,
        held=arrays.of_plain(job_id for job_id, _ in runs),
        held_as=arrays.of_plain(token for _, token in runs),
        **columns_of(((save.job_id, save.token), step) for save in known for step in save.steps),
    )
    held = set(rows)
    accepted = [save for save in saves if (save.job_id, save.token) in held]
    inserted = iter(await insert(transaction, accepted))
    return [
        [next(inserted) for _ in save.jobs] if (save.job_id, save.token) in held else None
        for save in saves
    ]  # fmt: skip


async def insert(transaction: Transaction, saves: Sequence[Save]) -> list[Inserted]:
    """Insert the jobs of these saves.

    A repeated save may find its jobs live and about to end. The lock waits for that end, so none is inserted twice.
    """
    jobs = [job for save in saves for job in save.jobs]
    if not jobs:
        return []
    await transaction.rows(LOCK_JOBS, ids=[job.id for job in jobs])
    return await insert_jobs(transaction, jobs)


async def put(transaction: Transaction, steps: Iterable[tuple[str, Step]]) -> None:
    """Write steps of jobs whose rows this transaction has locked."""
    given = [((job_id, 0), step) for job_id, step in steps]
    if given:
        await transaction.do(PUT, **columns_of(given))


async def put_first(transaction: Transaction, steps: Mapping[str, tuple[Step, ...]]) -> None:
    """Write steps of jobs that this transaction inserts. If they were inserted before, they may have run since."""
    new = await transaction.rows(NEVER_CLAIMED, ids=list(steps))
    await put(transaction, [(job_id, step) for (job_id,) in new for step in steps[job_id]])


def columns_of(steps: Iterable[tuple[Run, Step]]) -> dict[str, str]:
    """Return the steps as columns. Of several with one name the last counts: one statement cannot write both."""
    last = {(run, step.name): step for run, step in steps}
    return {
        "ids": arrays.of_plain(job_id for (job_id, _), _ in last),
        "tokens": arrays.of_plain(token for (_, token), _ in last),
        "names": arrays.of_texts(step.name for step in last.values()),
        "numbers": arrays.of_plain(step.number for step in last.values()),
        "kinds": arrays.of_texts(step.kind for step in last.values()),
        "outputs": arrays.of_texts(step.output for step in last.values()),
        "began": arrays.of_plain(step.started_at for step in last.values()),
        "ended": arrays.of_plain(step.finished_at for step in last.values()),
    }


async def of_job(transaction: Transaction, job_id: str) -> list[Step]:
    rows = await transaction.rows(OF_JOB, id=job_id) if is_id(job_id) else []
    return [Step(*row) for row in rows]


async def forget(transaction: Transaction, ids: Sequence[str], name: str) -> None:
    """Delete the named step and all later ones, of each job that has it."""
    await transaction.do(FORGET, ids=list(ids), name=name)
