"""`mainspring failures …`: failure groups, and what people say about them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from mainspring.app import Mainspring
from mainspring.cli.changes import add_prudence_options, change_many
from mainspring.cli.exits import Exit
from mainspring.cli.ids import full_fingerprint
from mainspring.cli.jobs import RETRY
from mainspring.cli.loading import opened
from mainspring.cli.moments import parse_length, parse_when
from mainspring.cli.paging import add_page_options
from mainspring.cli.parser import (
    Commands,
    Parser,
    Run,
    add_actor_option,
    add_command,
    add_command_about,
    add_group,
    add_store_options,
)
from mainspring.cli.table import Column, Styled
from mainspring.cli.terminal import Terminal
from mainspring.features.failures.group import MOST_DEAD, FailureGroup, GroupState
from mainspring.humanize import show_both

COLUMNS = [
    Column("FINGERPRINT", least=16),
    Column("STATE"),
    Column("TASK", least=8),
    Column("ERROR", least=12),
    Column("FAILED", right=True),
    Column("DEAD", right=True),
    Column("LAST SEEN"),
    Column("MESSAGE", least=12),
]
STYLES = {GroupState.OPEN: "red", GroupState.MUTED: "yellow", GroupState.RESOLVED: "green"}
STATES = [state.value for state in GroupState]
NOT_COUNTED = "some of the newest failures are not counted yet; ask again soon"
THE_GROUP = "the fingerprint of the group or the beginning of it, see `mainspring failures list`"


def add_commands(commands: Commands) -> None:
    failures = add_group(commands, "failures", "look at failure groups, resolve, mute and retry them")
    add_list(failures)
    add_command_about(failures, "show", show_group, "show a group with a sample", what=THE_GROUP, by="FINGERPRINT")
    detail = "The next failure opens it again."
    add_verdict(failures, "resolve", resolve, "mark a group as resolved", detail)
    detail = "It goes on counting failures, but does not ask for attention."
    muting = add_verdict(failures, "mute", mute, "mute a group", detail)
    muting.add_argument("--for", type=parse_length, dest="length", metavar="LENGTH", help="mute it for: 2h, 7d")
    detail = "It opens, or is resolved if all its jobs have succeeded. Groups in other states stay as they are."
    add_verdict(failures, "unmute", unmute, "end the mute of a group", detail)
    add_verdict(failures, "reopen", reopen, "open a group that is resolved or muted", "")
    add_retry(failures)


def add_list(failures: Commands) -> None:
    parser = add_command(failures, "list", list_groups, "list failure groups, the one that failed last first")
    parser.add_argument("--state", action="append", choices=STATES, default=[], help="in this state; may be repeated")
    parser.add_argument("--task", metavar="TASK", help="of this task")
    parser.add_argument("--since", type=parse_when, metavar="WHEN", help="failed since then: a time, or 2h ago as 2h")
    add_page_options(parser, cursor=str)
    add_store_options(parser)


def add_verdict(failures: Commands, name: str, run: Run, help: str, detail: str) -> Parser:
    parser = add_command_about(failures, name, run, help, detail, what=THE_GROUP, by="FINGERPRINT")
    parser.add_argument("--note", default="", help="what to tell readers of the group and of the audit log")
    add_actor_option(parser)
    return parser


def add_retry(failures: Commands) -> None:
    detail = "They run now, with a full budget of attempts. When the last job has succeeded, the group is resolved."
    parser = add_command(failures, "retry", retry, "retry all dead letters of a group", detail)
    parser.add_argument("fingerprint", metavar="FINGERPRINT", help=THE_GROUP)
    add_prudence_options(parser)


def list_groups(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        now = app.now()
        since = args.since and args.since.before(now)
        states = tuple(args.state) or None
        page = app.failures.list_sync(state=states, task=args.task, since=since, limit=args.limit, cursor=args.cursor)
    if terminal.json:
        groups = [plain(group) for group in page.groups]
        terminal.emit({"groups": groups, "cursor": page.cursor, "complete": page.complete})
        return Exit.OK
    if page.groups:
        terminal.table(COLUMNS, [row_of(group, now) for group in page.groups])
    else:
        terminal.note("no failure groups")
    if not page.complete:
        terminal.note(NOT_COUNTED)
    if page.cursor is not None:
        terminal.note(f"more with --cursor {page.cursor}")
    return Exit.OK


def show_group(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        present(app, app.failures.get_sync(full_fingerprint(app, args.fingerprint)), terminal)
    return Exit.OK


def resolve(args: Namespace, terminal: Terminal) -> int:
    return judge(args, terminal, lambda app: app.failures.resolve_sync)


def mute(args: Namespace, terminal: Terminal) -> int:
    return judge(args, terminal, lambda app: partial(app.failures.mute_sync, length=args.length))


def unmute(args: Namespace, terminal: Terminal) -> int:
    return judge(args, terminal, lambda app: app.failures.unmute_sync)


def reopen(args: Namespace, terminal: Terminal) -> int:
    return judge(args, terminal, lambda app: app.failures.reopen_sync)


def judge(args: Namespace, terminal: Terminal, change_in: Callable[[Mainspring], Callable[..., FailureGroup]]) -> int:
    with opened(args) as app:
        known = full_fingerprint(app, args.fingerprint)
        say(app, change_in(app)(known, note=args.note, actor=args.actor), terminal)
    return Exit.OK


def retry(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        known = full_fingerprint(app, args.fingerprint)
        return change_many(args, terminal, RETRY, lambda **options: app.failures.retry_sync(known, **options))


# -- as text ----------------------------------------------------------------------------------------


def row_of(group: FailureGroup, now: datetime) -> list[str | Styled]:
    return [
        group.fingerprint,
        Styled("reopened" if group.is_regression else group.state.value, STYLES[group.state]),
        group.task,
        group.error_type,
        f"{group.count:,}",
        f"{group.dead:,}{'+' if group.dead >= MOST_DEAD else ''}",
        show_both(group.last_seen, now),
        group.message.partition("\n")[0],
    ]


def say(app: Mainspring, group: FailureGroup, terminal: Terminal) -> None:
    if terminal.json:
        terminal.emit({"group": plain(group)})
    else:
        terminal.table(COLUMNS, [row_of(group, app.now())])
        if not group.complete:
            terminal.note(NOT_COUNTED)


def present(app: Mainspring, group: FailureGroup, terminal: Terminal) -> None:
    say(app, group, terminal)
    if terminal.json:
        return
    now = app.now()
    lines = {
        "place": group.place,
        "first seen": show_both(group.first_seen, now),
        "muted until": show_both(group.until, now),
        "versions": ", ".join(group.versions),
        "reopened": f"{group.reopened} times, last {show_both(group.reopened_at, now)}" if group.reopened else "",
        "by": group.actor or ("itself: all its jobs have succeeded" if group.automatic else ""),
        "note": group.note,
        "sample": group.job_id,
    }
    for name, text in lines.items():
        if text:
            terminal.say(f"{name + ':':12} {text}")
    if group.traceback:
        terminal.say("")
        terminal.say(group.traceback.rstrip())


def plain(group: FailureGroup) -> dict[str, Any]:
    return {name: getattr(group, name) for name in group.__slots__}
