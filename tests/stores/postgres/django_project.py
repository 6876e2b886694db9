"""Django, on the tests' own server. It can be set up only once per process."""

from __future__ import annotations

from types import ModuleType

import django  # type: ignore[import-untyped]
import django.conf  # type: ignore[import-untyped]
import django.db  # type: ignore[import-untyped]

from tests.postgres import dsn


def set_up_django() -> ModuleType:
    if not django.conf.settings.configured:
        place = {"NAME": "postgres", "USER": "mainspring", "HOST": dsn().partition("host=")[2]}
        django.conf.settings.configure(
            ALLOWED_HOSTS=["testserver"],
            DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **place}},
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
            ROOT_URLCONF="tests.stores.postgres.django_project",  # each test says what is in it
            SECRET_KEY="not for anybody's eyes",
            USE_TZ=True,
        )
        django.setup()
    module: ModuleType = django
    return module


urlpatterns: list[object] = []
