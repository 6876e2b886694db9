"""All jobs of a filter as one download: NDJSON or CSV, written while the jobs are read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from mainspring.job import Job
from mainspring.jobs import Jobs
from mainspring.redaction import Redaction
from mainspring.service.bodies import Paged
from mainspring.service.requests import app_of
from mainspring.service.separation import jobs_of
from mainspring.service.views import job_data
from mainspring.stores.protocol import Filter, Page

PAGE_SIZE = 500
COLUMNS = (
    "id", "task", "queue", "status", "priority", "created_at", "run_at", "started_at", "finished_at", "attempts",
    "max_attempts", "worker", "dedupe_key", "target_type", "target_id", "tags", "error_type", "error_message",
    "error_code", "fingerprint", "reason", "payload", "result",
)  # fmt: skip
JSON = ("application/json", "application/*", "*/*")  # what an ordinary page satisfies
COLUMNS_OF = {"target": ("target_type", "target_id"), "failure": ("error_type", "error_message", "error_code")}
"""The columns of fields that have several. Other fields have one of their own name."""

AS_JSON = ("payload", "result", "headers", "planned_steps", "progress")
FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Form:
    """A form of the download."""

    media_type: str
    suffix: str
    begin: Callable[[Sequence[str]], bytes]
    write: Callable[[Sequence[Job], Redaction, Sequence[str]], bytes]


def ndjson_of(jobs: Sequence[Job], redaction: Redaction, fields: Sequence[str]) -> bytes:
    return b"".join(to_json(job_data(job, redaction, fields)) + b"\n" for job in jobs)


def csv_of(jobs: Sequence[Job], redaction: Redaction, fields: Sequence[str]) -> bytes:
    columns = columns_of(fields)
    return lines_of(row_of(job_data(job, redaction, fields), columns) for job in jobs)


def columns_of(fields: Sequence[str]) -> Sequence[str]:
    """Return the columns of these fields, in their order."""
    return [column for name in fields for column in COLUMNS_OF.get(name, (name,))] or COLUMNS


def lines_of(rows: Any) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue().encode()


def row_of(data: dict[str, Any], columns: Sequence[str]) -> list[Any]:
    target, failure = data.get("target") or {}, data.get("failure") or {}
    cells = data | {"target_type": target.get("type"), "target_id": target.get("id")}
    cells |= {"tags": " ".join(data.get("tags", ()))}
    cells |= {"error_type": failure.get("type"), "error_message": failure.get("message")}
    cells["error_code"] = failure.get("code")
    cells |= {name: json.dumps(data[name], ensure_ascii=False) for name in AS_JSON if name in columns}
    return [harmless(cells[name]) for name in columns]


def harmless(value: Any) -> Any:
    """Return a cell that spreadsheets do not take for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


NDJSON = Form("application/x-ndjson", "ndjson", lambda _: b"", ndjson_of)
CSV = Form("text/csv", "csv", lambda fields: lines_of([columns_of(fields)]), csv_of)
FORMS = {"application/x-ndjson": NDJSON, "application/ndjson": NDJSON, "text/csv": CSV}
TEXT = {"schema": {"type": "string", "description": "all jobs that match; `limit` does not count"}}
DESCRIBED: dict[int | str, dict[str, Any]] = {200: {"content": {form.media_type: TEXT for form in (NDJSON, CSV)}}}
"""What the OpenAPI document says of lists that can be downloaded."""


def form_of(accept: str) -> Form | None:
    """Return the form that an Accept header prefers; None for an ordinary page in JSON."""
    ranges = [read_range(text) for text in accept.split(",")]
    known = [(quality, name) for name, quality in ranges if quality > 0 and (name in FORMS or name in JSON)]
    best = max(known, key=lambda each: each[0], default=(0.0, ""))  # of equals, the first
    return FORMS.get(best[1])


def read_range(text: str) -> tuple[str, float]:
    """Return the media type and the quality of one part of an Accept header."""
    name, *parameters = (part.strip().lower() for part in text.split(";"))
    quality = next((part.removeprefix("q=") for part in parameters if part.startswith("q=")), "1")
    try:
        return name, float(quality)
    except ValueError:
        return name, 0.0


async def exported(request: Request, where: Filter, paged: Paged, form: Form) -> Response:
    """Answer with all jobs that match, from the cursor on if there is one. An invalid filter still gets a problem."""
    jobs, redaction = jobs_of(request), app_of(request).redaction
    first = await page_of(jobs, where, paged, paged.cursor)
    headers = {"content-disposition": f'attachment; filename="jobs.{form.suffix}"'}
    pages = pages_of(jobs, where, paged, first)
    return StreamingResponse(chunks(pages, form, redaction, paged.fields), media_type=form.media_type, headers=headers)


async def chunks(
    pages: AsyncIterator[Page], form: Form, redaction: Redaction, fields: Sequence[str]
) -> AsyncIterator[bytes]:
    """Yield the download page by page. If the store fails in between, the connection breaks: the end is missing."""
    begin = form.begin(fields)
    async for page in pages:
        yield begin + form.write(page.jobs, redaction, fields)
        begin = b""


async def pages_of(jobs: Jobs, where: Filter, paged: Paged, page: Page) -> AsyncIterator[Page]:
    """Yield the pages from this one on."""
    yield page
    while page.cursor is not None:
        page = await page_of(jobs, where, paged, page.cursor)
        yield page


async def page_of(jobs: Jobs, where: Filter, paged: Paged, cursor: str | None) -> Page:
    return await jobs.find(where, sort=paged.sort, descending=paged.descending, limit=PAGE_SIZE, cursor=cursor)
