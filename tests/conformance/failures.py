"""Failures: their fingerprints, the versions of the code that failed, and the notes for their groups."""

from __future__ import annotations

import pytest

from mainspring.errors import ConfigurationError, Failure
from mainspring.fingerprint import fingerprint
from mainspring.job import Attempt, Move, Outcome, Status
from mainspring.stores.documents import Listing
from mainspring.stores.engine.failures import NOTES, FailureNote, note_of
from mainspring.stores.feed import ChangeFilter, ChangeKind, Cursor
from mainspring.stores.protocol import Action, Filter, Store, Want
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    BY,
    StoreScenario,
    by_silence,
    claim_one,
    end,
    look,
    new_job,
    put,
    put_many,
    running,
)

BOOM = Failure("ValueError", "no guest 7", "Traceback …", place="shop:find")
KNOWN = fingerprint("greet", "ValueError", "shop:find", "no guest 7")
OTHER = Failure("OSError", "gone")
THIRD = Failure("KeyError", "guest")
THIRD_KNOWN = fingerprint("greet", "KeyError", "", "guest")
OTHER_KNOWN = fingerprint("greet", "OSError", "", "gone")


async def notes(store: Store) -> list[FailureNote]:
    return [note_of(document.data) for document in await store.browse(Listing(NOTES))]


def code_of(run: Attempt) -> str | None:
    return None if run.failure is None else run.failure.code


async def ids_of(store: Store, where: Filter) -> set[str]:
    return {job.id for job in (await store.find(where, limit=100)).jobs}


