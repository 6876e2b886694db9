"""`mainspring copy`: copy all jobs of one store into another."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from mainspring.app import Mainspring
from mainspring.cli.changes import count_jobs
from mainspring.cli.exits import Exit, UsageError
from mainspring.cli.loading import is_there, opened
from mainspring.cli.moments import parse_seconds
from mainspring.cli.parser import Commands, add_command
from mainspring.cli.progress import Progress
from mainspring.cli.table import Column
from mainspring.cli.terminal import Terminal
from mainspring.copying import Copy, Report, Step, refuse_same
from mainspring.stores.encrypted import bare
from mainspring.stores.records import JOBS, Kind
from mainspring.stores.sqlite import MemoryStore

SHOWN = 20  # jobs that are listed by id
DETAIL = """\
Copies live jobs, dead letters, schedules and other documents, dedupe keys, pauses and the audit log; with --history
finished jobs too. Ids stay the same. The source is halted and rejects new jobs; its running jobs may finish. Then
everything is copied and compared, and the target is resumed. The source stays halted, so that nothing runs twice. If
the command is interrupted, run it again to continue."""


def add_commands(commands: Commands) -> None:
    parser = add_command(commands, "copy", copy, "copy all jobs of one store into another", DETAIL)
    parser.add_argument("source", metavar="SOURCE_URL", help="the store to copy from: sqlite:///jobs.db")
    parser.add_argument("target", metavar="TARGET_URL", help="the store to copy into: postgresql://user@host/database")
    parser.add_argument(
        "--history", action="store_true", help="copy completed and cancelled jobs too; also possible in a later run"
    )
    parser.add_argument(
        "--timeout", type=parse_seconds, default=300.0, metavar="LENGTH",
        help="give up if running jobs take longer than this to finish (default: 5min)",
    )  # fmt: skip
    parser.add_argument(
        "--skip-conflicts", action="store_true",
        help="do not copy jobs whose dedupe key is held by a live job of the target",
    )  # fmt: skip
    parser.add_argument("--stay-halted", action="store_true", help="leave the target halted, to inspect it first")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be copied; change nothing")


def copy(args: Namespace, terminal: Terminal) -> int:
    target = Mainspring(args.target)
    if isinstance(bare(target.store), MemoryStore):
        msg = "the jobs in memory:// would be lost when this command ends; copy into a store that lasts"
        raise UsageError(msg, args.prog)
    with opened(Namespace(app=None, store=args.source, prog=args.prog)) as source:
        refuse_same(source.store, target.store)
        try:
            code = (say_plan if args.dry_run else carry_out)(args, terminal, source, target)
        except KeyboardInterrupt:
            terminal.note(how_to_go_on(source, target))
            raise
        except Exception:
            source.run(target.close())
            raise
        source.run(target.close())
        return code


def carry_out(args: Namespace, terminal: Terminal, source: Mainspring, target: Mainspring) -> int:
    source.run(target.store.open())
    with watching(terminal) as tell:
        task = Copy(
            source.store, target.store, history=args.history, timeout=args.timeout, skip_conflicts=args.skip_conflicts,
            stay_halted=args.stay_halted, tell=tell,
        )  # fmt: skip
        report = source.run(task.run())
    if terminal.json:
        terminal.emit(summary(report))
    else:
        say_report(terminal, report)
        if not report.done:
            terminal.note(how_to_go_on(source, target))
    return Exit.OK if report.done else Exit.FAILED


def how_to_go_on(source: Mainspring, target: Mainspring) -> str:
    return (
        "run the same command again to continue; until then both stores may be halted. To give up instead, remove what "
        f"was copied from {target.store.url}, and then: mainspring resume --force --store {source.store.url}"
    )


@contextmanager
def watching(terminal: Terminal) -> Iterator[Callable[[Step], None]]:
    """Show a progress bar per stage."""
    with ExitStack() as shown:
        bars: dict[str, Progress] = {}

        def tell(step: Step) -> None:
            if step.what not in bars:
                shown.close()
                bar = terminal.progress(f"{step.what}:", step.total, lines=not terminal.json)
                bars[step.what] = shown.enter_context(bar)
            bars[step.what].reach(step.done)

        yield tell


# -- what would be ----------------------------------------------------------------------------------


def say_plan(args: Namespace, terminal: Terminal, source: Mainspring, target: Mainspring) -> int:
    """Show what would be copied. Open the target only if it exists: a dry run must not create it."""
    exists = is_there(target)
    if exists:
        source.run(target.store.open())
    source.run(Copy(source.store, target.store).check(target_exists=exists))
    sizes = {kind: number for kind, number in source.run(source.store.sizes()).items() if wanted(args, kind)}
    running = source.run(source.store.under_way())
    if terminal.json:
        terminal.emit(
            {
                "source": source.store.url, "target": target.store.url, "dry_run": True, "target_exists": exists,
                "kinds": {kind.value: {"records": number} for kind, number in sizes.items()}, "running": running,
            }
        )  # fmt: skip
        return Exit.OK
    columns = (Column("KIND"), Column("RECORDS", right=True))
    terminal.table(columns, [(kind.value, f"{number:,}") for kind, number in sizes.items()])
    jobs = sum(number for kind, number in sizes.items() if kind in JOBS)
    created = "" if exists else ", which would be created"
    terminal.say(f"{count_jobs(jobs)} would be copied from {source.store.url} to {target.store.url}{created}")
    if running:
        terminal.note(f"running now, would be waited for: {count_jobs(running)}")
    return Exit.OK


def wanted(args: Namespace, kind: Kind) -> bool:
    return bool(args.history) or kind is not Kind.HISTORY


# -- what was -----------------------------------------------------------------------------------------


def say_report(terminal: Terminal, report: Report) -> None:
    if report.kinds:
        say_kinds(terminal, report)
    say_problems(terminal, report)
    if report.done:
        say_done(terminal, report)


def say_kinds(terminal: Terminal, report: Report) -> None:
    columns = (
        Column("KIND"), Column("RECORDS", right=True), Column("COPIED NOW", right=True), Column("CHECKSUM", least=8),
    )  # fmt: skip
    rows = [
        (kind.value, f"{tally.equal:,}", f"{report.loaded[kind]:,}", tally.checksums[0][:16])
        for kind, tally in report.kinds.items()
    ]
    terminal.table(columns, rows)


def say_problems(terminal: Terminal, report: Report) -> None:
    for job_id, holder in list(report.conflicts.items())[:SHOWN]:
        terminal.complain(f"{job_id} is not copied: {holder}, live in the target, holds its dedupe key")
    if report.conflicts and not report.done:
        terminal.complain(
            f"{count_jobs(len(report.conflicts))} could not be copied; cancel the jobs in the target that hold the "
            "keys, or skip these with --skip-conflicts"
        )
    if report.changed and not report.done:
        for job_id in report.changed[:SHOWN]:
            terminal.complain(f"{job_id} is not the same in both stores")
        terminal.complain(
            f"different in the two stores: {count_jobs(len(report.changed))}, which were changed or run meanwhile. If "
            "the source is right, delete them in the target (mainspring jobs delete); if the target is right, cancel "
            "them in the source"
        )
    for kind, tally in report.kinds.items():
        kept = len(tally.differing) + (len(tally.conflicts) if kind is not Kind.LIVE else 0)
        if kind not in JOBS and kept:
            terminal.note(f"{kind.value}: {kept:,} have other contents in the target and were left unchanged there")


def say_done(terminal: Terminal, report: Report) -> None:
    jobs = sum(tally.equal for kind, tally in report.kinds.items() if kind in JOBS)
    if report.before and not report.kinds:
        terminal.say(f"{report.source} was copied to {report.target} before; there is nothing left to do")
    elif report.before:
        terminal.say(f"history of {report.source} copied to {report.target}: {count_jobs(jobs)}, verified")
    else:
        terminal.say(f"{report.source} is copied to {report.target}: {count_jobs(jobs)}, verified")
    terminal.note("the source stays halted, so that nothing runs twice; start your programs with the target's URL")
    if report.replaced is not None:
        was = report.replaced
        terminal.note(f"the source had been halted by {was.actor} ({was.reason or 'no reason given'})")
    if report.target_halt is not None:
        terminal.note(f"the target is halted ({report.target_halt.reason}): mainspring resume --store {report.target}")


def summary(report: Report) -> Mapping[str, Any]:
    kinds = {
        kind.value: {
            "records": tally.equal,
            "copied_now": report.loaded[kind],
            "expired": tally.expired,
            "differing": len(tally.differing),
            "checksum": tally.checksums[0],
            "verified": tally.checksums[0] == tally.checksums[1],
        }
        for kind, tally in report.kinds.items()
    }
    return {
        "source": report.source,
        "target": report.target,
        "done": report.done,
        "before": report.before,
        "kinds": kinds,
        "conflicts": report.conflicts,
        "changed": report.changed,
        "target_halt": report.target_halt,
    }
