"""`mainspring schedules …`: look at schedules, preview changes and make them."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from mainspring.app import Mainspring
from mainspring.cli import simulate
from mainspring.cli.exits import Exit, UsageError
from mainspring.cli.jobs import parse_payload
from mainspring.cli.loading import opened, opened_to_fill
from mainspring.cli.moments import add_range_options, add_since_option
from mainspring.cli.paging import add_limit_option
from mainspring.cli.parser import (
    Commands,
    add_actor_options,
    add_command,
    add_command_about,
    add_group,
    add_store_options,
    parse_positive,
)
from mainspring.cli.schedule_options import add_rule_options, is_changed, make_schedule
from mainspring.cli.schedule_page import (
    say_changes,
    say_ledger,
    say_rows,
    say_schedule,
    say_schedules,
    show_minutes,
    state_of,
    summarise,
)
from mainspring.cli.system import add_length_options, end_of
from mainspring.cli.terminal import Terminal
from mainspring.errors import MainspringError, ScheduleNotFound
from mainspring.features.schedules.api import compare_stored, refuse_code
from mainspring.features.schedules.firing import Entry
from mainspring.features.schedules.rules import PACKAGED, Occurrence, Schedule, TzData, preview_schedule
from mainspring.features.schedules.rules.timeline import TICK
from mainspring.features.schedules.storage import StoredSchedule
from mainspring.humanize import show_moment
from mainspring.job import Job, NewJob
from mainspring.json_schedules import plain_changes, plain_rows, plain_schedule

AT_ONCE = 50  # ledgers that are read at the same time
SHOWN_TIMES = 5
SHOWN_ENTRIES = 10
add_id_command = partial(add_command_about, what="the schedule")


def add_commands(commands: Commands) -> None:
    schedules = add_group(commands, "schedules", "look at schedules, preview changes and make them")
    add_list(schedules)
    add_show(schedules)
    add_preview(schedules)
    add_diff(schedules)
    add_put(schedules)
    add_pause(schedules)
    add_actor_options(add_id_command(schedules, "resume", resume_schedule, "end a schedule's pause"))
    trigger = add_id_command(schedules, "trigger", trigger_schedule, "run a schedule's job once now, as an extra run")
    add_actor_options(trigger)
    delete = add_id_command(schedules, "delete", delete_schedule, "delete a schedule; its jobs and its ledger stay")
    delete.add_argument("--yes", "-y", action="store_true", help="do not ask")
    add_actor_options(delete)
    add_ledger(schedules)
    simulate.add_simulate(schedules)


def add_list(schedules: Commands) -> None:
    parser = add_command(schedules, "list", list_schedules, "list all schedules")
    add_store_options(parser)


def add_show(schedules: Commands) -> None:
    add_id_command(schedules, "show", show_schedule, "show all there is to know about a schedule")


def add_preview(schedules: Commands) -> None:
    detail = (
        "For a stored schedule, or for any rule, which needs no store. Days on which clocks change are marked.\n"
        "With an ID and options, shows the stored schedule as it would be with these options."
    )
    parser = add_command(schedules, "preview", show_preview, "show coming times", detail)
    parser.add_argument("id", metavar="ID", nargs="?", help="the schedule; or give --rule")
    add_rule_options(parser)
    add_limit_option(parser, default=10)
    parser.add_argument("--reader", metavar="TZ", help="show the times in this time zone too, such as your own")
    add_since_option(parser)
    add_store_options(parser)


def add_diff(schedules: Commands) -> None:
    detail = (
        "The change is given by options or another tzdata; without them, with --app, it is what the code declares.\n"
        "Nothing is saved."
    )
    parser = add_id_command(
        schedules, "diff", diff_schedule, "show which times a change would add, remove or move", detail
    )
    add_rule_options(parser)
    parser.add_argument("--days", type=parse_positive, default=90, metavar="N", help="how many days (default: 90)")
    parser.add_argument(
        "--tzdata",
        type=Path,
        metavar="DIR",
        help="use the time zones in this directory, laid out as /usr/share/zoneinfo",
    )
    add_limit_option(parser)


def add_put(schedules: Commands) -> None:
    detail = (
        "Shows the coming times first. Options that are not given stay as they were. A new schedule needs --rule,\n"
        "--task and an application (--app), which defines the task's queue, retries and arguments."
    )
    parser = add_id_command(schedules, "put", put_schedule, "create a schedule, or change one", detail)
    add_rule_options(parser)
    parser.add_argument("--task", metavar="NAME", help="the task to run")
    parser.add_argument("--payload", type=parse_payload, metavar="JSON", help="its arguments, a JSON object")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    add_actor_options(parser)


def add_pause(schedules: Commands) -> None:
    detail = "Times within the pause are not fired later."
    parser = add_id_command(schedules, "pause", pause_schedule, "stop a schedule from firing for now", detail)
    add_length_options(parser)
    add_actor_options(parser)


def add_ledger(schedules: Commands) -> None:
    parser = add_id_command(schedules, "ledger", show_ledger, "show what became of a schedule's times, newest first")
    add_limit_option(parser)
    add_range_options(parser, "only times")


# -- looking ----------------------------------------------------------------------------------------


def list_schedules(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        schedules, now = app.run(app.schedules.list()), app.now()
        last = app.run(last_entries(app, schedules))
        jobs = app.run(jobs_of(app, last.values()))
        unreadable = app.run(app.schedules.unreadable())
        missing = sorted(app.schedules.declared.keys() - {stored.id for stored in schedules} - unreadable.keys())
    if terminal.json:
        found = [with_last(stored, last, jobs, now) for stored in schedules]
        terminal.emit({"schedules": found, "not_stored_yet": missing, "unreadable": unreadable})
        return Exit.OK
    if schedules:
        say_schedules(terminal, schedules, last, jobs, now)
    else:
        terminal.note("no schedules")
    for why in unreadable.values():
        terminal.note(why)
    if missing:
        terminal.note(f"declared in the code; stored when a worker starts: {', '.join(missing)}")
    return Exit.OK


def with_last(
    stored: StoredSchedule, last: Mapping[str, Entry], jobs: Mapping[str, Job], now: datetime
) -> dict[str, Any]:
    entry = last.get(stored.id)
    job = None if entry is None else jobs.get(entry.job_id or "")
    state, _, _ = state_of(stored, now)
    return {
        **plain_schedule(stored, now),
        "state": state,
        "last": entry,
        "last_status": None if job is None else job.status,
    }


async def last_entries(app: Mainspring, schedules: Sequence[StoredSchedule]) -> dict[str, Entry]:
    """Return the newest ledger entry of each schedule."""
    found: dict[str, Entry] = {}
    for start in range(0, len(schedules), AT_ONCE):
        ids = [stored.id for stored in schedules[start : start + AT_ONCE]]
        newest = await asyncio.gather(*(app.schedules.ledger(name, limit=1) for name in ids))
        found |= {name: entries[0] for name, entries in zip(ids, newest, strict=True) if entries}
    return found


async def jobs_of(app: Mainspring, entries: Any) -> dict[str, Job]:
    ids = [entry.job_id for entry in entries if entry.job_id]
    return {job.id: job for job in await app.store.get(ids)} if ids else {}


def show_schedule(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        stored, now = app.run(app.schedules.get(args.id)), app.now()
        rows = app.run(app.schedules.preview(args.id, SHOWN_TIMES))
        entries = app.run(app.schedules.ledger(args.id, limit=SHOWN_ENTRIES))
    if terminal.json:
        state, _, why = state_of(stored, now)
        terminal.emit(
            {
                "schedule": {**plain_schedule(stored, now), "state": state, "why": why or None},
                "coming": plain_rows(rows),
                "ledger": entries,
            }
        )
    else:
        say_schedule(terminal, stored, rows, entries, now)
    return Exit.OK


def show_ledger(args: Namespace, terminal: Terminal) -> int:
    """Show a schedule's ledger, also that of a deleted schedule."""
    with opened(args) as app:
        entries = find_entries(app, args)
        if not entries:
            app.run(app.schedules.get(args.id))
    if terminal.json:
        terminal.emit({"ledger": entries})
    elif entries:
        say_ledger(terminal, entries)
    else:
        terminal.note("no entries in that time" if args.since or args.until else "no entries yet")
    return Exit.OK


