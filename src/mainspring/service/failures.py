"""Routes about failure groups."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Path, Query
from pydantic import Field, StrictBool, StringConstraints, model_validator
from starlette.requests import Request
from starlette.responses import Response

from mainspring.features.failures.api import LONGEST_NOTE
from mainspring.features.failures.group import FailureGroup, GroupState
from mainspring.json_data import plain
from mainspring.service.answers.failures import GroupPage, GroupView, RetriedView
from mainspring.service.bodies import Body as Checked
from mainspring.service.bodies import Instant, Name, Reasoned, Seconds
from mainspring.service.cursors import cursor_of, last_of
from mainspring.service.redacted import texts
from mainspring.service.requests import Router, answer, caller_of, needs, next_link
from mainspring.service.separation import failures_of
from mainspring.service.tokens import Scope

router = Router(prefix="/v1/failures", tags=["failures"])
Fingerprint = Annotated[str, Path(max_length=200, description="of the group")]


class GroupQuery(Checked):
    """Which groups a list shows."""

    state: list[GroupState] = Field(default=[], description="any of these states")
    task: Name | None = None
    since: Instant | None = Field(default=None, description="only groups that failed since then")
    limit: int = Field(default=50, ge=1, le=500)
    cursor: str | None = None


class NoteBody(Checked):
    """What a person says about a group."""

    note: Annotated[str, StringConstraints(max_length=LONGEST_NOTE)] = ""


Note = Annotated[NoteBody, Body(default_factory=NoteBody)]


class MuteBody(NoteBody):
    until: Instant | None = Field(default=None, description="when it is open again")
    length: Seconds | None = Field(default=None, gt=0, description="seconds for which it is muted; instead of `until`")

    @model_validator(mode="after")
    def _check_end(self) -> MuteBody:
        if self.until is not None and self.length is not None:
            msg = "give until or length, not both"
            raise ValueError(msg)
        return self


class GroupRetryBody(Reasoned):
    dry_run: StrictBool = Field(default=False, description="only count the dead letters")


def group_data(request: Request, group: FailureGroup) -> dict[str, Any]:
    return {**texts(request, plain(group)), "is_regression": group.is_regression}


@router.get("", response_model=GroupPage, summary="List failure groups", **needs(Scope.READ, projects=True))
async def list_groups(request: Request, query: Annotated[GroupQuery, Query()]) -> Response:
    """Return failures with the same cause as groups; the group that failed last comes first."""
    where = query.model_dump(exclude={"limit", "cursor"})
    after = last_of("failure groups", query.cursor, where)
    page = await failures_of(request).list(
        state=tuple(query.state), task=query.task, since=query.since, limit=query.limit, cursor=after
    )
    groups = [group_data(request, group) for group in page.groups]
    cursor = cursor_of("failure groups", page.cursor, where)
    return answer({"groups": groups, "cursor": cursor, "complete": page.complete}, headers=next_link(request, cursor))


@router.get(
    "/{fingerprint}", response_model=GroupView, summary="Show a failure group", **needs(Scope.READ, projects=True)
)
async def show_group(request: Request, fingerprint: Fingerprint) -> Response:
    """Return a group with the traceback of its sample."""
    return answer(group_data(request, await failures_of(request).get(fingerprint)))


@router.post(
    "/{fingerprint}:resolve",
    response_model=GroupView,
    summary="Resolve a failure group",
    **needs(Scope.OPERATE, projects=True),
)
async def resolve_group(request: Request, fingerprint: Fingerprint, body: Note) -> Response:
    """Mark a group as resolved. Its next failure opens it again."""
    by = caller_of(request).actor
    return answer(group_data(request, await failures_of(request).resolve(fingerprint, note=body.note, actor=by)))


@router.post(
    "/{fingerprint}:mute",
    response_model=GroupView,
    summary="Mute a failure group",
    **needs(Scope.OPERATE, projects=True),
)
async def mute_group(
    request: Request, fingerprint: Fingerprint, body: Annotated[MuteBody, Body(default_factory=MuteBody)]
) -> Response:
    """Mute a group for a time, or until `:unmute`. It goes on counting failures."""
    group = await failures_of(request).mute(
        fingerprint, until=body.until, length=body.length, note=body.note, actor=caller_of(request).actor
    )
    return answer(group_data(request, group))


@router.post(
    "/{fingerprint}:unmute",
    response_model=GroupView,
    summary="Unmute a failure group",
    **needs(Scope.OPERATE, projects=True),
)
async def unmute_group(request: Request, fingerprint: Fingerprint, body: Note) -> Response:
    """End a mute: open the group, or resolve it if all its jobs have succeeded. Another state stays as it is."""
    by = caller_of(request).actor
    return answer(group_data(request, await failures_of(request).unmute(fingerprint, note=body.note, actor=by)))


@router.post(
    "/{fingerprint}:reopen",
    response_model=GroupView,
    summary="Reopen a failure group",
    **needs(Scope.OPERATE, projects=True),
)
async def reopen_group(request: Request, fingerprint: Fingerprint, body: Note) -> Response:
    """Open a group that is resolved or muted."""
    by = caller_of(request).actor
    return answer(group_data(request, await failures_of(request).reopen(fingerprint, note=body.note, actor=by)))


@router.post(
    "/{fingerprint}:retry",
    response_model=RetriedView,
    summary="Retry a failure group",
    **needs(Scope.OPERATE, projects=True),
)
async def retry_group(
    request: Request, fingerprint: Fingerprint, body: Annotated[GroupRetryBody, Body(default_factory=GroupRetryBody)]
) -> Response:
    """Retry all dead letters of a group. When the last of its jobs has succeeded, the group is resolved."""
    result = await failures_of(request).retry(
        fingerprint, dry_run=body.dry_run, reason=body.reason, actor=caller_of(request).actor
    )
    return answer({"changed": result.changed, "conflicts": result.conflicts})
