"""What routes about circuit breakers answer."""

from __future__ import annotations

from pydantic import Field

from mainspring.features.breakers.rules import Phase
from mainspring.service.views import Moment, View


class BreakerView(View):
    """A circuit breaker."""

    name: str
    phase: Phase
    since: Moment | None = Field(description="null: it was never anything but closed")
    until: Moment | None = Field(description="if open: when the first probes are let through")
    good: int = Field(description="results within its window")
    bad: int
    probing: int = Field(description="probes under way")
    passed: int = Field(description="probes that succeeded")
    reason: str


class BreakerList(View):
    breakers: list[BreakerView]
