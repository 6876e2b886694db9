"""What holds for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logging_left_as_found() -> Iterator[None]:
    """Who sets up structlog, as the command line does, sets it up for the whole process."""
    yield
    structlog.reset_defaults()
