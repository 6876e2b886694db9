"""How many requests a token may make."""

from __future__ import annotations

from itertools import count, takewhile

from mainspring import Mainspring
from mainspring.service import Tokens
from mainspring.service.problems import Problem
from mainspring.service.rate_limits import MANY_BUCKETS, RateLimits
from mainspring.service.sessions import LOCAL_COOKIE, Sessions
from tests.service.serving import serving


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def used_up(limits: RateLimits, caller: str = "a") -> int:
    """Return how many requests the caller may make now."""
    return sum(1 for _ in takewhile(lambda _: is_allowed(limits, caller), count()))


def is_allowed(limits: RateLimits, caller: str) -> bool:
    try:
        limits.take(caller)
    except Problem as problem:
        return problem.code != "too_many_requests"
    return True


def test_a_bucket_holds_a_burst_and_fills_again() -> None:
    clock = Clock()
    limits = RateLimits(10, 20, clock)
    assert used_up(limits) == 20
    clock.now += 0.5
    assert used_up(limits) == 5
    clock.now += 3600
    assert used_up(limits) == 20


def test_tokens_have_their_own_buckets() -> None:
    limits = RateLimits(1, 3, Clock())
    assert used_up(limits, "a") == 3
    assert used_up(limits, "b") == 3


def test_refused_requests_do_not_delay_the_next_one() -> None:
    clock = Clock()
    limits = RateLimits(1, 1, clock)
    limits.take("a")
    for _ in range(9):
        clock.now += 0.1
        assert used_up(limits) == 0
    clock.now += 0.2
    assert used_up(limits) == 1


def test_headers_say_what_is_left() -> None:
    limits = RateLimits(10, 20, Clock())
    assert limits.take("a") == [(b"ratelimit-policy", b'"token";q=20;w=2'), (b"ratelimit", b'"token";r=19;t=1')]


def test_a_limit_of_zero_is_none() -> None:
    limits = RateLimits(0, 1, Clock())
    assert [limits.take("a") for _ in range(50)] == [[]] * 50


def test_full_buckets_are_forgotten() -> None:
    clock = Clock()
    limits = RateLimits(10, 20, clock)
    for number in range(MANY_BUCKETS):
        limits.take(f"{number}")
    clock.now += 10
    limits.take("a")
    assert list(limits._buckets) == ["a"]


async def test_a_public_token_has_its_own_bucket(app: Mainspring) -> None:
    _, text = await Tokens(app.store).create("issuer", ["read"], actor="tester")
    async with serving(app, rate_limit=0.001, rate_burst=1) as client:
        target = {"type": "order", "id": "7"}
        public = (await client.using(text).post("/v1/tokens:public", {"target": target})).data["text"]
        assert (await client.using(text).get("/v1/jobs")).code == "too_many_requests"
        assert (await client.using(public).get("/v1/public/jobs")).status == 200
        assert (await client.using(public).get("/v1/public/jobs")).code == "too_many_requests"


async def test_a_session_is_limited_like_its_token(app: Mainspring) -> None:
    token, _ = await Tokens(app.store).create("person", ["read"], actor="tester")
    _, value = await Sessions(app.store).create(token.id, actor="tester", address="127.0.0.1")
    cookie = f"{LOCAL_COOKIE}={value}"
    async with serving(app, rate_limit=0.001, rate_burst=1) as client:
        assert (await client.get("/v1/jobs", cookie=cookie)).status == 200
        assert (await client.get("/v1/jobs", cookie=cookie)).code == "too_many_requests"


async def test_reports_of_workers_are_not_counted(app: Mainspring) -> None:
    """A worker whose reports are refused would lose its jobs."""
    _, text = await Tokens(app.store).create("busy", ["lease"], actor="tester")
    async with serving(app, rate_limit=0.001, rate_burst=1) as client:
        worker = client.using(text)
        assert (await worker.post("/v1/leases", {"worker": "w1"})).status == 200
        assert (await worker.post("/v1/leases", {"worker": "w1"})).code == "too_many_requests"
        for _ in range(3):
            assert (await worker.post("/v1/leases:report", {"worker": "w1", "items": []})).status == 200
        assert (await worker.post("/v1/leases:leave", {"worker": "w1"})).status == 200


async def test_a_token_that_asks_too_often_is_refused(app: Mainspring) -> None:
    _, text = await Tokens(app.store).create("busy", ["read"], actor="tester")
    _, other = await Tokens(app.store).create("other", ["read"], actor="tester")
    async with serving(app, rate_limit=0.001, rate_burst=2) as client:
        first = await client.using(text).get("/v1/jobs")
        assert (first.status, first.headers["ratelimit"]) == (200, '"token";r=1;t=1000')
        assert (await client.using(text).get("/v1/jobs")).status == 200
        refused = await client.using(text).get("/v1/jobs")
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "too_many_requests", "1000")
        assert (await client.using(other).get("/v1/jobs")).status == 200
        for _ in range(5):
            assert (await client.get("/v1/jobs")).status == 200  # of this machine, without a token
            assert (await client.get("/health/live")).status == 200
