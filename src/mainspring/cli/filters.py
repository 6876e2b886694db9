"""The options that select jobs, for `list` and for changes to many jobs, and the `Filter` made from them."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from datetime import datetime
from typing import Any

from mainspring.cli.moments import add_range_options, parse_when
from mainspring.cli.parser import Parser, parse_names
from mainspring.errors import ConfigurationError
from mainspring.job import Status
from mainspring.json_text import conditions, key_and_value
from mainspring.stores.protocol import Filter

OPTIONS = (
    "status", "queue", "task", "target", "tag", "dedupe_key", "error_type", "fingerprint", "worker", "since", "until",
    "due_before", "changed_since", "payload",
)  # fmt: skip


def add_filter_options(parser: Parser, *, status: bool = True) -> None:
    group = parser.add_argument_group("which jobs")
    many: dict[str, Any] = {"action": "extend", "type": parse_names, "default": []}
    if status:
        names = ", ".join(status.value for status in Status)
        group.add_argument(
            "--status", action="extend", type=parse_statuses, default=[], metavar="STATUS[,…]", help=f"any of {names}"
        )
    group.add_argument("--queue", **many, metavar="QUEUE[,…]", help="in any of these queues")
    group.add_argument("--task", **many, metavar="TASK[,…]", help="of any of these tasks")
    group.add_argument(
        "--target", type=parse_target, metavar="TYPE[:ID]", help="about this target, or any target of this type"
    )
    group.add_argument("--tag", **many, metavar="TAG[,…]", help="with all of these tags")
    group.add_argument("--dedupe-key", metavar="KEY", help="with this dedupe key")
    group.add_argument("--error-type", metavar="TYPE", help="whose last error is of this type, such as TimeoutError")
    group.add_argument("--fingerprint", metavar="HEX", help="of this failure group, see `mainspring failures list`")
    group.add_argument("--worker", metavar="ID", help="run by this worker, now or last")
    add_range_options(group, "created")
    group.add_argument(
        "--due-before", type=parse_when, metavar="WHEN", help="due before: a time, or 2h for in two hours"
    )
    group.add_argument(
        "--changed-since",
        type=parse_when,
        metavar="WHEN",
        help="that changed since then: a time, or 2h for two hours ago",
    )
    group.add_argument(
        "--payload", action="append", type=parse_pair, default=[], metavar="KEY=VALUE",
        help="whose payload has this value, given as JSON or as text: guest.id=7; may be repeated",
    )  # fmt: skip


def make_filter(args: Namespace, now: datetime) -> Filter:
    target_type, target_id = args.target or (None, None)
    return Filter(
        statuses=tuple(getattr(args, "status", ())),
        queues=tuple(args.queue),
        tasks=tuple(args.task),
        target_type=target_type,
        target_id=target_id,
        tags=tuple(args.tag),
        dedupe_key=args.dedupe_key,
        worker=args.worker,
        error_type=args.error_type,
        fingerprint=args.fingerprint,
        created_after=args.since and args.since.before(now),
        created_before=args.until and args.until.before(now),
        due_before=args.due_before and args.due_before.after(now),
        changed_after=args.changed_since and args.changed_since.before(now),
        payload=conditions(args.payload),
    )


def is_filtered(args: Namespace) -> bool:
    return any(getattr(args, name, None) for name in OPTIONS)


# -- values ---------------------------------------------------------------------------------------


def parse_statuses(text: str) -> list[Status]:
    try:
        return [Status(name) for name in parse_names(text)]
    except ValueError as error:
        msg = f"{str(error).partition(' is not')[0]} is not a status; use any of {', '.join(Status)}"
        raise ArgumentTypeError(msg) from None


def parse_target(text: str) -> tuple[str, str | None]:
    kind, _, name = text.partition(":")
    if not kind:
        msg = f"{text!r} is not a target; write type:id, such as reservation:r7"
        raise ArgumentTypeError(msg)
    return kind, name or None


def parse_pair(text: str) -> tuple[str, Any]:
    try:
        return key_and_value(text)
    except ConfigurationError as error:
        raise ArgumentTypeError(str(error)) from None
