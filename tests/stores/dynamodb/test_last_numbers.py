"""Programs that end without closing their store: their numbers are written, and none twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.dynamodb_server import REGION
from mainspring import Mainspring
from mainspring.stores.dynamodb import DynamoStore, last_numbers
from mainspring.stores.dynamodb.client import Client
from tests.dynamodb import endpoint, fresh_name

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
HEAD = """
import asyncio, os, sys
from mainspring import Mainspring
from mainspring.stores.dynamodb import last_numbers, number_tally

number_tally.FLUSH_EVERY = last_numbers.MAX_SECONDS = 3600.0  # however slow the machine is, all is written at the exit
app = Mainspring(sys.argv[1])

@app.task
async def notify(number: int) -> None: ...

async def enqueue() -> None:
    for number in range(5):
        await notify.enqueue(number)
"""
SYNC = """
for number in range(5):
    notify.enqueue_sync(number)
"""
FORKED = """
for number in range(4):
    notify.enqueue_sync(number)
child = os.fork()
if child == 0:
    notify.enqueue_sync(4)
    sys.exit()  # runs the hooks of the exit, unlike os._exit
os.waitpid(child, 0)
"""
PROGRAMS = {
    "sync": SYNC,
    "async": "asyncio.run(enqueue())",
    "loop left open": "asyncio.new_event_loop().run_until_complete(enqueue())",
    "closed": SYNC + "app.run(app.close())",
    "forked": FORKED,
}
WITHOUT_SERVICE = f"""{SYNC}
app.store.client.endpoint = "http://127.0.0.1:9/"
last_numbers.MAX_SECONDS = {last_numbers.MAX_SECONDS}
"""


@pytest.fixture
async def url() -> str:
    store = DynamoStore(fresh_name(), client=Client(REGION, endpoint()), shards=2, migrate=True)
    await store.open()
    await store.close()
    return f"dynamodb://{store.table.name}?region={REGION}&endpoint={endpoint()}"


def run(program: str, url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HEAD + program, url]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=ROOT, env=dict(os.environ), check=False
    )


async def enqueued(url: str) -> int:
    async with Mainspring(url) as app:
        return (await app.numbers()).total.enqueued


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
async def test_a_program_that_does_not_close_its_store_writes_its_numbers_once(program: str, url: str) -> None:
    done = run(program, url)
    assert done.returncode == 0, done.stderr
    assert await enqueued(url) == 5


async def test_a_program_that_raises_writes_its_numbers(url: str) -> None:
    assert run(SYNC + "raise SystemExit(3)", url).returncode == 3
    assert await enqueued(url) == 5


async def test_without_the_service_the_program_ends_and_says_what_is_lost(url: str) -> None:
    done = run(WITHOUT_SERVICE, url)
    assert done.returncode == 0
    assert done.stderr.count("numbers_lost") == 1
    assert await enqueued(url) == 0
