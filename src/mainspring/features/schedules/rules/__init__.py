"""When things happen: rules, time zones, policies, and the schedule that combines them. Pure: it only reads tzdata.

    rules      Cron, Interval, Daily, Weekly, Monthly, Yearly, Once, RRule    which times a schedule names
    zones      local time ↔ instants, with policies for gaps and folds        which instants those are
    timeline   → schedule → decision, preview                                 what fires, and what is dropped

See docs/schedules.md.
"""

from mainspring.features.schedules.rules.business import BusinessCalendar
from mainspring.features.schedules.rules.calendar import Daily, Monthly, Once, Weekly, Yearly
from mainspring.features.schedules.rules.cron import Cron
from mainspring.features.schedules.rules.data import rule_from_data
from mainspring.features.schedules.rules.decision import Decision, Drop, DueOccurrence, Reason
from mainspring.features.schedules.rules.interval import Interval
from mainspring.features.schedules.rules.occurrence import Occurrence
from mainspring.features.schedules.rules.policies import Misfire, SchedulePause
from mainspring.features.schedules.rules.preview import Change, Row, compare_schedules, fires, preview_schedule, remarks
from mainspring.features.schedules.rules.rrule import RRule
from mainspring.features.schedules.rules.rule import Rule
from mainspring.features.schedules.rules.schedule import Policies, PoliciesInTimeZone, Schedule
from mainspring.features.schedules.rules.text import rule_from_text
from mainspring.features.schedules.rules.zones import PACKAGED, Zone, Zones, tzdata_version, zone_keys

__all__ = [
    "PACKAGED",
    "BusinessCalendar",
    "Change",
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
    "RRule",
    "Reason",
    "Row",
    "Rule",
    "Schedule",
    "SchedulePause",
    "Weekly",
    "Yearly",
    "Zone",
    "Zones",
    "compare_schedules",
    "fires",
    "preview_schedule",
    "remarks",
    "rule_from_data",
    "rule_from_text",
    "tzdata_version",
    "zone_keys",
]
