from __future__ import annotations

import subprocess
import sys

import pytest

import pytest_mainspring
from mainspring import Mainspring, Status
from mainspring.testing import Kit, assert_enqueued

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

app = Mainspring("sqlite:////nowhere/jobs.db")


@app.task()
async def welcome(guest: str) -> None: ...


@pytest.fixture
def mainspring_app() -> Mainspring:
    return app


async def test_the_kit_is_a_fixture(mainspring_kit: Kit) -> None:
    await welcome.enqueue(guest="ana")
    assert_enqueued(mainspring_kit, welcome)
    assert [run.status for run in await mainspring_kit.drain()] == [Status.COMPLETED]


def test_inline_mode_is_a_fixture(mainspring_inline: Kit) -> None:
    welcome.enqueue_sync(guest="ana")
    assert [job.status for job in mainspring_inline.jobs()] == [Status.COMPLETED]


APPLICATION = """
from mainspring import Mainspring

app = Mainspring("sqlite:////nowhere/jobs.db")

@app.task()
async def welcome(guest: str) -> None: ...
"""
TEST = """
from shop import welcome
from mainspring.testing import assert_enqueued

def test_it(mainspring_kit):
    welcome.enqueue_sync(guest="ana")
    assert_enqueued(mainspring_kit, welcome, args={"guest": "ana"})
    assert len(mainspring_kit.drain_sync()) == 1
"""


@pytest.mark.parametrize(("setting", "said"), [("shop:app", "1 passed"), ("", "which application is tested?")])
def test_the_configuration_names_the_application(pytester: pytest.Pytester, setting: str, said: str) -> None:
    pytester.makeini(
        f"[pytest]\npythonpath = .\nasyncio_default_fixture_loop_scope = function\nmainspring_app = {setting}\n"
    )
    pytester.makepyfile(shop=APPLICATION, test_shop=TEST)
    pytester.runpytest_inprocess().stdout.fnmatch_lines(f"*{said}*")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("sys:nothing", "'sys:nothing' cannot be loaded: module 'sys' has no attribute"),
        ("nowhere:app", "'nowhere:app' cannot be loaded: No module named 'nowhere'"),
        ("not a name", "'not a name' cannot be loaded: invalid format"),
        ("sys:maxsize", f"'sys:maxsize' is {sys.maxsize}, not a Mainspring"),
    ],
)
def test_a_wrong_name_is_explained(setting: str, said: str) -> None:
    with pytest.raises(pytest.UsageError, match=said):
        pytest_mainspring.find_app(setting)


def test_loading_the_plugin_imports_nothing_of_weight() -> None:
    program = "import sys, pytest_mainspring; print(*(set(sys.modules) & {'pydantic', 'sqlite3', 'structlog'}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("package", ["mainspring", "mainspring.testing"])
def test_a_package_offers_what_it_names(package: str) -> None:
    program = (
        f"import {package} as package; assert set(package.__all__) <= set(dir(package))\n"
        "print(*[name for name in package.__all__ if getattr(package, name).__module__ == package.__name__])\n"
        "package.nothing"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == ""
    assert f"module '{package}' has no attribute 'nothing'" in done.stderr
