"""`mainspring doctor`: check that all is well, and say what to do if not."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import zoneinfo
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from importlib import metadata
from typing import TYPE_CHECKING

from mainspring.app import Mainspring
from mainspring.cli.exits import Exit, UsageError
from mainspring.cli.loading import choose, require_existing
from mainspring.cli.parser import Commands, add_command, add_store_options
from mainspring.cli.table import printable
from mainspring.cli.terminal import Terminal
from mainspring.errors import MainspringError
from mainspring.halt_check import ACTOR as ANOTHER_SYSTEM
from mainspring.health import MAX_LATENESS, Health, describe_stuck, describe_unreadable
from mainspring.humanize import show_length, show_relative
from mainspring.job import WAITING, Status
from mainspring.stores.documents import Listing
from mainspring.stores.encrypted import bare, key_findings
from mainspring.stores.protocol import Filter, Finding, Severity, Stats, shown_due
from mainspring.stores.sqlite import SqliteStore

if TYPE_CHECKING:  # importing people takes a while, and most commands do not need them
    from mainspring.features.people.repair import Lack

OLDEST_PYTHON = (3, 11)
PACKAGES = ("mainspring", "pydantic", "tzdata")
OPTIONAL_PACKAGES = ("structlog", "psycopg")
LITTLE_ROOM, NO_ROOM = 1 << 30, 50 << 20  # bytes
JOBS_CHECKED = 500  # waiting jobs that are checked for unknown tasks
PEOPLE_COLLECTIONS = ("people", "occasion_kinds")  # named here, because importing people takes longer than a check
PEOPLE_CHECKED = 10_000  # people that are checked for missing entries

SIGNS = {Severity.OK: ("✓", "green"), Severity.WARNING: ("!", "yellow"), Severity.ERROR: ("✗", "red")}


def add_commands(commands: Commands) -> None:
    detail = "Checks the store's invariants, versions, settings and file system. Exits with 1 if it finds an error."
    parser = add_command(commands, "doctor", examine, "check that all is well, and say what to do if not", detail)
    parser.add_argument(
        "--repair", action="store_true", help="repair counts, rows without a job, and entries that people lack"
    )
    add_store_options(parser)


def examine(args: Namespace, terminal: Terminal) -> int:
    findings = [*check_environment(), *check_store(args)]
    if terminal.json:
        terminal.emit({"findings": findings, "healthy": is_healthy(findings)})
    else:
        say_findings(terminal, findings)
    return Exit.OK if is_healthy(findings) else Exit.FAILED


def is_healthy(findings: Iterable[Finding]) -> bool:
    return all(finding.severity is not Severity.ERROR for finding in findings)


def say_findings(terminal: Terminal, findings: Sequence[Finding]) -> None:
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        sign, colour = SIGNS[finding.severity]
        terminal.say(f"{terminal.paint(sign, colour)} {finding.check.ljust(width)}  {printable(finding.message)}")
        if finding.advice:
            terminal.say(f"{' ' * (width + 4)}→ {printable(finding.advice)}", "bold")
    say_verdict(terminal, findings)


def say_verdict(terminal: Terminal, findings: Sequence[Finding]) -> None:
    errors, warnings = (sum(f.severity is kind for f in findings) for kind in (Severity.ERROR, Severity.WARNING))
    terminal.say()
    if errors:
        terminal.say(f"{count(errors, 'error')}, {count(warnings, 'warning')}", "red")
    elif warnings:
        terminal.say(f"no errors, {count(warnings, 'warning')}", "yellow")
    else:
        terminal.say("all is well", "green")


def count(number: int, noun: str, several: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number:,} {several or noun + 's'}"


# -- this program ---------------------------------------------------------------------------------


def check_environment() -> Iterator[Finding]:
    yield check_python()
    yield check_packages()
    yield check_zones()
    yield check_open_files()


def check_python() -> Finding:
    shown = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()}"
    if sys.version_info < OLDEST_PYTHON:
        return Finding(Severity.ERROR, "python", shown, "use Python 3.11 or newer")
    return Finding(Severity.OK, "python", shown)


def check_packages() -> Finding:
    versions = {name: find_version(name) for name in (*PACKAGES, *OPTIONAL_PACKAGES)}
    missing = [name for name in PACKAGES if versions[name] is None]
    shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
    if missing:
        advice = f"install them: python -m pip install {' '.join(missing)}"
        return Finding(Severity.ERROR, "packages", f"missing: {', '.join(missing)}", advice)
    return Finding(Severity.OK, "packages", shown)


def find_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_zones() -> Finding:
    try:
        zoneinfo.ZoneInfo("Europe/London")
    except zoneinfo.ZoneInfoNotFoundError:
        return Finding(Severity.ERROR, "time zones", "no data", "install it: python -m pip install tzdata")
    return Finding(Severity.OK, "time zones", f"{len(zoneinfo.available_timezones())} known")


def check_open_files() -> Finding:
    import resource

    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < 256:
        advice = "raise it with `ulimit -n 1024`, or LimitNOFILE= in a systemd unit"
        return Finding(Severity.WARNING, "open files", f"at most {soft} per process", advice)
    return Finding(Severity.OK, "open files", f"at most {soft:,} per process" if soft >= 0 else "no limit")


# -- the store ------------------------------------------------------------------------------------


def check_store(args: Namespace) -> list[Finding]:
    """Return the findings about the store. A store that cannot be opened is a finding, not an error."""
    try:
        app = choose(args)
    except UsageError:
        raise
    except MainspringError as error:
        return [Finding(Severity.ERROR, "store", str(error))]
    try:
        require_existing(app)
        app.run(app.store.open())
        return list(check_open_store(app, repair=args.repair))
    except MainspringError as error:
        return [Finding(Severity.ERROR, "store", str(error))]
    finally:
        app.run(app.close())


def check_open_store(app: Mainspring, *, repair: bool) -> Iterator[Finding]:
    yield Finding(Severity.OK, "store", app.store.url)
    if repair:
        yield mend(app)
        yield from mend_people(app)
    yield from app.run(app.store.diagnose())
    yield from app.run(key_findings(app.store))
    if isinstance(store := bare(app.store), SqliteStore):
        yield check_room(store)
    stats, health, now = app.run(app.stats()), app.run(app.health()), app.now()
    yield check_halts(stats, now)
    yield check_attended(health)
    yield from check_known(stats)
    yield from check_readable(health)
    yield check_hearing(health)
    yield from check_slots(stats)
    yield check_dead(stats)
    yield check_clock(app, now)
    if knows_people(app):
        yield from check_people(app)
        yield from check_occasions(app, now)
    yield from check_tasks(app)


def mend(app: Mainspring) -> Finding:
    repair = getattr(app.store, "repair", None)
    if repair is None:
        return Finding(Severity.WARNING, "repair", "this store cannot repair itself", "see the findings for what to do")
    app.run(repair())
    return Finding(Severity.OK, "repair", "jobs counted again; rows without a job removed")


def mend_people(app: Mainspring) -> Iterator[Finding]:
    from mainspring.features.people import repair

    if lack := app.run(repair.mend(app.runtime.services)):
        strays = f"; {count(lack.strays, 'entry', 'entries')} without a person removed" if lack.strays else ""
        yield Finding(
            Severity.OK, "repair", f"of {count(lack.people, 'person', 'people')} {lacking(lack)}: repaired{strays}"
        )


def check_room(store: SqliteStore) -> Finding:
    free, size = shutil.disk_usage(store.file.path.parent).free, store.file.path.stat().st_size
    shown = f"{show_size(free)} free, the database has {show_size(size)}"
    if not os.access(store.file.path, os.W_OK) or not os.access(store.file.path.parent, os.W_OK):
        return Finding(Severity.ERROR, "disk", f"{store.file.path} cannot be written", "check its owner and mode")
    if free < NO_ROOM:
        return Finding(
            Severity.ERROR, "disk", shown, "free space now: on a full disk no job can be enqueued or finished"
        )
    if free < LITTLE_ROOM:
        advice = "free space; `mainspring dead purge` and shorter retention help"
        return Finding(Severity.WARNING, "disk", shown, advice)
    return Finding(Severity.OK, "disk", shown)


def show_size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"


def check_halts(stats: Stats, now: datetime) -> Finding:
    if not stats.halts:
        return Finding(Severity.OK, "halts", "nothing is halted or paused")
    halt = stats.halts[0]
    what = "the whole system is halted" if halt.queue is None else f"queue {halt.queue} is paused"
    more = f", and {len(stats.halts) - 1} more" if len(stats.halts) > 1 else ""
    shown = f"{what} by {halt.actor}, {show_relative(halt.since, now)}{more}"
    if halt.actor == ANOTHER_SYSTEM:
        return Finding(Severity.WARNING, "halts", shown, "end it in that system")
    advice = "mainspring resume" if halt.queue is None else f"mainspring resume {shlex.quote(halt.queue)}"
    return Finding(Severity.WARNING, "halts", shown, f"if that is over: {advice}")


def check_attended(health: Health) -> Finding:
    """Find due jobs that no live worker takes, or that wait too long although one does."""
    if health.unattended:
        queues = ", ".join(health.unattended)
        advice = f"start one: mainspring worker module:app --queues {','.join(health.unattended)}"
        return Finding(Severity.WARNING, "lateness", f"jobs are due that no worker takes, in: {queues}", advice)
    if health.oldest_due is not None and health.at - health.oldest_due > MAX_LATENESS:
        length = show_length((health.at - health.oldest_due).total_seconds())
        shown = f"the oldest job of queue {health.oldest_in} has been due for {length}"
        return Finding(Severity.WARNING, "lateness", shown, "start more workers, or raise --concurrency")
    return Finding(Severity.OK, "lateness", "no job is long overdue")


def check_known(stats: Stats) -> Iterator[Finding]:
    """Find due jobs whose task no live worker of their queue knows."""
    for task in stats.unknown_tasks:
        due = "1 job is due" if task.due == 1 else f"{shown_due(task.due)} jobs are due"
        shown = f"no live worker of queue {task.queue} knows task {task.task}: {due}"
        advice = "start a worker whose application defines it: is the code deployed, and its module imported?"
        yield Finding(Severity.WARNING, "unknown task", shown, advice)


def check_readable(health: Health) -> Iterator[Finding]:
    """Find jobs that live workers cannot decrypt."""
    for problem in describe_unreadable(health.unreadable):
        shown, _, advice = problem.rpartition(". ")
        yield Finding(Severity.WARNING, "unreadable", shown, advice[0].lower() + advice[1:])


def check_hearing(health: Health) -> Finding:
    if health.polling:
        shown = f"these are not notified of new jobs and poll each second: {', '.join(health.polling)}"
        advice = "if they connect through a pooler, give them a direct connection: listen=… in the store's URL"
        return Finding(Severity.WARNING, "workers", shown, advice)
    shown = f"{count(health.workers or 0, 'worker')} alive, notified of new jobs at once"
    return Finding(Severity.OK, "workers", shown)


def check_slots(stats: Stats) -> Iterator[Finding]:
    for worker in stats.workers:
        if worker.alive and worker.stuck:
            advice = (
                f"its log lines slot_stuck say where they hang; restart process {worker.pid} of {worker.host}, or let"
                " it exit by itself: --exit-when-stuck 0.5"
            )
            yield Finding(Severity.WARNING, "slots", describe_stuck(worker), advice)


def check_dead(stats: Stats) -> Finding:
    number = sum(counts[Status.DEAD_LETTER] for counts in stats.queues)
    shown = f"{count(number, 'dead letter')}; look at them with `mainspring dead list`" if number else "none"
    return Finding(Severity.OK, "dead letters", shown)


def check_clock(app: Mainspring, now: datetime) -> Finding:
    """Check that the newest job is not in the future: if a clock went back, new jobs look old."""
    newest = app.run(app.jobs.find(limit=1)).jobs
    if newest and newest[0].created_at > now + timedelta(minutes=1):
        shown = f"the newest job was created {show_relative(newest[0].created_at, now)}"
        return Finding(
            Severity.WARNING, "clock", shown, "the clock went back; check that this machine keeps time (NTP)"
        )
    return Finding(Severity.OK, "clock", f"{now:%Y-%m-%d %H:%M:%S} UTC")


def knows_people(app: Mainspring) -> bool:
    return any(app.run(app.store.browse(Listing(name, None, None, 1))) for name in PEOPLE_COLLECTIONS)


def check_people(app: Mainspring) -> Iterator[Finding]:
    """Check that people have their entries. Both are written together, but a copy that was cut short may lack some."""
    from mainspring.features.people import repair

    lack = app.run(repair.look(app.runtime.services, PEOPLE_CHECKED))
    checked = f"{count(lack.people, 'person', 'people')} checked"
    if lack:
        shown = f"of {checked}, {lacking(lack)}"
        yield Finding(Severity.ERROR, "people", shown, "run `mainspring doctor --repair`, which checks everybody")
    elif lack.people:
        yield Finding(Severity.OK, "people", f"{checked}: all are listed and planned for")


def lacking(lack: Lack) -> str:
    return f"{lack.unlisted:,} cannot be found by e-mail address, {count(lack.unplanned, 'occasion')} without a plan"


def check_occasions(app: Mainspring, now: datetime) -> Iterator[Finding]:
    """Find overdue occasions: they wait for a worker with a handler for their kind, and nothing else reports that."""
    overdue = [
        occasion for occasion in app.run(app.occasions.upcoming(timedelta())) if now - occasion.due > MAX_LATENESS
    ]
    if overdue:
        kinds = ", ".join(sorted({occasion.kind for occasion in overdue}))
        shown = f"people's occasions are due and not sent, the oldest {show_relative(overdue[0].due, now)}: {kinds}"
        advice = f'start a worker whose application has @app.occasion("{overdue[0].kind}")'
        yield Finding(Severity.WARNING, "occasions", shown, advice)


def check_tasks(app: Mainspring) -> Iterator[Finding]:
    """Find waiting jobs of unknown tasks, if an application is given: a store alone does not know the tasks."""
    if not app.tasks:
        return
    waiting = app.run(app.jobs.find(Filter(statuses=tuple(WAITING)), limit=JOBS_CHECKED)).jobs
    unknown = sorted({job.task for job in waiting} - app.tasks.keys())
    if unknown:
        advice = "they wait for a worker that knows them: was a task renamed, or its module not imported?"
        yield Finding(Severity.WARNING, "tasks", f"jobs wait for unknown tasks: {', '.join(unknown)}", advice)
    else:
        yield Finding(Severity.OK, "tasks", f"{len(app.tasks)} known")
