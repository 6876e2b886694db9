"""`mainspring schedules simulate`: run an application's schedules on virtual time; show a table and a calendar."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime, timedelta

from mainspring.cli.calendar_plot import plot
from mainspring.cli.exits import Exit, UsageError
from mainspring.cli.job_page import INDENT, say_heading
from mainspring.cli.loading import choose, is_there, require_existing
from mainspring.cli.moments import add_since_option
from mainspring.cli.parser import Commands, add_command, add_store_options, parse_positive
from mainspring.cli.schedule_page import show_minutes, state_of
from mainspring.cli.table import Cell, Column, Styled
from mainspring.cli.terminal import Terminal, on_terminal
from mainspring.features.schedules.firing import Entry
from mainspring.features.schedules.rules import in_words
from mainspring.features.schedules.simulation import (
    Course,
    choose_schedules,
    fires_on_first_day,
    fires_per_day,
    simulate,
    with_declared,
)
from mainspring.features.schedules.storage import StoredSchedule
from mainspring.json_schedules import plain_courses

MAX_FIRES = 500_000
SHOWN_REMARKS = 12


def add_simulate(schedules: Commands) -> None:
    detail = (
        "Simulates the schedules of the store, and those that the code declares (--app), in a moment. Nothing is run\n"
        "or written. Each job counts as done at once."
    )
    parser = add_command(schedules, "simulate", simulate_schedules, "show a year of all schedules at a glance", detail)
    parser.add_argument("--days", type=parse_positive, default=365, metavar="N", help="how many days (default: 365)")
    parser.add_argument("--id", action="append", dest="ids", metavar="ID", help="only this schedule; may be repeated")
    add_since_option(parser)
    add_store_options(parser)


def simulate_schedules(args: Namespace, terminal: Terminal) -> int:
    schedules, now = read_schedules(args)
    start = args.since.before(now) if args.since else now
    end = start + timedelta(days=args.days)
    chosen = choose_schedules(schedules, args.ids)
    refuse_too_many(args, chosen, start)
    courses = run_all(terminal, chosen, start, end)
    if terminal.json:
        terminal.emit(plain_courses(courses, start, end))
        return Exit.OK
    say_courses(terminal, courses, start, end)
    return Exit.OK


def read_schedules(args: Namespace) -> tuple[list[StoredSchedule], datetime]:
    """Return the schedules of the store and of the code; the code's version counts if both have one.

    An application whose database does not exist yet can be simulated, too. A store that is given by a mistyped URL
    cannot.
    """
    app = choose(args)
    try:
        if not app.schedules.declared:
            require_existing(app)
        stored = app.run(app.schedules.list()) if is_there(app) else []
        return with_declared(stored, app.schedules.declared.values(), app.now()), app.now()
    finally:
        app.run(app.close())


def refuse_too_many(args: Namespace, schedules: Sequence[StoredSchedule], start: datetime) -> None:
    """Raise UsageError if a schedule fires too often on the first day: the simulation would take hours."""
    for stored in schedules:
        a_day = fires_on_first_day(stored, start, MAX_FIRES)
        if a_day * args.days > MAX_FIRES:
            most = max(1, MAX_FIRES // a_day)
            msg = (
                f"schedule {stored.id!r} fires {a_day:,} times a day; simulate at most {most} days of it (--days), or "
                "choose others (--id)"
            )
            raise UsageError(msg, args.prog)


def run_all(terminal: Terminal, schedules: Sequence[StoredSchedule], start: datetime, end: datetime) -> list[Course]:
    courses, days = [], (end - start).days
    with terminal.progress("simulating", days * len(schedules)) as bar:
        for number, schedule in enumerate(schedules):
            courses.append(
                simulate(schedule, start, end, lambda at, before=number * days: bar.reach(before + (at - start).days))  # type: ignore[misc]
            )
    return courses


# -- the result -------------------------------------------------------------------------------------


def say_courses(terminal: Terminal, courses: Sequence[Course], start: datetime, end: datetime) -> None:
    if not courses:
        terminal.note("no schedules")
        return
    terminal.say(
        f"{show_minutes(start)} to {show_minutes(end)} UTC, {sum(course.fires for course in courses):,} fires", "bold"
    )
    terminal.say()
    columns = (
        Column("ID", least=10),
        Column("FIRES", right=True),
        Column("FIRST, LOCAL"),
        Column("LAST, LOCAL"),
        Column("TIME ZONE", least=10),
        Column("REMARKS", least=14),
        Column("WHEN", least=14),
    )
    terminal.table(columns, [course_row(course, start) for course in courses])
    say_remarks(terminal, courses)
    say_calendar(terminal, courses, start, end)


def course_row(course: Course, start: datetime) -> Sequence[Cell]:
    stored = course.stored
    state, style, why = state_of(stored, start)
    if state == "over" and course.fires:
        why = ""
    skipped = [f"{count:,} {reason}" for reason, count in course.skipped.items()]
    clocks = [f"{len(course.remarks)} on DST days"] if course.remarks else []
    return (
        stored.id,
        Styled(f"{course.fires:,}", "" if course.fires else "dim"),
        local_of(course.first),
        local_of(course.last),
        stored.schedule.tz,
        Styled(", ".join([*([why] if why else []), *skipped, *clocks]), style if why else ""),
        in_words(stored.schedule.rule),
    )


def local_of(entry: Entry | None) -> str:
    return "" if entry is None else show_minutes(datetime.fromisoformat(entry.nominal))


def say_remarks(terminal: Terminal, courses: Sequence[Course]) -> None:
    remarks = sorted((day, course.stored.id, text) for course in courses for day, text in course.remarks)
    if not remarks:
        return
    say_heading(terminal, "When clocks change")
    columns = (Column("DAY"), Column("ID", least=10), Column("WHAT HAPPENS", least=20))
    rows = [(day.isoformat(), name, text) for day, name, text in remarks[:SHOWN_REMARKS]]
    terminal.table(columns, rows, indent=INDENT)
    if len(remarks) > SHOWN_REMARKS:
        terminal.note(f"{INDENT}and {len(remarks) - SHOWN_REMARKS} more; --json has all of them")


def say_calendar(terminal: Terminal, courses: Sequence[Course], start: datetime, end: datetime) -> None:
    days = fires_per_day(courses)
    first = min([start.date(), *days])
    last = max([(end - timedelta(microseconds=1)).date(), *days])
    say_heading(terminal, "Fires per local day")
    for line in plot(days, first, last, width=terminal.width, plain=not on_terminal(terminal.out)):
        terminal.say(line, "green")
