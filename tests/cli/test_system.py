from __future__ import annotations

import io
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mainspring.cli.numbers_page import rate
from mainspring.cli.stats_page import say_stats
from mainspring.cli.table import Styled
from mainspring.cli.terminal import Terminal
from mainspring.errors import SystemHalted
from mainspring.job import Counts, Status
from mainspring.stores.protocol import DUE_CAP, Halt, Stats, WorkerInfo
from tests.cli.conftest import NIGHTLY_ONLY, Outcome, Run, Shop

pytestmark = pytest.mark.slow

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def call(run: Run, shop: Shop) -> Run:
    def call(*argv: str) -> Outcome:
        return run(*argv, "--store", shop.url)

    return call


# -- halt, pause, resume --------------------------------------------------------------------------


def test_no_job_starts_between_halt_and_resume(call: Run, shop: Shop) -> None:
    outcome = call("halt", "--reason", "deploy", "--actor", "ann")
    assert outcome.code == 0
    assert outcome.out.startswith("halted: no worker starts jobs, new jobs are stored for later")
    assert outcome.err == "to end it: mainspring resume\n"
    job_id = shop.enqueue()
    shop.work()
    assert shop.status(job_id) is Status.PENDING
    assert call("resume").out == "the system is resumed\n"
    shop.work()
    assert shop.status(job_id) is Status.COMPLETED


def test_a_halt_can_reject_new_jobs(call: Run, shop: Shop) -> None:
    data = call("halt", "--reject-new", "--reason", "deploy", "--actor", "ann", "--json").data["halted"][0]
    assert (data["actor"], data["reason"], data["accept"], data["queue"]) == ("ann", "deploy", False, None)
    with pytest.raises(SystemHalted):
        shop.enqueue()


