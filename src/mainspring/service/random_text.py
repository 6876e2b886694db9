"""Random text for secrets, and the hash of it that a store keeps."""

from __future__ import annotations

import hashlib
import secrets

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def random_digits(length: int) -> str:
    return "".join(secrets.choice(DIGITS) for _ in range(length))


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
