"""Leases: claim jobs, heartbeat, report progress and steps, and end jobs outside of a handler. See docs/leases.md.

- `Leases` (api.py) is `app.leases`: each call names the lessee by its id, so any process may serve it.
- `Lessee` and `Lease` (lessee.py) are the same calls as objects.
- items.py has what a lessee can report, answers.py what it gets back.
- admission.py, ending.py and report.py use the parts of the worker that decide about the start and the end of a run.
"""

from mainspring.leases.answers import Answer, PlannedStep, Pulse, Reply, Report, SavedStep
from mainspring.leases.api import Leases
from mainspring.leases.items import Cancelled, Complete, Fail, Heartbeat, Item, Progress, Release, SaveStep, Snooze
from mainspring.leases.lessee import Batch, Lease, Lessee

__all__ = [
    "Answer",
    "Batch",
    "Cancelled",
    "Complete",
    "Fail",
    "Heartbeat",
    "Item",
    "Lease",
    "Leases",
    "Lessee",
    "PlannedStep",
    "Progress",
    "Pulse",
    "Release",
    "Reply",
    "Report",
    "SaveStep",
    "SavedStep",
    "Snooze",
]
