"""AWS Signature Version 4 for the only kind of request that DynamoDB needs, a POST to "/".

botocore can sign every kind of request, but is slower.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime

CONTENT_TYPE = "application/x-amz-json-1.0"


@dataclass(frozen=True, slots=True)
class Keys:
    """The credentials that sign a request."""

    access: str
    secret: str
    session: str | None = None


class Signer:
    def __init__(self, region: str, host: str) -> None:
        self._region = region
        self._host = host
        self._derived: tuple[str, str, bytes] = ("", "", b"")  # day, secret, and the signing key derived from them

    def headers(self, keys: Keys, target: str, body: bytes, at: datetime) -> dict[str, str]:
        """Return all headers of a request."""
        moment = at.strftime("%Y%m%dT%H%M%SZ")
        headers = {"content-type": CONTENT_TYPE, "host": self._host, "x-amz-date": moment}
        if keys.session:
            headers["x-amz-security-token"] = keys.session
        headers["x-amz-target"] = target
        signed = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        canonical = f"POST\n/\n\n{lines}\n{signed}\n{hashlib.sha256(body).hexdigest()}"
        scope = f"{moment[:8]}/{self._region}/dynamodb/aws4_request"
        to_sign = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.new(self._key(keys.secret, moment[:8]), to_sign.encode(), hashlib.sha256).hexdigest()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope}, SignedHeaders={signed}, Signature={signature}"
        )
        return headers

    def _key(self, secret: str, day: str) -> bytes:
        """Return the signing key, which is the same for a whole day."""
        if self._derived[:2] == (day, secret):
            return self._derived[2]
        key = f"AWS4{secret}".encode()
        for part in (day, self._region, "dynamodb", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        self._derived = (day, secret, key)
        return key
