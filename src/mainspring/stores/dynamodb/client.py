"""Signed calls of DynamoDB's API. They are retried while that can help, within a budget, and counted.

What a caller sees:

    ConditionFailed      a condition of a write did not hold; has the current item
    Cancelled            a condition of a transaction did not hold; has a reason per action
    StoreBusy            throttled, or in conflict with other writes, for longer than the budget
    StoreUnavailable     no connection or no answer; the request may have taken effect all the same
    StoreError           retrying will not help

A write that is retried after a lost answer can meet its own effect as a `ConditionFailed`. Callers recognise their own
writes by what they wrote (see `claims` and `acks`). Transactions carry a token by which the service recognises them.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import aiohttp

from mainspring.errors import ConfigurationError, StoreBusy, StoreError, StoreReadOnly, StoreUnavailable
from mainspring.log import get_log
from mainspring.stores.dynamodb.credentials import Credentials, Signer

log = get_log("mainspring.dynamodb")

MAX_CALL_SECONDS = 15.0  # with all retries
MAX_TRY_SECONDS = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.025, 1.0  # seconds
LARGE_REQUEST = 2**20  # bytes; sending more at once would block the event loop
MAX_CONNECTIONS = 64  # per event loop; a caller that needs another one waits
IDLE_TIMEOUT = 60.0  # seconds after which an idle connection is closed
QUIET_PERIOD = 10.0  # seconds without a refusal after which throttling has ended
LOG_EVERY = 10.0  # seconds between two log lines about setbacks

THROTTLED = frozenset(
    {
        "ProvisionedThroughputExceededException", "ProvisionedThroughputExceeded", "ThrottlingException",
        "ThrottlingError", "RequestLimitExceeded", "LimitExceededException",
    }
)  # fmt: skip
CONFLICTS = frozenset({"TransactionConflictException", "TransactionConflict", "TransactionInProgressException"})
STALE_KEYS = frozenset({"ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException"})

Item = dict[str, Any]  # attribute values in the API's form


class TableMissing(StoreError):
    """The table does not exist."""


class TableExists(StoreError):
    """The table that should be created exists, or something else is done to it."""


class ConditionFailed(Exception):
    def __init__(self, item: Item | None) -> None:
        super().__init__("a condition did not hold")
        self.item = item


class Cancelled(Exception):
    def __init__(self, reasons: list[Mapping[str, Any]]) -> None:
        super().__init__(f"a transaction was cancelled: {[reason.get('Code') for reason in reasons]}")
        self.reasons = reasons

    def failed(self, number: int) -> bool:
        return number < len(self.reasons) and self.reasons[number].get("Code") == "ConditionalCheckFailed"

    def item(self, number: int) -> Item | None:
        return self.reasons[number].get("Item") if number < len(self.reasons) else None


@dataclass(slots=True)
class Setback(Exception):
    """A try that failed, and the error to raise if it was the last one."""

    kind: str
    final_error: StoreError


class Client:
    def __init__(
        self, region: str | None = None, endpoint: str | None = None, profile: str | None = None, *,
        budget: float = MAX_CALL_SECONDS, timeout: float = MAX_TRY_SECONDS,
    ) -> None:  # fmt: skip
        self._credentials = Credentials(profile)
        self.region = region or self._credentials.region()
        self.endpoint = checked_endpoint(endpoint or self._credentials.endpoint(self.region))
        self._signer = Signer(self.region, urlsplit(self.endpoint).netloc)
        self._sessions = Sessions(timeout)
        self._budget = budget
        self.tally: Counter[str] = Counter()  # calls, and setbacks by kind: throttled, conflict, server, network
        self.throttling = Throttling()
        self.waited = 0.0  # seconds of pauses before retries
        self.units: Counter[str] | None = None  # set it to a Counter to sum up the consumed capacity
        self._logged_at = -LOG_EVERY

    async def close(self) -> None:
        await self._sessions.close()

    async def call(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if self.units is not None and operation in COSTS:
            request = {**request, "ReturnConsumedCapacity": "TOTAL"}
        body = json.dumps(request, separators=(",", ":")).encode()
        ends = time.monotonic() + self._budget
        pause = FIRST_PAUSE
        while True:
            self.tally["calls"] += 1
            try:
                answer = await self._try(operation, body)
            except Setback as setback:
                wait = random.uniform(0, pause)  # noqa: S311 - full jitter: spreads out calls that conflicted
                self._note(operation, setback)
                if time.monotonic() + wait > ends:
                    raise setback.final_error from setback.__cause__
                await self.back_off(wait)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self.throttling.passed()
                if self.units is not None:
                    self._add_up(operation, answer)
                return answer

    def call_now(self, operation: str, request: Mapping[str, Any], ends: float) -> None:
        """Send a request once, from code without an event loop. Raise if it has no good answer by about then.

        The time to look up the name of the host comes on top: no timeout applies to that. So if the time is over, this
        raises at once, and several requests are late by one look-up at most.
        """
        if (seconds := ends - time.monotonic()) <= 0:
            msg = "no time is left for this request"
            raise TimeoutError(msg)
        body = json.dumps(request, separators=(",", ":")).encode()
        keys, target = self._credentials.known, f"DynamoDB_20120810.{operation}"
        asked = Request(self.endpoint, body, self._signer.headers(keys, target, body, datetime.now(UTC)))  # noqa: S310
        without_proxy = build_opener(ProxyHandler({}))  # as for all other calls
        with without_proxy.open(asked, timeout=seconds) as answer:
            answer.read()

    async def back_off(self, seconds: float) -> None:
        self.waited += seconds
        await asyncio.sleep(seconds)

    def left_over(self, operation: str, number: int) -> None:
        """Record that the service throttled: it processed only a part of a batch request."""
        self.tally["throttled"] += 1
        self.tally["unprocessed"] += number
        self.throttling.met(operation, f"{number} items of a batch request were left over")

    def measures(self) -> dict[str, float]:
        """Return the numbers of this process since it started; see docs/dynamodb.md."""
        counted = {
            "calls": "calls", "throttled": "throttled", "unprocessed": "unprocessed", "conflicts": "conflict",
            "server_errors": "server", "unanswered": "network",
        }  # fmt: skip
        numbers = {name: float(self.tally[kind]) for name, kind in counted.items()}
        return numbers | {"waited_seconds": round(self.waited, 3), "throttling": float(self.throttling.now)}

    def _note(self, operation: str, setback: Setback) -> None:
        self.tally[setback.kind] += 1
        if setback.kind == "throttled":
            self.throttling.met(operation, str(setback.final_error))
            return
        if setback.kind == "conflict" or time.monotonic() - self._logged_at < LOG_EVERY:
            return
        self._logged_at = time.monotonic()
        log.warning("dynamodb_setback", kind=setback.kind, operation=operation, error=str(setback.final_error),
                    so_far=self.tally[setback.kind])  # fmt: skip

    async def _try(self, operation: str, body: bytes) -> dict[str, Any]:
        status, text = await self._send(operation, body)
        if status == 200:
            answer: dict[str, Any] = json.loads(text)
            return answer
        problem = parsed(text)
        code = str(problem.get("__type", "")).rpartition("#")[2]
        if code in STALE_KEYS and "Expired" in code:
            await self._credentials.keys(renew=True)
            raise Setback(
                kind="expired", final_error=StoreUnavailable(f"AWS credentials have expired: {words(problem)}")
            )
        raise explain(status, code, problem)

    async def _send(self, operation: str, body: bytes) -> tuple[int, bytes]:
        keys = await self._credentials.keys()
        headers = self._signer.headers(keys, f"DynamoDB_20120810.{operation}", body, datetime.now(UTC))
        data = body if len(body) <= LARGE_REQUEST else io.BytesIO(body)  # aiohttp sends a stream in small parts
        try:
            async with self._sessions.mine().post(self.endpoint, data=data, headers=headers) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            final = StoreUnavailable(f"DynamoDB at {self.endpoint} gave no answer: {reason}")
            raise Setback(kind="network", final_error=final) from error

    def _add_up(self, operation: str, answer: Mapping[str, Any]) -> None:
        assert self.units is not None  # noqa: S101 - for the type checker
        given = answer.get("ConsumedCapacity") or []
        for used in given if isinstance(given, list) else [given]:
            self.units["write" if COSTS[operation] else "read"] += float(used.get("CapacityUnits", 0))  # type: ignore[assignment]


COSTS = {  # operation: whether it writes
    "PutItem": True, "UpdateItem": True, "DeleteItem": True, "BatchWriteItem": True, "TransactWriteItems": True,
    "BatchExecuteStatement": True,
    "GetItem": False, "Query": False, "BatchGetItem": False, "Scan": False,
}  # fmt: skip


class Throttling:
    """Tracks whether the service throttles this process. Logs once when it begins and once when it ends."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began = self._last = 0.0
        self._refused = 0  # since it began
        self.now = False

    def met(self, operation: str, words: str) -> None:
        """Record that a call, or a part of one, was throttled."""
        self._last = self._monotonic()
        self._refused += 1
        if not self.now:
            self.now, self._began, self._refused = True, self._last, 1
            log.warning("dynamodb_throttled", operation=operation, error=words)

    def passed(self) -> None:
        """Record that a call succeeded."""
        if self.now and self._monotonic() - self._last >= QUIET_PERIOD:
            self.now = False
            lasted = round(self._last - self._began, 3)
            log.info("dynamodb_throttling_over", lasted=lasted, refused=self._refused)


