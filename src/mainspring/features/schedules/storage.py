"""A schedule as it is stored: what to run, when, and which occurrences are decided.

During an upgrade, versions of this program that know different fields read the same documents. A field in `schedule` or
`job` says when or what to run. A version that does not know such a field would run the wrong thing, so it leaves the
schedule to versions that do. To keep that rare, new fields there are written only if they are used. Any other field
that a version does not know is written back unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from mainspring.clock import to_millis
from mainspring.errors import InvalidSchedule, MainspringError
from mainspring.features.schedules.rules import Occurrence, Schedule, fires, tzdata_version
from mainspring.ids import new_id
from mainspring.job import Level, NewJob
from mainspring.json_text import from_json, to_json
from mainspring.stores.audit import plain
from mainspring.stores.documents import By, Document, Key, Note, Write

COLLECTION = "schedules"
MAX_VALUE_LENGTH = 2000  # characters of a value in the audit log
UNLOGGED_FIELDS = frozenset({"earlier"})  # past pauses, kept for bookkeeping only
PER_RUN_FIELDS = frozenset({"id", "run_at", "delay"})  # fields of a NewJob that differ from run to run
TICK = timedelta(microseconds=1)
REVISION_LENGTH = 32  # hex digits


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    id: str
    schedule: Schedule
    job: Mapping[str, Any]  # a NewJob's fields, without its id
    since: datetime  # creation or last change; for an interval from the last finish, that finish
    owner: str | None = None  # the package whose code declares it; None: created with `put`
    disabled: str = ""  # why it does not fire; empty if it does
    decided: Occurrence | None = None  # the newest occurrence that was fired or dropped
    next: Occurrence | None = None
    last_jobs: tuple[str, ...] = ()  # ids of the last fired jobs, oldest first: several if a catch-up fired several
    fires: int = 0  # total number
    tzdata: str = field(default_factory=tzdata_version)  # the version that `next` was computed with
    ahead: datetime | None = None  # occurrences until then may have fired early, by a clock that was ahead
    version: str = ""  # of its document
    others: Mapping[str, Any] = field(default_factory=dict)  # fields of its document that only newer versions know

    @property
    def task(self) -> str:
        return str(self.job["task"])

    @property
    def last_job(self) -> str | None:
        return self.last_jobs[-1] if self.last_jobs else None

    @property
    def undecided_since(self) -> datetime | Occurrence:
        """Return the instant or occurrence after which nothing was fired or dropped yet."""
        return self.since if self.decided is None or self.schedule.rule.from_finish else self.decided

    @property
    def enabled(self) -> bool:
        return not self.disabled

    @property
    def revision(self) -> str:
        """Return a text that changes whenever a person or the code changes the schedule, but not when it fires."""
        return sha256(to_json(facts(self)).encode()).hexdigest()[:REVISION_LENGTH]

    def describe(self) -> str:
        return self.schedule.describe()

    def derived(self) -> StoredSchedule:
        """Return this with `next` computed again: the first undecided occurrence, even if it is in the past."""
        return replace(self, next=self._following(), tzdata=tzdata_version())

    def rewound(self, now: datetime) -> StoredSchedule:
        """Return this as it continues after a clock that was ahead went back: future occurrences fire at their time.

        Nothing fires twice: up to `ahead`, the ledger is checked before an occurrence fires.
        """
        decided = None if self.decided is None else self.decided.utc
        known = [moment for moment in (self.ahead, decided) if moment is not None]
        since = min(self.since, now) if self.schedule.rule.from_finish else now
        return replace(self, since=since, decided=None, ahead=max(known, default=None)).derived()

    def _following(self) -> Occurrence | None:
        if self.disabled:
            return None
        if self.decided is None or self.schedule.rule.from_finish:
            return self.schedule.next_after(self.since)
        first = self.schedule.following(self.decided)
        return None if first is None else self.schedule.next_after(first.utc - TICK)  # skips pauses, unlike `following`

    def replaced(self, schedule: Schedule, now: datetime) -> StoredSchedule:
        """Return this with another schedule, enabled. A new rule starts from now.

        The same rule continues after the last decided occurrence, also in another time zone. A pause stays in force.
        """
        schedule = with_pause(schedule, self.schedule)
        new = replace(self, schedule=schedule, disabled="")
        if self.disabled or schedule.rule != self.schedule.rule:
            new = replace(new, decided=None, since=now)
        return new

    # -- looking ahead --------------------------------------------------------------------------------

    def position(self, now: datetime) -> datetime | Occurrence:
        """Return where a preview starts: now, if an interval from the last finish waits for its run to end."""
        waits = self.schedule.rule.from_finish and self.next is None
        return now if waits else self.undecided_since

    def coming(self, now: datetime) -> Occurrence | None:
        """Return the next occurrence that will fire. `next` may be overdue, and may then be dropped as too late."""
        if self.disabled or self.next is None or self.next.utc > now:
            return self.next
        return next(fires(self.schedule, now, since=self.undecided_since), None)

    # -- the job --------------------------------------------------------------------------------------

    def job_for(self, occurrence: Occurrence) -> NewJob:
        run_at = to_millis(self.schedule.run_at(occurrence, self.id))
        return self._job(run_at=run_at, delay=0, options=self._options_for(occurrence))

    def job_now(self, occurrence: Occurrence) -> NewJob:
        """Return the job of a triggered run: due at once, without jitter."""
        return self._job(run_at=None, delay=0, options=self._options_for(occurrence))

    def _options_for(self, occurrence: Occurrence) -> str:
        options = from_json(self.job.get("options") or "{}")
        return to_json(options | {"occurrence": {"schedule": self.id, **occurrence.to_data()}})

    def prepared(self) -> NewJob:
        """Return the prepared job, for another `put`."""
        target = self.job.get("target")
        return replace(self._job(), target=tuple(target) if target else None)

    def _job(self, **changes: Any) -> NewJob:
        given = {**self.job, **changes}
        given["tags"] = tuple(given.get("tags") or ())
        given["target"] = tuple(given.get("target") or ("schedule", self.id))
        return NewJob(id=new_id(), **given)

    # -- as a document --------------------------------------------------------------------------------

    @property
    def key(self) -> Key:
        return Key(COLLECTION, "", self.id)

    def write(self, *, look_at: datetime | None = None, became: str | None = None, actor: str | None = None) -> Write:
        """Return the write, which fails if another process has changed the schedule since it was read.

        The document comes due at `look_at`, or else at the next occurrence. The change feed records the write if
        `became` says what happened to the schedule. Fires only move it on, and their jobs are in the feed.
        """
        moment = look_at or (None if self.next is None else self.next.utc)
        return Write(
            self.key,
            to_json(self.to_data()),
            expected=self.version,
            due_at=None if moment is None or self.disabled else to_millis(moment),
            recorded=became is not None,
            became=became,
            actor=actor,
        )

    def to_data(self) -> dict[str, Any]:
        several = {"last_jobs": list(self.last_jobs)} if len(self.last_jobs) > 1 else {}
        return {
            **self.others,
            **several,
            "schedule": self.schedule.to_data(),
            "job": dict(self.job),
            "since": self.since.isoformat(),
            "owner": self.owner,
            "disabled": self.disabled,
            "decided": None if self.decided is None else self.decided.to_data(),
            "next": None if self.next is None else self.next.to_data(),
            "last_job": self.last_job,
            "fires": self.fires,
            "tzdata": self.tzdata,
            **({} if self.ahead is None else {"ahead": self.ahead.isoformat()}),
        }

    @classmethod
    def from_document(cls, document: Document) -> StoredSchedule:
        try:
            return cls._from_data(document.key.id, from_json(document.data), document.version)
        except (MainspringError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = error if isinstance(error, MainspringError) else repr(error)
            msg = (
                f"schedule {document.key.id!r} cannot be read by this version of Mainspring; a newer one may have "
                f"written it: {why}"
            )
            raise InvalidSchedule(msg) from error

    @classmethod
    def _from_data(cls, id: str, data: dict[str, Any], version: str) -> StoredSchedule:
        ahead = data.pop("ahead", None)
        return cls(
            id=id,
            schedule=Schedule.from_data(data.pop("schedule")),
            job=_checked(data.pop("job")),
            since=datetime.fromisoformat(data.pop("since")),
            owner=data.pop("owner"),
            disabled=data.pop("disabled"),
            decided=_occurrence(data.pop("decided")),
            next=_occurrence(data.pop("next")),
            last_jobs=_last_jobs(data.pop("last_job"), data.pop("last_jobs", ())),
            fires=data.pop("fires"),
            tzdata=data.pop("tzdata"),
            ahead=None if ahead is None else datetime.fromisoformat(ahead),
            version=version,
            others=data,  # the fields that were not taken above
        )


def with_pause(schedule: Schedule, known: Schedule) -> Schedule:
    """Return the schedule with the known one's pause: a person paused it, so new code must not resume it."""
    if known.pause is None or schedule.pause is not None:
        return schedule
    return replace(schedule, pause=known.pause, earlier=known.earlier)


