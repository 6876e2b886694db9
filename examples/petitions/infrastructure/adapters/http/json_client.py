"""Speaks JSON over HTTP with the systems outside."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Mapping
from typing import Any


def call(url: str, document: Any = None, headers: Mapping[str, str] | None = None, *, timeout: float) -> Any:
    """Send a document by POST, or GET without one. Return the answer's JSON; raise OSError for every failure."""
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **(headers or {})})  # noqa: S310
    with urllib.request.urlopen(request, timeout=timeout) as response:  # noqa: S310
        return json.load(response)


async def post(url: str, document: Any, *, key: str, timeout: float) -> None:
    """Send a document with an idempotency key: the receiver accepts it once, however often it comes."""
    await asyncio.to_thread(call, url, document, {"Idempotency-Key": key}, timeout=timeout)


async def get(url: str, *, timeout: float) -> Any:
    return await asyncio.to_thread(call, url, timeout=timeout)
