"""Django, on the tests' own server."""

from __future__ import annotations

from types import ModuleType

from tests import django_setup
from tests.postgres import dsn

ENGINE = "django.db.backends.postgresql"


def set_up_django() -> ModuleType:
    django = django_setup.set_up_django()
    if django.db.connections.settings["default"]["ENGINE"] != ENGINE:
        place = {"NAME": "postgres", "USER": "mainspring", "HOST": dsn().partition("host=")[2]}
        django_setup.add_database("default", {"ENGINE": ENGINE, **place})
    return django


urlpatterns: list[object] = []
