"""`mainspring occasions upcoming`: what will be sent to whom, and when."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from mainspring.cli.exits import Exit
from mainspring.cli.loading import opened
from mainspring.cli.paging import add_limit_option
from mainspring.cli.parser import Commands, add_command, add_group, add_store_options, parse_positive
from mainspring.cli.table import Column
from mainspring.cli.terminal import Terminal

if TYPE_CHECKING:  # importing occasions takes a while, and most commands do not need them
    from mainspring.features.people.occasions import Upcoming

COLUMNS = [
    Column("LOCAL"),
    Column("PERSON", least=8),
    Column("KIND"),
    Column("TIME ZONE"),
    Column("UTC"),
    Column("FOR"),
]


def add_commands(commands: Commands) -> None:
    occasions = add_group(commands, "occasions", "look ahead at people's occasions")
    detail = (
        "Soonest first. Occasions that are due but not sent yet are included: they stay if no worker has a handler."
    )
    parser = add_command(occasions, "upcoming", upcoming, "list what will be sent", detail)
    parser.add_argument("--days", type=parse_positive, default=7, metavar="N", help="how many days ahead (default: 7)")
    parser.add_argument("--kind", help="only occasions of this kind")
    add_limit_option(parser, default=100)
    add_store_options(parser)


def upcoming(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        found = app.run(app.occasions.upcoming(timedelta(days=args.days), kind=args.kind, limit=args.limit))
    if terminal.json:
        terminal.emit({"upcoming": [occasion.to_data() for occasion in found]})
        return Exit.OK
    if found:
        say_upcoming(terminal, found)
    else:
        terminal.note("nothing is coming up")
    if len(found) == args.limit:
        terminal.note("there may be more: raise --limit, or give fewer --days or a --kind")
    return Exit.OK


def say_upcoming(terminal: Terminal, found: Sequence[Upcoming]) -> None:
    terminal.table(
        COLUMNS,
        [
            [
                f"{upcoming.local:%Y-%m-%d %H:%M}",
                upcoming.person,
                upcoming.kind,
                upcoming.tz,
                f"{upcoming.due:%Y-%m-%d %H:%M}",
                str(upcoming.on),
            ]
            for upcoming in found
        ],
    )
