"""Find keys, region and endpoint as every AWS SDK does, without blocking the event loop; and sign requests.

The signature is AWS Signature Version 4, for the only kind of request that DynamoDB needs, a POST to "/". botocore can
sign every kind of request, but is slower.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import botocore.exceptions  # type: ignore[import-untyped]
import botocore.session  # type: ignore[import-untyped]

from mainspring.errors import ConfigurationError, StoreUnavailable

CONTENT_TYPE = "application/x-amz-json-1.0"
LOOK_EVERY = 60.0  # seconds; botocore renews credentials that expire within 15 minutes
DOMAINS = {
    "aws-cn": "amazonaws.com.cn",
    "aws-eusc": "amazonaws.eu",
    "aws-iso": "c2s.ic.gov",
    "aws-iso-b": "sc2s.sgov.gov",
}
NO_KEYS = (
    "no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, "
    "log in with `aws sso login`, or give this machine or container a role"
)


@dataclass(frozen=True, slots=True)
class Keys:
    """The credentials that sign a request."""

    access: str
    secret: str
    session: str | None = None


class Credentials:
    """Credentials from the environment, a profile, SSO, the container or the instance. A thread renews them in time."""

    def __init__(self, profile: str | None = None) -> None:
        self._session = botocore.session.Session(profile=profile)
        self._found: Any = None
        self._keys: Keys | None = None
        self._look_at = 0.0
        self._renewing = threading.Lock()

    async def keys(self, *, renew: bool = False) -> Keys:
        """Return the keys, at once if they are known. Those that expire soon are renewed in the background."""
        if self._keys is None or renew:
            self._keys = await asyncio.to_thread(self._look, renew=renew)
        elif time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_EVERY
            asyncio.get_running_loop().run_in_executor(None, self._renew)
        return self._keys

    @property
    def known(self) -> Keys:
        """The keys of the last call; raises ConfigurationError if there was none."""
        if self._keys is None:
            raise ConfigurationError(NO_KEYS)
        return self._keys

    def _renew(self) -> None:
        if self._renewing.acquire(blocking=False):
            try:
                self._keys = self._look()
            except (ConfigurationError, StoreUnavailable):
                self._look_at = 0.0  # the old keys may still be valid; the next call tries again
            finally:
                self._renewing.release()

    def _look(self, *, renew: bool = False) -> Keys:
        try:
            if self._found is None or renew:
                self._found = self._session.get_credentials()
            if self._found is None:
                raise ConfigurationError(NO_KEYS)
            frozen = self._found.get_frozen_credentials()
        except botocore.exceptions.ProfileNotFound as error:
            raise ConfigurationError(str(error)) from error
        except botocore.exceptions.BotoCoreError as error:
            msg = f"cannot get AWS credentials now: {error}"
            raise StoreUnavailable(msg) from error
        self._look_at = time.monotonic() + LOOK_EVERY
        return Keys(frozen.access_key, frozen.secret_key, frozen.token)

    def region(self) -> str:
        try:
            region: str | None = self._session.get_config_variable("region")
        except botocore.exceptions.ProfileNotFound as error:
            raise ConfigurationError(str(error)) from error
        if not region:
            msg = "no AWS region: write dynamodb://table?region=eu-central-1, or set AWS_REGION"
            raise ConfigurationError(msg)
        return region

    def endpoint(self, region: str) -> str:
        named = os.environ.get("AWS_ENDPOINT_URL_DYNAMODB") or os.environ.get("AWS_ENDPOINT_URL")
        if named:
            return named
        try:
            partition = self._session.get_partition_for_region(region)
        except botocore.exceptions.BotoCoreError:  # a region newer than botocore, most likely in the largest partition
            partition = "aws"
        return f"https://dynamodb.{region}.{DOMAINS.get(partition, 'amazonaws.com')}"


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
