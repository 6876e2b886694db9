"""Check-ins of schedules for Sentry's Crons page.

Each run of a schedule is one check-in: `in_progress` when it starts, `ok` or `error` when its job has ended. Its id is
made from the job's id. So every process finds it, also one that takes the job over from a worker that died.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from sentry_sdk.crons import capture_checkin

from mainspring.app import Mainspring
from mainspring.clock import since_boot
from mainspring.errors import ConfigurationError, MainspringError
from mainspring.job import Claim, Status
from mainspring.log import get_log
from mainspring.stored_options import options_of

if TYPE_CHECKING:
    from sentry_sdk.types import MonitorConfig

    from mainspring.features.schedules.rules import Rule, Schedule
    from mainspring.features.schedules.rules.calendar import DayRule

log = get_log("mainspring.sentry")

CHECK_IN_IDS = uuid.UUID("6b1c2f1e-3f0e-4c55-9d0e-0d2f6f1b7a11")  # the namespace of our check-in ids
LONGEST_SLUG = 50  # characters that Sentry accepts
READ_TIMEOUT = 2.0  # seconds that a run waits for its schedule, which Sentry is told
KEPT_FOR = 60.0  # seconds for which a schedule is not read again
MOST_KEPT = 1000  # schedules
PLAIN_FIELD = re.compile(r"[\d*/,-]+|(?:(?:[A-Z]{3}|\d)(?:-(?:[A-Z]{3}|\d))?,?)+", re.IGNORECASE)
UNITS = (("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60))  # seconds
ENDS: Mapping[Status | None, str] = {
    Status.COMPLETED: "ok",
    Status.CANCELLED: "ok",  # somebody, or the job itself, decided that it need not run
    Status.DEAD_LETTER: "error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Crons:
    """How Sentry judges the monitors of schedules."""

    checkin_margin: int = 5  # minutes that a run may start late before Sentry calls it missed
    max_runtime: int = 30  # minutes that a run, with its retries, may take before Sentry calls it timed out
    failure_issue_threshold: int = 1  # failures in a row before Sentry opens an issue
    recovery_threshold: int = 1  # successes in a row before Sentry resolves it

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                msg = f"{name} is {value!r}; give a whole number of at least 1"
                raise ConfigurationError(msg)


class CheckIns:
    """Sends the check-ins of one application."""

    def __init__(self, app: Mainspring, crons: Crons) -> None:
        self._app = app
        self._crons = crons
        self._configs: dict[str, tuple[float, MonitorConfig | None]] = {}

    async def start(self, claims: Iterable[Claim]) -> bool:
        """Say that runs of schedules start; return whether there was one. A retry says it again, which does no harm."""
        scheduled = [(claim, name) for claim in claims if (name := schedule_of(claim.options)) is not None]
        for claim, name in scheduled:
            config = await self._config(name)
            capture_checkin(slug_of(name), check_in_id(claim.id), "in_progress", monitor_config=config)
        return bool(scheduled)

    def finish(self, job_id: str, options: str | None, status: Status | None) -> None:
        """Say that the run of a schedule has ended, if it has: a job that is retried or waits has not."""
        ended, name = ENDS.get(status), schedule_of(options)
        if ended is not None and name is not None:
            capture_checkin(slug_of(name), check_in_id(job_id), ended)

    async def _config(self, name: str) -> MonitorConfig | None:
        """Return what Sentry must know of a schedule; None if Sentry cannot know it, or it cannot be read now."""
        kept_until, config = self._configs.get(name, (0.0, None))
        if since_boot() < kept_until:
            return config
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                stored = await self._app.schedules.get(name)
        except (MainspringError, TimeoutError) as error:  # deleted, or the store does not answer
            log.warning("monitor_not_updated", schedule=name, error=f"{type(error).__name__}: {error}")
            return config
        config = config_of(stored.schedule, self._crons)
        while len(self._configs) >= MOST_KEPT:
            del self._configs[next(iter(self._configs))]
        self._configs[name] = since_boot() + KEPT_FOR, config
        return config


def schedule_of(options: str | None) -> str | None:
    """Return the schedule that made a job; None if none did."""
    if options is None or '"occurrence"' not in options:
        return None
    occurrence = options_of(options).get("occurrence")
    return None if occurrence is None else occurrence["schedule"]


def check_in_id(job_id: str) -> str:
    return uuid.uuid5(CHECK_IN_IDS, job_id).hex


def slug_of(schedule: str) -> str:
    """Return the name of a monitor: `mainspring-<schedule>`; with a checksum if Sentry does not accept the id as it is.

    Without it, two schedules whose ids differ only in what is replaced or cut off would share one monitor.
    """
    plain = f"mainspring-{schedule}"
    slug = re.sub(r"[^a-z0-9_-]+", "-", plain.lower())
    if slug == plain and len(slug) <= LONGEST_SLUG:
        return slug
    checksum = sha256(schedule.encode()).hexdigest()[:8]
    return f"{slug[: LONGEST_SLUG - 9].rstrip('-')}-{checksum}"


# -- what Sentry knows of a schedule --------------------------------------------------------------------


def config_of(schedule: Schedule, crons: Crons) -> MonitorConfig | None:
    """Return the monitor of a schedule; None if Sentry has no words for its rule, such as the last day of a month."""
    rule = rule_of(schedule.rule)
    if rule is None:
        return None
    jitter = -(-schedule.jitter // timedelta(minutes=1))  # whole minutes, rounded up
    config: Any = {
        "schedule": rule,
        "timezone": schedule.tz,
        "checkin_margin": crons.checkin_margin + jitter,
        "max_runtime": crons.max_runtime,
        "failure_issue_threshold": crons.failure_issue_threshold,
        "recovery_threshold": crons.recovery_threshold,
    }
    return config  # type: ignore[no-any-return]


def rule_of(rule: Rule) -> dict[str, Any] | None:
    from mainspring.features.schedules.rules import Cron, Interval  # noqa: PLC0415 - not every program has schedules
    from mainspring.features.schedules.rules.calendar import DayRule  # noqa: PLC0415

    if isinstance(rule, Cron):
        return crontab_of(rule.expression)
    if isinstance(rule, DayRule):
        return crontab_of_days(rule)
    return interval_of(rule.interval) if isinstance(rule, Interval) else None


def crontab_of(expression: str) -> dict[str, Any] | None:
    """Return a cron expression as Sentry takes it: five fields, without seconds, `L`, `W` and `#`."""
    from mainspring.features.schedules.rules.cron import NICKNAMES  # noqa: PLC0415 - as above

    fields = NICKNAMES.get(expression.lower(), expression).split()
    if len(fields) != 5 or not all(PLAIN_FIELD.fullmatch(field) for field in fields):
        return None
    return {"type": "crontab", "value": " ".join(fields)}


def crontab_of_days(rule: DayRule) -> dict[str, Any] | None:
    """Return a rule about days as a cron expression; None if there is none, say for every third day."""
    minutes = {at.minute for at in rule.at}
    days = days_of(rule)
    is_plain = rule.business is None and getattr(rule, "every", 1) == 1 and not any(at.second for at in rule.at)
    if len(minutes) != 1 or days is None or not is_plain:
        return None
    hours = ",".join(str(at.hour) for at in rule.at)
    return {"type": "crontab", "value": f"{minutes.pop()} {hours} {days}"}


def days_of(rule: DayRule) -> str | None:
    """Return the last three fields of a cron expression; None if some months do not have such a day."""
    from mainspring.features.schedules.rules import Daily, Monthly, Weekly, Yearly  # noqa: PLC0415 - as above

    if isinstance(rule, Daily):
        return "* * *"
    if isinstance(rule, Weekly):
        return f"* * {','.join(day[:3].upper() for day in rule.on)}"
    if isinstance(rule, Monthly) and all(isinstance(day, int) and 1 <= day <= 28 for day in rule.on):
        return f"{','.join(map(str, rule.on))} * *"
    if isinstance(rule, Yearly) and rule.day <= 28:
        return f"{rule.day} {rule.month} *"
    return None


def interval_of(interval: timedelta) -> dict[str, Any] | None:
    """Return an interval as Sentry takes it: whole minutes, or a larger unit."""
    seconds = interval.total_seconds()
    for unit, length in UNITS:
        if seconds >= length and seconds % length == 0:
            return {"type": "interval", "value": int(seconds // length), "unit": unit}
    return None
