"""`mainspring follow`: print the changes of the feed as they happen."""

from __future__ import annotations

import json
import shlex
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator
from itertools import islice
from typing import Any

from mainspring.app import Mainspring
from mainspring.cli.exits import Exit
from mainspring.cli.filters import parse_target
from mainspring.cli.ids import BY_ID, full_id, parse_ids
from mainspring.cli.loading import opened
from mainspring.cli.parser import Commands, Parser, add_command, add_store_options, parse_names, parse_positive
from mainspring.cli.table import printable
from mainspring.cli.terminal import Terminal
from mainspring.errors import ChangesLost
from mainspring.humanize import show_moment
from mainspring.stores.feed import Change, ChangeFilter, ChangeKind

STYLES = {
    ChangeKind.COMPLETED: "green",
    ChangeKind.RETRYING: "yellow",
    ChangeKind.STALLED: "yellow",
    ChangeKind.DEAD_LETTERED: "red",
    ChangeKind.WORKER_DIED: "red",
    ChangeKind.HALTED: "red",
}
KIND_WIDTH = max(len(kind) for kind in ChangeKind)


def add_commands(commands: Commands) -> None:
    detail = "Prints until you press Ctrl-C. With --json, each change is a line; its cursor is for --after."
    parser = add_command(commands, "follow", follow, "print changes of jobs, workers and halts as they happen", detail)
    add_change_filter(parser)
    parser.add_argument("--after", metavar="CURSOR", help="go on after this change (default: begin now)")
    parser.add_argument("--limit", "-n", type=parse_positive, metavar="N", help="stop after this many changes")
    add_store_options(parser)


def add_change_filter(parser: Parser) -> None:
    group = parser.add_argument_group("which changes")
    many: dict[str, Any] = {"action": "extend", "type": parse_names, "default": []}
    group.add_argument(
        "--kind", action="extend", type=parse_kinds, default=[], metavar="KIND[,…]",
        help="what happened: created, started (recorded on request only), completed, retrying, dead_lettered, …",
    )  # fmt: skip
    group.add_argument("--queue", **many, metavar="QUEUE[,…]", help="in any of these queues")
    group.add_argument("--task", **many, metavar="TASK[,…]", help="of any of these tasks")
    by_id: dict[str, Any] = many | {"type": parse_ids}
    group.add_argument("--job", **by_id, metavar="ID[,…]", help=f"of any of these jobs, {BY_ID}")
    group.add_argument("--tag", **many, metavar="TAG[,…]", help="of jobs with all of these tags")
    group.add_argument(
        "--target", type=parse_target, metavar="TYPE[:ID]", help="about this target, or any target of this type"
    )


def parse_kinds(text: str) -> list[ChangeKind]:
    names = parse_names(text)
    if unknown := [name for name in names if name not in frozenset(ChangeKind)]:
        msg = f"{unknown[0]!r} is not a kind of change; use any of {', '.join(ChangeKind)}"
        raise ArgumentTypeError(msg)
    return [ChangeKind(name) for name in names]


def follow(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        try:
            print_changes(args, terminal, app)
        except ChangesLost as lost:
            report_lost(terminal, lost)
            return Exit.FAILED
    return Exit.OK


def print_changes(args: Namespace, terminal: Terminal, app: Mainspring) -> None:
    stream = app.changes(after=args.after, where=make_filter(args, app))
    app.run(stream.begin())
    terminal.note("following the changes; press Ctrl-C to end")
    changes: Iterator[Change] = iter(stream)
    for change in islice(changes, args.limit):
        say(terminal, change)
    changes.close()  # type: ignore[attr-defined]


def report_lost(terminal: Terminal, lost: ChangesLost) -> None:
    terminal.report(lost, cursor=lost.cursor)
    if not terminal.json:
        terminal.note(f"to go on from now, run the same command with: --after {shlex.quote(lost.cursor)}")


def make_filter(args: Namespace, app: Mainspring) -> ChangeFilter:
    target_type, target_id = args.target or (None, None)
    return ChangeFilter(
        kinds=tuple(args.kind),
        queues=tuple(args.queue),
        tasks=tuple(args.task),
        jobs=tuple(full_id(app, text) for text in args.job),
        target_type=target_type,
        target_id=target_id,
        tags=tuple(args.tag),
    )


def say(terminal: Terminal, change: Change) -> None:
    if terminal.json:
        terminal.emit(change, indent=None)
        return
    kind = terminal.paint(f"{change.kind:{KIND_WIDTH}}", STYLES.get(change.kind, ""))
    about = " ".join(printable(word) for word in words_of(change))
    terminal.say(f"{show_moment(change.at)}  {kind}  {about}".rstrip())
    terminal.out.flush()


def words_of(change: Change) -> Iterator[str]:
    if change.job_id is not None:
        yield change.job_id
        yield str(change.task)
    if change.queue is not None:
        yield f"queue={change.queue}"
    if change.target is not None:
        yield f"target={':'.join(change.target)}"
    for name, value in change.data.items():
        if value not in (None, "", []):
            yield f"{name}={value if isinstance(value, str) else json.dumps(value)}"
