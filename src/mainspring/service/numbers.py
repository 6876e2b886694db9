"""Routes for overviews: numbers over time, the state of all queues and workers, and completions for search fields."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from mainspring.json_data import plain, plain_numbers
from mainspring.numbers import DEFAULT_SINCE, STEPS
from mainspring.service.answers.numbers import CompletionsView, NumbersView, StatsView
from mainspring.service.bodies import LONGEST, Body, Instant, Name
from mainspring.service.problems import Problem
from mainspring.service.requests import Router, answer, app_of, caller_of, needs
from mainspring.service.separation import jobs_of, queue_for, workers_for
from mainspring.service.system import halt_data, queue_data
from mainspring.service.tokens import Scope
from mainspring.stores.protocol import Completable

router = Router(prefix="/v1", tags=["numbers"])
MOST_STEPS_BY_GROUP = 1_500  # there can be a thousand groups, each with all steps


class NumbersQuery(Body):
    """Which numbers are read."""

    since: Instant | None = Field(default=None, description="default: 24 hours ago")
    last: float | None = Field(
        default=None,
        gt=0,
        le=LONGEST,
        allow_inf_nan=False,
        description="so many seconds before now; instead of `since`",
    )
    until: Instant | None = Field(default=None, description="default: now")
    step: Literal["minute", "hour", "day"] = Field(
        default="hour", description="minutes are kept for 48 hours, hours for 30 days and days for 2 years"
    )
    queue: Name | None = None
    task: Name | None = None
    by: Literal["queue", "task"] | None = Field(default=None, description="also count each queue or task apart")
    zone: Annotated[str, Field(max_length=100)] = Field(default="UTC", description="the time zone in which days begin")

    @model_validator(mode="after")
    def _check_begin(self) -> NumbersQuery:
        if self.since is not None and self.last is not None:
            msg = "give since or last, not both"
            raise ValueError(msg)
        return self

    @property
    def begin(self) -> datetime | timedelta:
        return self.since or (DEFAULT_SINCE if self.last is None else timedelta(seconds=self.last))


@router.get(
    "/numbers", response_model=NumbersView, summary="Read numbers over time", **needs(Scope.READ, projects=True)
)
async def read_numbers(request: Request, query: Annotated[NumbersQuery, Query()]) -> Response:
    """Return how many jobs were enqueued, completed and failed over time, and how long they waited and ran."""
    app, caller = app_of(request), caller_of(request)
    refuse_too_many(query, app.now())
    queue = None if query.queue is None else queue_for(caller, query.queue)
    numbers = await app.numbers(
        since=query.begin, until=query.until, step=query.step, queue=queue, task=query.task, by=query.by,
        zone=query.zone, within=caller.within,
    )  # fmt: skip
    return answer({"groups": {}, **plain_numbers(numbers)})


def refuse_too_many(query: NumbersQuery, now: datetime) -> None:
    """Raise Problem if the numbers of all groups would take the service's event loop too long to add up."""
    begin = query.begin if isinstance(query.begin, datetime) else now - query.begin
    length = timedelta(milliseconds=STEPS[query.step].length)
    if query.by is not None and ((query.until or now) - begin) / length > MOST_STEPS_BY_GROUP:
        msg = f"with `by`, ask for up to {MOST_STEPS_BY_GROUP:,} steps; give a later `since`, or a longer `step`"
        raise Problem("invalid_request", msg)


@router.get(
    "/stats", response_model=StatsView, summary="Show how the system is now", **needs(Scope.READ, projects=True)
)
async def show_stats(request: Request) -> Response:
    """Return the jobs of each queue by status, the workers, the halts, and due jobs that no worker can run."""
    caller, app = caller_of(request), app_of(request)
    stats = await app.stats(caller.within)
    own = replace(stats, workers=workers_for(caller, stats.workers))
    data: dict[str, Any] = {
        "queues": [queue_data(counts, stats, app.redaction) for counts in stats.queues],
        "halts": [halt_data(halt, app.redaction) for halt in stats.halts],
        "stalled": stats.stalled,
        "stuck": own.stuck,
        "workers": plain(own.workers),
        "measures": {} if caller.within else plain(stats.measures),
    }
    for name in ("due_tasks", "unknown_tasks", "estimated"):
        data[name] = plain(getattr(stats, name))
    return answer(data)


@router.get(
    "/complete/{what}", response_model=CompletionsView, summary="Complete a value", **needs(Scope.READ, projects=True)
)
async def complete(
    request: Request,
    what: Completable,
    prefix: Annotated[str, Query(max_length=200)] = "",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    task: Annotated[str | None, Query(max_length=200, description="of `payload_key`: only jobs of this task")] = None,
) -> Response:
    """Return real values that begin with a prefix, for a search field."""
    return answer({"values": await jobs_of(request).complete(what, prefix, limit=limit, task=task)})
