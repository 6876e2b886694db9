"""`mainspring migrate`: create a store's tables, or bring them up to date."""

from __future__ import annotations

from argparse import Namespace

from mainspring.app import Mainspring
from mainspring.cli.exits import Exit
from mainspring.cli.loading import choose
from mainspring.cli.parser import Commands, add_command, add_store_options, parse_positive
from mainspring.cli.terminal import Terminal
from mainspring.errors import ConfigurationError
from mainspring.stores.protocol import Migrating, Planned

DETAIL = """\
Use it for a DynamoDB store, whose table is not created automatically, and for a PostgreSQL store whose URL says
migrate=off, or before the first program of a new version starts. Other stores migrate when they are opened and never
need this. You can run it repeatedly, and several times at once."""


def add_commands(commands: Commands) -> None:
    parser = add_command(commands, "migrate", migrate, "create the store's tables, or bring them up to date", DETAIL)
    source = add_store_options(parser)
    source.add_argument("path", nargs="?", metavar="MODULE:ATTRIBUTE", help="the same as --app")
    add = parser.add_argument_group("DynamoDB").add_argument
    add(
        "--read-units",
        type=parse_positive,
        metavar="N",
        help="provision this many read units (default: the table is paid per request)",
    )
    add("--write-units", type=parse_positive, metavar="N", help="provision this many write units; with --read-units")
    add("--recovery", action="store_true", help="keep the table recoverable to any point of the last 35 days")
    add("--print", choices=["cloudformation", "terraform"], help="print a template of the table and create nothing")


def migrate(args: Namespace, terminal: Terminal) -> int:
    args.app = args.app or args.path
    app = choose(args)
    if isinstance(app.store, Planned):
        app.store.plan_table(read_units=args.read_units, write_units=args.write_units, recovery=args.recovery)
        if args.print:
            terminal.say(app.store.template(args.print))
            return Exit.OK
    elif args.read_units or args.write_units or args.recovery or args.print:
        msg = f"--read-units, --write-units, --recovery and --print are for a DynamoDB store, not {app.store.url}"
        raise ConfigurationError(msg)
    if isinstance(app.store, Migrating):
        return run_migrations(app, app.store, terminal)
    if terminal.json:
        terminal.emit({"store": app.store.url, "migrated": [], "version": None})
    else:
        terminal.say(f"{app.store.url} migrates when it is opened: there is nothing to do")
    return Exit.OK


def run_migrations(app: Mainspring, store: Migrating, terminal: Terminal) -> int:
    try:
        names, version = app.run(store.migrate()), app.run(store.version())
    finally:
        app.run(app.close())
    if terminal.json:
        terminal.emit({"store": app.store.url, "migrated": names, "version": version})
        return Exit.OK
    for name in names:
        terminal.say(f"ran {name}")
    terminal.say(f"{app.store.url} is {'now' if names else 'already'} at version {version}")
    return Exit.OK
