"""Jobs that follow the end of another job: in the same commit, whatever ends it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from mainspring.errors import ConfigurationError, Failure
from mainspring.job import MAX_CRASHES, Job, Move, Status
from mainspring.stored_options import StoredOptions
from mainspring.stores.engine.ends import LONGEST_RESULT
from mainspring.stores.engine.on_end import following
from mainspring.stores.feed import ChangeKind
from mainspring.stores.protocol import Action, Filter, Store
from mainspring.testing.clock import ManualClock
from tests.conformance.feed import from_now
from tests.conformance.scenario import (
    BY,
    StoreScenario,
    by_hand,
    by_silence,
    claim_one,
    crashed,
    end,
    found,
    look,
    new_job,
    outcome,
    put,
    running,
    status_of,
)
from tests.conformance.takeover import OVERDUE, TIMEOUT, after

TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
BOOM = Failure("ValueError", "boom", "Traceback …")


def told(**fields: Any) -> dict[str, Any]:
    return following(new_job(task="tell", queue="calls", payload='{"url": "x"}', tags=("told",), **fields))


def on_end(**more: Any) -> str:
    """The options of a job that is followed by one job if it completes, and by another if not."""
    options: StoredOptions = {
        "on_end": {"completed": told(max_attempts=7), "failed": told(target=("t", "1"))},
        **more,  # type: ignore[typeddict-item] # of these options
    }
    return json.dumps(options)


async def followers(store: Store) -> list[Job]:
    return list((await store.find(Filter(tasks=("tell",)), limit=100)).jobs)


async def follower(store: Store) -> Job:
    (job,) = await followers(store)
    return job


class EndTests(StoreScenario):
    async def test_a_job_follows_the_success(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, options=on_end(), dedupe_key="k", target=("order", "7"))
        clock.advance(1)
        assert await end(store, held, Move.DONE, result='{"n": 1}', is_followed=True) is Status.COMPLETED
        job, ended = await follower(store), await look(store, held.id)
        assert ended.finished_at is not None
        assert (job.queue, job.status, job.max_attempts, job.tags) == ("calls", Status.PENDING, 7, ("told",))
        assert job.payload["url"] == "x"
        assert job.payload["body"] == {
            "job": {
                "id": held.id,
                "task": "greet",
                "queue": "default",
                "status": "completed",
                "attempts": 1,
                "max_attempts": 3,
                "reason": "",
                "finished_at": ended.finished_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "dedupe_key": "k",
                "target": {"type": "order", "id": "7"},
            },
            "result": {"n": 1},
        }
        assert (await claim_one(store, queue="calls")).id == job.id

    async def test_another_job_follows_a_dead_letter(self, store: Store) -> None:
        held = await running(store, options=on_end())
        assert await end(store, held, Move.DEAD, failure=BOOM, reason="gave up") is Status.DEAD_LETTER
        job = await follower(store)
        assert job.target == ("t", "1")
        assert job.payload["body"]["job"]["status"] == "dead_letter"
        assert job.payload["body"]["error"] == {
            "type": "ValueError",
            "message": "boom",
            "fingerprint": (await look(store, held.id)).fingerprint,
            "code": None,
        }

    @pytest.mark.parametrize("move", [Move.RETRY, Move.SNOOZE, Move.RELEASE, Move.SUSPEND, Move.CRASH])
    async def test_nothing_follows_a_run_after_which_the_job_goes_on(self, store: Store, move: Move) -> None:
        held = await running(store, options=on_end())
        await end(store, held, move, delay=1000)
        assert await followers(store) == []

    async def test_a_lost_claim_is_followed_by_nothing(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, options=on_end())
        await by_silence(store, clock, "w1")
        assert await end(store, held, Move.DONE, is_followed=True) is None
        assert await followers(store) == []

    async def test_a_cancelled_run_is_followed(self, store: Store) -> None:
        held = await running(store, options=on_end())
        await by_hand(store, Action.CANCEL, held.id)
        assert await followers(store) == []
        assert await end(store, held, Move.RELEASE) is Status.CANCELLED
        assert (await follower(store)).payload["body"]["error"] == {"type": "Cancelled", "message": "by hand"}

    async def test_a_waiting_job_that_is_cancelled_by_hand_is_followed(self, store: Store) -> None:
        jobs = [await put(store, options=on_end()) for _ in range(3)]
        await put(store)
        await store.change(Action.CANCEL, Filter(statuses=(Status.PENDING,)), BY, limit=100)
        followed = await followers(store)
        assert sorted(job.payload["body"]["job"]["id"] for job in followed) == sorted(jobs)
        assert {job.payload["body"]["job"]["status"] for job in followed} == {"cancelled"}

    async def test_a_dry_run_is_followed_by_nothing(self, store: Store) -> None:
        job_id = await put(store, options=on_end())
        await store.change(Action.CANCEL, Filter(ids=(job_id,)), BY, dry_run=True)
        assert await followers(store) == []
        assert await status_of(store, job_id) is Status.PENDING

    async def test_a_deleted_job_is_followed_by_nothing(self, store: Store) -> None:
        job_id = await put(store, options=on_end())
        await by_hand(store, Action.DELETE, job_id)
        assert await followers(store) == []

    async def test_a_job_whose_workers_die_is_followed_when_it_is_given_up(
        self, store: Store, clock: ManualClock
    ) -> None:
        job_id = await crashed(store, MAX_CRASHES - 1, options=on_end())
        assert await followers(store) == []
        await claim_one(store, solo=True)
        await by_silence(store, clock, "w1")
        assert await status_of(store, job_id) is Status.DEAD_LETTER
        assert (await follower(store)).payload["body"]["error"]["type"] == "WorkerCrashed"

    async def test_a_stalled_run_that_is_given_up_is_followed(self, store: Store, clock: ManualClock) -> None:
        held = await running(store, options=on_end(), timeout=TIMEOUT, max_attempts=1)
        await after(store, clock, OVERDUE)
        assert await status_of(store, held.id) is Status.DEAD_LETTER
        assert (await follower(store)).payload["body"]["error"]["type"] == "TimeoutError"

    async def test_a_job_that_ends_again_is_followed_again(self, store: Store) -> None:
        held = await running(store, options=on_end())
        await end(store, held, Move.DEAD, failure=BOOM)
        await by_hand(store, Action.RETRY, held.id)
        again = await claim_one(store)
        await end(store, again, Move.DONE, is_followed=True)
        statuses = {job.payload["body"]["job"]["status"] for job in await followers(store)}
        assert statuses == {"dead_letter", "completed"}

    async def test_only_the_named_end_is_followed(self, store: Store) -> None:
        options = json.dumps({"on_end": {"failed": told()}})
        held = await running(store, options=options)
        await end(store, held, Move.DONE, is_followed=True)
        assert await followers(store) == []

    async def test_many_ends_at_once_have_a_job_each(self, store: Store) -> None:
        held = [await running(store, options=on_end()) for _ in range(12)]
        moves = [Move.DONE, Move.DEAD, Move.CANCEL] * 4
        ended = [outcome(claim, move, is_followed=True) for claim, move in zip(held, moves, strict=True)]
        ended[0] = replace(ended[0], follow_ups=(new_job(task="other"),))
        await store.ack(ended)
        told_of = [job.payload["body"]["job"]["id"] for job in await followers(store)]
        assert sorted(told_of) == sorted(claim.id for claim in held)
        assert ended[0].inserted[0].id in await found(store, tasks=("other",))

    async def test_a_long_result_is_left_out(self, store: Store) -> None:
        held = await running(store, options=on_end())
        await end(store, held, Move.DONE, result=json.dumps("x" * LONGEST_RESULT), is_followed=True)
        body = (await follower(store)).payload["body"]
        assert (body["result"], body["result_omitted"]) == (None, True)

    async def test_a_result_just_short_enough_is_told_whatever_it_is_made_of(self, store: Store) -> None:
        held = await running(store, options=on_end())
        result = json.dumps("é€" * 13_000, ensure_ascii=False)  # escaped, it would be six times as long
        assert await end(store, held, Move.DONE, result=result, is_followed=True) is Status.COMPLETED
        assert (await follower(store)).payload["body"]["result"] == json.loads(result)

    async def test_awkward_texts_survive(self, store: Store) -> None:
        held = await running(store, options=on_end())
        texts = {"a": 'NULL, "quoted", {braces} \\ \u0001 €', "b": [None, 1.5, True]}
        await end(store, held, Move.DONE, result=json.dumps(texts), is_followed=True)
        assert (await follower(store)).payload["body"]["result"] == texts

    async def test_the_job_that_follows_is_in_the_trace_of_the_one_that_ended(self, store: Store) -> None:
        held = await running(store, options=on_end(trace=TRACE))
        await end(store, held, Move.DONE, is_followed=True)
        assert (await follower(store)).trace == TRACE

    async def test_the_change_feed_has_the_end_and_the_job_that_follows(self, store: Store) -> None:
        held = await running(store, options=on_end())
        reader = await from_now(store)
        await end(store, held, Move.DONE, is_followed=True)
        job = await follower(store)
        changes = {(change.kind, change.job_id) for change in await reader.read()}
        assert changes == {(ChangeKind.COMPLETED, held.id), (ChangeKind.CREATED, job.id)}

    @pytest.mark.parametrize(
        "wrong", [{"on_end": 7}, {"on_end": {"completed": {}}}, {"on_end": {"later": {}}}, {"on_end": {"failed": [1]}}]
    )
    async def test_an_option_that_could_not_be_followed_is_refused(self, store: Store, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match="on_end"):
            await store.insert([new_job(options=json.dumps(wrong))])

    async def test_a_job_that_is_too_large_to_follow_is_refused(self, store: Store) -> None:
        large = following(new_job(task="tell", payload=json.dumps({"text": "x" * 70_000})))
        with pytest.raises(ConfigurationError, match="65,536"):
            await store.insert([new_job(options=json.dumps({"on_end": {"completed": large}}))])

    async def test_a_text_that_looks_like_the_option_is_not_one(self, store: Store) -> None:
        options = json.dumps({"headers": {"on_end": "x"}})
        held = await running(store, options=options)
        assert await end(store, held, Move.DONE, is_followed=True) is Status.COMPLETED
