"""Batches, breakers, limits and settings at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from typing_extensions import Unpack

from mainspring.client.inputs import Length, NewJob, OneOrMore, SettingChanges, given, job_body
from mainspring.client.models import (
    BatchCancelled,
    BatchPage,
    BatchSummaryView,
    BatchView,
    BreakerList,
    BreakerView,
    ClearedView,
    NewBatchView,
    OwnerSettings,
    SettingList,
    SubscriberList,
)
from mainspring.client.operation import Given, Resource, S, listing, operation
from mainspring.client.request import seconds
from mainspring.client.resources.paging import PAGE_SIZE, all_pages
from mainspring.client.steps import Items

Owner = Literal["task", "queue", "limit"]


class Batches(Resource[S]):
    """Jobs that belong together."""

    @operation("POST", "/v1/batches", NewBatchView)
    def create(
        self,
        jobs: Sequence[NewJob],
        *,
        on_success: NewJob | None = None,
        on_failure: NewJob | None = None,
        on_finished: NewJob | None = None,
    ) -> Given:
        """Enqueue jobs together, and jobs that follow once all have finished. If one is invalid, none is enqueued."""
        follow_ups = {"on_success": on_success, "on_failure": on_failure, "on_finished": on_finished}
        plain = given({name: job_body(job) for name, job in follow_ups.items()})
        return Given(body={"jobs": [job_body(job) for job in jobs], **plain})

    @operation("GET", "/v1/batches", BatchPage)
    def page(self, *, limit: int = PAGE_SIZE, cursor: str | None = None) -> Given:
        """Return one page of batches, newest first."""
        return Given(query={"limit": limit, "cursor": cursor})

    @listing
    def list(self, *, page_size: int = PAGE_SIZE) -> Items[BatchSummaryView]:
        """Iterate over all batches, newest first."""
        return all_pages(Batches.page, self, lambda page: page.batches, {"limit": page_size})

    @operation("GET", "/v1/batches/{batch_id}", BatchView)
    def get(self, batch_id: str) -> Given:
        """Return how many jobs of a batch ended in which way."""
        return Given({"batch_id": batch_id})

    @operation("POST", "/v1/batches/{batch_id}:cancel", BatchCancelled)
    def cancel(self, batch_id: str, *, dry_run: bool = False, reason: str = "") -> Given:
        """Cancel the jobs of a batch that have not finished. With `dry_run`, only count them."""
        return Given({"batch_id": batch_id}, body={"dry_run": dry_run, "reason": reason})


class Breakers(Resource[S]):
    """Circuit breakers."""

    @operation("GET", "/v1/breakers", BreakerList)
    def list(self) -> Given:
        """Return all breakers that ever had errors or were set."""
        return Given()

    @operation("GET", "/v1/breakers/{name}", BreakerView)
    def get(self, name: str) -> Given:
        """Return a breaker."""
        return Given({"name": name})

    @operation("POST", "/v1/breakers/{name}:open", BreakerView)
    def open(self, name: str, *, open_for: Length | None = None, reason: str = "") -> Given:
        """Let no call through, for a time or until it is closed."""
        return Given({"name": name}, body=given({"open_for": seconds(open_for), "reason": reason}))

    @operation("POST", "/v1/breakers/{name}:close", BreakerView)
    def close(self, name: str, *, reason: str = "") -> Given:
        """Let all calls through, and wake the jobs that wait for it."""
        return Given({"name": name}, body={"reason": reason})


class Settings(Resource[S]):
    """Settings of tasks, queues and limits that are changed at run time."""

    @operation("GET", "/v1/settings", SettingList)
    def list(self) -> Given:
        """Return all settings that were changed, and the pauses of queues."""
        return Given()

    @operation("GET", "/v1/settings/{kind}/{name}", OwnerSettings)
    def get(self, kind: Owner, name: str) -> Given:
        """Return the changed settings of a task, a queue or a limit. Their `etag` changes with each change."""
        return Given({"kind": kind, "name": name})

    @operation("PATCH", "/v1/settings/{kind}/{name}", OwnerSettings)
    def change(
        self,
        kind: Owner,
        name: str,
        *,
        reason: str = "",
        if_match: str | None = None,
        **changes: Unpack[SettingChanges],
    ) -> Given:
        """Change settings. All processes use them within a second.

        With the `etag` that you have read as `if_match`, no change of others is overwritten.
        """
        body, headers = {**given(changes), "reason": reason}, {"if-match": if_match}
        return Given({"kind": kind, "name": name}, body=body, headers=headers)

    @operation("DELETE", "/v1/settings/{kind}/{name}", ClearedView)
    def clear(
        self, kind: Owner, name: str, *, option: OneOrMore = (), reason: str = "", if_match: str | None = None
    ) -> Given:
        """Go back to the values in the code: of some options, or of all."""
        query, headers = {"option": option, "reason": reason}, {"if-match": if_match}
        return Given({"kind": kind, "name": name}, query, headers=headers)


class Subscribers(Resource[S]):
    """Durable subscribers of the change feed."""

    @operation("GET", "/v1/subscribers", SubscriberList)
    def list(self) -> Given:
        """Return the subscribers, and how far they are."""
        return Given()

    @operation("DELETE", "/v1/subscribers/{name}", type(None))
    def remove(self, name: str) -> Given:
        """Forget a subscriber and its place."""
        return Given({"name": name})
