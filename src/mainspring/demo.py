"""`make run`: the service on an SQLite file. It enqueues and runs demo jobs and shows the events, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections import Counter
from datetime import datetime

from mainspring import Context, Discard, Mainspring, Retry
from mainspring.errors import ConfigurationError
from mainspring.events import (
    Event,
    JobCompleted,
    JobCreated,
    JobDeadLettered,
    JobDeduplicated,
    JobProgressed,
    JobRetrying,
    JobStarted,
)
from mainspring.service.program import Service
from mainspring.service.settings import load_settings
from mainspring.worker import Worker

STORE = "sqlite:///demo.db"
GREETING = """\
Mainspring serves {url} and runs jobs on {file}. Ctrl-C stops it; jobs in progress finish first.
Every operation is described at {url}/v1/docs. From another terminal, in this directory:

    # enqueue a job, and look at the queues and at what happens
    curl -s {url}/v1/jobs -H 'content-type: application/json' -d '{{"task": "welcome", "payload": {{"guest": "you"}}}}'
    curl -s {url}/v1/queues
    curl -sN {url}/v1/events

    # write a task as a shell script, and run its jobs with a worker that needs nothing but curl
    mkdir -p handlers && printf '#!/bin/sh\\ntr a-z A-Z\\n' >handlers/shout && chmod +x handlers/shout
    curl -s {url}/v1/jobs -H 'content-type: application/json' \\
        -d '{{"task": "shout", "payload": {{"text": "hi"}}, "allow_unknown": true}}'
    MAINSPRING_URL={url} examples/workers/worker.sh handlers

    # the same store from the command line
    .venv/bin/mainspring stats --store {store} --watch
    .venv/bin/mainspring dead list --store {store}

docs/service.md goes on from here.
"""

app = Mainspring(STORE)


@app.task(queue="mail")
async def welcome(guest: str) -> str:
    """Take a moment, like talking to a mail server."""
    await asyncio.sleep(random.uniform(0.05, 0.4))  # noqa: S311 - a demonstration
    return f"welcomed {guest}"


@app.task(queue="payments", retry=Retry(max_attempts=4, base=1, max_delay=5))
async def charge(guest: str, cents: int) -> str:
    """Fail now and then, like talking to a bank; the job is retried."""
    await asyncio.sleep(0.1)
    if random.random() < 0.35:  # noqa: S311
        msg = f"the bank did not answer for {guest}"
        raise ConnectionError(msg)
    return f"{cents / 100:.2f} from {guest}"


@app.task(queue="media")
def resize(ctx: Context, photo: str) -> None:
    """Run in a thread, as plain functions do, and report progress."""
    for step in range(1, 5):
        time.sleep(0.15)
        ctx.progress(step / 4, f"{photo}: size {step} of 4")


@app.task(queue="imports", retry=Retry(max_attempts=3, base=1))
async def import_row(row: str) -> None:
    """Discard rows that cannot be read: the job becomes a dead letter that keeps what is needed to investigate."""
    if "," not in row:
        msg = f"no comma in {row!r}"
        raise Discard(msg)


GUESTS = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Radia", "Tony", "Frances")


async def produce() -> None:
    """Enqueue demo jobs for ever."""
    number = 0
    while True:
        number += 1
        guest = random.choice(GUESTS)  # noqa: S311
        await welcome.enqueue(guest=guest)
        if number % 3 == 0:
            cents = random.randrange(9000)  # noqa: S311
            await charge.using(priority="high", target=("guest", guest)).enqueue(guest=guest, cents=cents)
        if number % 7 == 0:
            await resize.enqueue(photo=f"{guest.lower()}-{number}.jpg")
        if number % 11 == 0:
            await welcome.using(delay=3, dedupe_key=f"reminder:{guest}").enqueue(guest=f"{guest} (three seconds later)")
        if number % 17 == 0:
            await import_row.enqueue(row=random.choice(["Ada,1815", "Grace;1906"]))  # noqa: S311
        await asyncio.sleep(random.expovariate(3))


COLOURS = {"green": 32, "yellow": 33, "red": 31, "blue": 34, "grey": 90}


class Screen:
    """Print one line per event, and one line at the bottom with the totals."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.tty = sys.stdout.isatty()

    def show(self, event: Event) -> None:
        match event:
            case JobCreated(task=task):
                self._line("grey", "enqueued", task, "")
            case JobDeduplicated(task=task, dedupe_key=key):
                self._line("grey", "known", task, f"{key} is waiting already")
            case JobStarted(task=task, attempt=attempt, lateness=lateness):
                self._line("blue", "started", task, f"attempt {attempt}, {lateness * 1000:.0f} ms after it was due")
            case JobProgressed(task=task, fraction=fraction, note=note):
                self._line("blue", "progress", task, f"{'█' * round(fraction * 10):░<10} {note}")
            case JobCompleted(task=task, duration=duration):
                self._line("green", "completed", task, f"in {duration * 1000:.0f} ms")
            case JobRetrying(task=task, delay=delay, failure=failure):
                self._line("yellow", "retrying", task, f"in {delay:.1f} s: {failure.message if failure else ''}")
            case JobDeadLettered(task=task, failure=failure):
                self._line("red", "dead letter", task, failure.message if failure else "")

    def _line(self, colour: str, what: str, task: str, detail: str) -> None:
        self.counts[what] += 1
        self._print(f"{datetime.now().astimezone():%H:%M:%S}  {self._paint(colour, f'{what:<12}')}{task:<12}{detail}")
        if self.tty:
            totals = "   ".join(f"{self.counts[name]} {name}" for name in ("completed", "retrying", "dead letter"))
            sys.stdout.write(f"\033[7m {totals} \033[0m")
            sys.stdout.flush()

    def _print(self, line: str) -> None:
        sys.stdout.write(f"\r\033[K{line}\n" if self.tty else f"{line}\n")
        sys.stdout.flush()  # a pipe would keep it for a while

    def _paint(self, colour: str, text: str) -> str:
        return f"\033[{COLOURS[colour]}m{text}\033[0m" if self.tty else text


async def main() -> None:
    screen = Screen()
    app.on(Event)(screen.show)
    worker = Worker(app, grace=5)  # of every queue: visitors choose their own, and `http` has requests and callbacks
    service = Service(app, load_settings(), worker)
    file = STORE.removeprefix("sqlite:///")
    sys.stdout.write(f"{GREETING.format(url=service.url, file=file, store=STORE)}\n")
    sys.stdout.flush()
    serving = asyncio.create_task(service.serve())
    producing = asyncio.create_task(produce())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, service.stop)
    await serving
    producing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await producing
    await app.close()
    sys.stdout.write("\nStopped. Nothing is lost: `make run` goes on where it was.\n")


if __name__ == "__main__":
    import logging

    logging.basicConfig(level=logging.CRITICAL)  # the screen shows it all
    try:
        asyncio.run(main())
    except ConfigurationError as error:  # the port is in use, or is not a number
        sys.exit(f"{error}\nFor example: PORT=8341 make run")
