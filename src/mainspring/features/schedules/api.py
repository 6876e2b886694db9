"""`app.schedules`: create, read and change the schedules in the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Self, Unpack

from mainspring.errors import (
    ConfigurationError,
    EditConflict,
    InvalidCursor,
    InvalidSchedule,
    ScheduleNotFound,
    StoreBusy,
)
from mainspring.features.schedules.firing import SCHEDULES, Entry, triggered, undecided_entries
from mainspring.features.schedules.rules import (
    PACKAGED,
    PoliciesInTimeZone,
    PreviewRow,
    Rule,
    Schedule,
    ScheduleChange,
    TzData,
    compare_schedules,
    preview_schedule,
)
from mainspring.features.schedules.storage import COLLECTION, StoredSchedule, note_change, note_trigger, template_of
from mainspring.job import Inserted, NewJob
from mainspring.log import get_log
from mainspring.pipeline import Pipeline
from mainspring.projects import beginning, check_project, in_project, moved
from mainspring.queue_patterns import project_of
from mainspring.services import Services, whoami
from mainspring.stores.documents import ABSENT, Bundle, By, Key, Note, Write
from mainspring.stores.paging import page_by_id, pages

log = get_log("mainspring.schedules")

When = Schedule | Rule | timedelta | str
"""When something runs: a schedule, a rule, an interval, or a text for one of these."""

MAX_TRIES = 20  # of a change while other processes change the same schedule
COMPARED_TIME = timedelta(days=366)
NOT_IN_CODE = "it is no longer in the code"


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule as the code declares it."""

    id: str
    schedule: Schedule
    job: NewJob
    owner: str


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """Schedules by id."""

    schedules: list[StoredSchedule]
    unreadable: dict[str, str]  # why this version cannot read some schedules, by their ids
    last: str | None  # the next page comes after this id; None: this was the last


