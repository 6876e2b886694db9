"""The exception that stops a replay."""

from __future__ import annotations


class Unrecorded(BaseException):
    """Stops a replay at something that is not recorded and must not be done. `except Exception` does not catch it."""
