"""The settings of Companion, from environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qs, urlsplit

DEFAULT_STORE = "dynamodb://companion?region=eu-central-1&prefix=jobs/&poll=30"
SLACK = "https://slack.com"


@dataclass(frozen=True, slots=True)
class Settings:
    """Where everything is, and how jobs are retried."""

    store: str = DEFAULT_STORE  # prefix= keeps the jobs apart from the other items of the table; poll= is in seconds
    slack_url: str = SLACK
    slack_token: str = ""
    sentry_dsn: str = ""  # empty: errors are only logged
    base_delay_seconds: float = 60
    max_attempts: int = 5

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        given = {name: environment.get(f"COMPANION_{name.upper()}") for name in ("store", "slack_url", "slack_token")}
        return cls(
            **{name: value for name, value in given.items() if value},
            sentry_dsn=environment.get("COMPANION_SENTRY_DSN", ""),
            base_delay_seconds=number("COMPANION_BASE_DELAY_SECONDS", environment, 60),
            max_attempts=int(number("COMPANION_MAX_ATTEMPTS", environment, 5)),
        )

    @property
    def table(self) -> str:
        return urlsplit(self.store).netloc

    @property
    def region(self) -> str | None:
        return self._query("region")

    @property
    def endpoint(self) -> str | None:
        return self._query("endpoint")

    def _query(self, name: str) -> str | None:
        return parse_qs(urlsplit(self.store).query).get(name, [None])[0]


def number(name: str, environment: Mapping[str, str], default: float) -> float:
    text = environment.get(name)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; give a number, such as {default:g}") from None
