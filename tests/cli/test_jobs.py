from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mainspring import Breaker, Context, Fair
from mainspring.cli.paging import next_page
from mainspring.job import ProgressReport, Status
from mainspring.json_data import plain
from mainspring.stores.protocol import Want
from tests.cli.conftest import NIGHTLY_ONLY, Outcome, Run, Shop

pytestmark = pytest.mark.slow


@pytest.fixture
def jobs(run: Run, shop: Shop) -> Run:
    def call(command: str, *argv: str) -> Outcome:
        return run("jobs", command, *argv, "--store", shop.url)

    return call


def shown(outcome: Outcome) -> dict[str, str]:
    """The fields of a job's page."""
    lines = outcome.out.split("\n\n")[0].splitlines()[1:]
    return {name.strip(): value.strip() for name, _, value in (line.strip().partition("  ") for line in lines)}


def ids(outcome: Outcome) -> list[str]:
    return [job["id"] for job in outcome.data["jobs"]]


# -- list -----------------------------------------------------------------------------------------


def test_a_list_is_a_table(jobs: Run, shop: Shop) -> None:
    later, dead = shop.enqueue_later(), shop.bury()
    header, *rows = jobs("list").out.splitlines()
    assert header.split() == ["ID", "STATUS", "TASK", "WHEN", "QUEUE", "TRIES", "PAYLOAD", "NOTE"]
    assert rows[0].split()[:3] == [dead, "dead_letter", "welcome"]
    assert '1/1  {"guest": "bad"}' in rows[0]
    assert rows[0].endswith("LookupError: no such guest")
    assert rows[1].split()[:3] == [later, "pending", "nightly"]
    assert "in 3 d" in rows[1]


def test_what_waits_to_be_called_has_no_time_and_says_what_for(jobs: Run, shop: Shop) -> None:
    @shop.app.task(fair=Fair(key=lambda p: p.tenant, size=1))
    async def convert(tenant: str) -> None: ...

    _, second = [convert.enqueue_sync(tenant="t1").id for _ in range(2)]
    _, row, _ = jobs("list").out.splitlines()
    assert row.split()[:2] == [second, "suspended"]
    assert "  when woken  " in row
    assert row.endswith("waits for fair:convert=t1")
    assert "9999-12-" not in jobs("show", second).out


def test_why_it_waited_is_no_news_once_it_has_completed(jobs: Run, shop: Shop) -> None:
    shop.app.breakers.configure("mail", Breaker())
    shop.app.run(shop.app.breakers.open("mail"))
    job = shop.enqueue(breaker="mail")
    shop.work()
    assert "circuit breaker" in jobs("list").out
    shop.app.run(shop.app.breakers.close("mail"))
    shop.app.run(shop.app.jobs.reschedule(job))
    shop.work()
    assert shop.status(job) is Status.COMPLETED
    assert "circuit breaker" not in jobs("list").out + jobs("show", job).out


def test_an_empty_list_says_so_beside_the_result(jobs: Run) -> None:
    outcome = jobs("list")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "no jobs match\n")
    assert jobs("list", "--json").data == {"jobs": [], "cursor": None, "partial": False}


def test_list_is_sorted_as_asked(jobs: Run, shop: Shop) -> None:
    made = [shop.enqueue() for _ in range(3)]
    assert ids(jobs("list", "--json", "--sort", "due", "--ascending")) == made
    assert ids(jobs("list", "--json", "--sort", "finished")) == []
    assert "another filter or sort" in jobs("list", "--sort", "due", "--cursor", first_cursor(jobs)).err


def test_a_list_by_duration_shows_the_durations(jobs: Run, shop: Shop) -> None:
    shop.enqueue()
    shop.work()
    header, row = jobs("list", "--sort", "duration").out.splitlines()
    assert header.split()[:5] == ["ID", "STATUS", "TASK", "WHEN", "DURATION"]
    assert row[header.index("DURATION") :].split()[1] in {"ms", "s"}
    assert "DURATION" not in jobs("list").out


