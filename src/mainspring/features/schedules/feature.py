"""Schedules take part by time only: a timer fires those that are due."""

from __future__ import annotations

from mainspring.feature import Feature
from mainspring.features.schedules.timer import ScheduleTimer
from mainspring.pipeline import Pipeline
from mainspring.services import Services


class SchedulesFeature(Feature):
    """Fires schedules. Every worker does so, also for schedules that other programs declare."""

    def __init__(self, services: Services, pipeline: Pipeline) -> None:
        self.timers = (ScheduleTimer(services, pipeline),)