class Schedules:
    """The schedules of an application. Each change takes effect at once, in every process."""

    def __init__(self, services: Services, pipeline: Pipeline, project: str | None = None) -> None:
        self._services = services
        self._pipeline = pipeline
        self._project = project
        self.declared: dict[str, Declared] = {}

    def in_project(self, name: str) -> Self:
        """Return the schedules of a project. There, `nightly` means the schedule `p/<project>/nightly`."""
        own = type(self)(self._services, self._pipeline, check_project(name))
        own.declared = {known: declared for known, declared in self.declared.items() if project_of(known) == name}
        return own

    def full_id(self, id: str) -> str:
        """Return the id of a schedule as it is stored: with that of the project."""
        return id if self._project is None else in_project(self._project, id)

    # -- creating -------------------------------------------------------------------------------------

    async def put(
        self,
        id: str,
        when: When,
        job: NewJob,
        *,
        reason: str = "",
        actor: str | None = None,
        expect: str | None = None,
        **policies: Unpack[PoliciesInTimeZone],
    ) -> StoredSchedule:
        """Create or replace a schedule: `put("nightly", "0 2 * * *", sync.prepare(), tz="Asia/Tokyo")`.

        `job` is a prepared job, so its arguments are checked already. A new rule starts from now. The same rule in
        another time zone continues after the last fired occurrence: no local time is fired twice or left out.

        `expect` is the `revision` of the schedule that you have read, or "" if it must not exist yet. If it has changed
        since, nothing is written, and EditConflict is raised.
        """
        schedule, full_id = as_schedule(when, **policies), self.full_id(id)
        if self._project is not None:
            job = moved(job, self._project)
        refuse_bad_id(full_id)
        refuse_other_project(full_id, job)
        if full_id in self.declared:
            msg = f"schedule {full_id!r} is declared in the code; change it there, or use another id"
            raise ConfigurationError(msg)
        return await self._put(full_id, schedule, job, By(actor or whoami(), reason), owner=None, expect=expect)

    async def _put(
        self, id: str, schedule: Schedule, job: NewJob, by: By, *, owner: str | None, expect: str | None = None
    ) -> StoredSchedule:
        for _ in range(MAX_TRIES):
            known = await self._find(id)
            refuse_other(id, known, expect)
            if owner is None:
                refuse_code(known)
            new = self._made(known, id, schedule, job, owner)
            if new is known:
                return new
            restarts = known is not None and new.decided is None
            gone = (
                undecided_entries(
                    known, self._services.now(), "changed", "the schedule was changed before it was fired"
                )
                if known is not None and restarts
                else ()
            )
            became = "created" if known is None else "updated"
            own = new.write(became=became, actor=by.actor)
            if await self._write(own, note_change(by, "put", known, new), gone):
                return await self.get(id)
        raise _too_busy(id)

    def _made(
        self, known: StoredSchedule | None, id: str, schedule: Schedule, job: NewJob, owner: str | None
    ) -> StoredSchedule:
        if known is None:
            return StoredSchedule(id, schedule, template_of(job), self._services.now(), owner, version=ABSENT).derived()
        new = replace(known.replaced(schedule, self._services.now()), job=template_of(job), owner=owner)
        return known if new == known else new.derived()

    # -- reading --------------------------------------------------------------------------------------

    async def get(self, id: str) -> StoredSchedule:
        """Return a schedule. Raise ScheduleNotFound if it does not exist."""
        found = await self._find(self.full_id(id))
        if found is None:
            msg = f"there is no schedule {self.full_id(id)!r}"
            raise ScheduleNotFound(msg)
        return found

    async def _find(self, id: str) -> StoredSchedule | None:
        found = await self._services.store.documents([Key(COLLECTION, "", id)])
        return StoredSchedule.from_document(found[0]) if found else None

    @property
    def _prefix(self) -> str:
        return "" if self._project is None else beginning(self._project)

    async def page(self, limit: int = 100, after: str | None = None) -> SchedulePage:
        """Return schedules by id, after an id, and the last id if there are more."""
        if after is not None and not after.startswith(self._prefix):
            msg = f"{after!r} is not the id of a schedule of this project; give the last id of the page before"
            raise InvalidCursor(msg)
        documents, last = await page_by_id(self._services.store, COLLECTION, limit, after, prefix=self._prefix)
        page = SchedulePage([], {}, last)
        for document in documents:
            try:
                page.schedules.append(StoredSchedule.from_document(document))
            except InvalidSchedule as error:
                page.unreadable[document.key.id] = str(error)
        return page

    async def list(self) -> list[StoredSchedule]:
        """Return the schedules that this version can read."""
        return [stored async for stored in self.all()]

    async def all(self) -> AsyncIterator[StoredSchedule]:
        """Yield the schedules that this version can read; `unreadable` returns the others."""
        async for _, stored in self._all():
            if isinstance(stored, StoredSchedule):
                yield stored

    async def unreadable(self) -> dict[str, str]:
        """Return why this version cannot read some schedules, by their ids. Only newer versions fire those."""
        return {name: str(found) async for name, found in self._all() if isinstance(found, InvalidSchedule)}

    async def _all(self) -> AsyncIterator[tuple[str, StoredSchedule | InvalidSchedule]]:
        async for page in pages(self._services.store, COLLECTION, prefix=self._prefix):
            for document in page:
                try:
                    yield document.key.id, StoredSchedule.from_document(document)
                except InvalidSchedule as error:
                    yield document.key.id, error

    async def ledger(self, id: str, *, limit: int = 100, before: datetime | None = None) -> Sequence[Entry]:
        """Return what became of the schedule's occurrences, newest first."""
        found = await self._services.store.browse(SCHEDULES.page(self.full_id(id), limit, before))
        return [Entry.from_document(document) for document in found]

    async def preview(self, id: str, count: int = 10, *, reader: str = "UTC") -> Sequence[PreviewRow]:
        """Return the next fires, each in the schedule's time zone, in UTC and in the reader's.

        Occurrences that have fired are left out, even after a change of time zone. Overdue ones come first, if they
        will be caught up.
        """
        stored, now = await self.get(id), self._services.now()
        if stored.disabled:
            return []
        return preview_schedule(stored.schedule, now, count, since=stored.position(now), reader=reader)

    async def compare(
        self, id: str, when: When, *, ahead: timedelta = COMPARED_TIME, **policies: Unpack[PoliciesInTimeZone]
    ) -> Sequence[ScheduleChange]:
        """Return how the coming fires would change if `put` replaced the schedule by this one."""
        stored, now = await self.get(id), self._services.now()
        return compare_stored(stored, stored.replaced(as_schedule(when, **policies), now), now, ahead)

    # -- changing -------------------------------------------------------------------------------------

    async def pause(
        self, id: str, *, until: datetime | None = None, reason: str = "", actor: str | None = None
    ) -> StoredSchedule:
        """Stop firing until `until`, or until `resume`. Occurrences during the pause are not caught up."""
        now, by = self._services.now(), By(actor or whoami(), reason)
        return await self._change(id, "pause", by, lambda old: replace(old, schedule=old.schedule.paused(now, until)))

    async def resume(self, id: str, *, reason: str = "", actor: str | None = None) -> StoredSchedule:
        """Fire again from now on. The ledger lists the occurrences that fell into the pause at once."""
        now, by = self._services.now(), By(actor or whoami(), reason)
        return await self._change(
            id, "resume", by, lambda old: replace(old, schedule=old.schedule.resumed(now)), look_at=now
        )

    async def trigger(self, id: str, *, reason: str = "", actor: str | None = None) -> Inserted:
        """Run the job once now, in addition to its times. `ctx.occurrence` is now, in the schedule's time zone."""
        stored, by = await self.get(id), By(actor or whoami(), reason)
        occurrence = stored.schedule.occurrence_at(self._services.now())
        job = stored.job_now(occurrence)
        entry = triggered(occurrence, job.id, by.actor)
        bundle = Bundle((entry.write(SCHEDULES, stored.id),), (job,), note_trigger(by, stored.id, job.id))
        (inserted,) = await self._pipeline.write([bundle])
        assert inserted is not None  # noqa: S101 - the write has no condition that could fail
        return inserted[0]

    async def delete(self, id: str, *, reason: str = "", actor: str | None = None, expect: str | None = None) -> None:
        """Delete a schedule. Its ledger stays until it expires, and its jobs stay too. `expect` is as in `put`."""
        by = By(actor or whoami(), reason)
        for _ in range(MAX_TRIES):
            stored = await self.get(id)
            refuse_other(stored.id, stored, expect)
            if stored.id in self.declared:
                msg = f"schedule {id!r} is declared in the code and would come back; remove it there, or pause it"
                raise ConfigurationError(msg)
            gone = undecided_entries(
                stored, self._services.now(), "removed", "the schedule was deleted before it was fired"
            )
            writes = (
                Write(stored.key, None, stored.version, recorded=True, became="deleted", actor=by.actor),
                *(entry.write(SCHEDULES, stored.id) for entry in gone),
            )
            (answer,) = await self._services.store.write([Bundle(writes, note=note_change(by, "delete", stored, None))])
            if answer is not None or await self._find(stored.id) is None:  # deleted, by this process or by another
                return  # else it fired meanwhile, and `gone` is no longer right
        raise _too_busy(id)

    async def _change(
        self,
        id: str,
        action: str,
        by: By,
        change: Callable[[StoredSchedule], StoredSchedule],
        *,
        look_at: datetime | None = None,
    ) -> StoredSchedule:
        for _ in range(MAX_TRIES):
            known = await self.get(id)
            new = change(known).derived()
            gone = undecided_entries(known, self._services.now(), "removed", new.disabled) if new.disabled else ()
            own = new.write(look_at=look_at, became=f"{action}d", actor=by.actor)  # paused, resumed, disabled
            if await self._write(own, note_change(by, action, known, new), gone):
                return await self.get(id)
        raise _too_busy(id)

    async def _write(self, own: Write, note: Note | None, gone: Sequence[Entry] = ()) -> bool:
        writes = own, *(entry.write(SCHEDULES, own.key.id) for entry in gone)
        (answer,) = await self._services.store.write([Bundle(writes, note=note)])
        return answer is not None

    # -- declared in code ---------------------------------------------------------------------------------

    def declare(self, declared: Declared) -> None:
        known = self.declared.get(declared.id)
        if known is not None and known.job.task != declared.job.task:
            msg = f"two schedules are called {declared.id!r}: give one of them another name with @app.every(…, id=…)"
            raise ConfigurationError(msg)
        refuse_other_project(declared.id, declared.job)
        self.declared[declared.id] = declared

    async def reconcile(self) -> None:
        """Bring the store in line with the code: create, change and disable schedules.

        A schedule that is no longer declared is disabled if its package owns a task of this application. Schedules of
        other packages are left alone, as another program declares them.
        """
        for declared in self.declared.values():
            by = _code_of(declared.owner)
            try:
                await self._put(declared.id, declared.schedule, declared.job, by, owner=declared.owner)
            except InvalidSchedule as error:  # a newer version of the program wrote it: leave it to that one
                log.warning("schedule_left_alone", schedule=declared.id, error=str(error))
        owners = {owner_of(task.function) for task in self._services.tasks.values()}
        async for stored in self.all():
            if stored.owner in owners and stored.id not in self.declared and stored.enabled:
                by = _code_of(stored.owner)
                await self._change(stored.id, "disable", by, lambda old: replace(old, disabled=NOT_IN_CODE))


