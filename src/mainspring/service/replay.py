"""Idempotency keys of all routes but those that enqueue (idempotency.py): one effect, and the same answer again.

A request with a key runs its route's handler. The first change that the handler commits also writes the key's document
(`using_key` in stores/documents.py): either both are there, or neither is. After that, the answer is added to the
document. So a process that repeats the request finds one of these:

| the key's document | the repeated request |
|---|---|
| does not exist | is carried out: the first one had no effect |
| has the answer | gets this answer |
| is of another body | gets `idempotency_key_reused` |
| has no answer | waits a moment. Then the first process counts as dead, see `KeyKind` |

Requests that are refused, and those that have no effect, write no document before their answer. Two of them at the same
time may both run; the first one that keeps its answer counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mainspring.app import Mainspring
from mainspring.clock import Millis
from mainspring.errors import AlreadyDone, MainspringError
from mainspring.ids import new_version
from mainspring.log import get_log
from mainspring.service.idempotency import COLLECTION, RETENTION, IdempotencyKey, refuse_other
from mainspring.service.problems import Problem
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Write, using_key
from mainspring.stores.protocol import AuditFilter

log = get_log("mainspring.service")

TRIGGERS = "trigger_keys"  # collection of the keys that last as long as an execution
ANSWER_WITHIN: Millis = 5_000  # after the effect; later, the answer counts as lost
POLL: Millis = 50
LONGEST_ANSWER = 200_000  # bytes that are kept; a document of DynamoDB has at most 400 KB
MOST_FORGOTTEN = 20  # keys of ended executions that one trigger removes
ERROR = 400  # statuses from this on are no success
REPLAYED = {"idempotent-replayed": "true"}
SHOWN_AT = {"operation": "/v1/audit?operation={}", "halt": "/v1/halts"}  # see `current_once`

Handler = Callable[[Request], Awaitable[Response]]


class KeyKind(StrEnum):
    """What a route does with idempotency keys. The OpenAPI document has it as `x-idempotency`."""

    ANSWER = "answer"  # the answer is kept for 24 hours; if it is lost, `already_done` says what to read
    SECRET = "secret"  # noqa: S105 - the answer has a secret, and is not kept
    RESUMED = "resumed"  # the handler can go on with what a process that died has begun, see `known_effect`
    EXECUTION = "execution"  # as RESUMED, and kept for as long as the job that the request started, at least 24 hours
    REPEATABLE = "repeatable"  # safe to repeat by itself: only one request at a time, and the same answer
    CLAIM = "claim"  # as REPEATABLE; the handler answers again with what is left of the effect
    OWN = "own"  # the handler deals with the key itself


def known_effect(request: Request) -> Mapping[str, Any] | None:
    """Return what is known of the effect of a repeated request: what `current_once` or `note_effect` said of it."""
    return getattr(request.state, "known_effect", None)


def note_effect(request: Request, **about: Any) -> None:
    """Keep something about the effect of a request of the kind CLAIM; without anything, its key is not kept."""
    request.state.effect = about


@dataclass(frozen=True, slots=True)
class Record:
    """The document of a key that was used."""

    version: str
    until: Millis  # the answer comes before
    about: Mapping[str, Any]  # the change: its operation, what it created
    answer: Mapping[str, Any] | None
    omitted: str  # why there is no answer, and will be none

    @property
    def is_settled(self) -> bool:
        return self.answer is not None or bool(self.omitted)

    @classmethod
    def of(cls, document: Document) -> Record:
        data = json.loads(document.data)
        return cls(document.version, data["until"], data["about"], data["answer"], data["omitted"])

    def response(self) -> Response:
        assert self.answer is not None  # noqa: S101 - the caller has looked
        return Response(self.answer["body"], self.answer["status"], {**self.answer["headers"], **REPLAYED})


@dataclass(slots=True)
class KeyedRequest:
    """A request with an idempotency key."""

    app: Mainspring
    key: IdempotencyKey
    kind: KeyKind
    request: Request
    patience: Millis = ANSWER_WITHIN
    version: str = field(default_factory=new_version)
    about: dict[str, Any] = field(default_factory=dict)
    may_have_used_key: bool = False  # a change of this request may have committed the key's document
    is_over: bool = False

    async def run(self, handle: Handler) -> Response:
        """Answer the request: carry it out, or answer as before."""
        while True:
            record = await self._settled()
            response = await (self._first(handle) if record is None else self._again(record, handle))
            if response is not None:
                return response

    # -- the first time -------------------------------------------------------------------------

    async def _first(self, handle: Handler) -> Response | None:
        """Carry the request out; return None if another one with the key was faster."""
        if self.kind in {KeyKind.REPEATABLE, KeyKind.CLAIM}:
            return await self._in_turn(handle, ABSENT)
        try:
            response = await self._handled(handle)
        except AlreadyDone:
            return None
        except Exception:
            if await self._is_used_by_other():  # and the effect of that one may be what this one failed of
                return None
            raise
        return response if response.status_code >= ERROR else await self._kept(response)

    async def _handled(self, handle: Handler) -> Response:
        try:
            with using_key(self._once):
                return await handle(self.request)
        finally:
            self.is_over = True

    def _once(self, about: Mapping[str, Any]) -> Write | None:
        """Return the key's document for a change of this request, and not for what it left running."""
        if self.is_over:
            return None
        self.about |= about
        self.may_have_used_key = True
        return self._write(self._data(), ABSENT)

    async def _is_used_by_other(self) -> bool:
        try:
            record = await self._find()
        except MainspringError:  # the store is down, and the request failed for that
            return False
        return record is not None and record.version != self.version

    # -- one at a time --------------------------------------------------------------------------

    async def _in_turn(self, handle: Handler, expected: str) -> Response | None:
        """Carry out a request that is safe to repeat. Return None if it is another one's turn."""
        if not await self._put(self._data(), expected):
            return None
        self.may_have_used_key = True
        try:
            response = await handle(self.request)
        except BaseException:  # also if the caller hangs up
            await asyncio.shield(self._forget())
            raise
        effect = getattr(self.request.state, "effect", None)
        if response.status_code >= ERROR or (self.kind is KeyKind.CLAIM and not effect):
            await self._forget()
            return response
        self.about |= effect or {}
        return await self._kept(response)

    async def _forget(self) -> None:
        await self.app.store.write([Bundle((Write(self._place, None, expected=self.version),))])

    # -- later ----------------------------------------------------------------------------------

    async def _again(self, record: Record, handle: Handler) -> Response | None:
        if record.answer is not None:
            return record.response()
        if self.kind is KeyKind.CLAIM and record.is_settled:
            return await self._continued(record, handle)
        if self.kind in {KeyKind.REPEATABLE, KeyKind.CLAIM}:
            self.request.state.known_effect = {}
            return await self._in_turn(handle, record.version)
        if self.kind in {KeyKind.RESUMED, KeyKind.EXECUTION} and not record.is_settled:
            self.version, self.may_have_used_key = record.version, True
            response = await self._continued(record, handle)
            return await self._kept(response)
        raise self._problem(record)

    async def _continued(self, record: Record, handle: Handler) -> Response:
        self.request.state.known_effect = record.about
        self.is_over = False
        response = await self._handled(handle)
        response.headers.update(REPLAYED)
        return response

    def _problem(self, record: Record) -> Problem:
        see = self._see(record)
        why = record.omitted or "its answer is lost, because the process that carried it out has ended or is very slow"
        detail = f"the request with this Idempotency-Key has taken effect before, and {why}; GET {see} shows the effect"
        return Problem("already_done", detail, more={"see": see, "effect": dict(record.about)})

    def _see(self, record: Record) -> str:
        """Return what shows the effect: if nothing is known of it, what the request names."""
        for name, path in SHOWN_AT.items():
            if name in record.about:
                return path.format(record.about[name])
        path = self.request.url.path.removeprefix(self.request.scope.get("root_path", ""))
        return path.rpartition(":")[0] or path

    # -- the document ---------------------------------------------------------------------------

    @property
    def _place(self) -> Key:
        return Key(TRIGGERS if self.kind is KeyKind.EXECUTION else COLLECTION, self.key.name, "answer")

    async def _settled(self) -> Record | None:
        """Return the document of the key, and wait for its answer; None if there is none, or it has gone meanwhile."""
        record, waited = await self._find(), 0
        while record is not None and not record.is_settled:
            if self.app.store.clock.now() >= record.until or waited >= self.patience:
                break
            await asyncio.sleep(POLL / 1000)
            waited += POLL
            record = await self._find()
        return record

    async def _find(self) -> Record | None:
        documents = await self.app.store.documents([self._place])
        if not documents:
            return None
        refuse_other(self.key, json.loads(documents[0].data))
        return Record.of(documents[0])

    async def _kept(self, response: Response) -> Response | None:
        """Add the answer to the document. Return None if another request has used the key, and this had no effect."""
        body = bytes(response.body)
        is_kept = self.kind not in {KeyKind.SECRET, KeyKind.CLAIM} and len(body) <= LONGEST_ANSWER
        data = self._data(answer_data(response, body)) if is_kept else self._data(omitted=self._why_omitted())
        try:
            if self.may_have_used_key and await self._put(data, self.version):
                return response
            if is_kept and await self._put(data, ABSENT):  # nothing was changed
                return response
        except MainspringError as error:  # the effect is there, and so is the answer
            log.warning("answer_not_kept", path=self.request.url.path, error=str(error))
            return response
        return None if await self._is_used_by_other() else response

    def _why_omitted(self) -> str:
        if self.kind is KeyKind.SECRET:
            return "its answer had a secret, which is not kept"
        if self.kind is KeyKind.CLAIM:
            return "it is answered with the jobs that are left"
        return f"its answer has more than the {LONGEST_ANSWER:,} bytes that are kept"

    async def _put(self, data: str, expected: str) -> bool:
        return (await self.app.store.write([Bundle((self._write(data, expected),))]))[0] is not None

    def _write(self, data: str, expected: str) -> Write:
        """Return a write with the version of this request: each of its commits finds that it has used the key."""
        end = self.app.store.clock.now() + RETENTION
        due_at, expires_at = (end, None) if self.kind is KeyKind.EXECUTION else (None, end)
        return Write(self._place, data, expected, due_at, expires_at, self.version)

    def _data(self, answer: Mapping[str, Any] | None = None, omitted: str = "") -> str:
        until = self.app.store.clock.now() + self.patience
        data = {"fingerprint": self.key.fingerprint, "until": until, "about": self.about}
        return json.dumps({**data, "answer": answer, "omitted": omitted})


