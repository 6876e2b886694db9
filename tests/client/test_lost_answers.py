"""The service commits, and its answer is lost: nothing is done twice."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from mainspring.client import ServiceUnreachable
from tests.client.serving import Proxy, Service, connected, without_sleep


def count(service: Service, queue: str) -> int:
    from mainspring.stores.protocol import Filter

    return service.loop.run(service.app.jobs.count(Filter(queues=(queue,), tasks=("welcome",))))


def test_an_enqueue_whose_answer_is_lost_makes_one_job(kind: str, proxy: Proxy, service: Service) -> None:
    queue = uuid4().hex
    with connected(kind, proxy.url) as client:
        pauses = without_sleep(client)
        proxy.lose = 3
        made = client.enqueue("welcome", {"guest": "Ada"}, queue=queue)
    assert (proxy.lose, len(pauses.seen), made.created) == (0, 3, True)
    assert count(service, queue) == 1
    assert service.loop.run(service.app.jobs.get(made.id)).queue == queue


def test_many_enqueues_whose_answers_are_lost_make_each_job_once(kind: str, proxy: Proxy, service: Service) -> None:
    queue = uuid4().hex
    jobs: list[Any] = [{"task": "welcome", "payload": {"guest": str(n)}, "queue": queue} for n in range(1_100)]
    with connected(kind, proxy.url) as client:
        without_sleep(client)
        proxy.lose = 1
        answer = client.enqueue_many(jobs)
    assert (answer.created, len({result.id for result in answer.results})) == (1_100, 1_100)
    assert count(service, queue) == 1_100


def test_connections_that_break_before_the_request_arrives(kind: str, proxy: Proxy, service: Service) -> None:
    queue = uuid4().hex
    with connected(kind, proxy.url) as client:
        without_sleep(client)
        proxy.refuse = 2
        client.enqueue("welcome", {"guest": "Ada"}, queue=queue)
    assert count(service, queue) == 1


def test_a_signal_whose_answer_is_lost_is_one_signal(kind: str, proxy: Proxy) -> None:
    with connected(kind, proxy.url) as client:
        without_sleep(client)
        proxy.lose = 1
        first = client.signal("door", {"open": True})
        assert first.payload == {"open": True}
    assert proxy.lose == 0


def test_a_batch_whose_answer_is_lost_is_not_made_twice(kind: str, proxy: Proxy, service: Service) -> None:
    queue = uuid4().hex
    with connected(kind, proxy.url) as client:
        without_sleep(client)
        proxy.lose = 1
        batch = client.batches.create([{"task": "welcome", "payload": {"guest": "Ada"}, "queue": queue}])
        assert client.batches.get(batch.id).total == 1
    assert count(service, queue) == 1


def test_a_deletion_whose_answer_is_lost_is_a_deletion(kind: str, proxy: Proxy, service: Service) -> None:
    queue = uuid4().hex
    with connected(kind, proxy.url) as client:
        without_sleep(client)
        job_id = client.enqueue("welcome", {"guest": "Ada"}, queue=queue).id
        proxy.lose = 1
        client.jobs.delete(job_id)
    assert count(service, queue) == 0


def test_enqueue_many_says_how_far_it_came(kind: str, proxy: Proxy) -> None:
    jobs: list[Any] = [{"task": "welcome", "payload": {"guest": str(n)}} for n in range(2_001)]

    def lose_the_rest() -> Any:
        for number, job in enumerate(jobs):
            if number == 2_000:
                proxy.lose = 1
            yield job

    with connected(kind, proxy.url, retry_for=0) as client, pytest.raises(ServiceUnreachable) as caught:
        client.enqueue_many(lose_the_rest())
    assert caught.value.__notes__ == ["1000 jobs were handled before; repeat it with the same idempotency_key"]
