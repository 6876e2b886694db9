"""Routes about tokens."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mainspring.service import views
from mainspring.service.bodies import TokenBody
from mainspring.service.replay import KeyKind
from mainspring.service.requests import Router, answer, caller_of, needs
from mainspring.service.tokens import Scope, Tokens

router = Router(prefix="/v1", tags=["tokens"])


def tokens_of(request: Request) -> Tokens:
    tokens: Tokens = request.app.state.tokens
    return tokens


@router.get("/tokens", response_model=views.TokenList, summary="List tokens", **needs(Scope.ADMIN))
async def list_tokens(request: Request) -> Response:
    """Return all tokens without their texts, which are not stored."""
    return answer({"tokens": [token.to_data() for token in await tokens_of(request).list()]})


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
