"""The exception that stops a debug run."""

from __future__ import annotations


class Unrecorded(BaseException):
    """Stops a debug run before something that is not recorded and must not happen. Not caught by `except Exception`."""
