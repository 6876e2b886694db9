from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _soon_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker publishes its tasks when it has claimed what waits, and not 100 ms later."""
    monkeypatch.setattr("mainspring.worker.publication.DELAY", 0.02)
