"""Writes docs/service-permissions.md: which token opens which operation, as the OpenAPI document says.

`make permissions` runs it. The cells are tested in test_security.py and test_public_tokens.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mainspring.service import Scope
from tests.service.contract import document

PAGE = Path(__file__).parents[2] / "docs" / "service-permissions.md"
HEAD = """# Permissions

Which [token](service.md#tokens) opens which operation. `make permissions` writes this page from the OpenAPI document,
and tests try every cell. A
column in the middle is a token with that scope and no other. *project*: also for tokens that
are limited to a [project](service-projects.md) or to queues, which then see and change only what belongs to them.
*public*: for [public tokens](service-browser.md) (`msp_…`), within the jobs or the target that they name.

"""
SOCKETS: dict[str, dict[str, Any]] = {
    "WS /v1/events/ws": {"x-scope": "read", "x-projects": True},
    "WS /v1/public/events/ws": {"x-scope": "read", "x-public-tokens": True},
}
YES, NO = "yes", "–"


def operations() -> Iterator[tuple[str, Any]]:
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation
    yield from SOCKETS.items()


def cells(operation: Any) -> list[bool]:
    """Return whether each scope opens an operation, then tokens of projects, then public tokens."""
    if "x-scope" not in operation:
        return [True] * (len(Scope) + 2)
    if operation.get("x-public-tokens"):
        return [False] * (len(Scope) + 1) + [True]
    opened = [scope.value in {operation["x-scope"], "admin"} for scope in Scope]
    return [*opened, operation["x-projects"], False]


def page() -> str:
    names = ["operation", *(scope.value for scope in Scope), "project", "public"]
    rows = [[f"`{name}`", *(YES if cell else NO for cell in cells(about))] for name, about in operations()]
    lines = [names, ["---"] * len(names), *rows]
    return HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
