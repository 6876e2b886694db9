"""`make companion`: the application with its DynamoDB server, a fake Slack and a fake Sentry, until Ctrl-C.

It tells a story of a few seconds, and shows it from outside: what Slack and Sentry got, and what is in the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

from examples.companion.application import JOBS_PER_POLL, Companion, make
from examples.companion.memory import User
from examples.companion.settings import Settings
from examples.dynamodb_server import REGION, set_keys, start
from mainspring.events import Event, JobCompleted, JobCreated, JobDeadLettered, JobDeduplicated, JobRetrying, JobStarted
from mainspring.testing.fakes import FakeSentry, FakeSlack

PEOPLE = (("ana", "U1", "Ana", "Europe/Lisbon"), ("bo", "U2", "Bo", "Asia/Tokyo"), ("cy", "U3", "Cy", "America/Lima"))
SUMMARIES_IN = timedelta(seconds=3)


def say(what: str, detail: str = "") -> None:
    print(f"{datetime.now().astimezone():%H:%M:%S}  {what:<14}{detail}", flush=True)


def show(event: Event) -> None:
    match event:
        case JobCreated(task=task, run_at=run_at):
            say("enqueued", f"{task}, due {f'at {run_at.astimezone():%H:%M:%S}' if run_at else 'now'}")
        case JobDeduplicated(task=task, dedupe_key=key):
            say("known", f"{task} {key} is scheduled already")
        case JobStarted(task=task, attempt=attempt):
            say("started", f"{task}, attempt {attempt}")
        case JobCompleted(task=task, duration=duration):
            say("completed", f"{task} in {duration * 1000:.0f} ms")
        case JobRetrying(task=task, delay=delay, failure=failure):
            say("retrying", f"{task} in {delay:g} s: {failure.message if failure else ''}")
        case JobDeadLettered(task=task, failure=failure):
            say("dead letter", f"{task}: {failure.message if failure else ''}")


def prepare(companion: Companion, slack: FakeSlack) -> None:
    """Create the table with the application's own items, and the users in Slack."""
    companion.memory.create_table()
    now = datetime.now(UTC)
    for user_id, slack_id, name, tz in PEOPLE:
        user = User(user_id, slack_id, f"C-{user_id}", name, tz)
        local = now.astimezone(user.zone)
        companion.memory.put_user(User(user.id, slack_id, user.channel, name, tz, f"{local + SUMMARIES_IN:%H:%M:%S}"))
        companion.memory.add_conversation(user_id, now - timedelta(seconds=1), f"{name} talked about the weather")
        slack.add_user(slack_id, name, tz)
    companion.memory.put_user(User("ghost", "U404", "C-ghost", "Ghost", "Etc/UTC"))


async def story(companion: Companion, slack: FakeSlack, sentry: FakeSentry) -> None:
    say("story", "each user's summary is scheduled; a second plan changes nothing")
    users = [companion.memory.user(user_id) for user_id, *_ in PEOPLE]
    summaries = [await companion.schedule_next_summary(user) for user in users]
    await companion.schedule_next_summary(users[0])
    say("story", "Slack fails once, and the sync of Ana is retried; Slack does not know Ghost")
    slack.fail(503, times=1)
    ana = await companion.sync_user("ana")
    await reported(sentry, 1)
    ghost = await companion.sync_user("ghost")
    for job in (*summaries, ana, ghost):
        await job.wait(timeout=60)
    await reported(sentry, 6)  # one of Ana, five of Ghost
    outside(companion, slack, sentry)


async def reported(sentry: FakeSentry, number: int) -> None:
    """Wait until so many errors are in Sentry. It also gets check-ins of the plan, every fifteen minutes."""
    while len(sentry.events) < number:  # noqa: ASYNC110 - the fake has no event for it
        await asyncio.sleep(0.05)


def outside(companion: Companion, slack: FakeSlack, sentry: FakeSentry) -> None:
    for message in slack.messages:
        say("in Slack", f"{message.channel}: {message.text.splitlines()[-1]}")
    for event in sentry.events[-1:]:
        error, payload = event["exception"]["values"][0], event["extra"]["payload"]
        say("in Sentry", f"{error['type']}: {error['value']}; job {event['tags']['job_id']}, {payload}")
    kinds = Counter(key.partition("#")[0] for key in companion.memory.partition_keys())
    say("in the table", ", ".join(f"{number} × {kind}" for kind, number in sorted(kinds.items())))
    say("story", "That was the story. Companion goes on with a sync every five seconds. Ctrl-C stops it.")


async def live(companion: Companion, slack: FakeSlack, sentry: FakeSentry) -> None:
    await story(companion, slack, sentry)
    for user_id, *_ in itertools.cycle(PEOPLE):
        await asyncio.sleep(5)
        await companion.sync_user(user_id)


async def run(companion: Companion, slack: FakeSlack, sentry: FakeSentry) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    companion.app.on(Event)(show)
    async with companion.app, companion.app.worker(concurrency=JOBS_PER_POLL, prefetch=0, grace=5):
        for worker in (await companion.app.stats()).workers:
            say("alive", f"worker {worker.id} waits for jobs")
        living = asyncio.create_task(live(companion, slack, sentry))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([living, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in (living, stopping):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await living
    say("stopped", "The table ends with its server. On a real one, another worker would go on with the jobs.")


def main() -> None:
    logging.basicConfig(level=logging.CRITICAL)  # the lines above show it all
    say("starting", "a DynamoDB server on this machine")
    begin = time.monotonic()
    set_keys()
    endpoint = start()
    with FakeSlack() as slack, FakeSentry() as sentry:
        store = f"dynamodb://companion?region={REGION}&endpoint={endpoint}&prefix=jobs/&poll=1&migrate=on&shards=2"
        settings = Settings(
            store=store, slack_url=slack.url, slack_token=slack.token, sentry_dsn=sentry.dsn, base_delay_seconds=0.2
        )
        companion = make(settings)
        prepare(companion, slack)
        say("ready", f"after {time.monotonic() - begin:.1f} s, with DynamoDB {endpoint} and fakes of Slack and Sentry")
        asyncio.run(run(companion, slack, sentry))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
