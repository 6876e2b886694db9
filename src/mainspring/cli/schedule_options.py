"""The options of the command line for a schedule: its rule, its time zone and its policies."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import Any

from mainspring.cli.exits import UsageError
from mainspring.cli.parser import Parser, parse_positive
from mainspring.features.schedules.rules import Misfire, Schedule
from mainspring.features.schedules.rules.policies import MISFIRES, OVERLAPS
from mainspring.features.schedules.rules.tz import FOLDS, GAPS

PLAIN = ("rule", "tz", "gap", "fold", "overlap", "jitter", "start", "end")
OF_MISFIRE = ("misfire", "grace", "max_fires")


def add_rule_options(parser: Parser) -> None:
    parser.add_argument(
        "--rule",
        metavar="RULE",
        help="when: cron such as '30 2 * * *', or 'every 90s', 'daily 09:00', 'monthly last 17:00'",
    )
    parser.add_argument("--tz", metavar="TZ", help="the time zone: an IANA name such as Europe/Berlin")
    parser.add_argument("--gap", choices=GAPS, help="what to do with a time that the clocks skip")
    parser.add_argument("--fold", choices=FOLDS, help="which to use of a time that comes twice")
    parser.add_argument("--misfire", choices=MISFIRES, help="which missed times are fired later")
    parser.add_argument("--grace", metavar="LENGTH", help="how late a time may still be fired: 15m, 2h, 1d")
    parser.add_argument(
        "--max-fires", type=parse_positive, metavar="N", help="fire at most this many missed times, with --misfire all"
    )
    parser.add_argument("--overlap", choices=OVERLAPS, help="what to do while the last run has not ended")
    parser.add_argument("--jitter", metavar="LENGTH", help="each run starts up to this much later")
    parser.add_argument("--start", metavar="TIME", help="fire from this time on; local time without an offset")
    parser.add_argument("--end", metavar="TIME", help="fire only before this time")


def is_changed(args: Namespace) -> bool:
    return any(getattr(args, name) is not None for name in (*PLAIN, *OF_MISFIRE))


def make_schedule(args: Namespace, known: Schedule | None = None) -> Schedule:
    """Return a schedule with the given options; the others stay as they are, or have their defaults."""
    given: dict[str, Any] = {name: value for name in PLAIN if (value := getattr(args, name)) is not None}
    if any(getattr(args, name) is not None for name in OF_MISFIRE):
        given["misfire"] = make_misfire(args, known)
    if known is not None:
        return replace(known, **given)
    if args.rule is None:
        msg = "say when with --rule, such as --rule '30 2 * * *' or --rule 'daily 09:00'"
        raise UsageError(msg, args.prog)
    return Schedule(**given)


def make_misfire(args: Namespace, known: Schedule | None) -> Misfire:
    """Return the misfire policy. Without --misfire the known mode stays; another mode starts with its own defaults."""
    stays = known.misfire if known is not None and args.misfire in {None, known.misfire.mode} else None
    mode = args.misfire or (stays.mode if stays else "latest")
    grace = args.grace if args.grace is not None or stays is None else stays.grace
    if args.max_fires is not None and mode != "all":
        msg = "--max-fires needs --misfire all"
        raise UsageError(msg, args.prog)
    return Misfire(mode, grace, args.max_fires or (stays.max_fires if stays else 100))
