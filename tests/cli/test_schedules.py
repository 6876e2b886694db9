"""`mainspring schedules …`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mainspring.cli.terminal import Terminal
from mainspring.features.schedules.firing import Became
from mainspring.features.schedules.rules import tzdata_version
from mainspring.stores.documents import Bundle
from mainspring.stores.protocol import Filter
from tests.cli.conftest import Outcome, Run, Shop

pytestmark = pytest.mark.slow

APP = """
from mainspring import Mainspring

app = Mainspring("sqlite:///shop.db")

@app.every("30 2 * * *", tz="Europe/Berlin")
async def nightly() -> None: ...

@app.task(queue="mail")
async def greet(name: str) -> None: ...
"""


@pytest.fixture
def schedules(run: Run, shop: Shop) -> Run:
    def call(command: str, *argv: str) -> Outcome:
        return run("schedules", command, *argv, "--store", shop.url)

    return call


@pytest.fixture
def in_code(run: Run, shop: Shop, tmp_path: Path) -> Iterator[Run]:
    """With the application, whose code declares `nightly`."""
    (tmp_path / "schedule_shop.py").write_text(APP)

    def call(command: str, *argv: str) -> Outcome:
        sys.modules.pop("schedule_shop", None)
        return run("schedules", command, *argv, "--app", "schedule_shop:app")

    yield call
    sys.modules.pop("schedule_shop", None)


def put(shop: Shop, name: str = "a", when: str = "0 9 * * *", **policies: Any) -> None:
    policies.setdefault("tz", "Asia/Tokyo")
    shop.app.run(shop.app.schedules.put(name, when, shop.nightly.prepare(day="monday"), **policies))


def only_times(outcome: Outcome) -> list[str]:
    return [row["utc"] for row in outcome.data["coming"]]


# -- looking ----------------------------------------------------------------------------------------


def test_list_shows_state_rule_and_last_run(schedules: Run, shop: Shop) -> None:
    assert schedules("list").err == "no schedules\n"
    put(shop)
    put(shop, "b", "every 1h")
    shop.app.run(shop.app.schedules.pause("b", until=datetime(2100, 1, 1, tzinfo=UTC)))
    shop.app.run(shop.app.schedules.trigger("a"))
    header, first, second = schedules("list").out.splitlines()
    assert header.split("  ")[0] == "ID"
    assert "active" in first
    assert "at 09:00 every day" in first
    assert "Asia/Tokyo" in first
    assert "pending" in first
    assert "paused since" in second
    assert "until 2100-01-01" in second


def test_a_narrow_list_says_all(schedules: Run, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    put(shop, "reports.monthly-closing", "monthly last 17:00", tz="America/Argentina/Buenos_Aires")
    shop.app.run(shop.app.schedules.pause("reports.monthly-closing"))
    monkeypatch.setattr(Terminal, "width", 80)
    header, first, *beneath = schedules("list").out.splitlines()
    assert header.split() == ["ID", "STATE", "NEXT,", "UTC", "LAST"]
    assert first.split() == ["reports.monthly-closing", "paused"]
    assert beneath[0] == "  at 17:00 on the last day of every month, America/Argentina/Buenos_Aires time"
    assert beneath[1].startswith("  paused since ")
    monkeypatch.setattr(Terminal, "width", 40)
    lines = schedules("list").out.splitlines()
    assert max(map(len, lines)) <= 40
    assert "  month, America/Argentina/Buenos_Aires" in lines


def test_list_as_json_has_the_next_and_the_last_time(schedules: Run, shop: Shop) -> None:
    put(shop)
    shop.app.run(shop.app.schedules.trigger("a", actor="ana"))
    (schedule,) = schedules("list", "--json").data["schedules"]
    assert (schedule["id"], schedule["state"], schedule["job"]["task"], schedule["job"]["payload"]) == (
        "a",
        "active",
        "nightly",
        {"day": "monday"},
    )
    assert schedule["words"] == "at 09:00 every day (cron 0 9 * * *), Asia/Tokyo time"
    assert schedule["next"]["local"].endswith("T09:00:00+09:00")
    assert schedule["next"]["utc"].endswith("T00:00:00.000Z")
    assert (schedule["last"]["became"], schedule["last"]["why"], schedule["last_status"]) == (
        "triggered",
        "by ana",
        "pending",
    )


def test_list_tells_what_the_code_declares_and_no_worker_has_stored(in_code: Run, shop: Shop) -> None:
    put(shop)
    assert in_code("list").err == "declared in the code; stored when a worker starts: nightly\n"
    assert in_code("list", "--json").data["not_stored_yet"] == ["nightly"]


def test_show_prints_the_rule_coming_times_and_ledger(schedules: Run, shop: Shop) -> None:
    put(shop, misfire="skip", jitter="5m")
    shop.app.run(shop.app.schedules.trigger("a", actor="ana"))
    out = schedules("show", "a").out
    for text in (
        "a  active",
        "at 09:00 every day (cron 0 9 * * *), Asia/Tokyo time",
        "nightly, in queue default",
        "up to 5m",
    ):
        assert text in out
    for text in ("missed ones are skipped", "Coming times", "Ledger", "by ana", '"day": "monday"'):
        assert text in out
    data = schedules("show", "a", "--json").data
    assert len(data["coming"]) == 5
    assert data["schedule"]["schedule"]["jitter"] == "5m"
    assert [entry["became"] for entry in data["ledger"]] == ["triggered"]


@pytest.mark.parametrize("command", ["show", "preview", "diff", "pause", "resume", "trigger", "delete", "ledger"])
def test_what_is_not_there(command: str, schedules: Run) -> None:
    outcome = schedules(command, "nope", *(["--yes"] if command == "delete" else []))
    assert (outcome.code, "there is no schedule 'nope'" in outcome.err) == (3, True)


def test_ledger_lists_entries_of_a_time_range(schedules: Run, shop: Shop) -> None:
    put(shop)
    assert schedules("ledger", "a").err == "no entries yet\n"
    for actor in ("ana", "bob"):
        shop.app.run(shop.app.schedules.trigger("a", actor=actor))
    assert [entry["why"] for entry in schedules("ledger", "a", "--json").data["ledger"]] == ["by bob", "by ana"]
    assert [entry["why"] for entry in schedules("ledger", "a", "-n", "1", "--json").data["ledger"]] == ["by bob"]
    assert schedules("ledger", "a", "--until", "1d", "--json").data["ledger"] == []
    assert len(schedules("ledger", "a", "--since", "1d", "--json").data["ledger"]) == 2
    assert schedules("ledger", "a", "--since", "2100-01-01").err == "no entries in that time\n"
    assert schedules("delete", "a", "--yes").code == 0
    assert "by ana" in schedules("ledger", "a").out, "that of a deleted one can be read"


# -- trying out -------------------------------------------------------------------------------------


def test_a_rule_is_previewed_without_any_store(run: Run) -> None:
    argv = [
        "--rule",
        "30 2 * * *",
        "--tz",
        "Europe/Berlin",
        "--since",
        "2026-03-27",
        "-n",
        "4",
        "--reader",
        "Asia/Tokyo",
    ]
    words, header, *rows = run("schedules", "preview", *argv).out.splitlines()
    assert words == "at 02:30 every day (cron 30 2 * * *), Europe/Berlin time"
    assert header.split() == ["Europe/Berlin", "UTC", "Asia/Tokyo", "NOTE"]
    assert rows[0] == "Fri 2026-03-27 02:30  Fri 2026-03-27 01:30  Fri 2026-03-27 10:30"
    assert rows[2].startswith(
        "Sun 2026-03-29 03:30  Sun 2026-03-29 01:30  Sun 2026-03-29 10:30  DST: clocks go forward"
    )
    assert sum("DST" in row for row in rows) == 1
    coming = run("schedules", "preview", *argv, "--json").data["coming"]
    assert coming[2]["local"] == "2026-03-29T03:30:00+02:00"
    assert coming[2]["reader"] == "2026-03-29T10:30:00+09:00"
    assert len(coming[2]["notes"]) == 2


def test_a_stored_one_is_previewed_as_it_is_and_as_it_would_be(schedules: Run, shop: Shop) -> None:
    put(shop)
    after = ["--since", "2026-05-01T00:00", "-n", "1", "--json"]
    assert only_times(schedules("preview", "a", *after)) == ["2026-05-02T00:00:00.000Z"]
    assert only_times(schedules("preview", "a", "--tz", "UTC", *after)) == ["2026-05-01T09:00:00.000Z"]
    shop.app.run(shop.app.schedules.pause("a"))
    assert schedules("preview", "a").err == "it does not fire: it is paused until it is resumed\n"


def test_one_that_only_the_code_knows_is_previewed(in_code: Run) -> None:
    assert in_code("preview", "nightly").out.startswith("at 02:30 every day (cron 30 2 * * *), Europe/Berlin time\n")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "say when with --rule"),
        (["--rule", "sometimes"], "is not a schedule"),
        (["--rule", "@daily", "--tz", "Europe/Berln"], "did you mean Europe/Berlin"),
        (["--rule", "@daily", "--reader", "Mars"], "not an IANA time zone"),
        (["--rule", "@daily", "--grace", "soon"], "not a length of time"),
        (["--rule", "@daily", "--max-fires", "5"], "--max-fires needs --misfire all"),
        (["--rule", "@daily", "-n", "0"], "not a whole number of at least 1"),
    ],
)
def test_bad_input_is_refused(argv: list[str], said: str, run: Run) -> None:
    outcome = run("schedules", "preview", *argv)
    assert (outcome.code, said in outcome.err) == (2, True), outcome.err


@pytest.mark.slow
def fired_at_midnight_in_kiritimati(shop: Shop) -> date:
    """A schedule whose last local midnight was fired; it is 26 hours later in `Etc/GMT+12`. Returns its date there."""
    put(shop, "a", "0 0 * * *", tz="Pacific/Kiritimati")
    stored = shop.app.run(shop.app.schedules.get("a"))
    today = shop.app.now().astimezone(ZoneInfo("Pacific/Kiritimati")).replace(hour=0, minute=0, second=0, microsecond=0)
    last = stored.schedule.next_after(today - timedelta(seconds=1))
    shop.app.run(shop.app.store.write([Bundle((replace(stored, decided=last).derived().write(),))]))
    return today.date()


def test_what_was_fired_before_a_change_of_zone_is_announced_by_nothing(schedules: Run, shop: Shop) -> None:
    fired = fired_at_midnight_in_kiritimati(shop)
    tomorrow = f"{fired + timedelta(days=1)}T12:00:00.000Z"  # midnight there
    tz = ("--tz", "Etc/GMT+12")
    assert only_times(schedules("preview", "a", *tz, "--json"))[0] == tomorrow
    changes = schedules("diff", "a", *tz, "--json", "--days", "5").data["changes"]
    assert f"{fired}T12:00:00.000Z" not in [change["after"]["utc"] for change in changes if change["after"]]
    put_it = schedules("put", "a", *tz, "--yes")
    assert put_it.out.splitlines()[2].split()[1] == str(fired + timedelta(days=1))
    shown = schedules("show", "a", "--json").data
    assert (shown["schedule"]["next"]["utc"], shown["coming"][0]["utc"]) == (tomorrow, tomorrow)


def test_what_a_change_makes_due_is_announced_as_due_now(schedules: Run, shop: Shop) -> None:
    put(shop, "a", "0 0 * * *", tz="Etc/GMT+12")
    stored = shop.app.run(shop.app.schedules.get("a"))
    now = shop.app.now()
    last = stored.schedule.next_after(now - timedelta(days=1))
    shop.app.run(shop.app.store.write([Bundle((replace(stored, decided=last).derived().write(),))]))
    tz = ("--tz", "Pacific/Kiritimati")  # its next midnight was hours ago there
    assert only_times(schedules("preview", "a", *tz, "--json"))[0] < f"{now:%Y-%m-%dT%H:%M}"
    assert "(at once)" in schedules("diff", "a", *tz).out
    assert "due now: " in schedules("put", "a", *tz, "--yes").out.splitlines()[-1]
    assert "(due now, was due " in schedules("show", "a").out
    assert "(due)" in schedules("list").out


def test_what_is_too_late_to_be_caught_up_is_not_announced(schedules: Run, shop: Shop) -> None:
    now = shop.app.now()
    put(shop, "a", f"0 {(now.hour + 12) % 24} * * *", tz="UTC", misfire="skip")
    stored = shop.app.run(shop.app.schedules.get("a"))
    shop.app.run(shop.app.store.write([Bundle((replace(stored, since=now - timedelta(days=2)).derived().write(),))]))
    assert schedules("show", "a", "--json").data["schedule"]["next"]["utc"] > f"{now:%Y-%m-%dT%H:%M}"
    assert only_times(schedules("preview", "a", "--json"))[0] > f"{now:%Y-%m-%dT%H:%M}"


def test_diff_shows_times_that_a_change_moves(schedules: Run, shop: Shop) -> None:
    put(shop)
    out = schedules("diff", "a", "--tz", "Europe/Paris", "--days", "10", "-n", "3")
    assert out.out.startswith(
        "before: at 09:00 every day (cron 0 9 * * *), Asia/Tokyo time\n"
        "after:  at 09:00 every day (cron 0 9 * * *), Europe/Paris time\n"
    )
    assert "moved" in out.out
    assert "more; --limit shows more" in out.err
    data = schedules("diff", "a", "--rule", "0 10 * * *", "--days", "10", "--json").data
    assert (data["added"], data["removed"], data["moved"]) == (10, 10, 0)
    assert schedules("diff", "a", "--overlap", "skip").out.endswith("no time changes in the next 90 days\n")
    assert schedules("diff", "a").code == 2
    assert shop.app.run(shop.app.schedules.get("a")).schedule.tz == "Asia/Tokyo", "nothing is saved"


def test_diff_with_another_tzdata(schedules: Run, shop: Shop, tmp_path: Path) -> None:
    put(shop, tz="Africa/Lagos")
    newer = tmp_path / "zoneinfo"
    (newer / "Africa").mkdir(parents=True)
    shutil.copy(str(files("tzdata").joinpath("zoneinfo/Asia/Tokyo")), newer / "Africa/Lagos")
    (newer / "+VERSION").write_text("2099a\n")
    outcome = schedules("diff", "a", "--tzdata", str(newer), "--days", "5")
    assert f"(tzdata 2099a instead of {tzdata_version()})" in outcome.out
    assert " moved" in outcome.out
    assert schedules("diff", "a", "--tzdata", str(tmp_path / "nowhere")).code == 2


def test_diff_with_what_the_code_declares(in_code: Run, shop: Shop) -> None:
    put(shop, "nightly", "30 2 * * *")
    assert "in the next 90 days" in in_code("diff", "nightly").out


# -- changing ---------------------------------------------------------------------------------------


def test_put_shows_what_it_would_do_and_needs_consent(in_code: Run, shop: Shop) -> None:
    argv = [
        "put",
        "t7",
        "--rule",
        "0 9 * * *",
        "--tz",
        "Asia/Tokyo",
        "--task",
        "greet",
        "--payload",
        '{"name": "ana"}',
    ]
    outcome = in_code(*argv)
    assert (outcome.code, "this would create schedule 't7'; add --yes" in outcome.err) == (2, True)
    assert "at 09:00 every day (cron 0 9 * * *), Asia/Tokyo time" in outcome.out
    assert in_code("list", "--json").data["schedules"] == []
    outcome = in_code(*argv, "--yes", "--misfire", "all", "--max-fires", "7", "--overlap", "skip")
    assert (outcome.code, "t7 created: next at" in outcome.out) == (0, True), outcome.err
    stored = shop.app.run(shop.app.schedules.get("t7"))
    assert (stored.task, stored.job["queue"], stored.job["payload"]) == ("greet", "mail", '{"name":"ana"}')
    assert (stored.schedule.misfire.max_fires, stored.schedule.overlap) == (7, "skip")


def test_put_asks_on_a_terminal(in_code: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Terminal, "interactive", property(lambda _: True))
    monkeypatch.setattr(Terminal, "confirm", lambda *_: False)
    outcome = in_code("put", "t7", "--rule", "@daily", "--task", "greet", "--payload", '{"name": "ana"}')
    assert (outcome.code, outcome.err) == (1, "mainspring: nothing was changed\n")


def test_put_keeps_what_is_not_given(schedules: Run, shop: Shop) -> None:
    put(shop, misfire="skip")
    before = shop.app.run(shop.app.schedules.get("a"))
    data = schedules("put", "a", "--rule", "0 10 * * *", "--yes", "--json").data["schedule"]
    assert (data["schedule"]["tz"], data["schedule"]["misfire"]["mode"]) == ("Asia/Tokyo", "skip")
    after = shop.app.run(shop.app.schedules.get("a"))
    assert after.job == before.job
    assert "90 added, 90 removed" in schedules("put", "a", "--rule", "0 11 * * *", "--yes").out


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--task", "greet", "--payload", '{"name": "ana"}'], 2, "say when with --rule"),
        (["--rule", "@daily"], 2, "say what to run with --task"),
        (["--rule", "@daily", "--task", "gret"], 2, "no task is named 'gret' here; known are: greet"),
        (["--rule", "@daily", "--task", "greet"], 1, "name"),
        (["--rule", "@daily", "--task", "greet", "--payload", "[]"], 2, "must be a JSON object"),
    ],
)
def test_a_put_that_cannot_be(argv: list[str], code: int, said: str, in_code: Run) -> None:
    outcome = in_code("put", "t7", *argv, "--yes")
    assert (outcome.code, said in outcome.err) == (code, True), outcome.err


def test_a_new_one_needs_the_application(schedules: Run) -> None:
    outcome = schedules("put", "t7", "--rule", "@daily", "--task", "greet", "--yes")
    assert (outcome.code, "give --app module:attribute" in outcome.err) == (2, True)


def test_what_the_code_declares_is_changed_there(schedules: Run, in_code: Run, shop: Shop) -> None:
    shop.app.every("@daily", id="coded", args={"day": "monday"})(shop.nightly)
    shop.app.run(shop.app.schedules.reconcile())
    outcome = schedules("put", "coded", "--rule", "@hourly", "--yes")
    assert (outcome.code, "is declared in the code of" in outcome.err) == (2, True)
    outcome = schedules("delete", "coded", "--yes")
    assert (outcome.code, "it comes back" in outcome.err) == (0, True)


def test_a_paused_schedule_fires_again_when_resumed(schedules: Run, shop: Shop) -> None:
    put(shop)
    assert schedules("pause", "a").out == "a paused: it does not fire until it is resumed\n"
    assert schedules("list", "--json").data["schedules"][0]["state"] == "paused"
    assert schedules("resume", "a").out.startswith("a resumed: next at ")
    assert schedules("list", "--json").data["schedules"][0]["paused"] is None
    outcome = schedules("pause", "a", "--for", "3d", "--json")
    pause = outcome.data["schedule"]["paused"]
    length = datetime.fromisoformat(pause["until"]) - datetime.fromisoformat(pause["since"])
    assert abs(length - timedelta(days=3)) < timedelta(minutes=1)
    assert schedules("pause", "a", "--until", "2000-01-01").code == 2


def test_trigger_enqueues_a_job_unless_halted(schedules: Run, shop: Shop) -> None:
    put(shop)
    job = schedules("trigger", "a", "--actor", "ana", "--json").data["job"]
    assert shop.count(ids=(job["id"],)) == 1
    (entry,) = shop.app.run(shop.app.schedules.ledger("a"))
    assert (entry.became, entry.job_id, entry.why) == (Became.TRIGGERED, job["id"], "by ana")
    shop.app.run(shop.app.halt("moving", reject_new=True))
    outcome = schedules("trigger", "a")
    assert (outcome.code, "halted" in outcome.err) == (1, True)
    assert shop.app.run(shop.app.jobs.count(Filter())) == 1


def test_delete_asks_before_it_removes_a_schedule(schedules: Run, shop: Shop) -> None:
    put(shop)
    assert schedules("delete", "a").code == 2
    assert schedules("delete", "a", "--yes").out == "a deleted\n"
    assert schedules("list", "--json").data["schedules"] == []


def test_the_actor_is_in_the_audit_log(schedules: Run, in_code: Run, shop: Shop) -> None:
    by = ("--actor", "ana", "--reason", "ticket 42")
    task = ("--task", "greet", "--payload", '{"name": "Li"}')
    assert in_code("put", "t7", "--rule", "@daily", *task, "--yes", *by).code == 0
    for command in ("pause", "resume", "trigger"):
        assert schedules(command, "t7", *by).code == 0
    assert schedules("delete", "t7", "--yes", *by).code == 0
    entries = shop.app.run(shop.app.audit())
    assert [entry.action.partition(".")[2] for entry in reversed(entries)] == [
        "put",
        "pause",
        "resume",
        "trigger",
        "delete",
    ]
    assert {(entry.actor, entry.reason, entry.detail["schedule"]) for entry in entries} == {("ana", "ticket 42", "t7")}


# -- simulating -------------------------------------------------------------------------------------


def test_a_year_of_all_schedules(in_code: Run, shop: Shop) -> None:
    put(shop, "weekly", "0 9 * * MON")
    data = in_code("simulate", "--since", "2026-01-01", "--json").data
    nightly, weekly = data["schedules"]
    assert (nightly["id"], nightly["fires"], weekly["id"], weekly["fires"]) == ("nightly", 365, "weekly", 52)
    assert (nightly["first"], nightly["last"]) == ("2026-01-01T01:30:00.000Z", "2026-12-31T01:30:00.000Z")
    assert [remark["day"] for remark in nightly["remarks"]] == ["2026-03-29", "2026-10-25"]
    assert data["days"]["2026-01-05"] == 2
    assert sum(data["days"].values()) == 417
    assert in_code("list", "--json").data["schedules"][0]["fires"] == 0, "nothing was fired"


def test_a_year_on_paper(in_code: Run) -> None:
    out = in_code("simulate", "--since", "2026-01-01").out
    assert out.startswith("2026-01-01 00:00 to 2027-01-01 00:00 UTC, 365 fires\n")
    assert "02:30 does not exist that day, so it runs at 03:30" in out
    assert "Mon  " + "#" * 52 in out
    assert out.isascii()


def test_simulate_takes_only_the_given_schedules(schedules: Run, shop: Shop) -> None:
    for name in ("a", "b"):
        put(shop, name)
    data = schedules("simulate", "--id", "b", "--days", "3", "--json").data
    assert [(schedule["id"], schedule["fires"]) for schedule in data["schedules"]] == [("b", 3)]
    assert schedules("simulate", "--id", "nope").code == 3


def test_paused_and_disabled_ones_say_so(schedules: Run, shop: Shop) -> None:
    put(shop)
    shop.app.run(shop.app.schedules.pause("a"))
    outcome = schedules("simulate", "--days", "30")
    assert " 0 fires" in outcome.out
    assert "until it is resumed" in outcome.out
    assert schedules("simulate", "--days", "30", "--json").data["schedules"][0]["state"] == "paused"


@pytest.mark.slow
def test_too_many_to_simulate(schedules: Run, shop: Shop) -> None:
    put(shop, when="every 1s")
    outcome = schedules("simulate")
    assert (outcome.code, "simulate at most 5 days of it" in outcome.err) == (2, True), outcome.err


def test_without_a_database_the_code_can_be_simulated(in_code: Run, shop: Shop, tmp_path: Path) -> None:
    shop.app.run(shop.app.close())
    for file in tmp_path.glob("shop.db*"):
        file.unlink()
    assert in_code("simulate", "--days", "10", "--json").data["schedules"][0]["fires"] == 10
    assert not (tmp_path / "shop.db").exists()
