"""Applications over one store, as several processes have them."""

from __future__ import annotations

from tests.features.conftest import new_app

__all__ = ["new_app"]
