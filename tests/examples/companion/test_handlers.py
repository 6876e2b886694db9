"""The handlers and the adapter alone, without a worker."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from examples.companion.dispatch import register
from examples.companion.handlers import (
    BaseJobHandler,
    DailySummaryHandler,
    DailySummaryPayload,
    Outside,
    UserSyncHandler,
    UserSyncPayload,
    job_handlers,
)
from examples.companion.memory import Memory, Row, User
from examples.companion.slack import Profile
from mainspring import Context, InvalidPayload, Mainspring, Status, testing

NOW = datetime(2026, 7, 1, 17, 0, tzinfo=UTC)
ANA = User("ana", "U1", "C-ana", "Ana", "Europe/Lisbon")
DAY = DailySummaryPayload(user_id="ana", day=date(2026, 7, 1))


class MemoryStub(Memory):
    def __init__(self) -> None:
        self.people = {"ana": ANA}
        self.sent: dict[tuple[str, date], Row] = {}
        self.talks = [(NOW - timedelta(hours=1), "hello")]

    def user(self, user_id: str) -> User:
        return self.people[user_id]

    def conversations(self, user_id: str, first: datetime, until: datetime) -> list[str]:
        return [text for at, text in self.talks if first <= at < until]

    def synced(self, user_id: str, *, name: str, tz: str, at: datetime) -> None:
        self.people[user_id] = replace(self.people[user_id], name=name, tz=tz, synced_at=at.isoformat())

    def summary(self, user_id: str, day: date) -> Row | None:
        return self.sent.get((user_id, day))

    def summary_sent(
        self, user_id: str, day: date, *, text: str, until: datetime, slack_ts: str, job_id: str, at: datetime
    ) -> None:
        self.sent[user_id, day] = {"text": text, "until": until.isoformat(), "summary_sent_at": at.isoformat()}


class SlackStub:
    def __init__(self) -> None:
        self.posts: list[tuple[str, str, str]] = []

    def post(self, channel: str, text: str, *, token: str) -> str:
        self.posts.append((channel, text, token))
        return "1.0"

    def profile(self, slack_id: str) -> Profile:
        return Profile("Ana Maria", "Europe/Madrid")


@pytest.fixture
def slack() -> SlackStub:
    return SlackStub()


@pytest.fixture
def outside(slack: SlackStub) -> Outside:
    return Outside(MemoryStub(), slack, lambda: NOW)


# -- handlers -------------------------------------------------------------------------------------------


def test_a_summary_is_sent_and_noted(outside: Outside, slack: SlackStub) -> None:
    DailySummaryHandler(outside, Context.detached()).handle(DAY)
    ((channel, text, _),) = slack.posts
    assert (channel, text) == ("C-ana", "Ana, your summary of 2026-07-01:\n• hello")
    assert outside.memory.summary("ana", DAY.day) == {
        "text": text,
        "until": NOW.isoformat(),
        "summary_sent_at": NOW.isoformat(),
    }


def test_a_summary_that_was_sent_is_not_sent_again(outside: Outside, slack: SlackStub) -> None:
    for _ in range(2):
        DailySummaryHandler(outside, Context.detached()).handle(DAY)
    assert len(slack.posts) == 1


def test_each_attempt_of_a_job_has_the_same_message_token(outside: Outside) -> None:
    job, other = "01900000-0000-7000-8000-000000000001", "01900000-0000-7000-8000-000000000002"
    tokens = [
        DailySummaryHandler(outside, Context.detached(id=job_id, attempts=attempts)).message_token()
        for job_id, attempts in ((job, 0), (job, 3), (other, 0))
    ]
    assert tokens[0] == tokens[1] != tokens[2]


def test_a_sync_copies_name_and_zone(outside: Outside) -> None:
    for _ in range(2):
        UserSyncHandler(outside, Context.detached()).handle(UserSyncPayload(user_id="ana"))
    ana = outside.memory.user("ana")
    assert (ana.name, ana.tz, ana.synced_at) == ("Ana Maria", "Europe/Madrid", NOW.isoformat())


@pytest.mark.parametrize("tz", ["Mars/Phobos", "", "../etc/passwd"])
def test_a_time_zone_that_is_not_known_counts_as_utc(tz: str) -> None:
    assert replace(ANA, tz=tz).summary_time(date(2026, 7, 1)) == datetime(2026, 7, 1, 18, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (datetime(2026, 7, 1, 16, 59, tzinfo=UTC), date(2026, 7, 1)),
        (datetime(2026, 7, 1, 17, 0, tzinfo=UTC), date(2026, 7, 2)),  # 18:00 in Lisbon
        (datetime(2026, 7, 1, 23, 30, tzinfo=UTC), date(2026, 7, 2)),  # already the 2nd in Lisbon
        (datetime(2026, 10, 25, 17, 30, tzinfo=UTC), date(2026, 10, 25)),  # summer time has just ended
    ],
)
def test_the_next_summary_is_at_a_local_time(now: datetime, expected: date) -> None:
    assert ANA.next_day(now) == expected


def summaries(people: list[User], talks: list[tuple[datetime, str]], runs: list[datetime]) -> list[list[str]]:
    """Return what the summaries of days one after the other tell, for the user as they are at each."""
    memory, slack = MemoryStub(), SlackStub()
    memory.talks = talks
    for number, (user, now) in enumerate(zip(people, runs, strict=True)):
        memory.people["ana"] = user
        payload = DailySummaryPayload(user_id="ana", day=date(2026, 7, 1) + timedelta(days=number))
        DailySummaryHandler(Outside(memory, slack, lambda now=now: now), Context.detached()).handle(payload)  # type: ignore[misc]
    return [[line[2:] for line in text.splitlines()[1:]] for _, text, _ in slack.posts]


def at(day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 7, day, hour, minute, tzinfo=UTC)


EVENING, MORNING = ANA, replace(ANA, summary_at="07:30")  # 17:00 and 06:30 UTC


@pytest.mark.parametrize(("user", "hour", "minute"), [(EVENING, 17, 0), (MORNING, 6, 30)])
def test_each_conversation_is_in_one_summary(user: User, hour: int, minute: int) -> None:
    due = [at(day, hour, minute) for day in (1, 2, 3)]
    talks = [
        (due[0] - timedelta(seconds=1), "before"),
        (due[0], "at the time of a summary"),
        (due[0] + timedelta(hours=3), "later that day"),
        (at(1, 23), "at midnight in Lisbon"),
        (due[1], "of the third"),
    ]
    told = summaries([user] * 3, talks, due)
    assert told == [
        ["before"],
        ["at the time of a summary", "later that day", "at midnight in Lisbon"],
        ["of the third"],
    ]


def test_a_late_summary_covers_what_it_would_have_covered_in_time() -> None:
    talks = [(at(1, 16), "in time"), (at(1, 18), "while it was late")]
    assert summaries([EVENING] * 2, talks, [at(1, 19), at(2, 17)]) == [["in time"], ["while it was late"]]


@pytest.mark.parametrize(("before", "after", "last"), [(EVENING, MORNING, at(2, 6, 30)), (MORNING, EVENING, at(2, 17))])
def test_a_new_hour_loses_and_repeats_no_conversation(before: User, after: User, last: datetime) -> None:
    talks = [(at(1, hour), str(hour)) for hour in range(24)]
    first, second = summaries([before, after], talks, [before.summary_time(date(2026, 7, 1)), last])
    assert first + second == [str(hour) for hour in range(24)]


def test_a_summary_whose_hour_has_changed_since_it_was_planned_ends_where_the_next_one_begins() -> None:
    talks = [(at(1, hour), str(hour)) for hour in range(24)]
    later = replace(ANA, summary_at="20:00")
    first, second = summaries([later, later], talks, [at(1, 17), at(2, 19)])  # the first was planned for 18:00
    assert first + second == [str(hour) for hour in range(24)]


# -- the adapter ----------------------------------------------------------------------------------------


class Note(BaseModel):
    text: str


notes: list[tuple[str, str]] = []


class PlainHandler(BaseJobHandler[Note]):
    @classmethod
    def payload_model(cls) -> type[Note]:
        return Note

    def handle(self, payload: Note) -> None:
        notes.append((self.ctx.task, payload.text))


class AsyncHandler(PlainHandler):
    async def handle(self, payload: Note) -> None:  # type: ignore[override] # the adapter awaits it
        notes.append((self.ctx.task, f"awaited {payload.text}"))


class Nameless(BaseJobHandler[Any]):
    @classmethod
    def payload_model(cls) -> type[Any]:
        return dict

    def handle(self, payload: Any) -> None: ...


@pytest.fixture
def app() -> Mainspring:
    return Mainspring("memory://")


async def test_classes_run_as_tasks(app: Mainspring, outside: Outside) -> None:
    notes.clear()
    tasks = register(app, {"plain": PlainHandler, "waiting": AsyncHandler}, outside)
    async with testing.manual(app) as kit:
        await tasks["plain"].enqueue(Note(text="a"))
        await app.enqueue("waiting", {"text": "b"})
        ran = await kit.drain(raise_errors=True)
    assert [run.status for run in ran] == [Status.COMPLETED] * 2
    assert notes == [("plain", "a"), ("waiting", "awaited b")]


def test_the_registry_is_the_one_of_the_specification(app: Mainspring, outside: Outside) -> None:
    register(app, job_handlers, outside)
    assert set(app.tasks) == {"daily_summary", "user_sync"}


@pytest.mark.parametrize("payload", [{}, {"user_id": "ana", "day": "tomorrow"}, {"user_id": 7, "day": "2026-07-01"}])
async def test_a_wrong_payload_is_refused_at_the_enqueue(app: Mainspring, outside: Outside, payload: Any) -> None:
    register(app, job_handlers, outside)
    with pytest.raises(InvalidPayload, match="daily_summary"):
        await app.enqueue("daily_summary", payload)


def test_a_model_that_is_not_one_is_refused(app: Mainspring, outside: Outside) -> None:
    with pytest.raises(TypeError, match=r"payload_model\(\) returned .*; return a Pydantic model"):
        register(app, {"nameless": Nameless}, outside)
