"""What Sentry gets, without secrets: events of jobs, of log lines, of requests, and of everything else in the process.

Sentry's own integrations add requests, log lines and variables to events after all event processors of ours have run.
So the last step before an event is sent cleans it, `before_send`, and a breadcrumb is cleaned when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol
from weakref import WeakSet

import sentry_sdk

from mainspring.job import Claim
from mainspring.json_text import from_json
from mainspring.redaction import MARK, Hide, Redaction, Rules
from mainspring.stored_options import options_of

Data = dict[str, Any]
Hook = Callable[[Any, Any], Any]

OF_JOBS = "mainspring_jobs"  # the hint of an event about a failed run: the jobs of the run, as `Secretive`
PAYLOAD = "payload"  # in `extra` of such an event: it has been cleaned, perhaps by a function of the user
PARAMETER = "sentry.message.parameter."
HOOKS = "before_send", "before_send_transaction", "before_breadcrumb", "before_send_log", "before_send_span"
IN_DATA = ("extra", "request", "contexts", "tags", "user")


class Redacting(Protocol):
    """Something with rules: an application."""

    @property
    def redaction(self) -> Redaction: ...


@dataclass(frozen=True, slots=True)
class Secretive:
    """What a job has that its texts may repeat."""

    task: str
    payload: Any
    headers: Any

    @classmethod
    def of(cls, task: str, payload: str, options: str | None) -> Secretive:
        try:
            data = from_json(payload)
        except ValueError:
            data = None
        return cls(task, data, options_of(options).get("headers"))


redacting: WeakSet[Redacting] = WeakSet()
"""The applications of this process that report to Sentry. The rules of all of them hold for every event."""


class AtWork:
    """The jobs that run here. Most runs report nothing, so their payloads are read only if one does."""

    def __init__(self, claims: Sequence[Claim]) -> None:
        self._claims = claims

    @cached_property
    def jobs(self) -> tuple[Secretive, ...]:
        return tuple(Secretive.of(claim.task, claim.payload, claim.options) for claim in self._claims)


at_work: ContextVar[AtWork | None] = ContextVar("mainspring_sentry_jobs", default=None)


def running_jobs() -> tuple[Secretive, ...]:
    here = at_work.get()
    return () if here is None else here.jobs


@contextmanager
def about(claims: Sequence[Claim]) -> Iterator[AtWork]:
    """Hide the secrets of these jobs in what is reported meanwhile."""
    here = AtWork(claims)
    token = at_work.set(here)
    try:
        yield here
    finally:
        at_work.reset(token)


# -- hooks ------------------------------------------------------------------------------------------


def watch(source: Redacting) -> None:
    """Let the rules of an application hold for everything that this process sends to Sentry."""
    redacting.add(source)
    hook_in()


def hook_in() -> None:
    """Clean what the current client sends, after the hooks that the program has given it."""
    client = sentry_sdk.get_client()
    options = client.options
    if not client.is_active() or isinstance(options.get("before_send"), Last):
        return
    cleaners: tuple[Hook, ...] = (cleaned_event, cleaned_event, cleaned_crumb, cleaned_log, cleaned_span)
    for name, clean in zip(HOOKS, cleaners, strict=True):
        given = options.get(name) or (options.get("_experiments") or {}).get(name)
        options[name] = Last(given, clean)


@dataclass(frozen=True, slots=True)
class Last:
    """Calls the program's own hook and then ours. What cannot be cleaned is not sent."""

    given: Hook | None
    clean: Hook

    def __call__(self, item: Any, hint: Any) -> Any:
        item = item if self.given is None else self.given(item, hint)
        if item is None:
            return None
        try:
            return self.clean(item, hint)
        except Exception:  # noqa: BLE001 - Sentry's client would send a breadcrumb as it was
            return None


def cleaned_event(event: Data, hint: Mapping[str, Any]) -> Data:
    of_run = hint.get(OF_JOBS)
    jobs = running_jobs() if of_run is None else of_run
    for source in tuple(redacting):
        event = Cleaner(source.redaction, jobs, data_in(event)).event(event, is_own=of_run is not None)
    return event


def cleaned_crumb(crumb: Data, _hint: Any) -> Data:
    for source in tuple(redacting):
        crumb = Cleaner(source.redaction, running_jobs(), [crumb.get("data")]).crumb(crumb)
    return crumb


def cleaned_log(entry: Data, _hint: Any) -> Data:
    for source in tuple(redacting):
        entry = Cleaner(source.redaction, running_jobs(), [entry.get("attributes")]).log(entry)
    return entry


