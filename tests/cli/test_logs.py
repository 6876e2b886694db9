"""In processes of their own: how a process logs is set up once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # real processes

SCRIPT = """
import sys
if {plain}:
    sys.modules["structlog"] = None
import logging
from mainspring.cli import logs
from mainspring.log import get_log, running
from mainspring import Context
logs.set_up("info", as_json={as_json}, final=True)
log = get_log("mainspring.worker")
log.debug("unseen")
log.info("job_completed", job_id="7", duration=0.5, worker=None)
try:
    1 / 0
except ZeroDivisionError:
    log.error("loop_failed", exc_info=True)
running.set(Context.detached(id="j1", task="greet")._claim)
logging.getLogger("users.own").warning("from %s", "elsewhere")
logging.getLogger("asyncio").info("unseen")
"""


def lines(*, plain: bool, as_json: bool) -> list[str]:
    script = SCRIPT.format(plain=plain, as_json=as_json)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "unseen" not in done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize("plain", [True, False], ids=["logging", "structlog"])
def test_json_lines_look_alike(plain: bool) -> None:
    first, failed, other = map(json.loads, lines(plain=plain, as_json=True))
    assert (first["event"], first["level"], first["job_id"], first["duration"]) == ("job_completed", "info", "7", 0.5)
    assert first["timestamp"].endswith("Z")
    assert "ZeroDivisionError" in failed["exception"]
    assert (first["logger"], "task" in first) == ("mainspring.worker", False)
    assert (other["event"], other["level"], other["logger"]) == ("from elsewhere", "warning", "users.own")
    assert (other["job_id"], other["task"]) == ("j1", "greet")


@pytest.mark.parametrize("plain", [True, False], ids=["logging", "structlog"])
def test_text_lines_have_the_level_and_the_fields(plain: bool) -> None:
    shown = lines(plain=plain, as_json=False)
    assert "[info" in shown[0]
    assert "job_completed" in shown[0]
    assert "duration=0.5" in shown[0]
    assert "\x1b" not in "".join(shown)
    assert any("ZeroDivisionError" in line for line in shown)
    assert "[mainspring.worker]" in shown[0]
    for words in ("from elsewhere", "[users.own]", "job_id", "j1", "task", "greet"):
        assert words in shown[-1]


def test_an_application_that_sets_up_its_own_logging_has_the_last_word() -> None:
    script = """
from mainspring.cli import logs
from mainspring.log import get_log
import structlog
logs.set_up("info", as_json=True, final=True)
structlog.configure(processors=[structlog.processors.KeyValueRenderer()], logger_factory=structlog.PrintLoggerFactory())
get_log("mainspring.worker").info("mine")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("event='mine'\n", "")


@pytest.mark.parametrize(
    "imports", ["import structlog", "from structlog import get_logger", "from structlog.stdlib import get_logger"]
)
def test_a_command_sets_up_structlog_when_the_application_imports_it(imports: str) -> None:
    script = f"""
import sys
from mainspring.cli import logs
logs.set_up("warning", as_json=True, import_structlog=False)
logs.set_up("warning", as_json=True, import_structlog=False)
assert "structlog" not in sys.modules
{imports}
import logging, structlog
structlog.get_logger("mine").info("unseen")
structlog.get_logger("mine").warning("seen", room=7)
logging.getLogger("yours").warning("too")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    shown = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.stdout == ""
    assert [(line["event"], line["logger"], line.get("room")) for line in shown] == [
        ("seen", "mine", 7),
        ("too", "yours", None),
    ]


def test_importing_structlog_fails_as_usual_if_it_is_not_installed() -> None:
    script = """
import sys
from mainspring.cli import logs
logs.set_up("warning", as_json=True, import_structlog=False)
sys.path[:] = []
try:
    import structlog
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("No module named 'structlog'\n", "")