def first_cursor(jobs: Run) -> str:
    cursor: str = jobs("list", "--json", "--limit", "1").data["cursor"]
    return cursor


def test_list_continues_after_the_cursor(jobs: Run, shop: Shop) -> None:
    made = [shop.enqueue() for _ in range(5)]
    first = jobs("list", "--json", "--limit", "3")
    assert ids(first) == made[:1:-1]
    second = jobs("list", "--json", "--limit", "3", "--cursor", first.data["cursor"])
    assert ids(second) == made[1::-1]
    assert second.data["cursor"] is None
    assert (
        f"more: mainspring jobs list --limit 3 --store {shop.url} --cursor {first.data['cursor']}"
        in jobs("list", "--limit", "3").err
    )


def test_the_next_page_replaces_the_cursor() -> None:
    assert (
        next_page(["jobs", "list", "--cursor", "a", "--tag", "x y"], "b")
        == "mainspring jobs list --tag 'x y' --cursor b"
    )
    assert next_page(["jobs", "list", "--cursor=a"], "b") == "mainspring jobs list --cursor b"


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["--status", "pending"], {"wanted", "later"}),
        (["--status", "retrying,pending"], {"wanted", "later"}),
        (["--status", "retrying", "--status", "pending"], {"wanted", "later"}),
        (["--queue", "here"], {"wanted"}),
        (["--queue", "elsewhere,here"], {"wanted", "later"}),
        (["--task", "welcome"], {"wanted", "dead"}),
        (["--tag", "vip"], {"wanted", "dead"}),
        (["--tag", "vip,early"], {"wanted"}),
        (["--tag", "vip", "--tag", "early"], {"wanted"}),
        (["--target", "guest:g7"], {"wanted"}),
        (["--target", "guest"], {"wanted", "dead"}),
        (["--dedupe-key", "k1"], {"wanted"}),
        (["--payload", "guest=wanted"], {"wanted"}),
        (["--payload", "number=7"], {"wanted"}),
        (["--payload", "guest=wanted", "--payload", "number=7"], {"wanted"}),
        (["--payload", "guest=wanted", "--payload", "number=8"], set()),
        (["--payload", 'number="7"'], set()),
        (["--payload", "guest=" + 100_000 * "["], set()),
        (["--due-before", "1h", "--status", "pending"], {"wanted"}),
        (["--due-before", "2100-01-01"], {"wanted", "later", "dead"}),
        (["--error-type", "LookupError"], {"dead"}),
        (["--error-type", "ValueError"], set()),
        (["--worker", "nobody"], set()),
        (["--since", "1h"], {"wanted", "later", "dead"}),
        (["--since", "2100-01-01"], set()),
        (["--until", "1h"], set()),
        (["--until", "2100-01-01"], {"wanted", "later", "dead"}),
    ],
)
def test_each_filter_finds_the_jobs_that_fit(filters: list[str], found: set[str], jobs: Run, shop: Shop) -> None:
    dead = shop.bury(tags=["vip"], target=("guest", "g8"))
    later = shop.enqueue_later(tags=["other"], target=("room", "g7"), queue="elsewhere")
    chosen = shop.welcome.using(queue="here", tags=["vip", "early"], target=("guest", "g7"), dedupe_key="k1")
    names = {chosen.enqueue_sync(guest="wanted", number=7).id: "wanted", later: "later", dead: "dead"}
    assert {names[job_id] for job_id in ids(jobs("list", "--json", *filters))} == found


