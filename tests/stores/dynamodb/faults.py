"""A client whose calls go wrong on purpose, before or after the service has done what was asked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any

from examples.dynamodb_server import REGION
from mainspring.errors import StoreUnavailable
from mainspring.stores.dynamodb.client import Setback
from tests.dynamodb import endpoint
from tests.dynamodb_rules import StrictClient


class Fault(Enum):
    LOST_BEFORE = "the request never arrives"
    LOST_AFTER = "it is done, but the answer never comes"
    THROTTLED = "too many requests"
    CONFLICT = "another transaction is in the way"
    BROKEN = "the service answers 500"


ANSWERS = {
    Fault.THROTTLED: (400, {"__type": "x#ProvisionedThroughputExceededException", "message": "slow down"}),
    Fault.CONFLICT: (400, {"__type": "x#TransactionConflictException", "message": "another was quicker"}),
    Fault.BROKEN: (500, {"__type": "x#InternalServerError", "message": "sorry"}),
}
CONFLICT_WITHIN = {
    "__type": "x#TransactionCanceledException",
    "message": "Transaction cancelled",
    "CancellationReasons": [{"Code": "None"}, {"Code": "TransactionConflict"}],
}

Plan = Callable[[str, dict[str, Any]], Fault | None]


def no_fault(operation: str, request: dict[str, Any]) -> None:
    """For when all is to be well."""


class FaultyClient(StrictClient):
    def __init__(self, plan: Plan = no_fault, *, budget: float = 15.0) -> None:
        super().__init__(REGION, endpoint(), budget=budget)
        self.plan = plan
        self.met: Counter[Fault] = Counter()

    async def _send(self, operation: str, body: bytes) -> tuple[int, bytes]:
        fault = self.plan(operation, json.loads(body))
        if fault is None:
            return await super()._send(operation, body)
        self.met[fault] += 1
        if fault in ANSWERS:
            status, problem = ANSWERS[fault]
            within = fault is Fault.CONFLICT and operation == "TransactWriteItems"
            return status, json.dumps(CONFLICT_WITHIN if within else problem).encode()
        if fault is Fault.LOST_AFTER:
            await super()._send(operation, body)
        raise Setback("network", StoreUnavailable(fault.value))


def once(fault: Fault, operation: str, times: int = 1) -> Plan:
    """The first so many calls of that operation, but for counts: they are written beside the work, at any time."""
    left = [times]

    def plan(called: str, request: dict[str, Any]) -> Fault | None:
        counts = request.get("Key", {}).get("PK", {}).get("S", "").startswith("counts#")
        if called != operation or counts or not left[0]:
            return None
        left[0] -= 1
        return fault

    return plan
