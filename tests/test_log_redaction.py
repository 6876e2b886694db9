"""Lines of the log without secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from mainspring import Context, Mainspring, Redaction
from mainspring.cli.logs import JsonFormatter, TextFormatter
from mainspring.log import get_log
from mainspring.log_redaction import RedactingFormatter, use_in_logs

SECRET = "hunter2-xyz"


@pytest.fixture(params=[JsonFormatter, TextFormatter, logging.Formatter])
def out(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(RedactingFormatter(request.param()))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield out
    root.removeHandler(handler)
    root.setLevel(level)


def test_arguments_fields_and_exceptions_are_redacted(out: io.StringIO, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("shop")
    given = {"password": SECRET, "user": "ada"}
    logger.warning("logged in: %s", given)
    logger.warning("logged in as %(user)s with %(password)s", given)
    logger.warning("password=%s", SECRET)
    get_log("shop").warning("login", password=SECRET, nested={"token": SECRET}, list=[{"pin": SECRET}], user="ada")
    try:
        raise ValueError(f"password={SECRET}")
    except ValueError:
        logger.exception("failed")
    assert SECRET not in out.getvalue()
    assert out.getvalue().count("[redacted]") >= 6
    assert "ada" in out.getvalue()
    assert given["password"] == SECRET
    assert SECRET in caplog.text  # other handlers get the record as it is


async def test_values_of_the_job_are_hidden_in_lines_of_its_handler(out: io.StringIO) -> None:
    app = Mainspring("memory://", redact=Redaction(("/code",)))

    @app.task
    async def login(ctx: Context, code: str) -> None:
        logging.getLogger("shop").warning("trying %s", code)

    use_in_logs(app.redaction)
    async with app:
        await login.enqueue(code=SECRET)
        await app.worker().drain()
    assert SECRET not in out.getvalue()
    assert "trying [redacted]" in out.getvalue()


def test_lines_of_json_stay_json() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(RedactingFormatter(JsonFormatter()))
    logger = logging.getLogger("shop.json")
    logger.addHandler(handler)
    logger.warning('{"token": %s, "pin": "1"}', 12345)
    get_log("shop.json").warning("login", token=5, text='{"password": "x\\"y"}', url="https://u:p@h")
    logger.removeHandler(handler)
    first, second = map(json.loads, out.getvalue().splitlines())
    assert "12345" not in first["event"]
    assert (second["token"], second["url"]) == ("[redacted]", "https://u:[redacted]@h")
