"""Idempotency keys: a request that is repeated with the same key has its effect once, and the same answer.

The key is a document that is written in one bundle with the jobs of the request. So there is no state in between:
either both are there, or neither is. A request whose document exists already does nothing, and answers from it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mainspring.app import Mainspring
from mainspring.job import Inserted, NewJob, Status
from mainspring.service.problems import Problem
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Write
from mainspring.stores.protocol import Filter

COLLECTION = "idempotency"
RETENTION = 24 * 3_600_000  # milliseconds
SHAPE = re.compile(
    r'"?([\x21\x23-\x7e]{1,255})"?'
)  # printable ASCII; draft-ietf-httpapi-idempotency-key-header quotes it
PART = 20  # jobs of one bundle: DynamoDB writes at most 100 items at once
LIVE = tuple(status for status in Status if status not in {Status.COMPLETED, Status.DEAD_LETTER, Status.CANCELLED})


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The key of one request."""

    name: str  # a hash of the caller, the route and the key: two callers never meet
    fingerprint: str  # a hash of the request's body

    @classmethod
    def of(cls, header: str | None, *, caller: str, route: str, body: bytes) -> IdempotencyKey | None:
        """Return the key that a header gives; None if there is no header."""
        if header is None:
            return None
        found = SHAPE.fullmatch(header)
        if found is None:
            raise Problem("invalid_request", "an Idempotency-Key has 1 to 255 printable ASCII characters and no spaces")
        name = hashlib.sha256("\n".join((caller, route, found[1])).encode()).hexdigest()
        return cls(name, hashlib.sha256(body).hexdigest())


async def insert_once(app: Mainspring, key: IdempotencyKey, jobs: Sequence[NewJob]) -> tuple[list[Inserted], bool]:
    """Insert jobs unless the key was used before; return their ids, and whether it was."""
    parts = [jobs[start : start + PART] for start in range(0, len(jobs), PART)]
    used = await _used(app, key, len(parts))
    new = {number: part for number, part in enumerate(parts) if number not in used}
    bundles = [_bundle(app, key, number, part) for number, part in new.items()]
    answers = await app.runtime.pipeline.write(bundles) if bundles else []
    inserted = dict(zip(new, answers, strict=True))
    await _remember(app, key, new, inserted)
    if overtaken := [number for number, answer in inserted.items() if answer is None]:  # another process was faster
        used |= {number: found for number, found in (await _used(app, key, len(parts))).items() if number in overtaken}
    found = [inserted.get(number) or await _answer(app, used[number]) for number in range(len(parts))]
    return [each for part in found for each in part], not new or len(overtaken) == len(parts)


def _key(key: IdempotencyKey, number: int) -> Key:
    return Key(COLLECTION, key.name, str(number))


def _bundle(app: Mainspring, key: IdempotencyKey, number: int, jobs: Sequence[NewJob]) -> Bundle:
    lines = [[job.id, job.task, job.dedupe_key] for job in jobs]
    data = json.dumps({"fingerprint": key.fingerprint, "jobs": lines})
    expires_at = app.store.clock.now() + RETENTION
    return Bundle((Write(_key(key, number), data, expected=ABSENT, expires_at=expires_at),), tuple(jobs))


async def _used(app: Mainspring, key: IdempotencyKey, parts: int) -> dict[int, Document]:
    """Return the documents of the key that exist, by their number; raise Problem if they are of another request."""
    documents = await app.store.documents([_key(key, number) for number in range(parts)])
    for document in documents:
        if json.loads(document.data)["fingerprint"] != key.fingerprint:
            raise Problem("idempotency_key_reused", "this Idempotency-Key was used with another body; make a new one")
    return {int(document.key.id): document for document in documents}


async def _remember(
    app: Mainspring,
    key: IdempotencyKey,
    new: dict[int, Sequence[NewJob]],
    inserted: dict[int, list[Inserted] | None],
) -> None:
    """Note the holders of dedupe keys, if some jobs were not created: the documents name the request's own jobs."""
    writes = []
    for number, answer in inserted.items():
        if answer is None or all(each.created for each in answer):
            continue
        data = json.dumps(
            {
                "fingerprint": key.fingerprint,
                "jobs": [[job.id, job.task, job.dedupe_key] for job in new[number]],
                "answers": [[each.id, each.created] for each in answer],
            }
        )
        writes.append(Write(_key(key, number), data, expires_at=app.store.clock.now() + RETENTION))
    if writes:
        await app.store.write([Bundle((write,)) for write in writes])


async def _answer(app: Mainspring, document: Document) -> list[Inserted]:
    """Return what the first request with this key was answered."""
    data = json.loads(document.data)
    if "answers" in data:
        return [Inserted(job_id, created=created) for job_id, created in data["answers"]]
    return [await _first_answer(app, *line) for line in data["jobs"]]


async def _first_answer(app: Mainspring, job_id: str, task: str, dedupe_key: str | None) -> Inserted:
    """Return the job of a line; if its process died before it noted the holder of the dedupe key, find the holder."""
    if dedupe_key is None or await app.jobs.get_or_none(job_id) is not None:
        return Inserted(job_id, created=True)
    page = await app.jobs.find(Filter(tasks=(task,), dedupe_key=dedupe_key, statuses=LIVE), limit=1)
    return Inserted(page.jobs[0].id, created=False) if page.jobs else Inserted(job_id, created=True)
