"""Failure groups and bulk actions."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from mainspring.client.inputs import JobFilter, Length, OneOrMore, filter_body, given
from mainspring.client.models import AffectedPage, AffectedView, BulkPage, BulkView, GroupPage, GroupView, RetriedView
from mainspring.client.operation import Given, Resource, S, listing, operation
from mainspring.client.request import seconds
from mainspring.client.resources.paging import PAGE_SIZE, all_pages
from mainspring.client.steps import Items


class Failures(Resource[S]):
    """Failures with the same cause, as groups."""

    @operation("GET", "/v1/failures", GroupPage)
    def page(
        self,
        *,
        state: OneOrMore = (),
        task: str | None = None,
        since: datetime | None = None,
        limit: int = PAGE_SIZE,
        cursor: str | None = None,
    ) -> Given:
        """Return one page of groups. The group that failed last comes first."""
        return Given(query={"state": state, "task": task, "since": since, "limit": limit, "cursor": cursor})

    @listing
    def list(
        self,
        *,
        state: OneOrMore = (),
        task: str | None = None,
        since: datetime | None = None,
        page_size: int = PAGE_SIZE,
    ) -> Items[GroupView]:
        """Iterate over all groups. The group that failed last comes first."""
        where = {"state": state, "task": task, "since": since, "limit": page_size}
        return all_pages(Failures.page, self, lambda page: page.groups, where)

    @operation("GET", "/v1/failures/{fingerprint}", GroupView)
    def get(self, fingerprint: str) -> Given:
        """Return a group with the traceback of its sample."""
        return Given({"fingerprint": fingerprint})

    @operation("POST", "/v1/failures/{fingerprint}:resolve", GroupView)
    def resolve(self, fingerprint: str, *, note: str = "") -> Given:
        """Mark a group as resolved. Its next failure opens it again."""
        return Given({"fingerprint": fingerprint}, body={"note": note})

    @operation("POST", "/v1/failures/{fingerprint}:mute", GroupView)
    def mute(
        self, fingerprint: str, *, until: datetime | None = None, length: Length | None = None, note: str = ""
    ) -> Given:
        """Mute a group until a time, for a length of time, or until `unmute`."""
        return Given(
            {"fingerprint": fingerprint}, body=given({"until": until, "length": seconds(length), "note": note})
        )

    @operation("POST", "/v1/failures/{fingerprint}:unmute", GroupView)
    def unmute(self, fingerprint: str, *, note: str = "") -> Given:
        """End a mute: open the group, or resolve it if all its jobs have succeeded meanwhile."""
        return Given({"fingerprint": fingerprint}, body={"note": note})

    @operation("POST", "/v1/failures/{fingerprint}:reopen", GroupView)
    def reopen(self, fingerprint: str, *, note: str = "") -> Given:
        """Open a group that is resolved or muted."""
        return Given({"fingerprint": fingerprint}, body={"note": note})

    @operation("POST", "/v1/failures/{fingerprint}:retry", RetriedView)
    def retry(self, fingerprint: str, *, dry_run: bool = False, reason: str = "") -> Given:
        """Retry all dead letters of a group. With `dry_run`, only count them."""
        return Given({"fingerprint": fingerprint}, body={"dry_run": dry_run, "reason": reason})


class BulkActions(Resource[S]):
    """Changes of many jobs, made by workers in the background."""

    @operation("POST", "/v1/bulk", BulkView)
    def start(
        self,
        action: Literal["cancel", "retry", "delete"],
        filter: JobFilter,
        *,
        dry_run: bool = False,
        expect: int | None = None,
        pace: float | None = None,
        canary: int | None = None,
        reason: str = "",
    ) -> Given:
        """Change all jobs that match now. Count first with `dry_run`, and confirm that number by `expect`."""
        options = given({"expect": expect, "pace": pace, "canary": canary})
        asked = {"action": action, "filter": filter_body(filter), "dry_run": dry_run, "reason": reason}
        return Given(body={**asked, **options})

    @operation("GET", "/v1/bulk", BulkPage)
    def page(self, *, limit: int = PAGE_SIZE, cursor: str | None = None) -> Given:
        """Return one page of bulk actions, newest first."""
        return Given(query={"limit": limit, "cursor": cursor})

    @listing
    def list(self, *, page_size: int = PAGE_SIZE) -> Items[BulkView]:
        """Iterate over all bulk actions, newest first."""
        return all_pages(BulkActions.page, self, lambda page: page.actions, {"limit": page_size})

    @operation("GET", "/v1/bulk/{bulk_id}", BulkView)
    def get(self, bulk_id: str) -> Given:
        """Return how far a bulk action is."""
        return Given({"bulk_id": bulk_id})

    @operation("GET", "/v1/bulk/{bulk_id}/jobs", AffectedPage)
    def jobs_page(self, bulk_id: str, *, limit: int = PAGE_SIZE, cursor: str | None = None) -> Given:
        """Return one page of the jobs that a bulk action has changed."""
        return Given({"bulk_id": bulk_id}, query={"limit": limit, "cursor": cursor})

    @listing
    def jobs(self, bulk_id: str, *, page_size: int = PAGE_SIZE) -> Items[AffectedView]:
        """Iterate over all jobs that a bulk action has changed, also those that were deleted."""
        asked = {"bulk_id": bulk_id, "limit": page_size}
        return all_pages(BulkActions.jobs_page, self, lambda page: page.jobs, asked)

    @operation("POST", "/v1/bulk/{bulk_id}:cancel", BulkView)
    def cancel(self, bulk_id: str, *, reason: str = "") -> Given:
        """Stop a bulk action. Jobs that it has changed stay changed."""
        return Given({"bulk_id": bulk_id}, body={"reason": reason})

    @operation("POST", "/v1/bulk/{bulk_id}:continue", BulkView)
    def go_on(self, bulk_id: str, *, reason: str = "") -> Given:
        """Let a bulk action go on that waits after its canary."""
        return Given({"bulk_id": bulk_id}, body={"reason": reason})
