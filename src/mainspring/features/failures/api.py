"""`app.failures`: failures with the same cause, as groups that people resolve, mute and retry."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

from mainspring.clock import Length, Millis, check_moment, duration, to_datetime, to_millis
from mainspring.errors import ConfigurationError, InvalidCursor
from mainspring.features.failures import rules
from mainspring.features.failures.group import MOST_DEAD, FailureGroup, GroupPage, GroupState
from mainspring.features.failures.rules import GroupData
from mainspring.features.failures.storage import Groups
from mainspring.job import Status
from mainspring.names import check_searched
from mainspring.services import Services, whoami
from mainspring.stores.documents import By, Note
from mainspring.stores.protocol import ChangeResult, Filter

T = TypeVar("T")
MAX_LIMIT = 1000
LONGEST_NOTE = 4000  # characters


class RetryWhere(Protocol):
    """Retries all jobs that match a filter: `Jobs.retry_where`."""

    def __call__(
        self,
        where: Filter,
        *,
        reason: str = "",
        actor: str | None = None,
        dry_run: bool = False,
        on_progress: Callable[[int], None] = ...,
    ) -> Coroutine[Any, Any, ChangeResult]: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a person says about a group."""

    state: GroupState
    action: str  # its name in the audit log
    until: Millis | None = None


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """Which groups a list shows."""

    states: tuple[GroupState, ...]
    task: str | None
    since: Millis | None

    def wants(self, group: GroupData, now: Millis) -> bool:
        return (
            (not self.states or group.state_at(now) in self.states)
            and self.task in (None, group.task)
            and (self.since is None or group.last_seen >= self.since)
        )


class Failures:
    """All failure groups. Each read and change first adds up the failures that are committed by then."""

    def __init__(self, services: Services, groups: Groups, retry_where: RetryWhere) -> None:
        self._services = services
        self._groups = groups
        self._retry_where = retry_where

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of this API from code without an event loop."""
        return self._services.run(work)

    # -- looking ----------------------------------------------------------------------------------

    async def list(
        self,
        *,
        state: str | GroupState | tuple[str | GroupState, ...] | None = None,
        task: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> GroupPage:
        """Return a page of groups, the one that failed last first. `since` leaves out those that failed before it."""
        query = GroupQuery(states_of(state), task, None if since is None else to_millis(check_moment(since, "since")))
        check_limit(limit)
        after = None if cursor is None else parse_cursor(cursor)
        complete = await self._add_up()
        now = self._services.store.clock.now()
        found = sorted((order_of(group), group) for group in await self._groups.all() if query.wants(group, now))
        rest = [group for order, group in found if after is None or order > after]
        page = [group.shown(now, dead=await self._count_dead(group.fingerprint)) for group in rest[:limit]]
        return GroupPage(page, to_cursor(rest[limit - 1]) if len(rest) > limit else None, complete)

    def list_sync(
        self,
        *,
        state: str | GroupState | tuple[str | GroupState, ...] | None = None,
        task: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> GroupPage:
        return self.run(self.list(state=state, task=task, since=since, limit=limit, cursor=cursor))

    async def get(self, fingerprint: str) -> FailureGroup:
        """Return a group, with the traceback of its sample. Raise FailureGroupNotFound if there is none."""
        await self._add_up()
        return await self._shown(await self._groups.get(checked(fingerprint)))

    def get_sync(self, fingerprint: str) -> FailureGroup:
        return self.run(self.get(fingerprint))

    async def _add_up(self) -> bool:
        await self._services.store.open()
        return await self._groups.add_up()

    async def _shown(self, group: GroupData) -> FailureGroup:
        dead, trace = await self._count_dead(group.fingerprint), await self._traceback(group)
        return group.shown(self._services.store.clock.now(), dead=dead, traceback=trace)

    async def _count_dead(self, fingerprint: str) -> int:
        return (await self._services.store.count_up_to(dead_letters(fingerprint), MOST_DEAD)).value

    async def _traceback(self, group: GroupData) -> str:
        """Return the traceback of the sample's last failure in this group; empty if retention has removed the job."""
        attempts = await self._services.store.attempts(group.job_id)
        failures = [attempt.failure for attempt in attempts if attempt.failure is not None]
        return next((each.traceback for each in reversed(failures) if each.fingerprint == group.fingerprint), "")

    # -- judging ----------------------------------------------------------------------------------

    async def resolve(self, fingerprint: str, *, note: str = "", actor: str | None = None) -> FailureGroup:
        """Mark a group as resolved. Its next failure opens it again."""
        return await self._judge(fingerprint, Verdict(GroupState.RESOLVED, "resolve"), note, actor)

    def resolve_sync(self, fingerprint: str, *, note: str = "", actor: str | None = None) -> FailureGroup:
        return self.run(self.resolve(fingerprint, note=note, actor=actor))

    async def mute(
        self,
        fingerprint: str,
        *,
        until: datetime | None = None,
        length: Length | None = None,
        note: str = "",
        actor: str | None = None,
    ) -> FailureGroup:
        """Mute a group: until a time, for a length of time, or until `unmute`. It goes on counting failures."""
        if until is not None and length is not None:
            msg = "give until or length, not both"
            raise ConfigurationError(msg)
        end = None if until is None else to_millis(check_moment(until, "until"))
        now = self._services.store.clock.now()
        if length is not None:
            end = now + duration(length)
        if end is not None and end <= now:
            msg = f"the mute would end at {to_datetime(end):%Y-%m-%d %H:%M} UTC, which is past; give a later time"
            raise ConfigurationError(msg)
        return await self._judge(fingerprint, Verdict(GroupState.MUTED, "mute", end), note, actor)

    def mute_sync(
        self,
        fingerprint: str,
        *,
        until: datetime | None = None,
        length: Length | None = None,
        note: str = "",
        actor: str | None = None,
    ) -> FailureGroup:
        return self.run(self.mute(fingerprint, until=until, length=length, note=note, actor=actor))

    async def unmute(self, fingerprint: str, *, note: str = "", actor: str | None = None) -> FailureGroup:
        """Open a muted group. Groups in other states stay as they are."""
        await self._add_up()
        group = await self._groups.get(checked(fingerprint))
        if group.state is not GroupState.MUTED:
            return await self._shown(group)
        return await self._judge(fingerprint, Verdict(GroupState.OPEN, "unmute"), note, actor)

    def unmute_sync(self, fingerprint: str, *, note: str = "", actor: str | None = None) -> FailureGroup:
        return self.run(self.unmute(fingerprint, note=note, actor=actor))

    async def reopen(self, fingerprint: str, *, note: str = "", actor: str | None = None) -> FailureGroup:
        """Open a group that is resolved or muted."""
        return await self._judge(fingerprint, Verdict(GroupState.OPEN, "reopen"), note, actor)

    def reopen_sync(self, fingerprint: str, *, note: str = "", actor: str | None = None) -> FailureGroup:
        return self.run(self.reopen(fingerprint, note=note, actor=actor))

    async def _judge(self, fingerprint: str, verdict: Verdict, note: str, actor: str | None) -> FailureGroup:
        check_note(note)
        await self._add_up()
        by = By(actor or whoami(), note)
        detail = {"fingerprint": checked(fingerprint)} | ({} if verdict.until is None else {"until": verdict.until})

        def decide(group: GroupData, now: Millis) -> GroupData:
            return rules.judged(group, verdict.state, now, note=note, actor=by.actor, until=verdict.until)

        after = await self._groups.change(fingerprint, decide, Note(by, f"failure.{verdict.action}", detail))
        return await self._shown(after)

    # -- retrying ---------------------------------------------------------------------------------

    async def retry(
        self,
        fingerprint: str,
        *,
        reason: str = "",
        actor: str | None = None,
        dry_run: bool = False,
        on_progress: Callable[[int], None] = lambda _count: None,
    ) -> ChangeResult:
        """Retry all dead letters of a group. When the last of its jobs has succeeded, the group is resolved."""
        await self.get(fingerprint)  # a mistyped fingerprint would look like success
        return await self._retry_where(
            dead_letters(fingerprint), reason=reason, actor=actor, dry_run=dry_run, on_progress=on_progress
        )

    def retry_sync(
        self,
        fingerprint: str,
        *,
        reason: str = "",
        actor: str | None = None,
        dry_run: bool = False,
        on_progress: Callable[[int], None] = lambda _count: None,
    ) -> ChangeResult:
        work = self.retry(fingerprint, reason=reason, actor=actor, dry_run=dry_run, on_progress=on_progress)
        return self.run(work)


