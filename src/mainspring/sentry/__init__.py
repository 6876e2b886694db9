"""Sentry: failed jobs as issues, enqueues and runs on the Queues page, schedules on the Crons page.

    import sentry_sdk
    from mainspring.sentry import instrument

    sentry_sdk.init(dsn="https://…@….ingest.sentry.io/…", traces_sample_rate=0.1)
    instrument(app)

It needs `pip install 'mainspring[sentry]'`. docs/sentry.md says what is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mainspring.app import Mainspring
from mainspring.errors import ConfigurationError, MissingExtra
from mainspring.job import Claim
from mainspring.redaction import Redaction
from mainspring.trace import trace_of

try:
    import sentry_sdk
    from sentry_sdk.utils import BadDsn
except ImportError as error:
    msg = f"Sentry needs more packages ({error}); install them with: pip install 'mainspring[sentry]'"
    raise MissingExtra(msg) from error

from mainspring.sentry import cleaning
from mainspring.sentry.crons import Crons
from mainspring.sentry.failures import Redact
from mainspring.sentry.observer import Failures, Sentry, describe, is_active

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint

__all__ = ["Crons", "flush", "in_child", "instrument", "instrument_by_setting"]

FLUSH_TIMEOUT = 2.0  # seconds
DEAD_LETTER_LINE = "job_dead_lettered"  # the log line of the worker about a dead letter


def instrument(
    app: Mainspring,
    *,
    failures: Failures = "final",
    redact: Redact | None = None,
    local_variables: bool = False,
    queues: bool = True,
    crons: Crons | bool = True,
) -> None:
    """Report this application's jobs to Sentry. Call it before a worker starts; `sentry_sdk.init` sets up Sentry.

    `failures`: "final" reports a job when it gives up, "each" also reports each attempt that failed. `redact` gets the
    decoded payload of a failed job and returns what Sentry may see of it; by default, the rules of `app.redaction`
    and Sentry's own list of names decide. With `local_variables`, events have the variables of each frame, cleaned by
    the rules of `app.redaction`. `queues` and `crons` turn spans and check-ins off.

    The rules of `app.redaction` hold for everything else that this process sends to Sentry, see cleaning.py.
    """
    if failures not in {"final", "each"}:
        msg = f'failures is {failures!r}; give "final" or "each"'
        raise ConfigurationError(msg)
    if is_instrumented(app):
        msg = "this application reports to Sentry already; call instrument(app) once"
        raise ConfigurationError(msg)
    install(
        app,
        Sentry(
            app,
            failures=failures,
            redact=redact,
            local_variables=local_variables,
            queues=queues,
            crons=crons_of(crons),
        ),
        queues=queues,
    )


def instrument_by_setting(app: Mainspring, dsn: str, traces: float = 0.0) -> None:
    """Set up Sentry for `mainspring serve` and `mainspring worker`, unless the application has done it itself."""
    set_up(dsn, traces)
    if not is_instrumented(app):
        child = {"dsn": dsn, "traces": traces, "redaction": asdict(app.redaction)}
        install(app, Sentry(app, queues=traces > 0, crons=Crons(), child=child), queues=traces > 0)


def is_instrumented(app: Mainspring) -> bool:
    return app.runtime.observers.find(Sentry) is not None


def crons_of(crons: Crons | bool) -> Crons | None:  # noqa: FBT001 - as the user gives it
    if isinstance(crons, Crons):
        return crons
    return Crons() if crons else None


def install(app: Mainspring, sentry: Sentry, *, queues: bool) -> None:
    app.runtime.observers.all.append(sentry)
    if queues:
        app.around_enqueue(sentry.publish)
    begin_cleaning(app)


def begin_cleaning(source: cleaning.Redacting) -> None:
    cleaning.watch(source)
    processors = sentry_sdk.get_global_scope()._event_processors  # noqa: SLF001 - to add ours once in a process
    if drop_own_lines not in processors:
        sentry_sdk.get_global_scope().add_event_processor(drop_own_lines)


def drop_own_lines(event: Event, hint: Hint) -> Event | None:
    """Leave out the worker's log line about a dead letter: Sentry makes events of such lines, and has ours already."""
    cleaning.hook_in()  # the program may have made another client meanwhile
    record = hint.get("log_record")
    is_own = record is not None and record.name.startswith("mainspring.") and DEAD_LETTER_LINE in record.getMessage()
    return None if is_own else event


def set_up(dsn: str, traces: float) -> None:
    if is_active():
        return
    try:
        sentry_sdk.init(
            dsn=dsn,
            traces_sample_rate=traces or None,
            include_local_variables=False,
            max_request_body_size="never",
        )
    except BadDsn as error:
        msg = f"the DSN of Sentry is not valid ({error}); it looks like https://<key>@<host>/<project>"
        raise ConfigurationError(msg) from error


# -- child processes ------------------------------------------------------------------------------------


@contextmanager
def in_child(claim: Claim, data: Mapping[str, Any]) -> Iterator[None]:
    """Give what a handler in a child process reports the tags of its job, and the trace of its run.

    The parent reports how the run ends, even if the child process dies.
    """
    if data:
        set_up(data["dsn"], data["traces"])
        begin_cleaning(rules_of_parent(data["redaction"]))
    with sentry_sdk.isolation_scope() as scope, cleaning.about([claim]):
        describe(scope, claim)
        scope.generate_propagation_context(dict(trace_of(claim.options)))
        yield


@dataclass(eq=False)
class Parent:
    """The rules of the application in the parent process."""

    redaction: Redaction


def rules_of_parent(data: Mapping[str, Any]) -> Parent:
    """Return the rules that the parent has sent, which may be more than those in the code; the same for each job."""
    if not parents:
        parents.append(Parent(Redaction(**data)))
    return parents[0]


parents: list[Parent] = []


def flush() -> None:
    """Send what this process has collected."""
    sentry_sdk.flush(FLUSH_TIMEOUT)
