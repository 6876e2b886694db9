"""Access tokens: `msk_<id>_<secret><checksum>`.

The secret has 256 bits, so a fast hash is enough: the store keeps its SHA-256, and nobody can guess it. The checksum
lets a person, or a scanner that looks for leaked secrets, tell a real token from a mistyped one without the store.
"""

from __future__ import annotations

import hmac
import json
import re
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mainspring.clock import Millis, to_datetime, to_millis
from mainspring.errors import ConfigurationError, TokenNotFound
from mainspring.json_data import plain
from mainspring.names import check_name
from mainspring.projects import check_project, in_project, pattern, queue_in
from mainspring.queue_patterns import EVERY, REST
from mainspring.service.random_text import DIGITS, hash_of, random_digits
from mainspring.service.recent import Recent
from mainspring.service.sessions import Session, Sessions
from mainspring.service.signing_keys import SigningKeys
from mainspring.service.token_uses import TokenUses
from mainspring.stores.documents import ABSENT, Bundle, By, Document, Key, Note, Write
from mainspring.stores.paging import page_by_id, pages

if TYPE_CHECKING:
    from mainspring.stores.protocol import Store

COLLECTION = "tokens"
PREFIX = "msk"
ID_LENGTH, SECRET_LENGTH, CHECK_LENGTH = 8, 43, 6
SHAPE = re.compile(
    rf"{PREFIX}_([0-9A-Za-z]{{{ID_LENGTH}}})_([0-9A-Za-z]{{{SECRET_LENGTH}}})([0-9A-Za-z]{{{CHECK_LENGTH}}})"
)
TRUSTED_FOR = 3600.0  # seconds that a token stays good for `/metrics` while the store does not answer
FRESH_FOR = 5.0  # seconds that a process trusts what it has read of a token; a revoked token works no longer than that
MOST_KNOWN = 10_000  # right tokens, and as many wrong ones, that a process remembers


class Scope(StrEnum):
    """What a token allows."""

    READ = "read"  # look at everything
    ENQUEUE = "enqueue"  # create jobs, send signals
    LEASE = "lease"  # claim jobs and report about them: workers in other languages
    OPERATE = "operate"  # change jobs, queues, schedules and halts
    AUTOMATE = "automate"  # change automations
    ADMIN = "admin"  # everything, and tokens


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the store knows it: everything but the secret."""

    id: str
    name: str
    scopes: frozenset[Scope]
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    project: str | None = None  # it sees and changes the queues of this project only
    queues: tuple[str, ...] = ()  # of these queues only, named as within its project; empty: all
    last_used: datetime | None = None  # to the minute, in lists; None: not in the last 400 days

    @property
    def within(self) -> tuple[str, ...]:
        """The queues that it allows, as patterns; empty: all of them."""
        if self.project is None:
            return self.queues
        return tuple(in_project(self.project, queue) for queue in self.queues) or (pattern(self.project),)

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def to_data(self) -> dict[str, Any]:
        """Return it as JSON data, for the API and the command line."""
        return {
            "id": self.id,
            "name": self.name,
            "scopes": sorted(self.scopes),
            "created_at": plain(self.created_at),
            "created_by": self.created_by,
            "expires_at": plain(self.expires_at),
            "project": self.project,
            "queues": list(self.queues),
            "last_used": plain(self.last_used),
        }


def checksum(text: str) -> str:
    number, digits = zlib.crc32(text.encode()), ""
    for _ in range(CHECK_LENGTH):
        number, digit = divmod(number, len(DIGITS))
        digits = DIGITS[digit] + digits
    return digits


def parts_of(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a token; None if it is not one, or is mistyped."""
    found = SHAPE.fullmatch(text)
    if found is None:
        return None
    token_id, secret, check = found.groups()
    return (token_id, secret) if hmac.compare_digest(check, checksum(f"{token_id}{secret}")) else None


def scopes_of(names: Iterable[str]) -> frozenset[Scope]:
    try:
        scopes = frozenset(Scope(name) for name in names)
    except ValueError as error:
        msg = f"{error}; the scopes of a token are {', '.join(Scope)}"
        raise ConfigurationError(msg) from None
    if not scopes:
        msg = f"a token needs at least one scope: {', '.join(Scope)}"
        raise ConfigurationError(msg)
    return scopes


def queues_of(project: str | None, queues: Iterable[str]) -> tuple[str, ...]:
    """Return the queues of a token as they are kept; raise ConfigurationError for an invalid project or queue."""
    if project is not None:
        check_project(project)
    names = tuple(dict.fromkeys(queues))
    for name in names:
        if name == EVERY:
            msg = "'*' is not a queue; leave the queues out to allow all of them"
            raise ConfigurationError(msg)
        queue = name if project is None else queue_in(project, name)
        check_name(queue.removesuffix(REST), "a queue of a token")
    return names