def dead_letters(fingerprint: str) -> Filter:
    return Filter(fingerprint=fingerprint, statuses=(Status.DEAD_LETTER,))


# -- what is given --------------------------------------------------------------------------------


def states_of(given: str | GroupState | tuple[str | GroupState, ...] | None) -> tuple[GroupState, ...]:
    names = () if given is None else tuple(given) if isinstance(given, tuple | list) else (given,)
    if unknown := [name for name in names if name not in list(GroupState)]:
        msg = f"{unknown[0]!r} is not a state of a failure group; use any of {', '.join(GroupState)}"
        raise ConfigurationError(msg)
    return tuple(GroupState(name) for name in names)


def check_limit(limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        msg = f"limit is {limit!r}; give a number of groups from 1 to {MAX_LIMIT}"
        raise ConfigurationError(msg)


def check_note(note: str) -> None:
    check_searched(note, "note")
    if len(note) > LONGEST_NOTE:
        msg = f"the note has {len(note)} characters; give at most {LONGEST_NOTE}, and a link to what is longer"
        raise ConfigurationError(msg)


def checked(fingerprint: str) -> str:
    check_searched(fingerprint, "fingerprint")
    return fingerprint


# -- cursors --------------------------------------------------------------------------------------

Order = tuple[int, str]


def order_of(group: GroupData) -> Order:
    return -group.last_seen, group.fingerprint


def to_cursor(group: GroupData) -> str:
    return base64.urlsafe_b64encode(json.dumps(order_of(group)).encode()).decode().rstrip("=")


def parse_cursor(text: str) -> Order:
    try:
        moment, fingerprint = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        return int(moment), str(fingerprint)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        msg = f"{text!r} is not a cursor of failure groups; pass the `cursor` of a page"
        raise InvalidCursor(msg) from error
