"""Idempotency keys of enqueues: a request that is repeated has its effect once. replay.py has those of other routes.

The key is a document that is written in one bundle with the jobs of the request. So there is no state in between:
either both are there, or neither is. The document has an entry for each line of the request, also for those that were
refused. A repeated request is answered from it, and its jobs are not checked again: the tasks that were published then
may be different ones now.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mainspring.app import Mainspring
from mainspring.clock import Millis, to_millis
from mainspring.job import Inserted, Job, NewJob
from mainspring.service.problems import Problem
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Write
from mainspring.stores.protocol import Filter

COLLECTION = "idempotency"
RETENTION = 24 * 3_600_000  # milliseconds
SHAPE = re.compile(
    r'"?([\x21\x23-\x7e]{1,255})"?'
)  # printable ASCII; draft-ietf-httpapi-idempotency-key-header quotes it
PART = 20  # lines of one bundle: DynamoDB writes at most 100 items at once
LONGEST_DETAIL = 2_000  # characters of a refusal: a document of DynamoDB has at most 400 KB

T = TypeVar("T")


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
        return cls(name, hashlib.sha256(canonical(body)).hexdigest())


def canonical(body: bytes) -> bytes:
    """Return the body without what does not matter in JSON: spaces, and the order of members.

    A client that builds the same body again may write it in another way. A body that is not JSON stays as it is.
    """
    try:
        data = json.loads(body)
        return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return body


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a line of a request has no job."""

    code: str
    detail: str

    @classmethod
    def of(cls, problem: Problem) -> Refusal:
        return cls(problem.code, problem.detail[:LONGEST_DETAIL])


Line = NewJob | Refusal
"""One line of a request, after it was checked."""

Entry = Inserted | Refusal
"""What one line of a request is answered."""


async def enqueue_once(
    app: Mainspring, key: IdempotencyKey, bodies: Sequence[T], check: Callable[[T], Awaitable[Line]]
) -> tuple[list[Entry], bool]:
    """Enqueue the lines that the key has not enqueued before.

    Return what each line is answered, and whether all of that is the answer to an earlier request.
    """
    parts = [bodies[start : start + PART] for start in range(0, len(bodies), PART)]
    used = await _used(app, key, range(len(parts)))
    new = {number: [await check(body) for body in part] for number, part in enumerate(parts) if number not in used}
    written = await _write(app, key, new)
    if overtaken := new.keys() - written.keys():  # another process was faster
        used |= await _used(app, key, overtaken)
    found = [
        written[number] if number in written else await _entries_of(app, used[number]) for number in range(len(parts))
    ]
    return [entry for part in found for entry in part], not written


def answered(lines: Sequence[Line], inserted: Iterable[Inserted]) -> list[Entry]:
    """Return what lines are answered, of which those that are jobs were inserted."""
    rest = iter(inserted)
    return [line if isinstance(line, Refusal) else next(rest) for line in lines]


async def _used(app: Mainspring, key: IdempotencyKey, numbers: Iterable[int]) -> dict[int, Document]:
    """Return the documents of the key that exist, by their number; raise Problem if they are of another request."""
    documents = await app.store.documents([_key(key, number) for number in numbers])
    for document in documents:
        refuse_other(key, json.loads(document.data))
    return {int(document.key.id): document for document in documents}


def refuse_other(key: IdempotencyKey, data: Mapping[str, Any]) -> None:
    """Raise Problem if the data of a key's document are of a request with another body."""
    if data["fingerprint"] != key.fingerprint:
        raise Problem("idempotency_key_reused", "this Idempotency-Key was used with another body; make a new one")


def _key(key: IdempotencyKey, number: int) -> Key:
    return Key(COLLECTION, key.name, str(number))


# -- the first request ----------------------------------------------------------------------------


async def _write(app: Mainspring, key: IdempotencyKey, parts: Mapping[int, list[Line]]) -> dict[int, list[Entry]]:
    """Write each part together with its document. Leave out the parts that another process has written."""
    if not parts:
        return {}
    now = app.store.clock.now()
    bundles = []
    for number, lines in parts.items():
        jobs = tuple(line for line in lines if isinstance(line, NewJob))
        bundles.append(Bundle((_document(key, number, map(_line_data, lines), now, expected=ABSENT),), jobs))
    answers = await app.runtime.pipeline.write(bundles)
    inserted = {number: answer for number, answer in zip(parts, answers, strict=True) if answer is not None}
    written = {number: answered(parts[number], answer) for number, answer in inserted.items()}
    unsure = [number for number in written if any(map(_may_have_holder, parts[number]))]
    await _note(app, [_document(key, number, map(_entry_data, written[number]), now) for number in unsure])
    return written


def _document(
    key: IdempotencyKey, number: int, lines: Iterable[dict[str, Any]], now: Millis, *, expected: str | None = None
) -> Write:
    data = json.dumps({"fingerprint": key.fingerprint, "at": now, "lines": list(lines)})
    return Write(_key(key, number), data, expected=expected, expires_at=now + RETENTION)


def _may_have_holder(line: Line) -> bool:
    return isinstance(line, NewJob) and line.dedupe_key is not None


def _line_data(line: Line) -> dict[str, Any]:
    """Return what is written with the jobs. Whether another job holds the dedupe key is known only after that."""
    if isinstance(line, NewJob) and line.dedupe_key is not None:
        return {"id": line.id, "task": line.task, "dedupe_key": line.dedupe_key}
    return _entry_data(line if isinstance(line, Refusal) else Inserted(line.id, created=True))


def _entry_data(entry: Entry) -> dict[str, Any]:
    if isinstance(entry, Refusal):
        return {"code": entry.code, "detail": entry.detail}
    return {"id": entry.id, "created": entry.created}


async def _note(app: Mainspring, writes: Sequence[Write]) -> None:
    """Note which job holds each dedupe key. If the process dies before, a repeated request looks for the holder."""
    if writes:
        await app.store.write([Bundle((write,)) for write in writes])


# -- a repeated request ---------------------------------------------------------------------------


async def _entries_of(app: Mainspring, document: Document) -> list[Entry]:
    """Return what the first request with this key was answered."""
    data = json.loads(document.data)
    return [await _entry_of(app, line, data["at"]) for line in data["lines"]]


async def _entry_of(app: Mainspring, line: dict[str, Any], at: Millis) -> Entry:
    if "code" in line:
        return Refusal(**line)
    if "created" in line:
        return Inserted(**line)
    if await app.jobs.get_or_none(line["id"]) is not None:
        return Inserted(line["id"], created=True)
    holder = await _holder(app, line["task"], line["dedupe_key"], at)
    return Inserted(line["id"], created=True) if holder is None else Inserted(holder.id, created=False)


async def _holder(app: Mainspring, task: str, dedupe_key: str, at: Millis) -> Job | None:
    """Return the job that held a dedupe key at this time. It may have finished before, and others may have followed."""
    found: Job | None = None
    async for job in app.jobs.all(Filter(tasks=(task,), dedupe_key=dedupe_key)):  # the newest first
        found = job
        if to_millis(job.created_at) <= at:
            break
    return found