class Tokens:
    """The tokens of a store."""

    def __init__(self, store: Store) -> None:
        self.signing_keys = SigningKeys(store)  # of public tokens
        self.sessions = Sessions(store)  # of browsers
        self.uses = TokenUses(store, COLLECTION)
        self._store = store
        self._known_ids: Recent[Token] = Recent(MOST_KNOWN)  # by id
        self._known: Recent[Token] = Recent(MOST_KNOWN)  # by the hash of the whole text

    async def create(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        actor: str,
        expires_at: datetime | None = None,
        project: str | None = None,
        queues: Iterable[str] = (),
    ) -> tuple[Token, str]:
        """Create a token; return it with its text, which is shown only now.

        With `project`, it sees and changes only queues that begin with `p/<project>/`; with `queues`, only these.
        """
        check_name(name, "the name of a token")
        named = queues_of(project, queues)
        now = self._store.clock.now()
        if expires_at is not None and to_millis(expires_at) <= now:
            msg = f"expires_at is {expires_at.isoformat()}, which is in the past"
            raise ConfigurationError(msg)
        token = Token(
            random_digits(ID_LENGTH), name, scopes_of(scopes), to_datetime(now), actor, expires_at, project, named
        )
        secret = random_digits(SECRET_LENGTH)
        detail = {"token": token.id, "name": name, "scopes": sorted(token.scopes), "within": list(token.within)}
        note = Note(By(actor), "token.create", detail)
        write = Write(key_of(token.id), to_document(token, secret), expected=ABSENT)
        await self._store.write([Bundle((write,), note=note)])
        return token, f"{PREFIX}_{token.id}_{secret}{checksum(f'{token.id}{secret}')}"

    async def list(self) -> Sequence[Token]:
        found: list[Token] = []
        async for page in pages(self._store, COLLECTION):
            found += await self._with_uses(page)
        return found

    async def page(self, limit: int, after: str | None = None) -> tuple[Sequence[Token], str | None]:
        """Return tokens by id, after an id, and the last id if there are more."""
        found, last = await page_by_id(self._store, COLLECTION, limit, after)
        return await self._with_uses(found), last

    async def _with_uses(self, documents: Iterable[Document]) -> Sequence[Token]:
        tokens = [from_document(document) for document in documents]
        used = await self.uses.last(token.id for token in tokens)
        return [replace(token, last_used=used.get(token.id)) for token in tokens]

    async def revoke(self, token_id: str, *, actor: str, reason: str = "") -> None:
        """Delete a token; raise TokenNotFound if there is none. Other processes trust it for five seconds more."""
        if not await self._store.documents([key_of(token_id)]):
            raise TokenNotFound(token_id)
        note = Note(By(actor, reason), "token.revoke", {"token": token_id})
        await self._store.write([Bundle((Write(key_of(token_id), None), self.uses.removal(token_id)), note=note)])
        self._known.clear()
        self._known_ids.clear()

    def now(self) -> Millis:
        """Return the time by the store's clock, which decides when tokens expire."""
        return self._store.clock.now()

    async def by_id(self, token_id: str) -> Token | None:
        """Return the token with this id, for what is signed or opened in its name; None if it is not valid any more."""
        read_at, token = self._known_ids.get(token_id)
        now = time.monotonic()
        if now - read_at >= FRESH_FOR:
            token = (await self.current([token_id])).get(token_id)
            self._known_ids.put(token_id, now, token)
        return self._used(token)

    async def of_session(self, cookie: str) -> tuple[Session, Token] | None:
        """Return the session of a cookie and the token with which it began; None if either is not valid any more."""
        session = await self.sessions.find(cookie) if cookie else None
        token = None if session is None else await self.by_id(session.token_id)
        return None if session is None or token is None else (session, token)

    async def find(self, text: str) -> Token | None:
        """Return the token of this text; None if it is wrong, revoked or expired."""
        parts = parts_of(text)
        if parts is None:
            return None
        known = hash_of(text)
        read_at, token = self._known.get(known)
        now = time.monotonic()  # before the read: a slow one would make the token look newer than it is
        if now - read_at >= FRESH_FOR:
            token = await self._read(*parts)
            self._known.put(known, now, token)
        return self._used(token)

    def last_known(self, text: str) -> Token | None:
        """Return the token of this text as it was read last, within the hour; for when the store does not answer."""
        read_at, token = self._known.get(hash_of(text))
        is_recent = time.monotonic() - read_at < TRUSTED_FOR
        return token if token is not None and is_recent and not self._has_expired(token) else None

    async def current(self, token_ids: Iterable[str]) -> dict[str, Token]:
        """Return those of these tokens that are valid now, as the store knows them."""
        documents = await self._store.documents([key_of(token_id) for token_id in token_ids])
        tokens = map(from_document, documents)
        return {token.id: token for token in tokens if not self._has_expired(token)}

    def _used(self, token: Token | None) -> Token | None:
        """Note the use of a token that is valid; return None for one that is not."""
        if token is None or self._has_expired(token):
            return None
        self.uses.note(token.id)
        return token

    def _has_expired(self, token: Token) -> bool:
        return token.expires_at is not None and to_millis(token.expires_at) <= self._store.clock.now()

    async def _read(self, token_id: str, secret: str) -> Token | None:
        documents = await self._store.documents([key_of(token_id)])
        stored = json.loads(documents[0].data)["hash"] if documents else hash_of("")  # as long, whatever is wrong
        is_right = hmac.compare_digest(stored, hash_of(secret))
        return from_document(documents[0]) if documents and is_right else None


def key_of(token_id: str) -> Key:
    return Key(COLLECTION, "", token_id)


def to_document(token: Token, secret: str) -> str:
    data: dict[str, Any] = {
        "name": token.name,
        "hash": hash_of(secret),
        "scopes": sorted(token.scopes),
        "created_at": to_millis(token.created_at),
        "created_by": token.created_by,
        "expires_at": None if token.expires_at is None else to_millis(token.expires_at),
        "project": token.project,
        "queues": token.queues,
    }
    return json.dumps(data)


def from_document(document: Document) -> Token:
    data = json.loads(document.data)
    expires_at = data["expires_at"]
    return Token(
        id=document.key.id,
        name=data["name"],
        scopes=frozenset(map(Scope, data["scopes"])),
        created_at=to_datetime(data["created_at"]),
        created_by=data["created_by"],
        expires_at=None if expires_at is None else to_datetime(expires_at),
        project=data["project"],
        queues=tuple(data["queues"]),
    )