def test_list_finds_the_jobs_of_a_worker(jobs: Run, shop: Shop) -> None:
    dead = shop.bury()
    worker = shop.app.run(shop.app.jobs.get(dead)).worker or ""
    shop.enqueue_later()
    assert ids(jobs("list", "--json", "--worker", worker)) == [dead]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--status", "lost"], "'lost' is not a status; use any of pending, running"),
        (["--since", "yesterday"], "'yesterday' is not a time"),
        (["--payload", "guest"], "write key=value"),
        (["--payload", "guest=Ada", "--payload", "guest=Bob"], "two conditions on 'guest'"),
        (["--target", ":7"], "write type:id"),
        (["--limit", "0"], "'0' is not a whole number of at least 1"),
        (["--limit", "5000"], "go from page to page with --cursor"),
        (["--limit", "many"], "'many' is not a whole number"),
        (["--cursor", "page-2"], "'page-2' is not a cursor"),
    ],
)
def test_bad_values_are_wrong_usage(argv: list[str], told: str, jobs: Run) -> None:
    outcome = jobs("list", *argv)
    assert outcome.code == 2
    assert told in outcome.err


def test_an_error_message_stays_on_its_line(jobs: Run, shop: Shop) -> None:
    job_id = shop.enqueue_later()
    jobs("cancel", job_id, "--reason", "first\nsecond \x1b[31mred")
    assert len(jobs("list").out.splitlines()) == 2
    assert "\x1b" not in jobs("show", job_id).out


# -- show -----------------------------------------------------------------------------------------


def test_show_prints_all_fields_of_a_job(jobs: Run, shop: Shop) -> None:
    job_id = shop.bury(target=("guest", "g7"), tags=["vip"], dedupe_key="k1", timeout=30)
    outcome = jobs("show", job_id)
    assert outcome.code == 0
    for text in (
        f"welcome  dead_letter  {job_id}", "guest:g7", "vip", "k1", "30 s", "1 of 1", '"guest": "bad"', "Attempts",
        "Timeline", "Last traceback", "LookupError: no such guest", "Traceback (most recent call last):",
    ):  # fmt: skip
        assert text in outcome.out
    assert f"mainspring dead retry {job_id}" in outcome.err


def test_show_of_a_completed_and_a_waiting_job(jobs: Run, shop: Shop) -> None:
    done = shop.enqueue()
    shop.work()
    assert '"sent": "ann"' in jobs("show", done).out
    waiting = shop.enqueue_later()
    outcome = jobs("show", waiting)
    assert "(in 3 d)" in outcome.out
    assert f"mainspring jobs reschedule {waiting} --at now" in outcome.err


def test_show_draws_the_progress_of_a_running_job(jobs: Run, shop: Shop) -> None:
    job_id = shop.enqueue()
    token = claim(shop)
    shop.app.run(shop.app.store.report([ProgressReport(job_id, token, 0.5, "half\x1b[2J way")]))
    assert f"progress  {'━' * 14}{'─' * 14} 50% half [2J way" in jobs("show", job_id).out
    assert "50% half [2J way" in jobs("list").out


def test_show_says_when_a_job_was_updated_and_reaches_its_timeout(jobs: Run, shop: Shop) -> None:
    job_id = shop.enqueue(timeout=60)
    claim(shop)
    job = shop.app.run(shop.app.jobs.get(job_id))
    assert job.started_at is not None
    assert job.timeout_at == job.started_at + timedelta(seconds=60)
    data = jobs("show", job_id, "--json").data["job"]
    assert (data["timeout_at"], data["updated_at"]) == (plain(job.timeout_at), plain(job.updated_at))
    assert {"timeout at", "updated"} <= shown(jobs("show", job_id)).keys()


def test_show_as_json_has_the_job_and_its_history(jobs: Run, shop: Shop) -> None:
    job_id = shop.bury()
    data = jobs("show", job_id, "--json").data
    assert data["job"]["id"] == job_id
    assert data["attempts"][0]["failure"]["type"] == "LookupError"
    assert data["timeline"][0]["what"] == "created"


