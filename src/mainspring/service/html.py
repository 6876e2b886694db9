"""HTML pages of the service. They need no JavaScript, and their policy allows none that is not ours."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from mainspring.service.static_files import path_of

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {"content-security-policy": POLICY, "cross-origin-opener-policy": "same-origin", "x-frame-options": "DENY"}
"""What every page has, besides the headers of every answer (guard.py)."""

CODE = re.compile(r"`([^`]+)`")
VOID = frozenset({"br", "hr", "input", "link", "meta"})  # elements without an end


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | Iterable[Child]"


def tag(name: str, /, *children: Child, **attributes: str | None) -> Html:
    """Return an element. Everything that is not HTML already is escaped: `tag("p", "a < b", class_="note")`."""
    given = "".join(f" {attribute(key, value)}" for key, value in attributes.items() if value is not None)
    return Html(f"<{name}{given}>" if name in VOID else f"<{name}{given}>{joined(children)}</{name}>")


def attribute(name: str, value: str) -> str:
    return f'{name.rstrip("_").replace("_", "-")}="{html.escape(value)}"'


def joined(children: Iterable[Child]) -> Html:
    return Html("".join(escaped(child) if isinstance(child, str) else joined(child) for child in children))


def escaped(text: str) -> str:
    return text if isinstance(text, Html) else html.escape(text)


def prose(text: str) -> Html:
    """Return text with `code` between backquotes, and a paragraph for each block."""
    return joined(tag("p", with_code(block)) for block in text.split("\n\n") if block.strip())


def with_code(text: str) -> Html:
    return Html(CODE.sub(lambda found: f"<code>{found[1]}</code>", escaped(text)))


def table(heads: Iterable[str], rows: Iterable[Iterable[Child]]) -> Html:
    head = tag("tr", [tag("th", text, scope="col") for text in heads])
    body = [tag("tr", [tag("td", cell) for cell in row]) for row in rows]
    return tag("div", tag("table", tag("thead", head), tag("tbody", body)), class_="wide", tabindex="0")


def root_of(request: Request) -> str:
    """Return where the service is mounted."""
    return str(request.scope.get("root_path", ""))


def document(request: Request, title: str, *content: Child) -> str:
    root = root_of(request)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} – Mainspring"),
        tag("link", rel="icon", href="data:,"),
        tag("link", rel="stylesheet", href=f"{root}{path_of('pages.css')}"),
    )
    links = [tag("a", text, href=f"{root}{path}") for text, path in (("API", "/v1/docs"), ("Errors", "/v1/errors"))]
    bar = tag("header", tag("strong", "Mainspring"), tag("nav", links, aria_label="Pages"))
    return "<!doctype html>" + tag("html", head, tag("body", bar, tag("main", content)), lang="en")


def page(request: Request, title: str, *content: Child, status: int = 200) -> Response:
    return html_answer(document(request, title, *content), status)


def html_answer(text: str, status: int = 200) -> Response:
    return Response(text, status, HEADERS, media_type="text/html")


def wants_html(request: Request) -> bool:
    """Return whether a browser asks, for a person."""
    return "text/html" in request.headers.get("accept", "")
