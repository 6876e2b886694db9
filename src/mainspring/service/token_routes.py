"""Routes about tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from mainspring.service import views
from mainspring.service.bodies import PageQuery, TokenBody
from mainspring.service.cursors import cursor_of, last_of
from mainspring.service.replay import KeyKind
from mainspring.service.requests import Router, answer, caller_of, needs, next_link
from mainspring.service.tokens import Scope, Tokens

router = Router(prefix="/v1", tags=["tokens"])


def tokens_of(request: Request) -> Tokens:
    tokens: Tokens = request.app.state.tokens
    return tokens


@router.get("/tokens", response_model=views.TokenList, summary="List tokens", **needs(Scope.ADMIN))
async def list_tokens(request: Request, query: Annotated[PageQuery, Query()]) -> Response:
    """Return tokens by id, without their texts, which are not stored."""
    found, last = await tokens_of(request).page(query.limit, last_of("tokens", query.cursor))
    cursor = cursor_of("tokens", last)
    return answer(
        {"tokens": [token.to_data() for token in found], "cursor": cursor}, headers=next_link(request, cursor)
    )


@router.post(
    "/tokens",
    response_model=views.NewTokenView,
    status_code=201,
    summary="Create a token",
    **needs(Scope.ADMIN, KeyKind.SECRET),
)
async def create_token(request: Request, body: TokenBody) -> Response:
    """Create a token. Its text is in this answer only: the store keeps a hash of it."""
    actor = caller_of(request).actor
    token, text = await tokens_of(request).create(
        body.name, body.scopes, actor=actor, expires_at=body.expires_at, project=body.project, queues=body.queues
    )
    return answer({"token": token.to_data(), "text": text}, 201)


@router.delete("/tokens/{token_id}", status_code=204, summary="Revoke a token", **needs(Scope.ADMIN))
async def revoke_token(request: Request, token_id: str) -> Response:
    """Revoke a token. Other processes accept it for up to five more seconds."""
    await tokens_of(request).revoke(token_id, actor=caller_of(request).actor)
    return Response(status_code=204)