def find_entries(app: Mainspring, args: Namespace) -> Sequence[Entry]:
    since, until = (when and when.before(app.now()) for when in (args.since, args.until))
    newest = app.run(app.schedules.ledger(args.id, limit=args.limit, before=until))
    return [entry for entry in newest if since is None or (entry.last or entry.utc) >= since]


# -- trying out -------------------------------------------------------------------------------------


def show_preview(args: Namespace, terminal: Terminal) -> int:
    if args.id is None:
        now = datetime.now(UTC)
        return say_preview(args, terminal, make_schedule(args), begin_of(args, now) or now)
    with opened(args) as app:
        stored, now = find(app, args.id), app.now()
        if stored is None:
            schedule = make_schedule(args, declared_schedule(app, args.id))
            return say_preview(args, terminal, schedule, begin_of(args, now) or now)
    if is_changed(args):
        stored = stored.replaced(make_schedule(args, stored.schedule), now)
    if stored.disabled:
        terminal.note(f"it does not fire: {stored.disabled}")
        return Exit.OK
    after, since = where_to_begin(stored, begin_of(args, now), now)
    return say_preview(args, terminal, stored.schedule, after, since)


def begin_of(args: Namespace, now: datetime) -> datetime | None:
    return None if args.since is None else args.since.before(now)


