"""The settings of Companion."""

from __future__ import annotations

from typing import Any

import pytest

from examples.companion.settings import Settings


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Settings()),
        (
            {"COMPANION_SLACK_TOKEN": "x", "COMPANION_BASE_DELAY_SECONDS": "2.5", "COMPANION_MAX_ATTEMPTS": "7"},
            Settings(slack_token="x", base_delay_seconds=2.5, max_attempts=7),
        ),
    ],
)
def test_settings_come_from_the_environment(environment: dict[str, Any], expected: Settings) -> None:
    assert Settings.from_environment(environment) == expected


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="COMPANION_MAX_ATTEMPTS is 'many'; give a number, such as 5"):
        Settings.from_environment({"COMPANION_MAX_ATTEMPTS": "many"})


def test_the_default_store_polls_every_thirty_seconds_in_a_shared_table() -> None:
    settings = Settings()
    assert (settings.table, settings.region, settings.endpoint) == ("companion", "eu-central-1", None)
    assert settings.store.endswith("prefix=jobs/&poll=30")
