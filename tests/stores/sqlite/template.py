"""An empty database, made once and copied for each test: creating the schema costs more than most tests do."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import tempfile
from pathlib import Path

from mainspring.stores.sqlite.connection import DatabaseFile

RAM = Path("/dev/shm")
"""Real files whose fsync costs nothing: for tests of what a store does, not of what survives."""

_numbers = itertools.count()


def fresh_database(directory: Path | None = None) -> Path:
    """A file of our schema without any job, in a directory of its own (in memory, unless told where)."""
    place = directory or _in_memory() / str(next(_numbers))
    place.mkdir(exist_ok=True)
    return Path(shutil.copyfile(_template(), place / "jobs.db"))


@functools.cache
def _template() -> Path:
    path = _in_memory() / "template.db"
    DatabaseFile(path).prepare()
    return path


@functools.cache
def _in_memory() -> Path:
    usable = RAM.is_dir() and os.access(RAM, os.W_OK)
    directory = tempfile.mkdtemp(prefix="mainspring-test-", dir=RAM if usable else None)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)
