"""What people do to jobs by hand, and what the audit log says about it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mainspring.clock import to_millis
from mainspring.errors import Failure, InvalidCursor, TakenOver
from mainspring.job import MAX_CRASHES, TRANSITIONS, Move, Priority, ProgressReport, Status
from mainspring.stores.documents import Bundle, By, Held, Key, Write
from mainspring.stores.protocol import Action, AuditFilter, Changed, Edit, Filter, Store
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    BY,
    StoreScenario,
    at,
    by_hand,
    claim,
    claim_one,
    crashed,
    end,
    found,
    job_in,
    look,
    one_of_each,
    put,
    put_many,
    running,
    status_of,
)

DELETABLE = sorted(set(Status) - {Status.RUNNING})
CANCELLABLE = sorted(status for status in DELETABLE if Move.CANCEL in TRANSITIONS[status])
RETRYABLE = sorted(status for status in Status if Move.MANUAL_RETRY in TRANSITIONS[status])
WAITING = sorted(status for status in Status if Move.EDIT in TRANSITIONS[status])


async def pages(store: Store, action: Action, by: By, size: int, **fields: Any) -> list[Changed]:
    """Do it page by page, to the end."""
    done: list[Changed] = []
    while not done or done[-1].cursor:
        cursor = done[-1].cursor if done else None
        done.append(await store.change(action, Filter(**fields), by, limit=size, cursor=cursor))
    return done


class AdminTests(StoreScenario):
    # -- automatic changes--------------------------------------------------------------------

    async def test_automatic_changes_are_in_no_audit_log(self, store: Store) -> None:
        job_id = await put(store)
        by = By("mainspring", audited=False)
        changed = await store.change(Action.EDIT, Filter(ids=(job_id,)), by, edit=Edit(payload='{"new": 1}'))
        assert (changed.ids, (await look(store, job_id)).payload) == ((job_id,), {"new": 1})
        assert (await store.audit(), [entry.what for entry in await store.timeline(job_id)]) == ([], ["created"])

    # -- cancel -------------------------------------------------------------------------------

    @pytest.mark.parametrize("status", CANCELLABLE)
    async def test_a_waiting_job_is_cancelled_at_once(self, store: Store, clock: ManualClock, status: Status) -> None:
        job_id = await job_in(store, status, keep=86_400_000)
        attempts = (await look(store, job_id)).attempts
        changed = await by_hand(store, Action.CANCEL, job_id)
        assert (changed.ids, changed.requested, changed.cursor) == ((job_id,), (), None)
        job = await look(store, job_id)
        assert (job.status, job.reason, job.attempts) == (Status.CANCELLED, "by hand", attempts)
        assert (job.finished_at, job.expires_at) == (at(clock), at(clock, 86_400))
        assert await claim(store) == []

    async def test_a_cancel_for_no_reason_leaves_none_of_before(self, store: Store) -> None:
        held = await running(store)
        await end(store, held, Move.SNOOZE, reason="quiet hours")
        await store.change(Action.CANCEL, Filter(ids=(held.id,)), By("ana"))
        job = await look(store, held.id)
        assert (job.status, job.reason) == (Status.CANCELLED, "")

    async def test_a_running_job_is_asked_to_cancel(self, store: Store) -> None:
        held = await running(store)
        changed = await by_hand(store, Action.CANCEL, held.id)
        assert (changed.ids, changed.requested) == ((), (held.id,))
        job = await look(store, held.id)
        assert (job.status, job.cancel_requested, job.reason) == (Status.RUNNING, True, "by hand")
        assert await end(store, held, Move.CANCEL) is Status.CANCELLED
        assert (await look(store, held.id)).reason == "by hand"

    async def test_a_retry_may_change_the_priority_and_leave_no_audit_entry(self, store: Store) -> None:
        """A task's recovery does this."""
        held = await running(store)
        await end(store, held, Move.DEAD)
        by = By("recovery", audited=False)
        changed = await store.change(Action.RETRY, Filter(ids=(held.id,)), by, edit=Edit(priority=Priority.HIGH))
        job = await look(store, held.id)
        assert (changed.ids, job.status, job.priority) == ((held.id,), Status.PENDING, Priority.HIGH)
        again = await claim_one(store)
        assert (again.id, again.priority, await store.audit()) == (held.id, Priority.HIGH, [])

    async def test_a_cancelled_job_can_be_retried_and_runs(self, store: Store) -> None:
        held = await running(store)
        await by_hand(store, Action.CANCEL, held.id)
        await end(store, held, Move.RETRY)
        await by_hand(store, Action.RETRY, held.id)
        assert not (await look(store, held.id)).cancel_requested
        again = await claim_one(store)
        assert dict((await store.heartbeat("w1", {again.id: again.token})).cancelled) == {}
        assert await end(store, again, Move.RETRY) is Status.RETRYING

    # -- manual retry -------------------------------------------------------------------------

    @pytest.mark.parametrize("status", RETRYABLE)
    async def test_a_manual_retry_starts_afresh(self, store: Store, clock: ManualClock, status: Status) -> None:
        held = await running(store)
        await store.report([ProgressReport(held.id, held.token, 0.5, "half")])
        move = {Status.RETRYING: Move.RETRY, Status.DEAD_LETTER: Move.DEAD, Status.CANCELLED: Move.CANCEL}[status]
        await end(store, held, move, failure=Failure("ValueError", "boom"), reason="why", delay=60_000)
        clock.advance(5)
        assert (await by_hand(store, Action.RETRY, held.id)).ids == (held.id,)
        job = await look(store, held.id)
        assert (job.status, job.attempts, job.crashes, job.run_at) == (Status.PENDING, 0, 0, at(clock))
        assert (job.failure, job.result, job.reason, job.progress) == (None, None, "", None)
        assert (job.finished_at, job.expires_at, job.token) == (None, None, held.token)
        if status is not Status.RETRYING:  # a waiting job keeps showing its last run
            assert (job.worker, job.started_at) == (None, None)
        again = await claim_one(store)
        assert (again.token > held.token, again.attempt) == (True, 1)

    async def test_a_manual_retry_clears_the_suspicion(self, store: Store) -> None:
        job_id = await crashed(store, MAX_CRASHES)
        assert await status_of(store, job_id) is Status.DEAD_LETTER
        await by_hand(store, Action.RETRY, job_id)
        assert [held.id for held in await claim(store)] == [job_id]

    @pytest.mark.parametrize("status", [Status.DEAD_LETTER, Status.CANCELLED])
    async def test_a_job_whose_key_another_holds_is_not_retried(self, store: Store, status: Status) -> None:
        old = await job_in(store, status, dedupe_key="k")
        holder = await put(store, dedupe_key="k")
        before = await look(store, old)
        for dry_run in (True, False):
            changed = await store.change(Action.RETRY, Filter(ids=(old,)), BY, dry_run=dry_run)
            assert (changed.ids, dict(changed.conflicts)) == ((), {old: holder})
        assert await look(store, old) == before

    async def test_only_one_of_two_jobs_with_the_same_key_is_retried(self, store: Store) -> None:
        first = await job_in(store, Status.DEAD_LETTER, dedupe_key="k")
        second = await job_in(store, Status.DEAD_LETTER, dedupe_key="k")
        for dry_run in (True, False):
            changed = await store.change(Action.RETRY, Filter(), BY, dry_run=dry_run)
            assert (changed.ids, dict(changed.conflicts)) == ((first,), {second: first})

    async def test_a_failed_job_does_not_conflict_with_itself(self, store: Store) -> None:
        job_id = await job_in(store, Status.RETRYING, dedupe_key="k")
        changed = await by_hand(store, Action.RETRY, job_id)
        assert (changed.ids, dict(changed.conflicts)) == ((job_id,), {})

    async def test_a_key_kept_beyond_its_job_does_not_stop_its_manual_retry(self, store: Store) -> None:
        job_id = await job_in(store, Status.DEAD_LETTER, dedupe_key="k", dedupe_for=3_600_000)
        assert (await by_hand(store, Action.RETRY, job_id)).ids == (job_id,)

    # -- delete -------------------------------------------------------------------------------

    @pytest.mark.parametrize("status", DELETABLE)
    async def test_a_job_is_deleted_with_its_history(self, store: Store, status: Status) -> None:
        job_id = await job_in(store, status)
        assert (await by_hand(store, Action.DELETE, job_id)).ids == (job_id,)
        assert await store.get([job_id]) == []
        assert await store.attempts(job_id) == []
        assert await claim(store) == []

    @pytest.mark.parametrize("status", DELETABLE)
    async def test_a_deleted_job_keeps_its_entries_in_the_audit_log(
        self, store: Store, clock: ManualClock, status: Status
    ) -> None:
        job_id = await job_in(store, status)
        before = [entry.action for entry in await store.audit(AuditFilter(job=job_id))]
        clock.advance(1)
        await store.change(Action.DELETE, Filter(ids=(job_id,)), By("bo", "not needed"))
        deleted, *others = await store.audit(AuditFilter(job=job_id))
        assert (deleted.actor, deleted.action, deleted.reason, deleted.count) == ("bo", "delete", "not needed", 1)
        assert [entry.action for entry in others] == before
        assert await store.timeline(job_id) == []

    async def test_earlier_changes_of_a_deleted_job_stay_in_the_audit_log(
        self, store: Store, clock: ManualClock
    ) -> None:
        job_id, other = await put_many(store, 2)
        for action in (Action.EDIT, Action.CANCEL, Action.DELETE):
            clock.advance(1)
            await by_hand(store, action, job_id, **({"priority": 0} if action is Action.EDIT else {}))
        actions = [entry.action for entry in await store.audit(AuditFilter(job=job_id))]
        assert actions == ["delete", "cancel", "edit"]
        assert await store.audit(AuditFilter(job=other)) == []

    async def test_a_running_job_is_not_deleted(self, store: Store) -> None:
        held = await running(store)
        changed = await by_hand(store, Action.DELETE, held.id)
        assert (changed.ids, changed.requested) == ((), ())
        assert await end(store, held, Move.DONE) is Status.COMPLETED

    # -- edit ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("status", WAITING)
    async def test_a_waiting_job_is_edited(self, store: Store, clock: ManualClock, status: Status) -> None:
        job_id = await job_in(store, status)
        edit = {"payload": '{"a": 2}', "priority": Priority.URGENT, "queue": "mail", "max_attempts": 9}
        assert (await by_hand(store, Action.EDIT, job_id, **edit, run_at=clock.now() - 5000)).ids == (job_id,)
        job = await look(store, job_id)
        assert (job.payload, job.priority, job.queue, job.max_attempts) == ({"a": 2}, Priority.URGENT, "mail", 9)
        assert (job.run_at, job.status) == (at(clock, -5), status)
        assert await claim(store) == []
        taken = await claim_one(store, queue="mail")
        assert (taken.payload, taken.max_attempts) == ('{"a": 2}', 9)

    async def test_an_edit_leaves_alone_what_it_does_not_name(self, store: Store) -> None:
        job_id = await put(store, payload='{"a": 1}', queue="mail", delay=60_000)
        before = await look(store, job_id)
        await by_hand(store, Action.EDIT, job_id, priority=Priority.HIGH)
        after = await look(store, job_id)
        assert after.priority is Priority.HIGH
        assert (after.payload, after.queue, after.run_at) == (before.payload, before.queue, before.run_at)

    async def test_an_edit_can_put_a_job_off_and_bring_it_forward(self, store: Store, clock: ManualClock) -> None:
        job_id = await put(store)
        await by_hand(store, Action.EDIT, job_id, delay=60_000)
        assert (await look(store, job_id)).run_at == at(clock, 60)
        assert await claim(store) == []
        await by_hand(store, Action.EDIT, job_id, delay=0)
        assert (await claim_one(store)).id == job_id

    @pytest.mark.parametrize("time", [{"delay": 60_000}, {"delay": 0}, {"run_at": 1}])
    async def test_a_new_time_ends_what_the_job_was_put_off_for(self, store: Store, time: dict[str, int]) -> None:
        held = await running(store)
        await end(store, held, Move.SNOOZE, delay=5_000, reason="quiet hours")
        await by_hand(store, Action.EDIT, held.id, priority=Priority.HIGH)
        assert (await look(store, held.id)).reason == "quiet hours"
        await by_hand(store, Action.EDIT, held.id, **time)
        assert (await look(store, held.id)).reason == ""

    async def test_an_edited_priority_counts_in_the_next_claim(self, store: Store) -> None:
        first, second = await put_many(store, 2)
        await by_hand(store, Action.EDIT, second, priority=Priority.URGENT)
        assert [held.id for held in await claim(store)] == [second, first]

    # -- by filter ----------------------------------------------------------------------------

    async def test_a_change_reaches_the_matching_jobs_only(self, store: Store) -> None:
        mail = await put_many(store, 3, queue="mail")
        await put_many(store, 3, queue="sms")
        changed = await store.change(Action.CANCEL, Filter(queues=("mail",)), BY)
        assert changed.ids == tuple(mail)
        assert sorted(await found(store, statuses=(Status.CANCELLED,))) == sorted(mail)

    @pytest.mark.parametrize(
        ("action", "statuses"),
        [
            (Action.CANCEL, CANCELLABLE),
            (Action.RETRY, RETRYABLE),
            (Action.DELETE, DELETABLE),
            (Action.EDIT, WAITING),
        ],
    )
    async def test_jobs_whose_status_does_not_allow_it_are_passed_over(
        self, store: Store, action: Action, statuses: list[Status]
    ) -> None:
        ids = await one_of_each(store)
        changed = await store.change(action, Filter(), BY, edit=Edit(priority=0) if action is Action.EDIT else None)
        assert sorted(changed.ids) == sorted(ids[status] for status in statuses)
        assert changed.requested == ((ids[Status.RUNNING],) if action is Action.CANCEL else ())

    @pytest.mark.parametrize("action", list(Action))
    async def test_a_dry_run_reports_everything_and_changes_nothing(self, store: Store, action: Action) -> None:
        await one_of_each(store)
        before = (await store.find(Filter())).jobs
        edit = Edit(priority=0) if action is Action.EDIT else None
        trial = await store.change(action, Filter(), BY, edit=edit, dry_run=True)
        assert (await store.find(Filter())).jobs == before
        assert await store.audit() == []
        assert await store.change(action, Filter(), BY, edit=edit) == trial

    @pytest.mark.parametrize("action", [Action.CANCEL, Action.DELETE])
    async def test_a_change_goes_page_by_page_in_the_order_of_ids(self, store: Store, action: Action) -> None:
        ids = await put_many(store, 5)
        done = await pages(store, action, BY, 2, statuses=(Status.PENDING,))
        assert [page.ids for page in done] == [tuple(ids[:2]), tuple(ids[2:4]), tuple(ids[4:])]

    async def test_the_last_full_page_knows_that_it_is_the_last(self, store: Store) -> None:
        await put_many(store, 4)
        assert len(await pages(store, Action.CANCEL, BY, 2)) == 2

    async def test_a_page_without_a_change_does_not_end_the_change(self, store: Store) -> None:
        for _ in range(3):
            await job_in(store, Status.COMPLETED)
        waiting = await put(store)
        done = await pages(store, Action.CANCEL, BY, 1)
        assert [job_id for page in done for job_id in page.ids] == [waiting]

    async def test_no_job_of_a_target_is_skipped_between_jobs_that_cannot_be_changed(self, store: Store) -> None:
        target = ("order", "7")
        finished = {await job_in(store, Status.COMPLETED, target=target) for _ in range(3)}
        ids = await put_many(store, 5, target=target)
        done = await pages(store, Action.CANCEL, BY, 2, target_type="order", target_id="7")
        assert [job_id for page in done for job_id in page.ids] == ids
        assert finished.isdisjoint(ids)

    async def test_a_dry_run_goes_page_by_page_too(self, store: Store) -> None:
        ids = await put_many(store, 3)
        first = await store.change(Action.CANCEL, Filter(), BY, limit=2, dry_run=True)
        rest = await store.change(Action.CANCEL, Filter(), BY, limit=2, cursor=first.cursor, dry_run=True)
        assert (first.ids + rest.ids, rest.cursor) == (tuple(ids), None)

    async def test_a_change_that_matches_nothing_is_fine(self, store: Store) -> None:
        changed = await store.change(Action.CANCEL, Filter(queues=("nowhere",)), BY)
        assert (changed.ids, changed.requested, dict(changed.conflicts), changed.cursor) == ((), (), {}, None)

    # -- audit --------------------------------------------------------------------------------

    @pytest.mark.parametrize("action", list(Action))
    async def test_the_audit_log_has_actor_action_and_reason(
        self, store: Store, clock: ManualClock, action: Action
    ) -> None:
        await job_in(store, Status.RETRYING, queue="mail")
        by = By("ben", "ticket 42")
        edit = Edit(max_attempts=77) if action is Action.EDIT else None
        await store.change(action, Filter(queues=("mail",)), by, edit=edit)
        (entry,) = await store.audit()
        assert (entry.at, entry.actor, entry.action, entry.reason) == (at(clock), "ben", action.value, "ticket 42")
        assert entry.count == 1
        detail = json.dumps(entry.detail)
        assert "mail" in detail
        assert ("77" in detail) is (action is Action.EDIT)

    async def test_the_audit_log_tells_times_and_lengths_as_people_read_them(
        self, store: Store, clock: ManualClock
    ) -> None:
        await put(store)
        where = Filter(created_before=at(clock, 1))
        await store.change(Action.EDIT, where, BY, edit=Edit(run_at=to_millis(at(clock, 60)), priority=0))
        await store.change(Action.EDIT, Filter(), By("ben"), edit=Edit(delay=1500))
        edits = [entry.detail["edit"] for entry in await store.audit()]
        assert {"run_at": at(clock, 60).isoformat(), "priority": "urgent"} in edits
        assert {"delay": 1.5} in edits
        assert at(clock, 1).isoformat() in {
            entry.detail["filter"].get("created_before") for entry in await store.audit()
        }

    async def test_any_filter_can_be_written_down(self, store: Store, clock: ManualClock) -> None:
        dead = await job_in(
            store, Status.DEAD_LETTER, tags=("vip",), target=("guest", "7"), payload='{"guest": {"id": 7}}'
        )
        where = Filter(
            ids=(dead,), statuses=(Status.DEAD_LETTER,), tags=("vip",), target_type="guest", created_after=at(clock),
            finished_before=at(clock, 1), payload={"guest.id": 7},
        )  # fmt: skip
        await store.change(Action.RETRY, where, BY)
        (entry,) = await store.audit()
        assert "guest.id" in json.dumps(entry.detail)

    @pytest.mark.parametrize("action", list(Action))
    async def test_a_change_that_does_nothing_is_not_in_the_audit_log(self, store: Store, action: Action) -> None:
        await running(store, queue="mail")
        edit = Edit(priority=0) if action is Action.EDIT else None
        await store.change(action, Filter(queues=("nowhere",)), BY, edit=edit)
        if action is not Action.CANCEL:  # which can be asked of a job that runs
            await store.change(action, Filter(queues=("mail",)), BY, edit=edit)
        assert await store.audit() == []

    async def test_a_manual_retry_that_only_met_conflicts_is_not_in_the_audit_log(self, store: Store) -> None:
        dead = await job_in(store, Status.DEAD_LETTER, dedupe_key="k")
        await put(store, dedupe_key="k")
        assert (await by_hand(store, Action.RETRY, dead)).ids == ()
        assert await store.audit() == []

    async def test_the_pages_of_one_operation_make_one_entry(self, store: Store) -> None:
        await put_many(store, 5)
        await pages(store, Action.CANCEL, By("ben"), 2)
        (entry,) = await store.audit()
        assert entry.count == 5

    @pytest.mark.parametrize("move", [Move.RETRY, Move.DEAD, Move.CANCEL])
    async def test_an_operation_retries_a_job_once(self, store: Store, clock: ManualClock, move: Move) -> None:
        """A page that is repeated after a crash finds jobs that have failed again since."""
        held, by = await running(store), By("ben")
        await end(store, held, move, delay=60_000)
        assert (await store.change(Action.RETRY, Filter(), by)).ids == (held.id,)
        clock.advance(1)
        await end(store, await claim_one(store), move, delay=60_000)
        clock.advance(1)
        other = await job_in(store, Status.DEAD_LETTER)
        assert (await store.change(Action.RETRY, Filter(), by)).ids == (other,)
        assert (await look(store, held.id)).status is TRANSITIONS[Status.RUNNING][move]
        (entry,) = await store.audit()
        assert (entry.count, entry.operation) == (2, by.operation)
        assert (await store.change(Action.RETRY, Filter(), By("ben"))).ids == (held.id,)

    async def test_an_operation_edits_a_job_and_asks_it_to_stop_once(self, store: Store) -> None:
        held, waiting, by = await running(store), await put(store, delay=60_000), By("ben")
        for changed in ((waiting,), ()):
            edit = Edit(priority=0)
            assert (await store.change(Action.EDIT, Filter(ids=(waiting,)), by, edit=edit)).ids == changed
        for requested in ((held.id,), ()):
            assert (await store.change(Action.CANCEL, Filter(ids=(held.id,)), by)).requested == requested
        assert {entry.action: entry.count for entry in await store.audit()} == {"cancel": 1, "edit": 1}

    async def test_a_change_is_refused_once_another_process_holds_its_document(self, store: Store) -> None:
        ids = await put_many(store, 2)
        mine, theirs = Write(Key("bulk", "", "b1"), "{}"), Write(Key("bulk", "", "b1"), "{}")
        await store.write([Bundle((mine,))])
        by = By("ben", only_while=Held(mine.key, mine.version))
        assert (await store.change(Action.CANCEL, Filter(), by, limit=1)).ids == (ids[0],)
        await store.write([Bundle((theirs,))])
        with pytest.raises(TakenOver):
            await store.change(Action.CANCEL, Filter(), by)
        await store.write([Bundle((Write(mine.key, None),))])
        with pytest.raises(TakenOver):
            await store.change(Action.CANCEL, Filter(), by)
        assert [await status_of(store, job) for job in ids] == [Status.CANCELLED, Status.PENDING]
        (entry,) = await store.audit()
        assert entry.count == 1

    async def test_the_audit_log_counts_what_was_asked_of_running_jobs(self, store: Store) -> None:
        await running(store)
        await put(store)
        await store.change(Action.CANCEL, Filter(), BY)
        (entry,) = await store.audit()
        assert entry.count == 2

    async def test_the_audit_log_shows_the_newest_first(self, store: Store, clock: ManualClock) -> None:
        for number in range(3):
            await put(store)
            await store.change(Action.DELETE, Filter(), By(f"person {number}"))
            clock.advance(1)
        assert [entry.actor for entry in await store.audit()] == ["person 2", "person 1", "person 0"]
        assert [entry.actor for entry in await store.audit(limit=1)] == ["person 2"]

    # -- the audit log ------------------------------------------------------------------------

    async def test_the_audit_log_is_filtered_and_goes_on_after_a_cursor(self, store: Store, clock: ManualClock) -> None:
        ids = await put_many(store, 4)
        for number, job_id in enumerate(ids):
            clock.advance(1)
            by = By(actor="ana" if number % 2 else "bob", reason=f"no {number}")
            action = Action.CANCEL if number < 3 else Action.EDIT
            await store.change(action, Filter(ids=(job_id,)), by, edit=Edit(priority=0) if number == 3 else None)

        async def reasons(limit: int = 100, cursor: str | None = None, **where: Any) -> list[str]:
            return [entry.reason for entry in await store.audit(AuditFilter(**where), limit=limit, cursor=cursor)]

        assert await reasons() == ["no 3", "no 2", "no 1", "no 0"]
        assert await reasons(actor="ana") == ["no 3", "no 1"]
        assert await reasons(action="edit") == ["no 3"]
        assert await reasons(since=at(clock, -1)) == ["no 3", "no 2"]
        assert await reasons(until=at(clock, -1)) == ["no 1", "no 0"]
        assert await reasons(job=ids[1]) == ["no 1"]
        assert await reasons(job=ids[1], actor="bob") == []
        first = await store.audit(limit=2)
        assert await reasons(cursor=first[-1].cursor) == ["no 1", "no 0"]
        assert await reasons(cursor=first[-1].cursor, actor="ana") == ["no 1"]
        assert await reasons(cursor=first[-1].cursor, since=at(clock, -2)) == ["no 1"]
        assert await reasons(since=at(clock, -2), until=at(clock, -1)) == ["no 1"]
        assert await reasons(since=at(clock, -1), until=at(clock, -1)) == []
        assert await reasons(operation=first[0].operation) == ["no 3"]
        assert await reasons(operation=first[0].operation, action="cancel") == []
        assert await reasons(operation=first[0].operation, cursor=first[0].cursor) == []
        with pytest.raises(InvalidCursor, match="is not a cursor of the audit log"):
            await store.audit(cursor="nonsense")

    async def test_old_entries_of_the_audit_log_are_deleted(self, store: Store, clock: ManualClock) -> None:
        first, second = await put_many(store, 2, delay=86_400_000_000)
        await store.change(Action.EDIT, Filter(ids=(first,)), By("ana"), edit=Edit(priority=0))
        clock.advance(401 * 86_400)
        await store.change(Action.EDIT, Filter(ids=(second,)), By("ana"), edit=Edit(priority=0))
        await store.prune()
        assert len(await store.audit()) == 1
        assert len(await store.audit(AuditFilter(job=second))) == 1
        assert await store.audit(AuditFilter(job=first)) == []
        clock.advance(3600)
        await store.prune(keep_audit=1000)
        assert await store.audit() == []

    async def test_an_old_deletion_of_many_jobs_is_forgotten_some_at_a_time(
        self, store: Store, clock: ManualClock
    ) -> None:
        ids = await put_many(store, 5)
        await store.change(Action.DELETE, Filter(ids=tuple(ids)), By("ana"))
        clock.advance(401 * 86_400)
        while await store.prune(limit=2) >= 2:
            pass
        assert await store.audit() == []
        assert [await store.audit(AuditFilter(job=job_id)) for job_id in ids] == [[]] * 5
