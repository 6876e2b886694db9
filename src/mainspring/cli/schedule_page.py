"""Schedules on a screen: as a list, one with its ledger, coming times, and what an edit changes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from textwrap import wrap

from mainspring import json_schedules
from mainspring.cli.job_page import INDENT, say_block, say_heading
from mainspring.cli.table import Cell, Column, Styled, printable, render
from mainspring.cli.terminal import STATUS_STYLES, Terminal
from mainspring.features.schedules.firing import Became, Entry
from mainspring.features.schedules.rules import Occurrence, PreviewRow, Schedule, ScheduleChange, in_words
from mainspring.features.schedules.rules.parse import write_length
from mainspring.features.schedules.storage import StoredSchedule
from mainspring.humanize import show_both, show_length, show_relative
from mainspring.job import Job

STYLES = {Became.FIRED: "green", Became.TRIGGERED: "cyan", Became.COALESCED: "dim", Became.SKIPPED: "yellow"}
STATE_STYLES = {"active": "green", "paused": "yellow", "disabled": "red", "over": "dim"}
KINDS = {"added": "green", "removed": "red", "moved": "yellow"}
TIME = "%Y-%m-%d %H:%M"
WIDE = 140  # characters that the whole list needs


# -- the list ---------------------------------------------------------------------------------------


def say_schedules(
    terminal: Terminal,
    schedules: Sequence[StoredSchedule],
    last: Mapping[str, Entry],
    jobs: Mapping[str, Job],
    now: datetime,
) -> None:
    if terminal.width is not None and terminal.width < WIDE:
        say_narrow(terminal, schedules, last, jobs, now, width=terminal.width)
        return
    columns = (
        Column("ID", least=10),
        Column("STATE"),
        Column("NEXT, LOCAL"),
        Column("NEXT, UTC"),
        Column("WHEN", least=14),
        Column("TIME ZONE", least=10),
        Column("LAST", least=10),
        Column("WHY NOT", least=12),
    )
    terminal.table(columns, [schedule_row(stored, last.get(stored.id), jobs, now) for stored in schedules])


def schedule_row(stored: StoredSchedule, entry: Entry | None, jobs: Mapping[str, Job], now: datetime) -> Sequence[Cell]:
    state, style, why = state_of(stored, now)
    return (
        stored.id,
        Styled(state, style),
        "" if (coming := stored.coming(now)) is None else show_minutes(coming.local),
        show_next(stored, now),
        in_words(stored.schedule.rule),
        stored.schedule.tz,
        last_cell(entry, jobs, now),
        Styled(why, "dim"),
    )


def say_narrow(
    terminal: Terminal,
    schedules: Sequence[StoredSchedule],
    last: Mapping[str, Entry],
    jobs: Mapping[str, Job],
    now: datetime,
    *,
    width: int,
) -> None:
    """List schedules on a narrow terminal. Long texts follow below the line of their schedule and are not cut."""
    columns = (Column("ID", least=10), Column("STATE"), Column("NEXT, UTC"), Column("LAST", least=10))
    states = [state_of(stored, now) for stored in schedules]
    rows = [
        (stored.id, Styled(state, style), show_next(stored, now), last_cell(last.get(stored.id), jobs, now))
        for stored, (state, style, _) in zip(schedules, states, strict=True)
    ]
    header, *lines = render(columns, rows, width, terminal.paint)
    terminal.say(header)
    for line, stored, (_, _, why) in zip(lines, schedules, states, strict=True):
        terminal.say(line)
        for text in (stored.describe(), why):
            for part in wrap(printable(text), max(width - len(INDENT), 20)):
                terminal.say(f"{INDENT}{part}", "dim")


def state_of(stored: StoredSchedule, now: datetime) -> tuple[str, str, str]:
    """Return the state in a word, its style, and why the schedule does not fire, if so."""
    state, why = json_schedules.state_of(stored, now)
    return state, STATE_STYLES[state], why


def last_cell(entry: Entry | None, jobs: Mapping[str, Job], now: datetime) -> Cell:
    if entry is None:
        return ""
    job = jobs.get(entry.job_id or "")
    what, style = (entry.became.value, STYLES[entry.became]) if job is None else (job.status, STATUS_STYLES[job.status])
    reason = f" ({entry.reason})" if entry.became is Became.SKIPPED else ""
    return Styled(f"{what}{reason} {show_relative(entry.at, now)}", style)


def show_next(stored: StoredSchedule, now: datetime) -> str:
    coming = stored.coming(now)
    if coming is None:
        return ""
    return show_minutes(coming.utc) + (" (due)" if coming.utc <= now else "")


def show_minutes(moment: datetime) -> str:
    """Return a time without its time zone: local times look as on a clock on the wall."""
    return f"{moment:{TIME}:%S}" if moment.second else f"{moment:{TIME}}"


# -- one --------------------------------------------------------------------------------------------


def say_schedule(
    terminal: Terminal, stored: StoredSchedule, rows: Sequence[PreviewRow], entries: Sequence[Entry], now: datetime
) -> None:
    state, style, _ = state_of(stored, now)
    terminal.say(f"{terminal.paint(printable(stored.id), 'bold')}  {terminal.paint(state, style)}")
    say_fields(terminal, [(name, value) for name, value in list_fields(stored, now) if value])
    arguments = terminal.shown_data({"task": stored.job["task"], "payload": json.loads(stored.job["payload"])})[
        "payload"
    ]
    if arguments:
        say_block(terminal, "Arguments", json.dumps(arguments, indent=2, ensure_ascii=False))
    if rows:
        say_heading(terminal, "Coming times")
        say_rows(terminal, rows, stored.schedule.tz, None, indent=INDENT)
    if entries:
        say_heading(terminal, "Ledger")
        say_ledger(terminal, entries, indent=INDENT)


def say_fields(terminal: Terminal, fields: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        terminal.say(f"{INDENT}{terminal.paint(name.ljust(width), 'dim')}  {printable(value)}")


def list_fields(stored: StoredSchedule, now: datetime) -> Iterator[tuple[str, str]]:
    yield "when", stored.describe()
    yield "not now", state_of(stored, now)[2]
    yield "task", f"{stored.task}, in queue {stored.job['queue']}"
    yield "next", next_line(stored.coming(now), stored.schedule.tz, now)
    yield "last job", stored.last_job or ""
    yield "fired", f"{stored.fires:,} times" if stored.fires != 1 else "once"
    yield "declared", f"in the code of {stored.owner}" if stored.owner else "by hand"
    yield "since", show_both(stored.since, now)
    yield from list_policies(stored.schedule)
    yield "tzdata", stored.tzdata


def list_policies(schedule: Schedule) -> Iterator[tuple[str, str]]:
    yield "misfire", schedule.misfire.describe()
    yield "overlap", schedule.overlap
    yield "jitter", f"up to {write_length(schedule.jitter)}" if schedule.jitter else ""
    yield "gap, fold", f"{schedule.gap}, {schedule.fold}"


def next_line(occurrence: Occurrence | None, tz: str, now: datetime) -> str:
    if occurrence is None:
        return ""
    utc = "" if tz == "UTC" else f" {tz}, {show_minutes(occurrence.utc)}"
    due = "due now, was due " if occurrence.utc <= now else ""
    return f"{show_minutes(occurrence.local)}{utc} UTC ({due}{show_relative(occurrence.utc, now)})"


# -- coming times -----------------------------------------------------------------------------------


def say_rows(terminal: Terminal, rows: Sequence[PreviewRow], tz: str, reader: str | None, *, indent: str = "") -> None:
    columns = [Column(tz), Column("UTC")]
    columns += [Column(reader)] if reader else []
    columns.append(Column("NOTE", least=12))
    terminal.table(columns, [time_row(row, reader=reader is not None) for row in rows], indent=indent)


def time_row(row: PreviewRow, *, reader: bool) -> Sequence[Cell]:
    style = "yellow" if row.notes else ""
    times = [row.local, row.utc, *([row.reader] if reader else [])]
    notes = f"DST: {'; '.join(row.notes)}" if row.notes else ""
    return (*(Styled(f"{moment:%a} {show_minutes(moment)}", style) for moment in times), Styled(notes, style))


# -- the ledger -------------------------------------------------------------------------------------


def say_ledger(terminal: Terminal, entries: Sequence[Entry], *, indent: str = "") -> None:
    columns = (
        Column("TIME, LOCAL"),
        Column("TIME, UTC"),
        Column("BECAME"),
        Column("TIMES", right=True),
        Column("LATE", right=True),
        Column("WHY", least=12),
        Column("JOB", least=12),
    )
    terminal.table(columns, [entry_row(entry) for entry in entries], indent=indent)


def entry_row(entry: Entry) -> Sequence[Cell]:
    times = "" if entry.count == 1 else f"{entry.count:,}{'' if entry.exact else '+'}"
    reason = "" if entry.reason == entry.became else entry.reason
    why = ": ".join(part for part in (reason, entry.why) if part)
    return (
        show_minutes(datetime.fromisoformat(entry.nominal)),
        show_minutes(entry.utc),
        Styled(entry.became, STYLES[entry.became]),
        times,
        Styled(show_length(entry.lateness), "yellow") if entry.late else "",
        why,
        Styled(entry.job_id or "", "dim"),
    )


# -- changes ----------------------------------------------------------------------------------------


def say_changes(
    terminal: Terminal, changes: Sequence[ScheduleChange], ahead: timedelta, most: int, now: datetime
) -> None:
    if changes:
        titles = ("CHANGE", "BEFORE, LOCAL", "BEFORE, UTC", "AFTER, LOCAL", "AFTER, UTC")
        columns = [Column(title) for title in titles]
        terminal.table(columns, [change_row(change, now) for change in changes[:most]])
    if len(changes) > most:
        terminal.note(f"and {len(changes) - most:,} more; --limit shows more of them")
    terminal.say(summarise(changes, ahead))


def change_row(change: ScheduleChange, now: datetime) -> Sequence[Cell]:
    before, after = change.before, change.after
    return (
        Styled(change.kind, KINDS[change.kind]),
        "" if before is None else show_minutes(before.local),
        "" if before is None else show_minutes(before.utc),
        "" if after is None else show_minutes(after.local),
        "" if after is None else show_minutes(after.utc) + (" (at once)" if after.utc <= now else ""),
    )


def summarise(changes: Sequence[ScheduleChange], ahead: timedelta) -> str:
    counts: Counter[str] = Counter(change.kind for change in changes)
    summary = ", ".join(f"{counts[kind]:,} {kind}" for kind in KINDS if counts[kind]) or "no time changes"
    return f"{summary} in the next {ahead.days} days"
