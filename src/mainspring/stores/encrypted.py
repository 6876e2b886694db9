"""A store whose user data is encrypted: it seals what it writes to another store, and opens what it reads.

Sealed are payloads, headers, results, outputs of steps, and whole documents of SEALED_COLLECTIONS. Everything else that
a store must compare or sort is not: names, keys, tags, targets, times, and texts about failures. sealed_ends.py has
what is special about jobs that follow the end of another.

What cannot be opened is returned as it is stored, so that one such job does not hide all others. Workers do not run it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar, cast

from mainspring.clock import Clock, Millis
from mainspring.encryption import FIELD, Keys, Unreadable, is_sealed, sealed_in
from mainspring.errors import ConfigurationError
from mainspring.job import Claim, FreshJobs, Inserted, Job, NewJob, Outcome, Save, Status, Step
from mainspring.json_text import from_json, read_object, to_json
from mainspring.stores.columns import decoded
from mainspring.stores.documents import ABSENT, Bundle, By, Document, Due, Key, Listing, Note, Write
from mainspring.stores.protocol import (
    Action,
    AuditEntry,
    AuditFilter,
    CappedCount,
    Changed,
    Claims,
    Completable,
    Completion,
    Edit,
    Filter,
    Finding,
    Page,
    Severity,
    Sort,
    Store,
    Want,
)
from mainspring.stores.sealed_ends import ON_END, opened_data, opened_on_end, opened_text, sealed_on_end

T = TypeVar("T")

SEALED_COLLECTIONS = frozenset(
    {"signals", "schedules", "idempotency", "trigger_keys", "webhook_secrets", "delivery_key", "signing_keys"}
)
KEY_COLLECTION = "encryption"  # a document for each key that has sealed something in this store
HEADERS = "headers"  # among a job's options
OPTIONAL = ("version", "migrate", "wait_to_write", "measures", "keep_time", "plan_table", "template")
NO_FILTER = "payloads are encrypted, so jobs cannot be searched by them; search by tag, target or dedupe key instead"


class EncryptedStore:
    """A store with keys. Any other method or attribute is that of the store within."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self.inner = store
        self.keys = keys
        self._is_checked = False
        for name in OPTIONAL:  # protocols of optional methods look at the object itself
            if hasattr(store, name):
                self.__dict__[name] = getattr(store, name)
        if hasattr(store, "insert_now"):
            self.__dict__["insert_now"] = self._insert_now

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not set yet: an unpickled or copied object asks for it
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def clock(self) -> Clock:
        return self.inner.clock

    @property
    def url(self) -> str:
        return self.inner.url

    async def open(self) -> None:
        await self.inner.open()
        if not self._is_checked:
            await check_keys(self.inner, self.keys)
            self._is_checked = True

    # -- what is written ----------------------------------------------------------------------------

    async def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Inserted]:
        if connection is None:  # in a transaction of the caller, opening the store could wait for that transaction
            await self._note_key()
        return await self.inner.insert(self._sealed_jobs(jobs), connection)

    def _insert_now(self, jobs: Sequence[NewJob]) -> list[Inserted] | None:
        if not self._is_checked:
            return None
        inserted: list[Inserted] | None = cast("Any", self.inner).insert_now(self._sealed_jobs(jobs))
        return inserted

    async def _note_key(self) -> None:
        """Note the active key before the first value is sealed with it: other stores open themselves at first use."""
        if not self._is_checked:
            await self.open()

    async def ack(self, outcomes: Sequence[Outcome]) -> list[Status | None]:
        await self._note_key()
        sealed = [self._sealed_outcome(outcome) for outcome in outcomes]
        statuses = await self.inner.ack(sealed)
        for outcome, written in zip(outcomes, sealed, strict=True):
            outcome.inserted = written.inserted
        return statuses

    async def save(self, saves: Sequence[Save]) -> list[list[Inserted] | None]:
        await self._note_key()
        return await self.inner.save(
            [
                replace(
                    save, steps=self._sealed_steps(save.job_id, save.steps), jobs=tuple(self._sealed_jobs(save.jobs))
                )
                for save in saves
            ]
        )

    def completion(self, outcome: Callable[[], Outcome], connection: Any = None) -> Completion:
        return cast("Completion", SealedCompletion(self, outcome, connection))

    async def write(self, bundles: Sequence[Bundle]) -> list[list[Inserted] | None]:
        await self._note_key()
        return await self.inner.write([self._sealed_bundle(bundle) for bundle in bundles])

    async def change(
        self, action: Action, where: Filter, by: By, *, edit: Edit | None = None, **options: Any
    ) -> Changed:
        refuse_payload(where)
        await self._note_key()
        if edit is not None and edit.payload is not None:
            if len(where.ids) != 1:  # what is sealed belongs to one job
                msg = "payloads are encrypted, so an edit of payloads must name one job: Filter(ids=(…,))"
                raise ConfigurationError(msg)
            edit = replace(edit, payload=self.keys.seal_json(edit.payload, where.ids[0], "payload"))
        return await self.inner.change(action, where, by, edit=edit, **options)

    def _sealed_jobs(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        sealed = [self._sealed_job(job) for job in jobs]
        return FreshJobs(sealed) if isinstance(jobs, FreshJobs) else sealed

    def _sealed_job(self, job: NewJob) -> NewJob:
        if not is_plain(job.id, job.payload, job.options or ""):  # the store refuses it, and says why
            return job
        payload = self.keys.seal_json(job.payload, job.id, "payload")
        return replace(job, payload=payload, options=self._sealed_options(job.id, job.options))

    def _sealed_options(self, job_id: str, options: str | None) -> str | None:
        if options is None or not (f'"{HEADERS}"' in options or f'"{ON_END}"' in options):
            return options
        data = dict(read_object(options))
        if ON_END in data:
            data[ON_END] = sealed_on_end(self.keys, job_id, data[ON_END])
        if HEADERS in data:
            data[HEADERS] = {FIELD: self.keys.seal(to_json(data[HEADERS]), job_id, HEADERS)}
        return to_json(data)

    def _sealed_steps(self, job_id: str, steps: Iterable[Step]) -> tuple[Step, ...]:
        return tuple(
            step
            if step.output is None
            else replace(step, output=self.keys.seal_json(step.output, job_id, "step", step.name))
            for step in steps
        )

    def _sealed_outcome(self, outcome: Outcome) -> Outcome:
        """Return a copy to be written. Events and logs still need the outcome itself."""
        result = outcome.result
        return replace(
            outcome,
            result=None if result is None else self.keys.seal_json(result, outcome.job_id, "result"),
            steps=self._sealed_steps(outcome.job_id, outcome.steps),
            follow_ups=tuple(self._sealed_jobs(outcome.follow_ups)),
        )

    def _sealed_bundle(self, bundle: Bundle) -> Bundle:
        writes = tuple(self._sealed_write(write) for write in bundle.writes)
        note = None if bundle.note is None else self._sealed_note(bundle.note)
        steps = {job_id: self._sealed_steps(job_id, recorded) for job_id, recorded in bundle.steps.items()}
        return replace(bundle, writes=writes, jobs=tuple(self._sealed_jobs(bundle.jobs)), note=note, steps=steps)

    def _sealed_note(self, note: Note) -> Note:
        """Seal the payloads in an entry of the audit log: what a schedule was before a change, and after it."""
        parts = {
            name: {**part, "payload": self.keys.seal_json(part["payload"], note.by.operation, name)}
            for name, part in with_payload(note.detail).items()
        }
        return replace(note, detail={**note.detail, **parts}) if parts else note

    def _sealed_write(self, write: Write) -> Write:
        if write.data is None or write.key.collection not in SEALED_COLLECTIONS:
            return write
        return replace(write, data=self.keys.seal_json(write.data, *write.key))

    # -- what is read -------------------------------------------------------------------------------

    async def claim(self, worker: str, wants: Sequence[Want], **options: Any) -> Claims:
        claims = await self.inner.claim(worker, wants, **options)
        for claim in claims.jobs:
            self._open_claim(claim)
        return claims

    def _open_claim(self, claim: Claim) -> None:
        """Open a claim, or leave it sealed: a worker must not run a job of which it can read only a part.

        A claim that is left sealed has the id of the key that it needs, instead of its payload.
        """
        try:
            payload = opened_text(self.keys, claim.payload)
            if payload is None:
                payload = self.keys.open_json(claim.payload, claim.id, "payload")
            if claim.options is not None and FIELD in claim.options:
                claim.options = to_json(self._opened_options(claim.id, read_object(claim.options)))
            claim.payload = payload
        except Unreadable as error:
            claim.payload = f'{{"{FIELD}":"v1.{error.key}."}}'

    def _opened_options(self, job_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
        sealed, opened = sealed_in(options.get(HEADERS)), dict(options)
        if sealed is not None:
            opened[HEADERS] = from_json(self.keys.open(sealed, job_id, HEADERS))
        if ON_END in options:
            opened[ON_END] = opened_on_end(self.keys, job_id, options[ON_END])
        return opened

    async def get(self, ids: Sequence[str], *, within: Sequence[str] = ()) -> list[Job]:
        return [self._opened_job(job) for job in await self.inner.get(ids, within=within)]

    async def find(
        self,
        where: Filter,
        *,
        sort: Sort = Sort.CREATED,
        descending: bool = True,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        refuse_payload(where)
        page = await self.inner.find(where, sort=sort, descending=descending, limit=limit, cursor=cursor)
        return replace(page, jobs=[self._opened_job(job) for job in page.jobs])

    def _opened_job(self, job: Job) -> Job:
        try:
            options = self._opened_options(job.id, job.options)
        except Unreadable:
            options = dict(job.options)
            options.pop(HEADERS, None)
        result = self._opened(job.result, job.id, "result")
        return replace(job, payload=self._opened_payload(job), result=result, options=options)

    def _opened_payload(self, job: Job) -> Any:
        try:
            told = opened_data(self.keys, job.payload)
        except Unreadable:
            return job.payload
        return self._opened(job.payload, job.id, "payload") if told is None else told

    def _opened(self, value: Any, *about: str) -> Any:
        """Return decoded JSON that was sealed; anything else, and what cannot be opened, as it is."""
        sealed = sealed_in(value)
        if sealed is None:
            return value
        try:
            return decoded(self.keys.open(sealed, *about))
        except Unreadable:
            return value

    async def count(self, where: Filter) -> int:
        refuse_payload(where)
        return await self.inner.count(where)

    async def count_up_to(self, where: Filter, cap: int) -> CappedCount:
        refuse_payload(where)
        return await self.inner.count_up_to(where, cap)

    async def dead_letters(
        self, fingerprints: Sequence[str], cap: int, *, within: Sequence[str] = ()
    ) -> dict[str, dict[str, int]]:
        return await self.inner.dead_letters(fingerprints, cap, within=within)

    async def complete(
        self, what: Completable, prefix: str, *, limit: int = 20, task: str | None = None, within: Sequence[str] = ()
    ) -> list[str]:
        if what is Completable.PAYLOAD_KEY:
            msg = "payloads are encrypted, so their keys cannot be completed"
            raise ConfigurationError(msg)
        return await self.inner.complete(what, prefix, limit=limit, task=task, within=within)

    async def steps(self, job_id: str) -> list[Step]:
        return [self._opened_step(job_id, step) for step in await self.inner.steps(job_id)]

    def _opened_step(self, job_id: str, step: Step) -> Step:
        """Open a step. One that cannot be opened raises: a durable function would take it for its own output."""
        if step.output is None:
            return step
        try:
            return replace(step, output=self.keys.open_json(step.output, job_id, "step", step.name))
        except Unreadable as error:
            what = f"step {step.name!r} of job {job_id}"
            raise unreadable(what, error) from None

    async def documents(self, keys: Sequence[Key]) -> list[Document]:
        return [self._opened_document(document) for document in await self.inner.documents(keys)]

    async def browse(self, listing: Listing) -> list[Document]:
        return [self._opened_document(document) for document in await self.inner.browse(listing)]

    async def due(self, collection: str, limit: int = 100, *, ahead: Millis = 0) -> Due:
        due = await self.inner.due(collection, limit, ahead=ahead)
        return replace(due, documents=[self._opened_document(document) for document in due.documents])

    def _opened_document(self, document: Document) -> Document:
        if document.key.collection not in SEALED_COLLECTIONS or not is_sealed(document.data):
            return document
        try:
            return replace(document, data=self.keys.open_json(document.data, *document.key))
        except Unreadable as error:
            what = f"{document.key.collection} {document.key.id!r}"
            raise unreadable(what, error) from None

    async def audit(
        self, where: AuditFilter | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> list[AuditEntry]:
        return [self._opened_entry(entry) for entry in await self.inner.audit(where, limit=limit, cursor=cursor)]

    def _opened_entry(self, entry: AuditEntry) -> AuditEntry:
        parts = {}
        for name, part in with_payload(entry.detail).items():
            about = self._about(entry, name)
            try:
                parts[name] = {**part, "payload": self.keys.open_json(part["payload"], *about)}
            except Unreadable:
                continue
        return replace(entry, detail={**entry.detail, **parts}) if parts else entry

    def _about(self, entry: AuditEntry, part: str) -> tuple[str, str]:
        """Return what a payload in the audit log is about. That of an edit is also the payload of the job itself."""
        if part != "edit":
            return entry.operation, part
        ids = (entry.detail.get("filter") or {}).get("ids") or [""]
        return ids[0], "payload"


def with_payload(detail: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the parts of an audit entry's detail that have a payload, as JSON text."""
    return {
        name: part for name, part in detail.items() if isinstance(part, dict) and isinstance(part.get("payload"), str)
    }


class SealedCompletion:
    """A transaction whose outcome is sealed. What the store notes about it is passed on."""

    def __init__(self, store: EncryptedStore, outcome: Callable[[], Outcome], connection: Any) -> None:
        self._store = store
        self._given = outcome
        self._outcome: Outcome | None = None
        self._sealed: Outcome | None = None
        self._inner = store.inner.completion(self._make, connection)

    def _make(self) -> Outcome:
        self._outcome = self._given()
        self._sealed = self._store._sealed_outcome(self._outcome)  # noqa: SLF001 - of this module
        return self._sealed

    def _pass_on(self) -> None:
        if self._outcome is not None and self._sealed is not None:
            self._outcome.inserted = self._sealed.inserted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return self._inner.__exit__(kind, error, trace)
        finally:
            self._pass_on()

    async def __aenter__(self) -> Any:
        return await self._inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._inner.__aexit__(kind, error, trace)
        finally:
            self._pass_on()


def is_plain(*texts: object) -> bool:
    """Return whether these are texts that a store accepts."""
    return all(isinstance(text, str) and "\0" not in text and is_unicode(text) for text in texts)


def is_unicode(text: str) -> bool:
    """Return whether there is no half of a surrogate pair in a text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_payload(where: Filter) -> None:
    if where.payload:
        raise ConfigurationError(NO_FILTER)


def unreadable(what: str, error: Unreadable) -> ConfigurationError:
    msg = f"{what} is encrypted and cannot be read: {error}; give this process the key"
    return ConfigurationError(msg)


def encrypted(store: Store, keys: Keys | None) -> Store:
    """Return the store with encryption, if there are keys."""
    return store if keys is None else cast("Store", EncryptedStore(store, keys))


def bare(store: Any) -> Store:
    """Return the store in which values are stored as they are."""
    found: Store = store.inner if isinstance(store, EncryptedStore) else store
    return found


def keys_of(store: Any) -> Keys | None:
    return store.keys if isinstance(store, EncryptedStore) else None


# -- which keys a store needs -----------------------------------------------------------------------------


async def needed_keys(store: Store) -> dict[str, str]:
    """Return the ids of the keys that have sealed something in this store, each with a proof of the key."""
    found = await store.browse(Listing(KEY_COLLECTION, limit=1000))
    return {document.key.id: json.loads(document.data)["proof"] for document in found}


async def check_keys(store: Store, keys: Keys | None) -> None:
    """Raise ConfigurationError if values in this store cannot be read with these keys; note the active key.

    The note comes before the first value that is sealed with the key, so that no process overlooks one.
    """
    needed = await needed_keys(store)
    known = () if keys is None else keys.ids
    if missing := sorted(needed.keys() - set(known)):
        has = f"has only {', '.join(known)}" if known else "has no keys"
        msg = (
            f"this store has values that are encrypted with the key {' and '.join(missing)}, and this process {has};"
            " set MAINSPRING_ENCRYPTION_KEYS (docs/security.md)"
        )
        raise ConfigurationError(msg)
    if keys is None:
        return
    for name, proof in needed.items():
        prove(keys, name, proof)
    if keys.active not in needed:
        data = json.dumps({"proof": keys.seal(keys.active, "proof")})
        await store.write([Bundle((Write(Key(KEY_COLLECTION, "", keys.active), data, expected=ABSENT),))])


def prove(keys: Keys, name: str, proof: str) -> None:
    """Raise ConfigurationError if another key has this id."""
    try:
        keys.open(proof, "proof")
    except Unreadable:
        msg = f"the key {name!r} is not the one with which this store was encrypted; check its value"
        raise ConfigurationError(msg) from None


async def key_findings(store: Store) -> list[Finding]:
    """Return what `mainspring doctor` says about keys."""
    keys = keys_of(store)
    needed = await needed_keys(bare(store))
    if not needed:
        return []
    known = () if keys is None else keys.ids
    if missing := sorted(needed.keys() - set(known)):
        advice = "set MAINSPRING_ENCRYPTION_KEYS; without them, workers do not start, and jobs cannot be read"
        return [Finding(Severity.ERROR, "keys", f"keys are missing: {', '.join(missing)}", advice)]
    used = f"in use: {', '.join(sorted(needed))}; active: {'' if keys is None else keys.active}"
    if len(needed) > 1:
        return [Finding(Severity.WARNING, "keys", used, "to retire old keys, run: mainspring keys rotate")]
    return [Finding(Severity.OK, "keys", used)]
