"""Tools for testing applications that enqueue jobs.

from mainspring import testing

with testing.manual(app) as kit:            jobs are recorded; they run on virtual time, when you say so
    sign_up("ana")
    testing.assert_enqueued(app, welcome, args={"guest": "ana"})
    kit.drain_sync()                        await kit.drain() in coroutines

with testing.inline(app):                   each job runs as soon as it is enqueued
"""

from mainspring.testing.clock import ManualClock
from mainspring.testing.enqueued import assert_enqueued, refute_enqueued
from mainspring.testing.kit import Kit, inline, manual
from mainspring.testing.recorder import Ran
from mainspring.testing.time import VirtualTime

__all__ = ["Kit", "ManualClock", "Ran", "VirtualTime", "assert_enqueued", "inline", "manual", "refute_enqueued"]
