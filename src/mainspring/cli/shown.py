"""What commands print, without secrets: by the same rules as the API, logs and Sentry (mainspring/redaction.py)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from mainspring.job import Job
from mainspring.redaction import Hide, Redaction, Rules, in_texts

VALUES = frozenset({"payload", "result", "headers", "output", "saved", "attributes"})
"""Names under which results have data of users. Other names are ours, and their values are cleaned as texts."""

NAMED = frozenset({"secret", "token"})
"""In the detail of an audit entry: a name and an id, not the secret itself."""


def shown_job(job: Job, redaction: Redaction) -> Job:
    """Return a job as it may be shown. Texts about its runs were cleaned when they were stored."""
    rules = redaction.of(job.task)
    hide = rules.hide((job.payload, job.headers or {}))

    def clean(value: Any) -> Any:
        return in_texts(rules.value(value), hide, 0)

    return replace(
        job,
        payload=clean(job.payload),
        result=clean(job.result),
        options={**job.options, **({"headers": clean(job.headers)} if job.headers else {})},
        reason=hide(job.reason),
        dedupe_key=job.dedupe_key and hide(job.dedupe_key),
        target=None if job.target is None else (hide(job.target[0]), hide(job.target[1])),
        tags=tuple(map(hide, job.tags)),
    )


def shown_data(data: Any, redaction: Redaction, hide: Hide) -> Any:
    """Return a result as it may be shown, given as JSON data."""
    return Results(redaction).clean(data, None, hide)


class Results:
    """Walks through results. Data of users is cleaned by the rules of the task that is named beside it."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction

    def clean(self, value: Any, task: str | None, hide: Hide) -> Any:
        if isinstance(value, str):
            return hide(value)
        if isinstance(value, list):
            return [self.clean(item, task, hide) for item in value]
        if not isinstance(value, dict):
            return value
        task = value["task"] if isinstance(value.get("task"), str) else task
        hide = self._with_values(value, task, hide)
        return {name: self._part(name, item, task, hide) for name, item in value.items()}

    def _part(self, name: str, item: Any, task: str | None, hide: Hide) -> Any:
        if name in VALUES:
            return in_texts(self._rules(task).value(decoded(item)), hide, 0)
        if name == "detail" and isinstance(item, dict):
            return self._detail(item, hide)
        return self.clean(item, task, hide)

    def _detail(self, detail: dict[str, Any], hide: Hide) -> dict[str, Any]:
        """Return the detail of an audit entry. It may name secrets, and it does not say of which task it is."""
        data = {name: part for name, part in self.clean(detail, None, hide).items() if name not in NAMED}
        named = {name: self.clean(detail[name], None, hide) for name in detail.keys() & NAMED}
        cleaned = self._redaction.strictest.value(data)
        return {name: named.get(name, cleaned.get(name)) for name in detail}

    def _with_values(self, value: dict[str, Any], task: str | None, hide: Hide) -> Hide:
        """Return what also hides the secrets of the payload that is here, or one level below as a job."""
        job = value.get("job")
        if isinstance(job, dict) and "payload" in job:
            value, task = job, job.get("task", task)
        if "payload" not in value:
            return hide
        own = self._rules(task).hide((decoded(value["payload"]), value.get("headers") or {}))
        return lambda text: hide(own(text))

    def _rules(self, task: str | None) -> Rules:
        return self._redaction.strictest if task is None else self._redaction.of(task)


def decoded(value: Any) -> Any:
    """Return data that is kept as a text of JSON as data: its keys say what is secret."""
    if not isinstance(value, str) or value[:1] not in {"{", "["}:
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