class Sessions:
    """HTTP connections: a pool per event loop, because a connection belongs to the loop that opened it."""

    def __init__(self, timeout: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._by_loop: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}

    def mine(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._by_loop.get(loop)
        if session is None:
            self._drop_ended_loops()
            session = self._by_loop[loop] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=IDLE_TIMEOUT),
                timeout=self._timeout,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return session

    async def close(self) -> None:
        here = self._by_loop.pop(asyncio.get_running_loop(), None)
        if here is not None:
            await here.close()
        self._drop_ended_loops()

    def _drop_ended_loops(self) -> None:
        for loop in [loop for loop in list(self._by_loop) if loop.is_closed()]:
            abandon(self._by_loop.pop(loop))


def abandon(session: aiohttp.ClientSession) -> None:
    """Close the sockets of a session whose loop has ended without closing it, as the loop of a thread does."""
    connector = session.connector
    if connector is None or connector.closed:
        return
    waiting: dict[Any, Any] = getattr(connector, "_conns", {})
    for protocol, *_ in [entry for entries in waiting.values() for entry in entries]:
        transport = getattr(protocol, "transport", None)
        with contextlib.suppress(Exception):
            transport._call_connection_lost(None)  # type: ignore[union-attr]  # noqa: SLF001 - close() needs its loop
    waiting.clear()
    session.detach()
    with contextlib.suppress(Exception):
        connector._closed = True  # noqa: SLF001 - close() would use the ended loop


