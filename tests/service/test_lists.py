"""Every list of the API comes in pages, or docs/service-resources.md says what bounds it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from tests.service.serving import api_of

PAGE = Path(__file__).parents[2] / "docs" / "service-resources.md"
PARTS = {
    "/health/scheduler", "/v1/failures/{}", "/v1/jobs/{}", "/v1/jobs/{}/detail", "/v1/people/{}", "/v1/public/jobs/{}",
    "/v1/queues/{}", "/v1/secrets/{}", "/v1/tasks/{}",
}  # fmt: skip
"""Routes that show one thing, of which some fields are lists."""


def without_names(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


def lists() -> dict[str, list[str]]:
    """Return the routes that answer with a list, and the names of their parameters."""
    document = api_of(Mainspring("memory://")).openapi()
    found: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        about = methods.get("get", {})
        content = about.get("responses", {}).get("200", {}).get("content", {}).get("application/json", {})
        schema = content.get("schema", {})
        name = schema.get("anyOf", [schema])[0].get("$ref", "").rpartition("/")[2]
        fields: dict[str, Any] = document["components"]["schemas"].get(name, {}).get("properties", {})
        if any(field.get("type") == "array" for field in fields.values()):
            found[without_names(path)] = [parameter["name"] for parameter in about.get("parameters", ())]
    return found


LISTS = lists()


def bounded() -> set[str]:
    section = PAGE.read_text("utf-8").partition("## Pages and counts")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `GET ")]
    return {without_names(path) for row in rows for path in re.findall(r"`GET (\S+)`", row.split(" | ")[0])}


@pytest.mark.parametrize("path", LISTS)
def test_a_list_is_paged_or_bounded(path: str) -> None:
    is_paged = {"cursor", "limit"} <= set(LISTS[path])
    assert is_paged or path in PARTS | bounded(), "page it, or say in docs/service-resources.md what bounds it"
    assert not (is_paged and path in bounded())


def test_the_page_names_only_lists_that_exist() -> None:
    assert bounded() <= set(LISTS)