def refuse_code(known: StoredSchedule | None) -> None:
    """Raise ConfigurationError if a schedule is the code's, which would undo a change by hand."""
    if known is not None and known.owner is not None and known.enabled:
        msg = (
            f"schedule {known.id!r} is declared in the code of {known.owner}, which would change it back; change it "
            "there, or delete it first if that code is gone"
        )
        raise ConfigurationError(msg)


def as_schedule(when: When, **policies: Unpack[PoliciesInTimeZone]) -> Schedule:
    if unknown := policies.keys() - PoliciesInTimeZone.__annotations__.keys():
        known = ", ".join(PoliciesInTimeZone.__annotations__)
        wrong = ", ".join(sorted(unknown))
        msg = f"a schedule has no policy named {wrong}; it has {known}; options of its job go into @app.task(…)"
        raise InvalidSchedule(msg)
    if not isinstance(when, Schedule):
        return Schedule(when, **policies)
    if given := [name for name, value in policies.items() if value is not None]:
        msg = f"{', '.join(given)} are part of a Schedule; give a rule with them, or a Schedule alone"
        raise ConfigurationError(msg)
    return when


def compare_stored(
    before: StoredSchedule, after: StoredSchedule, now: datetime, ahead: timedelta, *, tzdata: TzData = PACKAGED
) -> Sequence[ScheduleChange]:
    """Return how the fires of a stored schedule would differ from now on after a change."""
    return compare_schedules(
        None if before.disabled else before.schedule,
        after.schedule,
        now,
        now + ahead,
        since_before=before.position(now),
        since_after=after.position(now),
        tzdata_after=tzdata,
    )


