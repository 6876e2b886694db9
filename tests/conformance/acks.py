"""How runs end: what an ack writes, what history keeps of it, and that only the holder of the claim may write."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from mainspring.clock import to_datetime
from mainspring.errors import Failure, UnsupportedCall
from mainspring.job import Claim, Inserted, Move, Outcome, Progress, ProgressReport, Status
from mainspring.stores.documents import By
from mainspring.stores.protocol import Action, Filter, Store
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    StoreScenario,
    at,
    by_hand,
    claim,
    claim_one,
    end,
    found,
    look,
    new_job,
    outcome,
    put,
    put_many,
    running,
    status_of,
)

BOOM = Failure("ValueError", "boom", "Traceback …")
BANG = Failure("OSError", "bang", "Traceback …")
AWKWARD = Failure("KeyError", 'NULL, "quoted", {braces} and \\ more\n', '{"NULL"}\\')
DAY = 86_400_000
UNFINISHED = (Move.RETRY, Move.SNOOZE, Move.RELEASE, Move.SUSPEND, Move.CRASH)
Way = tuple[Move, dict[str, Any]]
WAYS: tuple[Way, ...] = (
    (Move.RETRY, {"delay": 60_000, "failure": BOOM}),
    (Move.DONE, {"result": '"sent"'}),
    (Move.SNOOZE, {"delay": 5_000, "reason": AWKWARD.message}),
    (Move.RETRY, {"failure": AWKWARD}),
    (Move.RELEASE, {}),
    (Move.DEAD, {"failure": AWKWARD, "reason": "NULL"}),
    (Move.SUSPEND, {"delay": 7_000, "waits_for": "a,key"}),
    (Move.CRASH, {"failure": BANG}),
    (Move.CANCEL, {"reason": "no use"}),
    (Move.SUSPEND, {"delay": 8_000, "blocked": True}),
    (Move.RETRY, {"delay": 1}),
)


def ended(held: Claim, way: Way) -> Outcome:
    move, fields = way
    return outcome(held, move, **fields)


class AckTests(StoreScenario):
    async def test_a_done_job_is_completed_with_its_result(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, keep=DAY)
        clock.advance(3)
        assert await end(store, held, Move.DONE, result='{"sent": true}') is Status.COMPLETED
        job = await look(store, held.id)
        assert job.finished
        assert (job.status, job.result, job.attempts, job.worker) == (Status.COMPLETED, {"sent": True}, 1, "w1")
        assert (job.finished_at, job.expires_at) == (at(clock), at(clock, DAY / 1000))
        assert job.started_at is not None

    async def test_a_null_result_is_none(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.DONE, result="null")
        assert (await look(store, held.id)).result is None

    async def test_a_retry_waits_for_its_delay_and_counts_an_attempt(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        clock.advance(5)
        assert await end(store, held, Move.RETRY, delay=60_000, failure=BOOM) is Status.RETRYING
        job = await look(store, held.id)
        assert (job.attempts, job.failure, job.run_at) == (1, BOOM, at(clock, 60))
        assert (job.finished_at, job.expires_at) == (None, None)

    async def test_a_dead_letter_keeps_its_failure_and_reason(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, keep_dead=2 * DAY)
        assert await end(store, held, Move.DEAD, failure=BOOM, reason="no such guest") is Status.DEAD_LETTER
        job = await look(store, held.id)
        assert (job.attempts, job.failure, job.reason) == (1, BOOM, "no such guest")
        assert (job.finished_at, job.expires_at) == (at(clock), at(clock, 2 * DAY / 1000))

    async def test_a_handler_can_cancel_its_job(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, keep=DAY)
        assert await end(store, held, Move.CANCEL, reason="checked out") is Status.CANCELLED
        job = await look(store, held.id)
        assert (job.attempts, job.reason) == (1, "checked out")
        assert (job.finished_at, job.expires_at) == (at(clock), at(clock, DAY / 1000))

    async def test_a_snooze_burns_no_attempt(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        assert await end(store, held, Move.SNOOZE, delay=60_000, reason="quiet hours") is Status.PENDING
        job = await look(store, held.id)
        assert (job.attempts, job.crashes, job.reason, job.run_at) == (0, 0, "quiet hours", at(clock, 60))
        assert await claim(store) == []
        clock.advance(60)
        assert (await claim_one(store)).attempt == 1

    @pytest.mark.parametrize("move", [Move.DONE, Move.DEAD, Move.CANCEL])
    @pytest.mark.parametrize("follow_ups", [0, 1])
    async def test_why_a_job_once_waited_is_forgotten_at_its_end(
        self, store: Store, move: Move, follow_ups: int
    ) -> None:
        held = await running(store)
        await end(store, held, Move.SNOOZE, reason="quiet hours")
        more = tuple(new_job() for _ in range(follow_ups))
        await end(store, await claim_one(store), move, follow_ups=more)
        job = await look(store, held.id)
        assert (job.finished, job.reason) == (True, "")

    async def test_a_released_job_keeps_its_place(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        due = (await look(store, held.id)).run_at
        clock.advance(10)
        await put(store)
        assert await end(store, held, Move.RELEASE) is Status.PENDING
        job = await look(store, held.id)
        assert (job.run_at, job.attempts, job.crashes) == (due, 0, 0)
        assert (await claim_one(store)).id == held.id

    @pytest.mark.parametrize("move", [Move.RELEASE, Move.CRASH, Move.RETRY, Move.SNOOZE])
    async def test_a_job_that_goes_on_at_once_is_due_though_the_clock_was_set_back(
        self, store: Store, clock: ManualClock, move: Move
    ) -> None:
        held = await running(store)
        clock.shift(-3600)
        await end(store, held, move)
        assert (await look(store, held.id)).run_at <= at(clock)
        assert (await claim_one(store, solo=move is Move.CRASH)).id == held.id

    async def test_a_release_with_a_delay_waits_for_it(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        clock.advance(10)
        await end(store, held, Move.RELEASE, delay=60_000)
        assert (await look(store, held.id)).run_at == at(clock, 60)

    async def test_a_crash_makes_a_suspect_and_burns_no_attempt(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        clock.advance(5)
        assert await end(store, held, Move.CRASH) is Status.PENDING
        job = await look(store, held.id)
        assert (job.crashes, job.attempts) == (1, 0)
        assert job.run_at <= at(clock)

    async def test_the_third_crash_makes_a_dead_letter(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, keep_dead=DAY)
        assert await end(store, held, Move.CRASH) is Status.PENDING
        assert await end(store, await claim_one(store, solo=True), Move.CRASH) is Status.PENDING
        assert await end(store, await claim_one(store, solo=True), Move.CRASH) is Status.DEAD_LETTER
        job = await look(store, held.id)
        assert (job.crashes, job.finished_at, job.expires_at) == (3, at(clock), at(clock, DAY / 1000))

    @pytest.mark.parametrize("move", [Move.RETRY, Move.DEAD])
    async def test_nul_characters_in_messages_do_not_prevent_the_ack(self, store: Store, move: Move) -> None:
        """A handler may raise with bytes that a database does not take. That its run ended must be written anyway."""
        held = await running(store)
        await store.report([ProgressReport(held.id, held.token, 0.5, "half \0 way")])
        failure = Failure("Value\0Error", "bad byte \0 in input", "Traceback \0 …")
        assert await end(store, held, move, failure=failure, reason="so \0 be it") is not None
        job = await look(store, held.id)
        assert job.failure is not None
        assert job.failure.message.startswith("bad byte")
        assert job.failure.type == "Value�Error"
        (attempt,) = await store.attempts(held.id)
        assert attempt.failure is not None

    async def test_the_last_failure_stays_readable(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.RETRY, failure=BOOM)
        await end(store, await claim_one(store), Move.RETRY, failure=BANG)
        await end(store, await claim_one(store), Move.SNOOZE)
        await end(store, await claim_one(store), Move.DONE)
        assert (await look(store, held.id)).failure == BANG

    @pytest.mark.parametrize("move", [Move.DONE, Move.RETRY, Move.SNOOZE, Move.DEAD])
    async def test_the_last_worker_and_time_stay_readable(self, store: Store, clock: ManualClock, move: Move) -> None:
        held = await running(store)
        clock.advance(5)
        await end(store, held, move)
        job = await look(store, held.id)
        assert (job.worker, job.started_at) == ("w1", at(clock, -5))

    # -- many at once, and follow-ups ---------------------------------------------------------

    async def test_outcomes_are_answered_in_their_order(self, store: Store) -> None:
        await put_many(store, 3)
        first, second, third = await claim(store)
        answers = await store.ack([outcome(first, Move.DONE), outcome(second, Move.RETRY), outcome(third, Move.DEAD)])
        assert answers == [Status.COMPLETED, Status.RETRYING, Status.DEAD_LETTER]

    async def test_outcomes_of_one_call_leave_each_job_as_if_it_had_ended_alone(self, store: Store) -> None:
        await put_many(store, 2 * len(WAYS))
        held = await claim(store)
        together, alone = held[: len(WAYS)], held[len(WAYS) :]
        statuses = await store.ack([ended(job, way) for job, way in zip(together, WAYS, strict=True)])
        for job, way, status in zip(alone, WAYS, statuses, strict=True):
            assert await store.ack([ended(job, way)]) == [status]
        for job, other in zip(together, alone, strict=True):
            assert replace(await look(store, job.id), id="") == replace(await look(store, other.id), id="")
            assert await store.attempts(job.id) == await store.attempts(other.id)
        counted = (await store.stats()).queues[0].by_status
        assert counted == {status: 2 * number for status, number in Counter(statuses).items()}

    async def test_an_empty_list_of_outcomes_is_fine(self, store: Store) -> None:
        assert await store.ack([]) == []

    async def test_a_lost_claim_does_not_affect_the_other_outcomes(self, store: Store) -> None:
        await put_many(store, 2)
        lost, kept = await claim(store)
        await end(store, lost, Move.RELEASE)
        assert await store.ack([outcome(lost, Move.DONE), outcome(kept, Move.DONE)]) == [None, Status.COMPLETED]
        assert await status_of(store, lost.id) is Status.PENDING

    async def test_the_second_outcome_of_one_claim_is_refused(self, store: Store) -> None:
        held = await running(store)
        assert await store.ack([outcome(held, Move.DONE), outcome(held, Move.DEAD)]) == [Status.COMPLETED, None]

    async def test_one_of_many_concurrent_acks_counts(self, store: Store) -> None:
        held = await running(store)
        answers = await asyncio.gather(*(end(store, held, Move.DONE) for _ in range(10)))
        assert sorted(answers, key=str) == [None] * 9 + [Status.COMPLETED]
        assert (await look(store, held.id)).attempts == 1

    async def test_follow_ups_are_inserted_with_the_outcome(self, store: Store) -> None:
        held = await running(store)
        follow_ups = (new_job(queue="mail"), new_job(queue="mail", delay=60_000))
        await end(store, held, Move.DONE, follow_ups=follow_ups)
        assert sorted(await found(store, queues=("mail",))) == sorted(job.id for job in follow_ups)
        assert (await claim_one(store, queue="mail")).id == follow_ups[0].id

    async def test_a_follow_up_may_take_the_key_that_its_parent_frees(self, store: Store) -> None:
        held = await running(store, dedupe_key="k")
        follow_up = new_job(dedupe_key="k")
        outcome = Outcome(held.id, held.token, Move.DONE, follow_ups=(follow_up,), ref=held.ref)
        assert await store.ack([outcome]) == [Status.COMPLETED]
        assert outcome.inserted == [Inserted(follow_up.id, created=True)]
        assert await status_of(store, follow_up.id) is Status.PENDING

    async def test_a_follow_up_whose_key_is_taken_is_left_out(self, store: Store) -> None:
        holder = await put(store, queue="mail", dedupe_key="k")
        held = await running(store)
        follow_ups = (new_job(), new_job(dedupe_key="k"))
        outcome = Outcome(held.id, held.token, Move.DONE, follow_ups=follow_ups, ref=held.ref)
        assert await store.ack([outcome]) == [Status.COMPLETED]
        assert outcome.inserted == [Inserted(follow_ups[0].id, created=True), Inserted(holder, created=False)]
        assert sorted(await found(store)) == sorted([holder, held.id, follow_ups[0].id])

    # -- fencing ------------------------------------------------------------------------------

    async def test_an_ack_of_an_unknown_job_is_refused(self, store: Store) -> None:
        assert await store.ack([Outcome(new_job().id, 1, Move.DONE)]) == [None]

    @pytest.mark.parametrize("shift", [-1, 1])
    async def test_an_ack_under_another_token_is_refused(self, store: Store, shift: int) -> None:
        held = await running(store)
        before = await look(store, held.id)
        wrong = Outcome(held.id, held.token + shift, Move.DONE, follow_ups=(new_job(),))
        assert await store.ack([wrong]) == [None]
        assert await look(store, held.id) == before
        assert await store.count(Filter()) == 1

    @pytest.mark.parametrize("worker", ["w1", "w2"])
    async def test_after_release_and_reclaim_the_old_claim_writes_nothing(self, store: Store, worker: str) -> None:
        old = await running(store)
        await end(store, old, Move.RELEASE)
        new = await claim_one(store, worker=worker)
        before = await look(store, old.id)
        assert await end(store, old, Move.DONE, follow_ups=(new_job(),)) is None
        assert await store.report([ProgressReport(old.id, old.token, 0.5, "zombie")]) == set()
        assert (await store.heartbeat("w1", {old.id: old.token})).lost == {old.id}
        assert await look(store, old.id) == before
        assert await store.count(Filter()) == 1
        assert await end(store, new, Move.DONE) is Status.COMPLETED

    async def test_after_a_manual_retry_and_reclaim_the_old_claim_writes_nothing(self, store: Store) -> None:
        old = await running(store)
        await end(store, old, Move.DEAD)
        await by_hand(store, Action.RETRY, old.id)
        assert await end(store, old, Move.DONE) is None
        new = await claim_one(store)
        assert new.token > old.token
        assert await end(store, old, Move.DONE) is None
        assert await status_of(store, old.id) is Status.RUNNING

    # -- progress -----------------------------------------------------------------------------

    async def test_progress_is_written_for_held_claims_only(self, store: Store) -> None:
        held = await running(store)
        gone = await running(store)
        await end(store, gone, Move.RELEASE)
        reports = [ProgressReport(held.id, held.token, 0.25, "a quarter"), ProgressReport(gone.id, gone.token, 0.5, "")]
        assert await store.report(reports) == {held.id}
        assert (await look(store, held.id)).progress == Progress(0.25, "a quarter")
        assert (await look(store, gone.id)).progress is None

    async def test_the_latest_progress_counts(self, store: Store) -> None:
        held = await running(store)
        for fraction in (0.1, 0.9):
            await store.report([ProgressReport(held.id, held.token, fraction, "")])
        assert (await look(store, held.id)).progress == Progress(0.9, "")

    @pytest.mark.parametrize("fraction", [0.0, 1e-200, 1e-130, 1.0])
    async def test_any_fraction_can_be_reported(self, store: Store, fraction: float) -> None:
        held = await running(store)
        assert await store.report([ProgressReport(held.id, held.token, fraction, "")]) == {held.id}
        progress = (await look(store, held.id)).progress
        assert progress is not None
        assert progress.fraction == pytest.approx(fraction, abs=1e-129)

    async def test_a_new_run_starts_without_progress(self, store: Store) -> None:
        held = await running(store)
        await store.report([ProgressReport(held.id, held.token, 0.5, "half")])
        await end(store, held, Move.RETRY)
        await claim_one(store)
        assert (await look(store, held.id)).progress is None

    # -- a cancel that was asked for ----------------------------------------------------------

    @pytest.mark.parametrize("move", UNFINISHED)
    async def test_a_requested_cancel_is_not_lost_when_the_run_does_not_finish(self, store: Store, move: Move) -> None:
        held = await running(store)
        await by_hand(store, Action.CANCEL, held.id)
        assert await end(store, held, move, delay=60_000) is Status.CANCELLED
        job = await look(store, held.id)
        assert (job.status, job.reason, job.crashes) == (Status.CANCELLED, "by hand", 0)
        assert job.attempts == (1 if move is Move.RETRY else 0)
        assert job.finished_at is not None
        assert job.expires_at is not None

    @pytest.mark.parametrize(("move", "status"), [(Move.DONE, Status.COMPLETED), (Move.DEAD, Status.DEAD_LETTER)])
    async def test_a_requested_cancel_does_not_undo_a_finished_run(
        self, store: Store, move: Move, status: Status
    ) -> None:
        held = await running(store)
        await by_hand(store, Action.CANCEL, held.id)
        assert await end(store, held, move) is status
        job = await look(store, held.id)
        assert (job.status, job.reason) == (status, "")

    @pytest.mark.parametrize("reason", ["by hand", ""])
    async def test_the_reason_of_a_requested_cancel_is_kept(self, store: Store, reason: str) -> None:
        """Else the run that gave up by itself is; that another wanted to be put off is no reason for it."""
        moves = (*UNFINISHED, Move.CANCEL)
        await put_many(store, len(moves))
        await store.ack([outcome(held, Move.SNOOZE, reason="quiet hours") for held in await claim(store)])
        runs = dict(zip(moves, await claim(store), strict=True))
        await store.change(Action.CANCEL, Filter(), By("ana", reason))
        left_alone = await running(store)
        await store.ack(
            [
                *(outcome(held, move, reason="of its own") for move, held in runs.items()),
                outcome(left_alone, Move.SNOOZE, reason="of its own"),
            ]
        )
        expected = dict.fromkeys(UNFINISHED, reason) | {Move.CANCEL: reason or "of its own"}
        assert {move: (await look(store, held.id)).reason for move, held in runs.items()} == expected
        assert {await status_of(store, held.id) for held in runs.values()} == {Status.CANCELLED}
        assert (await look(store, left_alone.id)).reason == "of its own"

    async def test_the_last_of_two_requested_cancels_gives_the_reason(self, store: Store) -> None:
        held = await running(store)
        await by_hand(store, Action.CANCEL, held.id)
        await store.change(Action.CANCEL, Filter(ids=(held.id,)), By("ben", "once more"))
        assert await end(store, held, Move.CANCEL) is Status.CANCELLED
        assert (await look(store, held.id)).reason == "once more"

    async def test_a_dead_letter_keeps_its_own_reason_despite_a_requested_cancel(self, store: Store) -> None:
        held = await running(store)
        await by_hand(store, Action.CANCEL, held.id)
        assert await end(store, held, Move.DEAD, reason="no such guest") is Status.DEAD_LETTER
        assert (await look(store, held.id)).reason == "no such guest"

    # -- history ------------------------------------------------------------------------------

    async def test_history_keeps_every_run_that_ended_in_success_or_failure(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.RETRY, failure=BOOM)
        await end(store, await claim_one(store, worker="w2"), Move.CRASH)
        await end(store, await claim_one(store, solo=True), Move.DONE)
        history = await store.attempts(held.id)
        assert [run.move for run in history] == [Move.RETRY, Move.CRASH, Move.DONE]
        assert [run.number for run in history] == [1, 2, 3]
        assert [run.worker for run in history] == ["w1", "w2", "w1"]
        assert history[0].failure == BOOM
        assert history[2].failure is None

    @pytest.mark.parametrize("move", [Move.DEAD, Move.CANCEL])
    async def test_history_keeps_how_a_job_was_given_up(self, store: Store, move: Move) -> None:
        held = await running(store)
        await end(store, held, move, failure=BOOM)
        (run,) = await store.attempts(held.id)
        assert (run.move, run.failure) == (move, BOOM)

    @pytest.mark.parametrize("move", [Move.SNOOZE, Move.RELEASE, Move.SUSPEND])
    async def test_history_leaves_out_runs_that_came_to_nothing(self, store: Store, move: Move) -> None:
        held = await running(store)
        await end(store, held, move)
        assert await store.attempts(held.id) == []

    async def test_history_shows_the_workers_own_times(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        started, finished = clock.now() - 700, clock.now() - 200
        await end(store, held, Move.RETRY, started_at=started, finished_at=finished)
        (run,) = await store.attempts(held.id)
        assert (run.started_at, run.finished_at) == (to_datetime(started), to_datetime(finished))

    async def test_history_falls_back_on_the_stores_times(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        clock.advance(7)
        await end(store, held, Move.DONE)
        (run,) = await store.attempts(held.id)
        assert (run.started_at, run.finished_at) == (at(clock, -7), at(clock))

    async def test_history_survives_a_manual_retry(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.DEAD, failure=BOOM)
        await by_hand(store, Action.RETRY, held.id)
        await end(store, await claim_one(store), Move.DONE)
        assert [run.move for run in await store.attempts(held.id)] == [Move.DEAD, Move.DONE]

    # -- completion ---------------------------------------------------------------------------

    async def test_a_completion_ends_its_job_or_is_refused_by_a_store_without_transactions(self, store: Store) -> None:
        held = await running(store)
        if store.transactional:
            async with store.completion(lambda: outcome(held, Move.DONE)):
                pass
            assert await status_of(store, held.id) is Status.COMPLETED
        else:
            with pytest.raises(UnsupportedCall):
                store.completion(lambda: outcome(held, Move.DONE))
            assert await status_of(store, held.id) is Status.RUNNING
