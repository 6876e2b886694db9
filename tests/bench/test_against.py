from pathlib import Path

import pytest

from bench.against import NEW, Contest, extract
from bench.field import FIELDS
from bench.ground import Files


def contest(tmp_path: Path, **figures: list[dict[str, float]]) -> Contest:
    sides = {"old": tmp_path / "old", NEW: tmp_path}
    measured = {("drain-1", side): taken for side, taken in figures.items()}
    return Contest(FIELDS["sqlite"], Files(tmp_path), sides, figures=measured)


def test_the_ratio_is_of_figures_of_the_same_round(tmp_path: Path) -> None:
    """The second round was slow for both."""
    old = [{"rate": 1000.0, "megabytes": 50.0}, {"rate": 500.0, "megabytes": 50.0}]
    new = [{"rate": 1100.0, "megabytes": 50.0}, {"rate": 550.0, "megabytes": 50.0}]
    (shown,) = contest(tmp_path, old=old, new=new).tables()
    assert shown[0] == ["", "old", "new", "better by, %", "quartiles"]
    assert ["drain, 1 process, jobs/s", "750", "825", "+10.0", "+10.0 to +10.0"] in shown


def test_less_memory_is_better(tmp_path: Path) -> None:
    old, new = [{"rate": 1.0, "megabytes": 80.0}], [{"rate": 1.0, "megabytes": 40.0}]
    (shown,) = contest(tmp_path, old=old, new=new).tables()
    assert ["worker's peak memory, MB", "80.00", "40.00", "+100.0", "+100.0 to +100.0"] in shown


def test_an_unknown_commit_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="no-such-commit cannot be taken out of git"):
        extract("no-such-commit", tmp_path / "code")
