"""An empty database, made once and copied for each test: creating the schema costs more than most tests do."""

from __future__ import annotations

import atexit
import functools
import itertools
import shutil
import tempfile
from pathlib import Path

from mainspring.stores.sqlite.connection import DatabaseFile

_numbers = itertools.count()


def fresh_database(directory: Path | None = None) -> Path:
    """A file of our schema without any job, in a directory of its own (a temporary one, unless told where)."""
    place = directory or _directory() / str(next(_numbers))
    place.mkdir(exist_ok=True)
    return Path(shutil.copyfile(_template(), place / "jobs.db"))


@functools.cache
def _template() -> Path:
    path = _directory() / "template.db"
    DatabaseFile(path).prepare()
    return path


@functools.cache
def _directory() -> Path:
    directory = tempfile.mkdtemp(prefix="mainspring-test-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)
