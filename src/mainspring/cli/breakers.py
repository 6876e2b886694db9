"""`mainspring breakers …`: list circuit breakers, and open or close one by hand."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime

from mainspring.cli.exits import Exit
from mainspring.cli.loading import opened
from mainspring.cli.moments import parse_length
from mainspring.cli.parser import (
    Commands,
    Parser,
    Run,
    add_actor_options,
    add_command,
    add_command_about,
    add_group,
    add_store_options,
)
from mainspring.cli.table import Column, Styled
from mainspring.cli.terminal import Terminal
from mainspring.errors import BreakerNotFound
from mainspring.features.breakers.api import BreakerStatus
from mainspring.features.breakers.rules import Phase
from mainspring.humanize import show_both

COLUMNS = [
    Column("BREAKER", least=8),
    Column("STATE"),
    Column("SINCE"),
    Column("PROBES FROM"),
    Column("CALLS", right=True),
    Column("FAILED", right=True),
    Column("WHY", least=12),
]
STYLES = {Phase.OPEN: "red", Phase.HALF_OPEN: "yellow", Phase.CLOSED: "green"}


def add_commands(commands: Commands) -> None:
    breakers = add_group(commands, "breakers", "look at circuit breakers, open and close them")
    add_store_options(add_command(breakers, "list", list_breakers, "list all circuit breakers"))
    add_open(breakers)
    add_close(breakers)


def add_open(breakers: Commands) -> None:
    detail = "Running jobs may finish. Jobs that need the breaker wait without using an attempt."
    parser = add_name_command(breakers, "open", open_breaker, "let nothing through", detail)
    parser.add_argument(
        "--for", type=parse_length, dest="length", metavar="LENGTH", help="let probes through after: 15min, 2h"
    )


def add_close(breakers: Commands) -> None:
    detail = "Jobs that wait for it can start. A breaker that has never opened is only known with --app."
    add_name_command(breakers, "close", close_breaker, "let everything through again", detail)


def add_name_command(breakers: Commands, name: str, run: Run, help: str, detail: str) -> Parser:
    parser = add_command_about(breakers, name, run, help, detail, what="the circuit breaker", by="NAME")
    add_actor_options(parser)
    return parser


def list_breakers(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        found, now = app.run(app.breakers.list()), app.now()
    if terminal.json:
        terminal.emit({"breakers": [plain_status(status) for status in found]})
        return Exit.OK
    if found:
        terminal.table(COLUMNS, [row_of(status, now) for status in found])
    else:
        terminal.note("no circuit breakers")
    return Exit.OK


def open_breaker(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        app.run(app.breakers.open(args.name, reason=args.reason, open_for=args.length, actor=args.actor))
        say(terminal, app.run(app.breakers.get(args.name)), app.now())
    return Exit.OK


def close_breaker(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        refuse_unknown(args.name, [status.name for status in app.run(app.breakers.list())])
        app.run(app.breakers.close(args.name, reason=args.reason, actor=args.actor))
        say(terminal, app.run(app.breakers.get(args.name)), app.now())
    return Exit.OK


def refuse_unknown(name: str, known: Sequence[str]) -> None:
    """Raise BreakerNotFound for a mistyped name: it would look like success, while the real breaker stays open."""
    if name not in known:
        there = f"there are {', '.join(map(repr, known))}" if known else "none has ever opened"
        msg = f"there is no circuit breaker {name!r}: {there}; give --app to include those that an application declares"
        raise BreakerNotFound(msg)


def say(terminal: Terminal, status: BreakerStatus, now: datetime) -> None:
    if terminal.json:
        terminal.emit({"breaker": plain_status(status)})
    else:
        terminal.table(COLUMNS, [row_of(status, now)])


def row_of(status: BreakerStatus, now: datetime) -> list[str | Styled]:
    is_open = status.phase is Phase.OPEN
    return [
        status.name,
        Styled(status.phase.replace("_", " "), STYLES[status.phase]),
        show_both(status.since, now),
        show_both(status.until, now) if is_open else "",
        str(status.good + status.bad),
        str(status.bad),
        status.reason,
    ]


def plain_status(status: BreakerStatus) -> dict[str, object]:
    return {name: getattr(status, name) for name in status.__slots__}
