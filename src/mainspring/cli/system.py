"""The whole system: `halt`, `resume`, `pause`, `stats`, `audit`."""

from __future__ import annotations

import shlex
import time
from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from mainspring.app import Mainspring
from mainspring.cli.exits import Exit, UsageError
from mainspring.cli.ids import full_id
from mainspring.cli.loading import opened
from mainspring.cli.moments import When, add_range_options, parse_length, parse_when
from mainspring.cli.numbers_page import say_numbers
from mainspring.cli.paging import add_page_options, say_more
from mainspring.cli.parser import Commands, Parser, add_actor_options, add_command, add_store_options
from mainspring.cli.stats_page import say_stats
from mainspring.cli.table import Column, Styled
from mainspring.cli.terminal import Terminal, on_terminal
from mainspring.halting import CONFIRM_WITHIN, HaltResult, Unconfirmed
from mainspring.humanize import show_both, show_exactly, show_moment
from mainspring.job import check_queue
from mainspring.json_data import plain, plain_numbers
from mainspring.numbers import STEPS, StepName, zone_of
from mainspring.options import queue_of
from mainspring.queue_patterns import is_pattern
from mainspring.stores.protocol import AuditEntry

WATCH_EVERY = 1.0  # seconds
LONG = timedelta(days=3)  # from here on, a line for each hour would be too many
CLEAR = "\x1b[H\x1b[J"


def add_commands(commands: Commands) -> None:
    add_halt(commands)
    add_resume(commands)
    add_pause(commands)
    add_stats(commands)
    add_audit(commands)


def add_halt(commands: Commands) -> None:
    detail = "Running jobs may finish. New jobs are stored for later, or rejected with --reject-new."
    parser = add_command(commands, "halt", halt, "stop starting jobs, on all workers", detail)
    parser.add_argument("--reject-new", action="store_true", help="reject new jobs instead of storing them for later")
    add_end_options(parser)


def add_end_options(parser: Parser) -> None:
    add_length_options(parser)
    parser.add_argument(
        "--wait",
        type=parse_length,
        default=timedelta(seconds=CONFIRM_WITHIN),
        metavar="LENGTH",
        help=f"wait at most this long for the workers to confirm (default: {CONFIRM_WITHIN:g}s; 0: do not wait)",
    )
    add_actor_options(parser)
    add_store_options(parser)


def add_length_options(parser: Parser) -> None:
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--until", type=parse_when, metavar="TIME", help="resume automatically then: ISO 8601")
    end.add_argument(
        "--for", type=parse_length, dest="length", metavar="LENGTH", help="resume automatically after: 15min, 2h"
    )


def add_resume(commands: Commands) -> None:
    parser = add_command(commands, "resume", resume, "end the halt, or the pause of one queue")
    parser.add_argument("queue", metavar="QUEUE", nargs="?", help="the queue whose pause to end; without it, the halt")
    parser.add_argument("--force", action="store_true", help="resume even if the store was copied to another one")
    add_actor_options(parser)
    add_store_options(parser)


def add_pause(commands: Commands) -> None:
    detail = "Running jobs may finish. New jobs are stored for later."
    parser = add_command(commands, "pause", pause, "stop starting jobs of one queue", detail)
    parser.add_argument("queue", metavar="QUEUE", help="the queue; to stop all queues, use mainspring halt")
    parser.add_argument("--force", action="store_true", help="pause even if the queue is not known yet")
    add_end_options(parser)


def add_stats(commands: Commands) -> None:
    parser = add_command(commands, "stats", show_stats, "count jobs per queue, and show workers and halts")
    parser.add_argument(
        "--watch", action="store_true", help="repeat each second, until Ctrl-C; with --json print one line each time"
    )
    add_numbers_options(parser)
    add_store_options(parser)


def add_numbers_options(parser: Parser) -> None:
    """Add the options for numbers over time."""
    add_range_options(parser, "show what happened to jobs")
    parser.add_argument("--step", choices=list(STEPS), help="a line for each (default: hour; day from 3 days on)")
    parser.add_argument("--queue", help="only jobs of this queue")
    parser.add_argument("--task", help="only jobs of this task")
    parser.add_argument("--by", choices=["queue", "task"], help="a line for each queue or task, not for each step")
    parser.add_argument("--tz", metavar="ZONE", help="the time zone in which days begin (default: UTC)")


