"""When things happen: rules, time zones, policies, and the schedule that combines them. Pure: it only reads tzdata.

    cron, interval, calendar, rrule   which times a rule names; rule.py has their base class
    forms, description                rules from text and JSON, and in English words
    tz                                local time ↔ instants, with policies for gaps and folds
    timeline → policies → schedule    which instants a schedule names, and what fires or is dropped
    preview                           what a schedule will do, and how a change would affect that
    business, hours                   days and hours on which something is open

See docs/schedules.md.
"""

from mainspring.features.schedules.rules.business import BusinessCalendar
from mainspring.features.schedules.rules.calendar import Daily, Monthly, Once, Weekly, Yearly
from mainspring.features.schedules.rules.cron import Cron
from mainspring.features.schedules.rules.description import describe, in_words
from mainspring.features.schedules.rules.forms import rule_from_data, rule_from_text
from mainspring.features.schedules.rules.interval import Interval
from mainspring.features.schedules.rules.policies import Decision, Drop, DueOccurrence, Misfire, Reason, SchedulePause
from mainspring.features.schedules.rules.preview import (
    PreviewRow,
    ScheduleChange,
    compare_schedules,
    fires,
    preview_schedule,
    remarks,
)
from mainspring.features.schedules.rules.rrule import RRule
from mainspring.features.schedules.rules.rule import Rule
from mainspring.features.schedules.rules.schedule import Policies, PoliciesInTimeZone, Schedule
from mainspring.features.schedules.rules.timeline import Occurrence
from mainspring.features.schedules.rules.tz import PACKAGED, TimeZone, TzData, tz_names, tzdata_version

__all__ = [
    "PACKAGED",
    "BusinessCalendar",
    "Cron",
    "Daily",
    "Decision",
    "Drop",
    "DueOccurrence",
    "Interval",
    "Misfire",
    "Monthly",
    "Occurrence",
    "Once",
    "Policies",
    "PoliciesInTimeZone",
    "PreviewRow",
    "RRule",
    "Reason",
    "Rule",
    "Schedule",
    "ScheduleChange",
    "SchedulePause",
    "TimeZone",
    "TzData",
    "Weekly",
    "Yearly",
    "compare_schedules",
    "describe",
    "fires",
    "in_words",
    "preview_schedule",
    "remarks",
    "rule_from_data",
    "rule_from_text",
    "tz_names",
    "tzdata_version",
]
