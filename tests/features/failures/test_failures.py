"""Failure groups through workers: failures are grouped, and groups are resolved, muted, retried and opened again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Mainspring, Retention, Retry
from mainspring.errors import ConfigurationError, FailureGroupNotFound, InvalidCursor
from mainspring.features.failures import index, storage
from mainspring.features.failures.group import FailureGroup, GroupPage, GroupState
from mainspring.features.failures.rules import GroupData, from_json
from mainspring.job import Status
from mainspring.stores.documents import Document, Key, Listing
from mainspring.stores.engine.failures import NOTES
from mainspring.stores.feed import ChangeKind
from mainspring.stores.protocol import Filter
from mainspring.testing import Kit, manual
from tests.features.conftest import START, NewApp
from tests.worker.working import eventually

broken = [True]


def shop(app: Mainspring) -> None:
    broken[0] = True

    @app.task(max_attempts=1)
    async def charge(order: int) -> None:
        if broken[0]:
            msg = f"there is no order {order}"
            raise LookupError(msg)

    @app.task(max_attempts=2)
    async def mail(to: str) -> None:
        if broken[0]:
            msg = f"mailbox {to!r} is full"
            raise OSError(msg)


async def enqueue(app: Mainspring, number: int, first: int = 0) -> None:
    for order in range(first, first + number):
        await app.tasks["charge"].enqueue(order=order)


async def only(app: Mainspring) -> FailureGroup:
    (group,) = (await app.failures.list()).groups
    return group


async def failed(kit: Kit, number: int = 2) -> FailureGroup:
    await enqueue(kit.app, number)
    await kit.drain()
    return await only(kit.app)


async def test_a_page_says_if_failures_are_not_counted_yet(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "NOTES_PAGE", 2)
    monkeypatch.setattr(storage, "MAX_PAGES", 1)
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        await enqueue(app, 3)
        await kit.drain()
        waiting = await app.store.browse(Listing(NOTES))
        assert len(waiting) == 3
        page = await app.failures.list()
        assert (page.groups[0].count, page.groups[0].complete, page.complete) == (2, False, False)
        group = await app.failures.get(page.groups[0].fingerprint)
        assert (group.count, group.complete) == (3, True)


async def test_each_call_says_if_failures_are_not_counted_yet(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        known = (await failed(kit, 1)).fingerprint
        monkeypatch.setattr(storage, "MAX_PAGES", 0)
        await enqueue(app, 1)
        await kit.drain()
        groups = [
            await app.failures.get(known), *await app.failures.beginning_with(known), await app.failures.mute(known),
            await app.failures.unmute(known), await app.failures.unmute(known),
        ]  # fmt: skip
        assert [(group.count, group.complete) for group in groups] == [(1, False)] * 5


async def test_failures_with_the_same_cause_are_one_group(new_app: NewApp) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        await enqueue(app, 3)
        await app.tasks["mail"].enqueue(to="ana")
        await kit.drain()
        groups = {group.task: group for group in (await app.failures.list()).groups}
        charge, mail = groups["charge"], groups["mail"]
        assert (charge.count, charge.dead, charge.error_type) == (3, 3, "LookupError")
        assert charge.place.endswith("shop.<locals>.charge")
        assert charge.message.startswith("there is no order")
        assert (charge.first_seen, charge.state) == (START, GroupState.OPEN)
        assert (mail.count, mail.dead) == (1, 0)
        found = await app.jobs.find(Filter(fingerprint=charge.fingerprint))
        assert charge.job_id in {job.id for job in found.jobs}
        assert len(found.jobs) == 3
        assert "LookupError" in (await app.failures.get(charge.fingerprint)).traceback


async def test_the_errors_of_a_task_group_are_grouped_by_the_first_of_them() -> None:
    app = Mainspring("memory://")

    async def part(number: int) -> None:
        raise (LookupError, OSError)[number % 2](f"part {number} is gone")

    @app.task(max_attempts=1)
    async def parallel(number: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(part(number))

    async with manual(app, start=START) as kit:
        for number in range(4):
            await parallel.enqueue(number=number)
        await kit.drain()
        found = {group.error_type: group for group in (await app.failures.list()).groups}
        assert {name: group.count for name, group in found.items()} == {"LookupError": 2, "OSError": 2}
        assert all(group.place.endswith("part") and group.message.startswith("part") for group in found.values())
        assert "ExceptionGroup" in (await app.failures.get(found["OSError"].fingerprint)).traceback


async def test_a_group_is_resolved_by_hand_and_opens_again_with_the_next_failure(new_app: NewApp) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        group = await failed(kit)
        resolved = await app.failures.resolve(group.fingerprint, note="fixed in 2.1", actor="ana")
        assert (resolved.state, resolved.note, resolved.actor) == (GroupState.RESOLVED, "fixed in 2.1", "ana")
        assert (resolved.automatic, resolved.dead) == (False, 2)
        assert (await app.failures.list(state="open")).groups == []
        (entry,) = await app.audit()
        assert (entry.action, entry.actor, entry.reason) == ("failure.resolve", "ana", "fixed in 2.1")
        assert entry.detail == {"fingerprint": group.fingerprint}
        await kit.time.advance(minutes=5)
        await enqueue(app, 1, first=9)
        await kit.drain()
        again = await only(app)
        assert (again.state, again.reopened, again.is_regression) == (GroupState.OPEN, 1, True)
        assert again.reopened_at == again.last_seen > again.first_seen
        assert again.count == 3


async def test_a_group_is_resolved_when_the_last_of_its_jobs_has_succeeded(new_app: NewApp) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        group = await failed(kit)
        broken[0] = False
        jobs = (await app.jobs.find(Filter(fingerprint=group.fingerprint))).jobs
        await app.jobs.retry(jobs[0].id)
        await kit.drain()
        assert (await only(app)).state is GroupState.OPEN  # one dead letter is left
        result = await app.failures.retry(group.fingerprint, reason="fixed", actor="ana")
        assert result.changed == 1
        await kit.drain()
        resolved = await only(app)
        assert (resolved.state, resolved.automatic, resolved.dead) == (GroupState.RESOLVED, True, 0)
        assert "retry" in {entry.action for entry in await app.audit()}


async def test_a_job_that_fails_while_its_group_is_resolved_opens_it(new_app: NewApp) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        group = await failed(kit, 1)
        broken[0] = False
        await app.failures.retry(group.fingerprint)
        await kit.drain()
        resolved = await only(app)
        assert (resolved.state, resolved.automatic) == (GroupState.RESOLVED, True)
        broken[0] = True
        await enqueue(app, 1, first=9)
        await kit.drain()
        again = await only(app)
        assert again.last_seen == resolved.changed_at  # no time has passed, so it may have failed before
        assert (again.state, again.reopened, again.dead) == (GroupState.OPEN, 1, 1)


async def test_a_retry_that_succeeds_by_itself_resolves_its_group(new_app: NewApp) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        await app.tasks["mail"].enqueue(to="ana")
        await kit.drain()
        assert (await only(app)).state is GroupState.OPEN
        broken[0] = False
        await kit.time.advance(hours=1)
        assert (await only(app)).state is GroupState.RESOLVED


async def test_a_success_resolves_all_groups_in_which_the_job_has_failed(new_app: NewApp) -> None:
    app = new_app()
    errors = [LookupError("a"), ValueError("b"), LookupError("a"), OSError("c")]
    left = list(errors)

    @app.task(retry=Retry(max_attempts=9, base=60, max_delay=60))
    async def flaky() -> None:
        if left:
            raise left.pop(0)

    async with manual(app, start=START) as kit:
        await flaky.enqueue()
        for _ in range(len(errors)):
            await kit.drain()
            assert {group.state for group in (await app.failures.list()).groups} == {GroupState.OPEN}
            await kit.time.advance(seconds=61)
        await kit.drain()
        groups = {group.error_type: group for group in (await app.failures.list()).groups}
        assert {name: group.count for name, group in groups.items()} == {
            "LookupError": 2,
            "ValueError": 1,
            "OSError": 1,
        }
        assert all(group.state is GroupState.RESOLVED and group.automatic for group in groups.values())
        assert {group.reopened for group in groups.values()} == {0}


async def test_a_second_bug_that_a_fix_uncovers_keeps_the_first_group_open_until_the_job_succeeds(
    new_app: NewApp,
) -> None:
    app = new_app()
    bugs: list[Exception] = [LookupError("first")]

    @app.task(max_attempts=1)
    async def buggy() -> None:
        if bugs:
            raise bugs[-1]

    async with manual(app, start=START) as kit:
        for _ in range(2):
            await buggy.enqueue()
        await kit.drain()
        first = await only(app)
        bugs[0] = ValueError("second")
        await app.failures.retry(first.fingerprint)
        await kit.drain()
        groups = {group.error_type: group for group in (await app.failures.list()).groups}
        assert {name: (group.state, group.dead) for name, group in groups.items()} == {
            "LookupError": (GroupState.OPEN, 0), "ValueError": (GroupState.OPEN, 2),
        }  # fmt: skip
        bugs.clear()
        await app.failures.retry(groups["ValueError"].fingerprint)
        await kit.drain()
        groups = {group.error_type: group for group in (await app.failures.list()).groups}
        assert {group.state for group in groups.values()} == {GroupState.RESOLVED}


async def test_a_success_leaves_a_group_open_that_has_other_jobs(new_app: NewApp) -> None:
    app = new_app()
    runs: dict[int, int] = {}

    @app.task(max_attempts=5)
    async def fetch(number: int) -> None:
        runs[number] = runs.get(number, 0) + 1
        if runs[number] == 1 or number == 2:
            raise LookupError("there")
        if runs[number] == 2:
            raise ValueError("then")

    async with manual(app, start=START) as kit:
        for number in (1, 2):
            await fetch.enqueue(number=number)
        await kit.drain()
        await kit.time.advance(days=1)
        await kit.drain()
        states = {group.error_type: group.state for group in (await app.failures.list()).groups}
        assert states == {"LookupError": GroupState.OPEN, "ValueError": GroupState.RESOLVED}


async def test_a_muted_group_counts_and_stays_muted_until_its_time(new_app: NewApp) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        group = await failed(kit)
        muted = await app.failures.mute(group.fingerprint, length=timedelta(hours=1), note="known", actor="ana")
        assert (muted.state, muted.until) == (GroupState.MUTED, START + timedelta(hours=1))
        await enqueue(app, 1)
        await kit.drain()
        assert ((await only(app)).state, (await only(app)).count) == (GroupState.MUTED, 3)
        assert (await app.failures.list(state="open")).groups == []
        await kit.time.advance(hours=2)
        assert (await only(app)).state is GroupState.OPEN


async def test_a_group_whose_mute_has_ended_is_open_also_without_a_worker(new_app: NewApp) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        group = await failed(kit)
        await app.failures.mute(group.fingerprint, length=timedelta(hours=1))
        assert [each.state for each in (await app.failures.list(state="muted")).groups] == [GroupState.MUTED]
        kit.clock.advance(timedelta(hours=1))
        assert (await app.failures.list(state="muted")).groups == []
        (shown,) = (await app.failures.list(state="open")).groups
        assert (shown.state, shown.changed_at, shown.until) == (GroupState.OPEN, START + timedelta(hours=1), None)
        assert shown.is_regression is False


async def muted_and_repaired(kit: Kit, length: timedelta | None) -> FailureGroup:
    """Return a muted group whose dead letters were all retried with success."""
    group = await failed(kit)
    await kit.app.failures.mute(group.fingerprint, length=length, actor="ana")
    broken[0] = False
    await kit.app.failures.retry(group.fingerprint)
    await kit.drain()
    muted = await only(kit.app)
    assert (muted.state, muted.dead) == (GroupState.MUTED, 0)
    return muted


@pytest.mark.parametrize("with_worker", [True, False])
async def test_a_muted_group_whose_jobs_have_succeeded_is_resolved_when_the_mute_ends(
    new_app: NewApp, with_worker: bool
) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        await muted_and_repaired(kit, timedelta(hours=1))
        if with_worker:
            await kit.time.advance(hours=2)
        else:
            kit.clock.advance(timedelta(hours=2))
        assert (await app.failures.list(state=("open", "muted"))).groups == []
        (group,) = (await app.failures.list(state="resolved")).groups
        assert (group.automatic, group.changed_at, group.until) == (True, START + timedelta(hours=1), None)


async def test_unmuting_a_group_whose_jobs_have_succeeded_resolves_it(new_app: NewApp) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        group = await muted_and_repaired(kit, None)
        after = await app.failures.unmute(group.fingerprint, actor="bob", note="fixed")
        assert (after.state, after.automatic, after.actor) == (GroupState.RESOLVED, True, "bob")


async def test_a_muted_group_that_fails_after_its_recovery_opens_when_the_mute_ends(new_app: NewApp) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        await muted_and_repaired(kit, timedelta(hours=1))
        broken[0] = True
        await kit.time.advance(minutes=1)
        await enqueue(app, 1, first=9)
        await kit.drain()
        await kit.time.advance(hours=2)
        assert ((await only(app)).state, (await only(app)).dead) == (GroupState.OPEN, 1)


async def test_a_muted_group_with_a_job_that_runs_again_opens_when_the_mute_ends() -> None:
    app = Mainspring("memory://")
    shop(app)
    async with manual(app, start=START) as kit:
        jobs = [await app.tasks["mail"].enqueue(to=name) for name in ("ana", "bob")]
        await kit.drain()
        await app.failures.mute((await only(app)).fingerprint, length=timedelta(hours=3))
        await app.jobs.cancel(jobs[0].id)
        broken[0] = False
        await kit.time.advance(hours=1)  # the other job succeeds, so the group has recovered
        await app.jobs.retry(jobs[0].id)
        kit.clock.advance(timedelta(hours=3))
        assert (await only(app)).state is GroupState.OPEN
        await kit.drain()
        assert (await only(app)).state is GroupState.RESOLVED


async def test_deleted_dead_letters_do_not_resolve_a_muted_group() -> None:
    app = Mainspring("memory://")
    shop(app)
    async with manual(app, start=START) as kit:
        group = await failed(kit)
        await app.failures.mute(group.fingerprint, length=timedelta(hours=1))
        await app.jobs.delete_where(Filter(fingerprint=group.fingerprint))
        await kit.time.advance(hours=2)
        assert ((await only(app)).state, (await only(app)).dead) == (GroupState.OPEN, 0)


async def test_the_audit_log_has_the_end_of_a_mute_as_a_time() -> None:
    app = Mainspring("memory://")
    shop(app)
    async with manual(app, start=START) as kit:
        group = await failed(kit)
        await app.failures.mute(group.fingerprint, length=timedelta(hours=1))
        (entry,) = await app.audit()
        assert entry.detail == {
            "fingerprint": group.fingerprint,
            "until": (START + timedelta(hours=1)).isoformat(),
        }


async def test_a_mute_of_an_old_group_with_jobs_ends_in_time() -> None:
    app = Mainspring("memory://")

    @app.task(max_attempts=1, retention=Retention(dead=timedelta(days=400)))
    async def kept() -> None:
        raise LookupError

    async with manual(app, start=START) as kit:
        await kept.enqueue()
        await kit.drain()
        assert (await only(app)).dead == 1
        await kit.time.advance(days=100)
        group = await app.failures.mute((await only(app)).fingerprint, length=timedelta(hours=1))
        await kit.time.advance(minutes=30)  # the group is old enough to go, and stays because of its job
        assert (await only(app)).state is GroupState.MUTED
        kit.clock.advance(timedelta(minutes=31))
        assert [each.fingerprint for each in (await app.failures.list(state="open")).groups] == [group.fingerprint]


async def test_unmute_and_reopen(new_app: NewApp) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        group = await failed(kit)
        await app.failures.mute(group.fingerprint)
        assert (await app.failures.unmute(group.fingerprint)).state is GroupState.OPEN
        await app.failures.resolve(group.fingerprint)
        assert (await app.failures.unmute(group.fingerprint)).state is GroupState.RESOLVED
        reopened = await app.failures.reopen(group.fingerprint, note="not fixed")
        assert (reopened.state, reopened.is_regression) == (GroupState.OPEN, False)
        actions = [entry.action for entry in await app.audit()]
        assert sorted(actions) == ["failure.mute", "failure.reopen", "failure.resolve", "failure.unmute"]


async def test_many_processes_add_up_notes_and_each_counts_once(new_app: NewApp) -> None:
    app, other = new_app(), new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        await enqueue(app, 200)
        await kit.drain()
        await asyncio.gather(*(each.failures.list() for each in (app, other) for _ in range(5)))
        assert (await only(app)).count == 200


async def test_changes_of_state_are_in_the_change_feed() -> None:
    app = Mainspring("memory://")
    shop(app)
    async with manual(app, start=START) as kit:
        before = (await app.store.changes()).cursor
        group = await failed(kit)
        await enqueue(app, 1)
        await kit.drain()
        await app.failures.resolve(group.fingerprint)
        await kit.time.advance(seconds=1)
        await enqueue(app, 1)
        await kit.drain()
        assert (await only(app)).state is GroupState.OPEN
        page = await app.store.changes(str(before))
        told = [entry for entry in page.entries if entry.kind is ChangeKind.FAILURE_GROUP]
        assert [(entry.data or {})["ids"] for entry in told] == [[group.fingerprint]] * 3  # new, resolved, open again
        dead = [entry for entry in page.entries if entry.kind is ChangeKind.DEAD_LETTERED]
        assert {change["fingerprint"] for entry in dead for job in entry.jobs if (change := job.data)} == {  # type: ignore[union-attr]
            group.fingerprint
        }


async def test_a_group_goes_after_ninety_days_without_jobs(new_app: NewApp) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        group = await failed(kit)
        await kit.time.advance(days=60)
        await app.store.prune()
        assert (await only(app)).fingerprint == group.fingerprint
        await kit.time.advance(days=31)
        assert (await app.failures.list()).groups == []


async def test_a_group_stays_while_it_has_jobs() -> None:
    app = Mainspring("memory://")

    @app.task(max_attempts=1, retention=Retention(dead=timedelta(days=200)))
    async def kept() -> None:
        raise LookupError

    async with manual(app, start=START) as kit:
        await kept.enqueue()
        await kit.drain()
        assert (await only(app)).dead == 1
        await kit.time.advance(days=150)
        await app.store.prune()
        assert (await only(app)).task == "kept"
        await kit.time.advance(days=51)
        await app.store.prune()
        await kit.time.advance(days=8)
        assert (await app.failures.list()).groups == []


async def test_lists_are_filtered_and_paged() -> None:
    app = Mainspring("memory://")
    shop(app)
    names = [f"task_{letter}" for letter in "abcde"]

    async def fail() -> None:
        raise LookupError

    for name in names:
        app.task(max_attempts=1, name=name)(fail)
    async with manual(app, start=START) as kit:
        for name in names:
            await app.tasks[name].enqueue()
            await kit.drain()
            await kit.time.advance(minutes=1)
        seen, cursor = [], None
        while True:
            page = await app.failures.list(limit=2, cursor=cursor)
            seen += [group.task for group in page.groups]
            if (cursor := page.cursor) is None:
                break
        assert seen == names[::-1]
        late = await app.failures.list(since=START + timedelta(minutes=3))
        assert [group.task for group in late.groups] == ["task_e", "task_d"]
        assert [group.task for group in (await app.failures.list(task="task_b")).groups] == ["task_b"]
        assert (await app.failures.list(state=("resolved", "muted"))).groups == []


async def entries(app: Mainspring) -> set[Key]:
    return {document.key for document in await app.store.browse(Listing(index.INDEX, limit=1000))}


async def groups(app: Mainspring) -> list[GroupData]:
    return [from_json(document.data) for document in await app.store.browse(Listing(storage.COLLECTION, limit=1000))]


async def test_the_index_has_each_group_in_its_lists_and_nothing_else(new_app: NewApp) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        await enqueue(app, 20)
        await app.tasks["mail"].using(queue="p/acme/mail").enqueue(to="ana")
        await kit.drain()
        known = fingerprints(await app.failures.list(task="charge"))[0]
        changes = [getattr(app.failures, name)(known) for name in ("resolve", "mute", "reopen") for _ in range(2)]
        await asyncio.gather(*changes, *(app.failures.list() for _ in range(2)))
        there = await groups(app)
        assert await entries(app) == {entry for group in there for entry in index.entries(group)}
        assert len(there) == 2
        assert len(await entries(app)) == 2 + 4
        await kit.time.advance(days=91)
        await app.store.prune()
        await kit.time.advance(days=91)
        assert (await app.failures.list()).groups == []
        assert await entries(app) == set()


async def test_a_process_that_dies_before_its_write_leaves_groups_and_index_as_they_were(
    new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        group = await failed(kit)
        before = await entries(app)
        await enqueue(app, 1, first=9)
        await kit.drain()

        async def die(_bundles: object) -> None:
            raise SystemExit

        with monkeypatch.context() as patch:
            patch.setattr(app.store, "write", die)
            with pytest.raises(SystemExit):
                await app.failures.list()
        assert await entries(app) == before
        assert (await only(app)).count == group.count + 1


async def test_a_page_reads_no_more_entries_and_groups_than_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Mainspring("memory://")
    names = [f"task_{number:03}" for number in range(60)]

    async def fail() -> None:
        raise LookupError

    for name in names:
        app.task(max_attempts=1, name=name)(fail)
    async with manual(app, start=START) as kit:
        for name in names:
            await app.tasks[name].enqueue()
        await kit.drain()
        await app.failures.list()
        read: list[int] = []
        browse, documents = app.store.browse, app.store.documents

        async def counted_browse(listing: Listing) -> list[Document]:
            read.append(len(found := await browse(listing)))
            return found

        async def counted_documents(keys: Sequence[Key]) -> list[Document]:
            read.append(len(found := await documents(keys)))
            return found

        monkeypatch.setattr(app.store, "browse", counted_browse)
        monkeypatch.setattr(app.store, "documents", counted_documents)
        page = await app.failures.list(limit=5)
        assert len(page.groups) == 5
        assert sum(read) == (5 + 1) + 5


FILTERS: list[dict[str, Any]] = [
    {},
    {"state": "open"},
    {"state": ("open", "resolved")},
    {"task": "task_a"},
    {"since": START},
    {"task": "task_a", "state": "open"},
]


async def test_a_cursor_fits_only_the_list_that_it_comes_from() -> None:
    app = Mainspring("memory://")

    async def fail(number: int) -> None:
        raise (LookupError, OSError, KeyError)[number]

    app.task(max_attempts=1, name="task_a")(fail)
    async with manual(app, start=START) as kit:
        for number in range(3):
            await app.tasks["task_a"].enqueue(number=number)
        await kit.drain()
        for given in FILTERS:
            cursor = (await app.failures.list(limit=2, **given)).cursor
            assert cursor is not None
            for others in FILTERS:
                if others == given:
                    assert len((await app.failures.list(cursor=cursor, **others)).groups) == 1
                else:
                    with pytest.raises(InvalidCursor, match="with other filters"):
                        await app.failures.list(cursor=cursor, **others)
        with pytest.raises(InvalidCursor, match="with other filters"):
            await app.failures.of_project("acme").list(cursor=(await app.failures.list(limit=2)).cursor)


def fingerprints(page: GroupPage) -> list[str]:
    return [group.fingerprint for group in page.groups]


async def test_groups_are_found_by_the_beginning_of_their_fingerprint(new_app: NewApp) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        for queue in ("work", "p/acme/work"):
            await app.tasks["charge"].using(queue=queue).enqueue(order=1)
        await app.tasks["mail"].enqueue(to="ana")
        await kit.drain()
        everything = fingerprints(await app.failures.list())
        assert len(everything) == 3
        for known in everything:
            found = await app.failures.beginning_with(known[:-4])
            assert [(group.fingerprint, group.count) for group in found] == [(known, 1)]
        assert len(await app.failures.beginning_with("")) == 2  # those without a project
        assert len(await app.failures.beginning_with("", limit=1)) == 1
        assert await app.failures.beginning_with("acme") == []
        acme = app.failures.of_project("acme")
        (ours,) = await acme.beginning_with("acme.")
        assert ours.dead == 1
        assert [await acme.beginning_with(known) for known in everything if known != ours.fingerprint] == [[], []]


async def test_a_group_that_fails_again_moves_to_the_top(new_app: NewApp) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        charge = await failed(kit)
        await kit.time.advance(minutes=1)
        await app.tasks["mail"].enqueue(to="ana")
        await kit.drain()
        page = await app.failures.list(limit=1)
        assert page.groups[0].task == "mail"
        await kit.time.advance(seconds=1)
        await enqueue(app, 1)
        await kit.drain()
        assert [group.task for group in (await app.failures.list()).groups] == ["charge", "mail"]
        assert fingerprints(await app.failures.list(task="charge")) == [charge.fingerprint]
        assert (await app.failures.list(cursor=page.cursor)).groups == []  # it is on the first page now


async def test_the_groups_of_a_project_are_its_own(new_app: NewApp) -> None:
    app = new_app()
    shop(app)
    async with manual(app, start=START) as kit:
        charge = app.tasks["charge"]
        for queue, order in (("p/acme/work", 1), ("p/acme/more", 2), ("p/other/work", 3), ("work", 4)):
            await charge.using(queue=queue).enqueue(order=order)
        await kit.drain()
        acme, other = app.failures.of_project("acme"), app.failures.of_project("other")
        (ours,), (theirs,) = (await acme.list()).groups, (await other.list()).groups
        assert (ours.count, ours.dead_in) == (2, {"p/acme/work": 1, "p/acme/more": 1})
        assert (theirs.message, theirs.dead_in) == ("there is no order 3", {"p/other/work": 1})
        assert len((await app.failures.list()).groups) == 3
        bare = ours.fingerprint.removeprefix("acme.")
        assert (await app.failures.get(bare)).message == "there is no order 4"
        for name in (theirs.fingerprint, bare, "x"):
            for call in (acme.get, acme.resolve, acme.mute, acme.unmute, acme.reopen, acme.retry):
                with pytest.raises(FailureGroupNotFound):
                    await call(name)
        await acme.resolve(ours.fingerprint)
        assert [(await each.list(state="open")).groups for each in (acme, other)] == [[], [theirs]]
        assert (await other.retry(theirs.fingerprint)).changed == 1
        assert (await acme.get(ours.fingerprint)).dead == 2
        with pytest.raises(ConfigurationError, match="not a name for a project"):
            app.failures.of_project("")


async def test_a_job_that_is_moved_to_another_project_is_no_longer_counted_in_the_first() -> None:
    app = Mainspring("memory://")
    shop(app)
    async with manual(app, start=START) as kit:
        job = await app.tasks["charge"].using(queue="p/acme/work").enqueue(order=1)
        await kit.drain()
        (ours,) = (await app.failures.of_project("acme").list()).groups
        await app.jobs.retry(job.id)
        await app.jobs.edit(job.id, queue="p/other/work")
        await kit.drain()
        assert (await app.failures.of_project("acme").get(ours.fingerprint)).dead == 0
        assert [group.dead for group in (await app.failures.of_project("other").list()).groups] == [1]


async def test_what_is_given_is_checked() -> None:
    app = Mainspring("memory://")
    async with app:
        with pytest.raises(FailureGroupNotFound, match="no failure group 'x'"):
            await app.failures.get("x")
        with pytest.raises(FailureGroupNotFound):
            await app.failures.resolve("x")
        with pytest.raises(FailureGroupNotFound):
            await app.failures.retry("x")
        wrong: list[Any] = [3, ([],), {"open": 1}]
        for state in wrong:
            with pytest.raises(ConfigurationError, match="is not a state of a failure group"):
                await app.failures.list(state=state)
        with pytest.raises(ConfigurationError, match="'closed' is not a state of a failure group; use any of open"):
            await app.failures.list(state="closed")
        with pytest.raises(ConfigurationError, match="limit is 0"):
            await app.failures.list(limit=0)
        with pytest.raises(InvalidCursor, match="not a cursor of failure groups"):
            await app.failures.list(cursor="%%%")
        with pytest.raises(ConfigurationError, match="until or length, not both"):
            await app.failures.mute("x", until=START, length=60)
        with pytest.raises(ConfigurationError, match="is past; give a later time"):
            await app.failures.mute("x", until=START - timedelta(days=9000))
        with pytest.raises(ConfigurationError, match="at most 4000"):
            await app.failures.resolve("x", note="x" * 4001)


def test_code_without_an_event_loop_has_the_same_methods() -> None:
    app = Mainspring("memory://")
    shop(app)
    app.tasks["charge"].enqueue_sync(order=1)
    app.run(run_all(app))
    (group,) = app.failures.list_sync().groups
    known = group.fingerprint
    assert app.failures.resolve_sync(known).state is GroupState.RESOLVED
    assert app.failures.reopen_sync(known).state is GroupState.OPEN
    assert app.failures.mute_sync(known).state is GroupState.MUTED
    assert app.failures.unmute_sync(known).state is GroupState.OPEN
    assert app.failures.retry_sync(known, dry_run=True).changed == 1
    assert app.failures.get_sync(known).dead == 1
    app.run(app.close())


async def run_all(app: Mainspring) -> None:
    async with app.worker():
        await eventually(lambda: has_failed(app))


async def has_failed(app: Mainspring) -> bool:
    return await app.jobs.count(Filter(statuses=(Status.DEAD_LETTER,))) == 1
