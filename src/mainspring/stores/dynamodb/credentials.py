"""Find keys, region and endpoint as every AWS SDK does, without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import botocore.exceptions  # type: ignore[import-untyped]
import botocore.session  # type: ignore[import-untyped]

from mainspring.errors import ConfigurationError, StoreUnavailable
from mainspring.stores.dynamodb.signing import Keys

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
