"""What a replay must not do."""

from __future__ import annotations


class Unrecorded(BaseException):
    """Ends a replay at something that is not recorded, and that it must not do. `except Exception` lets it through."""
