"""The body of a bulk enqueue as NDJSON: a job per line.

Each line is read by itself. Lines that were joined into one list could be taken apart in another way: one line with two
jobs, or a job that is spread over two lines, would shift the results of all others.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from mainspring.service.bodies import MOST_IN_BULK, BulkBody, NewJobBody
from mainspring.service.guard import check_depth
from mainspring.service.requests import BODY, NOT_JSON, errors_of, of_lines

BLANK = b" \t\r\n"  # what JSON takes for space
JOB: TypeAdapter[NewJobBody] = TypeAdapter(NewJobBody)
LINES_HAVE = "a job per line, as in `jobs` of the JSON form; blank lines may follow the last one"


def read_lines(raw: bytes) -> tuple[BulkBody, bytes]:
    """Return the jobs of a body, and the same body in its JSON form. Raise Problem if a line is not a job.

    An idempotency key compares the JSON form, so the same jobs are the same request in whichever form they are sent.
    """
    lines = lines_of(raw)
    check_number(len(lines))
    jobs, errors = [], []
    for index, line in enumerate(lines):
        check_depth(line)  # the guard has checked one JSON text, and this body may be several
        try:
            jobs.append(JOB.validate_json(line))
        except ValidationError as error:
            errors += [{**each, "loc": (BODY, "jobs", index, *each["loc"])} for each in errors_of(error)]
    if errors:
        raise of_lines(list(map(worded, errors)), {"jobs": list(map(data_of, lines))})
    return BulkBody.model_construct(jobs=jobs), b'{"jobs":[%b]}' % b",".join(lines)


def lines_of(raw: bytes) -> list[bytes]:
    """Return the lines of a body without the blank ones at its end."""
    text = raw.rstrip(BLANK)
    return text.split(b"\n") if text else []


def check_number(number: int) -> None:
    if 1 <= number <= MOST_IN_BULK:
        return
    code = "too_long" if number else "too_short"
    msg = f"the body has {number:,} lines; send 1 to {MOST_IN_BULK:,}, a job in each"
    raise of_lines([{"loc": (BODY, "jobs"), "type": code, "msg": msg}], {"jobs": []})


def worded(error: dict[str, Any]) -> dict[str, Any]:
    """Return an error that names its line, if it is not JSON. Pydantic would say `line 1` of each."""
    if error["type"] != NOT_JSON:
        return error
    why = error["msg"].removeprefix("Invalid JSON: ").replace(" at line 1 column ", " at column ")
    return {**error, "msg": f"line {error['loc'][2] + 1} is not JSON: {why}"}


def data_of(line: bytes) -> Any:
    with suppress(ValueError):
        return from_json(line)
    return None