def cleaned_span(span: Data, _hint: Any) -> Data:
    for source in tuple(redacting):
        span = Cleaner(source.redaction, running_jobs(), [span.get("attributes")]).parts(span, ("attributes",))
    return span


def data_in(event: Data) -> list[Any]:
    """Return the parts of an event in which secrets are known by their keys. They are hidden in its texts too."""
    frames = [frame.get("vars") for frame in frames_in(event)]
    crumbs = [crumb.get("data") for crumb in values_in(event, "breadcrumbs")]
    return [part for part in (*(event.get(name) for name in IN_DATA), *frames, *crumbs) if part]


def values_in(event: Data, name: str) -> list[Data]:
    part = event.get(name)
    values = part.get("values") if isinstance(part, dict) else part
    return [value for value in values or () if isinstance(value, dict)]


def frames_in(event: Data) -> Iterator[Data]:
    for value in (*values_in(event, "exception"), *values_in(event, "threads")):
        yield from (value.get("stacktrace") or {}).get("frames") or ()


# -- cleaning ---------------------------------------------------------------------------------------


class Cleaner:
    """Cleans one item by the rules of one application."""

    def __init__(self, redaction: Redaction, jobs: Sequence[Secretive], data: Sequence[Any]) -> None:
        self._rules: Rules = redaction.anywhere
        self._redaction = redaction
        self._hides: list[Hide] = [redaction.hide(job.payload, job.headers, job.task) for job in jobs]
        self._hides.append(self._rules.hide(data))

    def event(self, event: Data, *, is_own: bool) -> Data:
        kept = event["extra"].get(PAYLOAD) if is_own else None
        made = self.parts(event, IN_DATA)
        if kept is not None:
            made["extra"][PAYLOAD] = kept
        if isinstance(made.get("request"), dict):
            made["request"].pop("cookies", None)
        if "message" in made:
            made["message"] = self.text(made["message"])
        if isinstance(made.get("logentry"), dict):
            made["logentry"] = self.entry(made["logentry"])
        cleaners = {"breadcrumbs": self.crumb, "exception": self.raised, "threads": self.raised, "spans": self.span}
        for name, clean in cleaners.items():
            if name in made:
                made[name] = each(made[name], clean)
        return made

    def parts(self, item: Data, names: Sequence[str]) -> Data:
        """Return an item with these parts cleaned as data."""
        return {**item, **{name: self.data(item[name]) for name in names if item.get(name)}}

    def data(self, data: Any) -> Any:
        return self.text(self._rules.value(data))

    def text(self, value: Any) -> Any:
        """Return a text, or all texts of data, without secrets."""
        return self._redaction.texts(value, self._hide)

    def _hide(self, text: str) -> str:
        for hide in self._hides:
            text = hide(text)
        return text

    def crumb(self, crumb: Data) -> Data:
        return {**self.parts(crumb, ("data",)), **self._texts(crumb, "message")}

    def span(self, span: Data) -> Data:
        return {**self.parts(span, ("data", "tags")), **self._texts(span, "description")}

    def _texts(self, item: Data, *names: str) -> Data:
        return {name: self.text(item[name]) for name in names if item.get(name)}

    def entry(self, entry: Data) -> Data:
        """Return a log line. Its parameters have no keys: if the line has a secret, any of them may be it."""
        made = self.text({name: value for name, value in entry.items() if name != "params"})
        params = entry.get("params")
        if params and made.get("formatted") == entry.get("formatted"):
            return {**made, "params": self.data(params)}
        return {**made, "params": [MARK for _ in params or ()]}

    def raised(self, raised: Data) -> Data:
        frames = (raised.get("stacktrace") or {}).get("frames") or ()
        cleaned = [self.parts(frame, ("vars",)) for frame in frames]
        made: Data = self.text({name: value for name, value in raised.items() if name != "stacktrace"})
        if raised.get("stacktrace"):
            made["stacktrace"] = {**raised["stacktrace"], "frames": self.text(cleaned)}
        return made

    def log(self, entry: Data) -> Data:
        body = self.text(entry.get("body", ""))
        made = {**self.parts(entry, ("attributes",)), "body": body}
        if body != entry.get("body"):
            made["attributes"] = {
                name: MARK if name.startswith(PARAMETER) else value
                for name, value in (made.get("attributes") or {}).items()
            }
        return made


def each(part: Any, clean: Callable[[Data], Data]) -> Any:
    """Return a list, or an object with a list of `values`, with each item cleaned."""
    if isinstance(part, dict):
        return {**part, "values": each(part.get("values") or [], clean)}
    return [clean(item) if isinstance(item, dict) else item for item in part]
