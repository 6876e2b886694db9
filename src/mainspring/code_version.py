"""The version of the user's code that this process runs: given, from the environment, or a commit."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mainspring.errors import ConfigurationError

VARIABLE = "MAINSPRING_VERSION"
LONGEST = 64  # characters
SHOWN_COMMIT = 12  # hex digits
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
MAX_PARENTS = 32  # directories above the working directory that are searched for a repository


def code_version(given: str | None = None) -> str:
    """Return the version to record with each run; empty if there is none.

    Git is not called, because that would slow down the start of every worker: its files say which commit is checked
    out.
    """
    if given is not None:
        return checked(given, "version")
    if named := checked(os.environ.get(VARIABLE, ""), f"the environment variable {VARIABLE}"):
        return named
    try:
        return commit_of(Path.cwd())[:SHOWN_COMMIT]
    except (OSError, ValueError):  # no repository, or one that cannot be read
        return ""


def checked(version: object, what: str) -> str:
    """Raise ConfigurationError unless this can be a version."""
    if not isinstance(version, str) or len(version) > LONGEST or not version.isprintable():
        msg = f"{what} must be up to {LONGEST} printable characters, such as '2.4.1' or a commit, not {version!r}"
        raise ConfigurationError(msg)
    return version.strip()


def commit_of(directory: Path) -> str:
    """Return the commit that is checked out in the directory or in one above it; raise if there is none."""
    for parent in (directory, *list(directory.parents)[:MAX_PARENTS]):
        marker = parent / ".git"
        if marker.is_dir():
            return head_of(marker)
        if marker.is_file():  # a worktree or a submodule: the file says where its part of the repository is
            return head_of(parent / marker.read_text().removeprefix("gitdir:").strip())
    msg = "no repository"
    raise ValueError(msg)


def head_of(repository: Path) -> str:
    head = (repository / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return commit_in(head)
    name = head.removeprefix("ref:").strip()
    common = repository / "commondir"  # worktrees share their branches
    shared = repository / common.read_text().strip() if common.is_file() else repository
    for place in (repository / name, shared / name):
        if place.is_file():
            return commit_in(place.read_text())
    packed = (shared / "packed-refs").read_text().splitlines()
    return commit_in(next(line for line in [*packed, ""] if line.endswith(f" {name}") or not line))


def commit_in(text: str) -> str:
    found = COMMIT.match(text.strip())
    if found is None:
        msg = f"{text!r} is not a commit"
        raise ValueError(msg)
    return found.group()
