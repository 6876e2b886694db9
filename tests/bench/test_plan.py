from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bench import plan, roster
from bench.__main__ import parse, participants
from bench.field import FIELDS
from bench.measurements import MEASUREMENTS

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
COMMANDS = {found for page in PAGES for found in re.findall(r"python -m bench( --[^`\n]+)", page.read_text("utf-8"))}


@pytest.mark.parametrize("name", FIELDS)
def test_every_case_has_a_name_of_its_own_and_a_measurement(name: str) -> None:
    names = [case.name for case in FIELDS[name].plan]
    assert len(names) == len(set(names))
    assert {case.measurement for case in FIELDS[name].plan} <= set(MEASUREMENTS)


@pytest.mark.parametrize("name", FIELDS)
def test_every_peer_can_be_read_and_ours_opens_the_table(name: str) -> None:
    entries = roster.read(FIELDS[name].peers)
    assert entries[0].name == roster.OURS
    assert entries[-1].name == roster.FLOOR
    assert all("==" in pin or "@" in pin for entry in entries for pin in entry.versions)


def test_postgres_meets_the_peers_it_is_to_be_measured_with() -> None:
    names = {entry.name for entry in roster.read("postgres")} - {roster.OURS, roster.FLOOR}
    assert names == {"procrastinate", "pgqueuer", "chancy", "dbos", "saq", "awa", "graphile_worker", "pg_boss"}


def test_the_mixed_cases_are_played_by_us_by_pgqueuer_and_by_the_floor() -> None:
    entries = {entry.name: entry for entry in roster.read("postgres")}
    mixed = [case for case in plan.POSTGRES if case.name.startswith("drain-") and case.stock is not None]
    assert len(mixed) == 10
    for case in mixed:
        assert {name for name, entry in entries.items() if case.takes(entry)} == {"mainspring", "pgqueuer", "floor"}


def test_chunks_are_drained_by_us_and_by_pg_boss() -> None:
    case = next(case for case in plan.POSTGRES if case.name == "drain-chunks")
    entries = [entry for entry in roster.read("postgres") if case.takes(entry)]
    assert [entry.name for entry in entries] == ["mainspring", "pg_boss"]
    assert case.arguments_for(entries[0], quick=False)["jobs"] == entries[0].drain_jobs


def test_only_peers_that_a_case_measures_take_part() -> None:
    entries = roster.read(FIELDS["feed-sqlite"].peers)
    assert [entry.name for entry in participants(entries, plan.FEED, [])] == [roster.OURS]
    assert participants(entries, plan.FEED, ["huey"]) == []
    assert participants(entries, plan.SQLITE, []) == entries


def test_a_quick_run_still_has_more_due_than_it_drains() -> None:
    entry = roster.read("postgres")[0]
    for case in plan.POSTGRES:
        if case.measurement == "drain_backlog" and case.stock is not None:
            assert case.stock.jobs(quick=True)["due"] > case.arguments_for(entry, quick=True)["jobs"]


def test_cases_are_chosen_by_pattern() -> None:
    assert [case.name for case in plan.choose(plan.POSTGRES, ["drain-?", "idle"])] == ["drain-1", "drain-2", "idle"]
    assert plan.choose(plan.POSTGRES, []) == plan.POSTGRES
    assert plan.choose(plan.POSTGRES, ["nonsense"]) == []


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_commands_of_the_documentation_measure_something_in_each_field_they_name(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", *shlex.split(command)])
    options = parse()
    for name in options.field:
        cases = plan.choose(FIELDS[name].plan, options.only)
        assert participants(roster.read(FIELDS[name].peers), cases, options.peers)
