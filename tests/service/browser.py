"""Chromium for tests of pages, driven by its DevTools protocol: no package is needed besides the browser itself.

tests/programs.py finds it, and `make test` fetches one if the machine has none.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE = 30.0  # seconds; far more than anything takes
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
)  # fmt: skip


class Page:
    """A tab. It collects what the page complains about."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._reader = asyncio.create_task(self._read())

    async def call(self, method: str, **params: Any) -> Any:
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        async with asyncio.timeout(PATIENCE):
            return await answer

    async def _read(self) -> None:
        async for message in self._socket:
            data = message.json()
            if "id" in data:
                answer = self._answers.pop(data["id"])
                if "error" in data:
                    answer.set_exception(RuntimeError(str(data["error"])))
                else:
                    answer.set_result(data["result"])
            else:
                self._note(data["method"], data["params"])

    def _note(self, method: str, params: Any) -> None:
        if method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"].get("exception", params)))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    async def open(self, url: str) -> None:
        for domain in ("Page", "Log", "Runtime", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)

    async def run(self, expression: str) -> Any:
        """Return the value of an expression in the page; a promise is waited for."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(RuntimeError):  # the page is not there yet
                    if await self.run(f"Boolean({expression})"):
                        return
                await asyncio.sleep(0.02)

    async def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode((await self.call("Page.captureScreenshot"))["data"]))

    async def close(self) -> None:
        self._reader.cancel()
        await self._socket.close()


@asynccontextmanager
async def browser_page(program: str, folder: Path) -> AsyncIterator[Page]:
    """Start a browser with an empty profile; yield a page; end the browser."""
    log = folder / "browser.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            program, *FLAGS, f"--user-data-dir={folder}", "about:blank", stdout=errors, stderr=errors
        )
    try:
        async with aiohttp.ClientSession() as session:
            port = await port_in(folder / "DevToolsActivePort", process, log)
            async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                target = next(each for each in await response.json() if each["type"] == "page")
            page = Page(await session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0))
            try:
                yield page
            finally:
                await page.close()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def port_in(file: Path, process: asyncio.subprocess.Process, log: Path) -> int:
    async with asyncio.timeout(PATIENCE):
        while process.returncode is None:
            with suppress(FileNotFoundError, IndexError, ValueError):
                return int(file.read_text().splitlines()[0])
            await asyncio.sleep(0.02)
    raise RuntimeError(f"the browser ended with {process.returncode}: {log.read_text('utf-8', 'replace')[-2000:]}")
