"""Errors: a class for each family of codes, with all that the problem says."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from mainspring.client import errors
from mainspring.client.errors import ServiceError, error_of
from mainspring.errors import MainspringError
from mainspring.service.problems import KINDS

FAMILIES = {
    "invalid_json": errors.InvalidRequest,
    "invalid_cursor": errors.InvalidRequest,
    "unauthorized": errors.Unauthorized,
    "forbidden": errors.Forbidden,
    "not_found": errors.NotFound,
    "method_not_allowed": errors.InvalidRequest,
    "illegal_move": errors.Conflict,
    "duplicate": errors.Conflict,
    "count_moved": errors.Conflict,
    "precondition_failed": errors.PreconditionFailed,
    "body_too_large": errors.InvalidRequest,
    "host_not_allowed": errors.InvalidRequest,
    "invalid_request": errors.InvalidRequest,
    "invalid_payload": errors.InvalidPayload,
    "unknown_task": errors.UnknownTask,
    "idempotency_key_reused": errors.KeyReused,
    "too_many_streams": errors.TooManyRequests,
    "internal_error": errors.ServiceFailed,
    "system_halted": errors.SystemHalted,
    "store_unavailable": errors.ServiceUnavailable,
}


@pytest.mark.parametrize("code", KINDS)
def test_every_code_of_the_service_has_a_class_of_its_own_family(code: str) -> None:
    error = error_of(KINDS[code].status, {"code": code, "detail": "why"})
    assert type(error) is not ServiceError, f"{code}: name its class in OF_CODES or OF_STATUSES"
    if code in FAMILIES:
        assert type(error) is FAMILIES[code]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, errors.NotFound),
        (409, errors.Conflict),
        (418, ServiceError),
        (500, errors.ServiceFailed),
        (599, errors.ServiceFailed),
    ],
)
def test_a_code_that_is_not_known_gets_the_class_of_its_status(status: int, kind: type[ServiceError]) -> None:
    error = error_of(status, {"code": "from_the_future", "detail": "new"})
    assert type(error) is kind
    assert (error.code, error.status, error.detail) == ("from_the_future", status, "new")


def test_an_error_says_everything() -> None:
    lines = [
        {"pointer": "/delay", "code": "greater_than", "detail": "must be above 0", "more": 1},
        {"parameter": "limit", "code": "int_type", "detail": "a number"},
        "odd",
    ]
    problem = {"code": "invalid_request", "detail": "/delay: …", "request_id": "r7", "title": "T", "errors": lines}
    error = error_of(422, problem)
    assert error.errors == (
        errors.FieldProblem("greater_than", "must be above 0", pointer="/delay"),
        errors.FieldProblem("int_type", "a number", parameter="limit"),
    )
    assert (error.request_id, error.title, error.problem) == ("r7", "T", problem)
    assert str(error) == "/delay: … (invalid_request, request r7)"
    assert isinstance(error, MainspringError)
    assert isinstance(error, ValueError)


def test_an_error_says_what_to_do_next() -> None:
    assert "MAINSPRING_TOKEN" in str(error_of(401, {"code": "unauthorized", "detail": "no token"}))
    assert error_of(409, {"code": "count_moved"}).next_step == "count again with dry_run, and confirm the new number"
    assert error_of(409, {"code": "other"}).next_step == ""


@pytest.mark.parametrize("problem", [{}, {"code": None}, {"errors": "x"}, {"detail": 7}, {"nearest": None}])
def test_odd_problems_are_errors_too(problem: dict[str, Any]) -> None:
    for status in (400, 422, 503):
        assert str(error_of(status, problem))


def test_an_error_can_be_pickled() -> None:
    error = error_of(429, {"code": "too_many_streams", "detail": "later", "request_id": "r"}, 30.0)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (type(again), str(again), again.retry_after) == (type(error), str(error), 30.0)


def test_every_error_is_in_the_tree() -> None:
    tree = errors.__doc__ or ""
    own = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ClientError)]
    assert [kind.__name__ for kind in own if kind.__name__ not in tree] == []
    import mainspring.client

    assert [kind.__name__ for kind in own if kind.__name__ not in mainspring.client.__all__] == []