def declared_schedule(app: Mainspring, id: str) -> Schedule:
    """Return a schedule that the code declares and no worker has stored yet."""
    if id in app.schedules.declared:
        return app.schedules.declared[id].schedule
    msg = f"there is no schedule {id!r}"
    raise ScheduleNotFound(msg)


def where_to_begin(
    stored: StoredSchedule, after: datetime | None, now: datetime
) -> tuple[datetime, datetime | Occurrence | None]:
    """Return where the preview begins: now, without times already fired, or `after`.

    If `after` is in the past, the preview shows all times of the rule, fired or not.
    """
    if after is None:
        return now, stored.position(now)
    if after < now or stored.decided is None:
        return after, None
    first = stored.schedule.following(stored.decided)
    return (after if first is None else max(after, first.utc - TICK)), None


def say_preview(
    args: Namespace,
    terminal: Terminal,
    schedule: Schedule,
    after: datetime,
    since: datetime | Occurrence | None = None,
) -> int:
    rows = preview_schedule(schedule, after, args.limit, since=since, reader=args.reader or "UTC")
    if terminal.json:
        terminal.emit({"words": schedule.describe(), "tz": schedule.tz, "coming": plain_rows(rows)})
        return Exit.OK
    terminal.say(schedule.describe(), "bold")
    if rows:
        say_rows(terminal, rows, schedule.tz, args.reader)
    else:
        terminal.note("it does not fire" + (": it is paused until it is resumed" if schedule.pause else " any more"))
    return Exit.OK