def add_audit(commands: Commands) -> None:
    parser = add_command(commands, "audit", show_audit, "show who changed what by hand, newest first")
    parser.add_argument("--actor", help="only changes by this person or program")
    parser.add_argument("--action", help="only changes of this kind, such as cancel, retry or halt")
    parser.add_argument("--job", metavar="ID", help="only changes of this job")
    parser.add_argument("--operation", metavar="ID", help="only changes of this operation, such as a bulk action")
    add_range_options(parser, "made")
    add_page_options(parser, cursor=str)
    add_store_options(parser)


# -- halting --------------------------------------------------------------------------------------


def halt(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        until = end_of(args, app.now())
        halting = app.halt(args.reason, reject_new=args.reject_new, until=until, actor=args.actor, wait=args.wait)
        what = "rejected" if args.reject_new else "stored for later"
        return say_halted(app, terminal, app.run(halting), f"halted: no worker starts jobs, new jobs are {what}")


def pause(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        until = end_of(args, app.now())
        if not args.force:
            require_known(app, args)
        pausing = app.pause(args.queue, args.reason, until=until, actor=args.actor, wait=args.wait)
        return say_halted(app, terminal, app.run(pausing), f"queue {args.queue} paused: no worker starts its jobs")


def require_known(app: Mainspring, args: Namespace) -> None:
    """Raise UsageError for an unknown queue: pausing a mistyped name would look like success."""
    known = known_queues(app)
    if check_queue(args.queue) not in known:
        shown = ", ".join(sorted(known)) or "none"
        msg = f"queue {args.queue!r} has no job, worker or task here; known are: {shown}. Pause it with --force"
        raise UsageError(msg, args.prog)


def known_queues(app: Mainspring) -> set[str]:
    stats = app.run(app.stats())
    served = {queue for worker in stats.workers for queue in worker.queues if not is_pattern(queue)}
    of_tasks = {queue_of(task.options) for task in app.tasks.values()}
    return (
        {counts.queue for counts in stats.queues}
        | {halt.queue for halt in stats.halts if halt.queue}
        | served
        | of_tasks
    )


def end_of(args: Namespace, now: datetime) -> datetime | None:
    when: When | None = args.until if args.length is None else When(distance=args.length)
    return None if when is None else when.after(now)


def say_halted(app: Mainspring, terminal: Terminal, result: HaltResult, text: str) -> int:
    queue, until = result.halt.queue, result.halt.until
    if terminal.json:
        standing = [halt for halt in app.run(app.halts()) if halt.queue == queue]
        terminal.emit({"halted": standing, "unconfirmed": [unconfirmed_data(late) for late in result.unconfirmed]})
        return Exit.OK
    terminal.say(text)
    for late in result.unconfirmed:
        terminal.note(f"not confirmed by worker {late.worker.id}: {late.why}")
    end = "mainspring resume" if queue is None else f"mainspring resume {shlex.quote(queue)}"
    terminal.note(f"until {show_both(until, app.now())}, or: {end}" if until else f"to end it: {end}")
    return Exit.OK


def unconfirmed_data(late: Unconfirmed) -> dict[str, Any]:
    worker = late.worker
    return {
        "worker": worker.id, "host": worker.host, "pid": worker.pid, "seen_at": worker.seen_at, "why": late.why,
    }  # fmt: skip


def resume(args: Namespace, terminal: Terminal) -> int:
    """End a halt or pause. If there was none, that is not an error: the system runs, as requested."""
    with opened(args) as app:
        resumed = app.run(app.resume(args.queue, reason=args.reason, actor=args.actor, force=args.force))
        remaining = app.run(app.halts())
    if terminal.json:
        terminal.emit({"resumed": resumed, "halted": remaining})
        return Exit.OK
    what = "the system" if args.queue is None else f"queue {args.queue}"
    terminal.say(f"{what} is resumed" if resumed else f"{what} was not {'halted' if args.queue is None else 'paused'}")
    for other in remaining:
        terminal.note(f"queue {other.queue} is still paused" if other.queue else "the whole system is still halted")
    return Exit.OK


# -- looking --------------------------------------------------------------------------------------


def show_stats(args: Namespace, terminal: Terminal) -> int:
    refuse_without_since(args)
    with opened(args) as app:
        while True:
            if args.since is not None:
                present_numbers(args, terminal, app)
                return Exit.OK
            present_stats(args, terminal, app)
            if not args.watch:
                return Exit.OK
            time.sleep(WATCH_EVERY)


def refuse_without_since(args: Namespace) -> None:
    """Raise UsageError for options of numbers over time without `--since`, and for `--watch` with it."""
    given = [name for name in ("until", "step", "queue", "task", "by", "tz") if getattr(args, name) is not None]
    if given and args.since is None:
        msg = f"--{given[0]} needs --since; write for example --since 24h"
        raise UsageError(msg)
    if args.since is not None and args.watch:
        msg = "--watch shows the present; leave out --watch or --since"
        raise UsageError(msg)


def present_numbers(args: Namespace, terminal: Terminal, app: Mainspring) -> None:
    now, zone = app.now(), zone_of(args.tz or "UTC")
    since, until = args.since.before(now, zone), args.until and args.until.before(now, zone)
    step: StepName = args.step or ("day" if (until or now) - since > LONG else "hour")
    where = {"queue": args.queue, "task": args.task, "by": args.by}
    numbers = app.run(app.numbers(since=since, until=until, step=step, zone=args.tz or "UTC", **where))
    if terminal.json:
        terminal.emit(plain_numbers(numbers))
    else:
        say_numbers(terminal, numbers, args.by)


def present_stats(args: Namespace, terminal: Terminal, app: Mainspring) -> None:
    stats, now = app.run(app.stats()), app.now()
    if terminal.json:
        terminal.emit({"at": now, "stats": stats} if args.watch else stats, indent=None if args.watch else 2)
        return
    if args.watch and on_terminal(terminal.out):
        terminal.out.write(CLEAR)
    if args.watch:
        terminal.say(f"{app.store.url}  {show_moment(now)}", "dim")
    say_stats(terminal, stats, now)
    terminal.out.flush()


def show_audit(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        now = app.now()
        found = app.audit(
            actor=args.actor,
            action=args.action,
            job=args.job and full_id(app, args.job),
            operation=args.operation,
            since=args.since and args.since.before(now),
            until=args.until and args.until.before(now),
            limit=args.limit,
            cursor=args.cursor,
        )
        entries = app.run(found)
    more = entries[-1].cursor if len(entries) == args.limit else None
    if terminal.json:
        terminal.emit({"entries": entries, "cursor": more})
    elif entries:
        columns = (
            Column("AT, UTC"),
            Column("ACTION"),
            Column("JOBS", right=True),
            Column("ACTOR", least=8),
            Column("REASON", least=8),
            Column("DETAIL", least=8),
        )
        terminal.table(columns, [audit_row(entry, terminal) for entry in entries])
        say_more(args, terminal, more)
    else:
        terminal.note("no entries match" if is_narrowed(args) else "nothing was changed by hand yet")
    return Exit.OK


def is_narrowed(args: Namespace) -> bool:
    return any((args.actor, args.action, args.job, args.operation, args.since, args.until, args.cursor))


def audit_row(entry: AuditEntry, terminal: Terminal) -> Sequence[str | Styled]:
    detail = terminal.shown_data({"detail": plain(entry.detail)})["detail"]
    number = f"{entry.count:,}" if entry.count else ""
    return (
        show_exactly(entry.at),
        entry.action,
        number,
        entry.actor,
        entry.reason,
        Styled(show_detail(detail), "dim"),
    )


def show_detail(detail: Any) -> str:
    """Return the set fields in one line: `queue=mail, filter.statuses=dead_letter`."""
    return ", ".join(f"{name}={value}" for name, value in flatten(detail))


def flatten(detail: Any, prefix: str = "") -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in detail.items():
        if isinstance(value, dict):
            pairs += flatten(value, f"{prefix}{name}.")
        elif value is not None:
            pairs.append((f"{prefix}{name}", "/".join(map(str, value)) if isinstance(value, list) else str(value)))
    return pairs