def _last_jobs(last: str | None, several: Sequence[str]) -> tuple[str, ...]:
    """Return the last fired jobs. `several` is stale if an older version fired since: it writes `last` only."""
    return tuple(several) if several and several[-1] == last else (last,) if last else ()


def _occurrence(data: dict[str, Any] | None) -> Occurrence | None:
    return None if data is None else Occurrence.from_data(data)


def _checked(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job's fields that are set. Refuse unknown ones, unless they are None and thus change nothing."""
    given = {name: value for name, value in job.items() if value is not None}
    if unknown := given.keys() - {known.name for known in fields(NewJob)}:
        msg = f"job: unknown fields: {', '.join(sorted(unknown))}"
        raise InvalidSchedule(msg)
    return given


def template_of(job: NewJob) -> dict[str, Any]:
    """Return the fields of a prepared job that are the same in each run, without those that are not set."""
    lists = {name: list(given) for name in ("target", "tags") if (given := getattr(job, name)) is not None}
    values = {**asdict(job), "priority": int(job.priority), **lists}  # as they come back from JSON
    for name in ("timeout_level", "attempts_level"):
        if values[name] is Level.ENQUEUE:  # as in jobs that older versions prepared
            del values[name]
    return {name: value for name, value in values.items() if value is not None and name not in PER_RUN_FIELDS}


# -- in the audit log ------------------------------------------------------------------------------------


def note_change(by: By, action: str, before: StoredSchedule | None, after: StoredSchedule | None) -> Note | None:
    """Return what the audit log records of a change: the fields that changed, before and after. None if none did."""
    old, new = facts(before), facts(after)
    changed = {
        "before": {name: shortened(value) for name, value in old.items() if new.get(name) != value},
        "after": {name: shortened(value) for name, value in new.items() if old.get(name) != value},
    }
    stored = after or before
    if stored is None or not any(changed.values()):
        return None
    return Note(
        by,
        f"schedule.{action}",
        {"schedule": stored.id, **{when: values for when, values in changed.items() if values}},
    )


def shortened(value: Any) -> Any:
    """Return a value, cut if it is long: a large payload would not fit into a DynamoDB item twice."""
    return f"{value[:MAX_VALUE_LENGTH]}…" if isinstance(value, str) and len(value) > MAX_VALUE_LENGTH else value


def note_trigger(by: By, schedule: str, job_id: str) -> Note:
    return Note(by, "schedule.trigger", {"schedule": schedule, "job": job_id})


def facts(stored: StoredSchedule | None) -> dict[str, Any]:
    """Return the fields that a person or the code sets. What a fire changes is in the ledger, not in the audit log."""
    if stored is None:
        return {}
    job = {name: plain(name, value) for name, value in stored.job.items()}
    fields = {**stored.schedule.to_data(), **job, "owner": stored.owner, "disabled": stored.disabled}
    return {
        name: value for name, value in fields.items() if name not in UNLOGGED_FIELDS and value not in (None, "", [])
    }
