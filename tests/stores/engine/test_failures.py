"""What failed runs note for their groups."""

from __future__ import annotations

from dataclasses import replace

from mainspring.errors import Failure
from mainspring.job import Move, Outcome
from mainspring.stores.engine.ack import Conclusion, JobState, conclude
from mainspring.stores.engine.failures import NOTES, note_of, notes
from tests.stores.engine.test_ack import JOB, NOW

BOOM = Failure("ValueError", "no guest 7", place="shop:find")


def ended(move: Move, failure: Failure | None = None, **job: object) -> tuple[JobState, Conclusion]:
    state = replace(JOB, **job)  # type: ignore[arg-type]
    return state, conclude(state, Outcome(state.id, state.token, move, failure=failure), NOW)


def test_failures_of_one_group_share_a_note() -> None:
    runs = [ended(Move.RETRY, BOOM, id=str(number), version=f"v{number % 2}") for number in range(5)]
    (write,) = notes(runs, NOW)
    note = note_of(write.data or "")
    assert (note.count, note.job_id, note.versions) == (5, "4", ("v0", "v1"))
    assert (write.key.collection, write.due_at, write.announced, write.recorded) == (NOTES, NOW, True, False)


def test_each_group_has_its_own_note() -> None:
    runs = [ended(Move.RETRY, BOOM), ended(Move.DEAD, Failure("OSError", "x"))]
    assert len({note_of(write.data or "").fingerprint for write in notes(runs, NOW)}) == 2


def test_runs_without_failures_leave_no_note() -> None:
    assert notes([ended(move) for move in (Move.DONE, Move.SNOOZE, Move.RELEASE, Move.CANCEL)], NOW) == []


def test_a_success_after_a_failure_leaves_a_note() -> None:
    (write,) = notes([ended(Move.DONE, fingerprint="f")], NOW)
    note = note_of(write.data or "")
    assert (note.fingerprint, note.count, note.recovered) == ("f", 0, True)


def test_long_messages_are_cut() -> None:
    (write,) = notes([ended(Move.RETRY, Failure("ValueError", "m" * 10**6))], NOW)
    assert len(write.data or "") < 1000
