"""`mainspring people …`: list, show, delete and import people."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.app import Mainspring
from mainspring.cli.exits import Exit, UsageError
from mainspring.cli.loading import opened, opened_to_fill
from mainspring.cli.moments import show_both
from mainspring.cli.occasions import say_upcoming
from mainspring.cli.paging import add_page_options, say_more
from mainspring.cli.parser import Commands, add_actor_options, add_command, add_group, add_store_options
from mainspring.cli.table import Column, Styled, printable
from mainspring.cli.terminal import Terminal
from mainspring.json_text import conditions

if TYPE_CHECKING:  # importing people takes a while, and most commands do not need them
    from mainspring.features.people import Person
    from mainspring.features.people.firing import OccasionEntry
    from mainspring.features.people.rows import Report

SHOWN = 20  # bad rows; --json shows all
PEOPLE = [
    Column("ID", least=8),
    Column("NAME", least=8),
    Column("TIME ZONE"),
    Column("OCCASIONS", least=12),
    Column("EMAIL"),
]
LEDGER = [Column("ON"), Column("KIND"), Column("BECAME"), Column("LATE", right=True), Column("JOB"), Column("WHY")]
PROBLEMS = [Column("LINE", right=True), Column("COLUMN"), Column("WHY", least=20)]


def add_commands(commands: Commands) -> None:
    people = add_group(commands, "people", "look at people, delete and import them")
    add_list(people)
    add_show(people)
    add_delete(people)
    add_import(people)


def add_list(people: Commands) -> None:
    detail = (
        "All filters must match. --email and --kind use an index; the other filters read everybody, which takes a\n"
        "while if there are very many people."
    )
    parser = add_command(people, "list", list_people, "list people by id, or find some", detail)
    parser.add_argument("--email", metavar="ADDRESS", help="with this e-mail address")
    parser.add_argument("--name", metavar="BEGINNING", help="whose first, last or whole name begins with this")
    parser.add_argument("--tz", metavar="TZ", help="in this time zone, an IANA name such as Europe/Berlin")
    parser.add_argument("--kind", help="with an occasion of this kind, such as birthday")
    parser.add_argument(
        "--attribute", type=parse_attribute, action="append", default=[], metavar="NAME=VALUE",
        help="with this attribute; may be repeated",
    )  # fmt: skip
    add_page_options(parser, cursor=str)
    add_store_options(parser)


def add_show(people: Commands) -> None:
    parser = add_command(people, "show", show_person, "show a person, what will be sent and what was sent")
    parser.add_argument("id", metavar="ID", help="the person")
    add_store_options(parser)


def add_delete(people: Commands) -> None:
    detail = "Nothing is sent to them any more, and waiting jobs about them are cancelled."
    parser = add_command(people, "delete", delete_people, "delete people", detail)
    parser.add_argument("ids", nargs="+", metavar="ID", help="the people to delete")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask before deleting more than one")
    add_actor_options(parser)
    add_store_options(parser)


def add_import(people: Commands) -> None:
    detail = (
        "The first line names the columns: id, tz, first_name, last_name, email, locale, quiet, address.…,\n"
        "attribute.…, birthday, anniversary, occasion.… (a date; or followed by .at, .template and so on).\n"
        "Invalid rows are reported, and the others are imported. Importing again updates what has changed."
    )
    parser = add_command(people, "import", import_people, "import people from a CSV file", detail)
    parser.add_argument("file", type=Path, metavar="FILE", help="the file, in UTF-8")
    parser.add_argument(
        "--map", type=parse_mapping, action="append", default=[], metavar="COLUMN=FIELD",
        help="read this column as that field; with nothing after the = the column is ignored; may be repeated",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    add_store_options(parser)


def parse_attribute(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        msg = f"{text!r} is not an attribute; write NAME=VALUE, such as team=blue"
        raise ArgumentTypeError(msg)
    return name, value


def parse_mapping(text: str) -> tuple[str, str]:
    column, equals, field = text.rpartition("=")
    if not equals or not column:
        msg = f"{text!r} does not map a column; write COLUMN=FIELD, such as E-Mail=email"
        raise ArgumentTypeError(msg)
    return column, field


# -- looking --------------------------------------------------------------------------------------


def list_people(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        people, unreadable, cursor = app.run(find(app, args))
    if terminal.json:
        shown = [person.to_data() for person in people]
        terminal.emit({"people": shown, "unreadable": unreadable, "cursor": cursor})
        return Exit.OK
    if people:
        terminal.table(
            PEOPLE, [[person.id, person.name, person.tz, kinds(person), person.email or ""] for person in people]
        )
    else:
        terminal.note("no people" if args.cursor is None else "no more people")
    for why in list(unreadable.values())[:SHOWN]:
        terminal.note(why)
    say_more(args, terminal, cursor)
    return Exit.OK


async def find(app: Mainspring, args: Namespace) -> tuple[list[Person], dict[str, str], str | None]:
    """Read until enough people are found. Return them, those that only a newer version can read, and the cursor."""
    wanted = {"email": args.email, "name": args.name, "tz": args.tz, "kind": args.kind}
    people: list[Person] = []
    unreadable: dict[str, str] = {}
    cursor = args.cursor
    while len(people) < args.limit:
        page = await app.people.find(
            **wanted, attributes=conditions(args.attribute), limit=args.limit - len(people), cursor=cursor
        )
        people += page.people
        unreadable |= page.unreadable
        if (cursor := page.cursor) is None:
            break
    return people, unreadable, cursor


def kinds(person: Person) -> str:
    return ", ".join(f"{occasion.kind} {occasion.date}" for occasion in person.occasions)


def show_person(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        person = app.run(app.people.get(args.id))
        coming = app.run(app.occasions.next(args.id))
        entries = app.run(app.occasions.ledger(args.id))
        now = app.now()
    if terminal.json:
        upcoming, ledger = [occasion.to_data() for occasion in coming], [plain_entry(entry) for entry in entries]
        terminal.emit({"person": person.to_data(), "next": upcoming, "ledger": ledger})
        return Exit.OK
    for label, value in facts(person, terminal, now):
        terminal.say(f"{label:<12}{value}")
    terminal.say()
    say_upcoming(terminal, coming)
    if entries:
        terminal.say()
        terminal.table(LEDGER, [row_of(entry) for entry in entries])
    return Exit.OK


def facts(person: Person, terminal: Terminal, now: datetime) -> list[tuple[str, str]]:
    addresses = ", ".join(f"{channel} {address}" for channel, address in person.addresses.items())
    shown = terminal.shown_data({"attributes": dict(person.attributes)})["attributes"]
    attributes = ", ".join(f"{name}={value}" for name, value in shown.items())
    found = [
        ("Person", person.id), ("Name", person.name), ("E-mail", person.email), ("Addresses", addresses),
        ("Time zone", person.tz), ("Locale", person.locale), ("Quiet", person.quiet), ("Attributes", attributes),
        ("Occasions", kinds(person)),
        ("Created", show_both(person.created_at, now) if person.created_at else ""),
        ("Updated", show_both(person.updated_at, now) if person.updated_at else ""),
    ]  # fmt: skip
    return [(label, printable(value)) for label, value in found if value]


def plain_entry(entry: OccasionEntry) -> dict[str, object]:
    fields = ("became", "kind", "utc", "at", "reason", "why", "job_id", "lateness", "late")
    return {"on": str(entry.on), **{name: getattr(entry, name) for name in fields}}


def row_of(entry: OccasionEntry) -> list[str | Styled]:
    late = f"{entry.lateness / 3600:.1f} h" if entry.late else ""
    style = "green" if entry.became == "fired" else "yellow"
    return [str(entry.on), entry.kind, Styled(entry.became, style), late, entry.job_id or "", entry.why]


# -- changing -------------------------------------------------------------------------------------


def delete_people(args: Namespace, terminal: Terminal) -> int:
    if len(args.ids) > 1 and not args.yes and not agreed(args, terminal):
        return Exit.FAILED
    with opened(args) as app:
        for person in args.ids:
            app.run(app.people.delete(person, reason=args.reason, actor=args.actor))
            if not terminal.json:
                terminal.say(f"{person} deleted")
    if terminal.json:
        terminal.emit({"deleted": args.ids})
    return Exit.OK


def agreed(args: Namespace, terminal: Terminal) -> bool:
    if not terminal.interactive:
        msg = f"this would delete {len(args.ids)} people; add --yes to do it"
        raise UsageError(msg, args.prog)
    return terminal.confirm(f"Delete {len(args.ids)} people?")


def import_people(args: Namespace, terminal: Terminal) -> int:
    if not args.file.is_file():
        msg = f"there is no file {args.file}"
        raise UsageError(msg, args.prog)
    with opened_to_fill(args, dry_run=args.dry_run) as app:
        report = imported(app, args, terminal)
    if terminal.json:
        counts = {name: getattr(report, name) for name in ("created", "updated", "unchanged", "bad_rows")}
        problems = [problem._asdict() for problem in report.problems]
        terminal.emit({"dry_run": args.dry_run, **counts, "problems": problems})
    else:
        say_report(report, terminal, dry_run=args.dry_run)
    return Exit.FAILED if report.problems else Exit.OK


def imported(app: Mainspring, args: Namespace, terminal: Terminal) -> Report:
    with args.file.open("rb") as file:
        lines = sum(1 for _ in file)
    with terminal.progress("importing", lines, lines=True) as bar:
        return app.run(
            app.people.import_csv(args.file, columns=dict(args.map), dry_run=args.dry_run, on_progress=bar.reach)
        )


def say_report(report: Report, terminal: Terminal, *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    terminal.say(
        f"{report.created:,} {would}created, {report.updated:,} {would}updated, {report.unchanged:,} unchanged"
        + (f"; bad rows, left out: {report.bad_rows:,}" if report.problems else "")
    )
    if report.problems:
        terminal.say()
        rows = [[str(problem.line), problem.column, problem.reason] for problem in report.problems[:SHOWN]]
        terminal.table(PROBLEMS, rows)
    if len(report.problems) > SHOWN:
        terminal.note(f"and {len(report.problems) - SHOWN:,} more; --json shows all")
