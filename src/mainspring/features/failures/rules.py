"""How a failure group changes: by failures, by recoveries and by hand. Without I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from mainspring.clock import Millis, to_datetime
from mainspring.features.failures.group import FailureGroup, GroupState
from mainspring.stores.engine.failures import FailureNote

MAX_VERSIONS = 20
SKEW: Millis = 5000  # by which the clocks of two machines may differ


@dataclass(frozen=True, slots=True)
class GroupData:
    """A group as its document has it. Times are milliseconds."""

    fingerprint: str
    task: str
    error_type: str
    place: str
    message: str
    job_id: str
    first_seen: Millis
    last_seen: Millis
    count: int = 0
    versions: tuple[str, ...] = ()
    state: GroupState = GroupState.OPEN
    note: str = ""
    actor: str = ""
    changed_at: Millis | None = None
    automatic: bool = False
    until: Millis | None = None
    reopened: int = 0
    reopened_at: Millis | None = None
    reopened_version: str = ""
    recovered: bool = False  # of a muted group: all its jobs have succeeded, so it is resolved when the mute ends

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def state_at(self, now: Millis) -> GroupState:
        """Return the state. A mute ends by itself."""
        over = self.state is GroupState.MUTED and self.until is not None and self.until <= now
        return self.state_after_mute if over else self.state

    @property
    def state_after_mute(self) -> GroupState:
        return GroupState.RESOLVED if self.recovered else GroupState.OPEN

    def shown(self, now: Millis, *, dead: Mapping[str, int], complete: bool) -> FailureGroup:
        values = {name: getattr(self, name) for name in self.__slots__ if name != "recovered"}
        for name in ("first_seen", "last_seen", "changed_at", "until", "reopened_at"):
            values[name] = None if values[name] is None else to_datetime(values[name])
        counted = {"dead": sum(dead.values()), "dead_in": dead, "complete": complete}
        return FailureGroup(**values | {"state": self.state_at(now)} | counted)


def from_json(text: str) -> GroupData:
    """Make a group from its document. Fields of newer versions are left out."""
    values = {name: value for name, value in json.loads(text).items() if name in GroupData.__slots__}
    return GroupData(**values | {"versions": tuple(values["versions"]), "state": GroupState(values["state"])})


def failed(group: GroupData | None, note: FailureNote, now: Millis) -> GroupData:
    """Add failures to a group. A group that was resolved before they happened is open again."""
    if group is None:
        group = GroupData(
            note.fingerprint, note.task, note.error_type, note.place, note.message, note.job_id, note.at, note.at
        )
    group = replace(
        group,
        count=group.count + note.count,
        first_seen=min(group.first_seen, note.at),
        versions=merged(group.versions, note.versions),
    )
    if note.at >= group.last_seen:
        group = replace(group, last_seen=note.at, message=note.message, job_id=note.job_id, place=note.place)
    return replace(reopened(group, note, now), recovered=False)


def unmuted(group: GroupData, now: Millis) -> GroupData:
    """Open a group whose mute is over, or resolve it if all its jobs have succeeded meanwhile."""
    if group.state_at(now) is group.state:
        return group
    ended = replace(group, state=GroupState.OPEN, changed_at=group.until, until=None)
    return resolved(ended, ended.changed_at) if group.recovered else ended


def reopened(group: GroupData, note: FailureNote, now: Millis) -> GroupData:
    group = unmuted(group, note.at)
    if group.state is not GroupState.RESOLVED or is_older(note, group.changed_at or 0, now):
        return group
    return opened_again(group, note)


def is_older(note: FailureNote, resolved_at: Millis, now: Millis) -> bool:
    """Return whether failures happened before the group was resolved.

    A group that was resolved in the future was resolved before the clock was set back, so the failures are newer.
    """
    return note.at <= resolved_at <= now + SKEW


def opened_again(group: GroupData, note: FailureNote) -> GroupData:
    return replace(
        group,
        state=GroupState.OPEN,
        changed_at=note.at,
        automatic=False,
        reopened=group.reopened + 1,
        reopened_at=note.at,
        reopened_version=note.versions[-1] if note.versions else "",
    )


def merged(known: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
    """Return the versions with the new ones at the end, up to `MAX_VERSIONS`."""
    return (*(version for version in known if version not in new), *new)[-MAX_VERSIONS:]


def recovered(group: GroupData, now: Millis) -> GroupData:
    """Resolve an open group: a job of it has succeeded, and no other is left that has not. A muted one is marked."""
    state = group.state_at(now)
    if state is GroupState.MUTED:
        return replace(group, recovered=True)
    return resolved(group, now) if state is GroupState.OPEN else group


def resolved(group: GroupData, at: Millis | None) -> GroupData:
    """Return the group as it is after it has resolved itself."""
    group = replace(group, note="", actor="", until=None, recovered=False)
    return replace(group, state=GroupState.RESOLVED, changed_at=at, automatic=True)


def judged(
    group: GroupData, state: GroupState, now: Millis, *, note: str, actor: str, until: Millis | None = None
) -> GroupData:
    """Give the group the state that a person has chosen. A mute does not forget that all jobs have succeeded."""
    recovered = state is GroupState.MUTED and (group.recovered or is_resolved_by_itself(group))
    group = replace(group, automatic=False, recovered=recovered)
    return replace(group, state=state, note=note, actor=actor, changed_at=now, until=until)


def is_resolved_by_itself(group: GroupData) -> bool:
    return group.state is GroupState.RESOLVED and group.automatic
