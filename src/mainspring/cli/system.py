"""The whole system: `halt`, `resume`, `pause`, `stats`, `audit`."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from mainspring.app import Mainspring
from mainspring.cli.exits import Exit, UsageError
from mainspring.cli.loading import opened
from mainspring.cli.moments import When, parse_length, parse_when
from mainspring.cli.parser import Commands, Parser, add_actor_options, add_command, add_store_options, parse_limit
from mainspring.cli.stats_page import say_stats
from mainspring.cli.table import Column, Styled
from mainspring.cli.terminal import Terminal, on_terminal
from mainspring.halting import CONFIRM_WITHIN, HaltResult, Unconfirmed
from mainspring.humanize import show_both, show_exactly, show_moment
from mainspring.job import check_queue
from mainspring.stores.protocol import EVERY_QUEUE, AuditEntry

WATCH_EVERY = 1.0  # seconds
CLEAR = "\x1b[H\x1b[J"


def add_commands(commands: Commands) -> None:
    add_halt(commands)
    add_resume(commands)
    add_pause(commands)
    add_stats(commands)
    add_audit(commands)


def add_halt(commands: Commands) -> None:
    detail = "Jobs that run now are left to finish. New ones are kept for later, or with --refuse not accepted."
    parser = add_command(commands, "halt", halt, "start no more jobs, anywhere", detail)
    parser.add_argument("--refuse", action="store_true", help="refuse new jobs instead of keeping them for later")
    add_end_options(parser)


def add_end_options(parser: Parser) -> None:
    add_length_options(parser)
    parser.add_argument(
        "--wait",
        type=parse_length,
        default=timedelta(seconds=CONFIRM_WITHIN),
        metavar="LENGTH",
        help=f"wait at most so long for the workers to confirm (default: {CONFIRM_WITHIN:g}s; 0: do not wait)",
    )
    add_actor_options(parser)
    add_store_options(parser)


def add_length_options(parser: Parser) -> None:
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--until", type=parse_when, metavar="TIME", help="resume by itself then: ISO 8601")
    end.add_argument(
        "--for", type=parse_length, dest="length", metavar="LENGTH", help="resume by itself after: 15min, 2h"
    )


def add_resume(commands: Commands) -> None:
    parser = add_command(commands, "resume", resume, "end the halt, or with --queue the pause of one queue")
    parser.add_argument("--queue", help="end the pause of this queue")
    parser.add_argument("--anyway", action="store_true", help="also if the store was copied to another one")
    add_actor_options(parser)
    add_store_options(parser)


def add_pause(commands: Commands) -> None:
    detail = "Jobs that run now are left to finish. New ones are kept for later."
    parser = add_command(commands, "pause", pause, "start no more jobs of one queue", detail)
    parser.add_argument("queue", metavar="QUEUE", help="the queue")
    parser.add_argument("--anyway", action="store_true", help="also if nothing is known of that queue yet")
    add_end_options(parser)


def add_stats(commands: Commands) -> None:
    parser = add_command(commands, "stats", show_stats, "count jobs per queue, and show workers and halts")
    parser.add_argument("--watch", action="store_true", help="again each second, until Ctrl-C; with --json a line each")
    add_store_options(parser)


def add_audit(commands: Commands) -> None:
    parser = add_command(commands, "audit", show_audit, "show who changed what by hand, newest first")
    parser.add_argument(
        "--limit", type=parse_limit, default=50, metavar="N", help="at most so many, up to 1000 (default: 50)"
    )
    add_store_options(parser)


# -- halting --------------------------------------------------------------------------------------


def halt(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        until = end_of(args, app.now())
        halting = app.halt(args.reason, accept=not args.refuse, until=until, actor=args.actor, wait=args.wait)
        what = "refused" if args.refuse else "kept for later"
        return say_halted(app, terminal, app.run(halting), f"halted: no job is started anywhere, new ones are {what}")


def pause(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        until = end_of(args, app.now())
        if not args.anyway:
            require_known(app, args)
        pausing = app.pause(args.queue, args.reason, until=until, actor=args.actor, wait=args.wait)
        return say_halted(app, terminal, app.run(pausing), f"queue {args.queue} paused: none of its jobs is started")


def require_known(app: Mainspring, args: Namespace) -> None:
    """A name that is mistyped must not pass for a queue that stands still."""
    known = known_queues(app)
    if check_queue(args.queue) not in known:
        shown = ", ".join(sorted(known)) or "none"
        msg = f"no job, worker or task of a queue {args.queue!r} is known here, only: {shown}; --anyway pauses it too"
        raise UsageError(msg, args.prog)


def known_queues(app: Mainspring) -> set[str]:
    stats = app.run(app.stats())
    served = {queue for worker in stats.workers for queue in worker.queues if queue != EVERY_QUEUE}
    of_tasks = {task.options.queue or "default" for task in app.tasks.values()}
    return (
        {counts.queue for counts in stats.queues} | {one.queue for one in stats.halts if one.queue} | served | of_tasks
    )


def end_of(args: Namespace, now: datetime) -> datetime | None:
    when: When | None = args.until if args.length is None else When(distance=args.length)
    return None if when is None else when.after(now)


def say_halted(app: Mainspring, terminal: Terminal, result: HaltResult, text: str) -> int:
    queue, until = result.halt.queue, result.halt.until
    if terminal.json:
        standing = [one for one in app.run(app.halts()) if one.queue == queue]
        terminal.emit({"halted": standing, "unconfirmed": [unconfirmed_data(one) for one in result.unconfirmed]})
        return Exit.OK
    terminal.say(text)
    for one in result.unconfirmed:
        terminal.note(f"not confirmed by worker {one.worker.id}: {one.why}")
    end = "mainspring resume" if queue is None else f"mainspring resume --queue {queue}"
    terminal.note(f"until {show_both(until, app.now())}, or: {end}" if until else f"to end it: {end}")
    return Exit.OK


def unconfirmed_data(late: Unconfirmed) -> dict[str, Any]:
    worker = late.worker
    return {
        "worker": worker.id, "host": worker.host, "pid": worker.pid, "seen_at": worker.seen_at, "why": late.why,
    }  # fmt: skip


def resume(args: Namespace, terminal: Terminal) -> int:
    """To resume what is not halted is no failure: afterwards it runs, which is what was asked for."""
    with opened(args) as app:
        resumed = app.run(app.resume(args.queue, reason=args.reason, actor=args.actor, anyway=args.anyway))
        left = app.run(app.halts())
    if terminal.json:
        terminal.emit({"resumed": resumed, "halted": left})
        return Exit.OK
    what = "the system" if args.queue is None else f"queue {args.queue}"
    terminal.say(f"{what} is resumed" if resumed else f"{what} was not {'halted' if args.queue is None else 'paused'}")
    for one in left:
        terminal.note(f"queue {one.queue} is still paused" if one.queue else "the whole system is still halted")
    return Exit.OK


# -- looking --------------------------------------------------------------------------------------


def show_stats(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        while True:
            present_stats(args, terminal, app)
            if not args.watch:
                return Exit.OK
            time.sleep(WATCH_EVERY)


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
        entries = app.run(app.audit(limit=args.limit))
    if terminal.json:
        terminal.emit({"entries": entries})
    elif entries:
        columns = (
            Column("AT, UTC"),
            Column("ACTION"),
            Column("JOBS", right=True),
            Column("ACTOR", least=8),
            Column("REASON", least=8),
            Column("DETAIL", least=8),
        )
        terminal.table(columns, [audit_row(entry) for entry in entries])
    else:
        terminal.note("nothing was changed by hand yet")
    return Exit.OK


def audit_row(entry: AuditEntry) -> Sequence[str | Styled]:
    number = f"{entry.count:,}" if entry.count else ""
    return (
        show_exactly(entry.at),
        entry.action,
        number,
        entry.actor,
        entry.reason,
        Styled(show_detail(entry.detail), "dim"),
    )


def show_detail(detail: Any) -> str:
    """`queue=mail, filter.statuses=dead_letter`: what is set, in one line."""
    return ", ".join(f"{name}={value}" for name, value in flatten(detail))


def flatten(detail: Any, prefix: str = "") -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in detail.items():
        if isinstance(value, dict):
            pairs += flatten(value, f"{prefix}{name}.")
        elif value is not None:
            pairs.append((f"{prefix}{name}", "/".join(map(str, value)) if isinstance(value, list) else str(value)))
    return pairs