def answer_data(response: Response, body: bytes) -> dict[str, Any]:
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return {"status": response.status_code, "headers": headers, "body": body.decode()}


# -- keys of triggers -----------------------------------------------------------------------------


async def forget_ended(app: Mainspring) -> None:
    """Remove keys of triggers whose job is gone. Each trigger removes a few, so they do not pile up."""
    now = app.store.clock.now()
    for document in (await app.store.due(TRIGGERS, MOST_FORGOTTEN)).documents:
        job_id = await started_job(app, Record.of(document))
        is_there = job_id is not None and await app.jobs.get_or_none(job_id) is not None
        data, due_at = (document.data, now + RETENTION) if is_there else (None, None)
        await app.store.write([Bundle((Write(document.key, data, expected=document.version, due_at=due_at),))])


async def started_job(app: Mainspring, record: Record) -> str | None:
    """Return the job that a trigger has started; if the answer is lost, by the audit log."""
    if record.answer is not None:
        location: str = record.answer["headers"].get("location", "")
        return location.rpartition("/")[2] or None
    return await triggered_job(app, record.about)


async def triggered_job(app: Mainspring, about: Mapping[str, Any]) -> str | None:
    """Return the job of a trigger that the audit log has."""
    entries = await app.store.audit(AuditFilter(operation=about.get("operation", "")), limit=1)
    return entries[0].detail.get("job") if entries else None
