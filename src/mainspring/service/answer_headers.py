"""Which headers answers have, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mainspring.service.guard import OPEN_PATHS, UNLIMITED
from mainspring.service.requests import TELLS


def header(description: str, example: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}, "example": example}


HEADERS: Mapping[str, Mapping[str, Any]] = {
    "X-Request-Id": header("finds the request in the service's log", "9f2c41d07be35a68"),
    "RateLimit-Policy": header(
        "how many requests the token may make (`q`) in how many seconds (`w`); only if there is a limit",
        '"token";q=200;w=2',
    ),
    "RateLimit": header("how many are left (`r`), and in how many seconds all are (`t`)", '"token";r=199;t=1'),
    "Retry-After": header("seconds after which it helps to try again", "5"),
    "WWW-Authenticate": header("always `Bearer`", "Bearer"),
    "ETag": header("the version; send it as `If-Match` with a change", '"01983d5c7a10"'),
    "Location": header("the path of what was created", "/v1/jobs/01983d5c-7a10-7c3e-9b52-6f0a4c1d2e3f"),
    "Link": header("the next page, if there is one", '</v1/jobs?limit=50&cursor=WyJqb2JzIl0>; rel="next"'),
    "Idempotent-Replayed": header("`true`: this is the answer to an earlier request with the same key", "true"),
    "X-Order": header("of an answer with lines: `quiet`, `terminate` or nothing", "quiet"),
    "Content-Disposition": header("of a download: the name of its file", 'attachment; filename="jobs.csv"'),
}


def headers_of_success(path: str, method: str, operation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of an answer that is not an error, as references."""
    names = ["X-Request-Id"]
    if path not in OPEN_PATHS | UNLIMITED:
        names += ["RateLimit-Policy", "RateLimit"]
    if method == "post":
        names.append("Idempotent-Replayed")
    if any(parameter["name"] == "cursor" for parameter in operation.get("parameters", ())):
        names.append("Link")
    return {name: {"$ref": f"#/components/headers/{name}"} for name in (*names, *operation.get(TELLS, ()))}
