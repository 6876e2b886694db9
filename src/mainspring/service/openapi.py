"""The OpenAPI document: FastAPI's, with the routes that are not FastAPI's, the errors and the tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version as version_of
from inspect import cleandoc
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from mainspring.service import leases, views
from mainspring.service.answer_headers import HEADERS, headers_of_success
from mainspring.service.answers import leases as answers
from mainspring.service.bodies import BulkBody, NewJobBody
from mainspring.service.examples import add_examples, load_examples
from mainspring.service.guard import OPEN_PATHS
from mainspring.service.job_lines import LINES_HAVE
from mainspring.service.operation_errors import by_status, codes_of, response_name, response_of
from mainspring.service.replay import KeyKind
from mainspring.service.requests import KEY_OF, LINES_TYPE, MAY_ANSWER, PROJECTS, SCOPE_OF, TELLS
from mainspring.service.tokens import Scope

REF = "#/components/schemas/{model}"
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": '^("[!#-~]{1,255}"|[!#-~]{1,255})$'},
    "description": "A request that is repeated with the same key within 24 hours has its effect once.",
}
SEPARATED = frozenset({"fields"})  # lists whose values are separated by commas; they may also be given one by one
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
    may: tuple[str, ...] = ()  # codes of errors that are special to it
    tells: tuple[str, ...] = ()  # headers that are special to it
    also: Mapping[str, Any] = field(default_factory=dict)  # other forms of its answer
    also_takes: Mapping[str, Any] = field(default_factory=dict)  # other forms of its body

    def operation(self) -> dict[str, Any]:
        return {
            "summary": self.summary,
            "description": cleandoc(self.body.__doc__ or ""),
            "tags": [self.tag],
            "operationId": self.summary.lower().replace(" ", "_"),
            SCOPE_OF: self.scope.value,
            PROJECTS: True,
            KEY_OF: self.key.value,
            MAY_ANSWER: list(self.may),
            TELLS: list(self.tells),
            "parameters": [],
            "requestBody": {"required": True, "content": {**json_of(self.body), **self.also_takes}},
            "responses": {
                str(status): {"description": model.__doc__ or "done", "content": {**json_of(model), **self.also}}
                for status, model in self.answers.items()
            },
        }


def json_of(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}


RAW = (
    Raw(
        "/v1/jobs", "Enqueue a job", NewJobBody, {201: views.EnqueuedView, 200: views.EnqueuedView}, Scope.ENQUEUE,
        "jobs", may=("unknown_task", "invalid_payload", "system_halted"), tells=("Location",),
    ),
    Raw(
        "/v1/jobs:bulk", "Enqueue many jobs", BulkBody, {200: views.BulkEnqueued}, Scope.ENQUEUE, "jobs",
        may=("invalid_payload", "system_halted"),
        also_takes={LINES_TYPE: {"schema": {"type": "string", "description": LINES_HAVE}}},
    ),
    Raw(
        "/v1/leases", "Claim jobs", leases.ClaimBody, {200: answers.ClaimView}, Scope.LEASE, "leases", KeyKind.CLAIM,
        tells=("X-Order",), also={leases.LINES: {"schema": {"type": "string", "description": leases.LINES_HAVE}}},
    ),
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
    components, paths = document.setdefault("components", {}), document["paths"]
    components.setdefault("schemas", {}).update(schemas_of_raw())
    components["securitySchemes"] = {"token": TOKEN}
    components["headers"], components["responses"] = dict(HEADERS), {}
    for route in RAW:
        paths.setdefault(route.path, {})["post"] = route.operation()
    recorded = load_examples()
    for path, operations in paths.items():
        for method, operation in operations.items():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in SEPARATED:
                    parameter["explode"] = False
            if method == "post":
                operation.setdefault("parameters", []).append(IDEMPOTENCY_KEY)
            describe_answers(path, method, operation, components["responses"])
            add_examples(operation, recorded.get(f"{method.upper()} {path}", {}))
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


def describe_answers(path: str, method: str, operation: dict[str, Any], shared: dict[str, Any]) -> None:
    """Describe the headers of answers, and every error that the operation can answer."""
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's own
    for response in responses.values():
        response["headers"] = headers_of_success(path, method, operation)
    operation[MAY_ANSWER] = codes_of(path, method, operation)
    operation.pop(TELLS, None)
    for status, codes in by_status(operation[MAY_ANSWER]).items():
        add_problem(responses, str(status), codes, shared)
    if path not in OPEN_PATHS:
        operation["security"] = [{"token": []}, {}]


def add_problem(responses: dict[str, Any], status: str, codes: tuple[str, ...], shared: dict[str, Any]) -> None:
    if status in responses:  # an answer of its own has this status too
        own, problem = responses[status], response_of(codes)
        own["content"] = {**own.get("content", {}), **problem["content"]}
        own["headers"] = {**own["headers"], **problem["headers"]}
        own["description"] = f"{own['description']}. {problem['description']}"
        return
    name = response_name(codes)
    shared.setdefault(name, response_of(codes))
    responses[status] = {"$ref": f"#/components/responses/{name}"}
