"""Find the Python files below a directory that have changed, by their times: that is fast, and works everywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = frozenset({"__pycache__", "node_modules", "site-packages"})


class Watch:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen = self._look()

    def changed(self) -> list[str]:
        """Return the new, removed and changed files since the last call, relative to the directory."""
        before, self._seen = self._seen, self._look()
        return sorted(
            os.path.relpath(path, self._root)
            for path in before.keys() | self._seen.keys()
            if before.get(path) != self._seen.get(path)
        )

    def _look(self) -> dict[str, int]:
        times: dict[str, int] = {}
        for path in python_files(str(self._root)):
            try:
                times[path] = os.stat(path).st_mtime_ns  # noqa: PTH116 - thousands of them, twice a second
            except OSError:  # an editor is replacing the file
                continue
        return times


def python_files(root: str) -> Iterator[str]:
    for directory, below, names in os.walk(root):
        below[:] = [name for name in below if not left_out(directory, name)]
        yield from (f"{directory}/{name}" for name in names if name.endswith(".py"))


def left_out(directory: str, name: str) -> bool:
    """Return whether to skip a directory: hidden ones and virtual environments are not edited."""
    return name.startswith(".") or name in LEFT_OUT or Path(directory, name, "pyvenv.cfg").exists()
