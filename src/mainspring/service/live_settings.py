"""Routes about settings of tasks, queues and limits that are changed at run time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import Field, StrictBool, StrictInt
from starlette.requests import Request
from starlette.responses import Response

from mainspring.features.limits.options import LARGEST, Rate
from mainspring.features.settings.api import Setting
from mainspring.json_data import plain
from mainspring.live_settings import Kind
from mainspring.queue_patterns import is_among
from mainspring.service.answers.live_settings import ClearedView, SettingList
from mainspring.service.bodies import Body, Reasoned, RetryPolicy, Seconds
from mainspring.service.etags import IfMatch, etag, expected
from mainspring.service.guard import Caller
from mainspring.service.problems import Problem
from mainspring.service.requests import Router, answer, app_of, caller_of, needs
from mainspring.service.separation import queue_for
from mainspring.service.tokens import Scope

router = Router(prefix="/v1/settings", tags=["settings"])
OwnerName = Annotated[str, Path(max_length=200)]
Option = Literal["limit", "rate", "retry", "timeout", "max_attempts", "paused"]


class RateBody(Body):
    """At most `count` jobs start in `per` seconds and, after a pause, up to `burst` at once."""

    count: int = Field(strict=True, ge=1, le=LARGEST)
    per: Seconds = Field(default=1.0, ge=0.001)
    burst: StrictInt | None = Field(default=None, ge=1, le=LARGEST, description="default: `count`")


class SettingsBody(Reasoned):
    """Settings to change. Those that are left out stay as they are; DELETE goes back to the code's values."""

    limit: int | None = Field(
        strict=True, default=None, ge=1, le=LARGEST, description="at most so many jobs run at once"
    )
    rate: RateBody | None = None
    retry: RetryPolicy | None = None
    timeout: Seconds | None = Field(default=None, ge=0.001, description="seconds that new jobs may run")
    max_attempts: StrictInt | None = Field(default=None, ge=1, le=1_000, description="of new jobs")
    paused: StrictBool | None = Field(
        default=None, description="of a task; pause a queue by POST /v1/queues/{queue}:pause"
    )

    def values(self) -> dict[str, Any]:
        """Return the settings as `app.settings.set` takes them."""
        given: dict[str, Any] = {name: getattr(self, name) for name in ("limit", "timeout", "max_attempts", "paused")}
        given["rate"] = None if self.rate is None else Rate(self.rate.count, per=self.rate.per, burst=self.rate.burst)
        given["retry"] = None if self.retry is None else self.retry.to_retry()
        return given


def owner(caller: Caller, kind: Kind, name: str) -> dict[str, Any]:
    """Return what the settings are for. Tasks and limits are shared, so a token of a project has only its queues."""
    if caller.within and kind is not Kind.QUEUE:
        msg = f"settings of a {kind} are for all projects; the token {caller.name!r} may set those of its queues"
        raise Problem("forbidden", msg)
    named = queue_for(caller, name) if kind is Kind.QUEUE else name
    return {"name" if kind is Kind.LIMIT else kind.value: named}


def settings_data(request: Request, found: Iterable[Setting]) -> dict[str, Any]:
    redaction = app_of(request).redaction
    return {"settings": [{**plain(setting), "reason": redaction.text(setting.reason)} for setting in found]}


@router.get("", response_model=SettingList, summary="List changed settings", **needs(Scope.READ, projects=True))
async def list_settings(request: Request) -> Response:
    """Return all settings that were changed at run time, and the pauses of queues."""
    found, within = await app_of(request).settings.list(), caller_of(request).within
    if within:
        found = [setting for setting in found if setting.kind == Kind.QUEUE and is_among(setting.name, within)]
    return answer(settings_data(request, found))


@router.get(
    "/{kind}/{name:path}",
    response_model=SettingList,
    summary="Show changed settings",
    **needs(Scope.READ, projects=True, tells=("ETag",)),
)
async def show_settings(request: Request, kind: Kind, name: OwnerName) -> Response:
    """Return the changed settings of a task, a queue, or a limit with a name of its own."""
    found = await app_of(request).settings.get(**owner(caller_of(request), kind, name))
    return answer(settings_data(request, found.values()), headers=etag(found.revision))


@router.patch(
    "/{kind}/{name:path}",
    response_model=SettingList,
    summary="Change settings",
    **needs(Scope.OPERATE, projects=True, tells=("ETag",)),
)
async def change_settings(
    request: Request, kind: Kind, name: OwnerName, body: SettingsBody, if_match: IfMatch = None
) -> Response:
    """Change limits, rates, retries, timeouts or pauses. All processes use them within a second."""
    whose = owner(caller_of(request), kind, name)
    expect = await expected_revision(request, whose, if_match)
    given = {**whose, **body.values(), "actor": caller_of(request).actor, "reason": body.reason}
    found = await app_of(request).settings.set(**given, expect=expect)
    return answer(settings_data(request, found.values()), headers=etag(found.revision))


async def expected_revision(request: Request, whose: dict[str, Any], if_match: str | None) -> str | None:
    """Return the revision of the settings that may be changed; None for any. The change itself checks it again."""
    if if_match is None or if_match.strip() == "*":
        return None
    return expected((await app_of(request).settings.get(**whose)).revision, if_match)


@router.delete(
    "/{kind}/{name:path}", response_model=ClearedView, summary="Clear settings", **needs(Scope.OPERATE, projects=True)
)
async def clear_settings(  # noqa: PLR0917 - FastAPI passes them by name
    request: Request,
    kind: Kind,
    name: OwnerName,
    option: Annotated[list[Option] | None, Query(description="which settings; default: all")] = None,
    reason: Annotated[str, Query(max_length=2_000)] = "",
    if_match: IfMatch = None,
) -> Response:
    """Go back to the values in the code."""
    whose = owner(caller_of(request), kind, name)
    expect = await expected_revision(request, whose, if_match)
    by = {"actor": caller_of(request).actor, "reason": reason}
    cleared = await app_of(request).settings.clear(*(option or ()), **whose, **by, expect=expect)
    return answer({"cleared": cleared})
