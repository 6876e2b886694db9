"""The settings of `python -m examples.petitions.serve`."""

from __future__ import annotations

import pytest

from examples.petitions.serve import settings_of

NEEDED = {
    "PETITIONS_DATABASE": "postgresql://localhost/petitions",
    "PETITIONS_HALT_URL": "http://control-room",
    "PETITIONS_ALERT_URL": "http://pager",
    "PETITIONS_NOTICE_URL": "http://mail",
}


def test_the_environment_has_the_settings() -> None:
    settings = settings_of({**NEEDED, "PETITIONS_RETRY_DELAYS": "1,2.5", "PETITIONS_ESCALATION_THRESHOLD": "7"})
    assert (settings.halt_url, settings.retry_delays, settings.escalation_threshold) == (
        "http://control-room",
        (1.0, 2.5),
        7,
    )
    assert settings.poll_interval == 10.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"PETITIONS_RETRY_DELAYS": "soon"}, "PETITIONS_RETRY_DELAYS is 'soon'; give a value such as 30,60"),
        ({"PETITIONS_LEASE": "30s"}, "PETITIONS_LEASE is '30s'; give a value such as 30.0"),
    ],
)
def test_a_wrong_setting_is_named(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings_of({**NEEDED, **changes})


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(ValueError, match="PETITIONS_HALT_URL is not set; set it to a URL"):
        settings_of({"PETITIONS_DATABASE": "postgresql://localhost/petitions"})
