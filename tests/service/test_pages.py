"""HTML pages: what they show, that everything is escaped, and the headers that protect them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.service.error_pages import ADVICE
from mainspring.service.html import prose, table, tag
from mainspring.service.problems import KINDS
from mainspring.service.requests import SCOPE_OF
from tests.service.serving import Client, serving
from tests.service.test_security import mounted, token_of

BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"


class Checked(HTMLParser):
    """Checks that elements are closed in order, and collects links, ids and elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.ids: list[str] = []
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        given = dict(attrs)
        self.links |= {link for name in ("href", "src", "action") if (link := given.get(name))}
        self.ids += [given["id"]] if given.get("id") else []  # type: ignore[list-item]
        if tag not in {"meta", "link", "input", "br"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


# -- errors ---------------------------------------------------------------------------------------


def test_every_code_has_its_advice() -> None:
    assert set(ADVICE) == set(KINDS)
    for code, advice in ADVICE.items():
        assert advice.when.endswith("."), code
        assert advice.next.endswith("."), code


async def test_the_type_of_an_error_leads_to_its_page(app: Mainspring) -> None:
    """Without a token, as the error may be that there is none."""
    async with serving(app, tokens="required") as client:
        refused = await client.get("/v1/jobs")
        shown = await client.get(refused.data["type"])
        assert shown.data == {
            "type": "/v1/errors/unauthorized", "code": "unauthorized", "status": 401,
            "title": KINDS["unauthorized"].title, "when": ADVICE["unauthorized"].when,
            "next": ADVICE["unauthorized"].next, "retry_after": None,
        }  # fmt: skip
        for code in KINDS:
            page = await client.get(f"/v1/errors/{code}", accept=BROWSER)
            assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert f"<h1><code>{code}</code></h1>" in page.text
            Checked(page.text)
        everything = (await client.get("/v1/errors")).data["errors"]
        assert [error["code"] for error in everything] == list(KINDS)
        assert set(KINDS) <= {link.rpartition("/")[2] for link in Checked(await html(client, "/v1/errors")).links}
        assert (await client.get("/v1/errors/nope")).code == "not_found"


async def html(client: Client, path: str) -> str:
    page = await client.get(path, accept=BROWSER)
    assert page.status == 200, page
    return page.text


async def test_the_type_of_an_error_of_a_mounted_service_leads_to_its_page(app: Mainspring) -> None:
    async with mounted(app) as client:
        for answer in (await client.get("/v1/jobs"), await client.get("/v1/nope"), await client.get("/v1/errors/nope")):
            path = answer.data["type"]
            assert path.startswith("/queue/v1/errors/")
            assert (await client.get(path.removeprefix("/queue"))).data["code"] == answer.code
        page = Checked(await html(client, "/v1/errors/not_found"))
        assert {"/queue/v1/docs", "/queue/v1/errors"} <= page.links


# -- the API --------------------------------------------------------------------------------------


def check_reference(document: Any, text: str) -> None:
    page = Checked(text)
    assert len(page.ids) == len(set(page.ids))
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert f"{method.upper()}{path}" in page.ids
            assert f"<code>{operation.get(SCOPE_OF)}</code>" in text or SCOPE_OF not in operation
    assert set(document["components"]["schemas"]) <= set(page.ids)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert "Idempotency-Key" in text
    assert "&quot;guest&quot;: &quot;Ada&quot;" in text


def check_content(text: str) -> None:
    """Check that a page needs no other machine, and nothing that its policy forbids."""
    page = Checked(text)
    assert not page.elements & {"script", "style", "iframe", "object", "base"}
    assert not {name for name in page.attributes if name == "style" or name.startswith("on")}
    assert not [link for link in page.links if re.match(r"(?!data:,)(\w+:|//)", link)]


def check_headers(headers: dict[str, str]) -> None:
    policy = headers["content-security-policy"]
    for part in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'",
                 "form-action 'self'", "require-trusted-types-for 'script'"):  # fmt: skip
        assert part in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"


async def test_pages_need_no_token_no_script_and_no_other_machine(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one test, as the API's document takes long to make."""
    reader = await token_of(app, "read")
    async with serving(app, tokens="required") as client:
        for path in ("/v1/docs", "/v1/errors", "/v1/errors/not_found", "/login"):
            answer = await client.get(path, accept=BROWSER)
            assert answer.status == 200
            check_content(answer.text)
            check_headers(answer.headers)
            for link in Checked(answer.text).links:
                assert not link.startswith("/static/") or (await client.get(link)).status == 200
            assert (await client.get(path, host="evil.example")).code == "host_not_allowed"
        text = await html(client, "/v1/docs")
        check_reference((await client.using(reader).get("/v1/openapi.json")).data, text)
        monkeypatch.setattr("mainspring.service.reference.content", None)
        assert await html(client, "/v1/docs") == text  # it was made once


# -- HTML -----------------------------------------------------------------------------------------


def test_text_is_escaped_once_wherever_it_is() -> None:
    evil = "<img src=x onerror=alert(1)> & \"'"
    for made in (tag("p", evil), tag("p", [evil]), tag("p", class_=evil), prose(evil), table([evil], [[evil]])):
        assert "<img" not in made
        assert "&lt;img" in made
        assert "&amp;lt;" not in made
    assert tag("p", tag("b", "x"), aria_label="y") == '<p aria-label="y"><b>x</b></p>'
    assert prose("see `a < b`\n\nnext") == "<p>see <code>a &lt; b</code></p><p>next</p>"
