"""Speaks JSON over HTTP with the systems outside."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen


async def post(url: str, document: Any, *, key: str, timeout: float) -> None:
    """Send a document with an idempotency key: the receiver accepts it once, however often it comes.

    Raise an error unless the status is a success. The body of the answer has no meaning: many receivers answer with
    204, or with the word "ok". To refuse that would send the same document again and again.
    """
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    await asyncio.to_thread(send, Request(url, json.dumps(document).encode(), headers), timeout)  # noqa: S310 - a setting


async def get(url: str, *, timeout: float) -> Any:
    """Return the JSON at a URL. Raise an error if there is none."""
    return json.loads(await asyncio.to_thread(send, Request(url), timeout))  # noqa: S310 - a setting


def send(request: Request, timeout: float) -> bytes:
    try:
        with urlopen(request, timeout=timeout) as answer:  # noqa: S310 - a setting
            body: bytes = answer.read()
            return body
    except HTTPError as error:
        error.close()  # it holds the connection
        raise
