"""Both clients against a real service."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from mainspring.client import Conflict, InvalidRequest, NotFound, PreconditionFailed, UnknownTask
from mainspring.client.models import JobView
from mainspring.client.resources.leases import done, failed, heartbeat, progress, snooze, step
from tests.client.serving import Service, connected


def fresh(prefix: str = "q") -> str:
    """A name that no other test of the module uses."""
    return f"{prefix}-{uuid4().hex[:8]}"


def enqueue(client: Any, count: int, **options: Any) -> list[str]:
    jobs = [{"task": "welcome", "payload": {"guest": str(number)}, **options} for number in range(count)]
    return [result.id for result in client.enqueue_many(jobs).results]


def test_enqueue_returns_the_id_of_a_job_that_can_be_read(client: Any) -> None:
    run_at = datetime(2030, 1, 1, 12, tzinfo=UTC)
    made = client.enqueue(
        "welcome", {"guest": "Ada"}, queue="letters", priority="high", run_at=run_at, tags=["a", "b"],
        target={"type": "guest", "id": "7"}, timeout=timedelta(minutes=2), headers={"tenant": "x"},
    )  # fmt: skip
    assert made.created
    job = client.jobs.get(made.id)
    assert isinstance(job, JobView)
    assert (job.task, job.queue, job.priority, job.status) == ("welcome", "letters", "high", "pending")
    assert job.payload == {"guest": "Ada"}
    assert job.run_at == run_at
    assert job.timeout == 120
    assert job.target is not None
    assert (job.target.type, job.target.id, job.tags, job.headers) == ("guest", "7", ["a", "b"], {"tenant": "x"})


def test_a_dedupe_key_finds_the_first_job(client: Any) -> None:
    key = fresh()
    first = client.enqueue("welcome", {"guest": "Ada"}, dedupe_key=key)
    second = client.enqueue("welcome", {"guest": "Ada"}, dedupe_key=key)
    assert (second.id, first.created, second.created) == (first.id, True, False)


def test_an_idempotency_key_of_the_caller_makes_two_calls_one(client: Any) -> None:
    key = fresh()
    first = client.enqueue("welcome", {"guest": "Ada"}, idempotency_key=key)
    assert client.enqueue("welcome", {"guest": "Ada"}, idempotency_key=key).id == first.id
    assert client.enqueue("welcome", {"guest": "Ada"}).id != first.id


def test_a_list_reads_all_pages(client: Any) -> None:
    queue = fresh()
    made = enqueue(client, 7, queue=queue)
    found = [job.id for job in client.jobs.list(queue=queue, page_size=3, descending=False)]
    assert found == made
    page = client.jobs.page(queue=[queue], limit=2, count=True)
    assert len(page.jobs) == 2
    assert page.cursor
    assert page.count.value == 7


def test_a_list_asks_for_the_next_page_only_when_it_is_needed(client: Any, service: Service) -> None:
    queue = fresh()
    enqueue(client, 5, queue=queue)
    jobs = client.jobs.list(queue=queue, page_size=2)
    assert next(jobs)
    for job in list(client.jobs.list(queue=queue)):
        client.jobs.delete(job.id)
    assert len(list(jobs)) == 1  # the rest of the first page


def test_filters_look_into_payloads(client: Any) -> None:
    queue = fresh()
    enqueue(client, 3, queue=queue)
    (job,) = client.jobs.list(queue=queue, payload={"guest": "1"}, status=["pending"])
    assert job.payload == {"guest": "1"}


def test_more_jobs_than_a_request_can_carry_are_sent_in_parts(client: Any) -> None:
    queue, key = fresh(), fresh("key")
    jobs = [{"task": "welcome", "payload": {"guest": str(number)}, "queue": queue} for number in range(1_201)]
    first = client.enqueue_many(iter(jobs), idempotency_key=key)
    again = client.enqueue_many(iter(jobs), idempotency_key=key)
    assert (first.created, first.failed, len(first.results)) == (1_201, 0, 1_201)
    assert [result.id for result in again.results] == [result.id for result in first.results]
    assert client.jobs.page(queue=queue, limit=1, count=True).count.value == 1_201


def test_large_jobs_are_sent_in_parts(client: Any) -> None:
    jobs = [{"task": "welcome", "payload": {"guest": "x" * 900_000}, "queue": fresh()} for _ in range(7)]
    assert client.enqueue_many(jobs).created == 7


def test_no_jobs_are_no_request(client: Any) -> None:
    assert client.enqueue_many([]).results == []


def test_jobs_that_are_wrong_are_reported_beside_the_others(client: Any) -> None:
    answer = client.enqueue_many([{"task": "welcome", "payload": {"guest": "Ada"}}, {"task": "welcom", "payload": {}}])
    assert (answer.created, answer.failed) == (1, 1)
    assert answer.results[1].error.code == "unknown_task"


def test_jobs_are_changed(client: Any) -> None:
    job_id = client.enqueue("welcome", {"guest": "Ada"}, delay=timedelta(hours=1)).id
    assert client.jobs.edit(job_id, payload={"guest": "Bob"}, priority="low").payload == {"guest": "Bob"}
    run_at = datetime(2031, 1, 1, tzinfo=UTC)
    assert client.jobs.reschedule(job_id, run_at=run_at).run_at == run_at
    assert client.jobs.cancel(job_id, reason="not needed").cancelled
    assert client.jobs.get(job_id).status == "cancelled"
    assert client.jobs.retry(job_id).status == "pending"
    assert client.jobs.detail(job_id).timeline
    client.jobs.delete(job_id, reason="a test")
    with pytest.raises(NotFound):
        client.jobs.get(job_id)


def test_the_audit_log_tells_who_did_it(client: Any) -> None:
    job_id = client.enqueue("welcome", {"guest": "Ada"}).id
    client.jobs.cancel(job_id, reason="no more")
    (entry,) = client.audit(job=job_id)
    assert (entry.action, entry.reason) == ("cancel", "no more")


def test_dead_letters_and_groups(client: Any, service: Service) -> None:
    queue, worker = fresh(), fresh("w")
    client.enqueue("fail", {"why": "no"}, queue=queue, max_attempts=1)
    (lease,) = client.leases.claim(worker, queues=[queue]).jobs
    client.leases.report(worker, [failed(lease, ValueError("no"), retry=False)])
    (letter,) = client.dead.list(queue=queue)
    assert letter.failure.type == "ValueError"
    assert client.dead.page(queue=queue).oldest is not None
    assert client.dead.purge(timedelta(days=1), dry_run=True).changed == 0
    assert list(client.failures.list(state="open", task="none")) == []
    with pytest.raises(NotFound):
        client.failures.get("unknown")


def test_a_bulk_action_is_counted_and_confirmed(client: Any) -> None:
    queue = fresh()
    enqueue(client, 3, queue=queue)
    planned = client.bulk.start("cancel", {"queue": queue, "status": "pending"}, dry_run=True)
    assert (planned.state, planned.total) == ("planned", 3)
    action = client.bulk.start("cancel", {"queue": queue}, expect=3, canary=1)
    assert client.bulk.get(action.id).total == 3
    assert action.id in [each.id for each in client.bulk.list()]
    assert client.bulk.cancel(action.id).state == "cancelled"


def test_a_batch(client: Any) -> None:
    follow_up: Any = {"task": "welcome", "payload": {"guest": "all"}, "delay": timedelta(seconds=5)}
    batch = client.batches.create([{"task": "welcome", "payload": {"guest": "Ada"}}], on_success=follow_up)
    assert client.batches.get(batch.id).total == 1
    assert batch.id in [each.id for each in client.batches.list()]
    assert client.batches.cancel(batch.id, dry_run=True).changed == 1


def test_jobs_and_settings_are_changed_only_as_they_were_read(client: Any) -> None:
    job = client.jobs.get(client.enqueue("welcome", {"guest": "Ada"}, delay=3600).id)
    edited = client.jobs.edit(job.id, priority="high", if_match=job.etag)
    assert edited.etag != job.etag
    with pytest.raises(PreconditionFailed, match="read it again"):
        client.jobs.edit(job.id, priority="low", if_match=job.etag)
    for change in (client.jobs.cancel, client.jobs.reschedule, client.jobs.retry, client.jobs.delete):
        with pytest.raises(PreconditionFailed):
            change(job.id, if_match=job.etag)
    cancelled = client.jobs.cancel(job.id, if_match=edited.etag).job
    client.jobs.delete(job.id, if_match=cancelled.etag)
    name = fresh()
    before = client.settings.get("task", name)
    after = client.settings.change("task", name, limit=2, if_match=before.etag)
    assert (after.etag, after.etag != before.etag) == (client.settings.get("task", name).etag, True)
    with pytest.raises(PreconditionFailed):
        client.settings.clear("task", name, if_match=before.etag)
    assert client.settings.clear("task", name, if_match=after.etag).cleared


def test_a_finished_job_is_replayed(kind: str, working: Service) -> None:
    with connected(kind, working.url) as client:
        replay(client)


def replay(client: Any) -> None:
    job = client.jobs.wait(client.enqueue("welcome", {"guest": "Ada"}).id, timeout=30)
    new = client.jobs.wait(client.jobs.replay(job.id, payload={"guest": "Bob"}, reason="again").id, timeout=30)
    assert (new.replay_of, new.result) == (job.id, "welcome, Bob")


def test_schedules_are_changed_only_as_they_were_read(client: Any) -> None:
    name = f"daily/{fresh()}"  # an id may have slashes
    job: Any = {"task": "welcome", "payload": {"guest": "Ada"}, "timeout": 30, "retry": {"delays": [5, 10]}}
    made = client.schedules.put(name, "30 2 * * *", job, tz="Europe/Berlin", if_none_match="*")
    assert made.etag
    assert client.schedules.get(name).etag == made.etag
    changed = client.schedules.put(name, "every 90s", job, if_match=made.etag)
    with pytest.raises(PreconditionFailed, match="read it again"):
        client.schedules.put(name, "every 80s", job, if_match=made.etag)
    assert changed.id == name
    assert changed.job.retry.delays == [5, 10]
    assert len(client.schedules.preview(name, limit=3).coming) == 3
    assert client.schedules.diff(name, "every 45s", days=1).added > 0
    assert client.schedules.ledger(name).entries == []
    assert client.schedules.pause(name).state == "paused"
    client.schedules.resume(name)
    assert client.jobs.get(client.schedules.trigger(name).job_id).task == "welcome"
    assert name in [each.id for each in client.schedules.list(page_size=1)]
    assert client.schedules.simulate(ids=[name], days=1).schedules[0].id == name
    assert client.schedules.preview_rule("daily 09:00", tz="Asia/Tokyo").tz == "Asia/Tokyo"
    client.schedules.delete(name, if_match=client.schedules.get(name).etag)
    with pytest.raises(NotFound):
        client.schedules.get(name)


@pytest.mark.parametrize("odd", ["a/b", "..", ".", "a b", "ü", "100%", "%2F", "a?b=c", "a#b", "a:pause", "a;b", "+"])
def test_ids_may_have_any_letters(client: Any, odd: str) -> None:
    person = client.people.put(odd, "Pacific/Auckland", first_name="Ada")
    assert person.id == odd
    assert client.people.get(odd).first_name == "Ada"
    client.people.delete(odd)


def test_people_and_their_occasions(client: Any) -> None:
    name = fresh("person")
    client.people.put(name, "Europe/Berlin", email=f"{name}@example.com", attributes={"level": 7})
    client.people.put_occasion(name, "birthday", "12-30", at="10:00")
    assert client.people.change(name, email=None).email is None
    (found,) = client.people.list(attribute={"level": 7}, name=None, kind="birthday")
    assert found.occasions[0].at == "10:00"
    assert client.people.occasions(name).upcoming[0].kind == "birthday"
    assert list(client.people.upcoming(ahead=timedelta(days=400)))
    assert client.people.remove_occasion(name, "birthday").occasions == []
    client.people.delete(name)


def test_users(client: Any) -> None:
    user = client.users.create("Ada", "Europe/London", birthday="1990-12-30")
    assert client.users.change(user.id, lastName="King").lastName == "King"
    assert client.users.get(user.id).birthday == "1990-12-30"
    client.users.delete(user.id)


def test_a_pull_worker(client: Any) -> None:
    queue, worker = fresh(), fresh("py")
    job_id = client.enqueue("welcome", {"guest": "Ada"}, queue=queue).id
    claim = client.leases.claim(worker, queues=[queue], wait=0.0)
    (lease,) = claim.jobs
    assert (lease.id, lease.payload, claim.pulse.halted) == (job_id, {"guest": "Ada"}, False)
    half, sign, part = progress(lease, 0.5, "half"), heartbeat(lease), step(lease, "greet", {"ok": True})
    answer = client.leases.report(worker, [half, sign, part])
    assert [reply.reply for reply in answer.replies] == ["ok", "ok", "ok"]
    assert client.leases.claim(worker, queues=[queue], held=[lease]).pulse.lost == []
    assert client.leases.report(worker, [snooze(lease, timedelta(0))]).replies[0].reply == "ok"
    (again,) = client.leases.claim(worker, queues=[queue]).jobs
    assert client.leases.report(worker, [done(again, "hello")]).replies[0].status == "completed"
    assert client.leases.report(worker, [done(lease, "late")]).replies[0].reply == "stale"
    assert client.jobs.get(job_id).result == "hello"
    assert client.leases.leave(worker).left


def test_workers_get_orders(client: Any) -> None:
    worker = fresh("py")
    client.leases.report(worker)
    assert client.workers.quiet(worker).order == "quiet"
    assert client.leases.report(worker).pulse.order == "quiet"
    assert client.workers.terminate(worker).order == "terminate"
    assert client.workers.go_on(worker).order is None
    assert isinstance(client.workers.list().workers, list)


def test_queues_and_halts(client: Any) -> None:
    queue = fresh()
    enqueue(client, 1, queue=queue)
    assert client.queues.pause(queue, wait=0.0, reason="slow").halt.queue == queue
    assert queue in [halt.queue for halt in client.halts().halts]
    assert queue in [each.queue for each in client.queues.list().queues if each.paused]
    assert client.queues.resume(queue).resumed
    assert client.halt("a test", wait=0.0).halt.reason == "a test"
    assert client.resume().resumed
    assert queue in client.queues.stats().queues


def test_breakers_settings_limits_and_subscribers(client: Any) -> None:
    name = fresh("mailer")
    assert client.breakers.open(name, open_for=timedelta(minutes=1), reason="down").phase == "open"
    assert client.breakers.get(name).reason == "down"
    assert client.breakers.close(name).phase == "closed"
    assert name in [breaker.name for breaker in client.breakers.list().breakers]
    changed = client.settings.change("task", "welcome", timeout=timedelta(seconds=9), rate={"count": 5})
    assert {setting.option for setting in changed.settings} == {"timeout", "rate"}
    assert client.settings.get("task", "welcome").settings[0].name == "welcome"
    assert client.settings.clear("task", "welcome", option=["timeout"]).cleared
    assert client.settings.clear("task", "welcome").cleared
    assert client.settings.list().settings == []
    assert list(client.limits(waiting=True)) == []
    assert client.subscribers.list().subscribers == []
    with pytest.raises(NotFound):
        client.subscribers.remove("none")


def test_signals(client: Any) -> None:
    assert client.signal("checked_in:r1", {"by": "Ada"}, keep=timedelta(hours=1)).payload == {"by": "Ada"}
    first = client.signal("checked_in:r2", id="once")
    assert client.signal("checked_in:r2", id="once").id == first.id


def test_overviews(client: Any) -> None:
    enqueue(client, 1)
    assert client.stats().queues
    numbers = client.numbers(last=timedelta(hours=2), step="minute", by="queue")
    assert numbers.total.enqueued >= 1
    assert "mail" in client.completions("queue", "ma").values
    assert [task.name for task in client.tasks.list().tasks] == []  # only workers publish tasks
    with pytest.raises(NotFound):
        client.tasks.get("welcome")


def test_tokens_are_made_and_revoked(client: Any) -> None:
    made = client.tokens.create(fresh("ci"), ["read"], expires_at=datetime(2099, 1, 1, tzinfo=UTC))
    assert made.text.startswith("msk_")
    assert made.text not in repr(made)
    assert made.token.id in [token.id for token in client.tokens.list(page_size=1)]
    client.tokens.revoke(made.token.id)
    with pytest.raises(NotFound):
        client.tokens.revoke(made.token.id)


def test_secrets(client: Any) -> None:
    name = fresh("shop")
    made = client.secrets.create(name)
    assert client.secrets.rotate(name).texts[1:] == made.texts
    assert len(client.secrets.get(name).texts) == 2
    assert name in [secret.name for secret in client.secrets.list(page_size=1)]
    client.secrets.delete(name)
    with pytest.raises(NotFound):
        client.secrets.get(name)


def test_only_pushed_jobs_are_ended_by_a_request(client: Any) -> None:
    job_id = client.enqueue("welcome", {"guest": "Ada"}).id
    with pytest.raises(Conflict, match="only jobs of 'http'"):
        client.jobs.complete(job_id, {"ok": 1})
    with pytest.raises(Conflict, match="only jobs of 'http'"):
        client.jobs.fail(job_id, "no", retry=False)


def test_callbacks(client: Any) -> None:
    where: Any = {"url": "https://example.com/failed", "timeout": 5.0}
    job_id = client.enqueue("welcome", {"guest": "Ada"}, callback="https://example.com/ok", failure_callback=where).id
    assert client.jobs.get(job_id).status == "pending"
    with pytest.raises(InvalidRequest, match="callback"):
        client.enqueue("welcome", {"guest": "Ada"}, callback="ftp://example.com")


def test_health(client: Any) -> None:
    assert client.health.live().status == "ok"
    assert client.health.ready().status == "ok"
    assert client.health.scheduler().stats.queueDepth >= 0


def test_bad_health_is_an_answer_and_not_an_error(client: Any) -> None:
    queue = fresh()
    enqueue(client, 1_000, queue=queue)
    assert not client.health.scheduler().healthy
    client.bulk.start("delete", {"queue": queue}, dry_run=True)


def test_wrong_fields_are_named(client: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        client.enqueue("welcome", {"guest": "Ada"}, delay=-1, max_attempts=0)
    error = caught.value
    assert (error.status, error.code) == (422, "invalid_request")
    assert [line.pointer for line in error.errors] == ["/delay", "/max_attempts"]
    assert error.request_id
    assert error.request_id in str(error)


def test_a_time_without_an_offset_is_refused(client: Any) -> None:
    with pytest.raises(InvalidRequest, match="run_at"):
        client.enqueue("welcome", {"guest": "Ada"}, run_at=datetime(2030, 1, 1))  # noqa: DTZ001 - the mistake


def test_an_unknown_task_names_the_nearest(client: Any) -> None:
    with pytest.raises(UnknownTask) as caught:
        client.enqueue("welcom", {"guest": "Ada"})
    assert caught.value.nearest == ("welcome",)
    assert client.enqueue("welcom", {"guest": "Ada"}, allow_unknown=True).created


def test_an_empty_id_is_refused_before_anything_is_sent(client: Any) -> None:
    with pytest.raises(ValueError, match="job_id is ''"):
        client.jobs.delete("")


def test_what_is_not_json_is_refused_before_anything_is_sent(client: Any) -> None:
    with pytest.raises(TypeError, match="cannot be sent as JSON"):
        client.enqueue("welcome", {"guest": object()})
