"""The checker must see what is wrong: each rule is shown a ledger that breaks it, and one that does not."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.ledger import Entry, Ledger, Pen

FINE = {"j": "completed"}


def ledger(*lines: str) -> Ledger:
    """`start j 1 w1` and so on, one moment apart."""
    return Ledger(
        Entry(kind, job_id, int(token), who, at)
        for at, (kind, job_id, token, who) in enumerate(line.split() for line in lines)
    )


def test_a_job_that_is_run_once_is_fine() -> None:
    found = ledger("ack j 0 e1", "start j 1 w1", "end j 1 w1", "done j 0 w1")
    assert found.problems(FINE) == []


def test_a_job_may_run_again_after_its_worker_was_killed() -> None:
    found = ledger(
        "ack j 0 e1", "start j 1 w1", "end j 1 w1", "kill - 0 w1", "start j 2 w2", "end j 2 w2", "done j 0 w2"
    )
    assert found.problems(FINE) == []
    assert [run.token for run in found.repeated("w1")] == [1]


def test_a_job_may_run_again_after_it_failed() -> None:
    found = ledger("ack j 0 e1", "start j 1 w1", "fail j 1 w1", "start j 2 w1", "end j 2 w1", "done j 0 w1")
    assert found.problems(FINE) == []


def test_a_lost_job_is_seen() -> None:
    found = ledger("ack j 0 e1", "start j 1 w1", "end j 1 w1")
    assert found.problems({}) == ["j was acknowledged and is missing"]
    assert found.problems({"j": "running"}) == ["j was acknowledged and is running"]
    assert found.problems({"j": "dead_letter"}) == ["j was acknowledged and is dead_letter"]


def test_an_overlap_is_seen() -> None:
    found = ledger("start j 1 w1", "start j 2 w2", "end j 1 w1", "end j 2 w2")
    assert found.problems(FINE) == ["j was run by w2 (2) while w1 (1) had it"]


def test_an_overlap_with_a_process_that_is_killed_later_is_seen() -> None:
    found = ledger("start j 1 w1", "start j 2 w2", "kill - 0 w1", "end j 2 w2")
    assert found.problems(FINE) == ["j was run by w2 (2) while w1 (1) had it"]


def test_a_repeat_of_what_a_living_worker_has_ended_is_seen() -> None:
    found = ledger("start j 1 w1", "end j 1 w1", "start j 2 w2", "end j 2 w2")
    assert found.problems(FINE) == ["j was run by w2 (2) while w1 (1) had it"]


def test_an_overlap_over_three_runs_is_seen() -> None:
    found = ledger("start j 1 w1", "start j 2 w2", "fail j 2 w2", "start j 3 w3", "end j 3 w3")
    assert found.problems(FINE) == ["j was run by w2 (2) while w1 (1) had it"]


def test_a_job_may_run_again_after_its_worker_was_stopped() -> None:
    found = ledger(
        "ack j 0 e1", "start j 1 w1", "stop - 0 w1", "start j 2 w2", "fail j 1 w1", "end j 2 w2", "done j 0 w2"
    )
    assert found.problems(FINE) == []


def test_a_zombie_may_start_late_what_it_had_claimed_and_not_complete_it() -> None:
    lines = "stop - 0 w1", "start j 2 w2", "start j 1 w1", "end j 1 w1", "end j 2 w2"
    found = ledger(*lines, "done j 0 w2")
    assert found.problems(FINE) == []
    assert [entry.token for entry in found.late] == [1]
    assert ledger(*lines, "done j 0 w1").problems(FINE) == ["j was completed by w1 while w2 had it"]
    assert ledger(*lines[1:], "done j 0 w2").problems(FINE) != []


def test_an_overlap_with_a_process_that_is_stopped_later_or_was_before_is_seen() -> None:
    found = ledger("start j 1 w1", "start j 2 w2", "stop - 0 w1", "end j 2 w2")
    assert found.problems(FINE) == ["j was run by w2 (2) while w1 (1) had it"]
    found = ledger("stop - 0 w1", "start j 1 w1", "start j 2 w2", "end j 2 w2")
    assert found.problems(FINE) == ["j was run by w2 (2) while w1 (1) had it"]


def test_a_zombie_that_completes_what_another_runs_is_seen() -> None:
    found = ledger("start j 1 w1", "stop - 0 w1", "start j 2 w2", "end j 1 w1", "done j 0 w1", "fail j 2 w2")
    assert found.problems(FINE) == ["j was completed by w1 while w2 had it"]


def test_a_token_that_goes_back_is_seen() -> None:
    found = ledger("start j 2 w1", "fail j 2 w1", "start j 1 w2", "end j 1 w2")
    assert found.problems(FINE) == ["j was run under token 2 and then under 1"]


def test_two_runs_of_one_claim_are_seen() -> None:
    found = ledger("start j 1 w1", "fail j 1 w1", "start j 1 w1", "end j 1 w1")
    assert "j was run under token 1 and then under 1" in found.problems(FINE)


def test_a_job_that_is_completed_twice_is_seen() -> None:
    found = ledger("start j 1 w1", "kill - 0 w1", "start j 2 w2", "done j 0 w2", "done j 0 w2")
    assert found.problems(FINE) == ["j was completed 2 times"]


def test_a_run_after_the_completion_is_seen() -> None:
    found = ledger("start j 1 w1", "end j 1 w1", "done j 0 w1", "kill - 0 w1", "start j 2 w2")
    assert found.problems(FINE) == ["j was run by w2 although it was completed"]


def test_a_torn_line_is_not_believed_and_hides_no_other(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    Pen(path, "e1").write("ack", "whole")
    with path.open("a") as torn:
        torn.write("\nack torn 0 e")
    Pen(path, "e2").write("ack", "after")
    assert Ledger.read(path).acknowledged == {"whole", "after"}


def test_a_ledger_that_was_never_written_is_empty(tmp_path: Path) -> None:
    assert Ledger.read(tmp_path / "ledger").entries == []
