"""Failures: their fingerprints, the versions of the code that failed, and the notes for their groups."""

from __future__ import annotations

from mainspring.errors import Failure
from mainspring.fingerprint import fingerprint
from mainspring.job import Move, Outcome, Status
from mainspring.stores.documents import Listing
from mainspring.stores.engine.failures import NOTES, FailureNote, note_of
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


async def notes(store: Store) -> list[FailureNote]:
    return [note_of(document.data) for document in await store.browse(Listing(NOTES))]


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
