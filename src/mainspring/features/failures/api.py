"""`app.failures`: failures with the same cause, as groups that people resolve, mute and retry."""

from __future__ import annotations

import base64
import builtins
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any, Protocol, TypeVar

from mainspring.clock import Length, Millis, check_moment, duration, to_datetime, to_millis
from mainspring.errors import ConfigurationError, InvalidCursor
from mainspring.features.failures import rules
from mainspring.features.failures.group import MOST_DEAD, FailureGroup, GroupPage, GroupState
from mainspring.features.failures.index import EVERY_PROJECT
from mainspring.features.failures.rules import GroupData
from mainspring.features.failures.storage import GroupQuery, Groups, key_of
from mainspring.job import Status
from mainspring.names import check_searched
from mainspring.projects import check_project, pattern
from mainspring.services import Services, whoami
from mainspring.stores.documents import By, Key, Note
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
    automatic: bool = False  # the group would have come to this state by itself


class Failures:
    """All failure groups. Each read and change first adds up the failures that are committed by then."""

    def __init__(
        self, services: Services, groups: Groups, retry_where: RetryWhere, project: str = EVERY_PROJECT
    ) -> None:
        self._services = services
        self._groups = groups
        self._retry_where = retry_where
        self._project = project

    def of_project(self, name: str) -> Failures:
        """Return the failure groups of a project: the same methods, which find no others."""
        return Failures(self._services, self._groups, self._retry_where, check_project(name))

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
        moment = None if since is None else to_millis(check_moment(since, "since"))
        query = GroupQuery(states_of(state), checked_task(task), moment, self._project)
        check_limit(limit)
        after = None if cursor is None else parse_cursor(cursor, query)
        complete = await self._catch_up()
        page, last = await self._groups.page(query, after, limit)
        groups = await self._listed(page, complete=complete)
        return GroupPage(groups, None if last is None else to_cursor(last, query), complete)

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
        complete = await self._catch_up()
        return await self._shown(await self._groups.get(self._key(fingerprint)), complete=complete)

    def get_sync(self, fingerprint: str) -> FailureGroup:
        return self.run(self.get(fingerprint))

    async def beginning_with(self, beginning: str, *, limit: int = 10) -> builtins.list[FailureGroup]:
        """Return the groups whose fingerprint begins with this text, ordered by fingerprint.

        Groups of a project are found by the project and a dot before the beginning: `acme.4f1c`.
        """
        check_limit(limit)
        complete = await self._catch_up()
        groups = await self._groups.beginning_with(self._key(beginning), limit)
        return await self._listed(groups, complete=complete)

    def beginning_with_sync(self, beginning: str, *, limit: int = 10) -> builtins.list[FailureGroup]:
        return self.run(self.beginning_with(beginning, limit=limit))

    async def _catch_up(self) -> bool:
        """Add up failures; return whether all are counted that are committed by now."""
        await self._services.store.open()
        return await self._groups.catch_up()

    def _key(self, fingerprint: str) -> Key:
        """Return the key of a group. No group of another project has a key with this one."""
        key = key_of(checked(fingerprint))
        return key if self._project == EVERY_PROJECT else key._replace(group=self._project)

    async def _listed(self, groups: Sequence[GroupData], *, complete: bool) -> builtins.list[FailureGroup]:
        dead, now = await self._dead_of(groups), self._services.store.clock.now()
        return [group.shown(now, dead=dead[group.fingerprint], complete=complete) for group in groups]

    async def _shown(self, group: GroupData, *, complete: bool) -> FailureGroup:
        (shown,) = await self._listed([group], complete=complete)
        return replace(shown, traceback=await self._traceback(group))

    async def _dead_of(self, groups: Sequence[GroupData]) -> dict[str, Mapping[str, int]]:
        """Return for each group how many dead letters it has in each queue."""
        names = [group.fingerprint for group in groups]
        found = await self._services.store.dead_letters(names, MOST_DEAD, within=self._within) if names else {}
        return {name: found.get(name, {}) for name in names}

    @property
    def _within(self) -> tuple[str, ...]:
        return () if self._project == EVERY_PROJECT else (pattern(self._project),)

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
        """End the mute of a group: it opens, or is resolved if all its jobs have succeeded meanwhile.

        Groups in other states stay as they are.
        """
        complete = await self._catch_up()
        group = await self._groups.checked(await self._groups.get(self._key(fingerprint)))
        if group.state is not GroupState.MUTED:
            return await self._shown(group, complete=complete)
        verdict = Verdict(group.state_after_mute, "unmute", automatic=group.recovered)
        return await self._judge(fingerprint, verdict, note, actor)

    def unmute_sync(self, fingerprint: str, *, note: str = "", actor: str | None = None) -> FailureGroup:
        return self.run(self.unmute(fingerprint, note=note, actor=actor))

    async def reopen(self, fingerprint: str, *, note: str = "", actor: str | None = None) -> FailureGroup:
        """Open a group that is resolved or muted."""
        return await self._judge(fingerprint, Verdict(GroupState.OPEN, "reopen"), note, actor)

    def reopen_sync(self, fingerprint: str, *, note: str = "", actor: str | None = None) -> FailureGroup:
        return self.run(self.reopen(fingerprint, note=note, actor=actor))

    async def _judge(self, fingerprint: str, verdict: Verdict, note: str, actor: str | None) -> FailureGroup:
        check_note(note)
        complete = await self._catch_up()
        by = By(actor or whoami(), note)
        until = {} if verdict.until is None else {"until": to_datetime(verdict.until).isoformat()}
        entry = Note(by, f"failure.{verdict.action}", {"fingerprint": checked(fingerprint)} | until)

        def decide(group: GroupData, now: Millis) -> GroupData:
            after = rules.judged(group, verdict.state, now, note=note, actor=by.actor, until=verdict.until)
            return replace(after, automatic=verdict.automatic)

        group = await self._groups.change(self._key(fingerprint), decide, entry)
        return await self._shown(group, complete=complete)

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
        where = Filter(fingerprint=fingerprint, statuses=(Status.DEAD_LETTER,), within=self._within)
        return await self._retry_where(where, reason=reason, actor=actor, dry_run=dry_run, on_progress=on_progress)

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


