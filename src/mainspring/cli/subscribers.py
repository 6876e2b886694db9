"""`mainspring subscribers …`: list the durable subscribers of the change feed, and forget one."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from mainspring.cli.exits import Exit
from mainspring.cli.loading import opened
from mainspring.cli.parser import Commands, add_command, add_command_about, add_group, add_store_options
from mainspring.cli.table import Cell, Column, Styled
from mainspring.cli.terminal import Terminal
from mainspring.errors import SubscriberNotFound
from mainspring.subscribers import SubscriberState

COLUMNS = [
    Column("SUBSCRIBER", least=8),
    Column("SERVED BY", least=8),
    Column("FAILURES", right=True),
    Column("LAST ERROR", least=12),
]


def add_commands(commands: Commands) -> None:
    subscribers = add_group(commands, "subscribers", "look at durable subscribers of the change feed, forget one")
    add_store_options(add_command(subscribers, "list", list_subscribers, "list all durable subscribers"))
    detail = "A worker whose application still has it makes it anew, from now on."
    add_command_about(
        subscribers, "remove", remove_subscriber, "forget a subscriber and its place", detail,
        what="the subscriber", by="NAME",
    )  # fmt: skip


def list_subscribers(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        found = app.run(app.subscribers.states())
    if terminal.json:
        terminal.emit({"subscribers": [asdict(state) for state in found]})
    elif found:
        terminal.table(COLUMNS, [row_of(state) for state in found])
    else:
        terminal.note("no durable subscribers")
    return Exit.OK


def row_of(state: SubscriberState) -> list[Cell]:
    failures = Styled(str(state.failures), "red" if state.failures else "dim")
    return [state.name, state.owner or Styled("no worker", "yellow"), failures, state.error]


def remove_subscriber(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        if not app.run(app.subscribers.remove(args.name)):
            raise SubscriberNotFound(args.name)
    if terminal.json:
        terminal.emit({"removed": args.name})
    else:
        terminal.say(f"forgot {args.name}")
    return Exit.OK
