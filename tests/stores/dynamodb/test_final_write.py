"""Programs that end without closing their store: what they have counted is written, and nothing twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.dynamodb_server import REGION
from mainspring import Mainspring
from mainspring.stores.dynamodb import DynamoStore
from mainspring.stores.dynamodb.client import Client
from tests.dynamodb import endpoint, fresh_name

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SLOW_EXIT = 10.0  # seconds; an exit waits for 3 at most, and this machine may be busy

HEAD = """
import asyncio, os, sys, time
from mainspring import Mainspring

app = Mainspring(sys.argv[1])

@app.task
async def notify(number: int) -> None: ...

def without_server():
    app.store.client.endpoint = "http://127.0.0.1:9/"
    app.store.client._sessions.abandon()
"""
SYNC = """
for number in range(5):
    notify.enqueue_sync(number)
"""
ASYNC = """
async def main():
    for number in range(5):
        await notify.enqueue(number)

asyncio.run(main())
"""
LOOP_LEFT_OPEN = """
async def main():
    for number in range(5):
        await notify.enqueue(number)

asyncio.new_event_loop().run_until_complete(main())
"""
WRITTEN_BY_A_CHORE = """
app.store.table.numbers._flushed_at = -1000.0  # so that the first enqueue begins to write in the background

async def main():
    for number in range(5):
        await notify.enqueue(number)

asyncio.run(main())
"""
LOCAL_APP = """
def main():
    app = Mainspring(sys.argv[1])

    @app.task(name="local")
    async def local(number: int) -> None: ...

    for number in range(5):
        local.enqueue_sync(number)

main()
import gc; gc.collect()
"""
CLOSED = SYNC + "app.run(app.close())\n"
AFTER_AN_ERROR = SYNC + 'raise SystemExit("the program failed")\n'
FORKED = """
notify.enqueue_sync(0)
notify.enqueue_sync(1)
child = os.fork()
if child == 0:
    notify.enqueue_sync(2)
    sys.exit()  # runs the hooks of the exit, unlike os._exit
os.waitpid(child, 0)
notify.enqueue_sync(3)
notify.enqueue_sync(4)
"""
IDLE_CHILD = """
for number in range(5):
    notify.enqueue_sync(number)
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
"""
NO_NAME_LOOKUP = """
app.store.client.endpoint = app.store.client.endpoint.replace("127.0.0.1", "localhost")
async def main():
    for number in range(5):
        await notify.enqueue(number)

asyncio.new_event_loop().run_until_complete(main())
"""

NORMAL = {
    "sync": SYNC, "async": ASYNC, "loop left open": LOOP_LEFT_OPEN, "background write": WRITTEN_BY_A_CHORE,
    "local app": LOCAL_APP, "closed": CLOSED, "forked": FORKED, "idle child": IDLE_CHILD,
    "host by name": NO_NAME_LOOKUP,
}  # fmt: skip
GONE = {
    "sync": SYNC + "without_server()\n",
    "async": ASYNC.replace("\n\nasyncio.run", "\n    without_server()\n\nasyncio.run"),
    "after the loop": LOOP_LEFT_OPEN + "without_server()\n",
}


@pytest.fixture
async def url() -> str:
    name = fresh_name()
    store = DynamoStore(name, client=Client(REGION, endpoint()), shards=2, migrate=True)
    await store.open()
    await store.close()
    return f"dynamodb://{name}?region={REGION}&endpoint={endpoint()}"


def run(program: str, url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "default::ResourceWarning:mainspring", "-c", HEAD + program, url]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=ROOT, env=dict(os.environ), check=False
    )


async def counted(url: str) -> tuple[int, int]:
    """Return how many enqueued jobs the numbers over time have, and how many jobs the statistics."""
    async with Mainspring(url) as app:
        numbers, stats = await app.numbers(), await app.stats()
    return numbers.total.enqueued, sum(sum(queue.by_status.values()) for queue in stats.queues)


@pytest.mark.parametrize("program", NORMAL.values(), ids=NORMAL)
async def test_a_program_that_ends_without_closing_writes_its_numbers_once(program: str, url: str) -> None:
    done = run(program, url)
    assert (done.returncode, done.stderr) == (0, "")
    assert await counted(url) == (5, 5)


async def test_a_program_that_fails_writes_its_numbers(url: str) -> None:
    done = run(AFTER_AN_ERROR, url)
    assert (done.returncode, done.stderr) == (1, "the program failed\n")
    assert await counted(url) == (5, 5)


@pytest.mark.parametrize("program", GONE.values(), ids=GONE)
async def test_without_the_service_the_exit_is_quick_and_says_one_line(program: str, url: str) -> None:
    began = time.monotonic()
    done = run(program, url)
    assert time.monotonic() - began < SLOW_EXIT
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("numbers_lost")
    assert "could not write what it has counted last" in line
