"""The version of the code: given, from the environment, or the commit that is checked out."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.code_version import VARIABLE, code_version
from mainspring.errors import ConfigurationError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def repository(root: Path, head: str) -> Path:
    git = root / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text(head)
    return git


def test_the_given_version_counts_first(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    repository(here, COMMIT)
    monkeypatch.setenv(VARIABLE, "from-env")
    assert Mainspring("memory://", version="2.4.1").runtime.version == "2.4.1"
    assert Mainspring("memory://").runtime.version == "from-env"
    assert not code_version("")


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch, here: Path, empty: str) -> None:
    repository(here, COMMIT)
    monkeypatch.setenv(VARIABLE, empty)
    assert code_version() == COMMIT[:12]


def test_the_commit_of_a_branch(here: Path) -> None:
    git = repository(here, "ref: refs/heads/main\n")
    (git / "refs" / "heads" / "main").write_text(f"{COMMIT}\n")
    assert code_version() == COMMIT[:12]


def test_the_commit_of_a_detached_head_above_the_directory(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(here, f"{COMMIT}\n")
    (here / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(here / "a" / "b")
    assert code_version() == COMMIT[:12]


def test_the_commit_of_a_packed_branch(here: Path) -> None:
    git = repository(here, "ref: refs/heads/main\n")
    (git / "packed-refs").write_text(f"# pack-refs\n{'f' * 40} refs/heads/other\n{COMMIT} refs/heads/main\n")
    assert code_version() == COMMIT[:12]


def test_the_commit_of_a_worktree(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = repository(here, "ref: refs/heads/main\n")
    (git / "refs" / "heads" / "side").write_text(COMMIT)
    part = git / "worktrees" / "side"
    part.mkdir(parents=True)
    (part / "HEAD").write_text("ref: refs/heads/side\n")
    (part / "commondir").write_text("../..\n")
    side = here / "side"
    side.mkdir()
    (side / ".git").write_text(f"gitdir: {part}\n")
    monkeypatch.chdir(side)
    assert code_version() == COMMIT[:12]


def test_without_a_commit_there_is_none(here: Path) -> None:
    assert not code_version()
    git = repository(here, "ref: refs/heads/main\n")  # a new repository
    assert not code_version()
    (git / "HEAD").write_text("garbage")
    assert not code_version()
    (git / "HEAD").write_bytes(b"\xff\xfe")
    assert not code_version()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_says_the_same(here: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=ana", "-c", "user.email=ana@example.com")
        done = subprocess.run(["git", *identity, *arguments], cwd=here, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    assert code_version() == git("rev-parse", "HEAD")[:12]
    git("pack-refs", "--all")
    assert code_version() == git("rev-parse", "HEAD")[:12]


@pytest.mark.parametrize("version", ["x" * 65, "a\nb", 7])
def test_a_bad_version_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="version must be up to 64 printable characters"):
        Mainspring("memory://", version=version)
    if isinstance(version, str):
        monkeypatch.setenv(VARIABLE, version)
        with pytest.raises(ConfigurationError, match="environment variable MAINSPRING_VERSION must be"):
            code_version()
