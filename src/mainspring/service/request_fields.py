"""Fields of requests that jobs send to others, as the task `http` and callbacks take them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from mainspring.outgoing.client import LONGEST_TIMEOUT, LONGEST_URL, problem_of_headers, problem_of_url

RESERVED = ("webhook-", "x-mainspring-")  # beginnings of headers that only Mainspring sets
MAX_HEADERS = 16_384  # characters of all names and values
LONGEST_WORK = 30 * 86_400  # seconds; as long as signals are kept


def checked_url(url: str) -> str:
    if problem := problem_of_url(url):
        raise ValueError(problem)
    return url


def checked_headers(headers: dict[str, str]) -> dict[str, str]:
    if problem := problem_of_headers(headers):
        raise ValueError(problem)
    if (size := sum(len(name) + len(value) for name, value in headers.items())) > MAX_HEADERS:
        msg = f"the headers have {size:,} characters; give at most {MAX_HEADERS:,}"
        raise ValueError(msg)
    for name in headers:
        if name.lower().startswith(RESERVED):
            msg = f"the header {name} is set by Mainspring"
            raise ValueError(msg)
    return headers


Url = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_URL), AfterValidator(checked_url)]
Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
Headers = Annotated[dict[str, str], Field(max_length=50), AfterValidator(checked_headers)]
Timeout = Annotated[float, Field(gt=0, le=LONGEST_TIMEOUT, allow_inf_nan=False)]
Work = Annotated[float, Field(gt=0, le=LONGEST_WORK, allow_inf_nan=False)]
SecretName = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Callback(BaseModel):
    """A request that tells of a job's end."""

    model_config = ConfigDict(
        extra="forbid",
        hide_input_in_errors=True,
        json_schema_extra={"examples": [{"url": "https://example.com/done", "secret": "default"}]},
    )

    url: Url = Field(description="gets a POST with the job, and its result or its error")
    headers: Headers | None = None
    secret: SecretName = Field(default="default", description="the name of the secret that signs the request")
    timeout: Timeout = Field(default=30.0, description="seconds")
