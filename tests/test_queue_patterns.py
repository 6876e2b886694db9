from __future__ import annotations

import pytest

from mainspring import Mainspring
from mainspring.errors import ConfigurationError
from mainspring.job import check_queue
from mainspring.queue_patterns import after_all, are_all_among, covers, is_among, is_pattern, meet
from mainspring.stores.protocol import Filter
from mainspring.worker.settings import subscriptions


@pytest.mark.parametrize(
    ("pattern", "queue", "fits"),
    [
        ("mail", "mail", True),
        ("mail", "mail2", False),
        ("*", "mail", True),
        ("p/a/*", "p/a/mail", True),
        ("p/a/*", "p/a/", True),
        ("p/a/*", "p/a", False),
        ("p/a/*", "p/ab/mail", False),
        ("p/a/*", "P/a/mail", False),
        ("a*", "ab", False),
    ],
)
def test_which_queues_a_pattern_stands_for(pattern: str, queue: str, fits: bool) -> None:
    assert covers(pattern, queue) is fits
    assert is_among(queue, ["other", pattern]) is fits
    assert meet([pattern], {queue}) is fits


def test_a_range_has_the_names_with_a_beginning() -> None:
    names = ["p/a", "p/a/", "p/a/x", "p/a/\U0010ffff", "p/a0", "p/a-", "p/b/"]
    assert [name for name in names if "p/a/" <= name < after_all("p/a/")] == ["p/a/", "p/a/x", "p/a/\U0010ffff"]


@pytest.mark.parametrize(
    ("inner", "outer", "is_part"),
    [
        (["p/a/mail"], ["p/a/*"], True),
        (["p/a/mail/*"], ["p/a/*"], True),
        (["p/a/*"], ["p/a/*"], True),
        (["p/a/*"], ["p/a/mail"], False),
        (["p/a/*", "p/b/x"], ["p/a/*"], False),
        (["p/*"], ["p/a/*"], False),
        (["*"], ["p/a/*"], False),
        (["*"], ["*"], True),
        (["p/a/*"], ["*"], True),
        ([], ["p/a/*"], True),
    ],
)
def test_patterns_within_patterns(inner: list[str], outer: list[str], is_part: bool) -> None:
    assert are_all_among(inner, outer) is is_part


@pytest.mark.parametrize("name", ["*", "mail/*", "p/a/*", ""])
def test_no_queue_is_named_like_a_pattern(name: str) -> None:
    with pytest.raises(ConfigurationError, match="not a name for a queue"):
        check_queue(name)


async def test_a_job_cannot_be_enqueued_under_a_pattern() -> None:
    app = Mainspring("memory://")

    @app.task
    async def noop() -> None: ...

    with pytest.raises(ConfigurationError, match="star"):
        await noop.using(queue="mail/*").enqueue()


def test_patterns_of_workers() -> None:
    assert [each.queue for each in subscriptions(["p/a/*", "mail"])] == ["p/a/*", "mail"]
    assert is_pattern("p/a/*")
    with pytest.raises(ConfigurationError, match="also takes from p/a/mail"):
        subscriptions(["p/a/*", "p/a/mail"], {"p/a/mail": 2})
    assert subscriptions(["p/a/*", "mail"], {"mail": 2})


def test_the_patterns_of_a_filter_are_a_tuple() -> None:
    with pytest.raises(ConfigurationError, match="within"):
        Filter(within="p/a/*")  # type: ignore[arg-type]
    assert Filter(within=["p/a/*"]).within == ("p/a/*",)  # type: ignore[arg-type]