# -- what is given --------------------------------------------------------------------------------


def states_of(given: str | GroupState | tuple[str | GroupState, ...] | None) -> tuple[GroupState, ...]:
    names = () if given is None else tuple(given) if isinstance(given, tuple | list) else (given,)
    if unknown := [name for name in names if name not in list(GroupState)]:
        msg = f"{unknown[0]!r} is not a state of a failure group; use any of {', '.join(GroupState)}"
        raise ConfigurationError(msg)
    return tuple(state for state in GroupState if not names or state in names)


def check_limit(limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        msg = f"limit is {limit!r}; give a number of groups from 1 to {MAX_LIMIT}"
        raise ConfigurationError(msg)


def check_note(note: str) -> None:
    check_searched(note, "note")
    if len(note) > LONGEST_NOTE:
        msg = f"the note has {len(note)} characters; give at most {LONGEST_NOTE}, and a link to what is longer"
        raise ConfigurationError(msg)


def checked_task(task: str | None) -> str | None:
    if task is not None:
        check_searched(task, "task")
    return task


def checked(fingerprint: str) -> str:
    check_searched(fingerprint, "fingerprint")
    return fingerprint


# -- cursors --------------------------------------------------------------------------------------


def to_cursor(entry: str, query: GroupQuery) -> str:
    return base64.urlsafe_b64encode(json.dumps([entry, mark_of(query)]).encode()).decode().rstrip("=")


def parse_cursor(text: str, query: GroupQuery) -> str:
    """Return the last entry of the page before. Raise InvalidCursor if the cursor is of a list with other filters."""
    try:
        entry, mark = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        check_searched(entry, "entry")
    except (ValueError, TypeError, RecursionError, ConfigurationError) as error:
        msg = f"{text!r} is not a cursor of failure groups; pass the `cursor` of a page"
        raise InvalidCursor(msg) from error
    if mark != mark_of(query):
        msg = f"{text!r} is the cursor of a list of failure groups with other filters; pass the same filters"
        raise InvalidCursor(msg)
    return str(entry)


def mark_of(query: GroupQuery) -> str:
    """Return what tells the lists apart to which a cursor may belong."""
    return sha256(repr(query).encode()).hexdigest()[:8]