def test_show_says_by_when_a_job_must_have_started(jobs: Run, shop: Shop) -> None:
    at = datetime(2100, 1, 1, tzinfo=UTC)
    fixed, counted = shop.enqueue(expires=at), shop.enqueue_later(2, expires=86_400)
    told = shown(jobs("show", fixed))["expires"]
    assert told.startswith("2100-01-01 00:00:00 UTC (in ")
    assert told.endswith("), if it has not started by then")
    assert jobs("show", fixed, "--json").data["job"]["start_by"] == "2100-01-01T00:00:00.000Z"
    told = jobs("show", counted, "--json").data["job"]
    due, end = (datetime.fromisoformat(told[name]) for name in ("run_at", "start_by"))
    assert end - due == timedelta(days=1)
    shop.app.run(shop.app.jobs.reschedule(counted, delay=timedelta(days=5)))
    assert shown(jobs("show", counted))["expires"] == "not any more: it has been retried, or changed by hand"


def test_show_names_the_jobs_that_come_before(jobs: Run, shop: Shop) -> None:
    before = [shop.enqueue_later() for _ in range(5)]
    after = shop.enqueue(after=before[:2], on_failed="run", expires=60)
    fields = shown(jobs("show", after))
    assert fields["after"] == f"{before[0]}, {before[1]}; runs even if one fails"
    assert fields["expires"] == "1 min after it may start, if it has not started by then"
    told = jobs("show", after, "--json").data["job"]
    assert told["after"] == {"jobs": before[:2], "on_failed": "run"}
    assert told["start_by"] is None
    assert shown(jobs("show", shop.enqueue(after=before)))["after"] == f"{', '.join(before[:3])} and 2 more"
    assert not shown(jobs("show", before[0])).keys() & {"expires", "after"}


def test_show_what_is_not_there(jobs: Run) -> None:
    outcome = jobs("show", "nope")
    assert (outcome.code, outcome.out) == (3, "")
    assert outcome.err == "mainspring: there is no job nope; it may have been removed by retention\n"
    assert jobs("show", "nope", "--json").error["type"] == "JobNotFound"


# -- cancel, retry, delete ------------------------------------------------------------------------


def test_cancel_by_id_ends_the_jobs_and_is_audited(jobs: Run, shop: Shop) -> None:
    first, second = shop.enqueue_later(), shop.enqueue_later()
    outcome = jobs("cancel", first, second, "--reason", "not needed", "--actor", "ann")
    assert outcome.code == 0
    assert outcome.out == f"{first} cancelled\n{second} cancelled\n"
    assert shop.status(first) is shop.status(second) is Status.CANCELLED
    assert shop.app.run(shop.app.jobs.get(first)).reason == "not needed"
    assert shop.app.run(shop.app.audit())[0].actor == "ann"


def test_retry_by_id_makes_the_job_pending(jobs: Run, shop: Shop) -> None:
    dead = shop.bury()
    assert jobs("retry", dead).out == f"{dead} retried\n"
    assert shop.status(dead) is Status.PENDING


def test_replay_runs_a_finished_job_once_more(jobs: Run, shop: Shop) -> None:
    done = shop.enqueue("ann")
    shop.work()
    said = jobs("replay", done[:30], "--reason", "lost", "--actor", "ann").out
    new_id = said.partition(" ")[0]
    assert said == f"{new_id} replays {done}\n"
    assert shop.status(new_id) is Status.PENDING
    assert shop.app.run(shop.app.audit())[0].reason == "lost"
    edited = jobs("replay", done, "--payload", '{"guest": "bob"}', "--json").data["job"]
    assert (edited["payload"], edited["replay_of"]) == ({"guest": "bob"}, done)
    assert jobs("replay", done, "--from-step", "render").code != 0
    assert jobs("replay", new_id).code != 0  # it has not run yet


def test_delete_by_id_removes_the_job(jobs: Run, shop: Shop) -> None:
    job_id = shop.enqueue_later()
    assert jobs("delete", job_id).code == 0
    assert jobs("show", job_id).code == 3


def test_what_is_not_allowed_fails(jobs: Run, shop: Shop) -> None:
    done = shop.enqueue()
    shop.work()
    outcome = jobs("cancel", done)
    assert outcome.code == 1
    assert f"job {done} is completed" in outcome.err


