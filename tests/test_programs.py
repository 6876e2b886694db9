"""Where tests find a browser and Prometheus, and what happens if they cannot be fetched."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import programs
from tests.programs import CHROMIUM, PROMTOOL, find, launch, main


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any of the programs."""
    for program in (CHROMIUM, PROMTOOL):
        monkeypatch.delenv(program.variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(programs, "PLACE", tmp_path / "programs")
    monkeypatch.setattr(programs, "FETCHED", tmp_path / "programs" / "bin")
    return tmp_path


def executable(path: Path, text: str = "#!/bin/sh\n") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_the_environment_precedes_path_and_path_precedes_the_cache(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find(CHROMIUM) is None
    fetched = executable(place / "programs/bin/chromium")
    assert find(CHROMIUM) == fetched
    on_path = executable(place / "path/chromium")
    assert find(CHROMIUM) == on_path
    monkeypatch.setenv("CHROMIUM", "/opt/chromium")
    assert find(CHROMIUM) == "/opt/chromium"


def test_a_fetched_program_runs_with_its_own_libraries_and_fonts(place: Path) -> None:
    root = place / "programs" / "a package"
    executable(root / "usr/bin/promtool", '#!/bin/sh\necho "$LD_LIBRARY_PATH $FONTCONFIG_FILE $1"\n')
    executable(root / "usr/lib/x/private/libx.so.1")
    launch(PROMTOOL, root)
    found = find(PROMTOOL)
    assert found is not None
    said = subprocess.run([found, "two words"], capture_output=True, text=True, check=True).stdout
    assert said == f"{root}/usr/lib/x/private {root}/fonts.conf two words\n"


def test_without_apt_one_line_says_what_is_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    (line,) = capsys.readouterr().out.splitlines()
    assert line == (
        "make: tests with Chromium and Prometheus and promtool will be skipped: "
        "they are fetched by apt-get and dpkg-deb, which this system does not have"
    )


def test_if_apt_fails_each_program_is_skipped_with_the_reason(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    executable(place / "path/apt-get", '#!/bin/sh\necho "E: no network" >&2\nexit 100\n')
    executable(place / "path/dpkg-deb")
    main()
    assert capsys.readouterr().out.splitlines() == [
        "Fetching Chromium and Prometheus and promtool into .cache/programs",
        "make: tests with Chromium will be skipped: E: no network",
        "make: tests with Prometheus will be skipped: E: no network",
        "make: tests with promtool will be skipped: E: no network",
    ]
    assert not list((place / "programs").iterdir())


def test_files_that_a_program_expects_beside_it_are_fetched_even_if_they_are_installed(place: Path) -> None:
    """The browser looks for its data in its own directory, and apt leaves out what the system has."""
    executable(place / "path/apt-get", f'#!/bin/sh\necho "$*" >>{place}/calls\n')
    executable(place / "path/dpkg-deb")
    main()
    calls = (place / "calls").read_text().splitlines()
    assert sum(call.endswith("--reinstall chromium-headless-shell chromium-common") for call in calls) == 1
