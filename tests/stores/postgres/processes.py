"""Starting `program` in a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.stores.postgres.several import Stores

ROOT = Path(__file__).parents[3]


def start(what: str, stores: Stores) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.stores.postgres.program", what, stores.dsn, stores.schema]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
