"""Ids of jobs and batches, and fingerprints, as people type them. The beginning is enough if it is unique.

Ids may be written with or without dashes.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping

from mainspring.app import Mainspring
from mainspring.cli.exits import UsageError
from mainspring.cli.parser import parse_names
from mainspring.errors import BatchNotFound, FailureGroupNotFound, JobNotFound, MainspringError
from mainspring.fingerprint import LENGTH, SEPARATOR

BY_ID = "by its id or the beginning of it"
SHORTEST = 8  # digits; these of an id give the minute in which its job was enqueued
DIGITS = 32  # of a whole id
HEX = re.compile(r"[0-9a-f]+")
SHORTEST_FINGERPRINT = 4  # digits
SHOWN = 5  # ids, if several begin with the same digits


def parse_ids(text: str) -> list[str]:
    """Read ids, or beginnings of them, separated by commas. For commands that would wait for a wrong one for ever."""
    names = parse_names(text)
    for name in names:
        if not HEX.fullmatch(name.lower().replace("-", "")):
            msg = f"{name!r} is not the id of a job or the beginning of one; `mainspring jobs list` shows ids"
            raise ArgumentTypeError(msg)
    return names


def full_id(app: Mainspring, text: str) -> str:
    """Return the id of the only job that begins with the text. Return a whole id as it is, without looking it up."""

    def find(cursor: str) -> Mapping[str, str]:
        page = app.run(app.jobs.find(limit=SHOWN + 1, cursor=cursor))
        return {job.id: f"{job.task}, {job.status}" for job in page.jobs}

    return complete(text, find, "job", JobNotFound)


def full_batch_id(app: Mainspring, text: str) -> str:
    """Return the id of the only batch that begins with the text. Return a whole id as it is."""

    def find(cursor: str) -> Mapping[str, str]:
        page = app.run(app.batches.list(limit=SHOWN + 1, cursor=cursor))
        return {batch.id: f"{batch.state}, jobs: {batch.total:,}" for batch in page.batches}

    return complete(text, find, "batch", BatchNotFound)


def full_fingerprint(app: Mainspring, text: str) -> str:
    """Return the only fingerprint that begins with the text. Return a whole one as it is, without looking it up."""
    project, dot, given = text.rpartition(SEPARATOR)
    digits = given.lower()
    if not HEX.fullmatch(digits) or len(digits) > LENGTH:
        return text
    beginning = f"{project}{dot}{digits}"
    if len(digits) == LENGTH:
        return beginning
    if len(digits) < SHORTEST_FINGERPRINT:
        msg = f"no fingerprint is {text}; give at least the first {SHORTEST_FINGERPRINT} digits of one"
        raise FailureGroupNotFound(msg)
    groups = app.failures.beginning_with_sync(beginning, limit=SHOWN + 1)
    if not groups:
        msg = f"no fingerprint of a failure group begins with {text}"
        raise FailureGroupNotFound(msg)
    return only_one({group.fingerprint: f"{group.task}, {group.error_type}" for group in groups}, text, "fingerprint")


def complete(text: str, find: Callable[[str], Mapping[str, str]], noun: str, not_found: type[MainspringError]) -> str:
    """Return the only id that begins with the text. `find` describes those before a cursor, newest first."""
    digits = text.lower().replace("-", "")
    if not HEX.fullmatch(digits) or len(digits) > DIGITS:
        return text
    if len(digits) == DIGITS:
        return with_dashes(digits)
    if len(digits) < SHORTEST:
        msg = f"no {noun} has the id {text}; give at least the first {SHORTEST} characters of an id"
        raise not_found(msg)
    beginning = with_dashes(digits)
    found = {key: words for key, words in find(cursor_after(digits)).items() if key.startswith(beginning)}
    if not found:
        msg = f"no {noun} begins with {text}"
        raise not_found(msg)
    return only_one(found, text, f"{noun} id")


def cursor_after(digits: str) -> str:
    """Return the lowest id that sorts after all ids that begin with these digits."""
    bound = (int(digits, 16) + 1) << 4 * (DIGITS - len(digits))
    return with_dashes(f"{min(bound, 16**DIGITS - 1):0{DIGITS}x}")


def with_dashes(digits: str) -> str:
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(part for part in parts if part)


def only_one(found: Mapping[str, str], text: str, name: str) -> str:
    if len(found) == 1:
        return next(iter(found))
    shown = [f"{key} ({words})" for key, words in found.items()][:SHOWN]
    more = ["and more"] if len(found) > SHOWN else []
    part = name.rpartition(" ")[2]
    msg = f"several {name}s begin with {text}: {', '.join([*shown, *more])}; give more of the {part}"
    raise UsageError(msg)
