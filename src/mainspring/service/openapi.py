"""The OpenAPI document: FastAPI's, with the routes that are not FastAPI's, the errors and the tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version as version_of
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from mainspring.service import leases, views
from mainspring.service.answers import leases as answers
from mainspring.service.bodies import BulkBody, NewJobBody
from mainspring.service.guard import OPEN_PATHS
from mainspring.service.problems import CONTENT_TYPE
from mainspring.service.replay import KeyKind
from mainspring.service.requests import KEY_OF, PROJECTS, SCOPE_OF
from mainspring.service.tokens import Scope

REF = "#/components/schemas/{model}"
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": '^("[!#-~]{1,255}"|[!#-~]{1,255})$'},
    "description": "A request that is repeated with the same key within 24 hours has its effect once.",
}
DOCUMENT: dict[str, Any] = {}  # empty until it is asked for
TOKEN = {"type": "http", "scheme": "bearer", "description": "a token: msk_…"}


def version() -> str:
    return version_of("mainspring")


def describe(api: FastAPI) -> None:
    """Let the application answer with our document.

    It is made at the first request for it, once for all applications of a process: they have the same routes.
    """
    make = api.openapi

    def completed() -> dict[str, Any]:
        if not DOCUMENT:
            DOCUMENT.update(complete(make()))
        return DOCUMENT

    api.openapi = completed  # type: ignore[method-assign] # as FastAPI documents it


@dataclass(frozen=True, slots=True)
class Raw:
    """A route that is not FastAPI's."""

    path: str
    summary: str
    body: type[BaseModel]
    answers: Mapping[int, type[BaseModel]]
    scope: Scope
    tag: str
    key: KeyKind = KeyKind.OWN

    def operation(self) -> dict[str, Any]:
        return {
            "summary": self.summary,
            "description": self.body.__doc__,
            "tags": [self.tag],
            "operationId": self.summary.lower().replace(" ", "_"),
            SCOPE_OF: self.scope.value,
            PROJECTS: True,
            KEY_OF: self.key.value,
            "parameters": [],
            "requestBody": {"required": True, "content": json_of(self.body)},
            "responses": {
                str(status): {"description": model.__doc__ or "done", "content": json_of(model)}
                for status, model in self.answers.items()
            },
        }


def json_of(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}


RAW = (
    Raw(
        "/v1/jobs", "Enqueue a job", NewJobBody, {201: views.EnqueuedView, 200: views.EnqueuedView}, Scope.ENQUEUE,
        "jobs",
    ),
    Raw("/v1/jobs:bulk", "Enqueue many jobs", BulkBody, {200: views.BulkEnqueued}, Scope.ENQUEUE, "jobs"),
    Raw("/v1/leases", "Claim jobs", leases.ClaimBody, {200: answers.ClaimView}, Scope.LEASE, "leases", KeyKind.CLAIM),
    Raw(
        "/v1/leases:report", "Report about jobs", leases.ReportBody, {200: answers.ReportView}, Scope.LEASE, "leases",
        KeyKind.REPEATABLE,
    ),
    Raw(
        "/v1/leases:leave", "Leave", leases.LeaveBody, {200: answers.LeftView}, Scope.LEASE, "leases",
        KeyKind.REPEATABLE,
    ),
)  # fmt: skip


def complete(document: dict[str, Any]) -> dict[str, Any]:
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(schemas_of_raw())
    components["securitySchemes"] = {"token": TOKEN}
    paths = document["paths"]
    for route in RAW:
        paths.setdefault(route.path, {})["post"] = route.operation()
    for path, operations in paths.items():
        for method, operation in operations.items():
            add_errors(path, operation)
            if method == "post":
                operation.setdefault("parameters", []).append(IDEMPOTENCY_KEY)
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    return document


def schemas_of_raw() -> dict[str, Any]:
    """Return the schemas of the models that FastAPI does not see."""
    bodies = [(route.body, "validation") for route in RAW]
    answers = [(model, "serialization") for route in RAW for model in route.answers.values()]
    models: Any = dict.fromkeys([*bodies, *answers, (views.ProblemView, "serialization")])
    _, definitions = models_json_schema(list(models), ref_template=REF)
    schemas: dict[str, Any] = definitions["$defs"]
    return schemas


def add_errors(path: str, operation: dict[str, Any]) -> None:
    """Describe errors once for all: any 4xx or 5xx answer is a problem."""
    problem = {
        "description": "an error",
        "content": {CONTENT_TYPE: {"schema": {"$ref": REF.format(model="ProblemView")}}},
    }
    responses = operation["responses"]
    responses.pop("422", None)
    if path not in OPEN_PATHS:
        responses["4XX"] = responses["5XX"] = problem
        operation["security"] = [{"token": []}, {}]
