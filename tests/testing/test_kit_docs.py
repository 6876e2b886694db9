"""The examples of docs/testing.md, run as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def examples() -> dict[str, str]:
    blocks = re.findall(r"```(?:python|toml)\n# (\w+\.\w+)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return dict(blocks)


def test_the_examples_work_as_printed(pytester: pytest.Pytester) -> None:
    for name, text in examples().items():
        pytester.path.joinpath(name).write_text(text, "utf-8")
    with pytester.path.joinpath("pyproject.toml").open("a", encoding="utf-8") as configuration:
        configuration.write('asyncio_default_fixture_loop_scope = "function"\npythonpath = ["."]\n')
    pytester.runpytest_inprocess().assert_outcomes(passed=6)
