"""Moving from store to store: what one store dumps another loads, and dumps the same again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from mainspring.errors import Failure
from mainspring.ids import new_id
from mainspring.job import FOREVER, Inserted, Move, ProgressReport, Save, Status, Step
from mainspring.stores.columns import JOB
from mainspring.stores.documents import Bundle, By, Document, Key, Write
from mainspring.stores.protocol import Action, AuditFilter, Filter, Rewrite, Store
from mainspring.stores.records import JOBS, Kind, Record, RecordPage, kind_of
from mainspring.stores.sqlite import MemoryStore
from mainspring.testing.clock import ManualClock
from tests.conformance.scenario import (
    StoreScenario,
    a_halt,
    at,
    by_hand,
    claim,
    claim_one,
    crashed,
    end,
    job_in,
    look,
    new_job,
    one_of_each,
    outcome,
    put,
    put_many,
    running,
    status_of,
)

DAY = 86_400_000
RICH: dict[str, Any] = {
    "task": "welcome",
    "queue": "mail",
    "priority": 1,
    "payload": '{"guest": "Zoë", "text": "a \\"b\\" \\u0000 \\n"}',
    "max_attempts": 7,
    "timeout": 90_000,
    "target": ("reservation", "r'7"),
    "tags": ("vip", 'a "quoted", {tag}\\'),
    "keep": 3 * DAY,
    "keep_dead": 5 * DAY,
    "options": '{"retry": {"base": 2}}',
}


class TransferTests(StoreScenario):
    @pytest.fixture
    def other(self, clock: ManualClock) -> Store:
        """The other side of a transfer."""
        return MemoryStore(clock=clock)

    # -- texts in another form -------------------------------------------------------------------

    async def test_a_text_is_rewritten_only_if_it_is_still_the_old_one(self, store: Store) -> None:
        live = await put(store, payload='{"n":1}', options='{"headers":{"a":"1"}}')
        ended = await put(store, queue="ended", payload='{"n":2}', options='{"retry":{"base":2}}')
        held = await claim_one(store, queue="ended")
        await store.save([Save(ended, held.token, (Step("one", 1, output='"x"'),))])
        await store.ack([outcome(held, Move.DONE, result='{"r":1}')])
        before = {job.id: job for job in await store.get([live, ended])}
        texts = [
            Rewrite(live, "payload", '{"n":1}', '{"n":10}'),
            Rewrite(live, "options", '{"headers":{"a":"1"}}', '{"headers":{"a":"2"}}'),
            Rewrite(ended, "payload", '{"n":2}', '{"n":20}'),
            Rewrite(ended, "options", '{"retry":{"base":2}}', '{"retry":{"base":3}}'),
            Rewrite(ended, "result", '{"r":1}', '{"r":10}'),
            Rewrite(ended, "output", '"x"', '"y"', "one"),
        ]
        wrong = [replace(text, old=text.new) for text in texts]
        assert await store.rewrite(wrong) == 0
        assert await store.rewrite([Rewrite(new_id(), "payload", "1", "2"), *texts]) == 6
        assert await store.rewrite(texts) == 0
        after = {job.id: job for job in await store.get([live, ended])}
        assert (after[live].payload, after[live].headers) == ({"n": 10}, {"a": "2"})
        assert (after[ended].payload, after[ended].result) == ({"n": 20}, {"r": 10})
        assert after[ended].options == {"retry": {"base": 3}}
        assert [step.output for step in await store.steps(ended)] == ['"y"']
        assert all(after[job.id].updated_at == job.updated_at for job in before.values())

    async def test_a_long_text_is_rewritten(self, store: Store) -> None:
        old, new = json.dumps({"text": "a" * 50_000}), json.dumps({"text": "b" * 50_000})
        job_id = await put(store, payload=old)
        assert await store.rewrite([Rewrite(job_id, "payload", old, new)]) == 1
        assert (await store.get([job_id]))[0].payload == {"text": "b" * 50_000}

    # -- nothing is changed on the way ----------------------------------------------------------

    async def test_records_loaded_from_another_store_are_dumped_unchanged(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        await fill(other, clock)
        await copy(other, store)
        assert await everything(store) == await everything(other)

    async def test_another_store_can_take_everything(self, store: Store, other: Store, clock: ManualClock) -> None:
        await fill(store, clock)
        await copy(store, other)
        assert await everything(other) == await everything(store)

    async def test_dumped_records_are_json(self, store: Store, clock: ManualClock) -> None:
        await fill(store, clock)
        records = await everything(store)
        assert json.loads(json.dumps(records)) == records
        assert all(records[kind] for kind in Kind)

    async def test_a_job_reads_the_same_on_the_other_side(self, store: Store, other: Store, clock: ManualClock) -> None:
        theirs = [await with_a_past(other, clock, status) for status in Status]
        await copy(other, store)
        for job_id in theirs:
            await assert_same(store, other, job_id)

    async def test_a_job_reads_the_same_in_another_store(self, store: Store, other: Store, clock: ManualClock) -> None:
        ours = [await with_a_past(store, clock, status) for status in Status]
        await copy(store, other)
        for job_id in ours:
            await assert_same(store, other, job_id)

    async def test_a_job_has_all_fields(self, store: Store) -> None:
        await put(store, **RICH, dedupe_key="k")
        (record,) = (await store.dump(Kind.LIVE)).records
        assert set(record) == {"key", *JOB, "runs", "steps", "by_hand"}
        assert record["tags"] == list(RICH["tags"])
        same = RICH.keys() - {"tags", "target"}
        assert {name: record[name] for name in same} == {name: RICH[name] for name in same}

    async def test_long_payloads_results_and_tracebacks_arrive(self, store: Store, other: Store) -> None:
        long = json.dumps({"text": "ä\n" * 50_000})
        held = await running(other, payload=long)
        failure = Failure("ValueError", "m" * 4000, "t" * 16_000)  # as long as stores keep them
        await end(other, held, Move.RETRY, failure=failure)
        await end(other, await claim_one(other), Move.DONE, result=long)
        await put(other, payload=long)
        await copy(other, store)
        assert await everything(store) == await everything(other)
        assert (await store.attempts(held.id))[0].failure == failure

    async def test_every_job_is_of_one_kind(self, store: Store) -> None:
        jobs = await one_of_each(store)
        for kind in JOBS:
            records = (await store.dump(kind)).records
            assert {record["id"] for record in records} == {
                jobs[status] for status in Status if kind_of(status) is kind
            }

    # -- in pages -------------------------------------------------------------------------------

    async def test_pages_add_up_to_everything_once(self, store: Store, other: Store, clock: ManualClock) -> None:
        for _ in range(3):
            await fill(other, clock)
            clock.advance(1)
        await copy(other, store)
        for kind in Kind:
            whole = [record["key"] for record in await all_of(store, kind)]
            for limit in (1, 2, len(whole)):
                assert [record["key"] for record in await all_of(store, kind, limit=limit)] == whole

    async def test_a_page_of_long_payloads_is_shorter(self, store: Store) -> None:
        """What is in memory at once must not grow with the payloads."""
        ids = await put_many(store, 40, payload=json.dumps("x" * 300_000))
        first = await store.dump(Kind.LIVE)
        assert len(first.records) < len(ids)
        assert sorted(record["id"] for record in await all_of(store, Kind.LIVE)) == sorted(ids)

    async def test_an_empty_store_dumps_nothing(self, store: Store) -> None:
        for kind in Kind:
            assert await store.dump(kind) == RecordPage([], None)
            assert await store.look_up(kind, []) == []
            assert await store.load(kind, []) == {}

    # -- looking up -----------------------------------------------------------------------------

    async def test_records_are_found_by_their_keys(self, store: Store, clock: ManualClock) -> None:
        await fill(store, clock)
        for kind in Kind:
            records = await all_of(store, kind)
            keys = [record["key"] for record in records]
            assert by_key(await store.look_up(kind, keys)) == by_key(records)
            assert await store.look_up(kind, keys[:1]) == records[:1]

    async def test_a_job_is_not_found_under_another_kind(self, store: Store) -> None:
        jobs = await one_of_each(store)
        for status, job_id in jobs.items():
            for kind in JOBS - {kind_of(status)}:
                assert await store.look_up(kind, [job_id]) == []

    # -- loading again, and what is in the way --------------------------------------------------

    async def test_loading_twice_is_loading_once(self, store: Store, other: Store, clock: ManualClock) -> None:
        await fill(other, clock)
        await copy(other, store)
        before, counts = await everything(store), (await store.stats()).queues
        for kind in Kind:
            records = await all_of(other, kind)
            assert (await store.load(kind, records)).keys() == by_key(records).keys()
        assert await everything(store) == before
        assert (await store.stats()).queues == counts

    async def test_half_of_a_page_may_be_there_already(self, store: Store, other: Store) -> None:
        ids = sorted(await put_many(other, 6, tags=("a",)))
        records = await all_of(other, Kind.LIVE)
        assert await store.load(Kind.LIVE, records[:3]) == {}
        assert await store.load(Kind.LIVE, records) == {job_id: job_id for job_id in ids[:3]}
        assert await store.count(Filter(tags=("a",))) == 6
        assert (await store.stats()).queues == (await other.stats()).queues

    async def test_loading_again_does_not_undo_later_changes(self, store: Store, other: Store) -> None:
        """A job that ran here does not come back to life because it is loaded again."""
        ids = await put_many(other, 4)
        records = await all_of(other, Kind.LIVE)
        await store.load(Kind.LIVE, records)
        done, held, gone = await claim(store, 3)
        await store.ack([outcome(done, Move.DONE), outcome(gone, Move.CANCEL)])
        before = await everything(store)
        assert await store.load(Kind.LIVE, records) == {job_id: job_id for job_id in ids}
        assert await everything(store) == before
        assert await store.ack([outcome(held, Move.DONE)]) == [Status.COMPLETED]

    async def test_a_job_that_was_deleted_here_comes_back_as_it_was(self, store: Store, other: Store) -> None:
        job_id = await put(store)
        await by_hand(store, Action.EDIT, job_id, priority=0)
        await copy(store, other)
        await by_hand(other, Action.CANCEL, job_id)
        await by_hand(other, Action.DELETE, job_id)
        assert await other.load(Kind.LIVE, await all_of(store, Kind.LIVE)) == {}
        assert await all_of(other, Kind.LIVE) == await all_of(store, Kind.LIVE)
        assert [entry.action for entry in await other.audit(AuditFilter(job=job_id))] == ["edit"]

    async def test_a_live_job_in_the_way_is_named(self, store: Store, other: Store) -> None:
        holder = await put(store, task="greet", dedupe_key="k")
        loser = await put(other, task="greet", dedupe_key="k")
        free = await put(other, task="part", dedupe_key="k")
        assert await store.load(Kind.LIVE, await all_of(other, Kind.LIVE)) == {loser: holder}
        assert {job.id for job in (await store.find(Filter())).jobs} == {holder, free}
        assert sum(counts[Status.PENDING] for counts in (await store.stats()).queues) == 2

    async def test_a_finished_job_blocks_no_other_job(self, store: Store, other: Store) -> None:
        await job_in(store, Status.COMPLETED, dedupe_key="k")
        await job_in(other, Status.DEAD_LETTER, dedupe_key="dead")
        await put(other, dedupe_key="k")
        await put(store, dedupe_key="dead")
        assert await store.load(Kind.LIVE, await all_of(other, Kind.LIVE)) == {}
        assert await store.load(Kind.DEAD, await all_of(other, Kind.DEAD)) == {}

    async def test_a_lasting_key_that_is_here_stays(self, store: Store, other: Store) -> None:
        mine = await job_in(store, Status.COMPLETED, dedupe_key="k", dedupe_for=FOREVER)
        await job_in(other, Status.COMPLETED, dedupe_key="k", dedupe_for=FOREVER)
        (record,) = await all_of(other, Kind.KEYS)
        assert await store.load(Kind.KEYS, [record]) == {record["key"]: mine}
        assert await duplicate(store) == mine

    async def test_a_lasting_key_that_is_over_gives_way(self, store: Store, other: Store, clock: ManualClock) -> None:
        await job_in(store, Status.COMPLETED, dedupe_key="k", dedupe_for=1000)
        clock.advance(2)
        theirs = await job_in(other, Status.COMPLETED, dedupe_key="k", dedupe_for=FOREVER)
        assert await store.load(Kind.KEYS, await all_of(other, Kind.KEYS)) == {}
        assert await duplicate(store) == theirs

    async def test_a_pause_that_is_here_stays(self, store: Store, other: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock, queue="mail", seconds=60))
        await other.halt(a_halt(clock, queue="mail"))
        (record,) = await all_of(other, Kind.PAUSES)
        assert await store.load(Kind.PAUSES, [record]) == {record["key"]: "ana"}
        assert [halt.until for halt in await store.halts()] == [at(clock, 60)]

    async def test_a_document_that_is_here_stays(self, store: Store, other: Store) -> None:
        mine, theirs = a_document("same"), a_document("same")
        await store.write([Bundle((mine,))])
        await other.write([Bundle((theirs, a_document("another")))])
        records = await all_of(other, Kind.DOCUMENTS)
        (conflict,) = (record["key"] for record in records if record["id"] == "same")
        assert await store.load(Kind.DOCUMENTS, records) == {conflict: mine.version}
        assert {document.version for document in await store.documents([mine.key])} == {mine.version}

    async def test_a_loaded_document_is_written_by_its_version_and_comes_due(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        write = a_document("nightly", due_at=clock.now() + 60_000)
        await other.write([Bundle((write,))])
        await copy(other, store)
        clock.advance(60)
        (document,) = (await store.due("things")).documents
        assert document == Document(write.key, '{"n": 1}', write.version, write.due_at, None)
        changed = a_document("nightly", expected=write.version)
        assert await store.write([Bundle((a_document("nightly", expected="other"),)), Bundle((changed,))]) == [None, []]

    async def test_expired_pauses_keys_and_documents_are_not_dumped(self, store: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock, queue="mail", seconds=60))
        await job_in(store, Status.COMPLETED, dedupe_key="k", dedupe_for=60_000)
        await store.write([Bundle((a_document("short", expires_at=clock.now() + 60_000),))])
        for kind in (Kind.PAUSES, Kind.KEYS, Kind.DOCUMENTS):
            (record,) = await all_of(store, kind)
            clock.advance(61)
            assert await all_of(store, kind) == []
            assert await store.look_up(kind, [record["key"]]) == []
            clock.shift(-61)

    async def test_the_halt_of_the_system_is_not_dumped(self, store: Store, other: Store, clock: ManualClock) -> None:
        await store.halt(a_halt(clock))
        assert await all_of(store, Kind.PAUSES) == []
        await other.halt(a_halt(clock, queue="mail"))
        await store.load(Kind.PAUSES, await all_of(other, Kind.PAUSES))
        assert {halt.queue for halt in await store.halts()} == {None, "mail"}

    # -- afterwards it is a job like any other --------------------------------------------------

    async def test_a_loaded_job_runs_under_a_greater_token(self, store: Store, other: Store) -> None:
        held = await running(other)
        await end(other, held, Move.SNOOZE)
        await copy(other, store)
        taken = await claim_one(store)
        assert (taken.id, taken.token) == (held.id, held.token + 1)
        assert await end(store, taken, Move.DONE) is Status.COMPLETED
        assert await store.attempts(held.id) != []

    async def test_loaded_jobs_keep_their_order(self, store: Store, other: Store, clock: ManualClock) -> None:
        later = await put(other, run_at=clock.now() - 1000)
        first = await put(other, run_at=clock.now() - 2000)
        urgent = await put(other, priority=0)
        future = await put(other, delay=60_000)
        await copy(other, store)
        assert [job.id for job in await claim(store)] == [urgent, first, later]
        clock.advance(60)
        assert (await claim_one(store)).id == future

    async def test_a_loaded_suspect_runs_alone(self, store: Store, other: Store) -> None:
        job_id = await crashed(other, 2)
        await copy(other, store)
        assert await claim(store) == []
        taken = await claim_one(store, solo=True)
        assert (taken.id, taken.crashes) == (job_id, 2)
        assert await end(store, taken, Move.CRASH) is Status.DEAD_LETTER

    async def test_a_loaded_dead_letter_can_be_retried(self, store: Store, other: Store) -> None:
        job_id = await job_in(other, Status.DEAD_LETTER)
        await copy(other, store)
        assert (await by_hand(store, Action.RETRY, job_id)).ids == (job_id,)
        assert (await claim_one(store)).token == 2

    async def test_a_loaded_job_holds_its_key(self, store: Store, other: Store) -> None:
        job_id = await put(other, dedupe_key="k")
        await copy(other, store)
        assert await duplicate(store) == job_id

    async def test_a_loaded_pause_holds(self, store: Store, other: Store, clock: ManualClock) -> None:
        await put(other, queue="mail")
        await other.halt(a_halt(clock, queue="mail", seconds=60))
        await copy(other, store)
        assert await claim(store, queue="*") == []
        assert await store.halts() == await other.halts()
        clock.advance(60)
        assert len(await claim(store, queue="*")) == 1

    async def test_a_loaded_job_that_runs_is_taken_over(self, store: Store, other: Store, clock: ManualClock) -> None:
        """No worker of this store runs it."""
        held = await running(other, worker="elsewhere")
        await copy(other, store)
        taken = (await store.reap()).takeovers
        clock.advance(store.lease + 1)
        assert [takeover.job_id for takeover in taken + (await store.reap()).takeovers] == [held.id]
        assert await status_of(store, held.id) is Status.PENDING

    async def test_loaded_history_expires_when_it_would_have(
        self, store: Store, other: Store, clock: ManualClock
    ) -> None:
        await job_in(other, Status.COMPLETED, keep=3 * DAY)
        await job_in(other, Status.COMPLETED, keep=1000)
        await copy(other, store)
        assert await store.prune() == 0
        clock.advance(2)
        assert await store.prune() == 1
        clock.advance(2.9 * DAY / 1000)
        assert await store.prune() == 0
        clock.advance(1.2 * DAY / 1000)
        assert await store.prune() == 1
        assert await store.count(Filter()) == 0
        assert (await store.stats()).queues == []

    async def test_history_of_many_days_is_loaded_at_once(self, store: Store, other: Store, clock: ManualClock) -> None:
        for days in range(1, 13):
            await job_in(other, Status.COMPLETED, keep=days * DAY)
        await job_in(other, Status.COMPLETED, keep=2**62)
        clock.advance(2 * DAY / 1000)  # some have expired
        await copy(other, store)
        assert await everything(store) == await everything(other)

    async def test_a_halt_keeps_nothing_from_being_loaded(self, store: Store, other: Store, clock: ManualClock) -> None:
        await fill(other, clock)
        await store.halt(a_halt(clock, accept=False))
        await copy(other, store)
        assert await claim(store, queue="*") == []
        assert await store.count(Filter()) == await other.count(Filter())

    async def test_counts_are_right_after_loading(self, store: Store, other: Store, clock: ManualClock) -> None:
        await fill(other, clock)
        await copy(other, store)
        counts = {
            (queue.queue, status): queue[status] for queue in (await store.stats()).queues for status in queue.by_status
        }
        for (queue, status), number in counts.items():
            assert await store.count(Filter(queues=(queue,), statuses=(status,))) == number
        assert sum(counts.values()) == await other.count(Filter())

    async def test_a_loaded_job_is_found_by_what_it_carries(self, store: Store, other: Store) -> None:
        job_id = await put(other, **{**RICH, "payload": '{"guest": "Zoë"}'})
        await put(other)
        await copy(other, store)
        for where in (Filter(tags=("vip",)), Filter(target_id="r'7"), Filter(payload={"guest": "Zoë"})):
            assert [job.id for job in (await store.find(where)).jobs] == [job_id]

    # -- numbers --------------------------------------------------------------------------------

    async def test_sizes_are_the_numbers_of_records(self, store: Store, clock: ManualClock) -> None:
        await fill(store, clock)
        records = await everything(store)
        assert await store.sizes() == {kind: len(records[kind]) for kind in Kind}

    async def test_running_jobs_count_as_under_way(self, store: Store, clock: ManualClock) -> None:
        await put_many(store, 3)
        assert await store.under_way() == 0
        first, second = await claim(store, 2)
        await store.halt(a_halt(clock, accept=False))
        assert await store.under_way() == 2
        await store.ack([outcome(first, Move.DONE), outcome(second, Move.RETRY)])
        assert await store.under_way() == 0


# -- the steps of a copy ----------------------------------------------------------------------------


async def all_of(store: Store, kind: Kind, *, limit: int = 1000) -> list[Record]:
    records: list[Record] = []
    page = await store.dump(kind, limit=limit)
    records += page.records
    while page.cursor is not None:
        page = await store.dump(kind, after=page.cursor, limit=limit)
        assert len(page.records) <= limit
        records += page.records
    return records


async def everything(store: Store) -> dict[Kind, dict[str, Record]]:
    return {kind: by_key(await all_of(store, kind)) for kind in Kind}


async def copy(source: Store, target: Store) -> None:
    for kind in Kind:
        assert await target.load(kind, await all_of(source, kind)) == {}


def by_key(records: list[Record]) -> dict[str, Record]:
    return {record["key"]: record for record in records}


async def assert_same(store: Store, other: Store, job_id: str) -> None:
    assert await look(store, job_id) == await look(other, job_id)
    assert await store.attempts(job_id) == await other.attempts(job_id)
    assert await lines(store, job_id) == await lines(other, job_id)


async def lines(store: Store, job_id: str) -> list[tuple[Any, ...]]:
    return [(entry.at, str(entry.what), entry.actor) for entry in await store.timeline(job_id)]


async def duplicate(store: Store) -> str:
    (inserted,) = await store.insert([new_job(dedupe_key="k")])
    assert inserted == Inserted(inserted.id, created=False)
    return inserted.id


# -- what there is to copy --------------------------------------------------------------------------


async def fill(store: Store, clock: ManualClock) -> None:
    """Something of every kind, and a job with a past in each status."""
    for status in Status:
        await with_a_past(store, clock, status)
    await crashed(store, queue=f"shaky-{clock.now()}")
    lasting = {"task": "once", "queue": f"keys-{clock.now()}", "dedupe_for": 30 * DAY}
    await job_in(store, Status.COMPLETED, **lasting, dedupe_key=f"k{clock.now()}")
    await job_in(store, Status.PENDING, **{**lasting, "dedupe_for": FOREVER}, dedupe_key=f"ü{clock.now()}")
    documents = (
        a_document(f"plain {clock.now()}"),
        a_document(f"naïve {clock.now()}", due_at=clock.now() + 1000, expires_at=clock.now() + 30 * DAY),
        Write(Key("people", "staff", f"p{clock.now()}"), '{"name": "Zoë"}'),
    )
    await store.write([Bundle(documents)])
    await store.halt(a_halt(clock, queue=f"paused{clock.now()}", accept=False))
    await store.halt(a_halt(clock, queue=f"paused until{clock.now()}", seconds=3600))


def a_document(name: str, **options: Any) -> Write:
    return Write(Key("things", "", name), '{"n": 1}', **options)


async def with_a_past(store: Store, clock: ManualClock, status: Status) -> str:
    """A job that failed, was edited and moved on, and is now in this status; in a queue of its own."""
    queue = f"{status}-{clock.now()}"
    fields = {**RICH, "queue": queue, "dedupe_key": f"{status}-{clock.now()}"}
    if status is Status.PENDING:
        job_id = await put(store, **fields, delay=60_000)
        await by_hand(store, Action.EDIT, job_id, priority=0)
        return job_id
    held = await running(store, **fields)
    began = clock.now()
    clock.advance(1)
    failure = Failure("ValueError", "no such guest: Zoë", "Traceback …")
    await end(store, held, Move.RETRY, started_at=began, failure=failure, delay=5000, reason="later")
    clock.advance(5)
    if status is Status.RETRYING:
        return held.id
    held = await claim_one(store, queue=queue)
    await store.report([ProgressReport(held.id, held.token, 0.25, "a quarter")])
    if status is Status.RUNNING:
        await store.change(Action.CANCEL, Filter(ids=(held.id,)), By("ben", "not this one"))
        return held.id
    clock.advance(1)
    moves = {Status.COMPLETED: Move.DONE, Status.DEAD_LETTER: Move.DEAD, Status.CANCELLED: Move.CANCEL}
    reason = "" if status is Status.COMPLETED else "because"
    result = '{"sent": 1}' if status is Status.COMPLETED else None
    steps = (Step("fetch", 1, "step", '{"rows": 7}', began, began + 9), Step("nap", 2, "sleep"))
    if status is Status.SUSPENDED:
        assert await end(store, held, Move.SUSPEND, delay=5000, waits_for="a bell", steps=steps) is status
        return held.id
    assert await end(store, held, moves[status], result=result, reason=reason, steps=steps) is status
    return held.id
