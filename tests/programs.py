"""Programs that tests run and pip cannot install: a browser and Prometheus.

A test takes the program that the environment names (`CHROMIUM=…`), one on PATH, or one in `.cache/programs`.
`make test` runs this file, which fetches what is missing. It asks apt for the packages and unpacks them in
`.cache/programs`, so it needs no root and changes nothing in the system. Where that fails, the tests are skipped and
the test run says so.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PLACE = Path(__file__).parents[1] / ".cache" / "programs"
FETCHED = PLACE / "bin"


@dataclass(frozen=True)
class Program:
    title: str
    names: tuple[str, ...]  # on PATH, the best first
    packages: tuple[str, ...]  # of Debian that have it, the smallest first
    beside: tuple[str, ...] = ()  # packages whose files it expects in its own directory, also if they are installed

    @property
    def variable(self) -> str:
        """The environment variable that names another one."""
        return self.names[0].upper()

    @property
    def missing(self) -> str:
        """Say what a person can do if there is none."""
        return (
            f"NOT TESTED: found no {self.title}; install it (Debian: apt-get install {self.packages[-1]}) "
            f"or name the program in {self.variable}"
        )


CHROMIUM = Program(
    "Chromium",
    ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "chrome"),
    ("chromium-headless-shell", "chromium"),
    beside=("chromium-common",),
)
PROMETHEUS = Program("Prometheus", ("prometheus",), ("prometheus",))
PROMTOOL = Program("promtool", ("promtool",), ("prometheus",))


def find(program: Program) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(FETCHED)])
    names = (shutil.which(name, path=path) for name in program.names)
    return os.environ.get(program.variable) or next(filter(None, names), None)


# -- fetching ------------------------------------------------------------------------------------------

SETTINGS = """\
Dir::State "{apt}";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "{apt}";
Dir::Cache::archives "archives/";
Debug::NoLocking "true"; // the locks belong to root
APT::Sandbox::User "{user}"; // another user cannot write here
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "15";
Acquire::https::Timeout "15";
#clear APT::Update::Post-Invoke; // containers remove the system's packages there
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
"""
FONTS = """\
<?xml version="1.0"?>
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir>{root}/usr/share/fonts</dir>
  <cachedir>{root}/var/cache/fontconfig</cachedir>
</fontconfig>
"""
LAUNCHER = """\
#!/bin/sh
export LD_LIBRARY_PATH={libraries} FONTCONFIG_FILE={fonts}
exec {program} "$@"
"""
OF_THE_SYSTEM = ("libc6_", "libc-bin_")  # a C library works only with the loader that belongs to it


class NotFetched(Exception):
    pass


class Apt:
    """Debian's packages, by lists and archives of our own."""

    def __init__(self, place: Path) -> None:
        self.archives = place / "archives"
        for folder in (place / "lists" / "partial", self.archives / "partial"):
            folder.mkdir(parents=True, exist_ok=True)
        self._settings = place / "apt.conf"
        self._settings.write_text(SETTINGS.format(apt=place, user="root" if os.geteuid() == 0 else ""))
        self._has_lists = False

    def download(self, *packages: str) -> list[Path]:
        """Return these packages and all that they need and the system does not have."""
        for file in self.archives.glob("*.deb"):
            file.unlink()
        if not self._has_lists:
            self._run("update")
            self._has_lists = True
        self._run("install", "--yes", "--download-only", "--reinstall", *packages)
        return [file for file in sorted(self.archives.glob("*.deb")) if not file.name.startswith(OF_THE_SYSTEM)]

    def _run(self, *arguments: str) -> None:
        command = ["apt-get", "-qq", "-c", str(self._settings), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
        if done.returncode:
            raise NotFetched((done.stderr.strip() or f"{shlex.join(command)} failed").splitlines()[-1])


def fetch(program: Program, apt: Apt) -> None:
    """Unpack the first of its packages that there is, and write a launcher in `.cache/programs/bin`."""
    problem = NotFetched()
    for package in program.packages:
        try:
            if not (PLACE / package).is_dir():
                unpack(apt.download(package, *program.beside), PLACE / package)
            launch(program, PLACE / package)
        except NotFetched as error:
            problem = error
        else:
            return
    raise problem


def unpack(files: list[Path], root: Path) -> None:
    """Make the directory whole or not at all: this process may be interrupted."""
    unfinished = root.with_name(f"{root.name}.{os.getpid()}")
    for file in files:
        subprocess.run(["dpkg-deb", "-x", str(file), str(unfinished)], check=True)
    shutil.rmtree(root, ignore_errors=True)
    unfinished.rename(root)


def launch(program: Program, root: Path) -> None:
    """Write a script that runs the program with the libraries and fonts beside it."""
    found = next(executables(program, root), None)
    if found is None:
        raise NotFetched(f"the package {root.name} has no program {program.names[0]}")
    fonts = root / "fonts.conf"
    fonts.write_text(FONTS.format(root=root))
    libraries = os.pathsep.join(sorted({str(file.parent) for file in root.rglob("*.so*")}))
    quoted = {name: shlex.quote(str(value)) for name, value in
              {"libraries": libraries, "fonts": fonts, "program": found}.items()}  # fmt: skip
    FETCHED.mkdir(exist_ok=True)
    script = FETCHED / f"{program.names[0]}.{os.getpid()}"
    script.write_text(LAUNCHER.format(**quoted))
    script.chmod(0o755)
    script.rename(FETCHED / program.names[0])


def executables(program: Program, root: Path) -> Iterator[Path]:
    """Yield the program itself before a script that would start another one, by its place in the system."""
    for folder in ("usr/lib/chromium", "usr/bin"):
        for name in program.names:
            if (file := root / folder / name).is_file():
                yield file


def main() -> None:
    missing = [program for program in (CHROMIUM, PROMETHEUS, PROMTOOL) if find(program) is None]
    if not missing:
        return
    titles = " and ".join(program.title for program in missing)
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        print(
            f"make: tests with {titles} will be skipped: they are fetched by apt-get and dpkg-deb, "
            "which this system does not have"
        )
        return
    print(f"Fetching {titles} into .cache/programs")
    sys.stdout.flush()
    place = PLACE / f"apt.{os.getpid()}"
    try:
        apt = Apt(place)
        for program in missing:
            try:
                fetch(program, apt)
            except (NotFetched, OSError, subprocess.CalledProcessError) as error:
                print(f"make: tests with {program.title} will be skipped: {error}")
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
