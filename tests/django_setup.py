"""Django for tests. It can be set up only once per process, so each test file adds the databases that it needs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import django  # type: ignore[import-untyped]
import django.conf  # type: ignore[import-untyped]
import django.db  # type: ignore[import-untyped]

DUMMY = {"default": {"ENGINE": "django.db.backends.dummy"}}


def set_up_django() -> ModuleType:
    if not django.conf.settings.configured:
        django.conf.settings.configure(
            ALLOWED_HOSTS=["testserver"],
            DATABASES=DUMMY,
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
            ROOT_URLCONF="tests.stores.postgres.django_project",  # each test says what is in it
            SECRET_KEY="not for anybody's eyes",
            USE_TZ=True,
        )
        django.setup()
    module: ModuleType = django
    return module


def add_database(alias: str, settings: dict[str, Any]) -> None:
    """As if it stood in the project's settings. The next connection of that name is to it."""
    connections = set_up_django().db.connections
    connections.settings[alias] = connections.configure_settings({**DUMMY, alias: settings})[alias]
    if hasattr(connections._connections, alias):
        connections[alias].close()
        del connections[alias]
