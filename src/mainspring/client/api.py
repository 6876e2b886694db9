"""The client of the HTTP API: `Client` blocks, `AsyncClient` awaits. Both have the same methods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self

from typing_extensions import Unpack

from mainspring.client.connection import Connection, token_of, url_of
from mainspring.client.errors import ClientError
from mainspring.client.events import PATH, Event, Follower, Reset
from mainspring.client.exchange import new_key
from mainspring.client.inputs import JobOptions, Length, NewJob, OneOrMore, given, job_body
from mainspring.client.models import (
    AuditPage,
    AuditView,
    BulkEnqueued,
    CompletionsView,
    EnqueuedView,
    HaltedView,
    HaltList,
    LimitList,
    LimitView,
    NumbersView,
    ResumedView,
    SignalView,
    StatsView,
)
from mainspring.client.operation import Given, Operation, Resource, S, listing, operation, procedure, stream
from mainspring.client.request import json_of, seconds
from mainspring.client.resources.failures import BulkActions, Failures
from mainspring.client.resources.flow import Batches, Breakers, Settings, Subscribers
from mainspring.client.resources.jobs import DeadLetters, Jobs
from mainspring.client.resources.leases import Leases
from mainspring.client.resources.paging import PAGE_SIZE, all_pages
from mainspring.client.resources.people import People, Users
from mainspring.client.resources.schedules import Schedules
from mainspring.client.resources.system import Health, Queues, Secrets, Sessions, Tasks, Tokens, Workers
from mainspring.client.runners import AsyncRunner, SyncRunner
from mainspring.client.steps import Items, Steps

MOST_IN_PART = 1_000  # jobs of one request
LARGEST_PART = 4_000_000  # bytes of one request
TIMEOUT = 10.0  # seconds
RETRY_FOR = 30.0  # seconds


class Api(Resource[S]):
    """What both clients offer."""

    def __init__(self, runner: S) -> None:
        super().__init__(runner)
        self.batches = Batches(runner)
        self.breakers = Breakers(runner)
        self.bulk = BulkActions(runner)
        self.dead = DeadLetters(runner)
        self.failures = Failures(runner)
        self.health = Health(runner)
        self.jobs = Jobs(runner)
        self.leases = Leases(runner)
        self.people = People(runner)
        self.queues = Queues(runner)
        self.schedules = Schedules(runner)
        self.secrets = Secrets(runner)
        self.sessions = Sessions(runner)
        self.settings = Settings(runner)
        self.subscribers = Subscribers(runner)
        self.tasks = Tasks(runner)
        self.tokens = Tokens(runner)
        self.users = Users(runner)
        self.workers = Workers(runner)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.runner.connection.url!r})"

    # -- new jobs ---------------------------------------------------------------------------------

    @operation("POST", "/v1/jobs", EnqueuedView)
    def enqueue(
        self, task: str, payload: Any = None, *, idempotency_key: str | None = None, **options: Unpack[JobOptions]
    ) -> Given:
        """Enqueue a job. `created` is False if a job with the same dedupe key was there; then `id` is its id.

        A request that gets no answer is repeated for up to `retry_for` seconds, and makes one job, however often it is
        sent. Give an `idempotency_key` of your own if your program may call this twice for the same thing.
        """
        return Given(body={**given(options), "task": task, "payload": payload}, key=idempotency_key)

    @operation("POST", "/v1/jobs:bulk", BulkEnqueued)
    def _enqueue_part(self, jobs: Sequence[Any], idempotency_key: str) -> Given:
        return Given(body={"jobs": jobs}, key=idempotency_key)

    @procedure
    def enqueue_many(self, jobs: Iterable[NewJob], *, idempotency_key: str | None = None) -> Steps[BulkEnqueued]:
        """Enqueue any number of jobs, up to 1,000 in one request. Jobs that are wrong are reported in the results.

        If it raises, some of the jobs may be enqueued. Call it again with the same jobs and the same
        `idempotency_key`: those jobs are not enqueued twice.
        """
        return enqueue_parts(self, Api._enqueue_part, jobs, idempotency_key or new_key())

    @operation("POST", "/v1/signals", SignalView)
    def signal(self, key: str, payload: Any = None, *, keep: Length | None = None, id: str | None = None) -> Given:
        """Wake all jobs that wait for this key, now or later while the signal is kept."""
        body = given({"key": key, "payload": payload, "keep": seconds(keep), "id": id})
        return Given(body=body, has_key=id is None)  # an id makes the signal one by itself

    # -- live events ------------------------------------------------------------------------------

    @stream("GET", PATH)
    def events(
        self,
        *,
        kind: OneOrMore = (),
        queue: OneOrMore = (),
        task: OneOrMore = (),
        job: OneOrMore = (),
        tag: OneOrMore = (),
        target_type: str | None = None,
        target_id: str | None = None,
        after: str | None = None,
    ) -> Items[Event | Reset]:
        """Follow what happens, without end: from now on, or after the `place` of an event.

        A lost connection is resumed without a gap. If events are missing nevertheless, a `Reset` comes in their place.
        """
        query = {"kind": kind, "queue": queue, "task": task, "job": job, "tag": tag}
        targets = {"target_type": target_type, "target_id": target_id}
        return Follower(self.runner.connection, {**query, **targets}, after).follow()

    # -- halts ------------------------------------------------------------------------------------

    @operation("GET", "/v1/halts", HaltList)
    def halts(self) -> Given:
        """Return the halt of the system and the pauses of queues."""
        return Given()

    @operation("POST", "/v1/halt", HaltedView)
    def halt(
        self, reason: str = "", *, reject_new: bool = False, until: datetime | None = None, wait: float = 3.0
    ) -> Given:
        """Stop starting jobs, on all workers, and wait up to `wait` seconds until they have confirmed it."""
        body = given({"reason": reason, "reject_new": reject_new, "until": until, "wait": wait})
        return Given(body=body, wait=wait)

    @operation("POST", "/v1/resume", ResumedView)
    def resume(self, reason: str = "") -> Given:
        """End the halt."""
        return Given(body={"reason": reason})

    # -- overviews --------------------------------------------------------------------------------

    @operation("GET", "/v1/stats", StatsView)
    def stats(self) -> Given:
        """Return the jobs of each queue by status, the workers, the halts, and due jobs that no worker can run."""
        return Given()

    @operation("GET", "/v1/numbers", NumbersView)
    def numbers(
        self,
        *,
        since: datetime | None = None,
        last: Length | None = None,
        until: datetime | None = None,
        step: Literal["minute", "hour", "day"] = "hour",
        queue: str | None = None,
        task: str | None = None,
        by: Literal["queue", "task"] | None = None,
        zone: str = "UTC",
    ) -> Given:
        """Return how many jobs were enqueued, completed and failed over time, and how long they waited and ran."""
        period = {"since": since, "last": seconds(last), "until": until, "step": step, "zone": zone}
        return Given(query={**period, "queue": queue, "task": task, "by": by})

    @operation("GET", "/v1/audit", AuditPage)
    def audit_page(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        job: str | None = None,
        operation: str | None = None,
        limit: int = PAGE_SIZE,
        cursor: str | None = None,
    ) -> Given:
        """Return one page of the audit log, newest first."""
        where = {"actor": actor, "action": action, "since": since, "until": until, "job": job, "operation": operation}
        return Given(query={**where, "limit": limit, "cursor": cursor})

    @listing
    def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        job: str | None = None,
        operation: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> Items[AuditView]:
        """Iterate over the audit log, newest first: who has changed what, and why."""
        where = {"actor": actor, "action": action, "since": since, "until": until, "job": job, "operation": operation}
        return all_pages(Api.audit_page, self, lambda page: page.entries, {**where, "limit": page_size})

    @operation("GET", "/v1/limits", LimitList)
    def limits_page(
        self, name: str | None = None, *, waiting: bool = False, limit: int = PAGE_SIZE, cursor: str | None = None
    ) -> Given:
        """Return one page of the limits that are in use."""
        return Given(query={"name": name, "waiting": waiting, "limit": limit, "cursor": cursor})

    @listing
    def limits(self, name: str | None = None, *, waiting: bool = False, page_size: int = PAGE_SIZE) -> Items[LimitView]:
        """Iterate over limits: which jobs hold them, how full rates are, and which of them keep jobs waiting."""
        where = {"name": name, "waiting": waiting, "limit": page_size}
        return all_pages(Api.limits_page, self, lambda page: page.limits, where)

    @operation("GET", "/v1/complete/{what}", CompletionsView)
    def completions(
        self,
        what: Literal["queue", "task", "tag", "error_type", "payload_key"],
        prefix: str = "",
        *,
        limit: int = 20,
        task: str | None = None,
    ) -> Given:
        """Return real values that begin with a prefix, for a search field."""
        return Given({"what": what}, {"prefix": prefix, "limit": limit, "task": task})


class Client(Api[SyncRunner]):
    """Calls the service from ordinary code. Several threads may use one client.

    with Client("https://jobs.example", token="msk_…") as client:
        job = client.enqueue("welcome", {"guest": "Ada"})
        print(client.jobs.result(job.id, timeout=30))
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = TIMEOUT,
        retry_for: float = RETRY_FOR,
        **options: Any,
    ) -> None:
        """Give the URL and the token here, or by MAINSPRING_URL and MAINSPRING_TOKEN.

        `timeout` is for each attempt: seconds to connect, and for each read and write. Attempts that fail in passing
        are repeated for up to `retry_for` seconds; 0: never. Other options are those of `httpx2.Client`, such as
        `verify`, `cert` and `proxy`.
        """
        super().__init__(SyncRunner(Connection(url_of(url), timeout, retry_for), token_of(token), **options))

    def close(self) -> None:
        """Close all connections."""
        self.runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(Api[AsyncRunner]):
    """Calls the service from async code. It belongs to the event loop that uses it first.

    async with AsyncClient("https://jobs.example", token="msk_…") as client:
        job = await client.enqueue("welcome", {"guest": "Ada"})
        print(await client.jobs.result(job.id, timeout=30))
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = TIMEOUT,
        retry_for: float = RETRY_FOR,
        **options: Any,
    ) -> None:
        """Take the arguments of `Client`; other options are those of `httpx2.AsyncClient`."""
        super().__init__(AsyncRunner(Connection(url_of(url), timeout, retry_for), token_of(token), **options))

    async def close(self) -> None:
        """Close all connections."""
        await self.runner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


# -- enqueuing many jobs --------------------------------------------------------------------------


def enqueue_parts(
    api: Resource[Any], send: Operation[..., BulkEnqueued], jobs: Iterable[NewJob], key: str
) -> Steps[BulkEnqueued]:
    """Enqueue jobs part by part. The same jobs make the same parts, with the same keys."""
    total = BulkEnqueued(results=[], created=0, failed=0)
    for number, part in enumerate(parts_of(jobs)):
        try:
            answer = yield from send.steps(api, part, f"{key}-{number}")
        except ClientError as error:
            error.add_note(f"{len(total.results)} jobs were handled before; repeat it with the same idempotency_key")
            raise
        total.results += answer.results
        total.created += answer.created
        total.failed += answer.failed
    return total


def parts_of(jobs: Iterable[NewJob]) -> Iterator[list[Any]]:
    """Yield lists of jobs that a request can carry."""
    part: list[Any] = []
    size = 0
    for job in jobs:
        body = job_body(job)
        length = len(json_of(body)) + 1
        if part and (len(part) == MOST_IN_PART or size + length > LARGEST_PART):
            yield part
            part, size = [], 0
        part.append(body)
        size += length
    if part:
        yield part
