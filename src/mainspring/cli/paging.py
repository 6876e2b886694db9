"""The options of commands that list page by page, and the command for the next page."""

from __future__ import annotations

import shlex
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence

from mainspring.cli.parser import Parser, parse_positive
from mainspring.cli.terminal import Terminal

MAX_LIMIT = 1000


def add_page_options(parser: Parser, cursor: Callable[[str], str] | None = None) -> None:
    """Add `--limit` and `--cursor`. `cursor` parses a cursor; by default it is the id of a page's last item."""
    add_limit_option(parser)
    parser.add_argument(
        "--cursor", type=cursor or parse_cursor, metavar="CURSOR", help="continue after the previous page"
    )


def add_limit_option(parser: Parser, default: int = 50) -> None:
    parser.add_argument(
        "-n", "--limit", type=parse_limit, default=default, metavar="N",
        help=f"at most this many, up to {MAX_LIMIT} (default: {default})",
    )  # fmt: skip


def say_more(args: Namespace, terminal: Terminal, cursor: str | None) -> None:
    if cursor is not None:
        terminal.note(f"more: {next_page(args.argv, cursor)}")


def next_page(argv: Sequence[str], cursor: str) -> str:
    """Return the same command, with the cursor of the next page."""
    kept = [
        word
        for at, word in enumerate(argv)
        if not word.startswith("--cursor") and (at == 0 or argv[at - 1] != "--cursor")
    ]
    return shlex.join(["mainspring", *kept, "--cursor", cursor])


# -- values ---------------------------------------------------------------------------------------


def parse_limit(text: str) -> int:
    if (limit := parse_positive(text)) > MAX_LIMIT:
        msg = f"{limit} is more than {MAX_LIMIT}; go from page to page with --cursor"
        raise ArgumentTypeError(msg)
    return limit


def parse_cursor(text: str) -> str:
    """Return a cursor that is an id."""
    from uuid import UUID

    try:
        return str(UUID(text))
    except ValueError:
        msg = f"{text!r} is not a cursor; use the one printed after the previous page"
        raise ArgumentTypeError(msg) from None
