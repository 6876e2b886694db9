"""Reads, changes and claims of some queues only, as the projects of the service need them."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.errors import Failure
from mainspring.job import Move, Status
from mainspring.stores.feed import ChangeFilter, ChangeKind
from mainspring.stores.numbers import Measure, NumbersQuery, Period, Span
from mainspring.stores.protocol import Action, Completable, Edit, Filter, Sort, Store, Wake, Want
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import BY, Bell, StoreScenario, a_halt, claim, end, join, new_job, put, running

ACME = ("p/acme/*",)
OURS, THEIRS = "p/acme/mail", "p/acme2/mail"
NEIGHBOURS = (
    "p/acme",
    "p/acme-2/mail",
    "p/acme0/mail",
    "p/acm/mail",
    "p/Acme/mail",
    "p/acme2/mail",
    "mail",
    "q/acme/x",
)
EVERYTHING = 1 << 52


async def found(store: Store, **where: Any) -> set[str]:
    return {job.id for job in (await store.find(Filter(**where))).jobs}


async def number(store: Store, measure: Measure = Measure.ENQUEUED, **where: Any) -> dict[str, int]:
    query = NumbersQuery((Span(Period.DAY, 0, EVERYTHING),), **where)
    return {figure.group: n for figure in await store.numbers(query) if (n := figure.total(measure))}


class WithinTests(StoreScenario):
    # -- reads ------------------------------------------------------------------------------------

    async def test_a_pattern_fits_the_names_with_its_beginning_and_no_others(self, store: Store) -> None:
        ours = {await put(store, queue=queue) for queue in ("p/acme/mail", "p/acme/a/b", "p/acme/ü")}
        for queue in NEIGHBOURS:
            await put(store, queue=queue)
        assert await found(store, within=ACME) == ours
        assert await store.count(Filter(within=ACME)) == 3
        assert (await store.count_up_to(Filter(within=ACME), 100)).value == 3
        assert (await store.count_up_to(Filter(within=ACME, tasks=("greet",)), 100)).value == 3

    async def test_several_patterns_and_names_fit_any_of_their_queues(self, store: Store) -> None:
        ours, named, third = [await put(store, queue=queue) for queue in (OURS, "mail", "p/b/x")]
        await put(store, queue=THEIRS)
        assert await found(store, within=(*ACME, "mail")) == {ours, named}
        assert await found(store, within=("mail",)) == {named}
        assert await found(store, within=(*ACME, "p/b/*", "nothing")) == {ours, third}
        assert await found(store, within=("*",)) >= {ours, named, third}

    async def test_it_holds_besides_the_queues_that_are_asked_for(self, store: Store) -> None:
        ours = await put(store, queue=OURS)
        await put(store, queue=THEIRS)
        assert await found(store, within=ACME, queues=(OURS, THEIRS)) == {ours}
        assert await found(store, within=ACME, queues=(THEIRS,)) == set()
        assert (await store.count_up_to(Filter(within=ACME, queues=(THEIRS,)), 100)).value == 0

    @pytest.mark.parametrize("sort", list(Sort))
    async def test_every_sort_keeps_to_it(self, store: Store, sort: Sort) -> None:
        for queue in (OURS, THEIRS):
            held = await running(store, queue=queue)
            await end(store, held, Move.DONE)
            await put(store, queue=queue, delay=60_000)
        page = await store.find(Filter(within=ACME), sort=sort)
        assert {job.queue for job in page.jobs} == {OURS}

    async def test_a_job_of_another_queue_is_not_found_by_its_id(self, store: Store) -> None:
        ours, theirs = await put(store, queue=OURS), await put(store, queue=THEIRS)
        held = await running(store, queue="p/acme2/done")
        await end(store, held, Move.DEAD, failure=Failure("Boom", "secret"))
        assert [job.id for job in await store.get([ours, theirs, held.id], within=ACME)] == [ours]
        assert [job.id for job in await store.get([ours, theirs, held.id])] == [ours, theirs, held.id]
        assert await found(store, ids=(theirs,), within=ACME) == set()

    async def test_completions_are_values_of_these_queues(self, store: Store) -> None:
        await put(store, queue=OURS, task="own_task", tags=("own_tag",), payload='{"own_key": 1}')
        await put(store, queue=THEIRS, task="other_task", tags=("other_tag",), payload='{"other_key": 1}')
        for queue, error in ((OURS, "own_error"), (THEIRS, "other_error")):
            held = await running(store, queue=f"{queue}2", task="fails", payload="{}")
            await end(store, held, Move.DEAD, failure=Failure(error, ""))
        for what in Completable:
            values = await store.complete(what, "", within=ACME)
            assert not [value for value in values if "other" in value or "acme2" in value], what
        assert await store.complete(Completable.QUEUE, "p/", within=ACME) == [OURS, f"{OURS}2"]
        assert await store.complete(Completable.TAG, "own", within=ACME) == ["own_tag"]
        assert await store.complete(Completable.PAYLOAD_KEY, "", within=ACME) == ["own_key"]

    async def test_stats_are_about_these_queues(self, store: Store, clock: ManualClock) -> None:
        for queue in (OURS, THEIRS, "mail"):
            await put(store, queue=queue)
            held = await running(store, queue=f"{queue}2")
            await end(store, held, Move.DEAD, failure=Failure("Boom", ""))
            await running(store, queue=f"{queue}3", timeout=1_000)
            await store.halt(a_halt(clock, queue=queue))
        clock.advance(3600)
        stats = await store.stats(ACME)
        queues = {OURS, f"{OURS}2", f"{OURS}3"}
        assert {counts.queue for counts in stats.queues} == queues
        assert set(stats.due) <= queues
        assert set(stats.oldest_due) <= queues
        assert set(stats.oldest_dead) == {f"{OURS}2"}
        assert {line.queue for line in stats.due_tasks} <= queues
        assert [halt.queue for halt in stats.halts] == [OURS]
        assert stats.stalled == 1
        assert len((await store.stats()).halts) == 3

    async def test_a_halt_of_the_system_is_shown_to_all(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock))
        assert [halt.queue for halt in (await store.stats(ACME)).halts] == [None]

    async def test_numbers_are_those_of_these_queues(self, store: Store) -> None:
        await store.insert([new_job(queue=OURS), new_job(queue=OURS, task="other"), new_job(queue="p/acme/b")])
        await store.insert([new_job(queue=THEIRS), new_job(queue="mail"), new_job(queue="mail", task="other")])
        assert await number(store) == {"": 6}
        assert await number(store, within=ACME) == {"": 3}
        assert await number(store, within=ACME, task="other") == {"": 1}
        assert await number(store, within=ACME, queue=OURS) == {"": 2}
        assert await number(store, within=ACME, queue=OURS, task="greet") == {"": 1}
        assert await number(store, within=ACME, queue=THEIRS) == {}
        assert await number(store, within=ACME, by="queue") == {OURS: 2, "p/acme/b": 1}
        assert await number(store, within=ACME, by="task") == {"greet": 2, "other": 1}
        assert await number(store, within=("mail", "p/acme/b")) == {"": 3}

    async def test_changes_are_those_of_these_queues(self, store: Store, clock: ManualClock) -> None:
        cursor = str((await store.changes()).cursor)
        ours = await put(store, queue=OURS)
        await put(store, queue=THEIRS)
        await store.halt(a_halt(clock, queue=THEIRS))
        await store.halt(a_halt(clock, queue=OURS))
        await store.halt(a_halt(clock))
        await join(store, "w3")
        page = await store.changes(cursor)
        changes = list(page.changes(ChangeFilter(within=ACME)))
        assert {(change.kind, change.job_id, change.queue) for change in changes} == {
            (ChangeKind.CREATED, ours, OURS),
            (ChangeKind.HALTED, None, OURS),
        }

    # -- changes ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("action", [Action.CANCEL, Action.DELETE, Action.EDIT])
    async def test_a_change_leaves_jobs_of_other_queues_alone(self, store: Store, action: Action) -> None:
        ours, theirs = await put(store, queue=OURS), await put(store, queue=THEIRS)
        edit = Edit(priority=0) if action is Action.EDIT else None
        before = await store.get([theirs])
        by_id = await store.change(action, Filter(ids=(theirs,), within=ACME), BY, edit=edit)
        assert not by_id.ids
        every = await store.change(action, Filter(within=ACME), BY, edit=edit)
        assert every.ids == (ours,)
        assert await store.get([theirs]) == before

    async def test_a_retry_leaves_jobs_of_other_queues_alone(self, store: Store) -> None:
        ended = []
        for queue in (OURS, THEIRS):
            held = await running(store, queue=queue)
            await end(store, held, Move.DEAD, failure=Failure("Boom", ""))
            ended.append(held.id)
        changed = await store.change(Action.RETRY, Filter(ids=tuple(ended), within=ACME), BY)
        assert changed.ids == (ended[0],)
        assert [job.status for job in await store.get(ended)] == [Status.PENDING, Status.DEAD_LETTER]

    async def test_a_running_job_of_another_queue_is_not_asked_to_stop(self, store: Store) -> None:
        held = await running(store, queue=THEIRS)
        changed = await store.change(Action.CANCEL, Filter(ids=(held.id,), within=ACME), BY)
        assert not changed.requested
        assert not (await store.get([held.id]))[0].cancel_requested

    # -- claims -----------------------------------------------------------------------------------

    async def test_a_claim_by_a_pattern_takes_jobs_of_its_queues_by_priority(self, store: Store) -> None:
        for queue in NEIGHBOURS:
            await put(store, queue=queue, priority=0)
        low = await put(store, queue=OURS, priority=3)
        urgent = await put(store, queue="p/acme/b", priority=0)
        assert [job.id for job in await claim(store, 1, queue="p/acme/*")] == [urgent]
        assert [job.id for job in await claim(store, 100, queue="p/acme/*")] == [low]
        assert await claim(store, 100, queue="p/acme/*") == []

    async def test_a_claim_waits_for_the_next_job_of_its_own_queues(self, store: Store, clock: ManualClock) -> None:
        await put(store, queue=THEIRS)
        assert (await store.claim("w1", [Want("p/acme/*", 1)])).next_due is None
        await put(store, queue=OURS, delay=5_000)
        assert (await store.claim("w1", [Want("p/acme/*", 1)])).next_due == clock.now() + 5_000

    async def test_a_claim_by_a_pattern_respects_pauses(self, store: Store, clock: ManualClock) -> None:
        await put(store, queue=OURS)
        other = await put(store, queue="p/acme/b")
        await store.halt(a_halt(clock, queue=OURS))
        assert [job.id for job in await claim(store, 100, queue="p/acme/*")] == [other]

    async def test_a_suspect_is_taken_only_from_its_own_queues(self, store: Store, clock: ManualClock) -> None:
        theirs = await running(store, queue=THEIRS)
        await end(store, theirs, Move.CRASH)
        claims = await store.claim("w2", [Want("p/acme/*", 1)], solo=True)
        assert (claims.jobs, claims.suspects) == ([], False)
        ours = await running(store, queue=OURS)
        await end(store, ours, Move.CRASH)
        clock.advance(1)
        assert [job.id for job in await claim(store, 1, queue="p/acme/*", solo=True)] == [ours.id]

    async def test_jobs_of_unknown_tasks_in_other_queues_are_not_met(self, store: Store) -> None:
        await put(store, queue=THEIRS, task="strange")
        ours = await put(store, queue=OURS)
        claims = await store.claim("w1", [Want("p/acme/*", 5)], tasks=frozenset({"greet"}))
        assert ([job.id for job in claims.jobs], claims.unknown) == ([ours], frozenset())

    async def test_a_worker_of_a_pattern_is_woken_for_its_queues(self, store: Store) -> None:
        bell = Bell()
        await join(store, "w9", bell, ("p/acme/*",))
        assert not await claim(store, 1, queue="p/acme/*", worker="w9")
        await put(store, queue=OURS)
        assert await bell.hears(Wake.JOBS)

    async def test_a_worker_of_a_pattern_confirms_halts_of_its_queues(self, store: Store, clock: ManualClock) -> None:
        await join(store, "w9", queues=("p/acme/*",))
        for worker in ("w1", "w2"):
            await store.leave(worker)
        theirs = await store.halt(a_halt(clock, queue=THEIRS))
        assert await store.unconfirmed(theirs) == []
        ours = await store.halt(a_halt(clock, queue=OURS))
        assert [worker.id for worker in await store.unconfirmed(ours)] == ["w9"]
