"""Routes about what is in use: limits and rates, and durable subscribers of the change feed."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import Response

from mainspring.errors import SubscriberNotFound
from mainspring.json_data import plain
from mainspring.service.answers.limits import LimitList, SubscriberList
from mainspring.service.cursors import cursor_of, last_of
from mainspring.service.requests import Router, answer, app_of, needs, next_link
from mainspring.service.tokens import Scope

router = Router(prefix="/v1")
PLACE = "\n"  # between the group and the key of a limit; a group has no such character


@router.get("/limits", response_model=LimitList, summary="List limits in use", tags=["limits"], **needs(Scope.READ))
async def list_limits(
    request: Request,
    name: Annotated[str | None, Query(max_length=200, description="a task, `queue mail`, or its own name")] = None,
    waiting: Annotated[bool, Query(description="only those that keep jobs waiting")] = False,  # noqa: FBT002 - a parameter of the URL
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: Annotated[str | None, Query(max_length=2_000)] = None,
) -> Response:
    """Return which jobs hold limits, how full rates are, and which of them keep jobs waiting."""
    where = {"name": name, "waiting": waiting}
    after = place_of(last_of("limits", cursor, where))
    found, last = await app_of(request).limits.page(name, waiting=waiting, limit=limit, after=after)
    following = cursor_of("limits", None if last is None else PLACE.join(last), where)
    data = {"limits": [{**plain(state), "used": state.used} for state in found], "cursor": following}
    return answer(data, headers=next_link(request, following))


def place_of(text: str | None) -> tuple[str, str] | None:
    """Return the group and the id of the limit with which a page ended."""
    if text is None:
        return None
    group, _, key = text.partition(PLACE)
    return group, key


@router.get(
    "/subscribers", response_model=SubscriberList, summary="List durable subscribers", tags=["subscribers"],
    **needs(Scope.READ),
)  # fmt: skip
async def list_subscribers(request: Request) -> Response:
    """Return the durable subscribers of the change feed, and how far they are."""
    return answer({"subscribers": plain(await app_of(request).subscribers.states())})


@router.delete(
    "/subscribers/{name:path}", status_code=204, summary="Forget a subscriber", tags=["subscribers"],
    **needs(Scope.OPERATE),
)  # fmt: skip
async def remove_subscriber(request: Request, name: Annotated[str, Path(max_length=200)]) -> Response:
    """Forget a subscriber and its place. A worker whose application still has it makes it anew, from now on."""
    if not await app_of(request).subscribers.remove(name):
        raise SubscriberNotFound(name)
    return Response(status_code=204)
