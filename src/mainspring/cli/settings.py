"""`mainspring settings …`: change limits, rates, pauses, retry and timeout defaults of running workers."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterable
from typing import Any

from mainspring.cli.exits import Exit
from mainspring.cli.loading import opened
from mainspring.cli.moments import parse_length
from mainspring.cli.parser import (
    Commands,
    Parser,
    add_actor_options,
    add_command,
    add_group,
    add_store_options,
    parse_positive,
)
from mainspring.cli.table import Column, Styled
from mainspring.cli.terminal import Terminal
from mainspring.clock import duration
from mainspring.features.limits import Rate
from mainspring.features.settings.api import Setting
from mainspring.features.settings.change import OPTIONS
from mainspring.humanize import show_both, show_length
from mainspring.retry import Retry

COLUMNS = [
    Column("OF"),
    Column("NAME", least=8),
    Column("SETTING"),
    Column("VALUE", least=8),
    Column("BY", least=8),
    Column("WHEN"),
    Column("WHY", least=12),
]
RATE = re.compile(r"(?P<count>\d+)/(?P<per>.+)")


def add_commands(commands: Commands) -> None:
    settings = add_group(commands, "settings", "change limits, retries, timeouts and pauses at run time")
    add_store_options(add_command(settings, "list", list_settings, "list what was changed at run time"))
    add_set(settings)
    add_clear(settings)


def add_set(settings: Commands) -> None:
    detail = "All workers and programs use it within a second. What is not given stays as it is."
    parser = add_command(settings, "set", set_settings, "change settings of a task, a queue or a named limit", detail)
    add_owner_options(parser)
    parser.add_argument(
        "--at-once",
        type=parse_positive,
        dest="limit",
        metavar="N",
        help="at most this many jobs run; of each key, if it has keys",
    )
    parser.add_argument(
        "--rate", type=parse_rate, help="jobs that may start in a time: 100/min, 5/s, 20/15min", metavar="RATE"
    )
    parser.add_argument(
        "--run-timeout",
        type=parse_length,
        dest="timeout",
        metavar="LENGTH",
        help="new jobs may run this long: 30s, 15min",
    )
    parser.add_argument("--max-attempts", type=parse_positive, metavar="N", help="how many attempts new jobs have")
    parser.add_argument(
        "--retry",
        type=parse_retry,
        metavar="DELAYS",
        help="delays between attempts: 30s; 30s,1min,5min; or 10s..1h, doubled each time; their number stays",
    )
    parser.add_argument("--paused", choices=("yes", "no"), help="whether the jobs of the task wait")
    add_actor_options(parser)
    add_store_options(parser)


def add_clear(settings: Commands) -> None:
    parser = add_command(settings, "clear", clear_settings, "go back to the values in the code")
    parser.add_argument("option", nargs="*", metavar="SETTING", help=f"{', '.join(OPTIONS)}; without it, all of them")
    add_owner_options(parser)
    add_actor_options(parser)
    add_store_options(parser)


def add_owner_options(parser: Parser) -> None:
    owner = parser.add_mutually_exclusive_group(required=True)
    owner.add_argument("--task", metavar="NAME", help="of this task")
    owner.add_argument("--queue", metavar="NAME", help="of this queue")
    owner.add_argument(
        "--limit-name", dest="name", metavar="NAME", help="of the limit or rate with this name of its own"
    )


# -- values ---------------------------------------------------------------------------------------


def parse_rate(text: str) -> Rate:
    found = RATE.fullmatch(text.strip())
    if found is None:
        msg = f"{text!r} is not a rate; write a number of jobs and a time: 100/min, 5/s, 20/15min"
        raise ArgumentTypeError(msg)
    per = found["per"] if found["per"][0].isdigit() else f"1{found['per']}"
    length = parse_length(per)
    if not int(found["count"]) or duration(length) < 1:
        msg = f"{text!r} is not a rate; give at least one job, and a time above 0"
        raise ArgumentTypeError(msg)
    return Rate(int(found["count"]), per=length)


def parse_retry(text: str) -> Retry:
    first, dots, last = text.partition("..")
    if dots:
        return Retry(max_attempts=None, base=parse_length(first), max_delay=parse_length(last))
    delays = tuple(parse_length(part) for part in text.split(","))
    if len(delays) == 1:
        return Retry.fixed(delays[0], max_attempts=None)
    return Retry(max_attempts=None, explicit=delays, jitter_share=0.0)


# -- commands -------------------------------------------------------------------------------------


def list_settings(args: Namespace, terminal: Terminal) -> int:
    with opened(args) as app:
        found, now = app.settings.list_sync(), app.now()
    if terminal.json:
        terminal.emit({"settings": found})
    elif found:
        terminal.table(COLUMNS, [row_of(setting, show_both(setting.at, now)) for setting in found])
    else:
        terminal.note("nothing was changed at run time")
    return Exit.OK


def set_settings(args: Namespace, terminal: Terminal) -> int:
    names = ("task", "queue", "name", "limit", "rate", "timeout", "max_attempts", "retry", "actor", "reason")
    given = {name: getattr(args, name) for name in names}
    given["paused"] = None if args.paused is None else args.paused == "yes"
    with opened(args) as app:
        say(terminal, app.settings.set_sync(**given).values(), app.now())
    return Exit.OK


def clear_settings(args: Namespace, terminal: Terminal) -> int:
    owner = {"task": args.task, "queue": args.queue, "name": args.name}
    with opened(args) as app:
        done = app.settings.clear_sync(*args.option, **owner, actor=args.actor, reason=args.reason)
    if terminal.json:
        terminal.emit({"cleared": done})
    else:
        terminal.note("cleared: the values in the code count again" if done else "there was nothing to clear")
    return Exit.OK


def say(terminal: Terminal, settings: Iterable[Setting], now: Any) -> None:
    found = list(settings)
    if terminal.json:
        terminal.emit({"settings": found})
    else:
        terminal.table(COLUMNS, [row_of(setting, show_both(setting.at, now)) for setting in found])


def row_of(setting: Setting, when: str) -> list[str | Styled]:
    value = shown(setting.value) if setting.option != "timeout" else show_length(setting.value)
    return [setting.kind, setting.name, setting.option, value, setting.actor, when, setting.reason]


def shown(value: Any) -> str:
    if isinstance(value, Retry):
        return shown_retry(value)
    return "yes" if value is True else str(value)


def shown_retry(retry: Retry) -> str:
    if retry.explicit:
        return ",".join(show_length(duration(delay) / 1000) for delay in retry.explicit)
    base, longest = (show_length(duration(delay) / 1000) for delay in (retry.base, retry.max_delay))
    return base if retry.factor == 1 else f"{base}..{longest}"
