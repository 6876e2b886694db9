"""Gives workers the timers of failure groups."""

from __future__ import annotations

from mainspring.feature import Feature
from mainspring.features.failures.storage import Groups
from mainspring.features.failures.timer import GroupsTimer, NotesTimer


class FailuresFeature(Feature):
    """Jobs do not meet it: it only has timers."""

    def __init__(self, groups: Groups) -> None:
        self.timers = (NotesTimer(groups), GroupsTimer(groups))
