"""Cancel, retry and delete jobs, by id, or by filter after counting and asking."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from mainspring.app import Mainspring
from mainspring.bulk.api import action_of
from mainspring.bulk.change import BulkChange, BulkState
from mainspring.cli.exits import Exit, UsageError, exit_code_of
from mainspring.cli.filters import add_filter_options, is_filtered
from mainspring.cli.ids import full_id
from mainspring.cli.loading import opened
from mainspring.cli.parser import Parser, add_actor_options, add_store_options, parse_positive
from mainspring.cli.terminal import Terminal
from mainspring.errors import MainspringError, StoreError
from mainspring.stores.protocol import CappedCount, ChangeResult, Filter


@dataclass(frozen=True, slots=True)
class Change:
    """One kind of change: its words, and the two methods of `app.jobs` that make it."""

    verb: str
    done: str
    change_one: Callable[..., Coroutine[Any, Any, Any]]
    change_where: Callable[..., Coroutine[Any, Any, ChangeResult]]


@dataclass(slots=True)
class Report:
    """The result of a change, in the shape that scripts get as JSON."""

    action: str
    dry_run: bool = False
    changed: int = 0
    requested: int = 0  # running jobs that were asked to stop
    conflicts: dict[str, str] = field(default_factory=dict)
    errors: list[dict[str, str]] = field(default_factory=list)


def add_change_options(parser: Parser, *, status: bool = True) -> None:
    parser.add_argument(
        "ids",
        nargs="*",
        metavar="ID",
        help="the jobs, by id or the beginning of it; or use the filters and --all-matching",
    )
    add_filter_options(parser, status=status)
    parser.add_argument("--all-matching", action="store_true", help="every job that matches the filters")
    add_background_options(parser)
    add_prudence_options(parser)


def add_background_options(parser: Parser) -> None:
    group = parser.add_argument_group("in the background")
    group.add_argument(
        "--background", action="store_true", help="let the workers do it; see how far it is with: mainspring bulk show"
    )
    group.add_argument(
        "--expect",
        type=parse_positive,
        metavar="N",
        help="refuse if the number of jobs is not this one, give or take 5 percent",
    )
    group.add_argument("--pace", type=parse_positive, metavar="N", help="at most this many jobs per second")
    group.add_argument(
        "--canary", type=parse_positive, metavar="N", help="change this many, then wait for: mainspring bulk go-on"
    )


def add_prudence_options(parser: Parser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show how many jobs would be changed")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask before changing more than one")
    add_actor_options(parser)
    add_store_options(parser)


def run_change(
    args: Namespace,
    terminal: Terminal,
    change: Change,
    where: Callable[[Mainspring], Filter],
    check: Callable[..., Any],
) -> int:
    """Change jobs by id or filter. `where` makes the filter; `check` may refuse a job that is given by its id."""
    require_selection(args)
    with opened(args) as app:
        if args.ids and not args.dry_run:
            return change_each(app, args, terminal, change, check)
        selected = replace(where(app), ids=tuple(full_id(app, text) for text in args.ids))
        if args.background:
            return start_in_background(app, args, terminal, change, selected)
        return change_many(
            args, terminal, change, lambda **options: app.run(change.change_where(app.jobs, selected, **options))
        )


def require_selection(args: Namespace) -> None:
    if args.ids and (is_filtered(args) or args.all_matching):
        msg = "give ids or filters, not both"
    elif not args.background and (args.expect or args.pace or args.canary):
        msg = "--expect, --pace and --canary need --background"
    elif args.background and args.ids:
        msg = "--background works with filters and --all-matching, not with ids"
    elif not args.ids and not args.all_matching:
        msg = "name jobs by id, or choose them with filters and --all-matching"
    else:
        return
    raise UsageError(msg, args.prog)


# -- in the background --------------------------------------------------------------------------------


def start_in_background(app: Mainspring, args: Namespace, terminal: Terminal, change: Change, where: Filter) -> int:
    def start(*, dry_run: bool) -> BulkChange:
        started = app.bulk.start(
            action_of(change.verb), where, expect=args.expect, pace=args.pace, canary=args.canary, dry_run=dry_run,
            reason=args.reason, actor=args.actor,
        )  # fmt: skip
        return app.run(started)

    if args.dry_run and (planned := start(dry_run=True)).state is BulkState.PLANNED:
        return conclude(terminal, change, ChangeResult(planned.total), dry_run=True)
    if not args.dry_run:
        require_consent(args, terminal, change, app.run(app.bulk.count(action_of(change.verb), where)))
        planned = start(dry_run=False)
    say_started(terminal, change, planned)
    return Exit.OK


def say_started(terminal: Terminal, change: Change, started: BulkChange) -> None:
    if terminal.json:
        terminal.emit(started)
        return
    if started.state is BulkState.COUNTING:
        terminal.say(f"bulk change {started.id} counts its jobs first: more than {count_jobs(started.total)}")
    else:
        terminal.say(f"bulk change {started.id} has begun: {change.verb} {count_jobs(started.total)}")
    terminal.note(f"see how far it is: mainspring bulk show {started.id}")


# -- by id ----------------------------------------------------------------------------------------


def change_each(app: Mainspring, args: Namespace, terminal: Terminal, change: Change, check: Callable[..., Any]) -> int:
    """Change each job on its own: an error for one does not stop the others. Return the highest exit code."""
    report, code = Report(change.verb), Exit.OK
    for text in args.ids:
        try:
            job_id = full_id(app, text)
            check(app, job_id)
            at_once = app.run(change.change_one(app.jobs, job_id, reason=args.reason, actor=args.actor))
        except StoreError:
            raise
        except MainspringError as error:
            code = max(code, exit_code_of(error))
            report.errors.append({"id": text, "error": str(error), "type": type(error).__name__})
            terminal.report(error)
        else:
            _note(report, terminal, change, job_id, asked=at_once is False)
    if terminal.json:
        terminal.emit(report)
    return code


def _note(report: Report, terminal: Terminal, change: Change, job_id: str, *, asked: bool) -> None:
    report.changed += not asked
    report.requested += asked
    if not terminal.json:
        terminal.say(f"{job_id} asked to stop; its worker ends it" if asked else f"{job_id} {change.done}")


# -- by filter ------------------------------------------------------------------------------------


def change_many(args: Namespace, terminal: Terminal, change: Change, apply: Callable[..., ChangeResult]) -> int:
    """Count first, ask, then do it under a progress bar."""
    found = apply(dry_run=True)
    if args.dry_run:
        return conclude(terminal, change, found, dry_run=True)
    require_consent(args, terminal, change, CappedCount(found.count, exact=True))
    with terminal.progress(f"{change.verb}:", found.count) as bar:
        result = apply(reason=args.reason, actor=args.actor, on_progress=bar.reach)
    return conclude(terminal, change, result)


def require_consent(args: Namespace, terminal: Terminal, change: Change, count: CappedCount) -> None:
    if args.yes or (count.exact and count.value <= 1):
        return
    if not terminal.interactive:
        msg = f"this would {change.verb} {count} jobs; add --yes to do it, or --dry-run to count only"
        raise UsageError(msg, args.prog)
    if not terminal.confirm(f"{change.verb.capitalize()} {count} jobs?"):
        msg = "nothing was changed"
        raise MainspringError(msg)


def conclude(terminal: Terminal, change: Change, result: ChangeResult, *, dry_run: bool = False) -> int:
    report = Report(change.verb, dry_run, result.changed, result.requested, dict(result.conflicts))
    if terminal.json:
        terminal.emit(report)
    else:
        _say_result(terminal, change, report)
    return Exit.FAILED if report.conflicts else Exit.OK


def _say_result(terminal: Terminal, change: Change, report: Report) -> None:
    would = "would be " if report.dry_run else ""
    terminal.say(f"{count_jobs(report.changed)} {would}{change.done}")
    if report.requested:
        terminal.say(f"{count_jobs(report.requested)} {would}asked to stop; their workers end them")
    for job_id, holder in report.conflicts.items():
        terminal.complain(f"{job_id} is not retried: {holder} is live and holds its dedupe key")


def count_jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number:,} jobs"
