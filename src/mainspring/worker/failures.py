"""Describes exceptions for the store: type, message and traceback, shortened and without what no store accepts."""

from __future__ import annotations

import traceback
from dataclasses import replace

from mainspring.errors import Failure, as_code
from mainspring.fingerprint import fingerprint, leaf_of, of_project, place_of
from mainspring.job import Claim
from mainspring.queue_patterns import project_of
from mainspring.redaction import Hide
from mainspring.stores.engine.ack import LONGEST_MESSAGE, LONGEST_TRACEBACK, shorten

LONGEST_SEARCHED = 4 * LONGEST_TRACEBACK  # characters of a text that are searched for secrets
CAUSED = "\nThis exception led to the following one:\n\n"


def failure_of(error: BaseException, hide: Hide | None = None) -> Failure:
    """Describe an exception. One that came from a child process brings its own description along.

    A group of exceptions has the type and message of its first leaf, because its own say nothing about the cause:
    `ExceptionGroup: unhandled errors in a TaskGroup`. The traceback shows the whole group.
    `hide` replaces secrets. It comes before texts are shortened: half a secret would not be found.
    """
    failure = attached_failure(error)
    if failure is not None:
        return failure if hide is None else without_secrets(failure, hide)
    trace = trace_of(error) if error.__traceback__ else ""
    leaf, code = leaf_of(error), code_of(error)
    code = code_of(leaf) if code is None else code
    return as_failure(Failure(type(leaf).__name__, message_of(leaf), trace, place=place_of(error), code=code), hide)


def as_failure(given: Failure, hide: Hide | None = None) -> Failure:
    """Return a failure that stores accept: without lone surrogates, and shortened."""
    message, trace = given.message, given.traceback
    if hide is not None:
        message, trace = hidden_in(message, hide), hidden_in(trace, hide)
    texts = storable(given.type, LONGEST_MESSAGE), storable(message, LONGEST_MESSAGE), storable(trace)
    return Failure(*texts, place=storable(given.place, LONGEST_MESSAGE), code=without_secret(given.code, hide))


def hidden_in(text: str, hide: Hide) -> str:
    """Hide secrets in a text. Of a huge one, only the ends are kept anyway, so the rest is not searched."""
    return hide(shorten(text, LONGEST_SEARCHED))


def without_secrets(failure: Failure, hide: Hide) -> Failure:
    texts = {"message": hide(failure.message), "traceback": hide(failure.traceback)}
    return replace(failure, **texts, code=without_secret(failure.code, hide))


def without_secret(code: str | None, hide: Hide | None) -> str | None:
    return code if code is None or hide is None else hide(code)


def identified(failure: Failure, claim: Claim) -> Failure:
    """Return the failure with the fingerprint that the store gives it, too."""
    known = failure.fingerprint or fingerprint(claim.task, failure.type, failure.place, failure.message)
    return replace(failure, fingerprint=of_project(known, project_of(claim.queue)))


def code_of(error: BaseException) -> str | None:
    """Return the exception's attribute `code`, if it is one. Some exceptions raise on any attribute access."""
    try:
        return as_code(getattr(error, "code", None))
    except Exception:  # noqa: BLE001
        return None


def attached_failure(error: BaseException) -> Failure | None:
    """Return the description attached to the exception, if any. Some exceptions raise on any attribute access."""
    try:
        failure: Failure | None = getattr(error, "mainspring_failure", None)
    except Exception:  # noqa: BLE001
        return None
    return failure if isinstance(failure, Failure) else None


def trace_of(error: BaseException) -> str:
    """Return the traceback, with the exceptions that led to this one.

    Long messages are shortened first. Python would split them into lines: for 50 MB that takes seconds, in which the
    worker does nothing else.
    """
    try:
        if all(has_short_message(cause) for cause in causes_of(error)):
            return "".join(traceback.format_exception(error))
        return CAUSED.join(short_trace_of(cause) + more_about(cause) for cause in causes_of(error))
    except Exception:  # noqa: BLE001 - before 3.12, Python failed on exceptions that raise when asked for their notes
        return short_trace_of(error)


def causes_of(error: BaseException) -> list[BaseException]:
    """Return the exception and those that led to it, the earliest first."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and not any(link is seen for seen in chain):
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return chain[::-1]


def has_short_message(error: BaseException) -> bool:
    texts = [message_of(error), *getattr(error, "__notes__", ())]
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return sum(map(len, texts)) <= LONGEST_TRACEBACK and all(has_short_message(cause) for cause in within)


def short_trace_of(error: BaseException) -> str:
    """Return the traceback of this exception alone."""
    lines = "".join(traceback.format_tb(error.__traceback__))
    message = shorten(message_of(error), LONGEST_MESSAGE)
    return f"Traceback (most recent call last):\n{lines}{type(error).__name__}: {message}\n"


def more_about(error: BaseException) -> str:
    """Return the exception's notes, and the exceptions of a group."""
    notes = [f"{shorten(note, LONGEST_MESSAGE)}\n" for note in getattr(error, "__notes__", ())]
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return "".join([*notes, *(f"\nIn this group:\n\n{short_trace_of(cause)}{more_about(cause)}" for cause in within)])


def message_of(error: BaseException) -> str:
    """Return the exception's message, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception as worse:  # noqa: BLE001
        return f"<its message raised {type(worse).__name__}>"


def storable(text: str, most: int = LONGEST_TRACEBACK) -> str:
    """Shorten the text and escape lone surrogates (undecodable bytes of file names, say), which no store accepts."""
    return shorten(text, most).encode("utf-8", "backslashreplace").decode()


def in_one_line(failure: Failure | None) -> str:
    """Return type and message of a failure, for a log line."""
    return "" if failure is None else f"{failure.type}: {failure.message}"
