"""When tokens were used last, to the minute.

A use has a document of its own beside that of the token. So it never changes the token: a revocation or an edit at the
same time has its effect, whichever of the two is written first. The document is not recorded in the change feed or the
audit log.

A request only notes its use in memory, at most once a minute for each token. A task writes what was noted. No request
waits for it, and a use that cannot be written is dropped: the next minute has another one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from contextvars import Context
from datetime import datetime
from typing import TYPE_CHECKING

from mainspring.clock import Millis, to_datetime
from mainspring.log import get_log
from mainspring.stores.documents import ABSENT, Bundle, Document, Key, Write
from mainspring.stores.protocol import AUDIT_RETENTION

if TYPE_CHECKING:
    from mainspring.stores.protocol import Store

log = get_log("mainspring.service")

COLLECTION = "token_uses"
MINUTE: Millis = 60_000
RETENTION = AUDIT_RETENTION  # then the document goes, also that of a token that was revoked just before its use
FLUSH_SECONDS = 2.0  # that the end of the service waits for a store that does not answer


class TokenUses:
    """The uses of tokens in this process, and in the store."""

    def __init__(self, store: Store, tokens: str) -> None:
        self._store = store
        self._tokens = tokens  # the collection of the tokens themselves
        self._minute = -1
        self._noted: set[str] = set()  # tokens that were used in this minute
        self._waiting: dict[str, Millis] = {}  # uses that are not written yet, by token
        self._writing: asyncio.Task[None] | None = None

    def note(self, token_id: str) -> None:
        """Note that a token is used now. A task writes it."""
        minute = self._store.clock.now() // MINUTE
        if minute != self._minute:
            self._minute = minute
            self._noted.clear()
        if token_id not in self._noted:
            self._noted.add(token_id)
            self._waiting[token_id] = minute * MINUTE
            self._begin()

    async def flush(self) -> None:
        """Wait until all uses are written. Give up on a store that does not answer."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=FLUSH_SECONDS)
            self._writing.cancel()

    async def last(self, token_ids: Iterable[str]) -> dict[str, datetime]:
        """Return when these tokens were used last. Those that were not used are left out."""
        documents = await self._store.documents([key_of(token_id) for token_id in token_ids])
        return {document.key.id: to_datetime(used_at(document)) for document in documents}

    def removal(self, token_id: str) -> Write:
        """Return the write that removes the use of a token, together with the token."""
        return Write(key_of(token_id), None)

    def _begin(self) -> None:
        if self._writing is None or self._writing.done():
            writing = self._write_all()  # in a context of its own: it is not part of the request that was first
            loop = asyncio.get_running_loop()
            self._writing = loop.create_task(writing, name="mainspring-token-uses", context=Context())

    async def _write_all(self) -> None:
        while self._waiting:
            uses, self._waiting = self._waiting, {}
            try:
                await self._write(uses)
            except Exception as error:  # noqa: BLE001 - whatever it was, requests go on
                log.warning("token_uses_not_written", tokens=len(uses), error=f"{type(error).__name__}: {error}")

    async def _write(self, uses: Mapping[str, Millis]) -> None:
        """Write uses that are later than those in the store. Another process may have written the same minute."""
        keys = [Key(collection, "", token_id) for token_id in uses for collection in (self._tokens, COLLECTION)]
        found = {document.key: document for document in await self._store.documents(keys)}
        known = {token_id: found.get(key_of(token_id)) for token_id in uses}
        bundles = [
            Bundle((write_of(token_id, at, known[token_id]),))
            for token_id, at in uses.items()
            if Key(self._tokens, "", token_id) in found and is_later(at, known[token_id])
        ]
        if bundles:
            await self._store.write(bundles)


def key_of(token_id: str) -> Key:
    return Key(COLLECTION, "", token_id)


def write_of(token_id: str, at: Millis, known: Document | None) -> Write:
    """Return the write of a use. It is dropped if another process has written a use, or revoked the token, since."""
    expected = ABSENT if known is None else known.version
    return Write(key_of(token_id), json.dumps({"at": at}), expected=expected, expires_at=at + RETENTION)


def used_at(document: Document) -> Millis:
    at: Millis = json.loads(document.data)["at"]
    return at


def is_later(at: Millis, known: Document | None) -> bool:
    return known is None or at > used_at(known)
