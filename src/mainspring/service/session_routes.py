"""Routes about the sessions of browsers. Browsers log in and out at `/login` and `/logout` (login.py)."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from mainspring.clock import to_datetime
from mainspring.json_data import plain
from mainspring.service.answers.sessions import SessionList
from mainspring.service.bodies import PageQuery
from mainspring.service.cursors import cursor_of, last_of
from mainspring.service.problems import Problem
from mainspring.service.requests import Router, answer, caller_of, needs, next_link
from mainspring.service.token_routes import tokens_of
from mainspring.service.tokens import Scope

router = Router(prefix="/v1", tags=["sessions"])


@router.get("/sessions", response_model=SessionList, summary="List sessions", **needs(Scope.ADMIN))
async def list_sessions(request: Request, query: Annotated[PageQuery, Query()]) -> Response:
    """Return the sessions of browsers that have not ended. A page may have few of them: go on by its cursor."""
    tokens, mine = tokens_of(request), caller_of(request).session
    sessions, last = await tokens.sessions.page(query.limit, last_of("sessions", query.cursor))
    valid = await tokens.current({session.token_id for session in sessions})
    cursor = cursor_of("sessions", last)
    data = {
        "cursor": cursor,
        "sessions": [
            {
                "id": session.id,
                "token": session.token_id,
                "name": valid[session.token_id].name,
                "address": session.address,
                "created_at": plain(to_datetime(session.created_at)),
                "seen_at": plain(to_datetime(session.seen_at)),
                "expires_at": plain(to_datetime(session.expires_at)),
                "current": session.id == mine,
            }
            for session in sessions
            if session.token_id in valid
        ],
    }
    return answer(data, headers=next_link(request, cursor))


@router.delete("/sessions/{session_id}", status_code=204, summary="End a session", **needs(Scope.ADMIN))
async def end_session(
    request: Request, session_id: str, reason: Annotated[str, Query(max_length=2_000)] = ""
) -> Response:
    """Log a browser out. Other processes accept its cookie for up to five more seconds."""
    actor = caller_of(request).actor
    if not await tokens_of(request).sessions.end(session_id, actor=actor, reason=reason):
        raise Problem("not_found", f"there is no session {session_id!r}; GET /v1/sessions lists them")
    return Response(status_code=204)
