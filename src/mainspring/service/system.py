"""Routes about tasks, queues, workers and halts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body
from starlette.requests import Request
from starlette.responses import Response

from mainspring.errors import UnknownTask
from mainspring.halting import HaltResult
from mainspring.job import Counts, check_queue
from mainspring.json_data import plain, plain_counts
from mainspring.published.description import Description
from mainspring.published.effective import settings_of_queue, settings_of_task
from mainspring.redaction import Redaction
from mainspring.service import views
from mainspring.service.bodies import HaltBody, SystemHaltBody
from mainspring.service.problems import Problem
from mainspring.service.requests import Reason, Router, answer, app_of, caller_of, needs
from mainspring.service.separation import halts_for, queue_for, workers_for
from mainspring.service.tokens import Scope
from mainspring.stores.protocol import Halt, Stats

router = Router(prefix="/v1")


# -- tasks ----------------------------------------------------------------------------------------


@router.get(
    "/tasks", response_model=views.TaskList, summary="List tasks", tags=["tasks"], **needs(Scope.READ, projects=True)
)
async def list_tasks(request: Request) -> Response:
    """Return the tasks that workers have published, with the schemas of their payloads."""
    return answer({"tasks": [task_data(task) for task in await app_of(request).published.list()]})


@router.get(
    "/tasks/{name}",
    response_model=views.TaskDetail,
    summary="Show a task",
    tags=["tasks"],
    **needs(Scope.READ, projects=True),
)
async def show_task(request: Request, name: str) -> Response:
    """Return a task with the schema of its payload.

    `settings` says which settings count for its jobs: what the code says, or what was set at run time.
    """
    app = app_of(request)
    try:
        task = await app.published.get(name)
    except UnknownTask:
        raise Problem("not_found", f"no worker has published a task {name!r}") from None
    return answer({**task_data(task), "settings": plain(await settings_of_task(app, task))})


def task_data(task: Description) -> dict[str, Any]:
    return {
        "name": task.name,
        "queue": task.queue,
        "summary": task.summary,
        "payload_schema": plain(task.schema),
        "problem": task.problem,
        "steps": task.steps,
        "worker": task.worker,
        "published_at": plain(task.published_at),
    }


# -- queues and workers ---------------------------------------------------------------------------


@router.get(
    "/queues",
    response_model=views.QueueList,
    summary="List queues",
    tags=["queues"],
    **needs(Scope.READ, projects=True),
)
async def list_queues(request: Request) -> Response:
    """Return each queue with the number of its jobs per status."""
    app = app_of(request)
    stats = await app.stats(caller_of(request).within)
    return answer({"queues": [queue_data(counts, stats, app.redaction) for counts in stats.queues]})


@router.get(
    "/queues/{queue:path}",
    response_model=views.QueueDetail,
    summary="Show a queue",
    tags=["queues"],
    **needs(Scope.READ, projects=True),
)
async def show_queue(request: Request, queue: str) -> Response:
    """Return the jobs of a queue per status, and which settings count for them: limits, retries and timeouts.

    Any name is that of a queue: one without jobs has none.
    """
    app, caller = app_of(request), caller_of(request)
    named = check_queue(queue_for(caller, queue))
    stats = await app.stats((named,))
    counts = next((counts for counts in stats.queues if counts.queue == named), Counts(named))
    return answer({**queue_data(counts, stats, app.redaction), "settings": plain(await settings_of_queue(app, named))})


def queue_data(counts: Counts, stats: Stats, redaction: Redaction) -> dict[str, Any]:
    pause = next((halt_data(halt, redaction) for halt in stats.halts if halt.queue == counts.queue), None)
    return {**plain_counts(counts, stats), "paused": pause}


@router.get(
    "/workers",
    response_model=views.WorkerList,
    summary="List workers",
    tags=["workers"],
    **needs(Scope.READ, projects=True),
)
async def list_workers(request: Request) -> Response:
    """Return the workers. For a token of a project: those that serve only queues of the project."""
    workers = (await app_of(request).stats()).workers
    return answer({"workers": plain(workers_for(caller_of(request), workers))})


# -- halts ----------------------------------------------------------------------------------------


@router.get(
    "/halts", response_model=views.HaltList, summary="List halts", tags=["halts"], **needs(Scope.READ, projects=True)
)
async def list_halts(request: Request) -> Response:
    """Return the halt of the system and the pauses of queues."""
    app = app_of(request)
    halts = halts_for(caller_of(request), await app.halts())
    return answer({"halts": [halt_data(halt, app.redaction) for halt in halts]})


@router.post(
    "/halt", response_model=views.HaltedView, summary="Halt the system", tags=["halts"], **needs(Scope.OPERATE)
)
async def halt_system(
    request: Request, body: Annotated[SystemHaltBody, Body(default_factory=SystemHaltBody)]
) -> Response:
    """Stop starting jobs, on all workers. Running jobs go on."""
    app, actor = app_of(request), caller_of(request).actor
    options: dict[str, Any] = {"reject_new": body.reject_new, "until": body.until, "wait": body.wait}
    return answer(halted_data(await app.halt(body.reason, actor=actor, **options), app.redaction))


@router.post(
    "/resume", response_model=views.ResumedView, summary="End the halt", tags=["halts"], **needs(Scope.OPERATE)
)
async def resume_system(request: Request, body: Reason) -> Response:
    """Let workers start jobs again. Queues that are paused stay paused."""
    return answer({"resumed": await app_of(request).resume(reason=body.reason, actor=caller_of(request).actor)})


@router.post(
    "/queues/{queue:path}:pause", response_model=views.HaltedView, summary="Pause a queue", tags=["queues"],
    **needs(Scope.OPERATE, projects=True),
)  # fmt: skip
async def pause_queue(
    request: Request, queue: str, body: Annotated[HaltBody, Body(default_factory=HaltBody)]
) -> Response:
    """Stop starting jobs of one queue."""
    app, caller = app_of(request), caller_of(request)
    named = queue_for(caller, queue)
    result = await app.pause(named, body.reason, until=body.until, actor=caller.actor, wait=body.wait)
    shown = [late.worker for late in result.unconfirmed]
    return answer(
        halted_data(result, app.redaction) | {"unconfirmed": [worker.id for worker in workers_for(caller, shown)]}
    )


@router.post(
    "/queues/{queue:path}:resume", response_model=views.ResumedView, summary="Resume a queue", tags=["queues"],
    **needs(Scope.OPERATE, projects=True),
)  # fmt: skip
async def resume_queue(request: Request, queue: str, body: Reason) -> Response:
    """Let workers start jobs of the queue again."""
    caller = caller_of(request)
    resumed = await app_of(request).resume(queue_for(caller, queue), reason=body.reason, actor=caller.actor)
    return answer({"resumed": resumed})


def halt_data(halt: Halt, redaction: Redaction) -> dict[str, Any]:
    names = ("actor", "reason", "since", "until", "queue", "accept")
    return {**{name: plain(getattr(halt, name)) for name in names}, "reason": redaction.text(halt.reason)}


def halted_data(result: HaltResult, redaction: Redaction) -> dict[str, Any]:
    return {
        "halt": halt_data(result.halt, redaction),
        "confirmed": result.confirmed,
        "unconfirmed": [late.worker.id for late in result.unconfirmed],
    }
