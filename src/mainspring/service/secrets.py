"""Secrets that sign requests to others: `whsec_…`, by name, in documents of the store.

A secret is replaced in two steps: for a day, requests are signed with the new and the old one, so that receivers can
change theirs meanwhile. Unlike a token, a secret is needed to sign, so the store has its text.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets as randomness
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from mainspring.clock import Millis, to_datetime, to_millis
from mainspring.errors import ConfigurationError
from mainspring.names import check_name
from mainspring.stores.documents import ABSENT, Bundle, By, Document, Key, Note, Write, using_key
from mainspring.stores.paging import page_by_id
from mainspring.webhooks import key_of, new_secret

if TYPE_CHECKING:
    from mainspring.stores.protocol import Store

COLLECTION = "webhook_secrets"
DEFAULT = "default"  # signs callbacks; made at first use
OVERLAP: Millis = 24 * 3_600_000  # how long a replaced secret still signs
FRESH_FOR: Millis = 5_000  # how long a process trusts what it has read
MAX_TRIES = 5


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret by its name: its texts, the newest first, each with the time at which it ends."""

    name: str
    texts: Sequence[tuple[str, Millis | None]]
    created_at: datetime
    created_by: str

    def valid(self, now: Millis) -> list[str]:
        return [text for text, until in self.texts if until is None or until > now]

    def replaced(self, text: str, now: Millis) -> Secret:
        kept = [(old, now + OVERLAP if until is None else until) for old, until in self.texts]
        texts = ((text, None), *((old, until) for old, until in kept if until > now))
        return Secret(self.name, texts, self.created_at, self.created_by)

    def to_data(self) -> str:
        at = to_millis(self.created_at)
        return json.dumps({"texts": list(self.texts), "created_at": at, "created_by": self.created_by})

    @classmethod
    def of(cls, document: Document) -> Secret:
        data = json.loads(document.data)
        texts = tuple((text, until) for text, until in data["texts"])
        return cls(document.key.id, texts, to_datetime(data["created_at"]), data["created_by"])


class Secrets:
    """The secrets of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[Millis, Secret]] = {}

    async def page(self, limit: int, after: str | None = None) -> tuple[Sequence[Secret], str | None]:
        """Return secrets by name, after a name, and the last name if there are more."""
        found, last = await page_by_id(self._store, COLLECTION, limit, after)
        return [Secret.of(document) for document in found], last

    async def get(self, name: str) -> Secret | None:
        found = await self._store.documents([place(name)])
        return Secret.of(found[0]) if found else None

    async def create(self, name: str, *, actor: str, text: str | None = None) -> Secret | None:
        """Create a secret; return None if there is one of that name."""
        check_name(name, "the name of a secret")
        if text is not None:
            key_of(text)
        now = self._store.clock.now()
        secret = Secret(name, ((text or new_secret(), None),), to_datetime(now), actor)
        note = Note(By(actor), "secret.create", {"secret": name})
        write = Write(place(name), secret.to_data(), expected=ABSENT)
        return None if (await self._store.write([Bundle((write,), note=note)]))[0] is None else secret

    async def rotate(self, name: str, *, actor: str, text: str | None = None) -> Secret | None:
        """Replace a secret; return None if there is none. The old text signs beside the new one for a day."""
        new = text or new_secret()
        key_of(new)
        for _ in range(MAX_TRIES):
            found = await self._store.documents([place(name)])
            if not found:
                return None
            secret = Secret.of(found[0]).replaced(new, self._store.clock.now())
            note = Note(By(actor), "secret.rotate", {"secret": name})
            write = Write(place(name), secret.to_data(), expected=found[0].version)
            if (await self._store.write([Bundle((write,), note=note)]))[0] is not None:
                self._known.pop(name, None)
                return secret
        msg = f"secret {name!r} is being changed by others; try again"
        raise ConfigurationError(msg)

    async def delete(self, name: str, *, actor: str) -> bool:
        """Delete a secret; return False if there is none."""
        if await self.get(name) is None:
            return False
        note = Note(By(actor), "secret.delete", {"secret": name})
        await self._store.write([Bundle((Write(place(name), None),), note=note)])
        self._known.pop(name, None)
        return True

    async def texts(self, name: str) -> Sequence[str]:
        """Return the texts that sign now, the newest first; none if there is no such secret. Make the default one."""
        now = self._store.clock.now()
        read_at, secret = self._known.get(name, (0, None))
        if secret is None or not 0 <= now - read_at < FRESH_FOR:
            secret = await self.get(name)
            if secret is None and name == DEFAULT:
                with using_key(None):  # it is not what the caller has asked for
                    secret = await self.create(name, actor="service") or await self.get(name)
            if secret is None:
                return []
            self._known[name] = now, secret
        return secret.valid(now)


def place(name: str) -> Key:
    return Key(COLLECTION, "", name)


# -- tokens of deliveries ---------------------------------------------------------------------------------

KEY_PLACE = Key("delivery_key", "", "key")
KEY_BYTES = 32
SHAPE = re.compile(r"msd_([0-9]{1,6})_([0-9a-f]{64})")
PREFIX = "msd_"


class DeliveryTokens:
    """Tokens by which the receiver of a request may end the request's job, and do nothing else.

    They are signatures of the job and the number of the request, by a key that all processes of a store share.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key: bytes | None = None

    async def make(self, job_id: str, number: int) -> str:
        return f"{PREFIX}{number}_{await self._signature(job_id, number)}"

    async def number_of(self, text: str, job_id: str) -> int | None:
        """Return the number of the request that the token is for; None if it is not a token for this job."""
        found = SHAPE.fullmatch(text)
        if found is None:
            return None
        expected = await self._signature(job_id, int(found[1]))
        return int(found[1]) if hmac.compare_digest(found[2], expected) else None

    async def _signature(self, job_id: str, number: int) -> str:
        if self._key is None:
            self._key = await self._read()
        return hmac.digest(self._key, f"{job_id}:{number}".encode(), hashlib.sha256).hex()

    async def _read(self) -> bytes:
        """Return the key. The first process makes it; a process that came second finds that of the first."""
        if not (found := await self._store.documents([KEY_PLACE])):
            key = base64.b64encode(randomness.token_bytes(KEY_BYTES)).decode()
            await self._store.write([Bundle((Write(KEY_PLACE, json.dumps(key), expected=ABSENT),))])
            found = await self._store.documents([KEY_PLACE])
        return base64.b64decode(json.loads(found[0].data))
