"""Sessions of browsers: a person logs in with a token, and the browser gets a cookie in its place.

The cookie has an id and a secret. The store keeps a document for each session, with a hash of the secret. A session
ends 12 hours after it was last used, 7 days after the login, when the person logs out, or when its token ends.
"""

from __future__ import annotations

import hmac
import json
import re
import time
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mainspring.clock import Millis
from mainspring.service.random_text import hash_of, random_digits
from mainspring.service.recent import Recent
from mainspring.stores.documents import ABSENT, Bundle, By, Document, Key, Note, Write
from mainspring.stores.paging import page_by_id, pages

if TYPE_CHECKING:
    from mainspring.stores.protocol import Store

COLLECTION = "sessions"
ID_LENGTH, SECRET_LENGTH = 12, 43
SHAPE = re.compile(rf"([0-9A-Za-z]{{{ID_LENGTH}}})_([0-9A-Za-z]{{{SECRET_LENGTH}}})")
SAFE_COOKIE, LOCAL_COOKIE = "__Host-ms", "ms"  # browsers keep the first for HTTPS, this host and all its paths
IDLE: Millis = 12 * 3_600_000
LONGEST: Millis = 7 * 24 * 3_600_000
TOUCH_AFTER: Millis = 300_000  # a session that is used is written this often
FRESH_FOR = 5.0  # seconds that a process trusts what it has read of a session
MOST_KNOWN = 10_000  # sessions that a process remembers
LONGEST_COOKIE = 4_096  # characters of the header; browsers send less


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    token_id: str
    created_at: Millis
    seen_at: Millis  # when it was used last, give or take some minutes
    address: str  # from which the person logged in

    @property
    def expires_at(self) -> Millis:
        return min(self.seen_at + IDLE, self.created_at + LONGEST)


class Sessions:
    """The sessions of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: Recent[Session] = Recent(MOST_KNOWN)  # by the hash of the cookie

    async def create(self, token_id: str, *, actor: str, address: str) -> tuple[Session, str]:
        """Create a session; return it with the value of its cookie."""
        now = self._store.clock.now()
        session = Session(random_digits(ID_LENGTH), token_id, now, now, address)
        secret = random_digits(SECRET_LENGTH)
        note = Note(By(actor), "session.create", {"session": session.id, "token": token_id, "address": address})
        write = write_of(session, hash_of(secret), expected=ABSENT)
        await self._store.write([Bundle((write,), note=note)])
        return session, f"{session.id}_{secret}"

    async def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie; None if it is wrong or has ended."""
        parts = SHAPE.fullmatch(cookie)
        if parts is None:
            return None
        known = hash_of(cookie)
        read_at, session = self._known.get(known)
        now = time.monotonic()
        if now - read_at >= FRESH_FOR:
            session = await self._read(parts[1], parts[2])
            self._known.put(known, now, session)
        return None if session is None or session.expires_at <= self._store.clock.now() else session

    async def current(self, ids: Iterable[str]) -> set[str]:
        """Return those of these sessions that have not ended, as the store knows them."""
        documents = await self._store.documents([key_of(session_id) for session_id in ids])
        now = self._store.clock.now()
        return {session.id for session in map(from_document, documents) if session.expires_at > now}

    async def list(self) -> list[Session]:
        now = self._store.clock.now()
        found = [from_document(each) async for page in pages(self._store, COLLECTION) for each in page]
        return [session for session in found if session.expires_at > now]

    async def page(self, limit: int, after: str | None = None) -> tuple[Sequence[Session], str | None]:
        """Return sessions by id, after an id, and the last id if there are more. Those that have ended are left out."""
        found, last = await page_by_id(self._store, COLLECTION, limit, after)
        now = self._store.clock.now()
        return [session for session in map(from_document, found) if session.expires_at > now], last

    async def end(self, session_id: str, *, actor: str, reason: str = "") -> bool:
        """End a session; return whether there was one. Other processes trust it for five seconds more."""
        if not await self._store.documents([key_of(session_id)]):
            return False
        note = Note(By(actor, reason), "session.end", {"session": session_id})
        await self._store.write([Bundle((Write(key_of(session_id), None),), note=note)])
        self._known.clear()
        return True

    async def _read(self, session_id: str, secret: str) -> Session | None:
        documents = await self._store.documents([key_of(session_id)])
        stored = json.loads(documents[0].data)["hash"] if documents else hash_of("")  # as long, whatever is wrong
        if not hmac.compare_digest(stored, hash_of(secret)) or not documents:
            return None
        return await self._touched(from_document(documents[0]), documents[0], stored)

    async def _touched(self, session: Session, document: Document, stored: str) -> Session:
        """Note that a session is used. If it was ended meanwhile, this does not bring it back."""
        now = self._store.clock.now()
        if now - session.seen_at < TOUCH_AFTER or session.expires_at <= now:
            return session
        used = replace(session, seen_at=now)
        await self._store.write([Bundle((write_of(used, stored, expected=document.version),))])
        return used


def key_of(session_id: str) -> Key:
    return Key(COLLECTION, "", session_id)


def write_of(session: Session, stored: str, *, expected: str) -> Write:
    data: dict[str, Any] = {
        "hash": stored,
        "token": session.token_id,
        "created_at": session.created_at,
        "seen_at": session.seen_at,
        "address": session.address,
    }
    return Write(key_of(session.id), json.dumps(data), expected=expected, expires_at=session.expires_at)


def from_document(document: Document) -> Session:
    data = json.loads(document.data)
    return Session(document.key.id, data["token"], data["created_at"], data["seen_at"], data["address"])


# -- cookies --------------------------------------------------------------------------------------


def is_safe(scope: MutableMapping[str, Any]) -> bool:
    """Return whether the request came over HTTPS, to the service or to a proxy that it trusts."""
    return scope.get("scheme") in {"https", "wss"}


def cookie_in(header: str, *, secure: bool) -> str:
    """Return the session's cookie of a request. Over HTTPS, only the one that nothing else can have set."""
    if not header or len(header) > LONGEST_COOKIE:
        return ""
    name = SAFE_COOKIE if secure else LOCAL_COOKIE
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return next((value for key, _, value in pairs if key == name), "")


def cookie_header(value: str, *, secure: bool) -> str:
    """Return the header that sets the cookie; an empty value removes it."""
    name, more = (SAFE_COOKIE, "; Secure") if secure else (LOCAL_COOKIE, "")
    age = LONGEST // 1000 if value else 0
    return f"{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax{more}"