def test_one_that_fails_does_not_keep_the_others(jobs: Run, shop: Shop) -> None:
    done = shop.enqueue()
    shop.work()
    waiting = shop.enqueue_later()
    outcome = jobs("cancel", done, "nope", waiting, "--json")
    assert outcome.code == 3
    assert shop.status(waiting) is Status.CANCELLED
    data = outcome.data
    assert data["changed"] == 1
    assert [(error["id"], error["type"]) for error in data["errors"]] == [
        (done, "IllegalMove"),
        ("nope", "JobNotFound"),
    ]
    assert [json.loads(line)["type"] for line in outcome.err.splitlines()] == ["IllegalMove", "JobNotFound"]


def test_a_retry_beside_a_live_twin_is_refused(jobs: Run, shop: Shop) -> None:
    dead = shop.bury(dedupe_key="k1")
    live = shop.enqueue(dedupe_key="k1", delay=3600)
    outcome = jobs("retry", dead)
    assert outcome.code == 1
    assert f"{live} is live and holds its dedupe key" in outcome.err
    outcome = jobs("retry", "--all-matching", "--status", "dead_letter", "--json")
    assert outcome.code == 1
    assert outcome.data["conflicts"] == {dead: live}


def test_a_running_job_is_asked_to_stop(jobs: Run, shop: Shop) -> None:
    job_id = shop.enqueue()
    claim(shop)
    outcome = jobs("cancel", job_id)
    assert (outcome.code, outcome.out) == (0, f"{job_id} asked to stop; its worker ends it\n")
    assert "for " in jobs("list").out
    assert jobs("cancel", "--all-matching").out == "0 jobs cancelled\n1 job asked to stop; their workers end them\n"


def claim(shop: Shop) -> int:
    """As a worker does it; the token."""
    (job,) = shop.app.run(shop.app.store.claim("someone", [Want("mail", 1)])).jobs
    return job.token


# -- by filter ------------------------------------------------------------------------------------


def test_cancel_by_filter_leaves_other_jobs_alone(jobs: Run, shop: Shop) -> None:
    for _ in range(3):
        shop.enqueue_later(queue="a")
    other = shop.enqueue_later(queue="b")
    outcome = jobs("cancel", "--queue", "a", "--all-matching", "--yes")
    assert (outcome.code, outcome.out) == (0, "3 jobs cancelled\n")
    assert shop.count(statuses=(Status.CANCELLED,)) == 3
    assert shop.status(other) is Status.PENDING


def test_a_dry_run_only_counts(jobs: Run, shop: Shop) -> None:
    made = [shop.enqueue_later() for _ in range(3)]
    assert jobs("cancel", "--all-matching", "--dry-run").out == "3 jobs would be cancelled\n"
    assert jobs("delete", made[0], "--dry-run").out == "1 job would be deleted\n"
    data = jobs("cancel", "--all-matching", "--dry-run", "--json").data
    assert (data["dry_run"], data["changed"]) == (True, 3)
    assert shop.count(statuses=(Status.PENDING,)) == 3


def test_more_than_one_needs_consent(jobs: Run, shop: Shop) -> None:
    for _ in range(2):
        shop.enqueue_later()
    outcome = jobs("delete", "--all-matching")
    assert outcome.code == 2
    assert "this would delete 2 jobs; add --yes to do it" in outcome.err
    assert shop.count() == 2
    assert jobs("delete", "--all-matching", "-y").code == 0
    assert shop.count() == 0


def test_a_single_match_needs_no_consent(jobs: Run, shop: Shop) -> None:
    shop.enqueue_later()
    assert jobs("cancel", "--all-matching").out == "1 job cancelled\n"


def test_no_match_is_no_failure(jobs: Run) -> None:
    outcome = jobs("retry", "--all-matching", "--json")
    assert (outcome.code, outcome.data["changed"]) == (0, 0)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "name jobs by id, or choose them with filters and --all-matching"),
        (["--queue", "mail"], "--all-matching"),
        (["some-id", "--queue", "mail"], "give ids or filters, not both"),
        (["some-id", "--all-matching"], "give ids or filters, not both"),
    ],
)
@pytest.mark.parametrize("command", ["cancel", "retry", "delete"])
def test_the_choice_must_be_clear(command: str, argv: list[str], told: str, jobs: Run) -> None:
    outcome = jobs(command, *argv)
    assert outcome.code == 2
    assert told in outcome.err


