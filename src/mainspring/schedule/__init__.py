"""When things happen: rules, zones, policies, and the schedule that combines them. Pure: it only reads zone files.

    rules      Cron, Every, Daily, Weekly, Monthly, Yearly, Once, RRule    which times a schedule names
    zones      local time ↔ instants, with policies for gaps and folds     which instants those are
    expand     → timeline → schedule → plan, preview                       what fires, and what is dropped

See docs/schedules.md.
"""

from mainspring.schedule.business import BusinessCalendar
from mainspring.schedule.calendar import Daily, Monthly, Once, Weekly, Yearly
from mainspring.schedule.cron import Cron
from mainspring.schedule.data import rule_from_data
from mainspring.schedule.every import Every
from mainspring.schedule.occurrence import Occurrence
from mainspring.schedule.plan import Drop, Fire, Plan, Reason
from mainspring.schedule.policies import Misfire, Pause
from mainspring.schedule.preview import Change, Row, compare, fires, preview, remarks
from mainspring.schedule.rrule import RRule
from mainspring.schedule.rule import Rule
from mainspring.schedule.schedule import Policies, PoliciesInZone, Schedule
from mainspring.schedule.text import rule_from_text
from mainspring.schedule.zones import PACKAGED, Zone, Zones, tzdata_version, zone_keys

__all__ = [
    "PACKAGED",
    "BusinessCalendar",
    "Change",
    "Cron",
    "Daily",
    "Drop",
    "Every",
    "Fire",
    "Misfire",
    "Monthly",
    "Occurrence",
    "Once",
    "Pause",
    "Plan",
    "Policies",
    "PoliciesInZone",
    "RRule",
    "Reason",
    "Row",
    "Rule",
    "Schedule",
    "Weekly",
    "Yearly",
    "Zone",
    "Zones",
    "compare",
    "fires",
    "preview",
    "remarks",
    "rule_from_data",
    "rule_from_text",
    "tzdata_version",
    "zone_keys",
]
