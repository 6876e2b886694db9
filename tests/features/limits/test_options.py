"""What can be declared as a limit, and what is refused when and by which words."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from mainspring import Limit, Mainspring, Rate
from mainspring.errors import ConfigurationError, InvalidPayload
from mainspring.live_settings import RateNumbers, Values


@pytest.fixture
def app() -> Mainspring:
    return Mainspring("memory://")


async def nothing(who: str = "me") -> None: ...


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "5", None])
def test_a_limit_is_a_whole_number_of_at_least_one(size: Any) -> None:
    with pytest.raises(ConfigurationError, match="whole number from 1 to"):
        Limit(size)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": 0}, "whole number"),
        ({"count": 5, "per": 0}, "length of time"),
        ({"count": 5, "per": -1}, "length of time"),
        ({"count": 5, "per": "1m"}, "length of time"),
        ({"count": 5, "burst": 0}, "whole number"),
        ({"count": 5, "key": "customer"}, "function of the payload"),
        ({"count": 5, "name": ""}, "not empty"),
    ],
)
def test_invalid_rates_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Rate(**fields)


def test_a_rate_takes_seconds_or_a_timedelta() -> None:
    assert Rate(10, per=60).per_milli == Rate(10, per=timedelta(minutes=1)).per_milli
    assert (Rate(10, per=60).most, Rate(10, per=60, burst=20).most) == (10, 20)


def test_two_limits_of_a_task_need_different_names(app: Mainspring) -> None:
    with pytest.raises(ConfigurationError, match=r"two of them are named 'nothing'.*name="):
        app.task(limits=[Limit(5, key=lambda p: p.who), Limit(2, key=lambda p: p.who)])(nothing)
    app.task(name="fine", limits=[Limit(5), Limit(2, key=lambda p: p.who), Rate(1), Limit(1, name="third")])(nothing)


def test_a_name_is_one_limit(app: Mainspring) -> None:
    app.task(name="one", limits=[Limit(5, name="crm")])(nothing)
    app.task(name="two", limits=[Limit(5, name="crm"), Rate(7, name="crm")])(nothing)
    with pytest.raises(ConfigurationError, match="'crm' is declared as 5 at once and as 3 at once"):
        app.limit_queue("mail", Limit(3, name="crm"))
    app.task(name="two", limits=[Rate(9, name="crm")])(nothing)  # itself again, as when a module is loaded anew


def test_invalid_limits_are_refused(app: Mainspring) -> None:
    with pytest.raises(ConfigurationError, match=r"a list of Limit\(…\) and Rate\(…\), not 5"):
        app.task(limits=[5])(nothing)  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="fair is Fair"):
        app.task(fair="tenant")(nothing)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="not a name for a queue"):
        app.limit_queue("", Limit(1))
    with pytest.raises(ConfigurationError, match="'='"):
        app.task(limits=[Limit(1, name="a=b")])(nothing)


async def test_the_enqueue_raises_for_an_invalid_key(app: Mainspring) -> None:
    answers: dict[str, Any] = {"none": None, "list": [1], "empty": "", "long": "x" * 201, "true": True}
    work = app.task(name="work", limits=[Limit(1, key=lambda p: answers[p.who])])(nothing)
    for who in answers:
        with pytest.raises(
            InvalidPayload, match=r"task 'work': the key function of its limit gave .*a key is a number"
        ):
            await work.enqueue(who=who)
    with pytest.raises(InvalidPayload, match="the key function of its limit raised KeyError: 'other'"):
        await work.enqueue_many([{"who": "other"}])
    assert [job async for job in app.jobs.all()] == []


async def test_a_key_function_sees_arguments_with_their_defaults_or_the_model(app: Mainspring) -> None:
    class Order(BaseModel):
        customer: int

    seen: list[Any] = []

    def see(payload: Any) -> int:
        seen.append(payload if isinstance(payload, Order) else payload.who)
        return 7

    work = app.task(name="work", limits=[Limit(1, key=see)])(nothing)

    @app.task(limits=[Limit(1, key=see)])
    async def ship(order: Order) -> None: ...

    await work.enqueue()
    await work.enqueue("you")
    await ship.enqueue(Order(customer=7))
    assert seen == ["me", "you", Order(customer=7)]


async def test_a_queue_has_limits_with_keys_too(app: Mainspring) -> None:
    work = app.task(name="work")(nothing)
    app.limit_queue("mail", Limit(1, key=lambda p: p.nowhere))
    await work.enqueue()
    with pytest.raises(InvalidPayload, match="nowhere"):
        await work.using(queue="mail").enqueue()


# -- which limits a change of settings lowers ----------------------------------------------------------------

SLOW, QUICK = RateNumbers(10, 60_000), RateNumbers(10, 1_000)


@pytest.mark.parametrize(
    ("limits", "before", "after", "is_lower"),
    [
        ([], None, Values(limit=5), True),
        ([], Values(limit=5), None, False),
        ([], Values(limit=5), Values(limit=4), True),
        ([], Values(limit=5), Values(limit=6), False),
        ([], Values(limit=5), Values(limit=5, timeout=1000), False),
        ([], Values(limit=5), Values(limit=6, rate=SLOW), True),
        ([], Values(rate=QUICK), Values(rate=SLOW), True),
        ([], Values(rate=SLOW), Values(rate=QUICK), False),
        ([], Values(rate=QUICK), Values(rate=RateNumbers(10, 1_000, burst=9)), True),
        ([], Values(rate=QUICK), Values(rate=RateNumbers(10, 1_000, burst=11)), False),
        ([Limit(3)], None, Values(limit=2), True),
        ([Limit(3)], None, Values(limit=4), False),
        ([Limit(3)], Values(limit=4), None, True),
        ([Limit(3)], Values(limit=2), None, False),
        ([Limit(3, key=str)], None, Values(limit=2), True),
        ([Limit(3, key=str)], None, Values(limit=4), False),
        ([Limit(3), Limit(2, key=str)], None, Values(limit=4), False),
        ([Limit(3, name="smtp")], None, Values(limit=4), True),  # the task gets a second limit
    ],
)
def test_a_limit_is_lowered_if_it_is_new_or_lets_fewer_jobs_start(
    app: Mainspring, limits: list[Any], before: Values | None, after: Values | None, *, is_lower: bool
) -> None:
    app.task(name="send", limits=limits)(nothing)
    declared = app.runtime.declared_limits
    old, new = ({"send": values} if values is not None else {} for values in (before, after))
    assert declared.lowered(old, new) == ({"send"} if is_lower else set())


def test_jobs_have_the_limits_of_their_task_and_queue_and_those_that_are_set(app: Mainspring) -> None:
    app.task(name="send", limits=[Limit(3), Rate(5, name="smtp")])(nothing)
    declared = app.runtime.declared_limits
    declared.of_queue("mail", [Limit(9)])
    declared.set_numbers({"queue slow": Values(limit=1), "other": Values(limit=1)})
    assert declared.names("send", "mail") == {"send", "smtp", "queue mail"}
    assert declared.names("send", "slow") == {"send", "smtp", "queue slow"}