class FailureTests(StoreScenario):
    async def test_a_failure_gets_a_fingerprint(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.DEAD, failure=BOOM)
        job = await look(store, held.id)
        assert job.failure is not None
        assert (job.fingerprint, job.failure.fingerprint) == (KNOWN, KNOWN)
        (run,) = await store.attempts(held.id)
        assert run.failure is not None
        assert run.failure.fingerprint == KNOWN

    async def test_a_given_fingerprint_is_kept(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.DEAD, failure=Failure("ValueError", "x", fingerprint="0123456789abcdef"))
        assert (await look(store, held.id)).fingerprint == "0123456789abcdef"

    async def test_a_job_without_failures_has_no_fingerprint(self, store: Store) -> None:
        held = await running(store)
        assert held.fingerprint is None
        await end(store, held, Move.DONE)
        assert (await look(store, held.id)).fingerprint is None
        assert await notes(store) == []

    async def test_the_next_claim_knows_the_last_failure(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.RETRY, failure=BOOM)
        assert (await claim_one(store)).fingerprint == KNOWN

    async def test_the_last_fingerprint_stays_when_a_run_ends_without_failure(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.RETRY, failure=BOOM)
        await end(store, await claim_one(store), Move.SNOOZE)
        assert (await look(store, held.id)).fingerprint == KNOWN

    async def test_a_job_that_is_retried_by_hand_stays_in_its_group(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.DEAD, failure=BOOM)
        await store.change(Action.RETRY, Filter(ids=(held.id,)), BY)
        job = await look(store, held.id)
        assert (job.status, job.failure, job.fingerprint) == (Status.PENDING, None, KNOWN)
        assert await ids_of(store, Filter(fingerprint=KNOWN)) == {held.id}

    async def test_jobs_are_found_by_fingerprint(self, store: Store) -> None:
        first, second, third = [await running(store) for _ in range(3)]
        await end(store, first, Move.DEAD, failure=BOOM)
        await end(store, second, Move.RETRY, failure=BOOM, delay=60_000)
        await end(store, third, Move.DEAD, failure=Failure("OSError", "gone"))
        await put(store)
        assert await ids_of(store, Filter(fingerprint=KNOWN)) == {first.id, second.id}
        dead = Filter(fingerprint=KNOWN, statuses=(Status.DEAD_LETTER,))
        assert await ids_of(store, dead) == {first.id}
        assert (await store.count(dead), await store.count(Filter(fingerprint=KNOWN))) == (1, 2)
        assert await ids_of(store, Filter(fingerprint="0000000000000000")) == set()

    async def test_a_job_that_fails_in_another_way_leaves_its_group(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.RETRY, failure=BOOM)
        await end(store, await claim_one(store), Move.DEAD, failure=Failure("OSError", "gone"))
        assert await ids_of(store, Filter(fingerprint=KNOWN)) == set()
        first = (await store.attempts(held.id))[0]
        assert first.failure is not None
        assert first.failure.fingerprint == KNOWN

    async def test_pages_of_a_group_are_complete(self, store: Store) -> None:
        await put_many(store, 7)
        found = await store.claim("w1", [Want("*", 7)])
        await store.ack([Outcome(job.id, job.token, Move.DEAD, failure=BOOM, ref=job.ref) for job in found.jobs])
        seen, cursor = [], None
        while True:
            page = await store.find(Filter(fingerprint=KNOWN), limit=3, cursor=cursor)
            seen += [job.id for job in page.jobs]
            if (cursor := page.cursor) is None:
                break
        assert seen == sorted((job.id for job in found.jobs), reverse=True)

    async def test_the_dead_letters_of_a_group_can_be_retried(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.DEAD, failure=BOOM)
        changed = await store.change(Action.RETRY, Filter(fingerprint=KNOWN, statuses=(Status.DEAD_LETTER,)), BY)
        assert changed.ids == (held.id,)

    # -- codes ------------------------------------------------------------------------------------

    async def test_a_code_is_kept_with_the_job_and_its_attempts(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.RETRY, failure=Failure("ApiError", "busy", code="E-503"))
        job = await look(store, held.id)
        assert job.failure is not None
        assert job.failure.code == "E-503"
        assert [code_of(run) for run in await store.attempts(held.id)] == ["E-503"]
        await end(store, await claim_one(store), Move.DEAD, failure=Failure("ApiError", "gone", code="410"))
        job = await look(store, held.id)
        assert job.failure is not None
        assert (job.status, job.failure.code) == (Status.DEAD_LETTER, "410")
        assert [code_of(run) for run in await store.attempts(held.id)] == ["E-503", "410"]

    @pytest.mark.parametrize("last", [Move.RETRY, Move.DEAD])
    async def test_a_failure_without_a_code_has_not_that_of_the_failure_before(self, store: Store, last: Move) -> None:
        held = await running(store)
        await end(store, held, Move.RETRY, failure=Failure("ApiError", "busy", code="E-503"))
        await end(store, await claim_one(store), last, failure=BOOM)
        job = await look(store, held.id)
        assert job.failure is not None
        assert (job.failure.type, job.failure.code) == ("ValueError", None)

    @pytest.mark.parametrize("last", [Move.SNOOZE, Move.DONE, Move.CANCEL])
    async def test_the_code_stays_while_no_other_run_fails(self, store: Store, last: Move) -> None:
        held = await running(store)
        await end(store, held, Move.RETRY, failure=Failure("ApiError", "busy", code="E-503"))
        await end(store, await claim_one(store), last)
        job = await look(store, held.id)
        assert job.failure is not None
        assert job.failure.code == "E-503"

    async def test_a_job_that_is_retried_by_hand_has_no_code(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.DEAD, failure=Failure("ApiError", "busy", code="E-503"))
        await store.change(Action.RETRY, Filter(ids=(held.id,)), BY)
        assert (await look(store, held.id)).failure is None
        await end(store, await claim_one(store), Move.DEAD, failure=BOOM)
        job = await look(store, held.id)
        assert job.failure is not None
        assert job.failure.code is None

    async def test_a_code_that_cannot_be_one_is_left_out(self, store: Store) -> None:
        for code in ("", "x" * 101, "a\0b", "line\nline"):
            held = await running(store)
            await end(store, held, Move.DEAD, failure=Failure("ApiError", "busy", code=code))
            job = await look(store, held.id)
            assert job.failure is not None
            assert job.failure.code is None

    async def test_the_change_feed_tells_the_code(self, store: Store) -> None:
        start = (await store.changes()).cursor
        held = await running(store)
        await end(store, held, Move.DEAD, failure=Failure("ApiError", "busy", code="E-503"))
        page = await store.changes(str(start))
        changes = page.changes(ChangeFilter(kinds=(ChangeKind.DEAD_LETTERED,)), Cursor.parse(str(start)))
        assert [(change.data or {})["error_code"] for change in changes] == ["E-503"]

    # -- dead letters -----------------------------------------------------------------------------

    async def test_the_dead_letters_of_groups_are_counted_by_queue(self, store: Store) -> None:
        for queue in ("mail", "mail", "sms"):
            await end(store, await running(store, queue=queue), Move.DEAD, failure=BOOM)
        await end(store, await running(store), Move.RETRY, failure=BOOM)
        await end(store, await running(store, queue="sms"), Move.DEAD, failure=OTHER)
        retried = await running(store, queue="mail")
        await end(store, retried, Move.DEAD, failure=BOOM)
        await store.change(Action.RETRY, Filter(ids=(retried.id,)), BY)
        absent = "0000000000000000"
        counted = await store.dead_letters([KNOWN, OTHER_KNOWN, absent], 100)
        assert counted == {KNOWN: {"mail": 2, "sms": 1}, OTHER_KNOWN: {"sms": 1}}
        assert await store.dead_letters([KNOWN], 100, within=("sms",)) == {KNOWN: {"sms": 1}}
        assert await store.dead_letters([KNOWN], 100, within=("p/acme/*",)) == {}
        assert await store.dead_letters([], 100) == {}

    async def test_no_more_dead_letters_are_counted_than_asked_for(self, store: Store) -> None:
        for queue in ("mail", "mail", "sms"):
            await end(store, await running(store, queue=queue), Move.DEAD, failure=BOOM)
        assert await store.dead_letters([KNOWN], 2) == {KNOWN: {"mail": 2}}
        assert await store.dead_letters([KNOWN], 1, within=("sms",)) == {KNOWN: {"sms": 1}}
        with pytest.raises(ConfigurationError, match="cap is 0"):
            await store.dead_letters([KNOWN], 0)

    # -- projects ---------------------------------------------------------------------------------

    async def test_projects_do_not_share_a_group(self, store: Store) -> None:
        ours, theirs, none = [await running(store, queue=queue) for queue in ("p/a/mail", "p/b/mail", "mail")]
        for held in (ours, theirs, none):
            await end(store, held, Move.DEAD, failure=BOOM)
        found = [(await look(store, held.id)).fingerprint for held in (ours, theirs, none)]
        assert found == [f"a.{KNOWN}", f"b.{KNOWN}", KNOWN]
        assert {note.fingerprint for note in await notes(store)} == set(found)
        assert await ids_of(store, Filter(fingerprint=f"a.{KNOWN}")) == {ours.id}

    async def test_a_job_cannot_fail_in_a_group_of_another_project(self, store: Store) -> None:
        held = await running(store, queue="p/a/mail")
        await end(store, held, Move.DEAD, failure=Failure("ValueError", "x", fingerprint=f"b.{KNOWN}"))
        assert (await look(store, held.id)).fingerprint == f"a.{KNOWN}"

    async def test_a_crash_is_in_a_group_of_the_jobs_project(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, queue="p/a/mail")
        await by_silence(store, clock, "w1")
        crashed = (await look(store, held.id)).fingerprint
        assert crashed == f"a.{fingerprint('greet', 'WorkerCrashed', '', 'worker died')}"

    # -- notes ------------------------------------------------------------------------------------

    async def test_a_failure_leaves_a_note(self, store: Store, clock: ManualClock) -> None:
        await put(store)
        found = await store.claim("w1", [Want("*", 1)], version="v1")
        await end(store, found.jobs[0], Move.RETRY, failure=BOOM)
        (note,) = await notes(store)
        assert (note.fingerprint, note.count, note.recovered) == (KNOWN, 1, False)
        assert (note.task, note.job_id, note.place) == ("greet", found.jobs[0].id, "shop:find")
        assert (note.error_type, note.message, note.versions) == ("ValueError", "no guest 7", ("v1",))
        due = await store.due(NOTES)
        assert len(due.documents) == 1

    async def test_failures_that_are_acked_together_are_all_counted(self, store: Store) -> None:
        await put_many(store, 5)
        found = await store.claim("w1", [Want("*", 5)])
        ends = [Outcome(job.id, job.token, Move.DEAD, failure=BOOM, ref=job.ref) for job in found.jobs]
        await store.ack(ends)
        assert sum(note.count for note in await notes(store)) == 5

    async def test_a_lost_claim_leaves_no_note(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        await by_silence(store, clock, "w1")
        before = len(await notes(store))
        assert await end(store, held, Move.DEAD, failure=BOOM) is None
        assert len(await notes(store)) == before

    async def test_a_success_after_a_failure_leaves_a_note(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.RETRY, failure=BOOM)
        again = await claim_one(store)
        outcome = Outcome(again.id, again.token, Move.DONE, ref=again.ref, recovers=again.fingerprint)
        assert await store.ack([outcome]) == [Status.COMPLETED]
        assert [(note.fingerprint, note.count, note.recovered) for note in await notes(store)] in (
            [(KNOWN, 1, False), (KNOWN, 0, True)],
            [(KNOWN, 0, True), (KNOWN, 1, False)],
        )
        assert (await look(store, held.id)).fingerprint == KNOWN

    async def test_a_success_leaves_a_note_for_each_group_in_which_the_job_has_failed(self, store: Store) -> None:
        held, never, once = [await running(store) for _ in range(3)]
        await end(store, held, Move.RETRY, failure=BOOM)
        await end(store, await claim_one(store), Move.DEAD, failure=OTHER)
        await store.change(Action.RETRY, Filter(ids=(held.id,)), BY)
        await end(store, await claim_one(store), Move.RETRY, failure=THIRD)
        await end(store, await claim_one(store), Move.SNOOZE)
        await end(store, await claim_one(store), Move.RETRY, failure=OTHER)
        await end(store, once, Move.RETRY, failure=Failure("EOFError", "x"))
        last = (await look(store, once.id)).fingerprint
        again = {job.id: job for job in (await store.claim("w1", [Want("*", 2)])).jobs}
        assert not [note for note in await notes(store) if note.recovered]
        claims = (again[held.id], never, again[once.id])
        ends = [Outcome(job.id, job.token, Move.DONE, ref=job.ref, recovers=job.fingerprint) for job in claims]
        assert await store.ack(ends) == [Status.COMPLETED] * 3
        told = sorted((note.fingerprint, note.job_id) for note in await notes(store) if note.recovered)
        assert told == sorted([*((known, held.id) for known in (KNOWN, OTHER_KNOWN, THIRD_KNOWN)), (last, once.id)])

    async def test_a_crash_has_a_fingerprint_without_the_workers_name(self, store: Store, clock: ManualClock) -> None:
        held = await running(store)
        await by_silence(store, clock, "w1")
        crashed = (await look(store, held.id)).fingerprint
        assert crashed == fingerprint("greet", "WorkerCrashed", "", "worker died")
        assert [note.fingerprint for note in await notes(store)] == [crashed]

    # -- versions ---------------------------------------------------------------------------------

    async def test_each_run_records_the_version_of_its_code(self, store: Store) -> None:
        await store.insert([new_job()])
        first = (await store.claim("w1", [Want("*", 1)], version="v1")).jobs[0]
        assert (await look(store, first.id)).version == "v1"
        await end(store, first, Move.RETRY, failure=BOOM)
        second = (await store.claim("w1", [Want("*", 1)], version="v2")).jobs[0]
        await end(store, second, Move.DONE)
        assert (await look(store, first.id)).version == "v2"
        assert [run.version for run in await store.attempts(first.id)] == ["v1", "v2"]

    async def test_a_worker_without_a_version_records_none(self, store: Store) -> None:
        await store.insert([new_job()])
        first = (await store.claim("w1", [Want("*", 1)], version="v1")).jobs[0]
        await end(store, first, Move.RETRY, failure=BOOM)
        second = (await store.claim("w1", [Want("*", 1)])).jobs[0]
        await end(store, second, Move.DONE)
        assert [run.version for run in await store.attempts(first.id)] == ["v1", ""]

    async def test_a_crash_records_the_version_of_the_dead_worker(self, store: Store, clock: ManualClock) -> None:
        await store.insert([new_job()])
        held = (await store.claim("w1", [Want("*", 1)], version="v1")).jobs[0]
        await by_silence(store, clock, "w1")
        assert [run.version for run in await store.attempts(held.id)] == ["v1"]