def test_halt_for_a_while(call: Run, shop: Shop) -> None:
    outcome = call("halt", "--for", "2h")
    assert "(in 2 h), or: mainspring resume" in outcome.err
    (halt,) = shop.app.run(shop.app.halts())
    assert halt.until is not None
    assert timedelta(hours=1) < halt.until - shop.app.now() <= timedelta(hours=2)
    assert call("halt", "--until", "2100-01-01").code == 0
    assert shop.app.run(shop.app.halts())[0].until == datetime(2100, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("argv", [["halt"], ["pause", "mail"]])
def test_a_halt_ends_once(argv: list[str], call: Run) -> None:
    assert call(*argv, "--for", "1h", "--until", "2100-01-01").code == 2
    assert call(*argv, "--until", "someday").code == 2


def test_pause_and_resume_a_queue(call: Run, shop: Shop) -> None:
    shop.enqueue_later(queue="mail")
    outcome = call("pause", "mail", "--reason", "provider is down")
    assert outcome.out == "queue mail paused: no worker starts its jobs\n"
    assert outcome.err == "to end it: mainspring resume mail\n"
    mail, other = shop.enqueue(), shop.enqueue(queue="other")
    shop.work()
    assert (shop.status(mail), shop.status(other)) == (Status.PENDING, Status.COMPLETED)
    outcome = call("resume")
    assert (outcome.code, outcome.out, outcome.err) == (
        0,
        "the system was not halted\n",
        "queue mail is still paused\n",
    )
    assert call("resume", "mail").out == "queue mail is resumed\n"


def test_to_resume_what_runs_is_no_failure(call: Run) -> None:
    assert call("resume", "mail").out == "queue mail was not paused\n"
    assert call("resume", "--json").data == {"resumed": False, "halted": []}


def test_a_pause_needs_a_queue(call: Run, shop: Shop) -> None:
    assert call("pause").code == 2
    for argv in (["pause", ""], ["pause", "", "--force"], ["pause", "*"], ["resume", ""], ["resume", "*"]):
        outcome = call(*argv)
        assert (outcome.code, "is not a name for a queue" in outcome.err) == (2, True)
    assert shop.app.run(shop.app.halts()) == []


def test_to_resume_an_empty_name_does_not_end_the_halt(call: Run, shop: Shop) -> None:
    call("halt")
    assert call("resume", "").code == 2
    assert [halt.queue for halt in shop.app.run(shop.app.halts())] == [None]


def test_the_command_that_ends_a_pause_can_be_copied(call: Run) -> None:
    assert call("pause", "bulk mail", "--force").err == "to end it: mainspring resume 'bulk mail'\n"
    assert call("resume", "bulk mail").out == "queue bulk mail is resumed\n"


def test_pausing_an_unknown_queue_is_refused(call: Run, run: Run, shop: Shop) -> None:
    shop.enqueue(queue="mail")
    outcome = call("pause", "mial")
    assert (outcome.code, shop.app.run(shop.app.halts())) == (2, [])
    assert "queue 'mial' has no job, worker or task here; known are: mail. Pause it with --force" in outcome.err
    assert call("pause", "mial", "--force").code == 0
    assert call("pause", "mial").code == 0  # now it is known
    shop.path.with_name("nights.py").write_text(NIGHTLY_ONLY)
    assert run("pause", "default", "--app", "nights:app").code == 0  # of a task


@pytest.mark.parametrize("end", [["--until", "2020-01-01"], ["--for", "0"]])
@pytest.mark.parametrize("argv", [["halt"], ["pause", "mail", "--force"]])
def test_what_would_be_over_at_once_is_refused(argv: list[str], end: list[str], call: Run, shop: Shop) -> None:
    outcome = call(*argv, *end)
    assert (outcome.code, "until is in the past" in outcome.err) == (2, True)
    assert shop.app.run(shop.app.halts()) == []


# -- stats ----------------------------------------------------------------------------------------


def test_stats_count_jobs_per_queue(call: Run, shop: Shop) -> None:
    shop.bury()
    shop.enqueue()
    shop.enqueue_later()
    outcome = call("stats")
    header, default, mail, total = outcome.out.splitlines()[:4]
    assert header.split() == ["QUEUE", "DUE", "WAITING", "PENDING", "RUNNING", "COMPLETED", "DEAD"]
    assert default.split() == ["default", "0", "1", "0", "0", "0"]
    assert mail.split()[0] == "mail"
    assert total.split() == ["total", "1", "2", "0", "0", "1"]
    assert "no workers" in outcome.err
    data = call("stats", "--json").data
    assert {row["queue"]: row["pending"] for row in data["queues"]} == {"default": 1, "mail": 1}
    assert (data["workers"], data["halts"], data["measures"]) == ([], [], {})


def test_stats_say_that_there_are_no_jobs(call: Run) -> None:
    outcome = call("stats")
    assert outcome.code == 0
    assert "no jobs yet" in outcome.err


def test_numbers_over_time_by_task(call: Run, shop: Shop) -> None:
    shop.bury()
    shop.enqueue()
    shop.enqueue_later()
    lines = [line.split() for line in call("stats", "--since", "24h", "--by", "task").out.splitlines()]
    assert lines[0][:7] == ["TASK", "ENQUEUED", "STARTED", "COMPLETED", "FAILED", "RETRIED", "DEAD"]
    assert lines[0][-2:] == ["PER", "SECOND"]
    assert [line[:7] + line[-1:] for line in lines[1:]] == [
        ["nightly", "1", "0", "0", "0", "0", "0", "0"],
        ["welcome", "2", "1", "0", "1", "0", "1", "0"],
        ["total", "3", "1", "0", "1", "0", "1", "0"],
    ]


@pytest.mark.parametrize(("per_second", "shown"), [(0.0, "0"), (0.00349, "0.0035"), (2.5, "2.5"), (1234.5, "1,234")])
def test_rates_have_two_digits_or_no_fraction(per_second: float, shown: str) -> None:
    cell = rate(per_second)
    assert isinstance(cell, Styled)
    assert cell.text == shown


def test_today_begins_at_midnight_of_the_time_zone(call: Run, shop: Shop) -> None:
    shop.enqueue()
    for zone in ("UTC", "Pacific/Kiritimati", "America/Los_Angeles"):
        data = call("stats", "--since", "today", "--tz", zone, "--step", "day", "--json").data
        assert (len(data["series"]), data["total"]["enqueued"]) == (1, 1)
        begin = datetime.fromisoformat(data["total"]["start"]).astimezone(ZoneInfo(zone))
        assert (begin.hour, begin.minute) == (0, 0)


def test_numbers_over_time_as_json(call: Run, shop: Shop) -> None:
    shop.enqueue()
    data = call("stats", "--since", "3d", "--step", "day", "--queue", "mail", "--tz", "Europe/Berlin", "--json").data
    assert (data["step"], data["zone"], len(data["series"])) == ("day", "Europe/Berlin", 4)
    assert [tally["enqueued"] for tally in data["series"]] == [0, 0, 0, 1]
    assert (data["total"]["enqueued"], data["total"]["failure_rate"]) == (1, 0.0)
    assert data["total"]["wait"]["p95"] is None


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["--by", "task"], "--by needs --since; write for example --since 24h"),
        (["--since", "1h", "--watch"], "leave out --watch or --since"),
        (["--since", "10d", "--step", "minute"], "minutes are kept for"),
        (["--since", "1h", "--tz", "Mars/Olympus"], "Mars/Olympus"),
    ],
)
def test_options_of_numbers_that_do_not_fit(call: Run, given: list[str], complaint: str) -> None:
    outcome = call("stats", *given)
    assert outcome.code == 2
    assert complaint in outcome.err


def test_halts_are_on_top(call: Run) -> None:
    call("pause", "mail", "--force", "--reason", "provider is down", "--actor", "ann", "--for", "2h")
    call("halt", "--reject-new", "--actor", "bob")
    lines = call("stats").out.splitlines()
    assert lines[0] == "the whole system is halted, new jobs are rejected since now, by bob"
    assert lines[1].startswith("queue mail is paused since ")
    assert lines[1].endswith("by ann: provider is down")


def shown(stats: Stats) -> str:
    out = io.StringIO()
    say_stats(Terminal(out=out, err=out), stats, NOW)
    return out.getvalue()


