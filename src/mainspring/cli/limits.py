"""`mainspring limits`: which jobs hold limits, how full rates are, and which of them keep jobs waiting."""

from __future__ import annotations

from argparse import Namespace

from mainspring.cli.exits import Exit
from mainspring.cli.loading import opened
from mainspring.cli.parser import Commands, add_command, add_store_options
from mainspring.cli.table import Column, Styled
from mainspring.cli.terminal import Terminal
from mainspring.features.limits import LimitState

COLUMNS = [
    Column("LIMIT", least=8),
    Column("KIND"),
    Column("KEY", least=8),
    Column("USED", right=True),
    Column("OF", right=True),
    Column("PER SECOND", right=True),
    Column("JOBS WAIT"),
    Column("HELD BY", least=12),
]
SHOWN = 3  # ids in a table; JSON has all of them


def add_commands(commands: Commands) -> None:
    parser = add_command(commands, "limits", list_limits, "show limits, rates and fair tasks that are in use")
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="only this limit: the name of a task, 'queue mail', or its own name"
    )
    parser.add_argument("--waiting", action="store_true", help="only those that keep jobs waiting")
    add_store_options(parser)


def list_limits(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        found = [state for state in app.run(app.limits.list(args.name)) if state.waiting or not args.waiting]
    if terminal.json:
        terminal.emit({"limits": [plain(state) for state in found]})
    elif found:
        terminal.table(COLUMNS, [row_of(state) for state in found])
    else:
        terminal.note(nothing_found(args))
    return Exit.OK


def nothing_found(args: Namespace) -> str:
    of_that_name = "" if args.name is None else f" named {args.name!r}"
    return f"no limit{of_that_name} {'keeps jobs waiting' if args.waiting else 'is in use'}"


def row_of(state: LimitState) -> list[str | Styled]:
    more = f" +{len(state.jobs) - SHOWN}" if len(state.jobs) > SHOWN else ""
    return [
        state.name,
        state.kind,
        state.key,
        used(state),
        str(state.size),
        "" if state.per_second is None else f"{state.per_second:.3g}",
        Styled("yes", "yellow") if state.waiting else "no",
        " ".join(state.jobs[:SHOWN]) + more,
    ]


def used(state: LimitState) -> str:
    return str(state.used) if state.tokens is None else f"{max(0, state.size - state.tokens):.3g}"


def plain(state: LimitState) -> dict[str, object]:
    return {name: getattr(state, name) for name in state.__slots__}