def refuse_other(id: str, known: StoredSchedule | None, expect: str | None) -> None:
    """Raise EditConflict if the schedule is not the one that the caller has read."""
    revision = ABSENT if known is None else known.revision
    if expect is None or expect == revision:
        return
    if not expect:
        msg = f"there is already a schedule {id!r}; read it, and put it with its revision"
    else:
        msg = f"schedule {id!r} was {'deleted' if known is None else 'changed'} since it was read; read it again"
    raise EditConflict(msg)


def refuse_bad_id(id: str) -> None:
    if not id or len(id) > 200 or not id.isprintable():
        msg = f"{id!r} cannot be a schedule's id; use up to 200 printable characters"
        raise ConfigurationError(msg)


def refuse_other_project(id: str, job: NewJob) -> None:
    """Raise ConfigurationError if a schedule belongs to a project, which sees and changes it, and its jobs do not."""
    project = project_of(id)
    if project is not None and project_of(job.queue) != project:
        msg = (
            f"schedule {id!r} belongs to project {project!r}, but the queue {job.queue!r} of its jobs does not; give a "
            f"queue that begins with {beginning(project)!r}"
        )
        raise ConfigurationError(msg)


def owner_of(function: Callable[..., Any]) -> str:
    """Return the package that a function is defined in; for a script, the script's name."""
    package = function.__module__.partition(".")[0]
    if package != "__main__":
        return package
    code = getattr(function, "__code__", None)
    return "script " + (code.co_filename.rpartition("/")[2] if code else "")


def _code_of(owner: str | None) -> By:
    """Return the actor for a change that the code makes, rather than a person."""
    return By(f"code of {owner}")


def _too_busy(id: str) -> StoreBusy:
    return StoreBusy(
        f"other processes changed schedule {id!r} during each of {MAX_TRIES} attempts to change it; try again"
    )
