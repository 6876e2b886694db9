"""Schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from typing_extensions import Unpack

from mainspring.client.inputs import RuleOptions, ScheduledJob, given, job_body
from mainspring.client.models import (
    DiffView,
    LedgerView,
    PreviewView,
    Schedule,
    ScheduleList,
    ScheduleView,
    SimulationView,
    TriggeredView,
)
from mainspring.client.operation import Given, Resource, S, listing, operation
from mainspring.client.resources.paging import PAGE_SIZE, all_pages
from mainspring.client.steps import Items

Rule = str | Mapping[str, Any]
"""Text such as `30 2 * * *`, `every 90s` or `daily 09:00`, or the object that `get` shows."""


class Schedules(Resource[S]):
    """Jobs that recur."""

    @operation("GET", "/v1/schedules", ScheduleList)
    def page(self, *, limit: int = PAGE_SIZE, cursor: str | None = None) -> Given:
        """Return one page of schedules, by id."""
        return Given(query={"limit": limit, "cursor": cursor})

    @listing
    def list(self, *, page_size: int = PAGE_SIZE) -> Items[ScheduleView]:
        """Iterate over all schedules with their states and next times. Pages are read as you go."""
        return all_pages(Schedules.page, self, lambda page: page.schedules, {"limit": page_size})

    @operation("GET", "/v1/schedules/{schedule_id}", Schedule)
    def get(self, schedule_id: str) -> Given:
        """Return a schedule. Its `etag` changes when somebody changes the schedule, but not when it fires."""
        return Given({"schedule_id": schedule_id})

    @operation("PUT", "/v1/schedules/{schedule_id}", Schedule)
    def put(
        self,
        schedule_id: str,
        rule: Rule,
        job: ScheduledJob,
        *,
        reason: str = "",
        if_match: str | None = None,
        if_none_match: str | None = None,
        **options: Unpack[RuleOptions],
    ) -> Given:
        """Create or replace a schedule. With the `etag` that you have read as `if_match`, no change is overwritten.

        With `if_none_match="*"`, it is only created.
        """
        body = {**options, "rule": rule, "job": job_body(job), "reason": reason}
        headers = {"if-match": if_match, "if-none-match": if_none_match}
        return Given({"schedule_id": schedule_id}, body=body, headers=headers)

    @operation("DELETE", "/v1/schedules/{schedule_id}", type(None))
    def delete(self, schedule_id: str, *, reason: str = "", if_match: str | None = None) -> Given:
        """Delete a schedule. Its jobs and its ledger stay."""
        return Given({"schedule_id": schedule_id}, {"reason": reason}, headers={"if-match": if_match})

    @operation("POST", "/v1/schedules/{schedule_id}:pause", Schedule)
    def pause(self, schedule_id: str, *, until: datetime | None = None, reason: str = "") -> Given:
        """Stop a schedule for now, until a time or until it is resumed."""
        return Given({"schedule_id": schedule_id}, body=given({"until": until, "reason": reason}))

    @operation("POST", "/v1/schedules/{schedule_id}:resume", Schedule)
    def resume(self, schedule_id: str, *, reason: str = "") -> Given:
        """Let a schedule fire again from now on."""
        return Given({"schedule_id": schedule_id}, body={"reason": reason})

    @operation("POST", "/v1/schedules/{schedule_id}:trigger", TriggeredView)
    def trigger(self, schedule_id: str, *, reason: str = "") -> Given:
        """Run a schedule's job once now, in addition to its times."""
        return Given({"schedule_id": schedule_id}, body={"reason": reason})

    @operation("GET", "/v1/schedules/{schedule_id}/preview", PreviewView)
    def preview(self, schedule_id: str, *, limit: int = 10, reader: str = "UTC") -> Given:
        """Return the coming times of a schedule, also in the time zone of a reader."""
        return Given({"schedule_id": schedule_id}, {"limit": limit, "reader": reader})

    @operation("GET", "/v1/schedules/{schedule_id}/ledger", LedgerView)
    def ledger(self, schedule_id: str, *, limit: int = 100, before: datetime | None = None) -> Given:
        """Return what became of a schedule's times, newest first."""
        return Given({"schedule_id": schedule_id}, {"limit": limit, "before": before})

    @operation("POST", "/v1/schedules/{schedule_id}/diff", DiffView)
    def diff(
        self, schedule_id: str, rule: Rule, *, days: int = 90, limit: int = 100, **options: Unpack[RuleOptions]
    ) -> Given:
        """Return which times a change would add, remove or move. Nothing is saved."""
        return Given({"schedule_id": schedule_id}, body={**options, "rule": rule, "days": days, "limit": limit})

    @operation("POST", "/v1/schedules:preview", PreviewView)
    def preview_rule(
        self,
        rule: Rule,
        *,
        limit: int = 10,
        since: datetime | None = None,
        reader: str = "UTC",
        **options: Unpack[RuleOptions],
    ) -> Given:
        """Return the coming times of any rule. Nothing is saved."""
        asked = given({"since": since, "limit": limit, "reader": reader})
        return Given(body={**options, "rule": rule, **asked})

    @operation("POST", "/v1/schedules:simulate", SimulationView)
    def simulate(self, *, ids: Sequence[str] = (), days: int = 30, since: datetime | None = None) -> Given:
        """Return what schedules would do in the coming days. Nothing is run or saved."""
        return Given(body=given({"ids": ids, "days": days, "since": since}))
