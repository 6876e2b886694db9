"""The keys that sign public tokens. The store keeps them, so that every process knows the same ones.

There is one current key, made when it is first needed. `rotate` makes another one. Tokens that older keys have signed
stay valid until they expire, unless the older keys are forgotten at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainspring.clock import Millis
from mainspring.errors import EditConflict
from mainspring.stores.documents import ABSENT, Bundle, By, Key, Note, Write

if TYPE_CHECKING:
    from mainspring.stores.protocol import Store

PLACE = Key("signing_keys", "", "public")
ID_BYTES, SECRET_BYTES = 4, 32
FRESH_FOR = 5.0  # seconds that a process trusts the keys that it has read
LONGEST_TOKEN: Millis = 24 * 3_600_000  # how long a signed token can be valid
TRIES = 10  # to write the keys while other processes do the same


@dataclass(frozen=True, slots=True)
class SigningKey:
    id: str
    secret: bytes
    ends_at: Millis | None = None  # of an older key: all that it has signed has expired by then

    def sign(self, text: str) -> bytes:
        return hmac.digest(self.secret, text.encode(), hashlib.sha256)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """All keys, the current one last."""

    keys: tuple[SigningKey, ...]
    version: str = ABSENT

    @property
    def current(self) -> SigningKey | None:
        return self.keys[-1] if self.keys else None

    def find(self, key_id: str) -> SigningKey | None:
        return next((key for key in self.keys if key.id == key_id), None)

    def rotated(self, now: Millis, *, forget: bool) -> KeyRing:
        """Return the keys with a new current one, and without those that are not needed any more."""
        ended = [SigningKey(key.id, key.secret, key.ends_at or now + LONGEST_TOKEN) for key in self.keys]
        kept = () if forget else tuple(key for key in ended if key.ends_at is None or key.ends_at > now)
        return KeyRing((*kept, new_key()), self.version)


def new_key() -> SigningKey:
    return SigningKey(secrets.token_hex(ID_BYTES), secrets.token_bytes(SECRET_BYTES))


class SigningKeys:
    """The keys of a store, as this process knows them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ring = KeyRing(())
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def current(self) -> SigningKey:
        """Return the key that signs; make it if there is none. Processes that do so at once get the same one."""
        for _ in range(TRIES):
            ring = await self._fresh()
            if ring.current is not None:
                return ring.current
            await self._write(ring.rotated(self._store.clock.now(), forget=False), None)
        raise conflict()

    async def find(self, key_id: str) -> SigningKey | None:
        """Return a key by its id. One that is not known yet may be new, and made by another process."""
        asked_at = time.monotonic()
        ring = await self._fresh()
        if ring.find(key_id) is None:
            ring = await self._read_after(asked_at)
        return ring.find(key_id)

    async def rotate(self, *, actor: str, reason: str = "", forget: bool = False) -> SigningKey:
        """Sign with a new key from now on. With `forget`, nothing that older keys have signed is valid any more."""
        for _ in range(TRIES):
            ring = (await self._read_after(time.monotonic())).rotated(self._store.clock.now(), forget=forget)
            note = Note(By(actor, reason), "signing_key.rotate", {"key": ring.keys[-1].id, "forget": forget})
            if await self._write(ring, note):
                return ring.keys[-1]
        raise conflict()

    async def _fresh(self) -> KeyRing:
        return await self._read_after(time.monotonic() - FRESH_FOR)

    async def _read_after(self, moment: float) -> KeyRing:
        """Return the keys as they were read later than this moment. However many ask, one at a time reads."""
        async with self._reading:
            if self._read_at <= moment:
                began = time.monotonic()
                self._ring = await self._read()
                self._read_at = began
            return self._ring

    async def _read(self) -> KeyRing:
        documents = await self._store.documents([PLACE])
        if not documents:
            return KeyRing(())
        return KeyRing(tuple(map(from_data, json.loads(documents[0].data)["keys"])), documents[0].version)

    async def _write(self, ring: KeyRing, note: Note | None) -> bool:
        data = json.dumps({"keys": [to_data(key) for key in ring.keys]})
        write = Write(PLACE, data, expected=ring.version)
        (answer,) = await self._store.write([Bundle((write,), note=note)])
        self._read_at = float("-inf")
        return answer is not None


def to_data(key: SigningKey) -> Mapping[str, Any]:
    return {"id": key.id, "secret": key.secret.hex(), "ends_at": key.ends_at}


def from_data(data: Mapping[str, Any]) -> SigningKey:
    return SigningKey(data["id"], bytes.fromhex(data["secret"]), data["ends_at"])


def conflict() -> EditConflict:
    return EditConflict("the signing keys are being changed by other processes; try again")
