"""Signatures of Standard Webhooks (standardwebhooks.com): of what Mainspring sends, and of what you receive.

secret = new_secret()                                          whsec_…
headers = signed(body, [secret], "msg_1", timestamp)           webhook-id, webhook-timestamp, webhook-signature
verify(body, request.headers, [secret])                        raises InvalidSignature

To change a secret, sign with the new and the old one for a while: a receiver accepts a request if any of its signatures
fits any of its secrets.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets as randomness
import time
from collections.abc import Iterable, Mapping, Sequence

from mainspring.errors import ConfigurationError, InvalidSignature

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
PREFIX = "whsec_"
VERSION = "v1"
SHORTEST_KEY, LONGEST_KEY = 24, 64  # bytes, as the specification asks for
NEW_KEY = 32  # bytes
TOLERANCE = 300.0  # seconds that the sender's clock may differ from ours
MOST_SIGNATURES = 20  # that are looked at; a request with more is not from an honest sender
IS_ID = re.compile(r"[!-\-/-~]{1,256}").fullmatch  # printable ASCII without a full stop, which ends the id in the text
IS_TIME = re.compile(r"[0-9]{1,12}").fullmatch


def new_secret() -> str:
    return PREFIX + base64.b64encode(randomness.token_bytes(NEW_KEY)).decode()


def key_of(secret: str) -> bytes:
    """Return the key of a secret; raise ConfigurationError if it is not one."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        msg = (
            f"a secret of a webhook is {PREFIX} and the Base64 of {SHORTEST_KEY} to {LONGEST_KEY} bytes; make one with"
            " mainspring.webhooks.new_secret()"
        )
        raise ConfigurationError(msg)
    return key


def signature(body: bytes, secret: str, message_id: str, timestamp: int) -> str:
    """Return one signature, such as `v1,K5oZfzN9…`."""
    if not IS_ID(message_id):
        msg = f"the id of a webhook is up to 256 printable ASCII characters without a full stop, not {message_id!r}"
        raise ConfigurationError(msg)
    text = f"{message_id}.{timestamp}.".encode() + body
    return f"{VERSION},{base64.b64encode(hmac.digest(key_of(secret), text, hashlib.sha256)).decode()}"


def signed(body: bytes, secrets: Sequence[str], message_id: str, timestamp: int) -> dict[str, str]:
    """Return the headers of a request that is signed with each of the secrets."""
    signatures = [signature(body, secret, message_id, timestamp) for secret in secrets]
    return {ID: message_id, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(signatures)}


def verify(
    body: bytes,
    headers: Mapping[str, str],
    secrets: Iterable[str],
    *,
    tolerance: float = TOLERANCE,
    now: float | None = None,
) -> str:
    """Return the id of a signed request; raise InvalidSignature if its signature or its time is wrong.

    `body` are the bytes as they came, not JSON that was read and written again. To process a request once, remember
    the id for longer than `tolerance`: a request that was not answered is sent again with the same id.
    """
    given = {name.lower(): value for name, value in headers.items()}
    missing = [name for name in (ID, TIMESTAMP, SIGNATURE) if not given.get(name)]
    if missing:
        msg = f"the request is not signed: it has no header {', '.join(missing)}"
        raise InvalidSignature(msg)
    message_id, moment = given[ID], given[TIMESTAMP]
    if not IS_ID(message_id) or not IS_TIME(moment):
        msg = f"{ID} or {TIMESTAMP} is not in the form of Standard Webhooks"
        raise InvalidSignature(msg)
    sent = given[SIGNATURE].split()[:MOST_SIGNATURES]
    if not fits(sent, [signature(body, secret, message_id, int(moment)) for secret in secrets]):
        msg = "no signature of the request fits; compare the secrets, and pass the body as it came"
        raise InvalidSignature(msg)
    refuse_stale(int(moment), time.time() if now is None else now, tolerance)
    return message_id


def fits(sent: Iterable[str], expected: Sequence[str]) -> bool:
    """Return whether one of the signatures is expected. All are compared, so that the time taken tells nothing."""
    found = False
    for one in sent:
        for other in expected:
            found |= hmac.compare_digest(one.encode(), other.encode())
    return found


def refuse_stale(timestamp: int, now: float, tolerance: float) -> None:
    """Raise if the request is too old, and may be repeated by someone who recorded it, or is from the future."""
    if abs(now - timestamp) > tolerance:
        msg = f"the request was signed {now - timestamp:.0f} s ago; at most {tolerance:g} s either way are accepted"
        raise InvalidSignature(msg)