def diff_schedule(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        before, now = app.run(app.schedules.get(args.id)), app.now()
        after = before.replaced(changed_schedule(app, args, before.schedule), now)
    ahead = timedelta(days=args.days)
    tzdata = PACKAGED if args.tzdata is None else TzData(directory_of(args))
    changes = compare_stored(before, after, now, ahead, tzdata=tzdata)
    if terminal.json:
        counts = {kind: sum(change.kind == kind for change in changes) for kind in ("added", "removed", "moved")}
        terminal.emit({"days": args.days, **counts, "changes": plain_changes(changes[: args.limit])})
        return Exit.OK
    say_diff_title(terminal, before.schedule, after.schedule, tzdata)
    say_changes(terminal, changes, ahead, args.limit, now)
    return Exit.OK


def changed_schedule(app: Mainspring, args: Namespace, before: Schedule) -> Schedule:
    if is_changed(args) or args.tzdata is not None:
        return make_schedule(args, before)
    if args.id in app.schedules.declared:
        return app.schedules.declared[args.id].schedule
    in_code = f"the code of this application does not declare {args.id!r}"
    msg = f"say what to change: --rule, --tz, a policy or --tzdata ({in_code})"
    raise UsageError(msg, args.prog)


def directory_of(args: Namespace) -> Path:
    directory: Path = args.tzdata
    if directory.is_dir():
        return directory
    msg = f"{directory} is not a directory; give one laid out as /usr/share/zoneinfo"
    raise UsageError(msg, args.prog)


def say_diff_title(terminal: Terminal, before: Schedule, after: Schedule, tzdata: TzData) -> None:
    terminal.say(f"before: {before.describe()}")
    newer = "" if tzdata is PACKAGED else f" (tzdata {tzdata.version} instead of {PACKAGED.version})"
    terminal.say(f"after:  {after.describe()}{newer}")


# -- changing ---------------------------------------------------------------------------------------


def put_schedule(args: Namespace, terminal: Terminal) -> int:
    with opened_to_fill(args) as app:
        known = find(app, args.id)
        refuse_code(known)
        job = make_job(app, args, known)
        schedule = make_schedule(args, None if known is None else known.schedule)
        consent_to_put(args, terminal, known, schedule, app.now())
        stored = app.run(app.schedules.put(args.id, schedule, job, **by_hand(args)))
        now = app.now()
    return say_done(terminal, stored, "created" if known is None else "changed", now)


def find(app: Mainspring, id: str) -> StoredSchedule | None:
    try:
        return app.run(app.schedules.get(id))
    except ScheduleNotFound:
        return None


def make_job(app: Mainspring, args: Namespace, known: StoredSchedule | None) -> NewJob:
    if known is not None and args.task is None and args.payload is None:
        return known.prepared()
    task = args.task or (None if known is None else known.task)
    if task is None:
        msg = "say what to run with --task"
        raise UsageError(msg, args.prog)
    if not app.tasks:
        msg = "give --app module:attribute: the application defines the task's queue, retries and arguments"
        raise UsageError(msg, args.prog)
    return app.runtime.find_task(task).prepare(**(args.payload or {}))


def consent_to_put(
    args: Namespace, terminal: Terminal, known: StoredSchedule | None, schedule: Schedule, now: datetime
) -> None:
    """Show what would change, then ask."""
    if not terminal.json:
        new = None if known is None else known.replaced(schedule, now)
        terminal.say(schedule.describe(), "bold")
        rows = preview_schedule(
            new.schedule if new else schedule, now, SHOWN_TIMES, since=new.position(now) if new else None
        )
        say_rows(terminal, rows, schedule.tz, None)
        if known is not None and new is not None:
            ahead = timedelta(days=90)
            terminal.say(summarise(compare_stored(known, new, now, ahead), ahead))
    consent(args, terminal, "Save this?", f"this would {'create' if known is None else 'change'} schedule {args.id!r}")


def consent(args: Namespace, terminal: Terminal, question: str, this_would: str) -> None:
    if args.yes:
        return
    if not terminal.interactive:
        msg = f"{this_would}; add --yes to do it"
        raise UsageError(msg, args.prog)
    if not terminal.confirm(question):
        msg = "nothing was changed"
        raise MainspringError(msg)


def by_hand(args: Namespace) -> dict[str, Any]:
    return {"reason": args.reason, "actor": args.actor}


def pause_schedule(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        until = end_of(args, app.now())
        stored = app.run(app.schedules.pause(args.id, until=until, **by_hand(args)))
        now = app.now()  # not before: the pause would not have begun yet
    return say_done(terminal, stored, "paused", now)


def resume_schedule(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        stored, now = app.run(app.schedules.resume(args.id, **by_hand(args))), app.now()
    return say_done(terminal, stored, "resumed", now)


def say_done(terminal: Terminal, stored: StoredSchedule, done: str, now: datetime) -> int:
    if terminal.json:
        terminal.emit({"schedule": plain_schedule(stored, now)})
        return Exit.OK
    terminal.say(f"{stored.id} {done}: {then(stored, done, now)}")
    return Exit.OK


def then(stored: StoredSchedule, done: str, now: datetime) -> str:
    coming = stored.coming(now)
    if coming is None:
        return "it does not fire until it is resumed" if done == "paused" else "it has no more times"
    if coming.utc <= now:
        return f"due now: {show_minutes(coming.local)} {stored.schedule.tz} has not been fired yet"
    return f"next at {show_moment(coming.utc)}"


def trigger_schedule(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        inserted = app.run(app.schedules.trigger(args.id, **by_hand(args)))
    if terminal.json:
        terminal.emit({"job": inserted})
    else:
        terminal.say(f"{args.id} triggered: job {inserted.id}" + ("" if inserted.created else ", which already exists"))
    return Exit.OK


def delete_schedule(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        stored, now = app.run(app.schedules.get(args.id)), app.now()
        consent(args, terminal, f"Delete {args.id} ({stored.describe()})?", f"this would delete schedule {args.id!r}")
        app.run(app.schedules.delete(args.id, **by_hand(args)))
    if terminal.json:
        terminal.emit({"deleted": plain_schedule(stored, now)})
        return Exit.OK
    terminal.say(f"{args.id} deleted")
    if stored.owner is not None and stored.enabled:
        terminal.note(f"the code of {stored.owner} declares it: it comes back when one of its workers starts")
    return Exit.OK
