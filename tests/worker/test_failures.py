from __future__ import annotations

from enum import Enum
from http import HTTPStatus
from typing import Any

import pytest

from mainspring.errors import ConfigurationError, Discard, Failure
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


class Refused(Exception):
    code = "refused"


def test_a_group_has_the_type_message_and_code_of_its_first_exception_and_shows_all() -> None:
    try:
        raise ExceptionGroup("unhandled errors in a TaskGroup", [Refused("no room 7"), KeyError("k")])
    except ExceptionGroup as error:
        failure = failure_of(error)
    assert (failure.type, failure.message, failure.code) == ("Refused", "no room 7", "refused")
    assert failure.place.endswith("test_a_group_has_the_type_message_and_code_of_its_first_exception_and_shows_all")
    shown = ["unhandled errors in a TaskGroup (2 sub-exceptions)", "Refused: no room 7", "KeyError: 'k'"]
    assert [text for text in shown if text not in failure.traceback] == []


def test_secrets_in_the_exceptions_of_a_group_are_hidden() -> None:
    try:
        raise ExceptionGroup("s3cret", [ValueError("s3cret")])
    except ExceptionGroup as error:
        failure = failure_of(error, lambda text: text.replace("s3cret", "[hidden]"))
    assert failure.message == "[hidden]"
    assert "ValueError: s3cret" not in failure.traceback


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


class ApiError(Exception):
    def __init__(self, code: object) -> None:
        super().__init__("busy")
        self.code = code


class Reason(str, Enum):  # noqa: UP042 - not StrEnum: its texts have other names
    BUSY = "busy"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("E-503", "E-503"), (503, "503"), (-1, "-1"), (HTTPStatus.GONE, "410"), (Reason.BUSY, "busy"),
        ("x" * 100, "x" * 100),
        (None, None), ("", None), (True, None), (1.5, None), ("x" * 101, None), ("a\nb", None), ("\udc80", None),
        (10**100, None), pytest.param(10**5000, None, id="huge"), (b"x", None), (["x"], None),
    ],
)  # fmt: skip
def test_the_code_of_an_exception_is_its_attribute(given: object, kept: str | None) -> None:
    assert failure_of(ApiError(given)).code == kept


def test_an_exception_without_a_code_has_none() -> None:
    assert failure_of(ValueError("no")).code is None


def test_an_exception_whose_attributes_fail_has_no_code() -> None:
    class Broken(Exception):
        @property
        def code(self) -> str:
            raise RuntimeError

    assert failure_of(Broken()).code is None


def test_secrets_are_hidden_in_codes() -> None:
    assert (
        failure_of(ApiError("key-hunter2"), lambda text: text.replace("hunter2", "[redacted]")).code == "key-[redacted]"
    )


def test_discard_takes_a_code() -> None:
    assert failure_of(Discard("no", code=404)).code == "404"
    assert failure_of(Discard("no")).code is None
    with pytest.raises(ConfigurationError, match="is not the code of an error; give a text of 1 to 100"):
        Discard("no", code="x" * 101)
    with pytest.raises(ConfigurationError, match="int is not"):
        Discard("no", code=10**5000)
