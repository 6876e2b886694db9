"""Pages and scripts in a real browser, which tests/programs.py finds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from mainspring import Context, Mainspring, Retry
from mainspring.service import PublicTokens, ServiceSettings, Tokens, make_service
from mainspring.service.live import Live, Pace
from tests.programs import CHROMIUM, find
from tests.service.browser import PATIENCE, Page, browser_page
from tests.service.serving import listening

BROWSER = find(CHROMIUM) or ""
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not BROWSER, reason=CHROMIUM.missing)]

POLICY = (
    "default-src 'none'; script-src {url}/static/; connect-src {url}; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
LISTEN = """
window.seen = []
for (const name of ['update', 'end', 'error'])
  document.addEventListener('mainspring:' + name, event => seen.push([name, event.detail.status, event.detail.code]))
"""
TEXT = "document.querySelector('mainspring-progress span')?.textContent"
NOTHING = "data:image/x-icon,"  # otherwise the browser asks for /favicon.ico


class Service:
    """The service, and what it is asked for. It can refuse streams, as some proxies do."""

    def __init__(self, app: Mainspring, pace: Pace) -> None:
        tokens = Tokens(app.store)
        self.live = Live(app, tokens, pace)
        self.streams: list[dict[bytes, bytes]] = []  # headers of requests for a stream
        self.refuses_streams = False
        self._service = make_service(app, ServiceSettings(tokens="required"), self.live)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/v1/public/events" and scope["method"] == "GET":
            self.streams.append(dict(scope["headers"]))
            if self.refuses_streams:
                await Response(status_code=503)(scope, receive, send)
                return
        await self._service(scope, receive, send)


@dataclass
class Shop:
    """A site of another origin, whose page shows a job of the service."""

    app: Mainspring
    service: Service
    service_url: str
    page: Page
    url: str = ""
    html: str = ""
    policy: str = ""
    reports: asyncio.Queue[tuple[float, str]] = field(default_factory=asyncio.Queue)  # what the job reports next

    async def enqueue(self, task: str = "render") -> str:
        (handle,) = await self.app.enqueue_all([await self.app.prepare(task, {})])
        return handle.id

    async def token(self, job_id: str, **options: Any) -> str:
        return (await PublicTokens(Tokens(self.app.store)).create(jobs=(job_id,), **options))[1]

    async def show(self, job_id: str, token: str) -> None:
        script = (
            f'<script src="{self.service_url}/static/progress.js" data-job="{job_id}" data-token="{token}"></script>'
        )
        self.html = f'<!doctype html><link rel=icon href="{NOTHING}"><h1>Your video</h1>{script}'
        await self.page.call("Page.addScriptToEvaluateOnNewDocument", source=LISTEN)
        await self.page.open(self.url)

    async def answer(self, request: Request) -> Response:
        del request
        policy = self.policy or POLICY.format(url=self.service_url) + "; img-src data:"
        return HTMLResponse(self.html, headers={"content-security-policy": policy})


@asynccontextmanager
async def shop_in(folder: Path, pace: Pace) -> AsyncIterator[Shop]:
    app = Mainspring("memory://")
    service = Service(app, pace)
    async with app, listening(service) as url, browser_page(BROWSER, folder) as page:
        shop = Shop(app, service, url, page)

        @app.task
        async def render(ctx: Context) -> None:
            for _ in range(2):
                fraction, note = await shop.reports.get()
                ctx.progress(fraction, note)
            await shop.reports.get()

        @app.task(retry=Retry(max_attempts=1))
        async def fail() -> None:
            raise ValueError("<img src=x onerror=alert(1)>")

        async with listening(Starlette(routes=[Route("/", shop.answer)])) as shop.url:
            yield shop
            await service.live.close()
            await page.open("about:blank")


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not check():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    async with shop_in(tmp_path, Pace()) as shop:
        yield shop


async def test_a_page_of_another_site_shows_the_progress_of_a_job(shop: Shop, tmp_path: Path) -> None:
    job_id = await shop.enqueue()
    page = shop.page
    await shop.show(job_id, await shop.token(job_id))
    await page.wait(f"{TEXT} === 'Waiting'")
    async with shop.app.worker():
        await shop.reports.put((0.25, "page 1"))
        await page.wait(f"{TEXT} === 'Running 25 % – page 1'")
        await shop.reports.put((0.5, "<img src=x onerror=alert(1)>"))
        await page.wait(f"{TEXT} === 'Running 50 % – <img src=x onerror=alert(1)>'")
        bar = "document.querySelector('mainspring-progress progress')"
        assert await page.run(f"[{bar}.value, {bar}.getAttribute('role'), {bar}.getAttribute('aria-label')]") == [
            0.5, "progressbar", "Progress",
        ]  # fmt: skip
        assert await page.run(f"{bar}.getAttribute('aria-valuetext')") == await page.run(TEXT)
        await page.screenshot(Path(os.environ.get("MAINSPRING_SCREENSHOTS", str(tmp_path))) / "progress.png")
        await shop.reports.put((1, ""))
        await page.wait(f"{TEXT} === 'Done' && {bar}.value === 1")
        assert (
            await page.run("document.querySelector('mainspring-progress span').getAttribute('aria-live')") == "polite"
        )
    seen = await page.run("seen")
    assert seen[0][:2] == ["update", "pending"]
    assert seen[-2:] == [["update", "completed", None], ["end", "completed", None]]
    assert page.complaints == []
    origin = f"{shop.service_url}/"
    assert {url for url in page.requests if not url.startswith(("data:", origin))} == {f"{shop.url}/"}
    assert len(shop.service.streams) == 1


async def test_the_script_resumes_its_stream_and_ends_it_with_the_job(tmp_path: Path) -> None:
    async with shop_in(tmp_path, Pace(lifetime=0.05, retry=0.02)) as shop:
        job_id = await shop.enqueue()
        await shop.show(job_id, await shop.token(job_id))
        await shop.page.wait(f"{TEXT} === 'Waiting'")
        await until(lambda: len(shop.service.streams) >= 4)
        assert b"last-event-id" not in shop.service.streams[0]
        assert all(headers[b"last-event-id"] for headers in shop.service.streams[1:])
        await shop.app.jobs.cancel(job_id)
        await shop.page.wait(f"{TEXT} === 'Cancelled'")
        await until(lambda: not shop.service.live.number)
        assert await shop.page.run("document.querySelector('mainspring-progress').ending.signal.aborted")
        assert (await shop.page.run("seen"))[-1] == ["end", "cancelled", None]


async def test_the_script_polls_where_streams_are_refused(shop: Shop) -> None:
    shop.service.refuses_streams = True
    job_id = await shop.enqueue("fail")
    await shop.show(job_id, await shop.token(job_id))
    await shop.page.wait(f"{TEXT} === 'Waiting'")
    await shop.app.worker().drain()
    await shop.page.wait(f"{TEXT} === 'Failed'")
    assert (await shop.page.run("seen"))[-1] == ["end", "dead_letter", None]


async def test_the_script_stops_if_its_token_is_not_valid(shop: Shop) -> None:
    job_id = await shop.enqueue()
    text = await shop.token(job_id)
    await shop.show(job_id, text[:-2] + ("AA" if not text.endswith("AA") else "BB"))
    await shop.page.wait(f"{TEXT} === 'Not available'")
    assert await shop.page.run("seen") == [["error", 401, "unauthorized"]]
    await shop.page.run(f"document.querySelector('mainspring-progress').setAttribute('token', '{text}')")
    await shop.page.wait(f"{TEXT} === 'Waiting'")


async def test_pages_of_the_service_keep_their_own_policy(shop: Shop) -> None:
    """A browser would complain about what the policy forbids."""
    for path in ("/v1/docs", "/v1/errors", "/v1/errors/not_found", "/login"):
        await shop.page.open(f"{shop.service_url}{path}")
        await shop.page.wait(f"location.pathname === '{path}' && document.readyState === 'complete'")
        assert await shop.page.run("getComputedStyle(document.querySelector('header')).display") == "flex"
    assert shop.page.complaints == []
    assert not [url for url in shop.page.requests if not url.startswith((shop.service_url, "data:"))]


async def test_a_person_logs_in_with_a_browser(shop: Shop, tmp_path: Path) -> None:
    _, text = await Tokens(shop.app.store).create("ana", ["read", "operate"], actor="ana")
    page, url = shop.page, shop.service_url
    await page.open(f"{url}/login")
    await page.wait("document.activeElement?.id === 'token'")
    await page.run("document.querySelector('#token').value = 'msk_wrong'; document.querySelector('button').click()")
    await page.wait("document.querySelector('[role=alert]')?.textContent === 'The token is wrong, revoked or expired.'")
    await page.screenshot(Path(os.environ.get("MAINSPRING_SCREENSHOTS", str(tmp_path))) / "login.png")
    page.complaints.clear()  # the answer 401 is one
    await page.run(f"document.querySelector('#token').value = '{text}'; document.querySelector('button').click()")
    await page.wait("document.querySelector('h1')?.textContent === 'You are logged in'")
    assert await page.run("document.cookie") == ""
    assert await page.run(f"fetch('{url}/v1/jobs').then(answer => answer.status)") == 200
    halt = "fetch('{url}/v1/halt', {{method: 'POST', body: '{{}}', headers: {headers}}}).then(answer => answer.status)"
    kind = "'content-type': 'application/json'"
    assert await page.run(halt.format(url=url, headers=f"{{{kind}}}")) == 403
    assert await page.run(halt.format(url=url, headers=f"{{{kind}, 'x-mainspring': '1'}}")) == 200
    assert len(await shop.app.halts()) == 1
    with pytest.raises(RuntimeError, match="TrustedHTML"):
        await page.run("document.body.innerHTML = '<p>'")
    await page.run("document.querySelector('button').click()")
    await page.wait("document.querySelector('h1')?.textContent === 'Log in'")
    assert await Tokens(shop.app.store).sessions.list() == []


async def test_another_site_cannot_use_the_session_of_a_browser(shop: Shop) -> None:
    """It has another port of the same host, so the browser does send the cookie."""
    _, text = await Tokens(shop.app.store).create("ana", ["admin"], actor="ana")
    page, url = shop.page, shop.service_url
    await page.open(f"{url}/login")
    await page.wait("document.querySelector('#token')")
    await page.run(f"document.querySelector('#token').value = '{text}'; document.querySelector('button').click()")
    await page.wait("document.querySelector('h1')?.textContent === 'You are logged in'")
    shop.policy = "default-src *"
    shop.html = f'<link rel=icon href="{NOTHING}"><form method=post enctype="text/plain" action="{url}/v1/halt">'
    await page.open(shop.url)
    await page.wait("document.querySelector('form')")
    options = "{credentials: 'include', mode: 'no-cors', method: 'POST', body: '{}'}"
    await page.run(f"fetch('{url}/v1/halt', {options}).then(() => true)")
    readable = f"fetch('{url}/v1/jobs', {{credentials: 'include'}}).then(() => 'read', () => 'refused')"
    assert await page.run(readable) == "refused"
    custom = "{credentials: 'include', method: 'POST', headers: {'x-mainspring': '1'}}"
    assert await page.run(f"fetch('{url}/v1/halt', {custom}).then(() => 'sent', () => 'refused')") == "refused"
    await page.run("document.querySelector('form').submit()")
    await page.wait(f"location.href.startsWith('{url}')")
    assert '"code": "forbidden"' in await page.run("document.body.textContent")
    assert not await shop.app.halts()
