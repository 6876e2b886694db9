from __future__ import annotations

import os
from pathlib import Path

import pytest

from mainspring.cli.watch import Watch


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    for name in (
        "a.py",
        "pkg/b.py",
        "notes.txt",
        ".hidden/c.py",
        "env/pyvenv.cfg",
        "env/lib/d.py",
        "pkg/__pycache__/e.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return Watch(tmp_path)


def touch(path: Path) -> None:
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))


def test_without_changes_no_file_is_reported(watch: Watch) -> None:
    assert watch.changed() == []


def test_changed_new_and_removed_files_are_told_once(watch: Watch, tmp_path: Path) -> None:
    touch(tmp_path / "a.py")
    (tmp_path / "pkg/b.py").unlink()
    (tmp_path / "pkg/new.py").write_text("")
    assert watch.changed() == ["a.py", "pkg/b.py", "pkg/new.py"]
    assert watch.changed() == []


def test_what_is_not_edited_is_left_out(watch: Watch, tmp_path: Path) -> None:
    for name in ("notes.txt", ".hidden/c.py", "env/lib/d.py", "pkg/__pycache__/e.py"):
        touch(tmp_path / name)
    assert watch.changed() == []


def test_a_file_that_vanishes_while_we_look(watch: Watch, tmp_path: Path) -> None:
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    assert watch.changed() == []
