"""The schedule: a rule, a time zone and policies. It is data, with methods that say when it fires and what is due."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypedDict

from mainspring.errors import InvalidSchedule
from mainspring.features.schedules.rules.description import describe
from mainspring.features.schedules.rules.forms import MOMENT, build, read_moment, rule_from_data, rule_from_text
from mainspring.features.schedules.rules.interval import Interval
from mainspring.features.schedules.rules.parse import Length, bound, choice, instant, length, write_length
from mainspring.features.schedules.rules.policies import (
    OVERLAPS,
    Decision,
    DueOccurrence,
    Misfire,
    Overlap,
    SchedulePause,
    catch_up,
    spread,
)
from mainspring.features.schedules.rules.rule import Rule, fill
from mainspring.features.schedules.rules.timeline import TICK, Occurrence, Timeline
from mainspring.features.schedules.rules.tz import FOLDS, GAPS, PACKAGED, Fold, Gap, TzData
from mainspring.features.schedules.rules.words import long_moment

LATEST = Misfire()
NONE = timedelta()
Bound = datetime | str | None
BOUND = rf"{MOMENT}(?: UTC)?|\d{{4}}-\d\d-\d\dT[\d:.+]+"
DESCRIBED = re.compile(
    rf"(?P<rule>.*?)(?:, (?P<tz>UTC|[\w/+-]+ time))?(?:, from (?P<start>{BOUND}))?(?:, until (?P<end>{BOUND}))?"
)


class Policies(TypedDict, total=False):
    """The options of a schedule, besides its rule and its time zone."""

    gap: Gap
    fold: Fold
    misfire: Misfire | Literal["latest", "all", "skip"]
    overlap: Overlap
    jitter: Length
    start: datetime | str | None
    end: datetime | str | None


class PoliciesInTimeZone(Policies, total=False):
    tz: str | None


@dataclass(frozen=True, slots=True, init=False)
class Schedule:
    """Schedule(Cron("0 9 * * *"), tz="Europe/London"), Schedule("every 90s"), Schedule(Yearly(12, 24), "Asia/Tokyo").

    All methods take and return aware instants; wall times are naive. `start` is the first instant that may fire, `end`
    the first that may not. They are aware, or naive for a wall time in the time zone.
    """

    rule: Rule
    tz: str
    gap: Gap
    fold: Fold
    misfire: Misfire
    overlap: Overlap
    jitter: timedelta
    start: datetime | None
    end: datetime | None
    pause: SchedulePause | None
    earlier: tuple[SchedulePause, ...]  # past pauses that may still cover undecided occurrences

    def __init__(
        self,
        rule: Rule | str | timedelta,
        tz: str | None = None,
        *,
        gap: str = "shift",
        fold: str = "first",
        misfire: Misfire | str = LATEST,
        overlap: str = "allow",
        jitter: Length = NONE,
        start: datetime | str | None = None,
        end: datetime | str | None = None,
        pause: SchedulePause | None = None,
        earlier: tuple[SchedulePause, ...] = (),
    ) -> None:
        rule, tz, start, end = _described(rule, tz, start, end)
        fill(
            self,
            rule=_rule(rule),
            tz=PACKAGED.get(tz).key,
            gap=choice(gap, GAPS, "gap"),
            fold=choice(fold, FOLDS, "fold"),
            misfire=misfire if isinstance(misfire, Misfire) else Misfire(misfire),
            overlap=choice(overlap, OVERLAPS, "overlap"),
            jitter=length(jitter, "jitter"),
            start=None if start is None else bound(start, "start"),
            end=None if end is None else bound(end, "end"),
            pause=_pause(pause),
            earlier=tuple(earlier),
        )
        line = self._timeline(PACKAGED)
        if line.start is not None and line.end is not None and line.end <= line.start:
            msg = f"the schedule ends ({self.end}) before it starts ({self.start})"
            raise InvalidSchedule(msg)

    # -- when -----------------------------------------------------------------------------------------

    def next_after(self, after: datetime, *, tzdata: TzData = PACKAGED) -> Occurrence | None:
        """Return the first fire after an instant. For an interval from the last finish, that instant is the finish."""
        line = self._timeline(tzdata)
        return self._beyond_pause(line, line.after(instant(after, "after")))

    def between(self, low: datetime, high: datetime, *, tzdata: TzData = PACKAGED) -> Iterator[Occurrence]:
        """Yield the occurrences from `low` to before `high`, without those in a pause."""
        line = self._timeline(tzdata)
        for found in line.between(instant(low, "low"), instant(high, "high")):
            if not any(pause.covers(found.utc) for pause in self._pauses()):
                yield found

    def following(self, last: Occurrence, *, tzdata: TzData = PACKAGED) -> Occurrence | None:
        """Return the occurrence after the last decided one, even if tzdata or the time zone has changed since.

        If the time zone still puts the last one's nominal time at the same instant, this is the next instant. If not,
        it is the next nominal time, wherever that now is, even in the past. So a wall time that moved into the future
        does not fire again, and one that moved into the past is not lost. Rules that recur in real time (intervals,
        `*/5 * * * *`) always use the next instant.
        """
        return self._timeline(tzdata).following(last)

    def occurrence_at(self, moment: datetime, *, tzdata: TzData = PACKAGED) -> Occurrence:
        """Return a moment as an occurrence, whatever the rule says. Used for a run that a person triggers."""
        utc = instant(moment, "moment")
        offset = tzdata.get(self.tz).offset(utc.replace(tzinfo=None))
        return Occurrence(utc.replace(tzinfo=None) + offset, utc, offset, f"by hand {utc.isoformat()}")

    def run_at(self, occurrence: Occurrence, schedule_id: str) -> datetime:
        """Return when to run: the instant plus its part of the jitter, which is the same in every process."""
        return occurrence.utc + spread(self.jitter, schedule_id, occurrence.key)

    # -- what to do -----------------------------------------------------------------------------------

    def decide(self, since: datetime | Occurrence, now: datetime, *, tzdata: TzData = PACKAGED) -> Decision:
        """Return which occurrences after `since` until now to fire, and which to drop.

        `since` is the newest decided occurrence, or an instant: when the schedule was created or last changed or, for
        an interval from the last finish, that finish.
        """
        now, line = instant(now, "now"), self._timeline(tzdata)
        first = line.following(since) if isinstance(since, Occurrence) else line.after(instant(since, "since"))
        if first is None or first.utc > now:
            return Decision((), (), None, self._beyond_pause(line, first))
        if self.rule.from_finish:
            return self._decide_from_finish(line, first, now)
        if (usual := self._decide_for_one(line, first, now)) is not None:
            return usual
        fires, drops = catch_up(line, self.misfire, self._pauses(), first, now)
        decided = max(
            [*(fire.occurrence for fire in fires), *(drop.last for drop in drops)],
            key=lambda occurrence: occurrence.utc,
        )
        return Decision(tuple(fires), tuple(drops), decided, self._beyond_pause(line, line.after(now)))

    def _decide_for_one(self, line: Timeline, first: Occurrence, now: datetime) -> Decision | None:
        """Return the decision if just one occurrence is due and fires: the usual case, in half the steps."""
        lateness, grace = now - first.utc, self.misfire.grace
        if self._pauses() or (grace is not None and lateness > grace):
            return None
        second = line.after(first.utc)
        several = second is not None and second.utc <= now
        return None if several else Decision((DueOccurrence(first, lateness),), (), first, second)

    def _decide_from_finish(self, line: Timeline, first: Occurrence, now: datetime) -> Decision:
        """Fire the one occurrence, however late. If it were dropped, no run would end, and nothing would fire again."""
        if self.pause is not None and self.pause.covers(now):
            return Decision((), (), None, self._beyond_pause(line, first))
        return Decision((DueOccurrence(first, now - first.utc),), (), first, None)

    def _beyond_pause(self, line: Timeline, found: Occurrence | None) -> Occurrence | None:
        for pause in self._pauses():  # in chronological order
            if found is None or not pause.covers(found.utc):
                continue
            if pause.until is None:
                return None
            back = self.rule.interval if isinstance(self.rule, Interval) and self.rule.from_finish else TICK
            found = line.after(pause.until - back)
        return found

    def _pauses(self) -> tuple[SchedulePause, ...]:
        return self.earlier if self.pause is None else (*self.earlier, self.pause)

    # -- changes --------------------------------------------------------------------------------------

    def paused(self, since: datetime, until: datetime | None = None) -> Schedule:
        """Return this, paused. A current pause keeps its start; a past one is kept for what it covered."""
        if self.pause is None:
            return dataclasses.replace(self, pause=SchedulePause(since, until))
        if self.pause.covers(since):
            return dataclasses.replace(self, pause=SchedulePause(self.pause.since, until))
        earlier = (*self.earlier, self.pause) if self.pause.since < since else self.earlier
        return dataclasses.replace(self, pause=SchedulePause(since, until), earlier=earlier)

    def decided_until(self, utc: datetime) -> Schedule:
        """Return this without earlier pauses that ended by `utc`, as all they covered is decided."""
        earlier = tuple(pause for pause in self.earlier if pause.until is None or pause.until > utc)
        return self if earlier == self.earlier else dataclasses.replace(self, earlier=earlier)

    def resumed(self, at: datetime) -> Schedule:
        """Return this with the pause ended at `at`. The pause is kept, so that what it covered is not caught up."""
        if self.pause is None or (self.pause.until is not None and self.pause.until <= at):
            return self
        return dataclasses.replace(self, pause=SchedulePause(self.pause.since, max(at, self.pause.since)))

    # -- words and data -------------------------------------------------------------------------------

    def describe(self) -> str:
        """Return words such as `at 09:00 on the last weekday of every month, Europe/London time`.

        `Schedule(…)` and `@app.every(…)` can parse them. They contain the rule, the time zone, start and end, but no
        policies.
        """
        local = any(bound is not None and bound.tzinfo is None for bound in (self.start, self.end))
        zoneless = isinstance(self.rule, Interval) and not local  # then UTC need not be mentioned
        where = f", {self.tz} time" if self.tz != "UTC" else "" if zoneless else ", UTC"
        start = "" if self.start is None else f", from {self._moment(self.start)}"
        end = "" if self.end is None else f", until {self._moment(self.end)}"
        return f"{describe(self.rule)}{where}{start}{end}"

    def _moment(self, moment: datetime) -> str:
        """Return words, or ISO 8601 for a moment with fractions of a second, which the words cannot express."""
        return moment.isoformat() if moment.microsecond else long_moment(moment) + (" UTC" if moment.tzinfo else "")

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "rule": self.rule.to_data(),
            "tz": self.tz,
            "gap": self.gap,
            "fold": self.fold,
            "misfire": self.misfire.to_data(),
            "overlap": self.overlap,
            "jitter": write_length(self.jitter),
            "start": None if self.start is None else self.start.isoformat(),
            "end": None if self.end is None else self.end.isoformat(),
            "pause": None if self.pause is None else self.pause.to_data(),
            "earlier": [pause.to_data() for pause in self.earlier] or None,
        }
        return {name: value for name, value in data.items() if value is not None}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Schedule:
        return build("schedule", _from_fields, data, [field.name for field in dataclasses.fields(cls)])

    def _timeline(self, tzdata: TzData) -> Timeline:
        tz = tzdata.get(self.tz)
        start = self._bound(self.start, tzdata)
        return Timeline(self.rule, tz, self.gap, self.fold, start, self._bound(self.end, tzdata))

    def _bound(self, moment: datetime | None, tzdata: TzData) -> datetime | None:
        if moment is None or moment.tzinfo is not None:
            return moment
        (found,) = tzdata.get(self.tz).resolve(moment)
        return found.utc.replace(tzinfo=UTC)


def _described(rule: Any, tz: str | None, start: Bound, end: Bound) -> tuple[Any, str, Bound, Bound]:
    """Split a text that `describe` wrote into its rule, time zone and bounds."""
    found = DESCRIBED.fullmatch(rule.strip()) if isinstance(rule, str) else None
    if found is None or not any(found[name] for name in ("tz", "start", "end")):
        return rule, tz or "UTC", start, end
    named = found["tz"] and found["tz"].removesuffix(" time")
    for what, inside, given in (("tz", named, tz), ("start", found["start"], start), ("end", found["end"], end)):
        if inside and given and inside != given:
            msg = f"{what}: {rule!r} already contains one; leave out {what}={given!r}, or remove it from the text"
            raise InvalidSchedule(msg)
    bounds = (_read_bound(found["start"]) or start, _read_bound(found["end"]) or end)
    return found["rule"], named or tz or "UTC", *bounds


def _read_bound(text: str | None) -> datetime | None:
    if text is None:
        return None
    if " on " not in text:
        return datetime.fromisoformat(text)
    moment = read_moment(text.removesuffix(" UTC"))
    return moment.replace(tzinfo=UTC) if text.endswith(" UTC") else moment


def _rule(rule: object) -> Rule:
    if isinstance(rule, str):
        return rule_from_text(rule)
    if isinstance(rule, timedelta):
        return Interval(rule)
    if isinstance(rule, Rule):
        return rule
    msg = (
        f"rule: {rule!r} is not a rule; use Cron, Interval, Daily, Weekly, Monthly, Yearly, Once, RRule, a timedelta"
        ', or a text such as "15m" or "0 9 * * *"'
    )
    raise InvalidSchedule(msg)


def _pause(pause: object) -> SchedulePause | None:
    if pause is None or isinstance(pause, SchedulePause):
        return pause
    msg = f"pause: {pause!r} is not a Pause; use Pause(since, until)"
    raise InvalidSchedule(msg)


def _from_fields(rule: Any, misfire: Any = None, pause: Any = None, earlier: Any = (), **others: Any) -> Schedule:
    policies: dict[str, Any] = {}
    if misfire is not None:
        policies["misfire"] = build("misfire", Misfire, misfire, ["mode", "grace", "max_fires"])
    if pause is not None:
        policies["pause"] = build("pause", SchedulePause, pause, ["since", "until"])
    policies["earlier"] = tuple(build("pause", SchedulePause, past, ["since", "until"]) for past in earlier)
    return Schedule(rule if isinstance(rule, str) else rule_from_data(rule), **others, **policies)