# -- errors ---------------------------------------------------------------------------------------------


def explain(status: int, code: str, problem: Mapping[str, Any]) -> Exception:
    if code == "ConditionalCheckFailedException":
        return ConditionFailed(problem.get("Item"))
    if code == "TransactionCanceledException":
        return explain_cancelled(problem)
    return explain_setback(status, {code}, problem) or explain_error(status, code, problem)


def explain_setback(status: int, codes: Collection[str], problem: Mapping[str, Any]) -> Setback | None:
    """Return a setback if a retry may help."""
    if not THROTTLED.isdisjoint(codes):
        return Setback("throttled", StoreBusy(f"DynamoDB throttles: {words(problem)}"))
    if not CONFLICTS.isdisjoint(codes):
        return Setback("conflict", StoreBusy(f"other transactions were in the way: {words(problem)}"))
    if status >= 500:
        return Setback("server", StoreUnavailable(f"DynamoDB answered {status}: {words(problem)}"))
    return None


def explain_error(status: int, code: str, problem: Mapping[str, Any]) -> StoreError:
    if code == "ResourceNotFoundException":
        return TableMissing(f"the table does not exist; run `mainspring migrate` ({words(problem)})")
    if code == "ResourceInUseException":
        return TableExists(words(problem))
    if code in {"AccessDeniedException", "UnrecognizedClientException", "MissingAuthenticationTokenException"}:
        return StoreReadOnly(f"these AWS credentials may not do that: {words(problem)}")
    return StoreError(f"{code or status}: {words(problem)}")


def explain_cancelled(problem: Mapping[str, Any]) -> Exception:
    """Explain a cancelled transaction. A failed condition is an answer; any other reason may pass."""
    reasons = problem.get("CancellationReasons") or []
    codes = [str(reason.get("Code") or "None") for reason in reasons]
    if "ConditionalCheckFailed" in codes:
        return Cancelled(reasons)
    return explain_setback(400, codes, problem) or StoreError(words(problem))


def parsed(text: bytes) -> dict[str, Any]:
    try:
        problem = json.loads(text)
    except ValueError:
        problem = None
    return problem if isinstance(problem, dict) else {"message": text[:200].decode("utf-8", "replace")}


def words(problem: Mapping[str, Any]) -> str:
    return " ".join(str(problem.get("message") or problem.get("Message") or problem.get("__type") or "?").split())


def checked_endpoint(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/") or parts.query:
        msg = f"{endpoint!r} is not an endpoint; write endpoint=https://host or endpoint=http://host:port"
        raise ConfigurationError(msg)
    return f"{parts.scheme}://{parts.netloc}/"
