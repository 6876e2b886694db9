"""How Hypothesis runs here: a busy machine is no reason to fail."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
