"""Jobs that follow the end of an encrypted job (its option `on_end`), as the store has them.

The store makes such a job without a key: it adds what it tells of the end to the payload that the option has. So the
payload has two sealed parts, both bound to the job that has ended:

    {"$encrypted":"v1.…","body":{"job":{"id":"…",…},"result":{"$encrypted":"v1.…"}}}

The result is opened only beside a request that was sealed for the same job. Otherwise somebody who can write to the
database could have it sent elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mainspring.encryption import FIELD, Keys, sealed_in
from mainspring.errors import ConfigurationError
from mainspring.json_text import from_json, read_object, to_json

ON_END = "on_end"  # among a job's options
NO_HEADERS = (
    "a job of the option on_end has headers, which cannot be encrypted there; let middleware set no headers for it,"
    " or leave the callback out"
)


def sealed_on_end(keys: Keys, job_id: str, on_end: Any) -> Any:
    """Return the option with sealed payloads. What is not such an option is refused by the store, which says why."""
    if not isinstance(on_end, dict):
        return on_end
    return {name: sealed_fields(keys, job_id, fields) for name, fields in on_end.items()}


def sealed_fields(keys: Keys, job_id: str, fields: Any) -> Any:
    if not isinstance(fields, dict) or not isinstance(fields.get("payload"), str):
        return fields
    if isinstance(options := fields.get("options"), str) and "headers" in read_object(options):
        raise ConfigurationError(NO_HEADERS)
    return {**fields, "payload": keys.seal_json(fields["payload"], job_id, ON_END)}


def opened_on_end(keys: Keys, job_id: str, on_end: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option with its payloads. Raise Unreadable."""
    return {
        name: {**fields, "payload": keys.open_json(fields["payload"], job_id, ON_END)}
        for name, fields in on_end.items()
    }


def opened_text(keys: Keys, text: str) -> str | None:
    """Return the payload of a job that follows an end, as JSON; None if it is of another job. Raise Unreadable."""
    if '"body"' not in text or FIELD not in text:  # true of nearly all: what is sealed as a whole has no such key
        return None
    told = opened_data(keys, read_object(text))
    return None if told is None else to_json(told)


def opened_data(keys: Keys, payload: Any) -> dict[str, Any] | None:
    """Return the same of a decoded payload."""
    body = payload.get("body") if isinstance(payload, dict) else None
    job = body.get("job") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(job, dict):
        return None
    origin, request, result = str(job.get("id")), sealed_in({FIELD: payload.get(FIELD)}), sealed_in(body.get("result"))
    if request is not None:
        told = body if result is None else {**body, "result": from_json(keys.open(result, origin, "result"))}
        return {**from_json(keys.open(request, origin, ON_END)), "body": told}
    if result is None:
        return None
    return {**payload, "body": {**body, "result": None, "result_omitted": True}}  # its request is from before the keys