def make_stats(**fields: Any) -> Stats:
    return Stats(**{"queues": [], "due": {}, "oldest_due": {}, "workers": [], "halts": [], **fields})


def test_stats_name_due_tasks_that_no_live_worker_knows(call: Run, shop: Shop) -> None:
    shop.app.run(shop.app.store.join(WorkerInfo("vm-1", "vm", 77, ("*",), tasks=("nightly",)), lambda _: None))
    shop.enqueue()
    shop.nightly.enqueue_sync(day="monday")
    assert "no live worker of queue mail knows task welcome: 1 due, the oldest " in call("stats").out
    data = call("stats", "--json").data
    assert [(task["task"], task["queue"], task["due"]) for task in data["unknown_tasks"]] == [("welcome", "mail", 1)]
    assert {task["task"] for task in data["due_tasks"]} == {"welcome", "nightly"}


def test_a_status_gets_a_column_when_it_occurs() -> None:
    text = shown(make_stats(queues=[Counts("mail", {Status.RETRYING: 1234, Status.SUSPENDED: 1})], estimated=True))
    assert "RETRYING  SUSPENDED" in text
    assert "CANCELLED" not in text
    assert "1,234" in text
    assert "estimates" in text


def test_what_is_due_beyond_the_cap_is_not_counted() -> None:
    oldest = {"mail": NOW - timedelta(minutes=3)}
    text = shown(
        make_stats(queues=[Counts("mail", {Status.PENDING: 50_000})], due={"mail": DUE_CAP}, oldest_due=oldest)
    )
    assert "10,000+    3 min" in text


def test_stuck_slots_are_shown_if_there_are_any() -> None:
    workers = [WorkerInfo("vm-1", "vm", 7, ("*",), 4, stuck=3), WorkerInfo("vm-2", "vm", 8, ("*",), 4)]
    header, first, second = shown(make_stats(workers=workers)).splitlines()[-3:]
    column = header.split().index("STUCK") - len(header.split())
    assert (first.split()[column], second.split()[column]) == ("3", "0")
    assert "STUCK" not in shown(make_stats(workers=workers[1:]))


def test_stats_list_live_and_dead_workers() -> None:
    worker = WorkerInfo("vm-1", "vm", 77, ("mail", "default"), 50, started_at=NOW - timedelta(hours=2), seen_at=NOW)
    gone = WorkerInfo("vm-2", "vm", 78, ("*",), alive=False)
    lines = [line.split() for line in shown(make_stats(workers=[worker, gone])).splitlines()]
    assert ["vm-1", "alive", "now", "2", "h", "77", "50", "mail,", "default"] in lines
    assert ["vm-2", "dead", "78", "1", "*"] in lines


def test_a_halt_that_ends_by_itself() -> None:
    halt = Halt("ann", "", NOW - timedelta(minutes=5), NOW + timedelta(hours=2))
    assert "halted since 5 min ago, until 2026-05-01 14:00:00 UTC (in 2 h), by ann" in shown(make_stats(halts=[halt]))


def test_watching_repeats_each_second_until_interrupted(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", nap)
    outcome = call("stats", "--watch")
    assert outcome.code == 130
    assert outcome.out.count("sqlite:///") == 3
    assert naps == [1.0, 1.0, 1.0]


# -- audit ----------------------------------------------------------------------------------------


def test_audit_lists_changes_by_hand_newest_first(call: Run, shop: Shop) -> None:
    assert call("audit").err == "nothing was changed by hand yet\n"
    shop.enqueue_later(queue="a")
    call("jobs", "cancel", "--queue", "a", "--all-matching", "--reason", "not needed", "--actor", "ann")
    call("pause", "mail", "--force", "--actor", "bob")
    header, pause, cancel = call("audit").out.splitlines()
    assert header.split() == ["AT,", "UTC", "ACTION", "JOBS", "ACTOR", "REASON", "DETAIL"]
    assert pause.split()[2:] == ["pause", "bob", "queue=mail,", "accept=True"]
    assert cancel.split()[2:] == ["cancel", "1", "ann", "not", "needed", "filter.queues=a"]
    entries = call("audit", "--json", "--limit", "1").data["entries"]
    assert [(entry["action"], entry["detail"]["queue"]) for entry in entries] == [("pause", "mail")]
    assert call("audit", "--limit", "none").code == 2


def test_audit_shows_the_changes_of_one_operation(call: Run, shop: Shop) -> None:
    first, second = shop.enqueue_later(queue="a"), shop.enqueue_later(queue="b")
    for job_id in (first, second):
        call("jobs", "cancel", job_id, "--actor", "ann")
    newest, oldest = call("audit", "--json").data["entries"]
    shown = call("audit", "--json", "--operation", oldest["operation"]).data["entries"]
    assert [entry["operation"] for entry in shown] == [oldest["operation"]]
    assert newest["operation"] != oldest["operation"]
    assert call("audit", "--operation", "none-such").err == "no entries match\n"


def test_dead_letters_by_duration_show_the_durations(call: Run, shop: Shop) -> None:
    shop.bury()
    assert "DURATION" in call("dead", "list", "--sort", "duration").out
    assert "DURATION" not in call("dead", "list").out
