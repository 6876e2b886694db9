"""docs/service-client.md: its examples run, and it lists every method, error and argument."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mainspring.client import Client, ClientError, Event, Reset
from mainspring.client import errors as client_errors
from mainspring.client.operation import Method, Resource
from tests.client.serving import SOON, Service

PAGE = (Path(__file__).parents[2] / "docs" / "service-client.md").read_text("utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(snippet: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "service-client"}
    exec(compile(snippet, "service-client.md", "exec"), names)  # noqa: S102 - our own page
    return names


@pytest.fixture
def printed(
    working: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> pytest.CaptureFixture[str]:
    monkeypatch.setenv("MAINSPRING_URL", working.url)
    return capsys


def test_the_first_example(working: Service) -> None:
    names = run(SNIPPETS[0].replace("http://127.0.0.1:8340", working.url))
    assert names["greet"]("Ada") == "welcome, Ada"
    assert asyncio.run(asyncio.wait_for(names["greet_async"]("Ada"), SOON)) == "welcome, Ada"


def test_jobs(printed: pytest.CaptureFixture[str]) -> None:
    run(SNIPPETS[1])
    first, status, many, *found = printed.readouterr().out.splitlines()
    assert first.endswith(" True")
    assert (status, many) == ("completed", "2 [None, None]")
    assert found
    assert all(line.endswith("welcome, Ada") for line in found)


def test_etags(printed: pytest.CaptureFixture[str]) -> None:
    run(SNIPPETS[2])
    assert printed.readouterr().out == ""


def test_errors(printed: pytest.CaptureFixture[str]) -> None:
    run(SNIPPETS[3])
    assert printed.readouterr().out == "('welcome',)\n"


class Happenings:
    """A client to which two things happen."""

    def events(self, **_where: Any) -> Iterator[Event | Reset]:
        yield Event("c1", datetime(2027, 3, 1, tzinfo=UTC), "completed", "j1", "t", "q", None, {}, "p")
        yield Reset("lost", "p")


def test_events(printed: pytest.CaptureFixture[str]) -> None:
    run(SNIPPETS[4])["follow"](Happenings())
    assert printed.readouterr().out.splitlines() == [
        "2027-03-01 00:00:00+00:00 completed j1 {}",
        "events are missing here; read again what you need: lost",
    ]


def test_a_worker(printed: pytest.CaptureFixture[str]) -> None:
    run(SNIPPETS[5])
    assert printed.readouterr().out == "HI\n"
    assert len(SNIPPETS) == 6


def test_every_method_is_listed() -> None:
    with Client() as client:
        groups = {"client": client} | {f"client.{name}": each for name, each in vars(client).items()}
    rows = [line for line in PAGE.splitlines() if line.startswith("| `client")]
    listed: dict[str, set[str]] = {}
    for row in rows:
        names, methods = (cell.strip() for cell in row.strip("|").split("|"))
        for name, part in zip(re.findall(r"`([\w.]+)`", names), methods.split(";"), strict=False):
            listed[name] = set(re.findall(r"`(\w+)`", part))
    for name, group in groups.items():
        if isinstance(group, Resource):
            kind = type(group)
            own = {each for each in dir(kind) if isinstance(inspect.getattr_static(kind, each), Method)}
            assert listed.get(name) == {each for each in own if each[0] != "_"}, name


def test_every_error_is_listed() -> None:
    kinds = [kind for kind in vars(client_errors).values() if isinstance(kind, type) and issubclass(kind, ClientError)]
    assert [kind.__name__ for kind in kinds if f"`{kind.__name__}" not in PAGE] == []


def test_every_argument_of_a_client_is_listed() -> None:
    arguments = set(inspect.signature(Client).parameters) - {"options"}
    assert [name for name in arguments if f"| `{name}` |" not in PAGE] == []
