"""What failed runs note for their groups."""

from __future__ import annotations

from dataclasses import replace

from mainspring.errors import Failure
from mainspring.job import Move, Outcome
from mainspring.stores.engine.ack import Conclusion, JobState, conclude
from mainspring.stores.engine.failures import MAX_RECOVERED, NOTES, note_of, notes, recovered_often
from tests.stores.engine.test_ack import JOB, NOW

BOOM = Failure("ValueError", "no guest 7", place="shop:find")


def ended(move: Move, failure: Failure | None = None, **job: object) -> tuple[JobState, Conclusion]:
    state = replace(JOB, **job)  # type: ignore[arg-type]
    return state, conclude(state, Outcome(state.id, state.token, move, failure=failure), NOW)


def test_failures_of_one_group_share_a_note() -> None:
    runs = [ended(Move.RETRY, BOOM, id=str(number), version=f"v{number % 2}") for number in range(5)]
    (write,) = notes(runs, NOW, {})
    note = note_of(write.data or "")
    assert (note.count, note.job_id, note.versions) == (5, "4", ("v0", "v1"))
    assert (write.key.collection, write.due_at, write.announced, write.recorded) == (NOTES, NOW, True, False)


def test_each_group_has_its_own_note() -> None:
    runs = [ended(Move.RETRY, BOOM), ended(Move.DEAD, Failure("OSError", "x"))]
    assert len({note_of(write.data or "").fingerprint for write in notes(runs, NOW, {})}) == 2


def test_runs_without_failures_leave_no_note() -> None:
    assert notes([ended(move) for move in (Move.DONE, Move.SNOOZE, Move.RELEASE, Move.CANCEL)], NOW, {}) == []


def test_a_success_after_a_failure_leaves_a_note() -> None:
    (write,) = notes([ended(Move.DONE, fingerprint="f")], NOW, {})
    note = note_of(write.data or "")
    assert (note.fingerprint, note.count, note.recovered) == ("f", 0, True)


def test_a_success_tells_all_groups_in_which_the_job_has_failed() -> None:
    runs = [ended(Move.DONE, id="1", fingerprint="b"), ended(Move.DONE, id="2", fingerprint="c")]
    told = [note_of(write.data or "") for write in notes(runs, NOW, {"1": ["b", "a", "b"]})]
    assert [(note.fingerprint, note.job_id, note.recovered) for note in told] == [
        ("b", "1", True), ("a", "1", True), ("c", "2", True),
    ]  # fmt: skip


def test_a_success_tells_the_last_groups_of_a_job_that_has_failed_in_very_many() -> None:
    past = [str(number) for number in range(200)]
    writes = notes([ended(Move.DONE, fingerprint="0")], NOW, {JOB.id: past})
    assert [note_of(write.data or "").fingerprint for write in writes] == past[:MAX_RECOVERED]


def test_the_history_is_read_only_of_successes_after_two_runs_or_more() -> None:
    runs = [
        ended(Move.DONE, id="never failed", token=9),
        ended(Move.DONE, id="failed once", token=2, fingerprint="a"),
        ended(Move.DONE, id="may have failed twice", token=3, fingerprint="a"),
        ended(Move.RETRY, BOOM, id="fails again", token=3, fingerprint="a"),
    ]
    assert recovered_often(runs) == ["may have failed twice"]


def test_long_messages_are_cut() -> None:
    (write,) = notes([ended(Move.RETRY, Failure("ValueError", "m" * 10**6))], NOW, {})
    assert len(write.data or "") < 1000
