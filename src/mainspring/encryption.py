"""Encryption at rest: keys, and values that only a process with the key can read.

A sealed value is text: `v1.<key id>.<nonce, ciphertext and tag as base64>`, by AES-256-GCM. What it belongs to, such as
a job's id and the field, is authenticated with it. So a value that is moved to another job or field cannot be opened.

JSON stays JSON: a sealed payload is `{"$encrypted":"v1.…"}`, which every store takes wherever it takes the payload.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from mainspring.errors import ConfigurationError

KEYS = "MAINSPRING_ENCRYPTION_KEYS"  # in the environment: `2027:base64,2026:base64`, the active key first
KEYS_FILE = "MAINSPRING_ENCRYPTION_KEYS_FILE"  # a file that has the same, a key in each line
KEY_BYTES = 32
NONCE_BYTES = 12
KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
FIELD = "$encrypted"
PREFIX = f'{{"{FIELD}":"v1.'
SEALED = re.compile(r"v1\.([A-Za-z0-9_-]{1,40})\.([A-Za-z0-9+/]+={0,2})")
EXAMPLE = "mainspring keys generate"


class Unreadable(Exception):
    """A value was sealed with a key that this process does not have, or it was changed."""

    def __init__(self, message: str, key: str = "unknown") -> None:
        super().__init__(message)
        self.key = key  # the id of the key that it needs


class Keys:
    """A key ring: `Keys({"2027": "base64…", "2026": "base64…"}, active="2027")`.

    New values are sealed with the active key, by default the first one. The others are for reading.
    """

    def __init__(self, keys: Mapping[str, str | bytes], active: str | None = None) -> None:
        if not keys:
            msg = f"give at least one key; make one with: {EXAMPLE}"
            raise ConfigurationError(msg)
        self._keys = {check_id(name): key_of(name, given) for name, given in keys.items()}
        self.active = next(iter(self._keys)) if active is None else active
        if self.active not in self._keys:
            msg = f"the active key {self.active!r} is not among the keys: {', '.join(self._keys)}"
            raise ConfigurationError(msg)

    def __repr__(self) -> str:
        return f"<Keys {', '.join(self._keys)}; active: {self.active}>"

    def __reduce__(self) -> Any:
        msg = "keys are not pickled, so that they do not reach a file or another process by accident"
        raise TypeError(msg)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    @classmethod
    def from_environment(cls) -> Keys | None:
        """Return the keys that the environment names, directly or by a file; None if it names none."""
        if text := os.environ.get(KEYS):
            return cls.parse(text, KEYS)
        if path := os.environ.get(KEYS_FILE):
            try:
                return cls.parse(Path(path).read_text("utf-8"), path)
            except (OSError, UnicodeDecodeError) as error:
                msg = f"cannot read the keys in {path} ({KEYS_FILE}): {error}"
                raise ConfigurationError(msg) from None
        return None

    @classmethod
    def parse(cls, text: str, source: str) -> Keys:
        """Return the keys in a text: `id:base64`, separated by commas or lines. Errors never show a key."""
        found: dict[str, str] = {}
        for number, part in enumerate(filter(None, re.split(r"[,\s]+", text)), 1):
            name, colon, key = part.partition(":")
            if not colon or name in found:
                why = f"the id {name!r} is there twice" if colon else "it has no colon"
                msg = f"key {number} of {source} is wrong: {why}; write id:base64, the active key first"
                raise ConfigurationError(msg)
            found[name] = key
        return cls(found)

    # -- values -------------------------------------------------------------------------------------

    @cached_property
    def _ciphers(self) -> Mapping[str, Any]:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an optional extra
        except ModuleNotFoundError as error:
            msg = f"encryption needs {error.name}; install mainspring[encryption]"
            raise ConfigurationError(msg) from error
        return {name: AESGCM(key) for name, key in self._keys.items()}

    def seal(self, text: str, *about: str) -> str:
        """Return a text that only `open` can read, given the same words about it."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._ciphers[self.active].encrypt(nonce, text.encode(), bound_to(about))
        return f"v1.{self.active}.{base64.b64encode(nonce + sealed).decode()}"

    def open(self, sealed: str, *about: str) -> str:
        """Return the text. Raise Unreadable if there is no such key, or if the value is not what was sealed."""
        match = SEALED.fullmatch(sealed)
        cipher = None if match is None else self._ciphers.get(match[1])
        if match is None or cipher is None:
            msg = "its key is not here" if match else "it is not a sealed value"
            raise Unreadable(msg, match[1] if match else "unknown")
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - as above

        try:
            raw = base64.b64decode(match[2])
            opened: bytes = cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], bound_to(about))
        except (InvalidTag, ValueError):
            msg = "it was changed, or belongs to something else"
            raise Unreadable(msg, match[1]) from None
        return opened.decode()

    def seal_json(self, text: str, *about: str) -> str:
        return f'{{"{FIELD}":"{self.seal(text, *about)}"}}'

    def open_json(self, text: str, *about: str) -> str:
        """Return the JSON text that was sealed; any other text as it is."""
        return self.open(text[len(FIELD) + 5 : -2], *about) if is_sealed(text) else text


def bound_to(about: tuple[str, ...]) -> bytes:
    """Return what a value is about as bytes, without a way to read two lists of words as the same."""
    return b"".join(len(word.encode()).to_bytes(4) + word.encode() for word in about)


def is_sealed(text: str) -> bool:
    """Return whether a JSON text is a sealed value."""
    return text.startswith(PREFIX)


def key_in(text: str) -> str | None:
    """Return the id of the key with which a JSON text was sealed; None if it was not."""
    match = SEALED.match(text, len(FIELD) + 5) if is_sealed(text) else None
    return None if match is None else match[1]


def sealed_in(value: Any) -> str | None:
    """Return the sealed value in decoded JSON; None if it is anything else."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(sealed := value.get(FIELD), str):
        return sealed if SEALED.fullmatch(sealed) else None
    return None


def check_id(name: object) -> str:
    if not isinstance(name, str) or not KEY_ID.fullmatch(name):
        msg = f"{name!r} cannot be the id of a key; use up to 40 letters, digits, - and _, such as 2027-01"
        raise ConfigurationError(msg)
    return name


def key_of(name: str, given: str | bytes) -> bytes:
    """Return the bytes of a key. Errors say how long it is, and never show it."""
    try:
        key = given if isinstance(given, bytes) else base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        msg = f"key {name!r} is not base64; make one with: {EXAMPLE}"
        raise ConfigurationError(msg) from None
    if len(key) != KEY_BYTES:
        msg = f"key {name!r} has {len(key)} bytes, not {KEY_BYTES}; make one with: {EXAMPLE}"
        raise ConfigurationError(msg)
    return key


def new_key() -> str:
    """Return a new key as base64."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
