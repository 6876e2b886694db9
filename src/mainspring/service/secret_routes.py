"""Routes about the secrets that sign requests to others."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body as Given
from fastapi import Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from mainspring.json_data import plain
from mainspring.service.answers.secrets import SecretList, SecretTextView
from mainspring.service.bodies import Body, PageQuery
from mainspring.service.cursors import cursor_of, last_of
from mainspring.service.problems import Problem
from mainspring.service.replay import KeyKind
from mainspring.service.request_fields import SecretName
from mainspring.service.requests import Router, answer, app_of, caller_of, needs, next_link, secrets_of
from mainspring.service.secrets import Secret
from mainspring.service.tokens import Scope

router = Router(prefix="/v1", tags=["push"])


class RotateSecretBody(Body):
    secret: str | None = Field(
        default=None, max_length=200, description="whsec_ and the Base64 of 24 to 64 bytes; left out: a new one is made"
    )


class SecretBody(RotateSecretBody):
    name: SecretName


def secret_data(secret: Secret) -> dict[str, Any]:
    return {"name": secret.name, "created_at": plain(secret.created_at), "created_by": secret.created_by}


def with_texts(request: Request, secret: Secret | None, name: str, status: int = 200) -> Response:
    if secret is None:
        raise Problem("not_found", f"there is no secret {name!r}")
    return answer({**secret_data(secret), "texts": secret.valid(app_of(request).store.clock.now())}, status)


@router.get("/secrets", response_model=SecretList, summary="List secrets", **needs(Scope.ADMIN))
async def list_secrets(request: Request, query: Annotated[PageQuery, Query()]) -> Response:
    """Return the secrets that sign requests to others by name, without their texts."""
    found, last = await secrets_of(request).page(query.limit, last_of("secrets", query.cursor))
    cursor = cursor_of("secrets", last)
    return answer({"secrets": list(map(secret_data, found)), "cursor": cursor}, headers=next_link(request, cursor))


@router.get("/secrets/{name:path}", response_model=SecretTextView, summary="Show a secret", **needs(Scope.ADMIN))
async def show_secret(request: Request, name: str) -> Response:
    """Return a secret with its texts: receivers need them to verify signatures. `default` is made at first use."""
    await secrets_of(request).texts(name)
    return with_texts(request, await secrets_of(request).get(name), name)


@router.post(
    "/secrets",
    response_model=SecretTextView,
    status_code=201,
    summary="Create a secret",
    **needs(Scope.ADMIN, KeyKind.SECRET, may=("duplicate",)),
)
async def create_secret(request: Request, body: SecretBody) -> Response:
    """Create a secret by which jobs of the task `http`, and callbacks, sign their requests."""
    secret = await secrets_of(request).create(body.name, actor=caller_of(request).actor, text=body.secret)
    if secret is None:
        raise Problem("duplicate", f"there is a secret {body.name!r}; rotate or delete it")
    return with_texts(request, secret, body.name, 201)


@router.post(
    "/secrets/{name:path}:rotate",
    response_model=SecretTextView,
    summary="Replace a secret",
    **needs(Scope.ADMIN, KeyKind.SECRET),
)
async def rotate_secret(
    request: Request, name: str, body: Annotated[RotateSecretBody, Given(default_factory=RotateSecretBody)]
) -> Response:
    """Replace a secret. For 24 hours, requests are signed with the new and the old one."""
    secret = await secrets_of(request).rotate(name, actor=caller_of(request).actor, text=body.secret)
    return with_texts(request, secret, name)


@router.delete("/secrets/{name:path}", status_code=204, summary="Delete a secret", **needs(Scope.ADMIN))
async def delete_secret(request: Request, name: str) -> Response:
    """Delete a secret. Jobs that are to be signed with it fail, and are retried."""
    if not await secrets_of(request).delete(name, actor=caller_of(request).actor):
        raise Problem("not_found", f"there is no secret {name!r}")
    return Response(status_code=204)
