from __future__ import annotations

from typing import Any

import pytest

from mainspring.errors import Failure
from mainspring.stores.engine.ack import LONGEST_TRACEBACK
from mainspring.worker.failures import failure_of


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Delegating(Exception):
    """Like errors of some libraries for remote calls, which look up in an answer whatever they are asked for."""

    def __getattr__(self, name: str) -> Any:
        return dict[str, Any]()[name]


def test_a_failure_attached_to_the_exception_is_used_as_it_is() -> None:
    error = ValueError("here")
    told = Failure("TheirError", "there", "trace")
    error.mainspring_failure = told  # type: ignore[attr-defined]
    assert failure_of(error) is told


def test_broken_messages_and_lone_surrogates_are_replaced() -> None:
    assert failure_of(Mute()).message == "<its message raised RuntimeError>"
    assert failure_of(ValueError("caf\udce9")).message == "caf\\udce9"


def test_a_shortened_traceback_still_names_the_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceback.format_exception", None)  # it would take seconds for such texts
    lines = "\n".join(map(str, range(10_000)))
    try:
        try:
            raise ExceptionGroup("several", [ValueError("first of them"), KeyError("k")])
        except ExceptionGroup as group:
            group.add_note(f"noted {lines}")
            raise LookupError(lines) from group
    except LookupError as error:
        trace = failure_of(error).traceback
    assert len(trace) <= LONGEST_TRACEBACK
    told = ["ExceptionGroup: several", "noted 0\n1\n", "ValueError: first of them", "LookupError: 0\n1\n", "9999\n"]
    assert [text for text in told if text not in trace] == []


def test_an_exception_that_raises_on_attribute_access_is_described() -> None:
    try:
        raise Delegating("no such guest")
    except Delegating as error:
        failure = failure_of(error)
    assert (failure.type, failure.message) == ("Delegating", "no such guest")
    assert "test_an_exception_that_raises" in failure.traceback
    assert "Delegating: no such guest\n" in failure.traceback  # Python 3.13 adds that reading the notes failed
