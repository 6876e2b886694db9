"""The OpenAPI document: FastAPI's, with the routes that are not FastAPI's, the errors and the tokens."""

from __future__ import annotations

from importlib.metadata import version as version_of
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from mainspring.service import views
from mainspring.service.bodies import BulkBody, NewJobBody
from mainspring.service.problems import CONTENT_TYPE
from mainspring.service.requests import SCOPE_OF
from mainspring.service.tokens import Scope

REF = "#/components/schemas/{model}"
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "A request that is repeated with the same key within 24 hours has its effect once.",
}
TOKEN = {"type": "http", "scheme": "bearer", "description": "a token: msk_…"}


def version() -> str:
    return version_of("mainspring")


def describe(api: FastAPI) -> None:
    """Let the application answer with our document. It is made at the first request for it."""
    make = api.openapi

    def completed() -> dict[str, Any]:
        if api.openapi_schema is None or "x-complete" not in api.openapi_schema:
            api.openapi_schema = complete(make())
        return api.openapi_schema

    api.openapi = completed  # type: ignore[method-assign] # as FastAPI documents it


def complete(document: dict[str, Any]) -> dict[str, Any]:
    document["x-complete"] = True
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(
        schemas_of(NewJobBody, BulkBody, views.EnqueuedView, views.BulkEnqueued, views.ProblemView)
    )
    components["securitySchemes"] = {"token": TOKEN}
    paths = document["paths"]
    paths.setdefault("/v1/jobs", {})["post"] = raw(
        "Enqueue a job", "NewJobBody", {"201": "EnqueuedView", "200": "EnqueuedView"}
    )
    paths["/v1/jobs:bulk"] = {"post": raw("Enqueue many jobs", "BulkBody", {"200": "BulkEnqueued"})}
    for path, operations in paths.items():
        for operation in operations.values():
            add_errors(path, operation)
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    return document


def schemas_of(*models: type[BaseModel]) -> dict[str, Any]:
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=REF)
    schemas: dict[str, Any] = definitions["$defs"]
    return schemas


def raw(summary: str, body: str, answers: dict[str, str]) -> dict[str, Any]:
    """Return the entry of a route that is not FastAPI's."""
    return {
        "summary": summary,
        "tags": ["jobs"],
        "operationId": summary.lower().replace(" ", "_"),
        SCOPE_OF: Scope.ENQUEUE.value,
        "parameters": [IDEMPOTENCY_KEY],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": REF.format(model=body)}}},
        },
        "responses": {
            status: {
                "description": "done",
                "content": {"application/json": {"schema": {"$ref": REF.format(model=model)}}},
            }
            for status, model in answers.items()
        },
    }


def add_errors(path: str, operation: dict[str, Any]) -> None:
    """Describe errors once for all: any 4xx or 5xx answer is a problem."""
    problem = {
        "description": "an error",
        "content": {CONTENT_TYPE: {"schema": {"$ref": REF.format(model="ProblemView")}}},
    }
    responses = operation["responses"]
    responses.pop("422", None)
    if not path.startswith("/health/"):
        responses["4XX"] = responses["5XX"] = problem
        operation["security"] = [{"token": []}, {}]