def test_many_more_than_a_page(jobs: Run, shop: Shop) -> None:
    shop.nightly.using(delay=3600).enqueue_many_sync({"day": "monday"} for _ in range(2500))
    assert jobs("cancel", "--all-matching", "--yes").out == "2,500 jobs cancelled\n"
    assert len(shop.app.run(shop.app.audit())) == 1


# -- reschedule, edit -----------------------------------------------------------------------------


def test_reschedule_at_a_time(jobs: Run, shop: Shop) -> None:
    job_id = shop.enqueue_later()
    outcome = jobs("reschedule", job_id, "--at", "2100-01-01T09:30+01:00")
    assert outcome.code == 0
    assert "due 2100-01-01 08:30:00 UTC" in outcome.out
    assert shop.app.run(shop.app.jobs.get(job_id)).run_at == datetime(2100, 1, 1, 8, 30, tzinfo=UTC)


def test_reschedule_by_a_length(jobs: Run, shop: Shop) -> None:
    job_id = shop.enqueue_later()
    due = datetime.fromisoformat(jobs("reschedule", job_id, "--in", "2h", "--json").data["job"]["run_at"])
    assert abs(due - shop.app.now() - timedelta(hours=2)) < timedelta(minutes=1)


def test_a_job_rescheduled_to_now_runs(jobs: Run, shop: Shop) -> None:
    job_id = shop.enqueue_later()
    assert jobs("reschedule", job_id, "--at", "now").code == 0
    shop.work()
    assert shop.status(job_id) is Status.COMPLETED


@pytest.mark.parametrize("argv", [[], ["--at", "now", "--in", "1h"], ["--at", "soon"], ["--in", "soon"]])
def test_reschedule_needs_one_time(argv: list[str], jobs: Run, shop: Shop) -> None:
    assert jobs("reschedule", shop.enqueue_later(), *argv).code == 2


def test_what_cannot_be_rescheduled(jobs: Run, shop: Shop) -> None:
    assert jobs("reschedule", shop.bury(), "--at", "now").code == 1
    assert jobs("reschedule", "nope", "--at", "now").code == 3


def test_edit_changes_the_given_fields(jobs: Run, shop: Shop) -> None:
    job_id = shop.enqueue_later()
    edit = ["--payload", '{"day": "tuesday"}', "--priority", "urgent", "--queue", "fast", "--max-attempts", "9"]
    job = jobs("edit", job_id, *edit, "--json").data["job"]
    assert job["payload"] == {"day": "tuesday"}
    assert (job["priority"], job["queue"], job["max_attempts"]) == ("urgent", "fast", 9)
    moved = jobs("edit", job_id, "--queue", "fast")
    assert "urgent in queue fast" in moved.out
    assert moved.err == "no live worker takes from queue 'fast'\n"
    refused = jobs("edit", job_id, "--queue", "")
    assert (refused.code, "'' is not a name for a queue" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "say what to change"),
        (["--payload", "{"], "the payload is not JSON"),
        (["--payload", "[1]"], "must be a JSON object"),
        (["--priority", "extreme"], "invalid choice"),
        (["--max-attempts", "0"], "at least 1"),
    ],
)
def test_bad_edits_are_usage_errors(argv: list[str], told: str, jobs: Run, shop: Shop) -> None:
    outcome = jobs("edit", shop.enqueue_later(), *argv)
    assert outcome.code == 2
    assert told in outcome.err


def test_what_cannot_be_edited(jobs: Run, shop: Shop) -> None:
    assert jobs("edit", shop.bury(), "--queue", "x").code == 1
    assert jobs("edit", "nope", "--queue", "x").code == 3


def test_an_application_checks_the_payload(
    run: Run, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checking_app.py").write_text(NIGHTLY_ONLY)
    monkeypatch.syspath_prepend(str(tmp_path))
    job_id = shop.enqueue_later()
    outcome = run("jobs", "edit", job_id, "--payload", '{"day": 7}', "--app", "checking_app:app")
    assert outcome.code == 1
    assert "does not take this payload: day" in outcome.err


# -- why ------------------------------------------------------------------------------------------


def test_why_says_all_reasons_in_words_and_as_data(jobs: Run, shop: Shop) -> None:
    job = shop.enqueue()
    shop.app.run(shop.app.pause("mail", "wrong template", actor="ann"))
    said = jobs("why", job).out.splitlines()
    assert said[0].split() == ["welcome", "pending", job]
    assert "Its queue 'mail' is paused by ann since" in said[1]
    assert said[2] == "No worker is alive to take it from queue 'mail'."
    data = jobs("why", job, "--json").data
    assert data["job"]["id"] == job
    assert [reason["cause"] for reason in data["reasons"]] == ["paused", "no worker"]
    assert data["reasons"][0]["detail"] == {"actor": "ann", "reason": "wrong template"}
    assert data["reasons"][0]["since"].endswith("Z")


def test_why_of_no_job(jobs: Run) -> None:
    assert jobs("why", "0190b2c4-0000-7000-8000-000000000000").code == 3


# -- durable functions ------------------------------------------------------------------------------


def film(shop: Shop, broken: set[str]) -> str:
    """A job that fails in the midst of its steps; its id."""

    @shop.app.task(name="film", steps=["prepare", "render", "upload"], max_attempts=1)
    async def film(ctx: Context) -> None:
        for step in ("prepare", "render", "upload"):
            await ctx.step(step, render, step)

    async def render(step: str) -> str:
        if step in broken:
            raise RuntimeError(f"no {step}")
        return f"{step} done"

    job_id = film.enqueue_sync().id
    shop.work()
    return job_id


def test_show_has_the_steps(jobs: Run, shop: Shop) -> None:
    job_id = film(shop, {"render"})
    states = [(step["name"], step["state"]) for step in jobs("show", job_id, "--json").data["steps"]]
    assert states == [("prepare", "done"), ("render", "failed"), ("upload", "to come")]
    page = jobs("show", job_id).out
    assert "prepare  step  done" in page
    assert '"prepare done"' in page
    assert "upload   step  to come" in page


def test_a_retry_from_a_step(jobs: Run, shop: Shop) -> None:
    broken = {"upload"}
    job_id = film(shop, broken)
    broken.clear()
    assert jobs("retry", job_id, "--from-step", "render").out == f"{job_id} retried\n"
    assert [step.name for step in shop.app.run(shop.app.store.steps(job_id))] == ["prepare"]
    shop.work()
    assert shop.status(job_id) is Status.COMPLETED


def test_a_retry_from_the_step_that_failed(jobs: Run, shop: Shop) -> None:
    broken = {"upload"}
    job_id = film(shop, broken)
    broken.clear()
    assert jobs("retry", job_id, "--from-step", "upload").out == f"{job_id} retried\n"
    assert [step.name for step in shop.app.run(shop.app.store.steps(job_id))] == ["prepare", "render"]
    shop.work()
    assert shop.status(job_id) is Status.COMPLETED


def test_a_retry_from_a_step_that_is_not_there(jobs: Run, shop: Shop) -> None:
    job_id = film(shop, {"upload"})
    outcome = jobs("retry", job_id, "--from-step", "nonsense")
    assert (outcome.code, outcome.err) == (
        3, f"mainspring: job {job_id} has not done a step 'nonsense'; it has done: prepare, render, upload\n"
    )  # fmt: skip
    assert shop.status(job_id) is Status.DEAD_LETTER
    outcome = jobs("retry", "--all-matching", "--from-step", "render")
    assert (outcome.code, "needs the jobs' ids" in outcome.err) == (2, True)
